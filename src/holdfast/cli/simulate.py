"""`holdfast simulate`: what would come of it? The real controller and engine over a simulated cluster, in virtual time.

Called by `main`. `simulate fuzz` looks for bugs instead; `--replay` judges a recorded history by another policy.
Progress goes to standard error; nothing is changed anywhere.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn

from holdfast.adapters.policy_files import packaged_presets, read_policy
from holdfast.cli import screen
from holdfast.cli.answer import taking
from holdfast.cli.json_forms import fields_of, form
from holdfast.cli.options import JsonOption, OptionSet
from holdfast.cli.simulate_fuzz import fuzz
from holdfast.cli.simulate_replay import show_replay
from holdfast.errors import UsageError
from holdfast.sim.causes import (
    LLAMA3_DAYS,
    LLAMA3_ETTR,
    LLAMA3_GPUS,
    LLAMA3_RATE,
    META_RSC1,
    META_RSC2,
)
from holdfast.sim.ledger import CATEGORIES
from holdfast.sim.page import bars, names_of, render
from holdfast.sim.what_if import Answer, Case, Question, ask

RATES = {"llama3": LLAMA3_RATE, "rsc1": META_RSC1, "rsc2": META_RSC2}
"""Published rates by name, failures per 1000 node-days."""
CASES_MAX = 64

app = typer.Typer(rich_markup_mode=None, add_completion=False)
app.command("fuzz")(fuzz)


class Request(OptionSet, frozen=True):
    """The options of `holdfast simulate`."""

    gpus: Annotated[int, typer.Option(metavar="N", min=1, help="GPUs that train, without spares.")] = 1024
    days: Annotated[float, typer.Option(metavar="D", help="Length of the run in days.")] = 7.0
    policy: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Policy file; several are compared. Default: Holdfast's own."),
    ] = None
    checkpoint: Annotated[
        list[float] | None,
        typer.Option(
            "--checkpoint-interval",
            metavar="S",
            help="Seconds of training between checkpoints; several are compared. Default: the best by the formula.",
        ),
    ] = None
    spares: Annotated[
        list[int] | None, typer.Option(metavar="N", help="Spare nodes; several are compared. Default: 8.")
    ] = None
    seeds: Annotated[int, typer.Option(metavar="N", min=1, help="Runs of each case, each its own faults.")] = 1
    seed: Annotated[int, typer.Option(metavar="SEED", min=0, help="The first seed.")] = 0
    jobs: Annotated[int, typer.Option(metavar="N", min=1, help="Jobs of equal size that share the GPUs.")] = 1
    failures: Annotated[
        str, typer.Option(metavar="RATE", help="Per 1000 node-days: a number, llama3 (3.79), rsc1 (6.50), rsc2 (2.34).")
    ] = "llama3"
    causes: Annotated[
        str, typer.Option(metavar="TABLE", help="Which causes they have: llama3, node, gpu, software.")
    ] = "llama3"
    lemons: Annotated[float, typer.Option(metavar="SHARE", min=0, max=1, help="Share of lemons.")] = 0.0
    scale_exponent: Annotated[
        float, typer.Option(metavar="X", min=0, max=2, help="The rate grows with (nodes/128) to this power.")
    ] = 0.0
    save_s: Annotated[
        float, typer.Option("--save", metavar="S", min=0, help="A checkpoint keeps the job from training so long.")
    ] = 10.0
    start_s: Annotated[float, typer.Option("--start", metavar="S", min=0, help="To start all processes.")] = 60.0
    load_s: Annotated[float, typer.Option("--load", metavar="S", min=0, help="To load a checkpoint.")] = 60.0
    in_place_s: Annotated[
        float, typer.Option("--in-place", metavar="S", min=0, help="As --start, inside an allocation that is kept.")
    ] = 15.0
    parallel: Annotated[int, typer.Option(metavar="K", min=1, help="Runs beside each other.")] = 1
    replay: Annotated[str, typer.Option(metavar="JOURNAL", help="Judge this recorded history by --policy instead.")] = (
        ""
    )
    everything: Annotated[bool, typer.Option("--all", help="With --replay: also incidents that went the same way.")] = (
        False
    )
    plot: Annotated[bool, typer.Option("--plot", help="Draw where the time went.")] = False
    page: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write a page with plots.")] = None
    json: JsonOption = False

    def question(self) -> Question:
        """What all cases share. Raises UsageError."""
        return self.fill(Question, failures=_rate(self.failures))

    def cases(self) -> list[Case]:
        """Every combination of what was named. Raises UsageError for too many."""
        policies = [("default", "")]
        if self.policy:
            presets = packaged_presets()
            policies = [(file.stem, read_policy(file, presets)[1]) for file in self.policy]
        made = [
            Case(policy_name=name, policy=text, checkpoint_s=interval_s, spares=number)
            for name, text in policies
            for interval_s in (self.checkpoint or [0.0])
            for number in (self.spares or [8])
        ]
        if len(made) > CASES_MAX:
            raise UsageError(
                f"{len(made)} combinations of policies, intervals and spares are too many: at most {CASES_MAX}"
            )
        return made


@app.callback(invoke_without_command=True)
@taking
def simulate(context: typer.Context, request: Request) -> None:
    """Simulate a training job of months in seconds; compare policies, checkpoint intervals and numbers of spares."""
    if context.invoked_subcommand is not None:
        return
    if request.replay:
        policies = request.policy or []
        if len(policies) > 1:
            raise UsageError("--replay compares with one other policy: name one --policy")
        file = policies[0] if policies else None
        show_replay(request.replay, file, show_all=request.everything, json=request.json)
        return
    question = request.question()
    answers = _ask(question, request.cases(), range(request.seed, request.seed + request.seeds), request.parallel)
    if request.page is not None:
        screen.save(request.page, render(_title(question), _facts(question, request.seeds), answers))
    if request.json:
        screen.say_json(_form(question, answers, request.seed))
        return
    _print(question, answers, request.seeds, plot=request.plot)
    if request.page is not None:
        screen.say(f"Written: {request.page}")


def _rate(text: str) -> float:
    if text in RATES:
        return RATES[text]
    try:
        return float(text)
    except ValueError as error:
        raise UsageError(f"--failures {text!r} is neither a number nor one of {', '.join(RATES)}") from error


def _ask(question: Question, cases: list[Case], seeds: range, parallel: int) -> list[Answer]:
    percent = TextColumn("{task.percentage:3.0f} %")
    with screen.progress(TextColumn("{task.description}"), BarColumn(), percent, TimeRemainingColumn()) as bar:
        task = bar.add_task(f"{len(cases) * len(seeds)} runs", total=1.0)
        return ask(question, cases, seeds, processes=parallel, on_part=lambda part: bar.advance(task, part))


def _title(question: Question) -> str:
    return f"{question.gpus:,} GPUs for {question.days:g} days, simulated"


def _facts(question: Question, seeds: int) -> list[tuple[str, str]]:
    return [
        (
            "job",
            f"{question.jobs} of {question.job_nodes:,} nodes" if question.jobs > 1 else f"{question.nodes:,} nodes",
        ),
        ("failures", f"{question.failures:.2f} per 1000 node-days, causes: {question.causes}"),
        ("restart", f"start {question.start_s:g} s, in place {question.in_place_s:g} s, load {question.load_s:g} s"),
        ("checkpoint", f"keeps the job {question.save_s:g} s"),
        ("seeds", str(seeds)),
    ]


def _print(question: Question, answers: list[Answer], seeds: int, *, plot: bool) -> None:
    screen.say(_title(question))
    for name, value in _facts(question, seeds):
        screen.say(f"  {name:<11}{value}")
    screen.say("")
    rows = (
        (
            name,
            f"{answer.ettr:.2%}",
            f"{answer.spread[0]:.2%}" if len(answer.runs) > 1 else None,
            f"{answer.formula:.2%}",
            f"{answer.goodput:.2%}",
            f"{sum(run.failures for run in answer.runs) / len(answer.runs):.0f}",
            ", ".join(f"{category} {share:.1%}" for category, share in Counter(answer.badput).most_common(3)),
        )
        for name, answer in zip(names_of(answers), answers, strict=True)
    )
    numbers = ("ETTR", "+/-", "formula", "goodput", "failures")
    screen.console().print(screen.table("case", *numbers, "lost most by", rows=rows, right=numbers))
    for line in _remarks(question, answers):
        screen.say(line)
    if plot:
        screen.say("")
        for line in bars(answers):
            screen.say(line)


def _remarks(question: Question, answers: list[Answer]) -> list[str]:
    """What a reader must know beside the numbers."""
    found = []
    given_up = sum(run.resubmitted for answer in answers for run in answer.runs)
    if given_up:
        found.append(
            f"A job was given up {given_up} times by its policy's budgets; its owner queued it again an hour later."
        )
    if question.causes == "llama3":
        beside = (
            "the same size and length" if _is_llama3(question) else f"{LLAMA3_GPUS:,} GPUs and {LLAMA3_DAYS:g} days"
        )
        found.append(
            f"Published for Llama 3 ({beside}, 419 unexpected stops): over {LLAMA3_ETTR:.0%} effective training time."
        )
    refused = sum(run.refused for answer in answers for run in answer.runs)
    if refused:
        found.append(f"The engine refused {refused} events: that is a bug of Holdfast; please report the seeds.")
    return found


def _is_llama3(question: Question) -> bool:
    return question.gpus == LLAMA3_GPUS and question.days == LLAMA3_DAYS


def _form(question: Question, answers: list[Answer], seed: int) -> dict[str, Any]:
    return form(
        **fields_of(question, "gpus days jobs"),
        failures_per_1000_node_days=question.failures,
        **fields_of(question, "causes save_s start_s load_s in_place_s"),
        first_seed=seed,
        published_ettr=LLAMA3_ETTR if question.causes == "llama3" and _is_llama3(question) else None,
        categories=CATEGORIES,
        cases=[_case_form(answer) for answer in answers],
    )


def _case_form(answer: Answer) -> dict[str, Any]:
    names = ("ettr", "ettr_deviation", "ettr_min", "ettr_max", "ettr_formula")
    return {
        "policy": answer.case.policy_name,
        "checkpoint_s": answer.checkpoint_s,
        "spares": answer.case.spares,
        **dict(zip(names, (answer.ettr, *answer.spread, answer.formula), strict=True)),
        "goodput": answer.goodput,
        "badput": answer.badput,
        "runs": answer.runs,
    }

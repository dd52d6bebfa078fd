"""`holdfast simulate`: what would come of it? The real controller and engine over a simulated cluster, in virtual time.

Called by `main`. `simulate fuzz` looks for bugs instead; `--replay` judges a recorded history by another policy.
Progress goes to standard error; nothing is changed anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from holdfast.adapters.policy_files import packaged_presets, read_policy
from holdfast.cli import screen
from holdfast.cli.options import JsonOption
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
    TABLES,
)
from holdfast.sim.ledger import CATEGORIES
from holdfast.sim.page import bars, names_of, render
from holdfast.sim.what_if import Answer, Case, Question, ask

VERSION = 1
RATES = {"llama3": LLAMA3_RATE, "rsc1": META_RSC1, "rsc2": META_RSC2}
"""Published rates by name, failures per 1000 node-days."""
CASES_MAX = 64

app = typer.Typer(rich_markup_mode=None, add_completion=False)
app.command("fuzz")(fuzz)


Files = Annotated[
    list[Path] | None,
    typer.Option("--policy", metavar="FILE", help="Policy file; several are compared. Default: Holdfast's own."),
]
Intervals = Annotated[
    list[float] | None,
    typer.Option(
        "--checkpoint-interval",
        metavar="S",
        help="Seconds of training between checkpoints; several are compared. Default: the best by the formula.",
    ),
]
Spares = Annotated[
    list[int] | None, typer.Option("--spares", metavar="N", help="Spare nodes; several are compared. Default: 8.")
]
Gpus = Annotated[int, typer.Option("--gpus", metavar="N", min=1, help="GPUs that train, without spares.")]
Days = Annotated[float, typer.Option("--days", metavar="D", help="Length of the run in days.")]
Seeds = Annotated[int, typer.Option("--seeds", metavar="N", min=1, help="Runs of each case, each its own faults.")]
First = Annotated[int, typer.Option("--seed", metavar="SEED", min=0, help="The first seed.")]
Jobs = Annotated[int, typer.Option("--jobs", metavar="N", min=1, help="Jobs of equal size that share the GPUs.")]
Failures = Annotated[
    str,
    typer.Option(
        "--failures", metavar="RATE", help="Per 1000 node-days: a number, llama3 (3.79), rsc1 (6.50), rsc2 (2.34)."
    ),
]
Causes = Annotated[
    str, typer.Option("--causes", metavar="TABLE", help="Which causes they have: llama3, node, gpu, software.")
]
Lemons = Annotated[float, typer.Option("--lemons", metavar="SHARE", min=0, max=1, help="Share of lemons.")]
Exponent = Annotated[
    float,
    typer.Option("--scale-exponent", metavar="X", min=0, max=2, help="The rate grows with (nodes/128) to this power."),
]
Save = Annotated[
    float, typer.Option("--save", metavar="S", min=0, help="A checkpoint keeps the job from training so long.")
]
Start = Annotated[float, typer.Option("--start", metavar="S", min=0, help="To start all processes.")]
Load = Annotated[float, typer.Option("--load", metavar="S", min=0, help="To load a checkpoint.")]
InPlace = Annotated[
    float, typer.Option("--in-place", metavar="S", min=0, help="As --start, inside an allocation that is kept.")
]
Parallel = Annotated[int, typer.Option("--parallel", metavar="K", min=1, help="Runs beside each other.")]
Replay = Annotated[
    str, typer.Option("--replay", metavar="JOURNAL", help="Judge this recorded history by --policy instead.")
]
Everything = Annotated[bool, typer.Option("--all", help="With --replay: also incidents that went the same way.")]
Plot = Annotated[bool, typer.Option("--plot", help="Draw where the time went.")]
Page = Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write a page with plots.")]


@app.callback(invoke_without_command=True)
def simulate(
    context: typer.Context,
    *,
    gpus: Gpus = 1024,
    days: Days = 7.0,
    policy: Files = None,
    checkpoint: Intervals = None,
    spares: Spares = None,
    seeds: Seeds = 1,
    seed: First = 0,
    jobs: Jobs = 1,
    failures: Failures = "llama3",
    causes: Causes = "llama3",
    lemons: Lemons = 0.0,
    exponent: Exponent = 0.0,
    save: Save = 10.0,
    start: Start = 60.0,
    load: Load = 60.0,
    in_place: InPlace = 15.0,
    parallel: Parallel = 1,
    replay: Replay = "",
    everything: Everything = False,
    plot: Plot = False,
    page: Page = None,
    json: JsonOption = False,
) -> None:
    """Simulate a training job of months in seconds; compare policies, checkpoint intervals and numbers of spares."""
    if context.invoked_subcommand is not None:
        return
    if replay:
        _replay(replay, policy or [], everything=everything, json=json)
        return
    question = Question(
        gpus=gpus,
        days=days,
        jobs=jobs,
        failures=_rate(failures),
        causes=_table(causes),
        save_s=save,
        start_s=start,
        load_s=load,
        lemons=lemons,
        scale_exponent=exponent,
        in_place_s=in_place,
    )
    cases = _cases(policy or [], checkpoint or [], spares or [])
    answers = _ask(question, cases, range(seed, seed + seeds), parallel)
    if page is not None:
        page.write_text(render(_title(question), _facts(question, seeds), answers), encoding="utf-8")
    if json:
        screen.say_json(_form(question, answers, seed))
        return
    _print(question, answers, seeds, plot=plot)
    if page is not None:
        screen.say(f"Written: {page}")


def _replay(journal: str, policies: Sequence[Path], *, everything: bool, json: bool) -> None:
    if len(policies) > 1:
        raise UsageError("--replay compares with one other policy: name one --policy")
    show_replay(journal, policies[0] if policies else None, show_all=everything, json=json)


def _table(name: str) -> str:
    if name not in TABLES:
        raise UsageError(f"no table of causes {name!r}: use {', '.join(TABLES)}")
    return name


def _rate(text: str) -> float:
    if text in RATES:
        return RATES[text]
    try:
        return float(text)
    except ValueError as error:
        raise UsageError(f"--failures {text!r} is neither a number nor one of {', '.join(RATES)}") from error


def _cases(files: Sequence[Path], checkpoints: Sequence[float], spares: Sequence[int]) -> list[Case]:
    """Every combination of what was named."""
    policies = [("default", "")]
    if files:
        presets = packaged_presets()
        policies = [(file.stem, read_policy(file, presets)[1]) for file in files]
    made = [
        Case(policy_name=name, policy=text, checkpoint_s=interval_s, spares=number)
        for name, text in policies
        for interval_s in (checkpoints or [0.0])
        for number in (spares or [8])
    ]
    if len(made) > CASES_MAX:
        raise UsageError(
            f"{len(made)} combinations of policies, intervals and spares are too many: at most {CASES_MAX}"
        )
    return made


def _ask(question: Question, cases: list[Case], seeds: range, parallel: int) -> list[Answer]:
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:3.0f} %"),
        TimeRemainingColumn(),
        console=screen.error_console(),
        transient=True,
        disable=not screen.stderr_is_terminal(),
    ) as bar:
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
    made = screen.table("case", "ETTR", "+/-", "formula", "goodput", "failures", "lost most by", right=_NUMBERS)
    for name, answer in zip(names_of(answers), answers, strict=True):
        worst = sorted(answer.badput.items(), key=lambda item: -item[1])[:3]
        made.add_row(
            Text(screen.clean(name)),
            Text(f"{answer.ettr:.2%}"),
            Text(f"{answer.spread[0]:.2%}" if len(answer.runs) > 1 else "-"),
            Text(f"{answer.formula:.2%}"),
            Text(f"{answer.goodput:.2%}"),
            Text(f"{sum(run.failures for run in answer.runs) / len(answer.runs):.0f}"),
            Text(", ".join(f"{category} {share:.1%}" for category, share in worst)),
        )
    screen.console().print(made)
    for line in _remarks(question, answers):
        screen.say(line)
    if plot:
        screen.say("")
        for line in bars(answers):
            screen.say(line)


_NUMBERS = ("ETTR", "+/-", "formula", "goodput", "failures")


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
    return {
        "version": VERSION,
        "gpus": question.gpus,
        "days": question.days,
        "jobs": question.jobs,
        "failures_per_1000_node_days": question.failures,
        "causes": question.causes,
        "save_s": question.save_s,
        "start_s": question.start_s,
        "load_s": question.load_s,
        "in_place_s": question.in_place_s,
        "first_seed": seed,
        "published_ettr": LLAMA3_ETTR if question.causes == "llama3" and _is_llama3(question) else None,
        "categories": CATEGORIES,
        "cases": [_case_form(answer) for answer in answers],
    }


def _case_form(answer: Answer) -> dict[str, Any]:
    deviation, least, greatest = answer.spread
    return {
        "policy": answer.case.policy_name,
        "checkpoint_s": answer.checkpoint_s,
        "spares": answer.case.spares,
        "ettr": answer.ettr,
        "ettr_deviation": deviation,
        "ettr_min": least,
        "ettr_max": greatest,
        "ettr_formula": answer.formula,
        "goodput": answer.goodput,
        "badput": answer.badput,
        "runs": answer.runs,
    }

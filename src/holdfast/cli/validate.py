"""`holdfast validate`: is this environment fit for a long run? Wires `validate.session` to screen, files and journal.

Alone it looks at this node; under `srun` at all nodes of the step; with `--nodes` it calls `srun` itself. Exit codes: 0
fit (also with warnings), 1 not fit, 69 nobody joined. A node that only served the leader ends with 0.
"""

from __future__ import annotations

import asyncio
import functools
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from holdfast.adapters.catalogue_files import read_catalogue, read_matcher
from holdfast.adapters.clock import SystemClock
from holdfast.cli import screen
from holdfast.cli.answer import Answer, answering, taking
from holdfast.cli.ending import become_srun
from holdfast.cli.json_forms import form
from holdfast.cli.options import JsonOption
from holdfast.cli.validate_options import SECRET, JournalUrl, ValidateOptions
from holdfast.cli.validate_pages import export, history_answer, keep, print_run
from holdfast.detect.catalogue import StreamKind
from holdfast.detect.matcher import StreamSource
from holdfast.errors import EXIT_FAILED, UsageError
from holdfast.os.programs import Command, run_blocking
from holdfast.validate.baselines import as_toml, learned, packaged
from holdfast.validate.place import Place, place_of
from holdfast.validate.registry import SUITES, Options, chosen
from holdfast.validate.results import Run, Verdict
from holdfast.validate.session import Session
from holdfast.validate.session import run as run_session
from holdfast.validate.under_test import Asked

DEFAULT_JOURNAL = "sqlite:///{home}/.local/share/holdfast/validate.db"
SINFO_S = 30.0

app = typer.Typer(
    help="Say whether nodes are fit to train: measure, compare, find the odd one.",
    invoke_without_command=True,
    rich_markup_mode=None,
    add_completion=False,
)


@app.callback()
@taking
def validate(
    ctx: typer.Context,
    *,
    given: ValidateOptions,
    json: JsonOption = False,
) -> None:
    """Say whether this node, or all nodes of an srun step, are fit to train. Exit code 1: one is not."""
    if ctx.invoked_subcommand is not None:
        return
    if given.nodes:
        _become_srun(given.nodes, given.partition)
    suites = chosen(_words(given.suite))
    place = place_of(os.environ)
    if given.leader and given.expect > 1:
        place = Place(node=place.node, rank=place.rank, world=given.expect, run=given.leader)
    if given.resume and given.out is None:
        raise UsageError("--resume needs --out: the folder of the interrupted run")
    folder = given.out if given.out is not None else Path(f"holdfast-validate-{place.run}") if place.world > 1 else None
    session = Session(
        asked=Asked(suites=suites, options=given.fill(Options), baseline=given.baseline),
        place=place,
        env=dict(os.environ),
        clock=SystemClock(),
        folder=folder.absolute() if folder is not None else None,
        resume=given.resume,
        leader=given.leader,
        secret=_secret(given.leader, os.environ),
        join_s=given.join_s,
        advise=advice,
        progress=_progress(quiet=given.quiet or json),
    )
    found = asyncio.run(run_session(session))
    if found is None:
        return
    _finish(found, given, session.folder, json=json)


def _finish(run: Run, given: ValidateOptions, folder: Path | None, *, json: bool) -> None:
    """Keep, export, print, and end with the right code."""
    url = _journal_url(given.journal)
    trends = keep(run, url)
    for path in given.report or ():
        export(run, trends, path)
    if folder is not None:
        export(run, trends, folder / "run.json")
    learn = given.learn
    if learn is not None:
        screen.save(learn, as_toml(learned(run.nodes, learn.stem, f"run {run.id} of `holdfast validate`")))
    if json:
        screen.say_json(run)
    else:
        print_run(run, trends, quiet=given.quiet)
        if learn is not None:
            screen.say(f"learned: {learn}")
    if run.verdict is Verdict.FAIL:
        raise typer.Exit(EXIT_FAILED)


@app.command()
@answering
def history(
    *,
    node: Annotated[str, typer.Option(metavar="NAME", help="One node. Default: all.")] = "",
    item: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Figures. Default: all.")] = None,
    report: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write FILE: .html, .csv or .json.")] = None,
    journal: JournalUrl = "",
) -> Answer:
    """Say how figures have moved over all runs. It shows ageing, and changes with what changed beside them."""
    return history_answer(_journal_url(journal), node=node, items=tuple(item or ()), report=report)


@app.command()
@answering
def baselines() -> Answer:
    """List the baselines that ship, with their sources."""
    known = packaged()
    rows = (
        (one.name, one.match.gpu or one.match.instance or one.match.cpu or "by name", len(one.expected), one.source)
        for one in known.values()
    )
    table = screen.table("baseline", "matches", "figures", "source", rows=rows, keep=("baseline",))
    return Answer(lambda: form(baselines=list(known.values())), lambda: [table])


@app.command()
@answering
def suites() -> Answer:
    """List the suites."""
    rows = ((one.name, "yes" if one.quick else "", one.about, one.needs) for one in SUITES.values())
    table = screen.table("suite", "by default", "what", "needs", rows=rows, keep=("suite",))
    return Answer(lambda: form(suites=list(SUITES.values())), lambda: [table])


@functools.cache
def advice(text: str) -> str:
    """What the catalogue advises about an error's text, or nothing. The matcher is loaded at the first error."""
    stream = read_matcher(read_catalogue()).stream(StreamSource(kind=StreamKind.OUTPUT))
    found = [*stream.feed(f"{text}\n".encode(), 0.0), *stream.flush(0.0)]
    return next((words for match in found if (words := match.rule.advice or match.rule.title)), "")


def _words(listed: list[str] | None) -> tuple[str, ...]:
    return tuple(word for entry in listed or () for word in entry.split(",") if word)


def _secret(leader: str, env: Mapping[str, str]) -> str:
    secret = env.get(SECRET, "")
    if leader and len(secret) < 16:
        raise UsageError(f"--leader needs the run's secret in {SECRET}: 16 characters or more, the same on all nodes")
    return secret


def _progress(*, quiet: bool) -> Callable[[str], None]:
    return (lambda _line: None) if quiet else (lambda line: screen.say(screen.clean(line), err=True))


def _journal_url(asked: str) -> str:
    if asked == "none":
        return ""
    return asked or DEFAULT_JOURNAL.format(home=Path.home())


def _become_srun(nodes: str, partition: str) -> None:
    """Call srun for this very command, without --nodes; this process becomes it."""
    if not shutil.which("srun"):
        raise UsageError("--nodes needs Slurm's srun on the PATH")
    argv = ["--ntasks-per-node=1", "--kill-on-bad-exit=0"]
    argv += [f"--partition={partition}"] if partition else []
    if nodes == "all":
        argv.append(f"--nodelist={screen.fold(_idle(partition))}")
    else:
        argv.append(f"--nodes={nodes}" if nodes.isdigit() else f"--nodelist={nodes}")
    become_srun([*argv, *without(own_command(sys.argv), ("--nodes", "--partition"))])


def own_command(argv: Sequence[str]) -> list[str]:
    """This very command for another process to run: a module's file (`python -m holdfast`) is no program."""
    if shutil.which(argv[0]):
        return list(argv)
    return [sys.executable, "-m", "holdfast", *argv[1:]]


def without(words: Sequence[str], options: tuple[str, ...]) -> list[str]:
    """A command line without these options and their values."""
    kept, skip = [], False
    for word in words:
        if skip:
            skip = False
        elif word in options:
            skip = True
        elif not word.startswith(tuple(f"{one}=" for one in options)):
            kept.append(word)
    return kept


def _idle(partition: str) -> list[str]:
    """Nodes that have no job now."""
    argv = ("sinfo", "-h", "-N", "-t", "idle", "-o", "%N", *((f"--partition={partition}",) if partition else ()))
    ran = run_blocking(Command(argv=("env", *argv)), SINFO_S)
    found = sorted(set(ran.out.split()))
    if not found:
        raise UsageError(f"no node is idle: {screen.clean(ran.err) or 'sinfo lists none'}")
    return found

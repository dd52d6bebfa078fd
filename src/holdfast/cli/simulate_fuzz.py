"""`holdfast simulate fuzz`: look for bugs of engine and controller in swarms of simulated faults.

Called by `simulate.py`. Every failing seed is printed with what its judges say, the faults and options that are needed
for it, all options, and the one command that repeats it. Progress goes to standard error.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from holdfast.cli import screen
from holdfast.cli.json_forms import fields_of, form
from holdfast.cli.options import JsonOption
from holdfast.errors import EXIT_FAILED, UsageError
from holdfast.sim.fuzz import Verdict, search, shrink_all
from holdfast.sim.options import SimOptions

SHRUNK_MAX = 10
"""Failing seeds that are made small: more of them tell nothing new."""


def fuzz(
    *,
    seeds: Annotated[int, typer.Option(metavar="N", min=1, help="How many seeds.")] = 200,
    first: Annotated[int, typer.Option("--from", metavar="SEED", min=0, help="The first seed.")] = 0,
    jobs: Annotated[int, typer.Option(metavar="K", min=1, help="Runs beside each other.")] = 1,
    only: Annotated[
        str | None, typer.Option(metavar="IDS", help="Only these planned faults happen (comma separated).")
    ] = None,
    off: Annotated[
        str, typer.Option(metavar="NAMES", help="Options of the swarm that are set to zero (comma separated).")
    ] = "",
    shrink: Annotated[bool, typer.Option("--shrink/--no-shrink", help="Make failing seeds small.")] = True,
    json: JsonOption = False,
) -> None:
    """Run seeds of random faults against the real engine. Each run is judged. Exit code 1: bugs found."""
    if only is not None and seeds != 1:
        raise UsageError("--only names the faults of one seed: use it with --seeds 1")
    events = 0
    with screen.progress() as bar:
        task = bar.add_task("seeds", total=seeds)

        def note(verdict: Verdict) -> None:
            nonlocal events
            events += verdict.events
            bar.update(task, advance=1)
            if not verdict.ok and seeds > 1:
                judges = ", ".join(sorted(verdict.judges))
                bar.console.print(f"seed {verdict.trial.seed} fails: {judges}", highlight=False)

        names = None if only is None else _split(only)
        failed = search(range(first, first + seeds), processes=jobs, only=names, off=_split(off), on_verdict=note)
        small = shrink_all(failed[:SHRUNK_MAX], processes=jobs) if shrink and only is None else failed
    if json:
        screen.say_json(_form(first, seeds, events, failed, small))
    else:
        _print(first, seeds, events, failed, small)
    if failed:
        raise typer.Exit(EXIT_FAILED)


def _split(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _print(first: int, seeds: int, events: int, failed: list[Verdict], small: list[Verdict]) -> None:
    for verdict in small:
        screen.say(f"seed {verdict.trial.seed}")
        for complaint in verdict.complaints:
            screen.say(f"  {complaint.judge}: {complaint.text}")
        screen.say(f"  faults that are needed: {', '.join(verdict.faults) or 'none'}")
        for line in _options(verdict.trial.options()):
            screen.say(f"    {line}")
        screen.say(f"  again: {verdict.trial.command()}")
    more = len(failed) - len(small)
    if more > 0:
        screen.say(f"and {more} more seeds: {', '.join(str(one.trial.seed) for one in failed[len(small) :][:50])}")
    last = first + seeds - 1
    found = "no complaint" if not failed else f"{len(failed)} seeds failed"
    screen.say(f"seeds {first} to {last}: {events} events, {found}")


def _options(options: SimOptions) -> list[str]:
    return [line for line in options.lines() if not line.startswith("drop =")]


def _form(first: int, seeds: int, events: int, failed: list[Verdict], small: list[Verdict]) -> dict[str, Any]:
    failures = [
        {
            "seed": verdict.trial.seed,
            "complaints": [fields_of(one, "judge text") for one in verdict.complaints],
            "faults": verdict.faults,
            "off": verdict.trial.off,
            "options": verdict.trial.options(),
            "again": verdict.trial.command(),
        }
        for verdict in small
    ]
    seen = [verdict.trial.seed for verdict in failed]
    return form(first=first, seeds=seeds, events=events, failed=seen, failures=failures)

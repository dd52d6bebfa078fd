"""`holdfast drill schedule list|run`: drills by a calendar, each compared with its last run.

The calendar is `[[drill.schedule]]` of `holdfast.toml`. `run` waits on the machine's clock; a run ends by itself, by
Ctrl-C, by its limit, or when quiet hours begin, and leaves nothing behind but its results.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from holdfast.cli import screen
from holdfast.cli.answer import Answer, answering, group
from holdfast.cli.json_forms import form
from holdfast.cli.options import ConfigOption, JsonOption
from holdfast.drill.calendar import FORM, Calendar, Held, Line, checked, lines
from holdfast.drill.schedule import Schedule
from holdfast.errors import EXIT_FAILED, UsageError
from holdfast.model.toml_lines import did_you_mean
from holdfast.report.words import Words
from holdfast.wiring.settings import load_settings

app = group("Drills by a calendar.")


@app.command("list")
@answering
def list_schedules(*, config: ConfigOption = None) -> Answer:
    """List the calendar: what is due next, and how the last run ended."""
    calendar = _calendar(config)
    now = screen.now()
    found = lines(calendar, now)

    def row(line: Line) -> Iterable[screen.Cell]:
        one = line.schedule
        due = "never: it is always quiet then" if line.next is None else Words(zone=one.zone).time(line.next)
        return one.name, ", ".join(one.drills), one.on, due, _verdict(line.last)

    table = screen.table("schedule", "drills", "on", "next", "last run", rows=map(row, found))
    return Answer(lambda: form(schedules=list(map(_form, found))), lambda: [table])


def _form(line: Line) -> dict[str, Any]:
    ended = next((one for one in line.runs if one.form), None)
    last = line.last
    return {
        **msgspec.to_builtins(line.schedule),
        "next": line.next,
        "last": str(ended.folder / FORM) if ended is not None else None,
        "state": last.state if last is not None else None,
        "regressions": last.worse if last is not None else [],
    }


@app.command()
def run(
    names: Annotated[list[str] | None, typer.Argument(metavar="SCHEDULE...", help="Only these. Default: all.")] = None,
    *,
    now: Annotated[bool, typer.Option("--now", help="At once, whatever the hour, except in quiet hours.")] = False,
    once: Annotated[bool, typer.Option("--once", help="End after the next one that is due.")] = False,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Run drills as they become due. Exit code 1: one failed, or is worse than in its last run."""
    from holdfast.cli.drill_schedule_run import hold_due  # noqa: PLC0415 - `list` needs no controller and no notices

    calendar = _calendar(config)
    chosen = [_named(name, calendar.schedules) for name in names] if names else calendar.schedules
    bad = hold_due(calendar, chosen, load_settings(config).config.notify, now=now, once=once, json=json)
    raise typer.Exit(EXIT_FAILED if bad else 0)


def _calendar(config: Path | None) -> Calendar:
    settings = load_settings(config)
    drill = settings.config.drill
    if not drill.schedule:
        raise UsageError("there is no calendar: write [[drill.schedule]] into holdfast.toml (docs/drills-calendar.md)")
    return checked(drill.schedule, settings.path(drill.results))


def _named(name: str, found: tuple[Schedule, ...]) -> Schedule:
    known = {one.name: one for one in found}
    if name not in known:
        raise UsageError(f'there is no schedule "{name}"{did_you_mean(name, known)}')
    return known[name]


def _verdict(last: Held | None) -> str:
    if last is None:
        return "-"
    if last.state == "worse":
        passed = "passed" if last.form.get("passed") else "failed"
        return f"{last.folder.name}: {passed}, {len(last.worse)} worse"
    why = f" ({screen.clean(last.detail)})" if last.detail else ""
    return f"{last.folder.name}: {last.state}{why}"

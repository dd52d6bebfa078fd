"""`holdfast drill schedule list|run`: drills by a calendar, each compared with its last run.

The calendar is `[[drill.schedule]]` of `holdfast.toml`. `run` waits on the machine's clock; a run ends by itself, by
Ctrl-C, by its limit, or when quiet hours begin, and leaves nothing behind but its results.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json as jsonlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from holdfast.adapters.clock import SystemClock
from holdfast.cli import screen
from holdfast.cli.config import ConfigOption, JsonOption, Settings, load_settings
from holdfast.drill.scenario import Scenario, find
from holdfast.drill.schedule import Regression, Schedule, check, is_quiet, limit_s, next_due, regressions
from holdfast.errors import EXIT_FAILED, RefusedError, UsageError
from holdfast.model.toml_lines import did_you_mean
from holdfast.ports import Clock
from holdfast.report.words import Words

app = typer.Typer(help="Drills by a calendar.", no_args_is_help=True, rich_markup_mode=None, add_completion=False)

VERSION = 1
RESULTS = "drill-results"


@app.command("list")
def list_schedules(*, config: ConfigOption = None, json: JsonOption = False) -> None:
    """List the calendar: what is due next, and how the last run ended."""
    settings, found = _calendar(config)
    now = screen.now()
    rows = [(one, next_due(one, now), _last(settings, one)) for one in found]
    if json:
        screen.say_json(
            {"version": VERSION, "schedules": [msgspec.to_builtins(s) | {"next": at, "last": str(last or "") or None}
                                               for s, at, last in rows]}
        )  # fmt: skip
        return
    table = screen.table("schedule", "drills", "on", "next", "last run")
    for one, at, last in rows:
        due = "never: it is always quiet then" if at is None else Words(zone=one.zone).time(at)
        table.add_row(one.name, ", ".join(one.drills), one.on, due, _verdict(last))
    screen.console().print(table)


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
    settings, found = _calendar(config)
    chosen = [_named(name, found) for name in names] if names else found
    clock = SystemClock()
    while True:
        at = clock.now()
        if now:
            due = [(at, one) for one in chosen]
        else:
            due = sorted(((d, one) for one in chosen if (d := next_due(one, at)) is not None), key=lambda x: x[0])[:1]
        if not due:
            raise UsageError("nothing of this calendar is ever due: it is always quiet then")
        bad = False
        for moment, one in due:
            _wait(moment, one, clock)
            bad |= _hold(settings, one, clock, json=json)
        if now or once:
            raise typer.Exit(EXIT_FAILED if bad else 0)


def _wait(moment: float, one: Schedule, clock: Clock) -> None:
    if moment > clock.now():
        screen.say(f"{one.name} is due at {Words(zone=one.zone).time(moment)}", err=True)
        asyncio.run(clock.sleep(moment - clock.now()))


def _hold(settings: Settings, one: Schedule, clock: Clock, *, json: bool) -> bool:
    """One run of a schedule; is it bad?"""
    from holdfast.drill.campaign import CampaignSettings, run_campaign  # noqa: PLC0415 - `list` needs no controller
    from holdfast.drill.results import run_form  # noqa: PLC0415 - as above

    at = clock.now()
    if is_quiet(one, at):
        raise RefusedError(f"{one.name}: these are its quiet hours, so nothing is broken now")
    scenarios: list[Scenario] = [find(name) for name in one.drills]
    before = _last(settings, one)
    folder = _results(settings, one) / datetime.fromtimestamp(at, UTC).strftime("%Y%m%dT%H%M%SZ")
    campaign = CampaignSettings(
        folder=folder, seed=one.seed, on=one.on, has_torch=importlib.util.find_spec("torch") is not None
    )

    async def bounded() -> dict[str, Any]:
        async with asyncio.timeout(limit_s(one, at)):
            done = await run_campaign(
                scenarios, campaign, clock=clock, on_note=lambda note: screen.say(f"  {note}", err=True)
            )
        return run_form(done)

    try:
        form = asyncio.run(bounded())
    except TimeoutError:
        screen.say(f"{one.name}: aborted at its limit, or because it begins to be quiet; results: {folder}", err=True)
        return True
    worse = regressions(_read(before), form, slower_by=one.slower_by) if before is not None else []
    text = jsonlib.dumps([msgspec.to_builtins(found) for found in worse], indent=2) + "\n"
    (folder / "regressions.json").write_text(text, encoding="utf-8")
    _tell(one, form, worse, before, folder, json=json)
    return bool(worse) or not form["passed"]


def _tell(
    one: Schedule, form: dict[str, Any], worse: list[Regression], before: Path | None, folder: Path, *, json: bool
) -> None:
    if json:
        screen.say_json(
            {
                "version": VERSION,
                "schedule": one.name,
                "results": str(folder),
                "compared_with": str(before.parent) if before is not None else None,
                "regressions": msgspec.to_builtins(worse),
                "run": form,
            }
        )
        return
    for drill in form["drills"]:
        word = "SKIP" if drill["skipped"] else "ok  " if drill["passed"] else "FAIL"
        screen.say(f"{word}  {drill['name']}  {screen.clean(drill['reason'])}".rstrip())
    for found in worse:
        screen.say(f"WORSE {found.drill}: {found.what} {found.before} -> {screen.clean(found.now)}")
    screen.say(
        f"compared with {before.parent.name}" if before is not None else "the first run: nothing to compare with"
    )
    screen.say(f"results: {folder}", err=True)


def _calendar(config: Path | None) -> tuple[Settings, tuple[Schedule, ...]]:
    settings = load_settings(config)
    found = settings.config.drill.schedule
    if not found:
        raise UsageError("there is no calendar: write [[drill.schedule]] into holdfast.toml (docs/drills-calendar.md)")
    for one in found:
        check(one)
    if len({one.name for one in found}) < len(found):
        raise UsageError("two [[drill.schedule]] have the same name")
    return settings, found


def _named(name: str, found: tuple[Schedule, ...]) -> Schedule:
    known = {one.name: one for one in found}
    if name not in known:
        raise UsageError(f'there is no schedule "{name}"{did_you_mean(name, known)}')
    return known[name]


def _results(settings: Settings, one: Schedule) -> Path:
    return (settings.path(settings.config.drill.results) or Path(RESULTS)).absolute() / one.name


def _last(settings: Settings, one: Schedule) -> Path | None:
    """`drills.json` of the newest run that came to its end."""
    return max(
        (path.parent / "drills.json" for path in _results(settings, one).glob("*/regressions.json")), default=None
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        found = jsonlib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _verdict(path: Path | None) -> str:
    if path is None:
        return "-"
    worse = jsonlib.loads((path.parent / "regressions.json").read_text(encoding="utf-8"))
    passed = "passed" if _read(path).get("passed") else "failed"
    return f"{path.parent.name}: {passed}" + (f", {len(worse)} worse" if worse else "")

"""`holdfast drill schedule run`: waits until drills of the calendar are due, runs them, says what became of them.

Called by `drill_schedule`, and imported only to run: it loads all that drills and notices are made of.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast.adapters.clock import SystemClock
from holdfast.adapters.notice_settings import NotifyConfig
from holdfast.cli import drill_notices, screen
from holdfast.cli.json_forms import form
from holdfast.drill.calendar import ABORTED, WORSE, Calendar, Held, last_ended, run_folder
from holdfast.drill.campaign import CampaignSettings, run_campaign
from holdfast.drill.results import run_form
from holdfast.drill.scenario import Scenario, find
from holdfast.drill.schedule import Regression, Schedule, is_quiet, limit_s, next_due, regressions
from holdfast.errors import HoldfastError, RefusedError, UsageError
from holdfast.os.files import write_whole
from holdfast.ports import Clock
from holdfast.report.words import Words
from holdfast.wiring.notices import check_destinations


def hold_due(
    calendar: Calendar, chosen: Sequence[Schedule], notify: NotifyConfig, *, now: bool, once: bool, json: bool
) -> bool:
    """Hold these schedules as they become due, for ever, or one round of them `now` or `once`; was one bad?

    Raises:
        UsageError: none is ever due.
        ConfigError: a destination of notices cannot work.
    """
    if notify.to:
        check_destinations(notify)
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
            _wait(moment, one, calendar, notify, clock)
            try:
                bad |= _hold(calendar, one, notify, clock, json=json)
            except HoldfastError:
                _last_word(calendar, notify, clock)
                raise
        if now or once:
            _last_word(calendar, notify, clock)
            return bad


def _wait(moment: float, one: Schedule, calendar: Calendar, notify: NotifyConfig, clock: Clock) -> None:
    """Until a schedule is due; meanwhile notices go out that were not taken yet."""
    left = moment - clock.now()
    if left > 0:
        screen.say(f"{one.name} is due at {Words(zone=one.zone).time(moment)}", err=True)
        asyncio.run(drill_notices.deliver(drill_notices.waiting(calendar), notify, clock, for_s=left, stay=True))


def _last_word(calendar: Calendar, notify: NotifyConfig, clock: Clock) -> None:
    """Send what waits before the command ends; what is not taken now stays on disk, and is named."""
    paths = drill_notices.waiting(calendar)
    limit_s = drill_notices.LAST_WORD_S
    left = asyncio.run(drill_notices.deliver(paths, notify, clock, for_s=limit_s, stay=False)) if paths else []
    if left:
        screen.say(f"not taken yet by {', '.join(left)}: the next `holdfast drill schedule run` sends it", err=True)


def _hold(calendar: Calendar, one: Schedule, notify: NotifyConfig, clock: Clock, *, json: bool) -> bool:
    """One run of a schedule; is it bad?"""
    at = clock.now()
    if is_quiet(one, at):
        raise RefusedError(f"{one.name}: these are its quiet hours, so nothing is broken now")
    scenarios: list[Scenario] = [find(name) for name in one.drills]
    before = last_ended(calendar, one, at)
    folder = run_folder(calendar, one, at)
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
        made = asyncio.run(bounded())
    except TimeoutError:
        _aborted(folder, "at its limit, or because it began to be quiet")
        asyncio.run(drill_notices.leave(calendar, one, folder, notify, clock))
        screen.say(f"{one.name}: aborted at its limit, or because it begins to be quiet; results: {folder}", err=True)
        return True
    except BaseException as error:  # also Ctrl-C: whoever looks at the calendar sees that it did not come to its end
        by_hand = isinstance(error, KeyboardInterrupt)
        _aborted(folder, "by a person" if by_hand else str(error) or type(error).__name__)
        if not by_hand:
            asyncio.run(drill_notices.leave(calendar, one, folder, notify, clock))
        raise
    worse = regressions(before.form, made, slower_by=one.slower_by) if before is not None else []
    write_whole(folder / WORSE, screen.pretty(worse) + b"\n")
    asyncio.run(drill_notices.leave(calendar, one, folder, notify, clock))
    _tell(one, made, worse, before, folder, json=json)
    return bool(worse) or not made["passed"]


def _aborted(folder: Path, why: str) -> None:
    """Leave word of it beside what results there are."""
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / ABORTED, screen.pretty({"why": why}) + b"\n")


def _tell(
    one: Schedule, made: dict[str, Any], worse: list[Regression], before: Held | None, folder: Path, *, json: bool
) -> None:
    if json:
        compared_with = str(before.folder) if before is not None else None
        ended = {"results": str(folder), "compared_with": compared_with, "regressions": worse, "run": made}
        screen.say_json(form(schedule=one.name, **ended))
        return
    for drill in made["drills"]:
        word = "SKIP" if drill["skipped"] else "ok  " if drill["passed"] else "FAIL"
        screen.say(f"{word}  {drill['name']}  {screen.clean(drill['reason'])}".rstrip())
    for found in worse:
        screen.say(f"WORSE {found.drill}: {found.what} {found.before} -> {screen.clean(found.now)}")
    screen.say(
        f"compared with {before.folder.name}" if before is not None else "the first run: nothing to compare with"
    )
    screen.say(f"results: {folder}", err=True)

"""Sends what `drill.notices` has to say to the destinations of `[notify]`. Called by `drill_schedule`.

What no destination has taken yet waits in `outbox.jsonl` of the run's own folder, flushed to disk, so that two commands
on one calendar never write one file; whatever `holdfast drill schedule run` comes next goes on with it. Time passes by
the clock port.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from holdfast.adapters.notice_settings import NotifyConfig
from holdfast.adapters.notify.outbox import Outbox
from holdfast.adapters.notify.routing import Facts, quiet_for_s
from holdfast.adapters.notify.services import AppriseDeliverer
from holdfast.cli import screen
from holdfast.drill import notices
from holdfast.drill.calendar import Calendar, held
from holdfast.drill.schedule import Schedule
from holdfast.errors import TemporaryOrderError
from holdfast.model.evidence import Severity
from holdfast.ports import Clock

OUTBOX = "outbox.jsonl"
LOOK_S = 0.2
LAST_WORD_S = 60.0
"""So long a command that ends waits for destinations that have not taken its notice."""


async def leave(calendar: Calendar, one: Schedule, folder: Path, config: NotifyConfig, clock: Clock) -> None:
    """Judge a run that has ended; when people must be told, that stands on disk when this returns."""
    runs = held(calendar, one, clock.now(), most=1000)
    run = next((run for run in runs if run.folder == folder), None)
    if run is None:
        return
    earlier = [before for before in runs if before.folder.name < folder.name]
    word = notices.word_of(one, run, earlier)
    if word is None:
        return
    try:
        notices.keep(run, word)
        if config.to:
            box = _box(folder / OUTBOX, config, clock, Facts(drill=one.name, is_over=word.over))
            await box.send(notices.notice_of(one, run, word, link=config.link))
    except (OSError, TemporaryOrderError) as error:
        screen.say(f"{one.name}: people could not be told: {error}", err=True)


def waiting(calendar: Calendar) -> list[Path]:
    """Outboxes of runs in which something may wait, oldest first."""
    known = {one.name for one in calendar.schedules}
    return sorted(
        (path for path in calendar.folder.glob(f"*/*/{OUTBOX}") if path.parts[-3] in known),
        key=lambda path: path.parent.name,
    )


async def deliver(paths: Sequence[Path], config: NotifyConfig, clock: Clock, *, for_s: float, stay: bool) -> list[str]:
    """Send what waits in these outboxes, again and again where it is not taken.

    Args:
        paths: the files; one from which all was taken is removed.
        config: destinations.
        clock: the time.
        for_s: how long.
        stay: for the whole of that time; else it ends when all was taken that may be sent at this hour.

    Returns:
        The destinations for which something still waits.
    """
    ends = clock.now() + for_s
    async with AsyncExitStack() as stack:
        boxes = {path: await stack.enter_async_context(_box(path, config, clock)) for path in paths}
        while (left := ends - clock.now()) > 0:
            waits = _waits(boxes)
            if not waits:
                if stay:
                    await clock.sleep(left)
                break
            if not stay and waits <= _quiet(config, clock.now()):
                break
            await clock.sleep(min(LOOK_S, left))
    for path, box in boxes.items():
        if not any(box.waiting().values()):
            path.unlink(missing_ok=True)
    return sorted(_waits(boxes))


def _box(path: Path, config: NotifyConfig, clock: Clock, facts: Facts | None = None) -> Outbox:
    """The outbox of one run; `facts` are needed only to put something in."""
    known = facts or Facts()
    return Outbox(config, path, AppriseDeliverer(config.allow), lambda _: known, clock)


def _waits(boxes: dict[Path, Outbox]) -> set[str]:
    return {name for box in boxes.values() for name, count in box.waiting().items() if count}


def _quiet(config: NotifyConfig, now: float) -> set[str]:
    """Destinations whose quiet hours these are."""
    return {one.name for one in config.to if quiet_for_s(one, Severity.WARNING, now)}

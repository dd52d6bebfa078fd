"""A calendar of drills: when each is due, when it must be quiet, and whether a run is worse than the last one.

Called by `holdfast drill schedule` and by `wiring/settings`, which reads `[[drill.schedule]]`. Pure: moments come in
as Unix seconds, and are looked at in the schedule's own zone, so that a change of clocks moves nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, time, timedelta, tzinfo
from typing import Any, Literal
from zoneinfo import ZoneInfo

from msgspec import Struct

from holdfast.errors import UsageError

Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
DAYS: tuple[Day, ...] = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
DAYS_AHEAD = 400
"""A schedule that is not due within this many days (all of them quiet) is never due."""
_CLOCK = re.compile(r"([01]\d|2[0-3]):([0-5]\d)")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
SLACK_S = 0.5
"""A time that grew by less than this is no regression, whatever its share: machines differ from run to run."""


class Schedule(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[[drill.schedule]]`: one line of the calendar."""

    name: str
    drills: tuple[str, ...]
    """Drills that ship, or files, as for `holdfast drill run`."""
    at: str
    """`03:00`: the time of day at which they begin."""
    days: tuple[Day, ...] = DAYS
    zone: str = "UTC"
    on: Literal["local", "slurm", "kubernetes"] = "local"
    """A cluster that is brought up for it and marked as open to drills; a production cluster is never hit."""
    quiet: tuple[str, ...] = ()
    """When nothing may run: `22:00-06:00` (every day), `2026-12-24..2027-01-02` (whole days)."""
    limit_min: float = 60.0
    """A run is aborted, and what it did undone, after so many minutes, or when it begins to be quiet."""
    slower_by: float = 0.5
    """Share by which detection or recovery may be slower than in the last run."""
    seed: int = 1


class Regression(Struct, frozen=True):
    """What is worse than in the last run."""

    drill: str
    what: str
    before: str
    now: str


def check(schedule: Schedule) -> None:
    """Everything that a type does not tell.

    Raises:
        UsageError: a time, a zone or a quiet span that cannot be read; no drill.
    """
    where = f'[[drill.schedule]] "{schedule.name}"'
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", schedule.name):
        raise UsageError(
            f"{where}: a name has letters, digits, dots, dashes and underscores: it is a folder's name, too"
        )
    if not schedule.drills or not schedule.days:
        raise UsageError(f"{where}: name a drill and a day at least")
    if not _CLOCK.fullmatch(schedule.at):
        raise UsageError(f'{where}: at = "{schedule.at}" is no time of day: write it like 03:00')
    for span in schedule.quiet:
        begin, mark, end = span.partition("..") if ".." in span else span.partition("-")
        form = _DATE if mark == ".." else _CLOCK
        if not (form.fullmatch(begin) and form.fullmatch(end)):
            raise UsageError(f'{where}: quiet = "{span}" is neither 22:00-06:00 nor 2026-12-24..2027-01-02')
    try:
        _zone(schedule)
    except (ValueError, KeyError, OSError) as error:
        raise UsageError(f'{where}: zone = "{schedule.zone}" is no time zone: write it like Asia/Tokyo') from error


def _zone(schedule: Schedule) -> tzinfo:
    return UTC if schedule.zone == "UTC" else ZoneInfo(schedule.zone)


def is_quiet(schedule: Schedule, at: float) -> bool:
    """May nothing run at this moment?"""
    moment = datetime.fromtimestamp(at, _zone(schedule))
    return any(_covers(span, moment) for span in schedule.quiet)


def _covers(span: str, moment: datetime) -> bool:
    if ".." in span:
        begin, _, end = span.partition("..")
        return begin <= moment.date().isoformat() <= end
    begin, _, end = span.partition("-")
    clock = moment.strftime("%H:%M")
    return begin <= clock < end if begin <= end else clock >= begin or clock < end


def next_due(schedule: Schedule, after: float) -> float | None:
    """The first moment from `after` on at which it is due and not quiet; None: there is none within a year."""
    zone = _zone(schedule)
    hour, minute = (int(part) for part in schedule.at.split(":"))
    day = datetime.fromtimestamp(after, zone).date()
    for ahead in range(DAYS_AHEAD):
        date = day + timedelta(days=ahead)
        due = datetime.combine(date, time(hour, minute), zone).timestamp()
        if due >= after and DAYS[date.weekday()] in schedule.days and not is_quiet(schedule, due):
            return due
    return None


def limit_s(schedule: Schedule, at: float) -> float:
    """How long a run that begins now may take: its own limit, or until it begins to be quiet."""
    whole = schedule.limit_min * 60.0
    step = 60.0
    passed = step - at % step
    while passed < whole:
        if is_quiet(schedule, at + passed):
            return passed
        passed += step
    return whole


def regressions(before: Mapping[str, Any], now: Mapping[str, Any], *, slower_by: float) -> list[Regression]:
    """What is worse: forms of two runs, as `drills.json` holds them. A drill that was not in both is left out."""
    former = {drill["name"]: drill for drill in before.get("drills", ()) if not drill["skipped"]}
    found = []
    for drill in now.get("drills", ()):
        then = former.get(drill["name"])
        if then is None or drill["skipped"]:
            continue
        if then["passed"] and not drill["passed"]:
            found.append(Regression(drill["name"], "passed", "yes", drill["reason"] or "no"))
        found += _slower(then, drill, slower_by)
    return found


def _slower(then: Mapping[str, Any], drill: Mapping[str, Any], slower_by: float) -> Sequence[Regression]:
    found = []
    for field in ("detect_s", "recover_s"):
        old, new = then.get(field), drill.get(field)
        if old is not None and new is not None and new > old * (1 + slower_by) and new - old > SLACK_S:
            found.append(Regression(drill["name"], field, f"{old:.2f} s", f"{new:.2f} s"))
    return found

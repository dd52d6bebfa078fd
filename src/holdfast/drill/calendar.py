"""What came of a calendar's runs: each schedule's folders of results, newest first, and how its last run ended.

Read by `holdfast drill schedule` and by the cockpit's page of drills; written by the former. Times are Unix seconds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from holdfast.drill.schedule import Regression, Schedule, check, is_quiet, next_due
from holdfast.errors import UsageError

RESULTS = "drill-results"
"""Folder of results in the working folder, where `[drill] results` names none."""
FORM, WORSE, ABORTED = "drills.json", "regressions.json", "aborted.json"
"""What a run leaves: its results, what is worse than in the run before it (only at its end), or why it was aborted."""
_STAMP = "%Y%m%dT%H%M%SZ"
_FOLDER = re.compile(r"[0-9]{8}T[0-9]{6}Z")


class Calendar(Struct, frozen=True):
    """`[drill]` of a configuration."""

    schedules: tuple[Schedule, ...] = ()
    folder: Path = Path(RESULTS)
    """Holds a folder for each schedule, and that one for each run."""
    wrong: str = ""
    """Why it cannot be used; empty: it can."""


class Held(Struct, frozen=True):
    """One run of a schedule."""

    folder: Path
    form: dict[str, Any]
    """As `drills.json` has it; empty: it did not come to its end."""
    worse: tuple[Regression, ...]
    state: str
    """`passed`, `failed`, `worse` (than the run before it), `aborted`, `running`."""
    detail: str = ""
    """Why it was aborted."""

    @property
    def started_at(self) -> float:
        """By the folder's name."""
        return datetime.strptime(self.folder.name, _STAMP).replace(tzinfo=UTC).timestamp()


class Line(Struct, frozen=True):
    """A schedule, when it is due, and its runs."""

    schedule: Schedule
    next: float | None
    """None: it is always quiet then."""
    is_quiet: bool
    """Nothing may run now."""
    runs: tuple[Held, ...]
    """Newest first."""

    @property
    def last(self) -> Held | None:
        """The newest run."""
        return self.runs[0] if self.runs else None


def checked(schedules: Sequence[Schedule], folder: Path | None) -> Calendar:
    """A calendar that can be used.

    Args:
        schedules: `[[drill.schedule]]`.
        folder: `[drill] results`, absolute; None: `RESULTS` of the working folder.

    Raises:
        UsageError: one cannot be used, or two have the same name.
    """
    for one in schedules:
        check(one)
    if len({one.name for one in schedules}) < len(schedules):
        raise UsageError("two [[drill.schedule]] have the same name")
    return Calendar(tuple(schedules), (folder or Path(RESULTS)).absolute())


def lines(calendar: Calendar, now: float, *, most: int = 50) -> list[Line]:
    """Each schedule with its newest runs, `most` at most."""
    return [
        Line(one, next_due(one, now), is_quiet(one, now), tuple(held(calendar, one, now, most=most)))
        for one in calendar.schedules
    ]


def run_folder(calendar: Calendar, schedule: Schedule, at: float) -> Path:
    """Where a run that begins at `at` leaves its results."""
    return calendar.folder / schedule.name / datetime.fromtimestamp(at, UTC).strftime(_STAMP)


def held(calendar: Calendar, schedule: Schedule, now: float, *, most: int = 50) -> list[Held]:
    """Its runs, newest first."""
    folder = calendar.folder / schedule.name
    try:
        found = sorted((one for one in folder.iterdir() if _FOLDER.fullmatch(one.name)), reverse=True)
    except OSError:
        return []
    return [_held(one, schedule, now) for one in found[:most]]


def last_ended(calendar: Calendar, schedule: Schedule, now: float) -> Held | None:
    """The newest run that came to its end: what the next one is compared with."""
    return next((one for one in held(calendar, schedule, now, most=1000) if one.form), None)


def _held(folder: Path, schedule: Schedule, now: float) -> Held:
    form, worse = _read(folder / FORM), _worse(folder)
    if isinstance(form, dict) and worse is not None:
        return Held(folder, form, worse, "worse" if worse else "passed" if form.get("passed") else "failed")
    aborted = _read(folder / ABORTED)
    if isinstance(aborted, dict):
        return Held(folder, {}, (), "aborted", str(aborted.get("why", "")))
    unended = Held(folder, {}, (), "running")
    if now <= unended.started_at + schedule.limit_min * 60.0:
        return unended
    return msgspec.structs.replace(unended, state="aborted", detail="it left no results")


def _worse(folder: Path) -> tuple[Regression, ...] | None:
    try:
        return tuple(msgspec.convert(_read(folder / WORSE), list[Regression]))
    except msgspec.ValidationError:
        return None


def _read(path: Path) -> Any:
    """The JSON of a file, None where there is none that can be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None

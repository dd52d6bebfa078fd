"""When what whole logs tell of happened: times of lines, of other clocks, and of lines without any.

`explain.LogReading` asks here at the end of its logs. The outcome is what attribution orders by. Pure.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from holdfast.detect.lines import take_apart
from holdfast.detect.matcher import SLURM_STAMP, Match
from holdfast.model.evidence import Finding

MACHINE = frozenset({"nvidia", "kernel"})
"""Families of rules that read kernel logs."""
CONTRADICTION_S = 12 * 3600.0
"""A job's log is not written so far back in time: where stamps say that it is, the order of lines is believed."""
_WAITED = frozenset({"timeout_ms", "elapsed_ms", "elapsed_s"})
"""Captures by which attribution dates a time-out back to when its wait began."""

_SCHEDULER = re.compile(r"\bslurm(?:stepd|d|ctld): |\bsrun: |^\[\d{4}-\d\d-\d\dT[\d:.]{8,15}\] ")
_ZONE_MAX_S = 14 * 3600.0
_BACK_S = 900.0
"""Lines of several processes come out of order by less than this."""
_SOON_S = 180.0
"""What ends a job is written so soon after its last lines when it comes whole hours of another clock later."""


class Kept(Struct):
    """A finding with its place in the logs."""

    finding: Finding
    match: Match
    file: int
    order: int
    steps_then: dict[str, int]
    count: int = 1
    of_thread: bool = False
    """An exception that ended a thread, not the program."""
    ignored: bool = False
    """An exception of a destructor or a call-back, which Python told of and passed over."""


class SchedulerClock:
    """Reads Slurm's times in one job's log as the job's own lines would show them.

    The host's time zone stands in Slurm's lines; a container's, often UTC, in those of the job. A log is written in
    order: what is stamped before the lines above it is behind by whole half-hours, and what comes whole hours and
    at most three minutes after the last of them is ahead by these hours (one hang in twenty looks like that, too).
    srun's lines carry no time: what they tell of tasks came after the end that slurmstepd told above them.
    """

    def __init__(self) -> None:
        self._own: float | None = None
        self._told: float | None = None
        self._behind: float | None = None

    def corrected(self, match: Match) -> Match:
        """The match, with the job's time."""
        if _SCHEDULER.search(match.text) is None:
            self._own = self._own if match.at is None else match.at
            return match
        if "srun: " in match.text and take_apart(match.text).at is None:
            known = [at for at in (match.at, self._told) if at is not None]
            return replace(match, at=max(known, default=None))
        if match.at is not None and self._own is not None:
            if self._behind is None:
                self._behind = self._zone(self._own - match.at)
            match = replace(match, at=match.at + self._behind)
        self._told = match.at if SLURM_STAMP in match.text else self._told
        return match

    @staticmethod
    def _zone(behind: float) -> float:
        if _BACK_S < behind <= _ZONE_MAX_S:
            return math.ceil((behind - _SOON_S) / 1800.0) * 1800.0
        ahead = math.floor((5.0 - behind) / 3600.0) * 3600.0
        if 3600.0 <= ahead <= _ZONE_MAX_S and -behind - ahead <= _SOON_S:
            return -ahead
        return 0.0


def first_failure(kept: Sequence[Kept]) -> float | None:
    """When the job's own trouble began, as far as its lines tell; a time-out began one time-out earlier."""
    times = [
        k.finding.at - float(k.match.captures.get("timeout_ms") or 0) / 1000.0
        for k in kept
        if k.finding.at and k.match.rule.family not in MACHINE
    ]
    return min(times, default=None)


def waits_of(kept: Kept) -> dict[str, str]:
    """The finding's captures; where its log tells no time, none of them dates it back before the lines above it."""
    captures = dict(kept.finding.captures)
    return captures if kept.finding.at else captures | {name: "0" for name in _WAITED if name in captures}


class FindingTimes:
    """The times of findings of several logs.

    Args:
        kept: all findings, in the order of their lines.
        first: when the job's own trouble began, if a line tells.
        end: the last time on any line; 0.0 when there is none.
    """

    def __init__(self, kept: Sequence[Kept], first: float | None, end: float) -> None:
        self._first = first
        self._end = end
        self._shifts = _shifts(kept, first)
        self._dated: dict[int, int] = {}
        self._instead: dict[str, float] = {}
        last: dict[int, float] = {}
        for k in kept:
            if not k.finding.at:
                continue
            self._dated.setdefault(k.file, k.order)
            if k.match.rule.family not in MACHINE:
                if last.get(k.file, 0.0) - k.finding.at > CONTRADICTION_S:
                    self._instead[k.finding.id] = last[k.file]
                last[k.file] = self._instead.get(k.finding.id, k.finding.at)

    def of(self, kept: Kept) -> float:
        """The time of a finding as attribution needs it; ties are broken by the order of lines."""
        if kept.finding.at:
            at = self._instead.get(kept.finding.id, kept.finding.at)
            return at - self._shifts.get(kept.file, 0.0) + kept.order * 1e-6
        if self._first is not None and kept.match.rule.family in MACHINE:
            # A kernel log that counts seconds since boot: a person put it beside the job's log for a reason.
            return self._first - 1.0 + kept.order * 1e-6
        if self._first is not None and kept.order < self._dated.get(kept.file, 0):
            # No line before it has a time, a later one has: it came before the job's first trouble that has one.
            return self._first - 1.0 + kept.order * 1e-6
        # Without any time the order of lines stands in for it: a millisecond a line, at the end of the logs.
        return self._end + kept.order * 1e-3


def _shifts(kept: Sequence[Kept], first: float | None) -> dict[int, float]:
    """File -> seconds by which its clock shows another time zone than the job's.

    A kernel log in local time beside a job's log in UTC is off by whole half-hours; only when taking that off
    brings its trouble beside the job's is it believed.
    """
    shifts: dict[int, float] = {}
    if first is None:
        return shifts
    for k in kept:
        if k.match.rule.family not in MACHINE or not k.finding.at or k.file in shifts:
            continue
        gap = k.finding.at - first
        zone = round(gap / 1800.0) * 1800.0
        alone = all(other.match.rule.family in MACHINE for other in kept if other.file == k.file)
        if alone and 1800.0 <= abs(zone) <= 14 * 3600.0 and abs(gap - zone) <= 120.0:
            shifts[k.file] = zone
    return shifts

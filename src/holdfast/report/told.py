"""Events as a trace needs them: who said what and when, to be found by time or by attempt.

Filled by `cli/report_trace` while it reads, so that a year's events are never held whole; asked by `trace`. Pure.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from sys import intern

from msgspec import Struct

from holdfast.model import events as e

NEAR_S = 1e-3
"""Times that differ by less are the same: they went through JSON."""


class Said(Struct, frozen=True, gc=False):
    """One event."""

    seq: int
    event: str
    source: str
    own: float
    """Of what it tells: a finding's own time, else `at`."""
    at: float
    received_at: float


class _Times:
    """Places of events in order of time."""

    def __init__(self, pairs: Iterable[tuple[float, int]]) -> None:
        ordered = sorted(pairs)
        self._times = array("d", [at for at, _ in ordered])
        self._places = array("L", [place for _, place in ordered])

    def first(self, at: float) -> int | None:
        """The first place among those at this time."""
        near = slice(bisect_right(self._times, at - NEAR_S), bisect_left(self._times, at + NEAR_S))
        return min(self._places[near], default=None)


class _Of:
    """The events of one incident or job, in order of their numbers."""

    def __init__(self, events: Iterable[e.AnyEvent]) -> None:
        self.said: list[Said] = []
        self.attempts: dict[tuple[type[e.AnyEvent], int], Said] = {}
        for event in events:
            said = said_of(event)
            self.said.append(said)
            if isinstance(event, e.AttemptStarted | e.FirstStepDone | e.AttemptEnded):
                self.attempts[type(event), event.attempt] = said

    @cached_property
    def own(self) -> _Times:
        return _Times((said.own, place) for place, said in enumerate(self.said))

    @cached_property
    def heard(self) -> _Times:
        pairs = ((at, place) for place, said in enumerate(self.said) for at in {said.at, said.received_at})
        return _Times(pairs)


class Told:
    """The events of incidents, by their ids, and of jobs, by their names (`1778`)."""

    def __init__(self, events: Mapping[str, Iterable[e.AnyEvent]] | None = None) -> None:
        self._of: dict[str, _Of] = {}
        for name, found in (events or {}).items():
            self.add(name, found)

    def add(self, name: str, events: Iterable[e.AnyEvent]) -> None:
        """All events of this incident or job, in order of their numbers."""
        self._of[name] = _Of(events)

    def fault(self, names: Sequence[str], at: float) -> Said | None:
        """The first event that tells of something at this time; else as `heard`. `names`: in this order."""
        for known in self._known(names):
            place = known.own.first(at)
            if place is not None:
                return known.said[place]
        return self.heard(names, at)

    def heard(self, names: Sequence[str], at: float) -> Said | None:
        """The first event that happened, or reached the controller, at this time."""
        for known in self._known(names):
            place = known.heard.first(at)
            if place is not None:
                return known.said[place]
        return None

    def of_attempt(self, job: str, kind: type[e.AnyEvent], attempt: int) -> Said | None:
        """The newest start, first step or end that was told of this attempt."""
        known = self._of.get(job)
        return known.attempts.get((kind, attempt)) if known is not None else None

    def _known(self, names: Sequence[str]) -> Iterable[_Of]:
        return (self._of[name] for name in names if name in self._of)


def said_of(event: e.AnyEvent) -> Said:
    """What is kept of an event."""
    own = event.finding.at if isinstance(event, e.FindingSeen) else event.at
    kind = str(event.__struct_config__.tag)
    return Said(event.seq, kind, intern(event.source), own, event.at, event.received_at)

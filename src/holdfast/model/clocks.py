"""How far others' clocks are ahead of ours, by the beats that they send.

A beat's way makes a clock look behind, and a cut long behind, and nothing makes it look ahead: the beat that was
fastest tells most. Kept by the controller for agents and launchers, and by a leader for its followers.
Pure: times come in.
"""

from __future__ import annotations

from collections import OrderedDict

from msgspec import Struct

CLOCK_OFF_S = 5.0
"""A clock that is off by less is taken for right: what a beat took on its way looks the same."""
SET_S = 15.0
"""Where every beat of so long a time is later than a way explains, the clock was set back."""
KEPT = 65_536
"""Sources that are remembered; the one that beat least recently is forgotten first."""


class _Told(Struct):
    fastest: float
    late_since: float | None = None
    """When the first of the late beats came; None: the newest beat was not late."""
    late: float = 0.0
    """The fastest of the late beats."""


class Offsets:
    """See the module."""

    def __init__(self) -> None:
        self._told: OrderedDict[str, _Told] = OrderedDict()

    def forget(self, source: str) -> None:
        """Another process may tell the time there now."""
        self._told.pop(source, None)

    def note(self, source: str, ahead_s: float, now: float) -> None:
        """Take a beat in.

        Args:
            source: its sender.
            ahead_s: its time, less ours at its arrival.
            now: its arrival, by a clock of ours that is never set.
        """
        told = self._told.setdefault(source, _Told(ahead_s))
        self._told.move_to_end(source)
        if told.fastest - ahead_s < CLOCK_OFF_S:
            told.fastest, told.late_since = max(told.fastest, ahead_s), None
        elif told.late_since is None:
            told.late_since, told.late = now, ahead_s
        else:
            told.late = max(told.late, ahead_s)
            if now - told.late_since >= SET_S:
                told.fastest, told.late_since = told.late, None
        if len(self._told) > KEPT:
            self._told.popitem(last=False)

    def ahead_s(self, source: str) -> float | None:
        """How far the clock of this source is ahead of ours; None: it has told no time."""
        told = self._told.get(source)
        return told.fastest if told is not None else None

    def shift_s(self, source: str) -> float:
        """What its times are to be set back by; 0 for a clock that is right, and for one that has told nothing."""
        ahead_s = self.ahead_s(source) or 0.0
        return ahead_s if abs(ahead_s) >= CLOCK_OFF_S else 0.0

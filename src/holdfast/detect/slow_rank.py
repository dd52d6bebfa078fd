"""Whom do the others wait for? Names a slow rank from looks at where all ranks stand, taken while steps are slow.

Called by the launcher, which looks only while the job's steps have become slower than they were (`Rhythm.slowdown`). In
synchronous training every rank's step takes equally long, so step times tell no rank from another; the share of looks
in which a rank waits inside a collective does: the quick ranks wait for the slow one, which itself never has to. Pure;
time passes as looks.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from msgspec import Struct

LOOKS = 8
"""Looks that a verdict needs, and looks after which a spell without one is left alone."""
WAITS_MAX = 0.15
"""A slow rank waits in at most this share of the looks,"""
GAP_MIN = 0.3
"""and its peers in at least this much more."""


class SlowRank(Struct, frozen=True):
    """A rank that the others wait for."""

    rank: int
    waits: float
    """Share of the looks in which it waited in a collective."""
    others_wait: float
    """Median share of the other ranks."""


class WaitTally:
    """The looks of one slow spell."""

    def __init__(self) -> None:
        self.looks = 0
        self._seen: dict[int, int] = {}
        self._waited: dict[int, int] = {}

    @property
    def is_full(self) -> bool:
        """Enough looks were taken; more would only cost."""
        return self.looks >= LOOKS

    def add(self, waits: Mapping[int, bool]) -> None:
        """One look: for each rank that gave a stack, whether it waits in a collective."""
        if len(waits) < 2:
            return
        self.looks += 1
        for rank, is_waiting in waits.items():
            self._seen[rank] = self._seen.get(rank, 0) + 1
            self._waited[rank] = self._waited.get(rank, 0) + is_waiting

    def verdict(self) -> SlowRank | None:
        """The slow rank, when there is exactly one that stands out; None before enough looks."""
        if not self.is_full:
            return None
        shares = {rank: self._waited[rank] / seen for rank, seen in self._seen.items() if seen * 2 >= self.looks}
        if len(shares) < 2:
            return None
        slow = min(shares, key=lambda rank: (shares[rank], rank))
        others = median(share for rank, share in shares.items() if rank != slow)
        alike = [rank for rank, share in shares.items() if share <= WAITS_MAX]
        if shares[slow] > WAITS_MAX or others - shares[slow] < GAP_MIN or len(alike) > 1:
            return None
        return SlowRank(slow, shares[slow], others)

"""Counters folded to rises and rates: what matters of a counter is that it moves, not how high it stands.

An agent keeps one `CounterFold` for its checks. A counter that is seen for the first time, or that stands lower than
before (a driver reload, a reset, a wrap), gives a new base and no rise. Pure: the time of each look (`at`, seconds that
never go back) comes with it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

KEEP_S = 3600.0
"""Rises are remembered for this long: the longest window that can be asked for."""
GROWTH = 2
"""Chance alone makes counts of neighbouring windows differ; it seldom doubles them twice."""
RISES_MAX = 512
"""Per counter; older ones are folded into the next."""


class CounterFold:
    """All counters of one node, by key.

    Args:
        last: values of an earlier fold of the same boot, to go on from.
    """

    def __init__(self, last: Mapping[str, int] | None = None) -> None:
        self._last: dict[str, int] = dict(last or {})
        self._rises: dict[str, deque[tuple[float, int]]] = {}

    @property
    def last(self) -> dict[str, int]:
        """Newest value of each counter, to be kept over a restart."""
        return dict(self._last)

    def rise(self, key: str, value: int, at: float) -> int:
        """How much the counter has risen since the look before; 0 at the first look and after a reset."""
        before = self._last.get(key)
        self._last[key] = value
        if before is None or value <= before:
            return 0
        rises = self._rises.setdefault(key, deque(maxlen=RISES_MAX))
        rises.append((at, value - before))
        while rises[0][0] < at - KEEP_S:
            rises.popleft()
        return value - before

    def within(self, key: str, window_s: float, at: float, *, until_s: float = 0.0) -> int:
        """Rises from `window_s` seconds ago to `until_s` seconds ago, together."""
        total = 0
        for when, rise in reversed(self._rises.get(key, ())):
            if when <= at - window_s:
                break
            if when <= at - until_s:
                total += rise
        return total

    def grows(self, key: str, window_s: float, at: float, *, least: int) -> bool:
        """Is the rate rising: each of three windows GROWTH times the one before, the newest at least `least`?"""
        newest, middle, oldest = (self.within(key, window_s * (n + 1), at, until_s=window_s * n) for n in range(3))
        return newest >= least and newest >= GROWTH * middle and middle >= GROWTH * oldest > 0

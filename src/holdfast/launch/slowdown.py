"""Has the job grown slow, and who keeps the others waiting? Pure; the leader feeds it and takes the stacks it wants.

In synchronous training every rank's step takes equally long, because the quick wait for the slow: step times tell that
something is slow, not who. Who is shown by where the ranks stand: looked at a few times within one step, the quick are
found in a collective most of the time and the slow one hardly ever. Stacks are taken only when steps have grown longer,
so that a healthy job is never disturbed. Time passes as steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from statistics import median

from msgspec import Struct

LOOKS = 8
"""Stacks taken of every rank for one verdict."""
LEARN_STEPS = 8
_WINDOW = 64
_NOISE_S = 0.02
_WAITS_MIN = 0.6
"""The others must be found waiting at least this often..."""
_WORKS_MAX = 0.4
"""...and the slow one at most this often."""
_AGAIN_STEPS = 200
"""After a verdict that named nobody, so many slow steps pass before the next look."""


class SlowRank(Struct, frozen=True):
    """A rank that the others wait for. `waits` and `others_wait` are shares of the looks."""

    rank: int
    waits: float
    others_wait: float
    step_s: float
    usual_s: float

    def __str__(self) -> str:
        return (
            f"Steps take {self.step_s:.2f} s instead of {self.usual_s:.2f} s: the other ranks wait "
            f"{self.others_wait:.0%} of the time, this one {self.waits:.0%}"
        )


class Slowdown:
    """Watches one attempt's steps.

    Args:
        factor: a step this many times longer than usual is slow (StragglerRules).
        steps: so many slow steps in a row ask for a look.
    """

    def __init__(self, factor: float, steps: int) -> None:
        self._factor = factor
        self._steps = steps
        self._usual: deque[float] = deque(maxlen=_WINDOW)
        self._newest = -1
        self._slow: deque[float] = deque(maxlen=_WINDOW)
        self._quiet = 0
        self._usual_again = 0
        self._named: list[SlowRank] = []

    @property
    def step_s(self) -> float:
        """Median of the slow steps."""
        return median(self._slow) if self._slow else 0.0

    def observe(self, step: int, step_s: float, *, is_ordinary: bool) -> bool:
        """Take in a completed step; True when a look at the stacks is wanted.

        Args:
            step: its number; one that is known already changes nothing.
            step_s: how long it took.
            is_ordinary: not a first step, an evaluation or a checkpoint.
        """
        if step <= self._newest or not is_ordinary:
            return False
        self._newest = step
        if len(self._usual) < LEARN_STEPS:
            self._usual.append(step_s)
            return False
        if step_s <= self._factor * median(self._usual) + _NOISE_S:
            self._usual.append(step_s)
            self._slow.clear()
            self._quiet = 0
            self._usual_again += 1
            return False
        self._usual_again = 0
        self._slow.append(step_s)
        self._quiet = max(0, self._quiet - 1)
        return len(self._slow) >= self._steps and self._quiet == 0

    def judge(self, looks: Sequence[Mapping[int, bool]]) -> list[SlowRank]:
        """Who keeps the others waiting.

        Args:
            looks: per look, rank -> was found in a collective. A rank that gave no stack counts as not waiting.
        """
        self._quiet = _AGAIN_STEPS
        ranks = sorted({rank for look in looks for rank in look})
        if len(looks) < LOOKS // 2 or len(ranks) < 2:
            return []
        share = {rank: sum(look.get(rank, False) for look in looks) / len(looks) for rank in ranks}
        slow = [rank for rank in ranks if share[rank] <= _WORKS_MAX]
        others = [share[rank] for rank in ranks if rank not in slow]
        if not slow or len(slow) > len(ranks) // 2 or median(others) < _WAITS_MIN:
            return []
        usual, now = median(self._usual), self.step_s
        self._named = [SlowRank(rank, share[rank], median(others), now, usual) for rank in slow]
        return list(self._named)

    def cleared(self) -> list[int]:
        """Ranks that were named and no longer keep anyone waiting, told once."""
        if not self._named or self._usual_again < self._steps:
            return []
        ranks = [slow.rank for slow in self._named]
        self._named.clear()
        return ranks

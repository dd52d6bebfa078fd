"""Has the job grown slow, and who keeps the others waiting? Pure; the leader feeds it and takes the stacks it wants.

In synchronous training every rank's step takes equally long, because the quick wait for the slow: step times tell that
something is slow, not who. Who is shown by where the ranks stand: looked at over several steps, the quick are found in
a collective most of the time and the slow one hardly ever, by more than chance. Stacks are taken only when steps have
grown longer, so that a healthy job is never disturbed; a verdict belongs to the slow steps that asked for it, and when
steps are usual again meanwhile there is none. Time passes as steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from math import comb
from statistics import median

from msgspec import Struct

LOOKS = 8
"""Stacks taken of every rank for one verdict, at least..."""
LOOKS_MAX = 60
"""...and at most."""
_SPAN_STEPS = 12
_SPAN_S = 10.0
"""The looks go over so many slow steps, or so much of their time: on a machine that has too much to do another rank is
the last in each step, and a few steps show one of them by chance."""
_CHANCE_MAX = 1e-5
"""The rank is found waiting so much more seldom than the others by chance at most this often."""
_CONFIDENCE_MAX = 0.95
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

    @property
    def confidence(self) -> float:
        """How far apart the rank and the others stand."""
        return round(min(_CONFIDENCE_MAX, self.others_wait - self.waits), 2)

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
        self._is_asked = False
        self._since_steps = 0
        self._since_s = 0.0
        self._named: list[SlowRank] = []

    @property
    def wants_look(self) -> bool:
        """Steps are slow and stacks of all ranks would show who keeps the others waiting; over with the slow steps."""
        return self._is_asked

    @property
    def step_s(self) -> float:
        """Median of the slow steps."""
        return median(self._slow) if self._slow else 0.0

    def observe(self, step: int, step_s: float, *, is_ordinary: bool) -> bool:
        """Take in a completed step; True when looks at the stacks are wanted, see `wants_look`.

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
            self._is_asked = False
            self._usual_again += 1
            return False
        self._usual_again = 0
        self._slow.append(step_s)
        self._quiet = max(0, self._quiet - 1)
        if self._is_asked:
            self._since_steps += 1
            self._since_s += step_s
        elif len(self._slow) >= self._steps and self._quiet == 0:
            self._is_asked, self._since_steps, self._since_s = True, 0, 0.0
        return self._is_asked

    def looks_on(self, looks: Sequence[Mapping[int, bool]]) -> bool:
        """Whether another look is wanted before the verdict. `looks` as for `judge`."""
        if not self._is_asked or len(looks) >= LOOKS_MAX:
            return False
        return len(looks) < LOOKS or not self._is_spread or not self._suspects(looks)

    @property
    def _is_spread(self) -> bool:
        return self._since_steps >= _SPAN_STEPS or self._since_s >= _SPAN_S

    def judge(self, looks: Sequence[Mapping[int, bool]]) -> list[SlowRank]:
        """Who keeps the others waiting.

        Args:
            looks: per look, rank -> was found in a collective. A rank that gave no stack counts as not waiting.
        """
        if not self._is_asked:  # steps are usual again: nobody keeps anyone waiting
            return []
        self._is_asked, self._quiet = False, _AGAIN_STEPS
        if len(looks) < LOOKS or not self._is_spread:
            return []
        self._named = self._suspects(looks)
        return list(self._named)

    def _suspects(self, looks: Sequence[Mapping[int, bool]]) -> list[SlowRank]:
        ranks = sorted({rank for look in looks for rank in look})
        if len(ranks) < 2:
            return []
        waits = {rank: sum(look.get(rank, False) for look in looks) for rank in ranks}
        share = {rank: waits[rank] / len(looks) for rank in ranks}
        slow = [rank for rank in ranks if share[rank] <= _WORKS_MAX]
        others = [rank for rank in ranks if rank not in slow]
        if not slow or len(slow) > len(ranks) // 2:
            return []
        usual, now, wait = median(self._usual), self.step_s, median([share[rank] for rank in others])
        if wait < _WAITS_MIN:
            return []
        found = [(round(wait * len(looks)), waits[rank]) for rank in slow]
        if any(_chance(few, many, len(looks)) * len(ranks) > _CHANCE_MAX for many, few in found):
            return []
        return [SlowRank(rank, share[rank], wait, now, usual) for rank in slow]

    def cleared(self) -> list[int]:
        """Ranks that were named and no longer keep anyone waiting, told once."""
        if not self._named or self._usual_again < self._steps:
            return []
        ranks = [slow.rank for slow in self._named]
        self._named.clear()
        return ranks


def _chance(few: int, many: int, looks: int) -> float:
    """How often two ranks that wait alike are found waiting `few` times or fewer, and the rest of both (Fisher)."""
    both = few + many
    cases = sum(comb(looks, count) * comb(looks, both - count) for count in range(few + 1) if both - count <= looks)
    return cases / comb(2 * looks, both)

"""Who is slow: a rank, a node or a pipeline stage, from each rank's times per step.

`stragglers_of` feeds one `StragglerDetector` with a recording, one sample per rank and step; a program that measures
its ranks can feed it as it goes. Launchers measure no waits: they tell who is slow by where the ranks stand
(`launch.slowdown`). Time passes only as steps.

In synchronous training every rank's step takes equally long, since the quick wait for the slow. What tells them apart
is the time a rank works: its step less its waiting in collectives (`wait_s`). When no waits are known, whole step times
are compared, which serves for pipelines and for data loading outside the step.

A rank is slow in a step when its work stands out from its peers (ranks of its stage): by `EXCESS_MIN` of their median
and by four robust deviations (median absolute deviation), both those of the quick ones where up to half are clearly
slow, and also from its own past, unless it was slow from the beginning. Three slow steps in a row report it; slow steps
that come now and then count towards it and fade. Steps in which everyone is slow (evaluation, checkpoint, a pause of
the whole job) say nothing about anyone, nor do the first steps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any

from msgspec import Struct

from holdfast.errors import UserError

SLOW_STEPS = 3
"""Slow steps after which someone is reported (the requirement: within three)."""
FADE = 0.5
"""What one ordinary step takes away from the count of slow ones."""
DEVIATIONS = 4.0
EXCESS_MIN = 0.10
"""How much slower than its peers a rank must be to matter."""
NOISE_FLOOR = 0.015
"""Robust deviations are never taken to be smaller than this share of the median."""
WARM_UP_STEPS = 5
PAUSE_FACTOR = 1.8
"""A step whose median is this much longer than usual is an evaluation, a checkpoint or a pause: not judged."""
PAST_STEPS = 64
PAST_STEPS_MIN = 8
"""A rank's own past counts from so many ordinary steps on: the median of fewer moves with a single odd one."""
CLEARED_STEPS = 3
NODE_SHARE = 0.7
"""So many of a node's ranks slow at once: the node is."""
STAGE_EXCESS = 0.15
STAGE_STEPS = 10
"""A pipeline stage is compared over more steps: uneven stages are a property of the job, not an event."""
MAD_TO_SIGMA = 1.4826


class StepTime(Struct, frozen=True):
    """One rank's times in one step, in seconds. `wait_s`: time in collectives, None when it is not known."""

    rank: int
    step_s: float
    wait_s: float | None = None


class Layout(Struct, frozen=True):
    """Where ranks are: node and pipeline stage of each. What is left out is one node or one stage."""

    nodes: Mapping[int, str] = {}
    stages: Mapping[int, int] = {}


class Straggler(Struct, frozen=True):
    """Someone is slow (`cleared=False`), or is not any more.

    `kind` is `rank`, `node` or `stage`; it names the rule `straggler.<kind>`. `slowdown` is the ratio to the peers.
    """

    kind: str
    ranks: tuple[int, ...]
    slowdown: float
    step: int
    node: str = ""
    stage: int | None = None
    cleared: bool = False


class _Rank:
    """What is remembered of one rank."""

    def __init__(self) -> None:
        self.count = 0.0
        self.ordinary = 0
        self.reported = False
        self.ratios: deque[float] = deque(maxlen=8)
        self.past: deque[float] = deque(maxlen=PAST_STEPS)


def _middle(times: Sequence[float]) -> tuple[float, float]:
    """The median of sorted times and their robust deviation.

    Where a quarter to a half of them stand clearly above the rest, as when one of two nodes is slow, the rest's: the
    median of all lies between the two then. Fewer do not move it.
    """
    few, half = (3 * len(times) + 3) // 4, (len(times) + 1) // 2
    gap, at = max((times[i + 1] - times[i], i + 1) for i in range(len(times) - 1))
    if half <= at <= few:
        middle, spread = _median_and_spread(times[:at])
        if gap > max(EXCESS_MIN * middle, DEVIATIONS * spread):
            return middle, spread
    return _median_and_spread(times)


def _median_and_spread(times: Sequence[float]) -> tuple[float, float]:
    middle = median(times)
    return middle, MAD_TO_SIGMA * median(abs(time - middle) for time in times)


class StragglerDetector:
    """Learns one attempt's rhythm and says who falls behind.

    Args:
        layout: node and stage of the ranks.
        warm_up_steps: so many first steps are not judged.
        stage_steps: over so many steps pipeline stages are compared.
    """

    def __init__(
        self,
        layout: Layout | None = None,
        *,
        warm_up_steps: int = WARM_UP_STEPS,
        stage_steps: int = STAGE_STEPS,
    ) -> None:
        self.layout = layout or Layout()
        self.warm_up_steps = warm_up_steps
        self.stage_steps = stage_steps
        self._ranks: dict[int, _Rank] = {}
        self._medians: deque[float] = deque(maxlen=PAST_STEPS)
        self._seen = 0
        self._stage_excess: dict[int, deque[float]] = {}
        self._stages_reported: set[int] = set()
        self._nodes_reported: set[str] = set()

    def observe(self, step: int, samples: Sequence[StepTime], *, ordinary: bool = True) -> list[Straggler]:
        """Take all ranks' times of one step.

        Args:
            step: its number, for the report.
            samples: one per rank; ranks may be missing.
            ordinary: False for steps known to hold an evaluation or a checkpoint, which are passed over.

        Returns:
            What is new: someone became slow, or is no longer. Empty nearly always.
        """
        if len(samples) < 3:
            return []
        self._seen += 1
        work = {s.rank: max(1e-9, s.step_s - (s.wait_s or 0.0)) for s in samples}
        middle, _ = _middle(sorted(work.values()))
        if not ordinary or self._seen <= self.warm_up_steps:
            return []
        usual = median(self._medians) if self._medians else middle
        if len(self._medians) >= 3 and middle > PAUSE_FACTOR * usual:
            return []
        self._medians.append(middle)
        slow = self._slow_ranks(work)
        new = self._count(work, slow)
        return [*self._reports(step, new), *self._stages(step, work), *self._cleared(step)]

    def _slow_ranks(self, work: Mapping[int, float]) -> dict[int, float]:
        """Rank -> ratio to its peers, for those that stand out in this step."""
        slow: dict[int, float] = {}
        for peers in self._peers(work):
            middle, spread = _middle(sorted(work[rank] for rank in peers))
            limit = middle + max(EXCESS_MIN * middle, DEVIATIONS * max(spread, NOISE_FLOOR * middle))
            for rank in peers:
                ratio = work[rank] / middle
                state = self._ranks.setdefault(rank, _Rank())
                state.ratios.append(ratio)
                before = 1.0 if self._is_new(rank) else median(state.past)
                # A rank that has always had a little more to do is not slow for it; a new excess counts.
                if work[rank] > limit and ratio > before * (1 + EXCESS_MIN / 2):
                    slow[rank] = ratio
                elif ratio < 1 + 2 * EXCESS_MIN:
                    state.past.append(ratio)
        for ranks in self._by_stage(work).values():
            # A whole stage that was never quicker has more to do: `_stages` tells of it.
            if len(ranks) > 1 and all(rank in slow and self._is_new(rank) for rank in ranks):
                for rank in ranks:
                    del slow[rank]
        return slow

    def _is_new(self, rank: int) -> bool:
        """Whether the rank has too little of a past to be compared with it."""
        return len(self._ranks[rank].past) < PAST_STEPS_MIN

    def _by_stage(self, work: Mapping[int, float]) -> dict[int, list[int]]:
        groups: dict[int, list[int]] = {}
        for rank in work:
            if rank in self.layout.stages:
                groups.setdefault(self.layout.stages[rank], []).append(rank)
        return groups

    def _peers(self, work: Mapping[int, float]) -> Iterable[list[int]]:
        """Ranks whose work is alike: those of one stage; small stages are compared with everyone."""
        groups: dict[int, list[int]] = {}
        for rank in work:
            groups.setdefault(self.layout.stages.get(rank, 0), []).append(rank)
        if any(len(group) < 3 for group in groups.values()):
            return [list(work)]
        return groups.values()

    def _count(self, work: Mapping[int, float], slow: Mapping[int, float]) -> list[int]:
        new: list[int] = []
        for rank in work:
            state = self._ranks[rank]
            if rank in slow:
                state.count = min(2.0 * SLOW_STEPS, state.count + 1)
                state.ordinary = 0
                if state.count >= SLOW_STEPS and not state.reported:
                    state.reported = True
                    new.append(rank)
            else:
                state.count = max(0.0, state.count - FADE)
                state.ordinary += 1
        return new

    def _reports(self, step: int, new: list[int]) -> list[Straggler]:
        """Ranks that became slow; together as a node when most of its ranks are."""
        found: list[Straggler] = []
        told: set[int] = set()
        by_node: dict[str, list[int]] = {}
        for rank, node in self.layout.nodes.items():
            by_node.setdefault(node, []).append(rank)
        for node in dict.fromkeys(self.layout.nodes.get(rank, "") for rank in new):
            members = by_node.get(node, [])
            behind = [rank for rank in members if rank in self._ranks and self._ranks[rank].count >= SLOW_STEPS - 1]
            if len(members) > 1 and len(behind) >= NODE_SHARE * len(members) and node not in self._nodes_reported:
                self._nodes_reported.add(node)
                found.append(Straggler("node", tuple(sorted(behind)), self._slowdown(behind), step, node))
                told |= set(members)
                for rank in behind:
                    self._ranks[rank].reported = True
        for rank in new:
            node = self.layout.nodes.get(rank, "")
            if rank not in told and node not in self._nodes_reported:
                found.append(Straggler("rank", (rank,), self._slowdown([rank]), step, node))
        return found

    def _slowdown(self, ranks: Sequence[int]) -> float:
        """Median ratio of these ranks over their last slow steps."""
        ratios = [ratio for rank in ranks for ratio in list(self._ranks[rank].ratios)[-SLOW_STEPS:]]
        return round(median(ratios), 3)

    def _stages(self, step: int, work: Mapping[int, float]) -> list[Straggler]:
        """Pipeline stages that have more to do than the others, step after step."""
        groups = self._by_stage(work)
        if len(groups) < 2:
            return []
        middles = {stage: median(work[rank] for rank in ranks) for stage, ranks in groups.items()}
        whole = median(middles.values())
        found: list[Straggler] = []
        for stage, middle in middles.items():
            excess = self._stage_excess.setdefault(stage, deque(maxlen=self.stage_steps))
            excess.append(middle / whole)
            full = len(excess) == self.stage_steps
            if full and min(excess) > 1 + STAGE_EXCESS and stage not in self._stages_reported:
                self._stages_reported.add(stage)
                ranks = tuple(sorted(groups[stage]))
                found.append(Straggler("stage", ranks, round(median(excess), 3), step, stage=stage))
        return found

    def _cleared(self, step: int) -> list[Straggler]:
        found: list[Straggler] = []
        for rank, state in self._ranks.items():
            if state.reported and state.ordinary >= CLEARED_STEPS and state.count < SLOW_STEPS:
                state.reported = False
                state.count = 0.0
                node = self.layout.nodes.get(rank, "")
                if node in self._nodes_reported:
                    members = [r for r, n in self.layout.nodes.items() if n == node and r in self._ranks]
                    if any(self._ranks[member].reported for member in members):
                        continue
                    self._nodes_reported.discard(node)
                    found.append(Straggler("node", tuple(sorted(members)), 1.0, step, node, cleared=True))
                else:
                    found.append(Straggler("rank", (rank,), 1.0, step, node, cleared=True))
        return found


class Recording(Struct, frozen=True):
    """A recorded stretch of training. `steps`: step -> one sample per rank, in order of steps.

    `seconds`: whether the samples are seconds; sums of operations have the recording's own unit. `has_waits`: whether
    they tell working from waiting.
    """

    steps: Mapping[int, Sequence[StepTime]]
    layout: Layout
    seconds: bool
    has_waits: bool

    @property
    def ranks(self) -> list[int]:
        """Every rank that it tells of."""
        return sorted({sample.rank for samples in self.steps.values() for sample in samples})


_COMPUTING = ("forward", "backward", "fwd", "bwd", "optimizer", "matmul", "gemm", "kernel")
_COMMUNICATING = (
    "send", "recv", "reduce", "gather", "scatter", "broadcast", "all-to-all", "alltoall", "all_to_all", "barrier",
    "p2p", "sync", "wait", "comm", "nccl", "clip",
)  # fmt: skip
"""Gradients are clipped by a norm over all ranks: that waits too."""


def record(rows: Iterable[Mapping[str, Any]]) -> Recording:
    """What each rank worked in each step, from rows of operations or of steps.

    Args:
        rows: each with `step` and `rank`, and either `optype` and `duration` (any unit), as the public what-if-analysis
            traces have them, or `step_s` and, where known, `wait_s` (seconds); `stage` and `node` where they are told.
            Of operations those count as work whose type says computing; where none does, those that are named after a
            pass, the optimizer or a kernel and not after a collective.

    Raises:
        UserError: there are operations, and none of them is work; or no rows.
    """
    sums: dict[int, dict[int, dict[str, float]]] = {}
    samples: dict[int, dict[int, StepTime]] = {}
    stages: dict[int, int] = {}
    nodes: dict[int, str] = {}
    for row in rows:
        rank, step = int(row["rank"]), int(row["step"])
        if row.get("stage") is not None:
            stages[rank] = int(row["stage"])
        if row.get("node"):
            nodes[rank] = str(row["node"])
        if row.get("step_s") is not None:
            wait_s = None if row.get("wait_s") is None else float(row["wait_s"])
            samples.setdefault(step, {})[rank] = StepTime(rank, float(row["step_s"]), wait_s)
        else:
            by_type = sums.setdefault(step, {}).setdefault(rank, {})
            kind = str(row["optype"])
            by_type[kind] = by_type.get(kind, 0.0) + float(row["duration"])
    if not sums and not samples:
        raise UserError("the recording has no rows")
    work = _work_types({kind for ranks in sums.values() for types in ranks.values() for kind in types}) if sums else []
    for step, ranks in sums.items():
        for rank, types in ranks.items():
            time = sum(types.get(kind, 0.0) for kind in work)
            samples.setdefault(step, {}).setdefault(rank, StepTime(rank, time))
    steps = {step: [sample for _, sample in sorted(samples[step].items())] for step in sorted(samples)}
    waits = bool(sums) or any(sample.wait_s is not None for ranks in steps.values() for sample in ranks)
    return Recording(steps, Layout(nodes, stages), seconds=not sums, has_waits=waits)


def _work_types(types: set[str]) -> list[str]:
    computing = sorted(kind for kind in types if "compute" in kind.lower())
    if not computing:
        computing = sorted(
            kind
            for kind in types
            if any(word in kind.lower() for word in _COMPUTING)
            and not any(word in kind.lower() for word in _COMMUNICATING)
        )
    if not computing:
        raise UserError(f"no operation of the recording is computing; its types are: {', '.join(sorted(types)[:12])}")
    return computing


def stragglers_of(steps: Mapping[int, Sequence[StepTime]], layout: Layout) -> list[Straggler]:
    """Who is slow in a recorded stretch of steady training, however short (three steps or more).

    A recording has no warm-up, and a stage counts as uneven when it was so in all of its steps.
    """
    few = max(SLOW_STEPS, min(STAGE_STEPS, len(steps)))
    detector = StragglerDetector(layout, warm_up_steps=0, stage_steps=few)
    return [straggler for step, samples in sorted(steps.items()) for straggler in detector.observe(step, samples)]

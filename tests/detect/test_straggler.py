"""Stragglers on synthetic jobs: found within three slow steps, and nobody accused for blips, pauses or a warm-up."""

import random

import pytest

from holdfast.detect.straggler import (
    SLOW_STEPS,
    WARM_UP_STEPS,
    Layout,
    StepTime,
    StragglerDetector,
    record,
    stragglers_of,
)

RANKS = 32
LAYOUT = Layout(nodes={r: f"n{r // 8}" for r in range(RANKS)})


class Job:
    """A synchronous job: each rank works for a while and waits for the slowest; noise as on real GPUs, about 2 %."""

    def __init__(self, seed, *, noise=0.02, uneven=0.03, work_s=1.0):
        self.rng = random.Random(seed)
        self.noise = noise
        self.base = [work_s * self.rng.uniform(1 - uneven, 1 + uneven) for _ in range(RANKS)]

    def step(self, factors=None, everyone=1.0):
        factors = factors or {}
        work = [
            b * everyone * factors.get(r, 1.0) * self.rng.lognormvariate(0, self.noise) for r, b in enumerate(self.base)
        ]
        longest = max(work) + 0.05
        return [StepTime(r, longest, longest - w) for r, w in enumerate(work)]


def run(job, steps, factors_at, *, layout=LAYOUT, everyone_at=lambda _s: 1.0, ordinary_at=lambda _s: True):
    detector = StragglerDetector(layout)
    return [
        s
        for step in range(steps)
        for s in detector.observe(step, job.step(factors_at(step), everyone_at(step)), ordinary=ordinary_at(step))
    ]


@pytest.mark.parametrize("factor", [1.2, 1.5, 3.0])
def test_slow_rank_within_three_slow_steps(factor):
    """A rank that becomes slow at step 50 is named, alone, at its third slow step."""
    found = run(Job(1), 60, lambda s: {11: factor} if s >= 50 else {})
    assert [(f.kind, f.ranks, f.node, f.cleared) for f in found] == [("rank", (11,), "n1", False)]
    assert found[0].step == 50 + SLOW_STEPS - 1
    assert abs(found[0].slowdown - factor) < 0.15 * factor


def test_slow_from_the_beginning():
    """A rank that was never quick is found after the warm-up."""
    found = run(Job(2), 40, lambda _s: {3: 1.4})
    assert [(f.ranks, f.step) for f in found] == [((3,), WARM_UP_STEPS + SLOW_STEPS - 1)]


def test_slow_node_is_one_report():
    """Eight slow ranks of one node are a slow node."""
    found = run(Job(3), 60, lambda s: dict.fromkeys(range(8, 16), 1.3) if s >= 30 else {})
    assert [(f.kind, f.node) for f in found] == [("node", "n1")]


@pytest.mark.parametrize("factor", [1.3, 1.5, 4.0])
@pytest.mark.parametrize("begin", [0, 30])
def test_one_of_two_nodes(factor, begin):
    """Half of the ranks are slow, from the beginning or later: their node is named, as one, within three slow steps."""
    layout = Layout(nodes={r: f"n{r // 16}" for r in range(RANKS)})
    half = dict.fromkeys(range(16, 32), factor)
    found = run(Job(4), 45, lambda s: half if s >= begin else {}, layout=layout)
    assert [(f.kind, f.node, f.ranks) for f in found] == [("node", "n1", tuple(range(16, 32)))]
    assert found[0].step == max(begin, WARM_UP_STEPS) + SLOW_STEPS - 1
    assert abs(found[0].slowdown - factor) < 0.15 * factor


def test_cleared():
    """A straggler that is quick again is told once."""
    found = run(Job(4), 90, lambda s: {5: 1.5} if 30 <= s < 50 else {})
    assert [(f.ranks, f.cleared) for f in found] == [((5,), False), ((5,), True)]
    assert 50 <= found[1].step <= 60


def test_nobody_is_accused():
    """One-off blips, evaluation, checkpoints, pauses of everyone and the warm-up accuse nobody."""
    blip = random.Random(9)

    def factors(step):
        if step < WARM_UP_STEPS:
            return {0: 8.0, 7: 3.0}
        return {blip.randrange(RANKS): 4.0} if step % 7 == 0 else {}

    assert run(Job(5), 400, factors, everyone_at=lambda s: 5.0 if s % 50 == 0 else 1.0) == []
    assert run(Job(6), 100, lambda s: {0: 9.0} if s % 20 == 19 else {}, ordinary_at=lambda s: s % 20 != 19) == []


def test_uneven_stage():
    """A pipeline stage with more to do is named as a stage; its ranks are not accused one by one."""
    layout = Layout(nodes=LAYOUT.nodes, stages={r: r // 8 for r in range(RANKS)})
    found = run(Job(7), 40, lambda _s: dict.fromkeys(range(24, 32), 1.3), layout=layout)
    assert [(f.kind, f.stage) for f in found] == [("stage", 3)]


@pytest.mark.timeout(600)
def test_precision_and_recall():
    """Over 300 random jobs, half of them with a rank 1.15 to 3 times slower: both 0.95 or more, with blips throughout."""
    hit = missed = false = 0
    for seed in range(300):
        rng = random.Random(seed)
        victim = rng.randrange(RANKS) if seed % 2 else None
        factor, begin = rng.uniform(1.15, 3.0), rng.randrange(10, 60)
        blips = random.Random(seed + 1000)

        def factors(step, victim=victim, factor=factor, begin=begin, blips=blips):
            slow = {blips.randrange(RANKS): blips.uniform(1.5, 6)} if blips.random() < 0.05 else {}
            return slow | ({victim: factor} if victim is not None and step >= begin else {})

        named = {
            r for f in run(Job(seed, noise=rng.uniform(0.01, 0.03)), 90, factors) if not f.cleared for r in f.ranks
        }
        hit += victim in named
        missed += victim is not None and victim not in named
        false += len(named - {victim})
    precision, recall = hit / (hit + false), hit / (hit + missed)
    assert precision >= 0.95, (precision, recall)
    assert recall >= 0.95, (precision, recall)


def recorded(kind, *, stages=4, dp=8, steps=6, micro=8, seed=3):
    """A short recording of operations of a pipelined job, in the form of public what-if-analysis traces."""
    rng = random.Random(seed)
    rows = []
    for step in range(steps):
        for stage in range(stages):
            for d in range(dp):
                rank = stage * dp + d
                for _ in range(micro):
                    long = rng.choice((0.5, 1.0, 2.5)) if kind == "sequence" else 1.0
                    long *= 1.35 if kind == "stage" and stage == stages - 1 else 1.0
                    long *= 1.6 if kind == "worker" and rank == 13 else 1.0
                    rows.append(
                        {
                            "step": step,
                            "rank": rank,
                            "optype": "forward-compute",
                            "duration": long * rng.lognormvariate(0, 0.02),
                        }
                    )
                    rows.append({"step": step, "rank": rank, "optype": "forward-send", "duration": rng.random()})
    return record(rows).steps, Layout(stages={r: r // dp for r in range(stages * dp)})


def test_recordings():
    """In a recording of six steps: one slow worker is named, a long last stage is a stage, uneven sequences blame nobody."""
    assert [(s.kind, s.ranks) for s in stragglers_of(*recorded("worker"))] == [("rank", (13,))]
    assert [(s.kind, s.stage) for s in stragglers_of(*recorded("stage"))] == [("stage", 3)]
    assert [s for seed in range(20) for s in stragglers_of(*recorded("sequence", seed=seed)) if s.kind == "rank"] == []


def published(kind, seed):
    """Rows with the sizes and slowdowns that a public what-if analysis gives for three jobs of an operator.

    StragglerAnalysis (Understanding Stragglers in Large Model Training Using What-if Analysis, 2025), data/result-*.json:
    AR, 4 x 4 workers, the work of data-parallel rank 0 on stage 0 takes 1.98 times as long; ST, 2 x 4, the last stage
    takes 1.23 times as long, the first 1.13 in two steps; SE, 32 x 2, uneven sequences: in each step another rank takes up
    to 1.9 times as long and most take 1.0 to 1.5, the last stage 1.2.
    """
    rng = random.Random(seed)
    dp, steps, base = {"AR": (4, 44, 23.5), "ST": (2, 32, 1.84), "SE": (32, 43, 5.9)}[kind]
    stages = {
        "AR": (1.0, 1.0, 1.0, 1.0),
        "ST": (0.998, 0.983, 0.982, 1.232),
        "SE": (1.0, 1.2),
    }[kind]
    for step in range(steps):
        uneven = [1 + max(0.0, rng.gauss(0.12, 0.17)) if kind == "SE" else 1.0 for _ in range(dp)]
        if kind == "SE":
            uneven[rng.randrange(dp)] = rng.uniform(1.35, 1.9)
        for stage, more in enumerate(stages):
            for d in range(dp):
                long = base * more * uneven[d] * rng.gauss(1, 0.005)
                long *= 1.98 if kind == "AR" and (stage, d) == (0, 0) else 1.0
                long *= 1.13 if kind == "ST" and stage == 0 and step < 2 else 1.0
                for share, what in ((1 / 3, "forward-compute"), (2 / 3, "backward-compute")):
                    yield {
                        "step": step, "rank": stage * dp + d, "stage": stage, "optype": what, "duration": long * share
                    }  # fmt: skip


@pytest.mark.parametrize("seed", range(5))
def test_the_three_published_jobs(seed):
    """The worker is named alone, the long last stage as a stage although it has two ranks, uneven sequences blame nobody."""

    def found(kind):
        told = record(published(kind, seed))
        slow = stragglers_of(told.steps, told.layout)
        return [(s.kind, s.ranks if s.kind == "rank" else s.stage) for s in slow]

    assert found("AR") == [("rank", (0,))]
    assert found("ST") == [("stage", 3)]
    assert [one for one in found("SE") if one[0] == "rank"] == []

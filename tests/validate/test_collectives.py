"""Collectives over a fleet without processes: the order of sweeps, what they may take, and who is blamed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from holdfast.validate import collectives, paired
from holdfast.validate.examination import Examination
from holdfast.validate.registry import RESENT, WITHOUT_GPU, Options, chosen, limit_of
from holdfast.validate.results import Item, Run, StepResult, Verdict, failed
from holdfast.validate.results_kept import Results
from holdfast.validate.sweep_torch import DEEP_SIZES, QUICK_SIZES, resent, sizes, tcp_counts
from holdfast.validate.under_test import Asked, NodesUnderTest
from holdfast.validate.wire import Hello

SWEEP_S = 30.0
FIGURE = Item(name="nccl.sweep.all_reduce", value=1.0, better="higher")


class Clock:
    """Moves by what a sweep takes."""

    at = 0.0

    def now(self) -> float:
        return self.at

    def monotonic(self) -> float:
        return self.at


class Still:
    """Nodes on machines of their own that run nothing."""

    def __init__(self, names: Sequence[str]) -> None:
        self.nodes = tuple(Hello(node=name, rank=rank, boot=name) for rank, name in enumerate(names))
        self.lost: dict[str, str] = {}

    async def ask(self, _node: str, step: str, *_more: object) -> StepResult:
        return StepResult(step=step)


def hunted(
    monkeypatch: pytest.MonkeyPatch,
    bad: str,
    *,
    deep: bool = False,
    bad_when_deep: bool = False,
    unfit: str = "",
    resent: float = 0.0,
    blind: str = "",
) -> tuple[Run, list[tuple[int, bool, float]]]:
    """A run over eight nodes where every sweep with `bad` fails; its (size, deep, limit) one after another."""
    clock = Clock()
    swept: list[tuple[int, bool, float]] = []

    async def sweep(
        _nodes: NodesUnderTest, ranks: Sequence[Hello], *, deep: bool, limit_s: float = 0.0
    ) -> list[StepResult]:
        swept.append((len(ranks), deep, limit_s))
        await asyncio.sleep(0)
        clock.at = max(clock.at, SWEEP_S * len(swept))
        fails = any(hello.node == bad for hello in ranks) and (deep or not bad_when_deep)
        error = "it did not end within 240 s and was killed" if fails else ""
        told = {RESENT: resent if any(hello.node == unfit for hello in ranks) else 0.0}
        items = () if fails else (FIGURE,)
        no_gpu = failed(WITHOUT_GPU, "PyTorch sees no GPU", "compare")
        return [
            StepResult(step="sweep", items=(*items, *[no_gpu] * (rank.node == blind)), error=error, told=told)
            for rank in ranks
        ]

    async def pairs(nodes: NodesUnderTest) -> None:
        nodes.unfit |= {unfit} - {""}

    monkeypatch.setattr(collectives, "sweep", sweep)
    monkeypatch.setattr(paired, "run", pairs)
    nodes = NodesUnderTest(
        Still([f"n{number}" for number in range(8)]),
        Asked(suites=chosen(("nccl",)), options=Options(deep=deep)),
        clock=clock,
        results=Results(None),
    )
    return asyncio.run(Examination(nodes, baselines=lambda _kind: None).run()), swept


def test_halves_find_the_node_and_may_take_no_more_than_a_few_times_what_one_that_passed_took(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Until a half has passed a sweep has its own limit; then its limit follows from that one's time."""
    run, swept = hunted(monkeypatch, "n5")
    assert run.blamed == ("n5",)
    assert [size for size, _, _ in swept] == [8, 4, 4, 2, 2, 2, 2]
    limits = [limit for _, _, limit in swept]
    assert limits[:3] == [0.0, 0.0, 0.0]
    assert all(collectives.LEAST_S <= limit <= collectives.TIMES * 2 * SWEEP_S for limit in limits[3:])
    assert not any(item.name == FIGURE.name for node in run.nodes for item in node.items)


def test_a_deep_run_begins_with_the_quick_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    """The large messages are for a group that passed the small ones; what fails only there is halved there."""
    run, swept = hunted(monkeypatch, "n5", deep=True)
    assert run.blamed == ("n5",)
    assert not any(deep for _, deep, _ in swept)
    run, swept = hunted(monkeypatch, "n5", deep=True, bad_when_deep=True)
    assert run.blamed == ("n5",)
    assert [deep for _, deep, _ in swept] == [False, *(True for _ in swept[1:])]
    run, swept = hunted(monkeypatch, "nobody", deep=True)
    assert (run.verdict, swept) == (Verdict.PASS, [(8, False, 0.0), (8, True, 0.0)])
    assert [item.name for item in run.nodes[0].items] == [FIGURE.name]


def test_a_node_that_the_paired_tests_find_is_left_out_of_what_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    """One sweep fails, and the next two, quick and deep, go over the seven others."""
    run, swept = hunted(monkeypatch, "n5", deep=True, unfit="n5")
    assert [(size, deep) for size, deep, _ in swept] == [(8, False), (7, False), (7, True)]
    (node,) = (node for node in run.nodes if node.node == "n5")
    assert node.item("nccl.group").text == "left out: another test finds it at fault"


def test_a_node_without_a_gpu_is_named_at_once_and_the_others_are_swept_with_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its own rank says so: no halving, no paired tests, and figures of the seven that can use NCCL."""
    run, swept = hunted(monkeypatch, "nobody", blind="n5")
    assert run.blamed == ("n5",)
    assert [size for size, _, _ in swept] == [8, 7]
    assert [item.why for item in run.nodes[5].items if item.verdict is Verdict.FAIL] == ["PyTorch sees no GPU"]
    assert [item.name for item in run.nodes[0].items] == [FIGURE.name]


@pytest.mark.parametrize(("share", "sweeps"), [(0.02, [8, 7]), (0.001, [8])])
def test_a_sweep_that_passes_over_a_lossy_wire_is_worth_the_paired_tests(
    monkeypatch: pytest.MonkeyPatch, share: float, sweeps: list[int]
) -> None:
    """When a node's host has sent one of a hundred TCP segments again; who is found is left out."""
    run, swept = hunted(monkeypatch, "nobody", unfit="n5", resent=share)
    assert [size for size, _, _ in swept] == sweeps
    assert run.verdict is Verdict.PASS


def test_the_share_of_segments_that_a_host_sent_again() -> None:
    """Between two looks at the kernel's counters; of few segments it tells nothing."""
    assert resent((1000, 10), (2000, 60)) == 0.05
    assert resent((1000, 10), (1010, 20)) == 0.0
    sent, again = tcp_counts()
    assert again >= 0
    assert sent > 0


def test_limits_and_sizes_can_only_shrink() -> None:
    """A limit of its own makes a step end earlier; messages beyond a bound are left out, the smallest never."""
    assert limit_of("sweep", Options()) == 240.0
    assert limit_of("sweep", Options(deep=True)) == 600.0
    assert limit_of("sweep", Options(limit_s=60.0)) == 60.0
    assert limit_of("sweep", Options(limit_s=900.0)) == 240.0
    assert sizes(Options()) == QUICK_SIZES
    assert sizes(Options(deep=True)) == DEEP_SIZES
    assert sizes(Options(deep=True, size_max=collectives.COLOCATED_MAX)) == DEEP_SIZES[:3]
    assert sizes(Options(size_max=1)) == QUICK_SIZES[:1]

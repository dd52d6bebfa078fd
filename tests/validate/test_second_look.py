"""One bad moment blames nobody: what stands apart, or fails a pair by a measured figure, is measured again."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from holdfast.adapters.clock import SystemClock
from holdfast.validate.examination import Examination
from holdfast.validate.registry import Options, chosen
from holdfast.validate.results import Item, Run, StepResult, Verdict
from holdfast.validate.results_kept import Results
from holdfast.validate.step import Tell
from holdfast.validate.under_test import Asked, NodesUnderTest
from holdfast.validate.wire import Hello

NODES = ("n0", "n1", "n2", "n3")


class Scripted:
    """Nodes whose steps answer with set figures.

    Args:
        slow: so many of the first measurements of n3's processor are slow.
        lossy: so many of the first pairs that n3 is in lose datagrams.
        wrong: so many of the first pairs that n3 is in compute different sums.
    """

    def __init__(self, *, slow: int = 0, lossy: int = 0, wrong: int = 0) -> None:
        self.nodes = tuple(
            Hello(node=name, rank=rank, boot=name, address="127.0.0.1") for rank, name in enumerate(NODES)
        )
        self.lost: dict[str, str] = {}
        self.asked: Counter[tuple[str, str]] = Counter()
        self.slow, self.lossy, self.wrong = slow, lossy, wrong
        self.meets: dict[str, str] = {}

    async def ask(self, node: str, step: str, options: Options, on_told: Tell | None = None) -> StepResult:
        """See `Hands.ask`."""
        if step == "pair" and options.listen:
            assert on_told is not None
            self.meets[options.token] = node
            on_told({"port": 1})
            return StepResult(step=step)
        if step == "pair":
            bad = "n3" in (node, self.meets[options.token])
            self.asked["n3", "met"] += bad
            turn = self.asked["n3", "met"]
            loss = 0.05 if bad and turn <= self.lossy else 0.0
            sums = 0.0 if bad and turn <= self.wrong else 1.0
            return StepResult(
                step=step,
                items=(
                    Item(name="network.loss", value=loss, better="lower"),
                    Item(name="network.sums", value=sums, better="higher"),
                ),
            )
        self.asked[node, step] += 1
        rate = 500.0 if node == "n3" and self.asked[node, step] <= self.slow else 1000.0
        return StepResult(step=step, items=(Item(name="cpu.rate", value=rate, better="higher"),))


def run_of(hands: Scripted, suite: str, tmp_path: Path) -> Run:
    nodes = NodesUnderTest(
        hands,
        Asked(suites=chosen((suite,)), options=Options(seconds=0.1)),
        clock=SystemClock(),
        results=Results(tmp_path, resume=False),
    )
    return asyncio.run(Examination(nodes, baselines=lambda _kind: None).run())


@pytest.mark.parametrize(("slow", "measured", "blamed"), [(0, 1, ()), (1, 2, ()), (2, 3, ()), (3, 3, ("n3",))])
def test_a_slow_processor_is_blamed_when_it_stays_slow(
    tmp_path: Path, slow: int, measured: int, blamed: tuple[str, ...]
) -> None:
    """Three measurements must agree; the other nodes are measured once."""
    hands = Scripted(slow=slow)
    run = run_of(hands, "cpu", tmp_path)
    assert run.blamed == blamed
    assert [hands.asked[node, "cpu"] for node in NODES] == [1, 1, 1, measured]


@pytest.mark.parametrize(("lossy", "blamed"), [(1, ()), (2, ()), (3, ()), (4, ("n3",))])
def test_a_pair_that_loses_datagrams_is_tested_once_more_on_the_spot(
    tmp_path: Path, lossy: int, blamed: tuple[str, ...]
) -> None:
    """Twice with the first partner, twice with one that is proven good: then the node is at fault."""
    run = run_of(Scripted(lossy=lossy), "network", tmp_path)
    assert run.blamed == blamed
    if blamed:
        (why,) = (node.item("network.pairs").why for node in run.nodes if node.verdict is Verdict.FAIL)
        assert "datagrams were lost" in why


def test_wrong_sums_are_not_tried_away(tmp_path: Path) -> None:
    """Two pairs computed different sums with this node: it is at fault, and was asked no more often."""
    hands = Scripted(wrong=2)
    run = run_of(hands, "network", tmp_path)
    assert run.blamed == ("n3",)
    assert hands.asked["n3", "met"] == 2

"""Which node stands apart, in figures and in facts."""

from __future__ import annotations

import random

from holdfast.validate.outliers import facts_apart, figures_apart, marked
from holdfast.validate.results import Item, NodeResult, Verdict


def nodes(name: str, values: list[float], better: str = "higher") -> list[NodeResult]:
    return [
        NodeResult(node=f"n{number}", items=(Item(name=name, value=value, better=better, unit="x"),))
        for number, value in enumerate(values)
    ]


def versions(*texts: str) -> list[NodeResult]:
    return [
        NodeResult(
            node=f"n{number}",
            items=(
                Item(name="software.kernel", text="6.1", same=True),
                *((Item(name="software.package.torch", text=text, same=True),) if text else ()),
            ),
        )
        for number, text in enumerate(texts)
    ]


def test_the_slow_node_stands_apart_in_its_direction_only() -> None:
    """Less where higher is better, more where lower is; a better node never."""
    assert [one.node for one in figures_apart(nodes("gpu.x", [100, 101, 99, 60, 100]), colocated=False)] == ["n3"]
    assert [one.node for one in figures_apart(nodes("gpu.x", [10, 10, 30, 9], "lower"), colocated=False)] == ["n2"]
    assert figures_apart(nodes("gpu.x", [100, 101, 99, 180, 100]), colocated=False) == []


def test_noise_blames_nobody() -> None:
    """2,000 drawn fleets of 8 with 5 % noise: no node stands apart."""
    draw = random.Random(4)
    for _ in range(2000):
        values = [100 * draw.gauss(1.0, 0.05) for _ in range(8)]
        assert figures_apart(nodes("cpu.rate", values), colocated=False) == []


def test_a_fleet_that_differs_by_nature_blames_nobody() -> None:
    """Half old, half new machines: the spread is the fleet's own."""
    assert figures_apart(nodes("gpu.x", [50, 51, 49, 100, 101, 99, 100, 50]), colocated=False) == []


def test_nodes_of_one_machine_are_compared_in_what_is_their_own() -> None:
    """Disks and wires of a shared machine are not one node's; its processors' own speed is."""
    assert figures_apart(nodes("storage.write", [100, 100, 100, 10]), colocated=True) == []
    assert len(figures_apart(nodes("storage.write", [100, 100, 100, 10]), colocated=False)) == 1
    assert len(figures_apart(nodes("cpu.rate", [100, 100, 100, 10]), colocated=True)) == 1
    assert [one.node for one in figures_apart(nodes("cpu.held_back", [0, 0.01, 0.6, 0], "lower"), colocated=True)] == [
        "n2"
    ]


def test_three_nodes_have_no_median_to_stand_apart_from() -> None:
    """A figure needs four nodes."""
    assert figures_apart(nodes("gpu.x", [100, 100, 10]), colocated=False) == []


def test_the_odd_version_is_named_with_what_the_others_have() -> None:
    """Most nodes agree, one does not; one that lacks it differs too."""
    found = facts_apart(versions("2.13", "2.13", "2.9", "2.13"))
    assert [(one.node, one.item, one.why) for one in found] == [
        ("n2", "software.package.torch", "2.9 here, 2.13 on 3 of 4 nodes")
    ]
    assert facts_apart(versions("2.13", "", "2.13", "2.13"))[0].why == "missing here, 2.13 on 3 of 4 nodes"


def test_without_a_majority_nobody_is_odd() -> None:
    """Two and two, or two nodes alone."""
    assert facts_apart(versions("1", "1", "2", "2")) == []
    assert facts_apart(versions("1", "2")) == []


def test_marked_items_carry_verdict_reason_and_advice() -> None:
    """A fact that the node lacks becomes an item; a failure of its own stays."""
    listed = versions("2.13", "", "2.13", "2.13")
    node = marked(listed[1], facts_apart(listed), Verdict.FAIL)
    item = node.item("software.package.torch")
    assert item is not None
    assert (item.verdict, item.why) == (Verdict.FAIL, "missing here, 2.13 on 3 of 4 nodes")
    assert "same version" in item.advice
    assert node.verdict is Verdict.FAIL
    assert marked(listed[0], facts_apart(listed), Verdict.FAIL) == listed[0]

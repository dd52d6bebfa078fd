"""Which node stands apart from its fleet, in a figure or in a fact. Pure.

A figure stands apart when it is worse than the median by a share *and* by many robust deviations (median absolute
deviation times 1.4826, as for normal noise; a floor keeps identical machines from being blamed for nothing). A fact
stands apart when most nodes agree on another one. Fewer than three nodes have no majority.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import median

from msgspec import Struct
from msgspec.structs import replace

from holdfast.validate.results import Item, NodeResult, Verdict, number, spread

SHARE = 0.25
"""Worse than the median by so much."""
DEVIATIONS = 5.0
FLOOR = 0.03
"""Least deviation, as a share of the median."""
FEWEST = 4
"""Nodes that a figure must have."""
OWN = frozenset({"cpu.rate", "cpu.allowed"})
"""Figures that are a node's own even where several nodes share one machine (a lab, containers)."""
HELD_APART = 0.15
"""A share of held-back time that is so much above the median stands apart."""


class Apart(Struct, frozen=True):
    """A node that stands apart."""

    node: str
    item: str
    why: str


def figures_apart(nodes: Sequence[NodeResult], *, colocated: bool) -> list[Apart]:
    """Figures that stand apart. `colocated`: the nodes share one machine, and so its disks, caches and wires."""
    names = dict.fromkeys(item.name for node in nodes for item in node.items if item.better and item.value is not None)
    found = []
    for name in names:
        if colocated and name not in OWN and name != "cpu.held_back":
            continue
        held = [(node.node, item) for node in nodes if (item := node.item(name)) is not None and item.value is not None]
        values = [item.value for _, item in held if item.value is not None]
        if len(values) < FEWEST:
            continue
        middle = median(values)
        for node, item in held:
            if item.value is not None and _is_apart(name, item, item.value, middle, values):
                why = f"{item.shown}, the fleet's median is {number(middle)}"
                found.append(Apart(node, name, why))
    return found


def _is_apart(name: str, item: Item, value: float, middle: float, values: Sequence[float]) -> bool:
    if name == "cpu.held_back":
        return value - middle > HELD_APART
    worse = middle - value if item.better == "higher" else value - middle
    return worse > max(SHARE * abs(middle), DEVIATIONS * max(spread(values, middle), FLOOR * abs(middle)))


def facts_apart(nodes: Sequence[NodeResult]) -> list[Apart]:
    """Facts that must be the same, where most nodes agree and this one does not. A fact that is missing differs too."""
    names = dict.fromkeys(item.name for node in nodes for item in node.items if item.same)
    found = []
    for name in names:
        # A node whose suite did not run at all says nothing.
        asked = [node for node in nodes if any(item.suite == name.partition(".")[0] for item in node.items)]
        said = {node.node: item.text if (item := node.item(name)) is not None else "" for node in asked}
        if len(said) < 3:
            continue
        (most, count), *_ = Counter(said.values()).most_common(1)
        if 2 * count <= len(said) or count == len(said):
            continue
        for node, text in said.items():
            if text != most:
                here, there = text or "missing", most or "missing"
                found.append(Apart(node, name, f"{here} here, {there} on {count} of {len(said)} nodes"))
    return found


ADVICE = {
    "software": "install the same version on every node, or take the node out of the partition until it has it",
    "cpu": "look for a quota, a hot processor, other programs; compare BIOS settings; have it replaced if it stays",
    "network": "set the same MTU on every node and switch port",
}


def marked(node: NodeResult, apart: Sequence[Apart], verdict: Verdict) -> NodeResult:
    """The node with what stands apart judged so; a verdict that is worse already stays."""
    mine = {one.item: one.why for one in apart if one.node == node.node}
    items = []
    for item in node.items:
        why = mine.pop(item.name, "")
        if why and item.verdict is not Verdict.FAIL:
            item = _judged(item, why, verdict)  # noqa: PLW2901 - the same item, judged
        items.append(item)
    # A fact that all others have and this node lacks.
    items += [_judged(Item(name=name, same=True), why, verdict) for name, why in mine.items()]
    return replace(node, items=tuple(items))


def _judged(item: Item, why: str, verdict: Verdict) -> Item:
    advice = item.advice or ADVICE.get(item.suite, "compare it with its neighbours; have it replaced if it stays so")
    return item.judged(verdict, why, advice, source=item.source or "the other nodes")

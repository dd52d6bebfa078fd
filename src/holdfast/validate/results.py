"""What a validation found, as values: items of one node, of a pair, of a whole run. Read by every module here.

Pure; no time passes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from statistics import median
from typing import Any

from msgspec import Struct
from msgspec.structs import replace


class Verdict(StrEnum):
    """How an item came out."""

    PASS = "pass"  # noqa: S105 - a verdict
    WARN = "warn"
    """A person should look; the node can work."""
    FAIL = "fail"
    """Not fit for a long run."""
    ABSENT = "not applicable"
    """What it looks at does not exist here."""


SEVERITY = {Verdict.ABSENT: 0, Verdict.PASS: 1, Verdict.WARN: 2, Verdict.FAIL: 3}


class Item(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that was measured or read, and what it means."""

    name: str
    """`suite.what`, such as `cpu.rate`."""
    value: float | None = None
    unit: str = ""
    better: str = ""
    """`higher` or `lower`; empty: a fact without a direction."""
    text: str = ""
    """A fact in words: a version, a digest."""
    same: bool = False
    """Must be equal on all nodes of a fleet."""
    verdict: Verdict = Verdict.PASS
    expected: str = ""
    """What it was compared with, in words; empty: with nothing."""
    source: str = ""
    """Where the expectation comes from."""
    why: str = ""
    advice: str = ""

    def judged(self, verdict: Verdict, why: str, advice: str = "", **more: str) -> Item:
        """The item with this verdict."""
        return replace(self, verdict=verdict, why=why, advice=advice, **more)

    @property
    def suite(self) -> str:
        """The suite that it belongs to."""
        return self.name.partition(".")[0]

    @property
    def shown(self) -> str:
        """The measured value in words."""
        if self.value is None:
            return self.text
        return f"{number(self.value)} {self.unit}".strip()

    @property
    def measured(self) -> str:
        """`shown`, or why there was nothing to measure here."""
        return self.shown or (self.why if self.verdict is Verdict.ABSENT else "")


def absent(name: str, why: str) -> Item:
    """What it looks at does not exist here: not a failure."""
    return Item(name=name, verdict=Verdict.ABSENT, why=why)


def failed(name: str, why: str, advice: str = "", **more: Any) -> Item:
    """Not fit. Without advice `troubleshooting` has it. `more` are fields of `Item`."""
    return Item(name=name, verdict=Verdict.FAIL, why=why, advice=advice, **more)


def warned(name: str, why: str, advice: str = "", **more: Any) -> Item:
    """A person should look."""
    return Item(name=name, verdict=Verdict.WARN, why=why, advice=advice, **more)


class StepResult(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How one step on one node ended."""

    step: str
    items: tuple[Item, ...] = ()
    seconds: float = 0.0
    hung: bool = False
    """It did not end within its limit and was killed."""
    error: str = ""
    """It ended without a result."""
    told: dict[str, float | str] = {}
    """What it said to the leader alone."""


class NodeResult(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All items of one node."""

    node: str
    rank: int = 0
    items: tuple[Item, ...] = ()
    steps: tuple[StepResult, ...] = ()
    lost: str = ""
    """Why the node was lost in the middle; empty: it was not."""

    @property
    def verdict(self) -> Verdict:
        """The worst of its items."""
        return Verdict.FAIL if self.lost else worst(item.verdict for item in self.items)

    def item(self, name: str) -> Item | None:
        """By name."""
        return next((one for one in self.items if one.name == name), None)


class Run(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A whole validation. `version` counts changes of this form."""

    version: int = 1
    id: str
    at: float
    """Unix seconds at its begin."""
    seconds: float = 0.0
    suites: tuple[str, ...] = ()
    deep: bool = False
    baseline: str = ""
    nodes: tuple[NodeResult, ...] = ()
    notes: tuple[str, ...] = ()
    """What was not done, and why."""
    rounds: tuple[str, ...] = ()
    """Paired tests, a sentence each."""

    @property
    def verdict(self) -> Verdict:
        """The worst of its nodes."""
        return worst(node.verdict for node in self.nodes)

    @property
    def blamed(self) -> tuple[str, ...]:
        """Nodes that are not fit."""
        return tuple(node.node for node in self.nodes if node.verdict is Verdict.FAIL)


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The worst of some verdicts; `pass` for none."""
    return max(verdicts, key=lambda one: SEVERITY[one], default=Verdict.PASS)


def spread(values: Sequence[float], middle: float) -> float:
    """Robust standard deviation: the median distance from `middle`, scaled as for normal noise (MAD x 1.4826)."""
    return 1.4826 * median([abs(value - middle) for value in values])


def number(value: float) -> str:
    """A measured value with three figures that count."""
    size = abs(value)
    if size >= 1000:
        return f"{value:,.0f}".replace(",", " ")
    return f"{value:.3g}" if size else "0"

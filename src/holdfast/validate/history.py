"""What earlier validations measured: kept in the journal's series store; ageing and change points found in it.

`samples_of` turns a run into samples, `read` brings them back; judging is pure. A figure is a point of the series
`validate.figure` of the subject `node:NAME/ITEM`; a fact (a version) one of `validate.fact` of `node:NAME/ITEM=TEXT`,
told with every run, so that a change of figures can be set beside what changed with it. What a run said in words is
kept by `latest`.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from msgspec import Struct
from msgspec.structs import replace

from holdfast.ports import Journal, Sample
from holdfast.validate.latest import told_of
from holdfast.validate.results import SEVERITY, Run, number, spread

FIGURE = "validate.figure"
FACT = "validate.fact"
VERDICT = "validate.verdict"
FEWEST = 6
"""Runs that a judgement needs."""
SHARE = 0.08
"""A change, or an ageing over the time seen, that is worth telling, as a share."""
DEVIATIONS = 4.0
SIDE_MIN = 3
"""Runs on either side of a change."""


class Point(Struct, frozen=True):
    """One figure of one run."""

    at: float
    value: float


class Trend(Struct, frozen=True, kw_only=True):
    """What became of one figure of one node."""

    node: str
    item: str
    points: tuple[Point, ...]
    changed_at: float = 0.0
    """The first run after a change; 0: none."""
    before: float = 0.0
    after: float = 0.0
    """Medians before and after the change."""
    with_it: tuple[str, ...] = ()
    """Facts that changed at the same run."""
    per_30_days: float = 0.0
    """Share of the median by which it moves in 30 days; 0: steady."""

    @property
    def told(self) -> str:
        """In one sentence; empty when there is nothing to tell."""
        if self.changed_at:
            share = (self.after - self.before) / self.before if self.before else 0.0
            words = f"from {number(self.before)} to {number(self.after)} ({share:+.0%})"
            return f"{self.item} changed {words}" + (f" with {', '.join(self.with_it)}" if self.with_it else "")
        if self.per_30_days:
            return f"{self.item} moves by {self.per_30_days:+.1%} in 30 days"
        return ""


def samples_of(run: Run) -> list[Sample]:
    """A run as samples."""
    found = []
    for node in run.nodes:
        subject = f"node:{node.node}"
        found.append(Sample(VERDICT, subject, run.at, float(SEVERITY[node.verdict])))
        for item in node.items:
            if item.value is not None and item.better:
                found.append(Sample(FIGURE, f"{subject}/{item.name}", run.at, item.value))
            elif item.same and item.text:
                found.append(Sample(FACT, f"{subject}/{item.name}={item.text}", run.at, 1.0))
    return found + told_of(run)


async def read(journal: Journal, *, node: str = "", after: float = 0.0) -> list[Sample]:
    """All figures and facts, of one node or of all."""
    subject = f"node:{node}/*" if node else "node:*"
    figures = await journal.samples(FIGURE, subject, after=after)
    return figures + await journal.samples(FACT, subject, after=after)


def trends(samples: Sequence[Sample]) -> list[Trend]:
    """Every node's figures, by node and item."""
    by_figure: dict[tuple[str, str], list[Point]] = {}
    facts: dict[str, list[tuple[float, str, str]]] = {}
    for one in sorted(samples, key=lambda sample: sample.at):
        node, _, name = one.subject.removeprefix("node:").partition("/")
        if one.series == FACT:
            key, _, text = name.partition("=")
            facts.setdefault(node, []).append((one.at, key, text))
        else:
            by_figure.setdefault((node, name), []).append(Point(one.at, one.value))
    return [_trend(node, item, points, facts.get(node, [])) for (node, item), points in sorted(by_figure.items())]


def _trend(node: str, item: str, points: Sequence[Point], facts: Sequence[tuple[float, str, str]]) -> Trend:
    plain = Trend(node=node, item=item, points=tuple(points))
    split = change_point([point.value for point in points])
    if not split:
        return replace(plain, per_30_days=ageing(points))
    return replace(
        plain,
        changed_at=points[split].at,
        before=median(point.value for point in points[:split]),
        after=median(point.value for point in points[split:]),
        with_it=changes_between(facts, points[split - 1].at, points[split].at),
    )


def change_point(values: Sequence[float]) -> int:
    """Index of the first value after a lasting change; 0: there is none.

    The split whose two sides lie closest to their own medians (least absolute deviations), when the medians differ by a
    share of the level worth telling and by several robust deviations. Three runs at least stand on either side.
    """
    if len(values) < FEWEST:
        return 0

    def cost(split: int) -> float:
        return sum(_distance(side) for side in (values[:split], values[split:]))

    split = min(range(SIDE_MIN, len(values) - SIDE_MIN + 1), key=cost)
    left, right = values[:split], values[split:]
    level = abs(median(left)) or abs(median(right))
    for value, own, other in ((left[-1], left, right), (right[0], right, left)):
        if abs(value - median(own)) > abs(value - median(other)):
            return 0  # the change is nearer to an end than three runs
    distance = abs(median(left) - median(right))
    noise = spread([*(v - median(left) for v in left), *(v - median(right) for v in right)], 0.0)
    return split if distance >= SHARE * level and distance > DEVIATIONS * max(noise, 0.01 * level) else 0


def _distance(side: Sequence[float]) -> float:
    """How far values lie from their own median, in all."""
    level = median(side)
    return sum(abs(value - level) for value in side)


def ageing(points: Sequence[Point]) -> float:
    """Share of the median by which it moves in 30 days (Theil and Sen's slope); 0.0 when it does not clearly move."""
    if len(points) < FEWEST:
        return 0.0
    slopes = [(b.value - a.value) / (b.at - a.at) for i, a in enumerate(points) for b in points[i + 1 :] if b.at > a.at]
    level = median(point.value for point in points)
    if not slopes or not level:
        return 0.0
    slope = median(slopes)
    moved = slope * (points[-1].at - points[0].at)
    rest = [point.value - slope * (point.at - points[0].at) for point in points]
    same_way = sum(1 for one in slopes if one * slope > 0) / len(slopes)
    if abs(moved) < SHARE * abs(level) or abs(moved) < DEVIATIONS * spread(rest, median(rest)) or same_way < 0.75:
        return 0.0
    return slope * 30 * 86400.0 / level


def changes_between(facts: Sequence[tuple[float, str, str]], last: float, first: float) -> tuple[str, ...]:
    """Facts that are told otherwise at `first` than at `last`."""
    old = {key: text for at, key, text in facts if at == last}
    new = {key: text for at, key, text in facts if at == first}
    return tuple(f"{_plain(key)} {old[key]} -> {text}" for key, text in new.items() if key in old and old[key] != text)


def _plain(name: str) -> str:
    return name.removeprefix("software.").removeprefix("driver.").removeprefix("package.")

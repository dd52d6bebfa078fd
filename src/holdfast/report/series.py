"""What is measured of a job over time or step, per attempt, and whether training came back as it was after an incident.

Points are made by `gather` and read by plots, objectives and tables. Pure. Rates are medians, so that an evaluation, a
save or a slow first step on either side changes nothing. Of loss and accuracy, steps that were computed twice are
compared one by one; where there are none, medians beside the gap are.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from msgspec import Struct, field

from holdfast.model.records import IncidentRecord, Mark


class Point(Struct, frozen=True):
    """One point of a plot: Unix seconds or step on x."""

    x: float
    y: float


class JobSeries(Struct):
    """What is plotted of one job."""

    steps: dict[int, list[Point]] = field(default_factory=dict)
    """Per attempt: completed step over Unix seconds."""
    losses: dict[int, list[Point]] = field(default_factory=dict)
    """Per attempt: loss over step."""
    accuracies: dict[int, list[Point]] = field(default_factory=dict)
    """Per attempt: accuracy over step, where the job tells any."""
    checkpoints: list[Point] = field(default_factory=list)
    """Durable checkpoints: step over Unix seconds."""
    samples: dict[int, list[Point]] = field(default_factory=dict)
    tokens: dict[int, list[Point]] = field(default_factory=dict)
    """Per attempt: samples and tokens consumed by all ranks, over Unix seconds."""
    saves: list[Point] = field(default_factory=list)
    """Seconds that each save held the training, over Unix seconds."""


WINDOW_STEPS = 200
"""Steps on either side that are compared: enough for a median, near enough to the fault to be the same training."""
LEAST_STEPS = 3


class Throughput(Struct, frozen=True):
    """One incident's training speed before and after. None: too few points on one side."""

    incident: str
    unit: str
    """`tokens/s`, `samples/s` or `steps/s`: the finest that the job told."""
    before: float | None
    after: float | None

    @property
    def loss_percent(self) -> float | None:
        """How much slower it is after, in percent; below 0: faster."""
        if self.before is None or self.after is None or self.before <= 0:
            return None
        return 100.0 * (1.0 - self.after / self.before)


def throughput(incident: IncidentRecord, series: JobSeries) -> Throughput:
    """Rates of the attempt that the fault ended and of the one that followed it."""
    before, after = incident.attempt_before, incident.attempt_after
    fault = incident.marks.get(Mark.FAULT, incident.opened_at)
    for unit, kept in (("tokens/s", series.tokens), ("samples/s", series.samples), ("steps/s", series.steps)):
        rates = (
            _rate([p for p in kept.get(before, ()) if p.x <= fault][-WINDOW_STEPS:]) if before is not None else None,
            _rate(list(kept.get(after, ()))[1 : WINDOW_STEPS + 1]) if after is not None else None,
        )
        if any(rate is not None for rate in rates) or unit == "steps/s":
            return Throughput(incident.id, unit, *rates)
    raise AssertionError("steps/s always answers")


def _rate(points: Sequence[Point]) -> float | None:
    """Median of the growth per second between neighbouring points."""
    rates = [(b.y - a.y) / (b.x - a.x) for a, b in pairwise(points) if b.x > a.x and b.y >= a.y]
    return median(rates) if len(rates) >= LEAST_STEPS else None


NEIGHBOURS = 20
"""Points on either side of a restart that are compared when no step was computed twice."""


class Convergence(Struct, frozen=True):
    """One incident's loss or accuracy on both sides."""

    incident: str
    figure: str
    """`training loss` or `accuracy`."""
    first_step: int
    last_step: int
    """The steps that are compared."""
    twice: int
    """How many of them were computed twice; 0: medians are compared."""
    worst_step: int | None
    """Where the two differ most."""
    before: float
    after: float

    @property
    def difference(self) -> float:
        """How far the two are apart."""
        return abs(self.after - self.before)

    @property
    def steps(self) -> str:
        """`101-130 (30), step 117`, or `93-120, medians`."""
        span = f"{self.first_step}-{self.last_step}"
        return f"{span} ({self.twice}), step {self.worst_step}" if self.twice else f"{span}, medians"


def convergence(incident: IncidentRecord, series: JobSeries) -> list[Convergence]:
    """Loss and accuracy of the attempt that the fault ended and of the one that followed it, as far as both told."""
    if incident.attempt_before is None or incident.attempt_after is None:
        return []
    found = []
    for figure, kept in (("training loss", series.losses), ("accuracy", series.accuracies)):
        before, after = kept.get(incident.attempt_before, []), kept.get(incident.attempt_after, [])
        if before and after:
            found.append(compare(incident.id, figure, before, after))
    return found


def compare(incident: str, figure: str, before: Sequence[Point], after: Sequence[Point]) -> Convergence:
    """Compare two lines over step, neither of them empty."""
    then = {point.x: point.y for point in before}
    twice = [(int(point.x), then[point.x], point.y) for point in after if point.x in then]
    if twice:
        step, old, new = max(twice, key=lambda item: abs(item[1] - item[2]))
        return Convergence(incident, figure, twice[0][0], twice[-1][0], len(twice), step, old, new)
    left, right = before[-NEIGHBOURS:], after[:NEIGHBOURS]
    old, new = median(point.y for point in left), median(point.y for point in right)
    return Convergence(incident, figure, int(left[0].x), int(right[-1].x), 0, None, old, new)

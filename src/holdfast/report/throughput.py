"""Did training come back as fast as it was? Throughput before a fault and after the recovery.

Called by objectives and by every form of report. Pure: all points were measured elsewhere. Rates are medians, so that
an evaluation, a save or a slow first step on either side changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import median

from msgspec import Struct

from holdfast.model.records import IncidentRecord, Mark
from holdfast.report.series import JobSeries, Point

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

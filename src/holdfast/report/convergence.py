"""Does training converge as before? Loss and accuracy before a fault and after the recovery.

Called by every form of report. Pure: all points were measured elsewhere. Steps that were computed twice are compared
one by one; where there are none, medians beside the gap are.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from msgspec import Struct

from holdfast.model.records import IncidentRecord
from holdfast.report.series import JobSeries, Point

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

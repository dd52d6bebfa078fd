"""Collects what a report needs from a journal (also one whose controller is dead) into one plain value.

Called by `cli/report`, the demo and drills. All reading happens here; everything behind `ReportData` is pure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct, field

from holdfast.model.cluster import JobKey
from holdfast.model.records import IncidentRecord, JobRecord, NodeRecord
from holdfast.ports import Sample
from holdfast.report.figures import Totals, totals


class Records(Protocol):
    """What `gather` reads: part of `ports.Journal`, so a journal fits, and so does a live controller's API."""

    async def jobs(self, *, job: str = "") -> list[JobRecord]:
        """As in `ports.Journal`."""

    async def nodes(self, *, node: str = "") -> list[NodeRecord]:
        """As in `ports.Journal`."""

    async def incidents(
        self, *, incident: str = "", open_only: bool = False, limit: int = 1000
    ) -> list[IncidentRecord]:
        """As in `ports.Journal`."""

    async def samples(self, series: str, subject: str = "", *, after: float = 0.0) -> list[Sample]:
        """As in `ports.Journal`."""


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
    checkpoints: list[Point] = field(default_factory=list)
    """Durable checkpoints: step over Unix seconds."""


class ReportData(Struct):
    """Everything that any form of report shows."""

    title: str
    cluster: str
    made_at: float
    jobs: list[JobRecord] = field(default_factory=list)
    nodes: list[NodeRecord] = field(default_factory=list)
    incidents: list[IncidentRecord] = field(default_factory=list)
    """Oldest first."""
    series: dict[str, JobSeries] = field(default_factory=dict)
    """Per job name (`1778`)."""
    reference_losses: list[Point] = field(default_factory=list)
    """Loss over step of an undisturbed run with the same seed, when there was one."""
    notes: list[str] = field(default_factory=list)
    """Facts that a reader must know: what was emulated, what could not be read."""

    @property
    def totals(self) -> Totals:
        """All figures; see `definitions`."""
        return totals(self.jobs, self.incidents, self.made_at)


async def gather(
    journal: Records,
    *,
    title: str,
    cluster: str,
    now: float,
    job: str = "",
    incident: str = "",
    since: float = 0.0,
    on_job: Callable[[int, int], None] | None = None,
) -> ReportData:
    """Read records and series. `job` and `incident` narrow the report, `since` drops what ended before it.

    `on_job(done, of)` is called as each job's series have been read: what takes long in a large journal.
    """
    jobs = [record for record in await journal.jobs() if job in ("", str(record.key)) and _lives(record, since)]
    found = await journal.incidents(limit=100_000)
    incidents = [
        record
        for record in sorted(found, key=lambda record: record.opened_at)
        if incident in ("", record.id)
        and (not job or any(str(key) == job for key in record.jobs))
        and (record.closed_at or now) >= since
    ]
    if incident:
        concerned = {key for record in incidents for key in record.jobs}
        jobs = [record for record in jobs if record.key in concerned]
    data = ReportData(title, cluster, now, jobs, await journal.nodes(), incidents)
    for done, record in enumerate(jobs, 1):
        data.series[str(record.key)] = await _series(journal, record.key, record, since)
        if on_job is not None:
            on_job(done, len(jobs))
    return data


def _lives(record: JobRecord, since: float) -> bool:
    """Did the job do anything after `since`?"""
    if not record.attempts:
        return record.since >= since
    return any((attempt.ended_at or attempt.started_at) >= since or not attempt.ended_at for attempt in record.attempts)


async def _series(journal: Records, key: JobKey, record: JobRecord, since: float) -> JobSeries:
    series = JobSeries()
    for attempt in record.attempts:
        subject = f"job:{key}({attempt.number})"
        steps = [Point(s.at, s.value) for s in one_rank(await journal.samples("step", f"{subject}*", after=since))]
        loss_at = [Point(s.at, s.value) for s in one_rank(await journal.samples("loss", f"{subject}*", after=since))]
        series.losses[attempt.number] = _loss_over_step(steps, loss_at)
        if attempt.first_step is not None and attempt.first_step_at:
            steps.append(Point(attempt.first_step_at, attempt.first_step))
        if attempt.last_step is not None and attempt.ended_at and steps and steps[-1].y < attempt.last_step:
            steps.append(Point(attempt.ended_at, attempt.last_step))
        series.steps[attempt.number] = sorted(set(steps), key=lambda point: point.x)
        saved = [Point(s.at, s.value) for s in await journal.samples("checkpoint", subject, after=since)]
        if not saved and attempt.durable_step is not None and attempt.durable_at:
            saved = [Point(attempt.durable_at, attempt.durable_step)]
        series.checkpoints.extend(saved)
    series.checkpoints = sorted(set(series.checkpoints), key=lambda point: point.x)
    return series


def one_rank(samples: list[Sample]) -> list[Sample]:
    """Of samples of several ranks those of the first one, in order of time: all ranks go through the same steps.

    A subject without a rank (a job whose progress is read from its log) comes before any rank.
    """
    if not samples:
        return []
    chosen = min({sample.subject for sample in samples}, key=lambda name: (len(name), name))
    return [sample for sample in samples if sample.subject == chosen]


def _loss_over_step(steps: list[Point], losses: list[Point]) -> list[Point]:
    """Join two series that were sampled at the same moments: time -> step and time -> loss."""
    step_at = {point.x: point.y for point in steps}
    return [Point(step_at[point.x], point.y) for point in losses if point.x in step_at]

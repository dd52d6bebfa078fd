"""Totals over incidents and jobs: MTTD, MTTR, MTBF, ETTR, goodput, badput. Pure; definitions are in `definitions`.

The accounting of a job gives every second of its wall time to exactly one category, so the parts add up to the whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean, median

from msgspec import Struct

from holdfast.model.cluster import JobKey
from holdfast.model.records import AttemptRecord, IncidentRecord, JobRecord, Mark
from holdfast.report.timeline import span

CATEGORIES = ("startup", "detect", "stop", "restart", "load", "recompute", "other")


class Spread(Struct, frozen=True):
    """A figure over several incidents, in seconds. `n` is how many had both marks."""

    n: int
    mean: float | None = None
    median: float | None = None
    p95: float | None = None
    maximum: float | None = None


class Accounting(Struct, frozen=True):
    """Where one job's wall time went, in seconds. `productive_s` + the sum of `badput` = `wall_s`."""

    job: str
    wall_s: float
    productive_s: float
    badput: dict[str, float]
    up_s: float
    """Time in which an attempt's processes were running."""
    steps_kept: int
    steps_lost: int

    @property
    def ettr(self) -> float | None:
        """Effective training time ratio."""
        return self.productive_s / self.wall_s if self.wall_s > 0 else None

    @property
    def goodput_percent(self) -> float | None:
        """As ETTR, without the initial start-up, in percent."""
        rest = self.wall_s - self.badput["startup"]
        return 100.0 * self.productive_s / rest if rest > 0 else None


class Totals(Struct, frozen=True):
    """The figures of a report."""

    incidents: int
    recovered: int
    open: int
    mttd: Spread
    mttr: Spread
    mttp: Spread
    mtbf_s: float | None
    ettr: float | None
    goodput_percent: float | None
    steps_lost: int
    badput: dict[str, float]
    by_cause: dict[str, int]
    by_domain: dict[str, int]


def spread(values: Iterable[float | None]) -> Spread:
    """Count, mean, median, p95 (nearest rank) and maximum of the known values."""
    known = sorted(value for value in values if value is not None)
    if not known:
        return Spread(0)
    rank = max(0, -(-95 * len(known) // 100) - 1)
    return Spread(len(known), fmean(known), median(known), known[rank], known[-1])


def step_seconds(attempt: AttemptRecord, end: float) -> float | None:
    """Typical seconds per step of an attempt, None when it did not complete two."""
    if attempt.first_step is None or attempt.reached is None or attempt.reached <= attempt.first_step:
        return None
    return max(0.0, end - attempt.first_step_at) / (attempt.reached - attempt.first_step)


def account(job: JobRecord, incidents: Sequence[IncidentRecord], now: float) -> Accounting:
    """Give every second from the first attempt's start to its end (or `now`) to one category."""
    attempts = [attempt for attempt in job.attempts if attempt.started_at > 0]
    badput = dict.fromkeys(CATEGORIES, 0.0)
    if not attempts:
        return Accounting(str(job.key), 0.0, 0.0, badput, 0.0, 0, 0)
    ended = {i.attempt_before: i for i in incidents if i.attempt_before is not None and job.key in i.jobs}
    productive = up = 0.0
    kept = lost = 0
    reached: int | None = None
    for index, attempt in enumerate(attempts):
        following = attempts[index + 1] if index + 1 < len(attempts) else None
        end = attempt.ended_at or (following.started_at if following else now)
        end = max(end, attempt.started_at)
        up += end - attempt.started_at
        incident = ended.get(attempt.number)
        trained_until = min(max(_fault(incident, end), attempt.started_at), end)
        first = attempt.first_step_at if attempt.first_step_at > 0 else trained_until
        first = min(max(first, attempt.started_at), trained_until)
        badput["startup" if index == 0 else "load"] += first - attempt.started_at
        again, steps = _recompute(attempt, reached, trained_until - first)
        badput["recompute"] += again
        lost += steps
        productive += trained_until - first - again
        if attempt.reached is not None:
            kept = max(kept, attempt.reached)
            reached = max(reached, attempt.reached) if reached is not None else attempt.reached
        _after_fault(badput, incident, trained_until, end)
        if following is not None:
            badput["restart"] += max(0.0, following.started_at - end)
    wall = (attempts[-1].ended_at or now) - attempts[0].started_at
    badput["other"] += max(0.0, wall - productive - sum(badput.values()))
    return Accounting(str(job.key), wall, productive, badput, up, kept, lost)


def _fault(incident: IncidentRecord | None, default: float) -> float:
    return default if incident is None else incident.marks.get(Mark.FAULT, default)


def _after_fault(badput: dict[str, float], incident: IncidentRecord | None, fault: float, end: float) -> None:
    """Split the time between the fault and the attempt's end into detect and stop."""
    if end <= fault:
        return
    detected = end if incident is None else min(max(incident.marks.get(Mark.DETECTED, fault), fault), end)
    badput["detect"] += detected - fault
    badput["stop"] += end - detected


def _recompute(attempt: AttemptRecord, before: int | None, trained_s: float) -> tuple[float, int]:
    """Seconds and steps that this attempt spent on steps up to `before`, which an earlier one had completed already."""
    if before is None or attempt.first_step is None:
        return 0.0, 0
    reached = attempt.reached if attempt.reached is not None else attempt.first_step
    steps = max(0, min(before, reached) - attempt.first_step + 1)
    done = reached - attempt.first_step + 1
    # The first step's own duration is part of the load phase: what is left is spread evenly over the others.
    share = max(0, steps - 1) / max(1, done - 1)
    return trained_s * min(1.0, share), steps


def accounts_of(jobs: Sequence[JobRecord], incidents: Sequence[IncidentRecord], now: float) -> list[Accounting]:
    """One account for each job, in the same order; incidents that were only observed ended no attempt."""
    by_job: dict[JobKey, list[IncidentRecord]] = {}
    for incident in incidents:
        if incident.outcome != "observed":
            for key in incident.jobs:
                by_job.setdefault(key, []).append(incident)
    return [account(job, by_job.get(job.key, ()), now) for job in jobs]


def totals(
    jobs: Sequence[JobRecord],
    incidents: Sequence[IncidentRecord],
    now: float,
    accounts: Sequence[Accounting] | None = None,
) -> Totals:
    """All figures over these jobs and incidents; incidents that were only observed do not count as failures.

    `accounts`: as `accounts_of` gives them, when they are there already.
    """
    real = [incident for incident in incidents if incident.outcome != "observed"]
    recovered = [incident for incident in real if incident.outcome == "recovered"]
    if accounts is None:
        accounts = accounts_of(jobs, incidents, now)
    wall = sum(a.wall_s for a in accounts)
    productive = sum(a.productive_s for a in accounts)
    startup = sum(a.badput["startup"] for a in accounts)
    failures = sum(1 for incident in real if incident.attempt_before is not None)
    return Totals(
        incidents=len(real),
        recovered=len(recovered),
        open=sum(1 for incident in real if not incident.closed_at),
        mttd=spread(span(i, Mark.FAULT, Mark.DETECTED) for i in real),
        mttr=spread(span(i, Mark.FAULT, Mark.FIRST_STEP) for i in recovered),
        mttp=spread(span(i, Mark.FAULT, Mark.PROVEN) for i in recovered),
        mtbf_s=sum(a.up_s for a in accounts) / failures if failures else None,
        ettr=productive / wall if wall > 0 else None,
        goodput_percent=100.0 * productive / (wall - startup) if wall > startup else None,
        steps_lost=sum(a.steps_lost for a in accounts),
        badput={name: sum(a.badput[name] for a in accounts) for name in CATEGORIES},
        by_cause=counted(i.diagnosis.cause if i.diagnosis else "unknown" for i in real),
        by_domain=counted(i.diagnosis.domain.value if i.diagnosis else "unknown" for i in real),
    )


def counted(names: Iterable[str]) -> dict[str, int]:
    """How often each occurs, the commonest first, equals by name."""
    counts: dict[str, int] = {}
    for name in names:
        counts[name] = counts.get(name, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))

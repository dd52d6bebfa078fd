"""Totals over incidents and jobs: MTTD, MTTR, MTBF, ETTR, goodput, badput. Pure; definitions are in `definitions`.

The accounting of a job gives every second of its wall time to exactly one category, so the parts add up to the whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf
from statistics import fmean, median

from msgspec import Struct

from holdfast.model.cluster import JobKey
from holdfast.model.records import AttemptRecord, IncidentRecord, JobRecord, Mark
from holdfast.report.timeline import span

PRODUCTIVE = "productive"
CATEGORIES = ("startup", "detect", "stop", "restart", "load", "recompute", "other")


class Spread(Struct, frozen=True):
    """A figure over several incidents, in seconds. `n` is how many had both marks."""

    n: int
    mean: float | None = None
    median: float | None = None
    p95: float | None = None
    maximum: float | None = None


class Accounting(Struct, frozen=True):
    """Where one job's wall time in a span went, in seconds. `productive_s` + the sum of `badput` = `wall_s`."""

    job: str
    wall_s: float
    productive_s: float
    badput: dict[str, float]
    up_s: float
    """Time in which an attempt's processes were running."""
    steps_kept: int
    """The best step of the attempts that began before the span's end."""
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


def account(
    job: JobRecord, incidents: Sequence[IncidentRecord], now: float, *, since: float = 0.0, until: float = inf
) -> Accounting:
    """Give every second of a span from the first attempt's start to the last one's end (or `now`) to one category.

    Args:
        job: its record.
        incidents: all that ended an attempt of it, also those outside the span.
        now: Unix seconds at which the records were read: a running attempt lasts until then.
        since: begin of the span, Unix seconds. What lies before it counts for the span before.
        until: its end. Steps computed again count in the span that holds their attempt's first step.
    """
    attempts = [attempt for attempt in job.attempts if attempt.started_at > 0]
    spent = dict.fromkeys((PRODUCTIVE, *CATEGORIES), 0.0)
    ended = {i.attempt_before: i for i in incidents if i.attempt_before is not None and job.key in i.jobs}
    up = wall = 0.0
    kept = lost = 0
    reached: int | None = None
    for index, (attempt, end) in enumerate(zip(attempts, ends(attempts, now), strict=True)):
        following = attempts[index + 1].started_at if index + 1 < len(attempts) else end
        last = attempt.reached
        steps, share = _again(attempt, last, reached)
        if attempt.started_at < until and max(end, following) > since:
            up += max(0.0, min(end, until) - max(attempt.started_at, since))
            pieces = _pieces(attempt, ended.get(attempt.number), end, following, share, is_first=index == 0)
            if attempt.started_at >= since and following <= until and end <= until:
                for category, begin, finish in pieces:
                    spent[category] += finish - begin
            else:
                for category, begin, finish in pieces:
                    spent[category] += max(0.0, min(finish, until) - max(begin, since))
        if steps and since <= first_step_at(attempt) < until:
            lost += steps
        if last is not None:
            kept = max(kept, last) if attempt.started_at < until else kept
            reached = last if reached is None or last > reached else reached
    if attempts:
        wall = max(0.0, min(attempts[-1].ended_at or now, until) - max(attempts[0].started_at, since))
    spent["other"] = max(0.0, wall - sum(spent.values()))
    return Accounting(str(job.key), wall, spent.pop(PRODUCTIVE), spent, up, kept, lost)


def ends(attempts: Sequence[AttemptRecord], now: float) -> list[float]:
    """When each attempt's processes ended: as told, else when the next began, else `now`; never before its start."""
    following = [*(attempt.started_at for attempt in attempts[1:]), now]
    return [max(a.ended_at or after, a.started_at) for a, after in zip(attempts, following, strict=False)]


def first_step_at(attempt: AttemptRecord) -> float:
    """When an attempt completed its first step; its start, when that is not known."""
    return attempt.first_step_at or attempt.started_at


def _pieces(
    attempt: AttemptRecord,
    incident: IncidentRecord | None,
    end: float,
    following: float,
    share: float,
    *,
    is_first: bool,
) -> tuple[tuple[str, float, float], ...]:
    """(category, begin, end) from an attempt's start to that of the next one; each begins where the one before it ends.

    Args:
        attempt: with a start.
        incident: that ended it.
        end: of its processes, Unix seconds.
        following: the next one's start; `end` for the last attempt.
        share: of its training that was done before.
        is_first: of the job.
    """
    started = attempt.started_at
    fault = detected = end
    if incident is not None:
        fault = min(max(incident.marks.get(Mark.FAULT, end), started), end)
        detected = min(max(incident.marks.get(Mark.DETECTED, fault), fault), end)
    first = min(max(attempt.first_step_at, started), fault) if attempt.first_step_at > 0 else fault
    # What is computed again comes first: an attempt begins at its checkpoint.
    again = first + (fault - first) * share
    return (
        ("startup" if is_first else "load", started, first),
        ("recompute", first, again),
        (PRODUCTIVE, again, fault),
        ("detect", fault, detected),
        ("stop", detected, end),
        ("restart", end, max(end, following)),
    )


def steps_again(attempt: AttemptRecord, before: int | None) -> int:
    """Steps that this attempt spent on steps up to `before`, which an earlier one had completed already."""
    return _again(attempt, attempt.reached, before)[0]


def _again(attempt: AttemptRecord, last: int | None, before: int | None) -> tuple[int, float]:
    """As `steps_again`, and their share (0 to 1) of the time from its first step on; `last`: what it reached."""
    if before is None or attempt.first_step is None:
        return 0, 0.0
    reached = attempt.first_step if last is None else last
    steps = max(0, min(before, reached) - attempt.first_step + 1)
    # The first step's own duration is part of the load phase: what is left is spread evenly over the others.
    return steps, min(1.0, max(0, steps - 1) / max(1, reached - attempt.first_step))


def opened_in(incidents: Iterable[IncidentRecord], since: float, until: float = inf) -> list[IncidentRecord]:
    """The incidents that a span counts, each one in exactly one of two neighbouring spans."""
    return [incident for incident in incidents if since <= incident.opened_at < until]


def accounts_of(
    jobs: Sequence[JobRecord],
    incidents: Sequence[IncidentRecord],
    now: float,
    *,
    since: float = 0.0,
    until: float = inf,
) -> list[Accounting]:
    """One account for each job, in the same order, as `account`; incidents that were only observed ended no attempt."""
    by_job: dict[JobKey, list[IncidentRecord]] = {}
    for incident in incidents:
        if incident.outcome != "observed":
            for key in incident.jobs:
                by_job.setdefault(key, []).append(incident)
    return [account(job, by_job.get(job.key, ()), now, since=since, until=until) for job in jobs]


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

"""Totals over incidents and jobs: MTTD, MTTR, MTBF, ETTR, goodput, badput. Pure; definitions are in `definitions`.

The accounting of a job gives every second of its wall time to exactly one category, so the parts add up to the whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Sized
from math import inf
from operator import sub
from statistics import fmean, median

from msgspec import Struct

from holdfast.model.cluster import JobKey
from holdfast.model.records import AttemptRecord, IncidentRecord, JobRecord, Mark
from holdfast.report.timeline import spans

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
    """Where one job's wall time in a span went, in seconds.

    `productive_s` + the sum of `badput` + `untold_s` = `wall_s`.
    """

    job: str
    wall_s: float
    productive_s: float
    badput: dict[str, float]
    up_s: float
    """Time in which an attempt's processes were running."""
    steps_lost: int
    untold_s: float = 0.0
    """Of a job that nobody tells steps of: time in which its processes ran; whether they trained is not known."""
    image_load_s: float = 0.0
    """Of the start-up: from the nodes to the launcher's first word, that is prolog and container image."""

    @property
    def is_told(self) -> bool:
        """Is it known when the job trained?"""
        return not self.untold_s

    @property
    def ettr(self) -> float | None:
        """Effective training time ratio; None where nothing tells of steps."""
        return efficiency([self]).ettr

    @property
    def goodput_percent(self) -> float | None:
        """As ETTR, without the initial start-up, in percent."""
        return efficiency([self]).goodput_percent


class Efficiency(Struct, frozen=True):
    """How well the time of jobs was used, of which it is known when they trained. Seconds."""

    productive_s: float
    wall_s: float
    startup_s: float

    @property
    def ettr(self) -> float | None:
        """Effective training time ratio."""
        return self.productive_s / self.wall_s if self.wall_s > 0 else None

    @property
    def goodput_percent(self) -> float | None:
        """As ETTR, without the initial start-up, in percent."""
        rest = self.wall_s - self.startup_s
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
    image_load_s: float = 0.0
    """Of `badput["startup"]`: prolog and container image of the jobs' first starts, where a launcher tells its own."""


def spread(values: Iterable[float | None]) -> Spread:
    """Count, mean, median, p95 (nearest rank) and maximum of the known values."""
    known = sorted(value for value in values if value is not None)
    if not known:
        return Spread(0)
    rank = max(0, -(-95 * len(known) // 100) - 1)
    return Spread(len(known), fmean(known), median(known), known[rank], known[-1])


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
    placed, begun = _placed(attempts)
    load_s = _within(begun, since, until) - _within(placed, since, until)
    key = job.key
    ended = {i.attempt_before: i for i in incidents if i.attempt_before is not None and key in i.jobs}
    rows: list[Cuts] = []
    lost = 0
    reached: int | None = None
    last_of_all = len(attempts) - 1
    for index, (attempt, end) in enumerate(zip(attempts, ends(attempts, now), strict=True)):
        last = attempt.reached
        steps, share = (0, 0.0) if reached is None else _again(attempt, last, reached)
        following = attempts[index + 1].started_at if index < last_of_all else end
        rows.append(_cuts(attempt, ended.get(attempt.number), end, following, share))
        if steps and since <= first_step_at(attempt) < until:
            lost += steps
        if last is not None:
            reached = last if reached is None or last > reached else reached
    spent, up = _spent(rows, since, until)
    wall = 0.0
    if attempts:
        wall = max(0.0, min(attempts[-1].ended_at or now, until) - max(placed, since))
        spent["startup"] += load_s
    spent["other"] = max(0.0, wall - sum(spent.values()))
    untold = 0.0
    if not tells_steps(job):
        # Until its fault each attempt was starting, loading or training: which of them nobody knows.
        untold = spent["startup"] + spent["load"]
        spent["startup"] = spent["load"] = 0.0
    return Accounting(str(key), wall, spent.pop(PRODUCTIVE), spent, up, lost, untold, load_s)


def _placed(attempts: Sequence[AttemptRecord]) -> tuple[float, float]:
    """When a job got its first nodes, as far as that is known, and when its first attempt was started on them."""
    if not attempts:
        return 0.0, 0.0
    return attempts[0].placed_at or attempts[0].started_at, attempts[0].started_at


def tells_steps(job: JobRecord) -> bool:
    """Has any attempt of it told of a step or a checkpoint?"""
    return any(attempt.first_step_at > 0 or attempt.reached is not None for attempt in job.attempts)


def efficiency(accounts: Iterable[Accounting]) -> Efficiency:
    """ETTR and goodput of jobs together; those of which nothing tells when they trained count in neither."""
    told = [account for account in accounts if account.is_told]
    startup = sum(account.badput["startup"] for account in told)
    return Efficiency(sum(account.productive_s for account in told), sum(account.wall_s for account in told), startup)


def mtbf_s(accounts: Iterable[Accounting], failures: Sized) -> float | None:
    """Mean time between failures in seconds, None without a failure. `failures`: as `of_known_attempts` gives them."""
    return sum(account.up_s for account in accounts) / len(failures) if failures else None


def ends(attempts: Sequence[AttemptRecord], now: float) -> list[float]:
    """When each attempt's processes ended: as told, else when the next began, else `now`; never before its start."""
    following = [*[attempt.started_at for attempt in attempts[1:]], now]
    told = [(a.started_at, a.ended_at or after) for a, after in zip(attempts, following, strict=False)]
    return [max(start, end) for start, end in told]


def first_step_at(attempt: AttemptRecord) -> float:
    """When an attempt completed its first step; its start, when that is not known."""
    return attempt.first_step_at or attempt.started_at


Cuts = tuple[float, ...]
"""Seven moments in order of time: an attempt's start, first step, first new step, fault, detected, end, and the next
attempt's start."""
_BETWEEN = ("recompute", PRODUCTIVE, "detect", "stop", "restart")
"""Where the time between two neighbouring cuts goes, from the first step on; before it: `startup` or `load`."""
_END = 5


def _cuts(attempt: AttemptRecord, incident: IncidentRecord | None, end: float, following: float, share: float) -> Cuts:
    """Where an attempt's time is cut.

    Args:
        attempt: with a start.
        incident: that ended it.
        end: of its processes, Unix seconds.
        following: the next one's start; `end` for the last attempt.
        share: of its training that was done before.
    """
    started = attempt.started_at
    fault = detected = end
    if incident is not None:
        marks = incident.marks
        fault = _within(marks.get(Mark.FAULT, end), started, end)
        detected = _within(marks.get(Mark.DETECTED, fault), fault, end)
    first = _within(attempt.first_step_at, started, fault) if attempt.first_step_at > 0 else fault
    # What is computed again comes first: an attempt begins at its checkpoint.
    again = _within(first + (fault - first) * share, first, fault) if share else first
    return started, first, again, fault, detected, end, max(end, following)


def _within(at: float, low: float, high: float) -> float:
    """Written out, since a year of a fleet asks a million times: `min` and `max` take three times as long."""
    return low if at < low else high if at > high else at  # noqa: FURB136 - see above


def _spent(rows: Sequence[Cuts], since: float, until: float) -> tuple[dict[str, float], float]:
    """(seconds of the span by category, seconds in which processes ran)."""
    spent = dict.fromkeys((PRODUCTIVE, *CATEGORIES), 0.0)
    if not rows:
        return spent, 0.0
    if min(row[0] for row in rows) < since or max(row[-1] for row in rows) > until:
        rows = [tuple(_within(at, since, until) for at in row) for row in rows]
    columns = list(zip(*rows, strict=True))
    spent["startup"] = columns[1][0] - columns[0][0]
    spent["load"] = sum(map(sub, columns[1][1:], columns[0][1:]))
    for place, category in enumerate(_BETWEEN, 1):
        spent[category] = sum(map(sub, columns[place + 1], columns[place]))
    return spent, sum(map(sub, columns[_END], columns[0]))


def steps_again(attempt: AttemptRecord, before: int | None) -> int:
    """Steps that this attempt spent on steps up to `before`, which an earlier one had completed already."""
    return _again(attempt, attempt.reached, before)[0]


def _again(attempt: AttemptRecord, last: int | None, before: int | None) -> tuple[int, float]:
    """As `steps_again`, and their share (0 to 1) of the time from its first step on; `last`: what it reached."""
    if before is None or attempt.first_step is None:
        return 0, 0.0
    first = attempt.first_step
    reached = first if last is None else last
    steps = min(reached, before) - first + 1
    if steps <= 1:
        return (1, 0.0) if steps == 1 else (0, 0.0)
    # The first step's own duration is part of the load phase: what is left is spread evenly over the others.
    return steps, (steps - 1) / (reached - first)


ORDERED = "operator."
"""How causes begin that are a person's order, not a fault: `operator.give_up`, `operator.requeue`."""


def was_ordered(incident: IncidentRecord) -> bool:
    """Is its cause a person's order? Nothing had failed then."""
    return cause_of(incident).startswith(ORDERED)


def cause_of(incident: IncidentRecord) -> str:
    """Its diagnosis' cause; `unknown` before there is one."""
    return incident.diagnosis.cause if incident.diagnosis is not None else "unknown"


def domain_of(incident: IncidentRecord) -> str:
    """Its diagnosis' domain; `unknown` before there is one."""
    return incident.diagnosis.domain.value if incident.diagnosis is not None else "unknown"


def is_failure(incident: IncidentRecord) -> bool:
    """Did a fault end an attempt of a job? What was left alone and went on, or a person ordered, is no failure."""
    ended = incident.outcome != "observed" or (is_counted(incident) and Mark.STOPPED in incident.marks)
    return incident.attempt_before is not None and ended and not was_ordered(incident)


def is_counted(incident: IncidentRecord) -> bool:
    """Return whether something was done about the fault, or would have been if policy did not say observe."""
    return incident.outcome != "observed" or bool(incident.would)


def of_known_attempts(incidents: Iterable[IncidentRecord], jobs: Iterable[JobRecord]) -> list[IncidentRecord]:
    """Failures whose attempts are known: of others no time that the job was up is, so that no MTBF counts them."""
    first = {job.key: job.attempts[0].number for job in jobs if job.attempts and job.attempts[0].number > 0}
    failures = [incident for incident in incidents if is_failure(incident)]
    if not first:
        return failures
    return [i for i in failures if all((i.attempt_before or 0) >= first.get(key, 0) for key in i.jobs)]


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
    """All figures over these jobs and incidents.

    Incidents of which nothing came and nothing would have (`is_counted`) count nowhere. What mode observe kept from
    being done is an incident without a recovery. Those that a person ordered are incidents, but no failures: nothing
    had to be detected, nothing to recover.

    `accounts`: as `accounts_of` gives them, when they are there already.
    """
    real = [incident for incident in incidents if is_counted(incident)]
    faults = [incident for incident in real if not was_ordered(incident)]
    recovered = [incident for incident in faults if incident.outcome == "recovered"]
    if accounts is None:
        accounts = accounts_of(jobs, incidents, now)
    used = efficiency(accounts)
    return Totals(
        incidents=len(real),
        recovered=sum(1 for incident in real if incident.outcome == "recovered"),
        open=sum(1 for incident in real if not incident.closed_at),
        mttd=spread(spans(faults, Mark.FAULT, Mark.DETECTED)),
        mttr=spread(spans(recovered, Mark.FAULT, Mark.FIRST_STEP)),
        mttp=spread(spans(recovered, Mark.FAULT, Mark.PROVEN)),
        mtbf_s=mtbf_s(accounts, of_known_attempts(faults, jobs)),
        ettr=used.ettr,
        goodput_percent=used.goodput_percent,
        steps_lost=sum(a.steps_lost for a in accounts),
        badput={name: sum(a.badput[name] for a in accounts) for name in CATEGORIES},
        by_cause=counted(map(cause_of, real)),
        by_domain=counted(map(domain_of, real)),
        image_load_s=sum(a.image_load_s for a in accounts),
    )


def counted(names: Iterable[str]) -> dict[str, int]:
    """How often each occurs, the commonest first, equals by name."""
    return {str(name): n for name, n in sorted(Counter(names).items(), key=lambda item: (-item[1], item[0]))}


def nodes_by_attempt(job: JobRecord) -> dict[int, tuple[str, ...]]:
    """The nodes that each attempt held, by its number."""
    return {attempt.number: attempt.nodes for attempt in job.attempts}


def came_in(incident: IncidentRecord, held: Iterable[Mapping[int, Sequence[str]]]) -> list[str]:
    """Nodes that took another's place: the attempt after the incident holds them, the one before it did not.

    Args:
        incident: nodes that it names itself are left out.
        held: `nodes_by_attempt` of each job that it stopped.
    """
    found: list[str] = []
    for nodes in held:
        before = () if incident.attempt_before is None else nodes.get(incident.attempt_before, ())
        after = () if incident.attempt_after is None else nodes.get(incident.attempt_after, ())
        found += [name for name in after if name not in before and name not in incident.nodes]
    return list(dict.fromkeys(found))

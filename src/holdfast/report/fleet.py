"""A fleet over a span of time: failures by cause, how many came back by themselves, what was lost, and what it cost.

Called by every form of report. Pure: records in, figures out; definitions stand in `definitions`. GPU-hours are those
of the nodes that a job held; where a node's number of GPUs is not known it counts as one, and `gpus_known` says so.

A failure rate is over node-days, the time for which nodes were observed. One over the span that somebody asks for would
depend on the question: an hour of history would look calmer over 30 days than over one.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from math import ceil, inf, sqrt
from statistics import fmean, linear_regression

from msgspec import Struct

from holdfast.model.events import OperatorCommand
from holdfast.model.records import IncidentRecord, JobRecord, Mark, NodeRecord
from holdfast.report.figures import (
    Accounting,
    Spread,
    cause_of,
    counted,
    domain_of,
    efficiency,
    ends,
    is_failure,
    mtbf_s,
    of_known_attempts,
    spread,
)
from holdfast.report.timeline import spans
from holdfast.report.words import ENGLISH, Words

WEEK_S = 7 * 86400.0
DAY_S = 86400.0
Stay = tuple[float, float]
"""From when a node was observed, and until when; infinite: it is still there."""


def node_days(found: Sequence[Stay], since: float, until: float) -> float:
    """Days for which nodes were observed between two moments, summed over the nodes."""
    return sum([max(0.0, min(until, end) - max(since, begin)) for begin, end in found]) / DAY_S


def per_1000_node_days(failures: int, days: float) -> float | None:
    """Failures per 1000 node-days; None when no node was observed."""
    return 1000.0 * failures / days if days > 0 else None


class Economics(Struct, frozen=True, kw_only=True):
    """What things cost, as the reader says."""

    gpu_hour: float = 0.0
    """Price of a GPU-hour; 0: not said, then only GPU-hours are shown."""
    person_minutes: float = 30.0
    """Time until a person on call has a stopped job training again: what Holdfast's recoveries are compared with."""
    spare_nodes: int = 0
    """Nodes that are kept free as spares."""
    holdfast_hour: float = 0.0
    """Price of an hour of what Holdfast itself runs on (controllers, database), in the money of `gpu_hour`."""


class Cost(Struct, frozen=True):
    """GPU-hours, and money where a price is given (0 otherwise)."""

    lost: float
    """GPU-hours in which jobs held GPUs and did not train for good."""
    saved: float
    """GPU-hours that a person's slower restart would have lost on top, over recoveries that needed nobody and whose
    first step was told."""
    spares: float
    """GPU-hours of the spares."""
    lost_money: float
    saved_money: float
    spares_money: float
    arithmetic: str
    holdfast_money: float = 0.0
    """What running Holdfast itself cost over the span."""

    @property
    def net_money(self) -> float:
        """What was saved, less spares and Holdfast."""
        return self.saved_money - self.spares_money - self.holdfast_money


class Week(Struct, frozen=True):
    """One week of the span."""

    begins_at: float
    failures: int
    node_days: float
    """Time for which nodes were observed in it, as `observed` counts it."""
    mttd_s: float | None
    mttr_s: float | None
    up_s: float
    """Time within the week in which attempts of any job were running."""

    @property
    def mtbf_s(self) -> float | None:
        """Mean time between failures, None for a week without a failure."""
        return self.up_s / self.failures if self.failures else None

    @property
    def per_1000_node_days(self) -> float | None:
        """Failure rate, None for a week in which no node was observed."""
        return per_1000_node_days(self.failures, self.node_days)


class Fleet(Struct, frozen=True):
    """The figures of a span. Times are seconds unless named otherwise."""

    since: float
    until: float
    nodes: int
    """Those that were observed in the span."""
    node_days: float
    """For how long they were observed in it; what a rate is divided by."""
    gpus: int
    gpus_known: bool
    jobs: int
    failures: int
    """Incidents whose fault ended an attempt of a job."""
    per_1000_node_days: float | None
    mtbf_s: float | None
    mttd: Spread
    mttr: Spread
    by_cause: dict[str, int]
    by_domain: dict[str, int]
    came_back: int
    by_themselves: int
    resubmitted: int
    given_up: int
    """Failures after which the job trained again; without and with a person; and those without an end in training."""
    false_alarms: int
    """Incidents whose node was fenced and came back with no repair, though it had not been lost."""
    fenced: int
    lemons: tuple[tuple[str, int], ...]
    """Nodes with more than one offence, most first."""
    ettr: float | None
    goodput_percent: float | None
    badput_gpu_h: dict[str, float]
    weeks: tuple[Week, ...]
    by_hour: tuple[int, ...]
    """Failures by hour of the day in the report's zone, 24 numbers."""
    by_day: tuple[int, ...]
    """Failures by day of the week in the report's zone, 7 numbers, Monday first."""
    trend_percent_per_week: float | None
    """Slope of the weekly failure rate against its mean; None under three weeks."""
    cost: Cost

    @property
    def automatic_percent(self) -> float | None:
        """Share of the failures after which the job trained again with nobody's help."""
        return 100.0 * self.by_themselves / self.failures if self.failures else None


class Groups(Struct, frozen=True):
    """The incidents that the fleet's counts count."""

    failures: list[IncidentRecord]
    back: list[IncidentRecord]
    """Failures after which the job completed a step again, or, where nothing tells of steps, was proven to run."""
    alone: list[IncidentRecord]
    """Of these, with nobody's help."""
    given_up: list[IncidentRecord]
    fenced: list[IncidentRecord]
    false: list[IncidentRecord]
    """Fenced, and back without any repair."""


def groups(incidents: Sequence[IncidentRecord], commands: Sequence[OperatorCommand]) -> Groups:
    """Drills and incidents that were only observed are in none of them."""
    failures = failures_of(incidents)
    back = [i for i in failures if Mark.FIRST_STEP in i.marks or Mark.PROVEN in i.marks]
    said = sorted(commands, key=_at)
    fenced = [incident for incident in incidents if Mark.ISOLATED in incident.marks and not incident.drill]
    return Groups(
        failures=failures,
        back=back,
        alone=[incident for incident in back if not helpers(incident, said)] if said else back,
        given_up=[incident for incident in failures if incident.outcome == "given_up"],
        fenced=fenced,
        false=[incident for incident in fenced if _was_false(incident)],
    )


def failures_of(incidents: Sequence[IncidentRecord]) -> list[IncidentRecord]:
    """Those whose fault ended an attempt of a job, and were no drill."""
    return [i for i in incidents if not i.drill and is_failure(i)]


class Span(Struct, frozen=True, kw_only=True):
    """What a fleet's figures are made of."""

    jobs: Sequence[JobRecord]
    accounts: Sequence[Accounting]
    """Where each job's wall time went, in the order of `jobs`."""
    nodes: Sequence[NodeRecord]
    """Of the cluster, those that left it among them."""
    stays: Sequence[Stay]
    """When each of `nodes` was observed, in their order."""
    incidents: Sequence[IncidentRecord]
    """That opened in the span."""
    commands: Sequence[OperatorCommand]
    """What people ordered, to tell which recoveries needed nobody."""
    since: float
    until: float
    """Begin and end, Unix seconds."""
    economics: Economics = Economics()
    words: Words = ENGLISH
    """For the zone that hours of the day are counted in."""

    @property
    def days(self) -> float:
        """How long it is."""
        return max(0.0, self.until - self.since) / 86400.0

    @property
    def gpus(self) -> dict[str, int]:
        """GPUs of each node by its name; 0: not known."""
        return {node.name: node.view.gpus for node in self.nodes}


def fleet(span: Span) -> Fleet:
    """All figures of a span; drills and incidents that were only observed are no failures."""
    jobs, accounts, stays, since, until = span.jobs, span.accounts, span.stays, span.since, span.until
    here = zip(span.nodes, stays, strict=True)
    there = [node.view.gpus for node, stay in here if stay[0] <= until and stay[1] >= since]
    found = groups(span.incidents, span.commands)
    failures, back, alone = found.failures, found.back, found.alone
    observed_days = node_days(stays, since, until)
    detect_s = spans(failures, Mark.FAULT, Mark.DETECTED)
    weeks = _weeks(failures, detect_s, jobs, since, until, stays)
    badput, wall_gpu_s = _badput(jobs, accounts, span.gpus)
    used = efficiency(accounts)
    by_hour, by_day = _by_hour(failures, span.words)
    return Fleet(
        since=since,
        until=until,
        nodes=len(there),
        node_days=observed_days,
        gpus=sum(max(1, count) for count in there),
        gpus_known=bool(there) and all(there),
        jobs=len(jobs),
        failures=len(failures),
        per_1000_node_days=per_1000_node_days(len(failures), observed_days),
        mtbf_s=mtbf_s(accounts, of_known_attempts(failures, jobs)),
        mttd=spread(detect_s),
        mttr=spread(spans(back, Mark.FAULT, Mark.FIRST_STEP)),
        by_cause=counted(map(cause_of, failures)),
        by_domain=counted(map(domain_of, failures)),
        came_back=len(back),
        by_themselves=len(alone),
        resubmitted=len(back) - len(alone),
        given_up=len(found.given_up),
        false_alarms=len(found.false),
        fenced=len(found.fenced),
        lemons=_lemons(span.nodes),
        ettr=used.ettr,
        goodput_percent=used.goodput_percent,
        badput_gpu_h={name: value / 3600.0 for name, value in badput.items()},
        weeks=weeks,
        by_hour=by_hour,
        by_day=by_day,
        trend_percent_per_week=_trend(weeks, stays, until),
        cost=_cost(span, alone, badput, wall_gpu_s),
    )


def helpers(incident: IncidentRecord, commands: Sequence[OperatorCommand]) -> list[OperatorCommand]:
    """What people ordered about its jobs, nodes or orders while it was open. `commands`: in order of time."""
    begin = bisect_left(commands, incident.opened_at, key=_at)
    end = bisect_right(commands, incident.closed_at or inf, key=_at)
    return [command for command in commands[begin:end] if _concerns(command, incident)]


def _at(command: OperatorCommand) -> float:
    return command.at


def _concerns(command: OperatorCommand, incident: IncidentRecord) -> bool:
    return bool(
        command.job in incident.jobs
        or (command.node and command.node in incident.nodes)
        or (command.order and incident.id in command.order)
    )


REPAIRS = frozenset({"reset_gpu", "reboot", "replace", "retire"})


def _was_false(incident: IncidentRecord) -> bool:
    """A node of it came back without any repair, though it had not been lost."""
    repaired = any(remedy.value in REPAIRS for remedy in incident.remedies)
    return Mark.NODE_RETURNED in incident.marks and not repaired and not cause_of(incident).startswith("node.")


def _lemons(nodes: Sequence[NodeRecord]) -> tuple[tuple[str, int], ...]:
    counted = [(node.name, len(node.offences)) for node in nodes if len(node.offences) > 1]
    return tuple(sorted(counted, key=lambda item: (-item[1], item[0])))


def job_gpus(job: JobRecord, gpus: Mapping[str, int]) -> int:
    """GPUs of the nodes that the job's newest attempt holds."""
    names = next((a.nodes for a in reversed(job.attempts) if a.nodes), job.view.nodes)
    return sum(max(1, gpus.get(name, 0)) for name in names) or max(1, job.view.want_nodes)


def _badput(
    jobs: Sequence[JobRecord], accounts: Sequence[Accounting], gpus: Mapping[str, int]
) -> tuple[dict[str, float], float]:
    """(GPU-seconds lost by category, GPU-seconds in all)."""
    lost: dict[str, float] = {}
    wall = 0.0
    for job, account in zip(jobs, accounts, strict=True):
        count = job_gpus(job, gpus)
        wall += account.wall_s * count
        for name, value in account.badput.items():
            lost[name] = lost.get(name, 0.0) + value * count
    return lost, wall


def _weeks(
    failures: Sequence[IncidentRecord],
    detect_s: Sequence[float | None],
    jobs: Sequence[JobRecord],
    since: float,
    until: float,
    stays: Sequence[Stay],
) -> tuple[Week, ...]:
    """`detect_s`: seconds to each failure's detection."""
    if since <= 0 or until <= since:
        return ()
    up = _up_by_week(jobs, since, until)
    inside: list[list[tuple[float | None, float | None]]] = [[] for _ in up]
    for incident, found_s, again_s in zip(
        failures, detect_s, spans(failures, Mark.FAULT, Mark.FIRST_STEP), strict=True
    ):
        if since <= incident.opened_at < until:
            inside[int((incident.opened_at - since) // WEEK_S)].append((found_s, again_s))
    found = []
    for number, up_s in enumerate(up):
        begin = since + number * WEEK_S
        end = min(begin + WEEK_S, until)
        seen = inside[number]
        detect, again = (_mean([pair[side] for pair in seen]) for side in (0, 1))
        found.append(Week(begin, len(seen), node_days(stays, begin, end), detect, again, up_s))
    return tuple(found)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _up_by_week(jobs: Sequence[JobRecord], since: float, until: float) -> list[float]:
    """Seconds in which attempts ran, for each week of the span; their sum is that of the accounts' `up_s`."""
    up = [0.0] * ceil((until - since) / WEEK_S)
    for job in jobs:
        attempts = [attempt for attempt in job.attempts if attempt.started_at > 0]
        for attempt, ended in zip(attempts, ends(attempts, until), strict=True):
            begin = max(since, attempt.started_at)
            end = min(until, ended)
            if begin < end:
                number = int((begin - since) // WEEK_S)
                # Cut where weeks end; most attempts end in the week in which they began.
                while (week_ends := since + (number + 1) * WEEK_S) < end:
                    up[number] += week_ends - begin
                    begin, number = week_ends, number + 1
                up[number] += end - begin
    return up


def _by_hour(failures: Sequence[IncidentRecord], words: Words) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Failures by hour of the day, and by day of the week; 1 January 1970 was a Thursday."""
    hours, days = [0] * 24, [0] * 7
    ahead: dict[int, float] = {}
    for incident in failures:
        hour = int(incident.opened_at // 3600)
        if hour not in ahead:
            ahead[hour] = words.offset_s(incident.opened_at)
        local = int((incident.opened_at + ahead[hour]) // 3600)
        hours[local % 24] += 1
        days[(local // 24 + 3) % 7] += 1
    return tuple(hours), tuple(days)


def _trend(weeks: Sequence[Week], stays: Sequence[Stay], until: float) -> float | None:
    """Least-squares slope of the weekly rate, in percent of the mean rate; only weeks that were observed as a whole."""
    first = min((begin for begin, _ in stays), default=until)
    whole = [week for week in weeks if week.begins_at >= first and week.begins_at + WEEK_S <= until]
    rates = [rate for week in whole if (rate := week.per_1000_node_days) is not None]
    if len(rates) < 3:
        return None
    mean = sum(rates) / len(rates)
    if mean == 0:
        return 0.0
    return 100.0 * linear_regression(range(len(rates)), rates).slope / mean


def is_beyond_chance(before: int, after: int) -> bool:
    """Do two counts over spans of equal length differ by more than chance (Poisson, 95 %)?

    The difference of two Poisson counts with the same mean has the variance of their sum.
    """
    return abs(after - before) > 1.96 * sqrt(max(1, before + after))


def _cost(span: Span, alone: Sequence[IncidentRecord], badput: Mapping[str, float], wall_gpu_s: float) -> Cost:
    economics, days, gpus = span.economics, span.days, span.gpus
    by_key = {job.key: job_gpus(job, gpus) for job in span.jobs}
    person_s = economics.person_minutes * 60.0
    saved_s = 0.0
    timed = 0
    for incident, took_s in zip(alone, spans(alone, Mark.FAULT, Mark.FIRST_STEP), strict=True):
        timed += took_s is not None
        if took_s is not None and took_s < person_s:
            saved_s += (person_s - took_s) * sum([by_key.get(key, 0) for key in incident.jobs])
    per_node = max(gpus.values(), default=0) or 1
    lost_h = sum(badput.values()) / 3600.0
    spares_h = economics.spare_nodes * per_node * days * 24.0
    price = economics.gpu_hour
    share = 100.0 * lost_h * 3600.0 / wall_gpu_s if wall_gpu_s > 0 else 0.0
    arithmetic = (
        f"lost: {lost_h:.1f} of {wall_gpu_s / 3600.0:.1f} GPU-hours ({share:.1f} %); saved: {timed} recoveries"
        f" that needed nobody, each against {economics.person_minutes:g} min of a person, x the job's GPUs ="
        f" {saved_s / 3600.0:.1f} GPU-hours; spares: {economics.spare_nodes} x {per_node} GPUs x {days:.1f} days ="
        f" {spares_h:.1f} GPU-hours"
    )
    running = economics.holdfast_hour * days * 24.0
    if running:
        arithmetic += f"; Holdfast: {economics.holdfast_hour:g} an hour x {days * 24.0:.1f} h = {running:.2f}"
    saved_h = saved_s / 3600.0
    return Cost(
        lost_h, saved_h, spares_h, lost_h * price, saved_h * price, spares_h * price, arithmetic, holdfast_money=running
    )

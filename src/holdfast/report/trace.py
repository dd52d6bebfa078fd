"""Where a number comes from: each figure as its parts, each part as the marks it was cut from, each mark as its event.

Called by `holdfast report --trace FIGURE`. Pure: records and events in, a `Trace` out. A mark's event is the one that
happened, or reached the controller, at the mark's time; a mark without one (its event was dropped by retention, or a
launcher saw it before it was forwarded) keeps sequence number 0.

`Told` holds what was said, to be found by time or by attempt. `cli/report_trace` fills it while it reads, so that a
year's events are never held whole.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from sys import intern

from msgspec import Struct, structs

from holdfast.model import events as e
from holdfast.model.records import AttemptRecord, IncidentRecord, JobRecord, Mark
from holdfast.report.definitions import definition
from holdfast.report.figures import (
    efficiency,
    ends,
    first_step_at,
    is_counted,
    of_known_attempts,
    steps_again,
    was_ordered,
)
from holdfast.report.fleet import groups, helpers, job_gpus
from holdfast.report.gather import ReportData
from holdfast.report.objectives import down_s
from holdfast.report.tables import short
from holdfast.report.timeline import span

SPANS: Mapping[str, tuple[Mark, Mark]] = {
    "MTTD": (Mark.FAULT, Mark.DETECTED),
    "MTTR": (Mark.FAULT, Mark.FIRST_STEP),
    "MTTP": (Mark.FAULT, Mark.PROVEN),
}
OF_JOBS = ("MTBF", "ETTR", "goodput", "lost steps")
OF_ALL = ("incidents", "recovered")
"""Counts of the totals, drills among them."""
COUNTS = (
    *OF_ALL, "failures", "trained again", "automatic", "resubmitted", "given up", "fenced", "false alarms",
)  # fmt: skip
"""Figures that count incidents; those of the fleet count no drill."""
GPU_HOURS = "GPU hours lost"
SAVED = "GPU hours saved"
RATE = "failure rate"
AVAILABILITY = "availability"
FIGURES = (*SPANS, *OF_JOBS, *COUNTS, RATE, AVAILABILITY, GPU_HOURS, SAVED)


class Source(Struct, frozen=True):
    """One point that a part was cut from, and the event that set it (`seq` 0: not in this journal)."""

    name: str
    at: float
    step: int | None = None
    seq: int = 0
    event: str = ""
    source: str = ""


class Part(Struct, frozen=True):
    """What one incident or attempt contributes."""

    of: str
    value: float
    points: tuple[Source, ...]


class Trace(Struct, frozen=True):
    """A figure and all that it is made of."""

    figure: str
    value: float | None
    unit: str
    formula: str
    arithmetic: str
    parts: tuple[Part, ...]


def wanted(data: ReportData, figure: str) -> tuple[list[IncidentRecord], list[JobRecord]]:
    """Whose events `trace` needs for this figure, in the order of its parts."""
    if figure in SPANS:
        return [i for i in data.counted if _span_of(i, figure) is not None], []
    if figure in {*COUNTS, RATE, SAVED}:
        return _counted(data, figure), []
    if figure == AVAILABILITY:
        return [incident for incident, _ in _down(data)], []
    if figure == "lost steps":
        return [], [job for job, found in zip(data.jobs, data.accounts, strict=True) if found.steps_lost]
    return [], [job for job in data.jobs if any(attempt.started_at > 0 for attempt in job.attempts)]


def trace(data: ReportData, figure: str, told: Told) -> Trace:
    """Take a figure of the report apart.

    Raises:
        KeyError: a figure that is not in `FIGURES`.
    """
    if figure in SPANS:
        return _of_spans(data, figure, told)
    if figure in COUNTS:
        return _count(data, figure, told)
    makers = {
        "MTBF": _mtbf, "ETTR": _ratio, "goodput": _ratio, "lost steps": _lost,
        GPU_HOURS: _gpu_hours, SAVED: _saved, RATE: _rate, AVAILABILITY: _availability,
    }  # fmt: skip
    return makers[figure](data, figure, told)


def _span_of(incident: IncidentRecord, figure: str) -> float | None:
    if not is_counted(incident) or was_ordered(incident) or (figure != "MTTD" and incident.outcome != "recovered"):
        return None
    return span(incident, *SPANS[figure])


def _of_spans(data: ReportData, figure: str, told: Told) -> Trace:
    parts = []
    for incident in data.counted:
        value = _span_of(incident, figure)
        if value is None:
            continue
        points = tuple(_mark(incident, mark, told) for mark in SPANS[figure])
        parts.append(Part(incident.id, value, points))
    mean = {"MTTD": data.totals.mttd, "MTTR": data.totals.mttr, "MTTP": data.totals.mttp}[figure].mean
    return Trace(
        figure, mean, "s", definition(figure).formula, _mean_text([p.value for p in parts], mean), tuple(parts)
    )


def _counted(data: ReportData, figure: str) -> list[IncidentRecord]:
    """The incidents that a figure counts, or is made of."""
    if figure in OF_ALL:
        real = [i for i in data.counted if is_counted(i)]
        return [i for i in real if i.outcome == "recovered"] if figure == "recovered" else real
    found = groups(data.counted, data.commands)
    alone = {incident.id for incident in found.alone}
    return {
        "failures": found.failures,
        RATE: found.failures,
        "trained again": found.back,
        "automatic": found.alone,
        SAVED: found.alone,
        "resubmitted": [i for i in found.back if i.id not in alone],
        "given up": found.given_up,
        "fenced": found.fenced,
        "false alarms": found.false,
    }[figure]


def _count(data: ReportData, figure: str, told: Told) -> Trace:
    """A part of 1 for each incident, with all its marks."""
    parts = []
    commands = sorted(data.commands, key=lambda command: command.at)
    for incident in _counted(data, figure):
        points = [_mark(incident, mark, told) for mark in incident.marks]
        if figure == "resubmitted":
            helped = helpers(incident, commands)
            points += [_source(f"{c.command.value} by {c.who}", c.at, said_of(c)) for c in helped]
        parts.append(Part(incident.id, 1.0, tuple(sorted(points, key=lambda point: point.at))))
    whole, beside = {
        "recovered": (data.totals.incidents, "incidents"), "false alarms": (data.fleet.fenced, "nodes fenced"),
    }.get(figure, (data.fleet.failures, "failures"))  # fmt: skip
    text = f"{len(parts)} of {whole} {beside}"
    if figure in {"incidents", "failures", "fenced"}:
        text = f"{len(parts)} incidents"
    return Trace(figure, float(len(parts)), "incidents", FORMULAS[figure], text, tuple(parts))


FORMULAS: Mapping[str, str] = {
    "failures": "incidents that ended an attempt of a job; drills and incidents that were only observed are left out",
    "automatic": "failures after which the job trained again, while no person ordered anything about its jobs, nodes"
    " or orders",
    "given up": "failures whose outcome is given_up",
    "false alarms": "fenced nodes that came back without reset, reboot or replacement, though they had not been lost",
    GPU_HOURS: "seconds of every job that were not productive, times the GPUs that it holds, over 3600",
    "incidents": "incidents that opened in the span, drills among them; those that were only observed are left out",
    "recovered": "of these, those whose outcome is recovered",
    "trained again": "failures after which the job completed a step again, or was proven to run where nothing tells"
    " of steps",
    "resubmitted": "failures after which the job trained again, and a person had ordered something about its jobs,"
    " nodes or orders while the incident was open",
    "fenced": "incidents for which a node was fenced; drills are left out",
    AVAILABILITY: "1 - (seconds from each fault to the first new step, times the jobs it stopped) / job time, in"
    " percent",
    SAVED: "over failures that needed nobody: (minutes of a person on call - seconds from the fault to the first new"
    " step) x GPUs of its jobs, over 3600",
}
"""Of the figures that `definitions` does not hold, since only a fleet has them."""


def _gpu_hours(data: ReportData, figure: str, told: Told) -> Trace:
    """A part for each job: its lost seconds times its GPUs, with the attempts that they lie between."""
    parts = [
        Part(str(job.key), sum(found.badput.values()) * job_gpus(job, data.gpus) / 3600.0, _of_attempts(job, told))
        for job, found in zip(data.jobs, data.accounts, strict=True)
    ]
    return _hours(figure, data.fleet.cost.lost, parts)


def _hours(figure: str, value: float, parts: Sequence[Part]) -> Trace:
    text = f"{_sum_text([part.value for part in parts], 4)} = {value:.4f} GPU-hours"
    return Trace(figure, value, "GPU-hours", FORMULAS[figure], text, tuple(parts))


def _saved(data: ReportData, figure: str, told: Told) -> Trace:
    """A part for each failure that needed nobody: what a person would have taken longer, times its jobs' GPUs."""
    person_s = data.economics.person_minutes * 60.0
    parts = []
    for incident in _counted(data, figure):
        held = sum(job_gpus(data.job_of[key], data.gpus) for key in incident.jobs if key in data.job_of)
        took_s = span(incident, Mark.FAULT, Mark.FIRST_STEP)
        if took_s is not None:
            parts.append(Part(incident.id, max(0.0, person_s - took_s) * held / 3600.0, _ends_of(incident, told)))
    return _hours(figure, data.fleet.cost.saved, parts)


def _rate(data: ReportData, figure: str, told: Told) -> Trace:
    """A part of 1 for each failure."""
    parts = tuple(Part(i.id, 1.0, _ends_of(i, told)) for i in _counted(data, figure))
    value, days = data.fleet.per_1000_node_days, data.fleet.node_days
    rate = "not defined" if value is None else short(value)
    text = f"1000 x {len(parts)} failures / {days:.3f} node-days observed = {rate}"
    return Trace(figure, value, "per 1000 node-days", definition("failure rate").formula, text, parts)


def _down(data: ReportData) -> list[tuple[IncidentRecord, float]]:
    """(incident, seconds of the span in which its jobs could not train)."""
    lived = [i for i in data.history or data.incidents if i.outcome != "observed" and not was_ordered(i)]
    return [(i, seconds) for i in lived if (seconds := down_s(i, data.since, data.until)) > 0.0]


def _availability(data: ReportData, figure: str, told: Told) -> Trace:
    """A part for each incident, the seconds that its jobs stood still."""
    parts = tuple(Part(incident.id, seconds, _ends_of(incident, told)) for incident, seconds in _down(data))
    wall, down = sum(found.wall_s for found in data.accounts), sum(part.value for part in parts)
    value = 100.0 * max(0.0, 1.0 - down / wall) if wall > 0 else None
    shown = "not defined" if value is None else f"{value:.3f} %"
    text = f"1 - {down:.3f} s down / {wall:.3f} s of job time = {shown}"
    return Trace(figure, value, "%", FORMULAS[figure], text, parts)


def _ends_of(incident: IncidentRecord, told: Told) -> tuple[Source, ...]:
    """From the fault to the first new step: the marks that are known, with their events."""
    return tuple(_mark(incident, mark, told) for mark in (Mark.FAULT, Mark.FIRST_STEP) if mark in incident.marks)


def _sum_text(values: Sequence[float], digits: int) -> str:
    return (" + ".join(f"{value:.{digits}f}" for value in values[:8]) + (" + ..." if len(values) > 8 else "")) or "0"


def _mean_text(values: Sequence[float], mean: float | None) -> str:
    if not values or mean is None:
        return "no incident has both marks"
    return f"({_sum_text(values, 3)}) / {len(values)} = {mean:.3f} s"


def _mark(incident: IncidentRecord, mark: Mark, told: Told) -> Source:
    """A mark with its event: seen or received at its time; a fault is the finding's or the drill's own time."""
    # A fault that a drill injected, and steps, are said of the job and may lie outside the incident's own events.
    names = [incident.id, *(str(key) for key in incident.jobs)]
    at = incident.marks[mark]
    if mark is not Mark.FAULT:
        return _source(mark.value, at, told.heard(names, at))
    # A wait's fault lies where it began: whoever told of it did so at its end.
    return _source(mark.value, at, told.fault(names, incident.said_at or at))


def _source(name: str, at: float, said: Said | None, step: int | None = None) -> Source:
    return Source(name, at, step) if said is None else Source(name, at, step, said.seq, said.event, said.source)


def _of_attempt(attempt: AttemptRecord, job: JobRecord, told: Told) -> dict[str, Source]:
    """Start, first step and end of an attempt, as far as they are known, with their events."""
    name, number = str(job.key), attempt.number
    ended = told.of_attempt(name, e.AttemptEnded, number)
    if ended is None and attempt.ended_at:
        # Until its launcher tells of the end itself: whatever let the engine conclude it, as a finished requeue does.
        ended = told.heard([name], attempt.ended_at)
    first = told.of_attempt(name, e.FirstStepDone, number)
    found = {
        "started": _source("started", attempt.started_at, told.of_attempt(name, e.AttemptStarted, number)),
        "first step": _source("first step", attempt.first_step_at, first, attempt.first_step),
        "ended": _source("ended", attempt.ended_at, ended, attempt.reached),
    }
    return {point: source for point, source in found.items() if source.at}


def _of_attempts(job: JobRecord, told: Told) -> tuple[Source, ...]:
    """The points of all its attempts, each with its attempt's number."""
    found = [(attempt.number, p) for attempt in job.attempts for p in _of_attempt(attempt, job, told).values()]
    return tuple(structs.replace(point, name=f"({number}) {point.name}") for number, point in found)


def _cut(begin: Source, end: Source, data: ReportData) -> tuple[Source, Source]:
    """What lies in the report's span of the time between two points."""
    first = begin if begin.at >= data.since else Source("the span begins", data.since)
    return first, end if end.at <= data.until else Source("the span ends", data.until)


def _mtbf(data: ReportData, figure: str, told: Told) -> Trace:
    parts = []
    for job in data.jobs:
        started = [attempt for attempt in job.attempts if attempt.started_at > 0]
        for attempt, end in zip(started, ends(started, data.now), strict=True):
            if attempt.started_at >= data.until or end <= data.since:
                continue
            points = _of_attempt(attempt, job, told)
            last = points.get("ended") or Source("still up" if attempt is started[-1] else "followed by the next", end)
            cut = _cut(points["started"], last, data)
            parts.append(Part(f"{job.key}({attempt.number})", max(0.0, cut[1].at - cut[0].at), cut))
    failures = [i.id for i in of_known_attempts(data.counted, data.jobs)]
    up = sum(part.value for part in parts)
    mtbf_s = data.totals.mtbf_s
    shown = f" = {mtbf_s:.3f} s" if mtbf_s is not None else ""
    arithmetic = f"{up:.3f} s up / {len(failures)} failures ({', '.join(failures[:8]) or 'none'}){shown}"
    return Trace(figure, mtbf_s, "s", definition(figure).formula, arithmetic, tuple(parts))


def _ratio(data: ReportData, figure: str, told: Told) -> Trace:
    """ETTR and goodput: a part for each job, its productive seconds, with the attempts that they lie in."""
    parts = [
        Part(str(job.key), found.productive_s, _of_attempts(job, told))
        for job, found in zip(data.jobs, data.accounts, strict=True)
        if found.is_told
    ]
    used = efficiency(data.accounts)
    if figure == "ETTR":
        value, under, unit = data.totals.ettr, f"{used.wall_s:.3f} s of wall time", "ratio"
    else:
        under = f"({used.wall_s:.3f} - {used.startup_s:.3f} s of start-up)"
        value, unit = data.totals.goodput_percent, "%"
    shown = "not defined" if value is None else f"{value:.4f}{' %' if unit == '%' else ''}"
    arithmetic = f"{used.productive_s:.3f} s productive / {under} = {shown}"
    return Trace(figure, value, unit, definition(figure).formula, arithmetic, tuple(parts))


def _lost(data: ReportData, figure: str, told: Told) -> Trace:
    """Steps that an attempt computed again: from its first step to the best step before it."""
    parts = []
    for job in data.jobs:
        reached: int | None = None
        for attempt in (a for a in job.attempts if a.started_at > 0):
            again = steps_again(attempt, reached)
            if again and data.since <= first_step_at(attempt) < data.until:
                point = _of_attempt(attempt, job, told).get("first step")
                reach = Source("reached before", 0.0, reached)
                parts.append(Part(f"{job.key}({attempt.number})", again, (reach, point) if point else (reach,)))
            if attempt.reached is not None:
                reached = attempt.reached if reached is None else max(reached, attempt.reached)
    total = data.totals.steps_lost
    shown = " + ".join(f"{part.value:.0f}" for part in parts[:12]) + (" + ..." if len(parts) > 12 else "")
    arithmetic = f"{shown or '0'} = {total} steps"
    return Trace(figure, float(total), "steps", definition(figure).formula, arithmetic, tuple(parts))


NEAR_S = 1e-3
"""Times that differ by less are the same: they went through JSON."""


class Said(Struct, frozen=True, gc=False):
    """One event."""

    seq: int
    event: str
    source: str
    own: float
    """Of what it tells: a finding's own time, else `at`."""
    at: float
    received_at: float


class _Times:
    """Places of events in order of time."""

    def __init__(self, pairs: Iterable[tuple[float, int]]) -> None:
        ordered = sorted(pairs)
        self._times = array("d", [at for at, _ in ordered])
        self._places = array("L", [place for _, place in ordered])

    def first(self, at: float) -> int | None:
        """The first place among those at this time."""
        near = slice(bisect_right(self._times, at - NEAR_S), bisect_left(self._times, at + NEAR_S))
        return min(self._places[near], default=None)


class _Of:
    """The events of one incident or job, in order of their numbers."""

    def __init__(self, events: Iterable[e.AnyEvent]) -> None:
        self.said: list[Said] = []
        self.attempts: dict[tuple[type[e.AnyEvent], int], Said] = {}
        for event in events:
            said = said_of(event)
            self.said.append(said)
            if isinstance(event, e.AttemptStarted | e.FirstStepDone | e.AttemptEnded):
                self.attempts[type(event), event.attempt] = said

    @cached_property
    def own(self) -> _Times:
        return _Times((said.own, place) for place, said in enumerate(self.said))

    @cached_property
    def heard(self) -> _Times:
        pairs = ((at, place) for place, said in enumerate(self.said) for at in {said.at, said.received_at})
        return _Times(pairs)


class Told:
    """The events of incidents, by their ids, and of jobs, by their names (`1778`)."""

    def __init__(self, events: Mapping[str, Iterable[e.AnyEvent]] | None = None) -> None:
        self._of: dict[str, _Of] = {}
        for name, found in (events or {}).items():
            self.add(name, found)

    def add(self, name: str, events: Iterable[e.AnyEvent]) -> None:
        """All events of this incident or job, in order of their numbers."""
        self._of[name] = _Of(events)

    def fault(self, names: Sequence[str], at: float) -> Said | None:
        """The first event that tells of something at this time; else as `heard`. `names`: in this order."""
        for known in self._known(names):
            place = known.own.first(at)
            if place is not None:
                return known.said[place]
        return self.heard(names, at)

    def heard(self, names: Sequence[str], at: float) -> Said | None:
        """The first event that happened, or reached the controller, at this time."""
        for known in self._known(names):
            place = known.heard.first(at)
            if place is not None:
                return known.said[place]
        return None

    def of_attempt(self, job: str, kind: type[e.AnyEvent], attempt: int) -> Said | None:
        """The newest start, first step or end that was told of this attempt."""
        known = self._of.get(job)
        return known.attempts.get((kind, attempt)) if known is not None else None

    def _known(self, names: Sequence[str]) -> Iterable[_Of]:
        return (self._of[name] for name in names if name in self._of)


def said_of(event: e.AnyEvent) -> Said:
    """What is kept of an event."""
    own = event.finding.at if isinstance(event, e.FindingSeen) else event.at
    kind = str(event.__struct_config__.tag)
    return Said(event.seq, kind, intern(event.source), own, event.at, event.received_at)

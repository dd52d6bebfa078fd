"""One timeline of everything that was said about an incident: agents, launchers, scheduler, controller, people.

Called by `holdfast incident ID --timeline`. Events carry two times, where it was seen and when the controller received
it; a source whose clock is off is shifted by its own median offset, so that lines of different machines stand in the
order in which things happened. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from msgspec import Struct

from holdfast.model import events as e
from holdfast.model.cluster import JobKey
from holdfast.model.evidence import Evidence, EvidenceKind
from holdfast.model.orders import AnyOrder, JobOrder, NodeOrder
from holdfast.model.records import IncidentRecord, OrderRecord

OFF_S = 0.25
"""Offsets below this are the journey of the message, not the clock."""
AROUND_S = 30.0
"""How long before an incident's begin events of its jobs and nodes are shown."""


class Line(Struct, frozen=True):
    """One line. `at`: Unix seconds by the controller's clock; `shifted_s`: what was added to the source's own time."""

    at: float
    shifted_s: float
    source: str
    kind: str
    place: str
    text: str
    seq: int
    origin: str = ""
    """Whose word it is: kernel, application, scheduler, agent, launcher, controller, person, drill."""


def clock_offsets(events: Sequence[e.AnyEvent]) -> dict[str, float]:
    """Seconds to add to each source's times; sources that agree with the controller are left out.

    A message takes time, so that received - at is never below the journey; a source whose median says otherwise by more
    than `OFF_S` has another clock. The journey itself is estimated as the least difference over all sources.
    """
    by_source: dict[str, list[float]] = {}
    for event in events:
        if event.received_at and event.at:
            by_source.setdefault(event.source, []).append(event.received_at - event.at)
    found = {}
    for source, differences in by_source.items():
        offset = median(differences)
        # Late messages (a spool that was sent after an hour) make the median large: the smallest one is the clock's.
        clock = min(differences) if offset > 0 else offset
        if abs(clock) > OFF_S:
            found[source] = clock
    return found


def merged(incident: IncidentRecord, events: Sequence[e.AnyEvent], orders: Sequence[OrderRecord] = ()) -> list[Line]:
    """Events of the incident, its jobs and its nodes around its time, and its orders, in corrected order.

    What a scheduler says again, word for word, stands there once.
    """
    offsets = clock_offsets(events)
    end = incident.closed_at or float("inf")
    lines = []
    for event in events:
        shift = offsets.get(event.source, 0.0)
        at = event.at + shift
        if incident.opened_at - AROUND_S <= at <= end + 1.0 and _concerns(event, incident):
            kind = str(event.__struct_config__.tag)
            place, seq = _place(event), event.seq
            lines.append(Line(at, shift, event.source, kind, place, _text(event), seq, _origin(event)))
            if isinstance(event, e.FindingSeen):
                lines += [
                    Line(at, shift, event.source, "evidence", place, _quoted(one), seq, _spoken_by(one, event))
                    for one in event.finding.evidence[1:]
                ]
    lines += [line for record in orders for line in _of_order(record)]
    return _news(sorted(lines, key=lambda line: (line.at, line.seq)))


def _of_order(record: OrderRecord) -> list[Line]:
    """What the controller ordered and why, and what came of it."""
    order = record.order
    if not isinstance(order, NodeOrder | JobOrder):
        return []  # a message to people is no deed
    name = str(order.__struct_config__.tag).replace("_", " ")
    told = [(record.issued_at, "order", f"{name}: {order.why}" if order.why else name)]
    if record.ended_at:
        told.append((record.ended_at, "outcome", f"{name} {record.status}{record.detail and f': {record.detail}'}"))
    place = _place(order)
    return [Line(at, 0.0, "controller", kind, place, text, order.cause, "controller") for at, kind, text in told]


def _news(lines: Sequence[Line]) -> list[Line]:
    last: dict[tuple[str, str], str] = {}
    kept = []
    for line in lines:
        if line.kind in _LOOKS:
            if last.get((line.kind, line.place)) == line.text:
                continue
            last[line.kind, line.place] = line.text
        kept.append(line)
    return kept


_LOOKS = frozenset({"node_observed", "job_observed"})


def narrowed(lines: Sequence[Line], only: str) -> list[Line]:
    """Lines whose origin, source, kind or place begins with one of the words of `only` (commas between them)."""
    words = [word.strip() for word in only.split(",") if word.strip()]
    if not words:
        return list(lines)
    return [
        line
        for line in lines
        if any(field.startswith(word) for word in words for field in (line.origin, line.source, line.kind, line.place))
    ]


_KERNEL_FILES = ("kmsg", "kern.log", "messages", "syslog", "dmesg")
_SCHEDULERS = frozenset({"slurm", "kubernetes", "local", "memory"})


def _origin(event: e.AnyEvent) -> str:
    if isinstance(event, e.OperatorCommand):
        return "person"
    if isinstance(event, e.FindingSeen) and event.finding.evidence:
        return _spoken_by(event.finding.evidence[0], event)
    head = event.source.partition(":")[0]
    return "scheduler" if head in _SCHEDULERS else head


def _spoken_by(one: Evidence, event: e.AnyEvent) -> str:
    """Whose word a piece of evidence is; what an agent or a launcher concluded is its own."""
    match one.kind:
        case EvidenceKind.LOG:
            return "kernel" if one.file.startswith(_KERNEL_FILES) else "application"
        case EvidenceKind.EXIT | EvidenceKind.STACK | EvidenceKind.TELEMETRY:
            return "application"
        case EvidenceKind.SCHEDULER:
            return "scheduler"
        case EvidenceKind.PERSON:
            return "person"
        case _:
            return event.source.partition(":")[0]


def _quoted(one: Evidence) -> str:
    where = f"{one.file}:{one.line}: " if one.file and one.line else f"{one.file}: " if one.file else ""
    return f"{where}{one.text}"


def _concerns(event: e.AnyEvent, incident: IncidentRecord) -> bool:
    if _job(event) in incident.jobs or _node(event) in incident.nodes:
        return True
    return isinstance(event, e.FindingSeen) and event.finding.id in {finding.id for finding in incident.findings}


def _place(event: e.AnyEvent | AnyOrder) -> str:
    if isinstance(event, e.FindingSeen):
        return str(event.finding.place)
    key, attempt = _job(event), getattr(event, "attempt", None)
    if name := _node(event):
        return name
    return "" if key is None else f"{key}({attempt})" if isinstance(attempt, int) else str(key)


def _job(event: e.AnyEvent | AnyOrder) -> JobKey | None:
    """The job that it is about, which it may hold as a view."""
    job = getattr(event, "job", None)
    found: JobKey | None = getattr(job, "key", job)
    return found


def _node(event: e.AnyEvent | AnyOrder) -> str:
    """The name of the node that it is about, which it may hold as a view; empty: none."""
    node = getattr(event, "node", "")
    name = getattr(node, "name", node)
    return name if isinstance(name, str) else ""


def _text(event: e.AnyEvent) -> str:
    """What the event says, in one line."""
    match event:
        case e.FindingSeen():
            line = _quoted(event.finding.evidence[0]) if event.finding.evidence else ""
            return f"{event.finding.summary or event.finding.rule}{': ' + line if line else ''}"
        case e.OperatorCommand():
            return f"{event.command.value} by {event.who}{': ' + event.why if event.why else ''}"
        case e.NodeObserved(node=node):
            words = [node.state_text, "drained" if node.drained else "", node.drain_reason]
            return ", ".join(word for word in words if word) or "answers"
        case e.JobObserved(job=job):
            where = f"on {', '.join(job.nodes)}" if job.nodes else ""
            restarts = f"restart {job.restart_count}" if job.restart_count else ""
            return ", ".join(word for word in (job.state.value, restarts, where, job.reason) if word)
        case _:
            shown = {
                name: value
                for name in event.__struct_fields__
                if name not in _HIDDEN and isinstance(value := getattr(event, name), str | int | float | bool) and value
            }
            return ", ".join(f"{name} {value}" for name, value in shown.items())


_HIDDEN = frozenset({"id", "seq", "at", "received_at", "source", "node", "job"})

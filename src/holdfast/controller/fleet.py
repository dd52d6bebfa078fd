"""The cluster at a glance, in memory: one short line for each node, job and incident, renewed with every commit.

Overviews, figures and live pages read it, so that none of them decodes thousands of records from the journal. The API
makes one and registers it with the controller. It holds what is on disk, never more. No time passes here.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from holdfast.model import records as r
from holdfast.model.cluster import SchedulerState
from holdfast.model.evidence import Domain, Severity
from holdfast.model.orders import Notify, OrderStatus
from holdfast.ports import Entry, Journal

CLOSED_KEPT = 200
"""Closed incidents that stay in memory, newest first; the journal has them all."""


class NodeLine(Struct, frozen=True, omit_defaults=True):
    """A node in a few words."""

    name: str
    state: r.NodeState = r.NodeState.HEALTHY
    group: str = ""
    topology: str = ""
    since: float = 0.0
    incident: str = ""
    jobs: tuple[str, ...] = ()
    gpus: int = 0
    silent: bool = False
    drained: bool = False
    spare: bool = False
    alive: bool | None = None


class JobLine(Struct, frozen=True, omit_defaults=True):
    """A job in a few words."""

    id: str
    """As `str(JobKey)` writes it."""
    name: str = ""
    user: str = ""
    partition: str = ""
    state: r.JobState = r.JobState.WATCHING
    scheduler: SchedulerState = SchedulerState.UNKNOWN
    since: float = 0.0
    incident: str = ""
    attempt: int | None = None
    best_step: int = 0
    durable_step: int = 0
    durable_at: float = 0.0
    started_at: float = 0.0
    """Start of the newest attempt; 0.0: none is known."""
    submitted_at: float = 0.0
    want_nodes: int = 1
    nodes: int = 0
    """Nodes that it has now."""
    requeues: int = 0
    in_place: int = 0
    held_by: str = ""
    guarded: bool = False
    """Its owner asked for recovery."""


class IncidentLine(Struct, frozen=True, omit_defaults=True):
    """An incident in a few words."""

    id: str
    opened_at: float
    closed_at: float = 0.0
    outcome: str = ""
    cause: str = ""
    summary: str = ""
    domain: Domain = Domain.UNKNOWN
    severity: Severity = Severity.INFO
    jobs: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    drill: str = ""
    fingerprint: str = ""
    marks: dict[r.Mark, float] = {}
    lost_steps: int | None = None


class Changed(Struct):
    """Names of what commits have changed."""

    seq: int = 0
    nodes: set[str] = set()
    jobs: set[str] = set()
    incidents: set[str] = set()
    brakes: set[str] = set()
    orders: set[str] = set()


class Fleet:
    """See the module. `take` is a listener of the controller; `load` fills in what was there before."""

    def __init__(self) -> None:
        self.seq = 0
        """Newest event that is folded in."""
        self.nodes: dict[str, NodeLine] = {}
        self.jobs: dict[str, JobLine] = {}
        self.incidents: dict[str, IncidentLine] = {}
        """Every open one, and the newest closed ones, oldest first."""
        self.brakes: dict[str, r.BrakeRecord] = {}
        self.proposed: dict[str, r.OrderRecord] = {}
        """Orders that wait for a person."""

    async def load(self, journal: Journal) -> None:
        """Fill in from the journal what no commit has brought since this was registered.

        Raises:
            JournalError: it cannot be read.
        """
        for node in await journal.nodes():
            self.nodes.setdefault(node.name, node_line(node))
        for job in await journal.jobs():
            self.jobs.setdefault(str(job.key), job_line(job))
        found = {
            one.id: one
            for one in (*await journal.incidents(open_only=True), *await journal.incidents(limit=CLOSED_KEPT))
        }
        older = {one.id: incident_line(one) for one in sorted(found.values(), key=lambda one: one.opened_at)}
        self.incidents = older | self.incidents
        for brake in await journal.brakes():
            self.brakes.setdefault(brake.group, brake)
        for record in await journal.orders():
            if record.status is OrderStatus.PROPOSED:
                self.proposed.setdefault(record.order.id, record)
        self.seq = max(self.seq, await journal.last_seq())

    def take(self, entries: Sequence[Entry]) -> Changed:
        """Fold one commit in; returns what it changed."""
        changed = Changed(entries[-1].event.seq if entries else self.seq, set(), set(), set(), set(), set())
        for entry in entries:
            touched = entry.touched
            changed.nodes.update(node.name for node in touched.nodes)
            changed.jobs.update(str(job.key) for job in touched.jobs)
            changed.incidents.update(incident.id for incident in touched.incidents)
            changed.brakes.update(brake.group for brake in touched.brakes)
            for node in touched.nodes:
                self.nodes[node.name] = node_line(node)
            for job in touched.jobs:
                self.jobs[str(job.key)] = job_line(job)
            for incident in touched.incidents:
                self.incidents[incident.id] = incident_line(incident)
            for brake in touched.brakes:
                self.brakes[brake.group] = r.BrakeRecord(
                    brake.group, brake.nodes, list(brake.recent), brake.tripped_at, list(brake.waiting)
                )
            for record in touched.orders:
                self._take_order(record, changed)
        self._forget()
        self.seq = max(self.seq, changed.seq)
        return changed

    def _take_order(self, record: r.OrderRecord, changed: Changed) -> None:
        if not isinstance(record.order, Notify):
            changed.orders.add(record.order.id)
        if record.status is OrderStatus.PROPOSED:
            self.proposed[record.order.id] = record
        else:
            self.proposed.pop(record.order.id, None)

    def _forget(self) -> None:
        if len(self.incidents) <= 2 * CLOSED_KEPT:
            return
        closed = [one.id for one in self.incidents.values() if one.closed_at]
        for incident in closed[:-CLOSED_KEPT]:
            del self.incidents[incident]


def node_line(record: r.NodeRecord) -> NodeLine:
    """The line of a node's record."""
    view = record.view
    return NodeLine(
        record.name,
        record.state,
        view.group,
        view.topology,
        record.since,
        record.incident,
        view.jobs,
        view.gpus,
        record.silent,
        view.drained,
        view.spare,
        view.alive,
    )


def job_line(record: r.JobRecord) -> JobLine:
    """The line of a job's record."""
    view, attempt = record.view, record.attempt
    return JobLine(
        str(record.key),
        view.name,
        view.user,
        view.partition,
        record.state,
        view.state,
        record.since,
        record.incident,
        attempt.number if attempt is not None else None,
        record.best_step,
        record.durable_step,
        attempt.durable_at if attempt is not None else 0.0,
        attempt.started_at if attempt is not None else 0.0,
        view.submitted_at,
        view.want_nodes,
        len(view.nodes),
        record.requeues,
        record.in_place,
        record.held_by,
        view.recovery is not None and view.recovery.enabled,
    )


def incident_line(record: r.IncidentRecord) -> IncidentLine:
    """The line of an incident's record. Its severity is that of its worst finding."""
    diagnosis = record.diagnosis
    worst = max((_WORSE[one.severity] for one in record.findings), default=0)
    first = record.findings[0].summary if record.findings else ""
    return IncidentLine(
        record.id,
        record.opened_at,
        record.closed_at,
        record.outcome,
        diagnosis.cause if diagnosis is not None else (record.findings[0].rule if record.findings else ""),
        (diagnosis.summary if diagnosis is not None else "") or first,
        diagnosis.domain if diagnosis is not None else Domain.UNKNOWN,
        list(Severity)[worst],
        tuple(str(job) for job in record.jobs),
        tuple(record.nodes),
        record.drill,
        diagnosis.fingerprint if diagnosis is not None else "",
        dict(record.marks),
        record.lost_steps,
    )


_WORSE = {severity: place for place, severity in enumerate(Severity)}

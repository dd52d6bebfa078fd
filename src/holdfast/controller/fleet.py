"""The cluster at a glance, in memory: one line for each node, job and incident, renewed with every commit.

Overviews, figures, notices and live pages read it, so that none of them decodes thousands of records from the journal.
It holds what is on disk, never more. `follow` registers it with a controller and loads it; `readers` are told of each
commit after it is folded in. Records handed over are the engine's own and live on, so lines copy what they need. Times
are Unix seconds of the controller. No time passes here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy

from msgspec import Struct, field, structs

from holdfast.controller.loop import Controller
from holdfast.model import records as r
from holdfast.model.cluster import ENDED, SchedulerState
from holdfast.model.evidence import Domain
from holdfast.model.orders import WAITING, Notify, OrderStatus, StartTimer
from holdfast.ports import Entry, Journal

INCIDENTS_MAX = 20_000
"""Kept in memory, the newest and every open one; the journal has them all."""
ORDERS_MAX = 20_000
CALM = frozenset({r.JobState.WATCHING, r.JobState.COMPLETED, r.JobState.CANCELLED})
"""States of jobs in which nothing is being recovered."""
NO_RACK = "no rack known"


class NodeLine(Struct, frozen=True):
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
    heard: bool = True
    note: str = ""
    """Why it is not healthy, in a few words; empty: nothing to say."""
    offences: int = 0

    @property
    def shown(self) -> str:
        """Its state for people: `unheard` in place of `healthy` where no agent was ever heard."""
        return r.shown_state(self.state, heard=self.heard)

    @property
    def rack(self) -> str:
        """Failure domain (`row1/rack3/switch7`), else its partition or group."""
        return self.topology or self.group or NO_RACK

    @property
    def is_well(self) -> bool:
        """Takes work, and nothing is known against it."""
        return self.state is r.NodeState.HEALTHY and not self.note


class JobLine(Struct, frozen=True):
    """A job in a few words."""

    key: str
    """As `str(JobKey)` writes it."""
    name: str = ""
    user: str = ""
    project: str = ""
    partition: str = ""
    state: r.JobState = r.JobState.WATCHING
    scheduler: SchedulerState = SchedulerState.UNKNOWN
    since: float = 0.0
    incident: str = ""
    attempt: str = ""
    """`1778(2)` of the newest attempt, `1778` before the first."""
    number: int | None = None
    """Of the newest attempt."""
    best_step: int = 0
    step: int | None = None
    """The furthest that anything tells of; None: nothing told of steps."""
    durable: int = 0
    """The furthest step of a durable checkpoint."""
    durable_at: float = 0.0
    """When the newest attempt saved its newest durable checkpoint."""
    started_at: float = 0.0
    """Start of the newest attempt; 0.0: none is known."""
    submitted_at: float = 0.0
    nodes: int = 1
    """Nodes that it has now, else those that it asks for."""
    requeues: int = 0
    in_place: int = 0
    held_by: str = ""
    watched_only: bool = True
    """Nobody asked for its recovery."""
    guarded: bool = False
    """Its owner asked for recovery, and has not switched it off."""

    @property
    def is_running(self) -> bool:
        """Holds nodes now."""
        return self.scheduler in r.RUNS and self.state not in r.JOB_ENDED

    @property
    def is_over(self) -> bool:
        """Nothing of it will run again."""
        return self.state in r.JOB_ENDED or (self.watched_only and self.scheduler in ENDED)

    @property
    def is_troubled(self) -> bool:
        """Holdfast is doing something about it, or has given it up."""
        return self.state not in CALM or bool(self.held_by)


class IncidentLine(Struct, frozen=True):
    """An incident in a few words, with what the search looks at."""

    id: str
    opened_at: float
    closed_at: float = 0.0
    outcome: str = ""
    cause: str = ""
    """Of its diagnosis; empty before there is one."""
    summary: str = ""
    """Of its diagnosis, else of its first finding."""
    domain: Domain = Domain.UNKNOWN
    confidence: float = 0.0
    jobs: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    remedies: tuple[str, ...] = ()
    fingerprints: frozenset[str] = frozenset()
    last_word: str = ""
    """The newest line of its story."""
    marks: dict[r.Mark, float] = field(default_factory=dict)
    lost_steps: int | None = None
    drill: str = ""

    @property
    def is_open(self) -> bool:
        """Not settled yet."""
        return not self.closed_at

    @property
    def headline(self) -> str:
        """The summary, and whether it is a diagnosis yet."""
        if self.cause:
            return self.summary or self.cause
        return f"{self.summary} (not diagnosed yet)" if self.summary else "not diagnosed yet"

    @property
    def detect_s(self) -> float | None:
        """Seconds from the fault to its detection, None when either is not known."""
        return r.between(self.marks, r.Mark.FAULT, r.Mark.DETECTED)

    @property
    def recover_s(self) -> float | None:
        """Seconds from the fault to the first new step, None when either is not known."""
        return r.between(self.marks, r.Mark.FAULT, r.Mark.FIRST_STEP)


class Changed(Struct):
    """Lines that a commit has changed: as they were (None: new) and as they are, in the commit's order."""

    seq: int = 0
    nodes: list[tuple[NodeLine | None, NodeLine]] = field(default_factory=list)
    jobs: list[tuple[JobLine | None, JobLine]] = field(default_factory=list)
    incidents: list[tuple[IncidentLine | None, IncidentLine]] = field(default_factory=list)
    brakes: list[tuple[r.BrakeRecord | None, r.BrakeRecord]] = field(default_factory=list)
    orders: list[r.OrderRecord] = field(default_factory=list)


Reader = Callable[[Sequence[Entry], Changed], None]
"""Called with each commit and what it changed."""


class Fleet:
    """Lines of all nodes and jobs, of the newest incidents, and the orders that wait."""

    def __init__(self) -> None:
        self.seq = 0
        """Newest event that is folded in."""
        self.nodes: dict[str, NodeLine] = {}
        self.jobs: dict[str, JobLine] = {}
        """By `str(JobKey)`: a controller has one cluster (`docs/scale.md`), so that an id needs none."""
        self.incidents: dict[str, IncidentLine] = {}
        """Oldest first."""
        self.brakes: dict[str, r.BrakeRecord] = {}
        self.waiting: dict[str, r.OrderRecord] = {}
        """Orders that are proposed or under way, without timers and notices."""
        self.readers: list[Reader] = []
        self._followed: Controller | None = None
        self._settled: set[str] | None = set()
        """Orders that commits have told of before the journal was read."""
        self._of_job: dict[str, set[str]] = {}
        self._of_node: dict[str, set[str]] = {}

    async def follow(self, controller: Controller) -> None:
        """Register with the controller and fill in what its journal has; a second call does nothing.

        Raises:
            JournalError: the journal cannot be read; nothing is registered then.
        """
        if self._followed is not None:
            return
        # Registered before it is loaded, so that no commit falls between the two.
        controller.listeners.append(self.take)
        self._followed = controller
        try:
            await self.load(controller.journal)
        except BaseException:  # whatever it is, nothing is registered
            self.leave()
            raise

    def leave(self) -> None:
        """Be told no more."""
        if self._followed is not None:
            self._followed.listeners.remove(self.take)
            self._followed = None

    async def load(self, journal: Journal) -> None:
        """Fill in from the journal what no commit has brought.

        Raises:
            JournalError: it cannot be read.
        """
        for node in await journal.nodes():
            self.nodes.setdefault(node.name, node_line(node))
        for job in await journal.jobs():
            self.jobs.setdefault(str(job.key), job_line(job))
        found = {
            one.id: one
            for one in (*await journal.incidents(open_only=True), *await journal.incidents(limit=INCIDENTS_MAX))
        }
        older = [incident_line(one) for one in sorted(found.values(), key=lambda one: (one.opened_at, one.id))]
        newer = dict(self.incidents)
        self.incidents.clear()
        for line in (*(one for one in older if one.id not in newer), *newer.values()):
            self._keep_incident(line)
        for brake in await journal.brakes():
            self.brakes.setdefault(brake.group, brake)
        for record in await journal.orders(pending_only=True, limit=ORDERS_MAX):
            if is_for_people(record) and record.order.id not in (self._settled or ()):
                self.waiting[record.order.id] = record
        self._settled = None
        self.seq = max(self.seq, await journal.last_seq())

    def take(self, entries: Sequence[Entry]) -> Changed:
        """Fold one commit in and tell the readers; returns what it changed."""
        changed = Changed(entries[-1].event.seq if entries else self.seq)
        for entry in entries:
            touched = entry.touched
            for node in touched.nodes:
                changed.nodes.append((self.nodes.get(node.name), node_line(node)))
                self.nodes[node.name] = changed.nodes[-1][1]
            for job in touched.jobs:
                name = str(job.key)
                changed.jobs.append((self.jobs.get(name), job_line(job)))
                self.jobs[name] = changed.jobs[-1][1]
            for incident in touched.incidents:
                changed.incidents.append((self.incidents.get(incident.id), incident_line(incident)))
                self._keep_incident(changed.incidents[-1][1])
            for brake in touched.brakes:
                kept = deepcopy(brake)
                changed.brakes.append((self.brakes.get(brake.group), kept))
                self.brakes[brake.group] = kept
            for record in touched.orders:
                changed.orders.append(record)
                self._take_order(record)
        self.seq = max(self.seq, changed.seq)
        for reader in self.readers:
            reader(entries, changed)
        return changed

    def _take_order(self, record: r.OrderRecord) -> None:
        if self._settled is not None:
            self._settled.add(record.order.id)
        if record.status in WAITING and is_for_people(record):
            self.waiting[record.order.id] = structs.replace(record)
        else:
            self.waiting.pop(record.order.id, None)

    def _keep_incident(self, line: IncidentLine) -> None:
        self.incidents[line.id] = line
        for key in line.jobs:
            self._of_job.setdefault(key, set()).add(line.id)
        for name in line.nodes:
            self._of_node.setdefault(name, set()).add(line.id)
        if len(self.incidents) > INCIDENTS_MAX:
            gone = next((one for one in self.incidents.values() if not one.is_open), None)
            if gone is not None:
                del self.incidents[gone.id]
                for index, names in ((self._of_job, gone.jobs), (self._of_node, gone.nodes)):
                    for name in names:
                        index.get(name, set()).discard(gone.id)

    @property
    def proposed(self) -> dict[str, r.OrderRecord]:
        """Orders that wait for approval, by id."""
        return {name: one for name, one in self.waiting.items() if one.status is OrderStatus.PROPOSED}

    def open_incidents(self) -> list[IncidentLine]:
        """Open incidents, newest first."""
        return [line for line in reversed(self.incidents.values()) if line.is_open]

    def incidents_of(self, *, job: str = "", node: str = "") -> list[IncidentLine]:
        """Incidents of a job or of a node, newest first."""
        ids = self._of_job.get(job, set()) if job else self._of_node.get(node, set())
        found = [self.incidents[one] for one in ids if one in self.incidents]
        return sorted(found, key=lambda line: -line.opened_at)

    def search(self, text: str, *, open_only: bool = False) -> Iterator[IncidentLine]:
        """Incidents in which every word occurs (fingerprint, cause, summary, job, node, outcome), newest first."""
        words = text.casefold().split()
        for line in reversed(self.incidents.values()):
            if open_only and not line.is_open:
                continue
            haystack = _haystack(line) if words else ""
            if all(word in haystack for word in words):
                yield line


def node_line(record: r.NodeRecord) -> NodeLine:
    """The line of a node's record."""
    view = record.view
    return NodeLine(
        name=record.name,
        state=record.state,
        group=view.group,
        topology=view.topology,
        since=record.since,
        incident=record.incident,
        jobs=view.jobs,
        gpus=view.gpus,
        silent=record.silent,
        heard=record.heard,
        note=_note(record),
        offences=len(record.offences),
    )


def _note(record: r.NodeRecord) -> str:
    if record.gone:
        return "does not run"
    if record.silent:
        return "not heard of"
    if record.findings:
        return ", ".join(record.findings[:3])
    if record.view.drained and not record.drained_by_us:
        return f"drained by somebody else: {record.view.drain_reason or 'no reason given'}"
    return ""


def job_line(record: r.JobRecord) -> JobLine:
    """The line of a job's record."""
    view, attempt = record.view, record.attempt
    steps = [record.best_step] + ([attempt.last_step or 0, attempt.durable_step or 0] if attempt is not None else [])
    return JobLine(
        key=str(record.key),
        name=view.name,
        user=view.user,
        project=view.project,
        partition=view.partition,
        state=record.state,
        scheduler=view.state,
        since=record.since,
        incident=record.incident,
        attempt=record.name,
        number=attempt.number if attempt is not None else None,
        best_step=record.best_step,
        step=max(steps) or None,
        durable=record.durable_step,
        durable_at=attempt.durable_at if attempt is not None else 0.0,
        started_at=attempt.started_at if attempt is not None else 0.0,
        submitted_at=view.submitted_at,
        nodes=len(view.nodes) or view.want_nodes,
        requeues=record.requeues,
        in_place=record.in_place,
        held_by=record.held_by,
        watched_only=view.recovery is None,
        guarded=view.recovery is not None and view.recovery.enabled,
    )


def incident_line(record: r.IncidentRecord) -> IncidentLine:
    """The line of an incident's record."""
    found = record.diagnosis
    first = (record.findings[0].summary or record.findings[0].rule) if record.findings else ""
    return IncidentLine(
        id=record.id,
        opened_at=record.opened_at,
        closed_at=record.closed_at,
        outcome=record.outcome,
        cause=found.cause if found is not None else "",
        summary=(found.summary or found.cause) if found is not None else first,
        domain=found.domain if found is not None else Domain.UNKNOWN,
        confidence=found.confidence if found is not None else 0.0,
        jobs=tuple(str(key) for key in record.jobs),
        nodes=tuple(record.nodes),
        remedies=tuple(remedy.value for remedy in record.remedies),
        fingerprints=record.fingerprints,
        last_word=record.story[-1] if record.story else "",
        marks=dict(record.marks),
        lost_steps=record.lost_steps,
        drill=record.drill,
    )


def is_for_people(record: r.OrderRecord) -> bool:
    """Whether an order does something to the cluster: timers and notices do not."""
    return not isinstance(record.order, StartTimer | Notify)


def _haystack(line: IncidentLine) -> str:
    parts = [line.id, line.cause, line.headline, line.domain, line.outcome or "open", line.drill]
    return " ".join([*parts, *line.fingerprints, *line.jobs, *line.nodes, *line.remedies]).casefold()

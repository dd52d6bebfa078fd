"""One line each of a node, a job and an incident: what lists, the grid and the search need, copied from live records.

Made by `board.py` and by `holdfast top`. Pure; times are Unix seconds of the controller.
"""

from __future__ import annotations

from msgspec import Struct

from holdfast.model.cluster import ENDED, SchedulerState
from holdfast.model.records import IncidentRecord, JobRecord, JobState, Mark, NodeRecord, NodeState
from holdfast.report.similar import fingerprints
from holdfast.report.timeline import span

CALM_JOB = frozenset({JobState.WATCHING, JobState.COMPLETED, JobState.CANCELLED})
"""States in which nothing is being recovered."""
OVER_JOB = frozenset({JobState.COMPLETED, JobState.CANCELLED, JobState.GIVEN_UP})
NO_RACK = "no rack known"


class NodeLine(Struct, frozen=True):
    """A node at a glance."""

    name: str
    rack: str
    """Failure domain (`row1/rack3/switch7`), else its partition or group."""
    group: str
    state: NodeState
    since: float
    incident: str
    jobs: tuple[str, ...]
    note: str
    """Why it is not healthy, in a few words; empty: nothing to say."""
    offences: int
    gpus: int

    @property
    def is_well(self) -> bool:
        """Takes work, and nothing is known against it."""
        return self.state is NodeState.HEALTHY and not self.note


class JobLine(Struct, frozen=True):
    """A job at a glance."""

    key: str
    """As `str(JobKey)` writes it."""
    name: str
    user: str
    partition: str
    state: JobState
    scheduler: SchedulerState
    since: float
    attempt: str
    nodes: int
    step: int | None
    durable: int
    requeues: int
    in_place: int
    incident: str
    held_by: str
    watched_only: bool
    """Nobody asked for its recovery."""

    @property
    def is_running(self) -> bool:
        """Holds nodes now."""
        return self.scheduler in {SchedulerState.RUNNING, SchedulerState.COMPLETING} and self.state not in OVER_JOB

    @property
    def is_over(self) -> bool:
        """Nothing of it will run again."""
        return self.state in OVER_JOB or (self.watched_only and self.scheduler in ENDED)

    @property
    def is_troubled(self) -> bool:
        """Holdfast is doing something about it, or has given it up."""
        return self.state not in CALM_JOB or bool(self.held_by)


class IncidentLine(Struct, frozen=True):
    """An incident at a glance, with what the search looks at."""

    id: str
    opened_at: float
    closed_at: float
    outcome: str
    cause: str
    summary: str
    domain: str
    confidence: float
    jobs: tuple[str, ...]
    nodes: tuple[str, ...]
    remedies: tuple[str, ...]
    fingerprints: frozenset[str]
    findings: int
    last_word: str
    """The newest line of its story."""
    detect_s: float | None
    recover_s: float | None
    """From the fault to the first new step."""
    lost_steps: int | None
    drill: str

    @property
    def is_open(self) -> bool:
        """Not settled yet."""
        return not self.closed_at


def node_line(record: NodeRecord) -> NodeLine:
    """Copy what a line needs."""
    return NodeLine(
        name=record.name,
        rack=record.view.topology or record.view.group or NO_RACK,
        group=record.view.group,
        state=record.state,
        since=record.since,
        incident=record.incident,
        jobs=record.view.jobs,
        note=_note(record),
        offences=len(record.offences),
        gpus=record.view.gpus,
    )


def _note(record: NodeRecord) -> str:
    if record.gone:
        return "does not run"
    if record.silent:
        return "not heard of"
    if record.findings:
        return ", ".join(record.findings[:3])
    if record.view.drained and not record.drained_by_us:
        return f"drained by somebody else: {record.view.drain_reason or 'no reason given'}"
    return ""


def job_line(record: JobRecord) -> JobLine:
    """Copy what a line needs."""
    attempt = record.attempt
    steps = [record.best_step] + ([attempt.last_step or 0, attempt.durable_step or 0] if attempt is not None else [])
    return JobLine(
        key=str(record.key),
        name=record.view.name,
        user=record.view.user,
        partition=record.view.partition,
        state=record.state,
        scheduler=record.view.state,
        since=record.since,
        attempt=record.name,
        nodes=len(record.view.nodes) or record.view.want_nodes,
        step=max(steps) or None,
        durable=record.durable_step,
        requeues=record.requeues,
        in_place=record.in_place,
        incident=record.incident,
        held_by=record.held_by,
        watched_only=record.view.recovery is None,
    )


def incident_line(record: IncidentRecord) -> IncidentLine:
    """Copy what a line needs."""
    found = record.diagnosis
    return IncidentLine(
        id=record.id,
        opened_at=record.opened_at,
        closed_at=record.closed_at,
        outcome=record.outcome,
        cause=found.cause if found is not None else "",
        summary=(found.summary or found.cause) if found is not None else _first_sight(record),
        domain=found.domain.value if found is not None else "unknown",
        confidence=found.confidence if found is not None else 0.0,
        jobs=tuple(str(key) for key in record.jobs),
        nodes=tuple(record.nodes),
        remedies=tuple(remedy.value for remedy in record.remedies),
        fingerprints=fingerprints(record),
        findings=len(record.findings) + record.findings_dropped,
        last_word=record.story[-1] if record.story else "",
        detect_s=span(record, Mark.FAULT, Mark.DETECTED),
        recover_s=span(record, Mark.FAULT, Mark.FIRST_STEP),
        lost_steps=record.lost_steps,
        drill=record.drill,
    )


def _first_sight(record: IncidentRecord) -> str:
    if not record.findings:
        return "not diagnosed yet"
    first = record.findings[0]
    return f"{first.summary or first.rule} (not diagnosed yet)"

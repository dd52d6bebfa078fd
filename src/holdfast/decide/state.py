"""All that the engine remembers, as one value: written to a snapshot and read back without loss.

Only `decide/` changes it. Keys of jobs are texts (`slug`), so that the whole state is plain msgpack. Indexes that can
be computed from it (`Index`) are not stored; they keep the cost of an event independent of how many jobs and nodes
there are. How time passes: `now` is the latest time any event has brought.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct, field

from holdfast.errors import VersionError, WireError
from holdfast.model.cluster import ENDED, JobView, SchedulerState
from holdfast.model.evidence import Finding, Remedy
from holdfast.model.orders import AnyOrder, StartTimer
from holdfast.model.policy import Mode
from holdfast.model.records import BrakeRecord, IncidentRecord, JobRecord, NodeRecord, OrderRecord, slug

SNAPSHOT_VERSION = 1
"""Grows when an older reader could not make sense of a snapshot."""
IDLE = ENDED | {SchedulerState.PENDING, SchedulerState.HELD}
"""Scheduler states in which a job uses no node."""


class Waiting(Struct):
    """A timer that has not fired."""

    order: StartTimer
    due_at: float


class Drill(Struct, frozen=True):
    """A fault that a drill injected: only the timeline of the incident it causes may know of it."""

    id: str
    at: float
    job: str = ""
    node: str = ""


class State(Struct, omit_defaults=True):
    """The engine's whole memory. Closed incidents, settled orders and vanished jobs have left it."""

    version: int = 0
    """Written always; 0 only before it is set."""
    scope: str = "cluster"
    seq: int = 0
    now: float = 0.0
    epoch: int = 0
    """Fencing epoch of the controller that runs the engine."""
    blind: bool = False
    unseen: list[str] = field(default_factory=list)
    """Kinds of jobs that the scheduler's adapter cannot read."""
    policy_toml: str = ""
    policy_file: str = ""
    jobs: dict[str, JobRecord] = field(default_factory=dict)
    nodes: dict[str, NodeRecord] = field(default_factory=dict)
    incidents: dict[str, IncidentRecord] = field(default_factory=dict)
    orders: dict[str, OrderRecord] = field(default_factory=dict)
    """Pending and proposed ones."""
    timers: dict[str, Waiting] = field(default_factory=dict)
    brakes: dict[str, BrakeRecord] = field(default_factory=dict)
    fence_failed: list[str] = field(default_factory=list)
    """Suspects that could not be quarantined: people were told, and no incident is open for them."""
    modes: dict[str, dict[str, Mode]] = field(default_factory=dict)
    """Overrides at run time: group -> rung, or empty for all rungs -> mode."""
    approved: dict[str, list[Remedy]] = field(default_factory=dict)
    """Rungs that a person approved for an incident: the rung's further orders need no second word.

    Under `node:NAME` or the slug of a job stand the orders that a person's own command names, which need no approval:
    each of these rungs once.
    """
    seen: dict[str, None] = field(default_factory=dict)
    """Ids of the newest findings; the same one reported twice is one."""
    context: dict[str, list[Finding]] = field(default_factory=dict)
    """The newest context findings per job and node: the line ten minutes before the crash may be the root."""
    domains: dict[str, tuple[str, float]] = field(default_factory=dict)
    """Failure domain -> incident and time of its newest fault, for merging what fails together."""
    drills: list[Drill] = field(default_factory=list)


class Index:
    """What can be looked up without walking over all jobs and nodes. Computed, never stored."""

    def __init__(self, state: State) -> None:
        self.jobs_on: dict[str, set[str]] = {}
        self.incidents_of: dict[str, set[str]] = {}
        """Slug of a job, or `node:NAME` -> open incidents whose side of it is open."""
        self.by_id: dict[str, set[str]] = {}
        """Scheduler's id -> slugs (generations)."""
        self.orders_of: dict[str, set[str]] = {}
        """Slug of a job, or `node:NAME` -> ids of pending and proposed orders."""
        for name, job in state.jobs.items():
            self.by_id.setdefault(job.key.id, set()).add(name)
            self.occupied(name, None, job.view)
        for incident in state.incidents.values():
            for key in incident.jobs_open:
                self.incidents_of.setdefault(slug(key), set()).add(incident.id)
            for node in incident.nodes_open:
                self.incidents_of.setdefault(f"node:{node}", set()).add(incident.id)
        for record in state.orders.values():
            self.orders_of.setdefault(subject(record.order), set()).add(record.order.id)

    def occupied(self, name: str, before: JobView | None, now: JobView) -> list[str]:
        """Move the job to the nodes that it uses now. Returns the ones that it left, sorted."""
        old, new = occupying(before) if before is not None else (), occupying(now)
        if old == new:
            return []
        left = set(old) - set(new)
        for node in new:
            self.jobs_on.setdefault(node, set()).add(name)
        for node in left:
            on = self.jobs_on.get(node, set())
            on.discard(name)
            if not on:
                self.jobs_on.pop(node, None)
        return sorted(left)


def occupying(view: JobView) -> tuple[str, ...]:
    """Nodes that the job uses now: schedulers go on naming the nodes of a job that has ended."""
    return () if view.state in IDLE else view.nodes


def subject(order: AnyOrder) -> str:
    """What an order is about: a job's slug, `node:NAME`, or empty."""
    job = getattr(order, "job", None)
    if job is not None:
        return slug(job)
    node = getattr(order, "node", "")
    return f"node:{node}" if node else ""


_decoder = msgspec.msgpack.Decoder(State)
_encoder = msgspec.msgpack.Encoder()


class _Head(Struct):
    version: int = 0


def to_bytes(state: State) -> bytes:
    """The snapshot: equal states give equal bytes."""
    return _encoder.encode(state)


def from_bytes(data: bytes) -> State:
    """Read a snapshot.

    Raises:
        VersionError: written by a newer version.
        WireError: not a snapshot; the message names the field.
    """
    try:
        head = msgspec.msgpack.decode(data, type=_Head)
        if head.version > SNAPSHOT_VERSION:
            raise VersionError(f"snapshot version {head.version} is newer than {SNAPSHOT_VERSION}: update holdfast")
        return _decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise WireError(f"not an engine snapshot: {error}") from error

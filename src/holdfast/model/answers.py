"""Bodies of the API's answers and of commands, as the API writes them and a client reads them.

Times are Unix seconds of the controller. A reader ignores fields that it does not know, so that an older client reads
a newer controller. Used by `holdfast.api` and by `holdfast.client`. No time passes here.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from holdfast.model.cluster import JobKey
from holdfast.model.events import AnyEvent, Command
from holdfast.model.records import AttemptRecord, BrakeRecord, IncidentRecord, JobRecord, NodeRecord, OrderRecord


class Health(Struct, frozen=True, kw_only=True):
    """State of the controller itself."""

    ok: bool
    ready: bool
    seq: int
    epoch: int
    queue: int
    orders: int
    failing: str
    """Why the journal cannot be written; empty: it can."""
    blind: bool
    """The orchestrator has been unreadable for long."""
    looked_at: float
    unseen: tuple[str, ...] = ()
    """Kinds of jobs that have been unreadable for long."""

    def __getitem__(self, name: str) -> Any:
        """A field by its name: clients of versions before had a mapping."""
        return getattr(self, name)


class StateAnswer(Struct, frozen=True):
    """Everything at a glance. Records may be newer than `seq`, never older."""

    seq: int
    health: Health
    jobs: list[JobRecord]
    nodes: list[NodeRecord]
    incidents: list[IncidentRecord]
    """Newest first; all open ones are among them unless there are more than a hundred newer."""
    brakes: list[BrakeRecord]


class EventsAnswer(Struct, frozen=True):
    """Events in order. Ask again with `after` = `last`."""

    last: int
    events: list[AnyEvent]


class SamplesAnswer(Struct, frozen=True):
    """Points of a series in order of time: `[subject, at, value]`; a value of null is NaN."""

    series: str
    points: list[tuple[str, float, float | None]]


class IncidentAnswer(Struct, frozen=True):
    """An incident with its events and orders."""

    record: IncidentRecord
    orders: list[OrderRecord]
    events: list[AnyEvent]


class JobAnswer(Struct, frozen=True):
    """A job with its newest events."""

    record: JobRecord
    events: list[AnyEvent]


class NodeAnswer(Struct, frozen=True):
    """A node with its newest events."""

    record: NodeRecord
    events: list[AnyEvent]


class OrderAnswer(Struct, frozen=True):
    """An order and what became of it."""

    record: OrderRecord


class DrillSeen(Struct, frozen=True):
    """A drill's fault that took effect, and the incident that Holdfast made of it."""

    drill: str
    kind: str
    at: float
    seq: int
    node: str = ""
    job: str = ""
    incident: str = ""
    outcome: str = ""


class Deed(Struct, frozen=True, omit_defaults=True):
    """One line of the audit: who did what to what, why, and what came of it."""

    seq: int
    at: float
    who: str
    what: str
    target: str = ""
    value: str = ""
    why: str = ""
    refused: str = ""
    """Why the engine did not do it; empty: it was taken."""
    orders: tuple[str, ...] = ()
    """What it led to at once: `kind id`."""
    by: str = ""
    """Name and id of the token that it came with; empty: nobody noted it."""


class Attempt(Struct, frozen=True):
    """An attempt and the job that it is one of."""

    job: JobKey
    name: str
    attempt: AttemptRecord


class CheckpointSeen(Struct, frozen=True, omit_defaults=True):
    """A checkpoint that a launcher reported."""

    job: JobKey
    attempt: int
    step: int
    durable: bool
    at: float
    seq: int
    path: str = ""
    took_s: float | None = None


class CommandRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An `OperatorCommand` without id and time; `who` is taken from the token unless it names several people."""

    command: Command
    who: str = ""
    why: str = ""
    node: str = ""
    job: JobKey | None = None
    order: str = ""
    group: str = ""
    value: str = ""
    remedy: str = ""
    id: str = ""
    """Given by a client that may send the command twice; empty: each request is a command of its own."""


class CommandAnswer(Struct, frozen=True):
    """The command is on disk; what came of it is in the events of this id."""

    seq: int
    id: str
    refused: str = ""
    """Why the engine did not do it; empty: it was taken."""
    waits: str = ""
    """What an approval that was taken waits for still, `1 of 2 approvals`, `2 of 2 approvals; the brake of...`; empty:
    nothing."""

    @property
    def standing(self) -> str:
        """Where the order stands that `waits`, as the end of a sentence about it."""
        return f"has {self.waits}" if ";" in self.waits else f"has {self.waits}, and waits for more"


class TokenPurpose(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a proof was made for, sealed with it: the same proof is good for nothing else, and nowhere else."""

    purpose: str = "holdfast token 1"
    cluster: str = ""
    source: str = ""
    """`agent:NODE`, `launcher:JOB`; empty: the user."""


class TokenRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """Asks for a token."""

    credential: str
    """A munge credential whose payload is a `TokenPurpose`."""


class TokenAnswer(Struct, frozen=True):
    """A token, and for whom it is."""

    token: str
    valid_s: float
    name: str
    role: str
    only: str = ""


class Problem(Struct, frozen=True, omit_defaults=True):
    """The body of every error."""

    title: str
    status: int
    detail: str = ""
    type: str = "about:blank"

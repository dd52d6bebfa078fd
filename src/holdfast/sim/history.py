"""What a judge is given: the journal as it was stored, and what truly happened in the simulated world meanwhile.

`run` fills in the records of a run at its end, `judging` the journal's steps and, from the world's happenings, the
`Deed`s. Judges (`sim/checkers`) compare the two and know nothing else. All times are seconds of the simulation's one
true clock, which nodes and controllers may read wrongly; a journal's own times are those that its controller saw.
"""

from __future__ import annotations

from msgspec import Struct, field

from holdfast.model.cluster import JobKey, SchedulerState, WorldView
from holdfast.model.events import AnyEvent
from holdfast.model.orders import AnyOrder
from holdfast.model.policy import PolicySet
from holdfast.model.records import IncidentRecord, JobRecord, NodeRecord, OrderRecord

PERSON = "person:"
"""Prefix of `by` in deeds that a person did behind Holdfast's back."""
SCHEDULER = "scheduler"
"""`by` of what the scheduler did by itself."""


# --- what truly happened ----------------------------------------------------------------------------------------------


class Deed(Struct, frozen=True, kw_only=True, tag_field="deed"):
    """Base of all deeds."""

    at: float


class OrderTook(Deed, frozen=True, kw_only=True, tag="order_took"):
    """An order had its effect on the scheduler, a machine or a launcher."""

    order: str
    kind: str
    """The order's tag, such as `requeue_held`."""
    job: JobKey | None = None
    node: str = ""
    instance_id: str = ""
    """The machine that was behind the node's name at that moment."""


class Drained(Deed, frozen=True, kw_only=True, tag="drained"):
    """The node takes no new work from here on. `by`: an order's id, or a person."""

    node: str
    by: str
    reason: str = ""


class Resumed(Deed, frozen=True, kw_only=True, tag="resumed"):
    """A drain was lifted. `by`: an order's id, or a person."""

    node: str
    by: str


class NodeMended(Deed, frozen=True, kw_only=True, tag="node_mended"):
    """The machine behind this name is well again. `by`: an order's id, a person, or `self`."""

    node: str
    instance_id: str
    by: str = ""


class RunBegan(Deed, frozen=True, kw_only=True, tag="run_began"):
    """Processes of a job begin on these nodes. `epoch` grows with each run of a job, requeued or in place."""

    job: JobKey
    epoch: int
    nodes: tuple[str, ...]
    by: str = ""
    """The order that let it (a release or a restart in place), a person, or the scheduler."""


class Wrote(Deed, frozen=True, kw_only=True, tag="wrote"):
    """A run's process published a checkpoint."""

    job: JobKey
    epoch: int
    step: int


class Held(Deed, frozen=True, kw_only=True, tag="held"):
    """A person keeps the job in the queue (`by` names them)."""

    job: JobKey
    by: str


class Cancelled(Deed, frozen=True, kw_only=True, tag="cancelled"):
    """A person cancelled the job, or let it end for good (`by` names them)."""

    job: JobKey
    by: str


class Faulted(Deed, frozen=True, kw_only=True, tag="faulted"):
    """The simulation injected a fault.

    `rules` are the causes that a right diagnosis may name; empty: the fault leaves nothing by which it could be known.
    """

    fault: str
    kind: str
    rules: tuple[str, ...] = ()
    node: str = ""
    job: JobKey | None = None


class Lied(Deed, frozen=True, kw_only=True, tag="lied"):
    """This reporter is hostile: all that it says from here on may be untrue."""

    source: str
    """`agent:NODE`, `launcher:ID` or `operator:USER`."""


class BeatTaken(Deed, frozen=True, kw_only=True, tag="beat_taken"):
    """A beat of the hostile reporter was taken in."""

    node: str = ""
    job_id: str = ""


class FaultsOver(Deed, frozen=True, kw_only=True, tag="faults_over"):
    """From here on nothing goes wrong any more: everything must come to rest within the bound."""

    bound_s: float


AnyDeed = (
    OrderTook
    | Drained
    | Resumed
    | NodeMended
    | RunBegan
    | Wrote
    | Held
    | Cancelled
    | Faulted
    | Lied
    | BeatTaken
    | FaultsOver
)


# --- the journal ------------------------------------------------------------------------------------------------------


class Step(Struct, frozen=True):
    """One event as stored, with the orders it led to."""

    event: AnyEvent
    orders: tuple[AnyOrder, ...] = ()


class History(Struct, kw_only=True):
    """One whole simulation, for judging."""

    steps: list[Step] = field(default_factory=list)
    """The journal, oldest first."""
    orders: list[OrderRecord] = field(default_factory=list)
    """Oldest first."""
    incidents: list[IncidentRecord] = field(default_factory=list)
    """Open and closed, oldest first."""
    jobs: list[JobRecord] = field(default_factory=list)
    nodes: list[NodeRecord] = field(default_factory=list)
    deeds: list[AnyDeed] = field(default_factory=list)
    """What truly happened, oldest first."""
    policies: PolicySet = field(default_factory=PolicySet)
    ended_at: float = 0.0
    """When the simulation stopped."""
    told: dict[str, str] = field(default_factory=dict)
    """Where somebody lies: id of each event that an honest reporter sent -> its source."""
    final: WorldView | None = None
    """The scheduler's own truth at the end."""

    def starved(self) -> set[JobKey]:
        """Jobs that stand in the queue at the end because too few nodes are left for them."""
        if self.final is None:
            return set()
        usable = [node.name for node in self.final.nodes if node.alive is not False and not node.drained]
        return {
            job.key
            for job in self.final.jobs
            if job.state is SchedulerState.PENDING and sum(name not in job.excluded for name in usable) < job.want_nodes
        }

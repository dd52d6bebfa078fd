"""What the engine wants done. An order is data: ports carry it out, its outcome comes back as an event.

Every order names its cause (the event that led to it) and its incident. "Ensure" semantics: carrying an order out
when the world already is as asked must succeed and change nothing. One order id, one effect.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from holdfast.model.cluster import JobKey
from holdfast.model.evidence import Remedy, Severity


class Order(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="order"):
    """Base of all orders. `id` is derived from the causing event's sequence number, so replay gives the same ids."""

    id: str
    cause: int
    """Journal sequence number of the event that led to this order."""
    incident: str = ""
    remedy: Remedy = Remedy.NONE
    """The rung of the ladder that this order belongs to; mode (observe, advise, act) is set per rung."""
    why: str = ""


# --- orders about a job ---


class JobOrder(Order, frozen=True, kw_only=True):
    """Base of orders about a job."""

    job: JobKey


class CaptureStacks(JobOrder, frozen=True, kw_only=True, tag="capture_stacks"):
    """Have every rank's stack dumped. Outcome: a `StacksCaptured` event, within `limit_s` seconds."""

    attempt: int
    limit_s: float = 5.0


class StopAttempt(JobOrder, frozen=True, kw_only=True, tag="stop_attempt"):
    """End all ranks of this attempt inside its allocation: SIGTERM, then SIGKILL after `grace_s`. Launcher only.

    Outcome: `AttemptEnded`. The allocation is kept.
    """

    attempt: int
    grace_s: float = 0.0


class RestartInPlace(JobOrder, frozen=True, kw_only=True, tag="restart_in_place"):
    """Start a new attempt inside the allocation on these nodes. Launcher only. Outcome: `AttemptStarted`."""

    attempt: int
    """Number of the new attempt."""
    epoch: int
    """Fencing epoch of the new attempt; larger than every earlier one."""
    exclude_nodes: tuple[str, ...] = ()
    restore_step_max: int | None = None
    """Load no checkpoint newer than this step (a poisoned one is stepped over)."""


class Escalate(JobOrder, frozen=True, kw_only=True, tag="escalate"):
    """The launcher's engine hands the job to the controller (or, without one, leaves the allocation)."""

    attempt: int
    exit_code: int
    """What the launcher exits with when there is no controller to take over."""
    exclude_nodes: tuple[str, ...] = ()


class SaveAndStop(JobOrder, frozen=True, kw_only=True, tag="save_and_stop"):
    """Ask the job to save a checkpoint at its next step boundary and stop with EXIT_RESTART_ME."""

    attempt: int
    limit_s: float = 120.0


class RequeueHeld(JobOrder, frozen=True, kw_only=True, tag="requeue_held"):
    """Stop the job if it runs, put it back into the queue and hold it there.

    Done only when the old attempt is provably over (processes gone, or its lease has ended).
    """

    restart_count: int
    """The scheduler's restart count before this order. If it is larger already, the requeue has happened: what waits in
    the queue is only held, and what runs is left."""
    gone: tuple[str, ...] = ()
    """Nodes of the job of which there is evidence that they do not run: their word need not be waited for."""
    leased: bool = False
    """Its ranks end by themselves soon after their launcher is cut off: a node that stays silent may be written off."""


class SetExcluded(JobOrder, frozen=True, kw_only=True, tag="set_excluded"):
    """Make the scheduler keep the held job off these nodes, merged with the owner's own exclusions."""

    nodes: tuple[str, ...] = ()


class ReleaseJob(JobOrder, frozen=True, kw_only=True, tag="release_job"):
    """Let the held job start as soon as there are nodes."""

    epoch: int
    """Fencing epoch that the next attempt gets."""
    restore_step_max: int | None = None


class GiveUp(JobOrder, frozen=True, kw_only=True, tag="give_up"):
    """Stop the job for good and keep it from being requeued; `why` is shown to its owner."""

    cancel: bool = True


# --- orders about a node ---


class NodeOrder(Order, frozen=True, kw_only=True):
    """Base of orders about a node. `instance_id` names the machine: an order for a former one is stale."""

    node: str
    instance_id: str = ""


class QuarantineNode(NodeOrder, frozen=True, kw_only=True, tag="quarantine_node"):
    """Keep new work off the node; running work goes on. `why` becomes the drain reason, behind our prefix."""

    gone: bool = False
    """There is evidence that it does not run: the scheduler need not wait for its word about what ran there."""
    repair: Remedy = Remedy.NONE
    """The repair that it is to get once it is drained, where that is known: shown on the node as it is marked."""
    takes_prolog_drain: bool = False
    """Slurm: a drain that Slurm itself set for a failed Prolog or Epilog becomes ours."""
    action_reason: bool = False
    """Slurm: the reason is `Action:Replace` or `Action:Reboot`, as `repair` says, and `why` stands in the comment."""


class ReturnNode(NodeOrder, frozen=True, kw_only=True, tag="return_node"):
    """Let the node take work again. Only a drain that we set is lifted."""


class ResetGpu(NodeOrder, frozen=True, kw_only=True, tag="reset_gpu"):
    """Reset the named GPU (all of them when empty)."""

    gpu: str = ""


class RebootNode(NodeOrder, frozen=True, kw_only=True, tag="reboot_node"):
    """Reboot; done when it answers with another boot id."""

    boot_id: str = ""


class ReplaceNode(NodeOrder, frozen=True, kw_only=True, tag="replace_node"):
    """Have another machine take this node's place; done when it answers with another instance id."""


class ValidateNode(NodeOrder, frozen=True, kw_only=True, tag="validate_node"):
    """Run the checks that a node must pass before it takes work. Outcome: `NodeValidated`."""


class RetireNode(NodeOrder, frozen=True, kw_only=True, tag="retire_node"):
    """Hand the node to a person; it stays out of service."""


# --- the engine's own ---


class StartTimer(Order, frozen=True, kw_only=True, tag="start_timer"):
    """Send `TimerFired(timer=...)` after `after_s` seconds. Starting a timer of the same name again replaces it."""

    timer: str
    after_s: float


class CancelTimer(Order, frozen=True, kw_only=True, tag="cancel_timer"):
    """Forget the timer if it is still waiting."""

    timer: str


ANSWERS = "command:command:"
"""Begins the topic of such a refusal: `command:` and the id of the event, which the API begins with `command:`."""


class Notify(Order, frozen=True, kw_only=True, tag="notify"):
    """Tell people. `topic` groups messages of one matter (an incident id, usually)."""

    topic: str
    severity: Severity = Severity.INFO
    title: str = ""
    text: str = ""
    job: JobKey | None = None
    node: str = ""
    asks: bool = False
    """A person must act (an approval, a node that was handed over): no number of other notices holds it back."""

    @property
    def is_answer(self) -> bool:
        """Is it the refusal of a command that came by the API? Whoever gave that has the answer."""
        return self.topic.startswith(ANSWERS)


AnyOrder = (
    CaptureStacks
    | StopAttempt
    | RestartInPlace
    | Escalate
    | SaveAndStop
    | RequeueHeld
    | SetExcluded
    | ReleaseJob
    | GiveUp
    | QuarantineNode
    | ReturnNode
    | ResetGpu
    | RebootNode
    | ReplaceNode
    | ValidateNode
    | RetireNode
    | StartTimer
    | CancelTimer
    | Notify
)


class OrderStatus(StrEnum):
    """An order's life. PROPOSED waits for a person (advise); OBSERVED was only recorded (observe)."""

    PENDING = "pending"
    PROPOSED = "proposed"
    OBSERVED = "observed"
    DONE = "done"
    FAILED = "failed"
    EXPIRED = "expired"
    REJECTED = "rejected"
    WITHDRAWN = "withdrawn"


WAITING = (OrderStatus.PROPOSED, OrderStatus.PENDING)
"""Without an outcome yet: what waits for a person, and what is under way."""

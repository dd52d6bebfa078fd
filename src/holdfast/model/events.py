"""Everything that can happen to the engine. Events are stored before they are handled and replayed in order.

`at` is when it happened where it was seen; `received_at` is the controller's time; `seq` is given by the journal.
An event's `id` comes from its source, whose name it begins with where the API took it in, and makes delivery
idempotent. Samples (heartbeats, steps) are not events.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from holdfast.model.cluster import JobKey, JobView, NodeView
from holdfast.model.evidence import Diagnosis, Domain, Finding


class Event(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event"):
    """Base of all events."""

    id: str
    at: float
    source: str = ""
    """Who says so: `agent:node07`, `launcher:1778`, `slurm`, `operator:mei`, `controller`."""
    received_at: float = 0.0
    seq: int = 0


# --- what the orchestrator's watch sees (level-based: only differences from the last snapshot become events) ----------


class JobObserved(Event, frozen=True, kw_only=True, tag="job_observed"):
    """The job is now like this (first seen, or different from before)."""

    job: JobView


class JobVanished(Event, frozen=True, kw_only=True, tag="job_vanished"):
    """A complete snapshot no longer holds this job."""

    job: JobKey


class NodeObserved(Event, frozen=True, kw_only=True, tag="node_observed"):
    """The node is now like this."""

    node: NodeView


class NodeVanished(Event, frozen=True, kw_only=True, tag="node_vanished"):
    """A complete snapshot no longer holds this node."""

    node: str


class WatchBlind(Event, frozen=True, kw_only=True, tag="watch_blind"):
    """The orchestrator has not been readable for a while (`blind=True`), or is again (`blind=False`)."""

    blind: bool
    kind: str = ""
    """What alone cannot be read, as `Unseen.kind` names it; empty: nothing can be read."""
    why: str = ""


# --- what launchers say ---


class LauncherAttached(Event, frozen=True, kw_only=True, tag="launcher_attached"):
    """A launcher takes authority over in-place restarts of this job."""

    job: JobKey
    restart_count: int
    lease_s: float = 10.0
    nodes: tuple[str, ...] = ()
    ranks: int = 0


class LauncherLapsed(Event, frozen=True, kw_only=True, tag="launcher_lapsed"):
    """The launcher's lease ended without renewal, or it left (`left=True`, with its exit code)."""

    job: JobKey
    left: bool = False
    exit_code: int | None = None
    restart_count: int | None = None
    """The start whose launcher it was; None: it is not told, and the newest one is meant."""


class AttemptStarted(Event, frozen=True, kw_only=True, tag="attempt_started"):
    """All processes of this attempt are started."""

    job: JobKey
    attempt: int
    epoch: int
    restart_count: int = 0
    in_place: int = 0
    """How many in-place restarts this allocation has had."""
    nodes: tuple[str, ...] = ()
    ranks: int = 0
    standby: bool = False
    """Warm standbys were used."""
    log_dir: str = ""


class AttemptEnded(Event, frozen=True, kw_only=True, tag="attempt_ended"):
    """No process of this attempt runs any more."""

    job: JobKey
    attempt: int
    exit_code: int | None = None
    signal: int | None = None
    stopped: bool = False
    """True: we ended it (StopAttempt, SaveAndStop or the scheduler's signal)."""
    last_step: int | None = None


class FirstStepDone(Event, frozen=True, kw_only=True, tag="first_step_done"):
    """The attempt completed its first step; `step` is that step's number, `resumed_from` the checkpoint it loaded."""

    job: JobKey
    attempt: int
    step: int
    resumed_from: int = 0


class CheckpointSaved(Event, frozen=True, kw_only=True, tag="checkpoint_saved"):
    """A checkpoint of this step exists. Only a durable one is progress.

    `took_s`: seconds from staged to durable by the ranks' own clocks, or what the log line tells; None: nobody told.
    """

    job: JobKey
    attempt: int
    step: int
    durable: bool
    path: str = ""
    took_s: float | None = None


class StepReached(Event, frozen=True, kw_only=True, tag="step_reached"):
    """The job passed a step worth knowing: the step before the fault, or a coarse mark (not every step)."""

    job: JobKey
    attempt: int
    step: int


class StacksCaptured(Event, frozen=True, kw_only=True, tag="stacks_captured"):
    """Stacks of all ranks, equal ones grouped; `odd_ranks` stand apart from the largest group."""

    job: JobKey
    attempt: int
    groups: tuple[StackGroup, ...] = ()
    odd_ranks: tuple[int, ...] = ()
    silent_ranks: tuple[int, ...] = ()
    """Ranks that gave no stack (stopped, dead or out of reach)."""
    stopped_ranks: tuple[int, ...] = ()
    """Those of them that a signal has stopped (SIGSTOP, a debugger)."""


class StackGroup(Struct, frozen=True, omit_defaults=True):
    """Ranks that stand at the same place."""

    ranks: tuple[int, ...]
    frames: tuple[str, ...] = ()
    """Innermost first, `function (file:line)`."""


class Escalated(Event, frozen=True, kw_only=True, tag="escalated"):
    """The launcher has no in-place rung left and hands over."""

    job: JobKey
    attempt: int
    diagnosis: Diagnosis | None = None
    exclude_nodes: tuple[str, ...] = ()
    why: str = ""


# --- what agents say ---


class FindingSeen(Event, frozen=True, kw_only=True, tag="finding_seen"):
    """Something was seen, by an agent, a launcher or a detector in the controller."""

    finding: Finding


class FindingCleared(Event, frozen=True, kw_only=True, tag="finding_cleared"):
    """A condition that a finding reported no longer holds."""

    rule: str
    node: str


class AgentAttached(Event, frozen=True, kw_only=True, tag="agent_attached"):
    """An agent on this node reports for the first time, or after a boot or replacement."""

    node: str
    boot_id: str
    instance_id: str = ""
    drill_ok: bool = False


class NodeSilent(Event, frozen=True, kw_only=True, tag="node_silent"):
    """Neither agent nor launcher of this node has been heard for `for_s` seconds. Not yet evidence of its death."""

    node: str
    for_s: float


class NodeHeard(Event, frozen=True, kw_only=True, tag="node_heard"):
    """A silent node is heard again."""

    node: str


class NodeGone(Event, frozen=True, kw_only=True, tag="node_gone"):
    """Positive evidence that the node does not run: connection reset, scheduler's or provider's word, lease's end."""

    node: str
    evidence: str
    domain: Domain = Domain.HARDWARE
    """What the evidence speaks of: the end of a connection between launchers alone says nothing against the machine."""


class NodeValidated(Event, frozen=True, kw_only=True, tag="node_validated"):
    """The outcome of `ValidateNode`."""

    node: str
    passed: bool
    instance_id: str = ""
    boot_id: str = ""
    detail: str = ""


# --- what people say ---


class Command(StrEnum):
    """What an operator can ask for."""

    DRAIN = "drain"
    RETURN = "return"
    REBOOT = "reboot"
    REPLACE = "replace"
    CONFIRM_HEALTHY = "confirm_healthy"
    REQUEUE = "requeue"
    HOLD = "hold"
    RELEASE = "release"
    GIVE_UP = "give_up"
    EVACUATE = "evacuate"
    APPROVE = "approve"
    REJECT = "reject"
    SET_MODE = "set_mode"
    RESET_BRAKE = "reset_brake"
    WITHDRAW = "withdraw"
    """Take back one's own approval of an order that waits for further ones."""


class OperatorCommand(Event, frozen=True, kw_only=True, tag="operator_command"):
    """A person's word, with who and why. Exactly one of node, job, order, group is the target."""

    command: Command
    who: str
    why: str = ""
    node: str = ""
    job: JobKey | None = None
    order: str = ""
    group: str = ""
    value: str = ""
    """The mode for SET_MODE (`observe`, `advise`, `act`)."""
    remedy: str = ""
    """The rung that SET_MODE is for; empty: all."""
    by: str = ""
    """Name and id of the token that it came with, `mei 3f0c2a9b1d4e`; `who` is free text. Empty: nobody noted it."""
    void: tuple[str, ...] = ()
    """For APPROVE: of the order's earlier approvals those (`by`) whose tokens were revoked, or have ended."""


class PolicyLoaded(Event, frozen=True, kw_only=True, tag="policy_loaded"):
    """From here on this policy holds; stored whole so that a replay uses it too."""

    toml: str
    file: str = ""


# --- the engine's own ---


class OrderDone(Event, frozen=True, kw_only=True, tag="order_done"):
    """The order's effect is there."""

    order: str
    detail: str = ""


class OrderFailed(Event, frozen=True, kw_only=True, tag="order_failed"):
    """The order could not be carried out, after the port's own retries."""

    order: str
    why: str
    permanent: bool = True


class TimerFired(Event, frozen=True, kw_only=True, tag="timer_fired"):
    """A wait is over. Its id is `fired_id` of the order that began the wait."""

    timer: str


def fired_id(order: str) -> str:
    """Id of the event that ends the wait which this `StartTimer` began: a wait that was replaced ends under another."""
    return f"timer:{order}"


class ControllerStarted(Event, frozen=True, kw_only=True, tag="controller_started"):
    """A controller took the lease with this fencing epoch. Timers and pending orders are carried on."""

    epoch: int
    scope: str = "cluster"
    version: str = ""
    ahead_s: float = 0.0
    """How far this controller's clock is ahead of that of the one before, as far as that is known."""


class DrillFired(Event, frozen=True, kw_only=True, tag="drill_fired"):
    """A drill's fault took effect now: the true time of the fault, for measuring. Judgement must not use it."""

    drill: str
    kind: str
    job: JobKey | None = None
    node: str = ""
    rank: int | None = None
    step: int | None = None


class DrillRun(Event, frozen=True, kw_only=True, tag="drill_run"):
    """A person had drills run on a cluster of their own, beside this one. For the audit; judgement must not use it."""

    who: str
    drills: tuple[str, ...]
    phase: str
    """`started`, then `passed`, `failed` or `stopped`."""
    run: str
    """The run's name, the same at its start and its end."""
    why: str = ""
    detail: str = ""


AnyEvent = (
    JobObserved
    | JobVanished
    | NodeObserved
    | NodeVanished
    | WatchBlind
    | LauncherAttached
    | LauncherLapsed
    | AttemptStarted
    | AttemptEnded
    | FirstStepDone
    | CheckpointSaved
    | StepReached
    | StacksCaptured
    | Escalated
    | FindingSeen
    | FindingCleared
    | AgentAttached
    | NodeSilent
    | NodeHeard
    | NodeGone
    | NodeValidated
    | OperatorCommand
    | PolicyLoaded
    | OrderDone
    | OrderFailed
    | TimerFired
    | ControllerStarted
    | DrillFired
    | DrillRun
)

"""What a cluster is made of, as a scheduler reports it: jobs, nodes, and a snapshot of both.

Orchestrator adapters build these values from what *is*; the engine compares them with what it knows.
Times are Unix seconds as the scheduler gave them; 0.0 means "not known".
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class JobKey(Struct, frozen=True, order=True):
    """A job for good: schedulers reuse ids, so `generation` counts what was first seen under that id."""

    cluster: str
    id: str
    generation: int = 1

    def __str__(self) -> str:
        """`1778`, or `1778#2` when the id was used before."""
        return self.id if self.generation == 1 else f"{self.id}#{self.generation}"


class SchedulerState(StrEnum):
    """A job's state in the scheduler's eyes, reduced to what recovery needs."""

    PENDING = "pending"
    HELD = "held"
    RUNNING = "running"
    COMPLETING = "completing"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    NODE_FAIL = "node_fail"
    PREEMPTED = "preempted"
    UNKNOWN = "unknown"


ENDED = frozenset(
    {
        SchedulerState.COMPLETED,
        SchedulerState.FAILED,
        SchedulerState.CANCELLED,
        SchedulerState.TIMEOUT,
        SchedulerState.NODE_FAIL,
        SchedulerState.PREEMPTED,
    }
)
"""Scheduler states after which nothing of the job runs and nothing will, unless it is requeued."""


class RecoverySpec(Struct, frozen=True, omit_defaults=True):
    """What the job's owner asked for; a number here overrides the site's policy."""

    enabled: bool = True
    max_requeues: int | None = None
    max_in_place: int | None = None
    policy: str = ""
    """Name of a preset or policy that this job asks for; empty: the site's."""


class JobView(Struct, frozen=True, omit_defaults=True):
    """One job as the scheduler reports it now."""

    key: JobKey
    task: str = ""
    """What people call it where that is not its id: `12_2` of an array's task."""
    name: str = ""
    user: str = ""
    project: str = ""
    """Slurm's account, Kubernetes' namespace; empty: it has none."""
    partition: str = ""
    state: SchedulerState = SchedulerState.UNKNOWN
    restart_count: int = 0
    """How often the scheduler has requeued it (in-place restarts are not counted here)."""
    nodes: tuple[str, ...] = ()
    excluded: tuple[str, ...] = ()
    want_nodes: int = 1
    exit_code: int | None = None
    signal: int | None = None
    reason: str = ""
    """The scheduler's own words, for people."""
    lacks_nodes: bool = False
    """Queued, and by its scheduler's word the nodes that it needs are not free."""
    recovery: RecoverySpec | None = None
    """None: nobody asked for recovery, so Holdfast only watches."""
    drill_ok: bool = False
    """The owner marked this job as open to drills."""
    job_dir: str = ""
    submitted_at: float = 0.0
    started_at: float = 0.0
    ended_at: float = 0.0
    warnings: tuple[str, ...] = ()
    """What its owner seems to have meant and did not get, such as a key in the wrong case."""


class NodeView(Struct, frozen=True, omit_defaults=True):
    """One node as the scheduler reports it now."""

    name: str
    group: str = ""
    """Partition or node group: the unit that brakes and policies are set for."""
    alive: bool | None = None
    """True: it answers. False: there is positive evidence that it does not run. None: not known (silence)."""
    drained: bool = False
    """It takes no new work (draining or drained, by whomever)."""
    drain_reason: str = ""
    boot_id: str = ""
    instance_id: str = ""
    """The machine itself: changes when the node is replaced, stays over a reboot."""
    jobs: tuple[str, ...] = ()
    """Ids of jobs that have processes there now."""
    spare: bool = False
    gpus: int = 0
    topology: str = ""
    """Failure domain path such as `row1/rack3/switch7`; empty: not known."""
    state_text: str = ""
    """The scheduler's own words, for people."""
    asked: str = ""
    """A repair that a person asked for in the scheduler's own way: `reboot`, `replace`, or nothing."""
    moves_jobs: bool = False
    """That way has running jobs leave at once; else the repair waits until they end."""
    failed_check: str = ""
    """The scheduler drained it itself because its own check there failed (Slurm's Prolog): what it says of that."""
    warnings: tuple[str, ...] = ()
    """What such a person seems to have meant and did not get."""


NODE_KIND = "node"
"""The `Unseen.kind` of a scheduler that has lost its own line to its nodes: those are unknown, not gone."""


class Unseen(Struct, frozen=True):
    """A kind of job that cannot be read now: jobs of it that a snapshot lacks are unknown, not gone."""

    kind: str
    """As in a job's id: `pytorchjob`; or `NODE_KIND`."""
    why: str = ""
    """Empty where the scheduler has none of this kind, as far as it says."""


class WorldView(Struct, frozen=True, omit_defaults=True):
    """One snapshot of a whole cluster. A missed change is healed by the next one."""

    cluster: str
    at: float
    jobs: tuple[JobView, ...] = ()
    nodes: tuple[NodeView, ...] = ()
    complete: bool = True
    """False: the scheduler answered in part; what is missing is unknown, not gone."""
    unseen: tuple[Unseen, ...] = ()


def job_kind(key: JobKey) -> str:
    """The kind of a job whose id is `NAMESPACE.KIND.NAME`; empty for an id of another form."""
    parts = key.id.split(".", 2)
    return parts[1] if len(parts) == 3 else ""


def attempt_name(job_id: str, attempt: int) -> str:
    """`1778(0)`: how attempts are written everywhere."""
    return f"{job_id}({attempt})"

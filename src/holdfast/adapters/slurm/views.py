"""Slurm's jobs and nodes as the engine sees them. Pure.

A heterogeneous job is one job under its leader's id, on the nodes of all its components; each task of an array that
has been split off is a job of its own. Time stands still here: what is "now" comes in.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from holdfast.adapters.slurm.asks import PREFIX, action_of, wish_of
from holdfast.adapters.slurm.node_output import SlurmNode
from holdfast.adapters.slurm.output import SlurmJob
from holdfast.model.cluster import JobKey, JobView, NodeView, SchedulerState
from holdfast.model.machine import MachineId

FAILED_CHECKS = {
    "Prolog error": "its Prolog failed",
    "Epilog error": "its Epilog failed",
    "Kill task failed": "a task there could not be ended within UnkillableStepTimeout",
    "Kill job failed": "a job there could not be ended",
}
"""Reasons of slurmctld's own drains: evidence against the node."""

_ENDS = {
    "COMPLETED": SchedulerState.COMPLETED,
    "CANCELLED": SchedulerState.CANCELLED,
    "REVOKED": SchedulerState.CANCELLED,
    "FAILED": SchedulerState.FAILED,
    "OUT_OF_MEMORY": SchedulerState.FAILED,
    "TIMEOUT": SchedulerState.TIMEOUT,
    "DEADLINE": SchedulerState.TIMEOUT,
    "NODE_FAIL": SchedulerState.NODE_FAIL,
    "BOOT_FAIL": SchedulerState.NODE_FAIL,
    "PREEMPTED": SchedulerState.PREEMPTED,
}
_HELD_REASONS = frozenset({"JobHeldUser", "JobHeldAdmin", "SpecialExit", "RequeueHold"})
_HELD_FLAGS = frozenset({"SPECIAL_EXIT", "REQUEUE_HOLD", "RESV_DEL_HOLD"})
BAD_CONSTRAINTS = "BadConstraints"
"""Slurm's reason for a job that no node fits: its own node list or reservation has only nodes that it is kept off. Its
priority is 0 meanwhile, which is nobody's hold; a change of its exclusions gives that back."""
_LACKS_NODES = ("resource", "node", "unavailable", BAD_CONSTRAINTS.casefold())
"""Words of Slurm's reasons for a job that waits until nodes are free: `Resources`, `ReqNodeNotAvail`."""
LAUNCH_FAILED = "launch failed requeued held"
"""What slurmctld writes when a Prolog failed: the job waits, held, for a person who may never come."""


def is_completing(job: SlurmJob) -> bool:
    """Do its nodes still owe the word that nothing of it runs?"""
    return "COMPLETING" in job.states


def launch_failed(job: SlurmJob) -> bool:
    """Did its Prolog, or a node, keep it from starting, and does it now wait held?"""
    return state_of(job) is SchedulerState.HELD and LAUNCH_FAILED in f"{job.reason} {job.description}"


def state_of(job: SlurmJob) -> SchedulerState:
    """One word for base state and flags."""
    states = job.states
    if "COMPLETING" in states:
        return SchedulerState.COMPLETING
    if "PENDING" in states or "REQUEUED" in states:
        is_zero = job.priority == 0 and job.reason != BAD_CONSTRAINTS
        held = is_zero or job.reason in _HELD_REASONS or bool(states & _HELD_FLAGS)
        return SchedulerState.HELD if held else SchedulerState.PENDING
    if states & {"SPECIAL_EXIT", "REQUEUE_HOLD"}:
        return SchedulerState.HELD
    if states & {"CONFIGURING", "POWER_UP_NODE"}:
        return SchedulerState.PENDING
    for word, state in _ENDS.items():
        if word in states:
            return state
    if states & {"RUNNING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING", "STAGE_OUT"}:
        return SchedulerState.RUNNING
    return SchedulerState.UNKNOWN


def _reason_of(job: SlurmJob) -> str:
    words = [job.reason] if job.reason not in {"", "None"} else []
    if job.description and job.description != job.reason:
        words.append(job.description)
    if job.reason == BAD_CONSTRAINTS:
        words.append("no node fits what ReqNodeList and ExcNodeList of `scontrol show job` say")
    if job.is_expedited and "REQUEUE_HOLD" in job.states:
        words.append("--requeue=expedite: no Epilog failed, so Slurm holds it")
    words += [word for word in ("OUT_OF_MEMORY", "DEADLINE", "BOOT_FAIL", "SUSPENDED") if word in job.states]
    if job.array_text:
        words.append(f"array tasks {job.array_text}")
    return "; ".join(words)


def joined(jobs: Iterable[SlurmJob]) -> list[SlurmJob]:
    """Components of heterogeneous jobs folded into their leaders; everything else as it is."""
    plain: list[SlurmJob] = []
    parts: dict[int, list[SlurmJob]] = {}
    for job in jobs:
        if job.het_job:
            parts.setdefault(job.het_job, []).append(job)
        else:
            plain.append(job)
    for together in parts.values():
        together.sort(key=lambda part: part.het_offset)
        leader = together[0]
        worst = next((part for part in together if state_of(part) is not SchedulerState.COMPLETED), leader)
        plain.append(
            replace(
                leader,
                states=worst.states,
                reason=worst.reason,
                exit_code=worst.exit_code,
                signal=worst.signal,
                nodes=tuple(dict.fromkeys(node for part in together for node in part.nodes)),
                want_nodes=sum(part.want_nodes for part in together),
            )
        )
    return plain


def job_view(job: SlurmJob, key: JobKey) -> JobView:
    """The job, for the engine."""
    state = state_of(job)
    reason = _reason_of(job)
    if launch_failed(job):
        # Slurm gave it up to a person; to the engine it is a start that failed for the node's sake.
        state = SchedulerState.NODE_FAIL
    runs = state in {SchedulerState.RUNNING, SchedulerState.COMPLETING, SchedulerState.UNKNOWN}
    over = state in _ENDS.values()
    wish = wish_of(job.comment)
    return JobView(
        key=key,
        task=job.ref if job.ref != job.id else "",
        name=job.name,
        user=job.user,
        project=job.account,
        partition=job.partition.partition(",")[0],
        state=state,
        restart_count=job.restart_count,
        nodes=job.nodes if runs or over else (),
        excluded=job.excluded,
        want_nodes=job.want_nodes,
        exit_code=job.exit_code if over else None,
        signal=job.signal if over else None,
        reason=reason,
        lacks_nodes=state is SchedulerState.PENDING and any(word in reason.casefold() for word in _LACKS_NODES),
        recovery=wish.recovery,
        drill_ok=wish.drill_ok,
        submitted_at=job.submitted_at,
        # Of a waiting job Slurm gives the start that it expects, which changes with every look.
        started_at=job.started_at if runs or over else 0.0,
        ended_at=job.ended_at if over else 0.0,
        warnings=wish.warnings,
    )


def busy_nodes(jobs: Iterable[SlurmJob]) -> dict[str, list[str]]:
    """Node -> ids of the jobs that have processes there, whoever's."""
    busy: dict[str, list[str]] = {}
    for job in jobs:
        if state_of(job) in {SchedulerState.RUNNING, SchedulerState.COMPLETING} or "CONFIGURING" in job.states:
            for node in job.nodes:
                busy.setdefault(node, []).append(job.id)
    return busy


_ASLEEP = frozenset({"POWERED_DOWN", "POWERING_DOWN", "POWERING_UP", "POWER_DOWN", "POWER_UP", "FUTURE"})
_SILENT = "not responding"
_LOST_REASONS = (_SILENT, "unexpectedly rebooted")


def is_lost(node: SlurmNode) -> bool:
    """Did slurmctld itself set it down, because it did not answer or came back unasked?

    A person's `down` has a reason of its own; one that was left by an earlier drain is Slurm's doing.
    """
    told = node.was_resumed or any(word in node.reason.casefold() for word in _LOST_REASONS)
    return "DOWN" in node.states and told


def out_of_reach(nodes: Iterable[SlurmNode], together_s: float) -> frozenset[str]:
    """Nodes that slurmctld set down for their silence when it reached fewer than that: its line to them broke.

    Munge, the network of slurmctld or its machine was away for longer than SlurmdTimeout. That says nothing of the
    nodes, and they are well when they answer again.

    Args:
        nodes: all of the cluster.
        together_s: those that were set down within so many seconds of each other are one loss.
    """
    awake = [node for node in nodes if not node.states & (_ASLEEP | {"REBOOT_ISSUED"})]
    lost = [node for node in awake if is_lost(node) and (node.was_resumed or _SILENT in node.reason.casefold())]
    silent = sum("NOT_RESPONDING" in node.states and "DOWN" not in node.states for node in awake)
    reached = sum(not node.states & {"NOT_RESPONDING", "DOWN"} for node in awake)
    losses: list[list[SlurmNode]] = []
    for node in sorted(lost, key=lambda one: one.reason_at):
        if losses and node.reason_at - losses[-1][-1].reason_at <= together_s:
            losses[-1].append(node)
        else:
            losses.append([node])
    return frozenset(node.name for loss in losses if len(loss) + silent > max(1, reached) for node in loss)


NO_ANSWER = f"{PREFIX} slurmd does not answer"
"""Reason of a node that was written off while a job's end waited for its word: evidence, unlike a decision."""


def alive_of(node: SlurmNode, answered_at: float = 0.0) -> bool | None:
    """Does it run? Slurm's own word only: that somebody set it `down` says nothing about that.

    `answered_at` is the start of a slurmd that is known to have answered since.
    """
    states = node.states
    if states & _ASLEEP:
        return None
    if "REBOOT_ISSUED" in states:
        return None
    if "DOWN" in states:
        if is_lost(node):
            return False
        if node.slurmd_at > node.reason_at > 0 or (node.slurmd_at == answered_at and answered_at > 0):
            return True  # it has come back since
        if node.reason == NO_ANSWER:
            return False
        return False if "NOT_RESPONDING" in states and not node.reason.startswith(PREFIX) else None
    if states & {"NOT_RESPONDING", "NO_RESPOND", "UNKNOWN"}:
        return None
    return True


_OUT = frozenset({"DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING", "ERROR"})


def is_drained(node: SlurmNode) -> bool:
    """Did somebody decide that it takes no new work?

    A node that Slurm itself lost takes none either, but nobody has decided on it yet; one that power saving has put to
    sleep does, since it is woken for it.
    """
    if node.states & _OUT:
        return True
    return "DOWN" in node.states and not is_lost(node)


def node_view(
    node: SlurmNode,
    *,
    jobs: tuple[str, ...],
    machine: MachineId,
    boot: str,
    answered_at: float = 0.0,
    is_out_of_reach: bool = False,
) -> NodeView:
    """The node, for the engine. `machine` and `boot` name what is behind the name, as far as that is known."""
    drained = is_drained(node)
    asked, warning = action_of(node.reason) if drained else ("", "")
    return NodeView(
        name=node.name,
        group=node.partitions[0] if node.partitions else "",
        alive=None if is_out_of_reach else alive_of(node, answered_at),
        drained=drained,
        drain_reason=node.reason if drained else "",
        boot_id=boot,
        instance_id=str(machine),
        jobs=jobs,
        gpus=node.gpus,
        state_text=node.state_text,
        asked=asked,
        failed_check=FAILED_CHECKS.get(node.reason, "") if drained else "",
        warnings=(warning,) if warning else (),
    )

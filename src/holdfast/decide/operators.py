"""What people say: commands, approvals and rejections, modes and brakes.

A person's word always wins over the engine's own plans; what it refuses, it refuses with a reason, as a notice on the
command's own topic. Called by `engine.py`; the only time is the event's.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.decide import incidents, ladder, nodes, recovery, repair, restart
from holdfast.decide.machine import Claim
from holdfast.decide.records import job as job_record
from holdfast.decide.records import node as node_record
from holdfast.decide.records.turn import Turn, describe
from holdfast.model import events as e
from holdfast.model import orders as o
from holdfast.model import story
from holdfast.model.cluster import SchedulerState
from holdfast.model.events import Command
from holdfast.model.evidence import Domain, Evidence, EvidenceKind, Finding, Place, Remedy, Role, Severity
from holdfast.model.machine import other_machine
from holdfast.model.orders import OrderStatus
from holdfast.model.policy import Mode
from holdfast.model.records import (
    Approval,
    Authority,
    IncidentRecord,
    JobRecord,
    JobState,
    NodeRecord,
    NodeState,
    NodeTrigger,
    OrderRecord,
)

_RUNS_ON = frozenset({JobState.WATCHING, JobState.PROVING})
_STOPPED_SO_FAR = frozenset(
    {JobState.STOPPING, JobState.IN_PLACE, JobState.DIAGNOSING, JobState.EVACUATING, JobState.RESTARTING}
)
"""A recovery is under way, and the job holds its nodes as far as it has come."""
_REPAIRS = {Command.REBOOT: Remedy.REBOOT, Command.REPLACE: Remedy.REPLACE}


def command(turn: Turn, event: e.OperatorCommand) -> None:
    """Do what a person asks, or say why not."""
    if event.command in {Command.APPROVE, Command.REJECT, Command.WITHDRAW}:
        _decide(turn, event)
    elif event.command is Command.SET_MODE:
        _set_mode(turn, event)
    elif event.command is Command.RESET_BRAKE:
        if not nodes.reset_brake(turn, event.group, event.who):
            refuse(turn, event, f"there is no group {event.group!r}")
    elif event.node:
        node = turn.state.nodes.get(event.node)
        handler = _ON_NODES.get(event.command)
        if node is None or handler is None:
            refuse(turn, event, f"no node {event.node}" if node is None else f"{event.command} is not for nodes")
        else:
            turn.tell(node, f"{event.who} says: {event.command.replace('_', ' ')}. {event.why}".strip())
            handler(turn, event, node)
    elif event.job is not None:
        job = turn.job(event.job)
        on_job = _ON_JOBS.get(event.command)
        if job is None or on_job is None:
            refuse(turn, event, f"no job {event.job}" if job is None else f"{event.command} is not for jobs")
        else:
            turn.tell(job, f"{event.who} says: {event.command.replace('_', ' ')}. {event.why}".strip())
            on_job(turn, event, job)
    else:
        refuse(turn, event, "it names neither node, job, order nor group")


def refuse(turn: Turn, event: e.OperatorCommand, why: str) -> None:
    """Tell whoever asked why it is not done."""
    target = event.node or str(event.job or "") or event.order or event.group
    turn.notify(
        f"command:{event.id}",
        Severity.WARNING,
        f"Refused: {event.command.replace('_', ' ')} {target}",
        f"{why}.",
        job=event.job,
        node=event.node,
    )


def _word(turn: Turn, event: e.OperatorCommand, what: str) -> Finding:
    return Finding(
        id=f"{ladder.OPERATOR}{what}:{turn.state.seq}",
        rule=f"{ladder.OPERATOR}{what}",
        at=event.at,
        domain=Domain.OPERATOR,
        role=Role.ROOT,
        severity=Severity.INFO,
        place=Place(node=event.node),
        job=event.job,
        summary=f"{event.who} asked for it{': ' + event.why if event.why else ''}",
        fingerprint=f"{ladder.OPERATOR}{what}",
        evidence=(Evidence(EvidenceKind.PERSON, f"{event.who}: {event.why}"[:200]),),
    )


def _drain(turn: Turn, event: e.OperatorCommand, node: NodeRecord, repair_by: Remedy = Remedy.NONE) -> None:
    """Keep new work off it until somebody returns it, or for the repair that was asked for.

    Brake and mode are for the engine, not for people.
    """
    state = node.phase
    if state not in {NodeState.HEALTHY, NodeState.SUSPECT}:
        turn.tell(node, f"It is {state} already.")
        return
    if node.view.drained and not nodes.is_ours(node.view):
        refuse(turn, event, f"it is drained already by somebody else ({node.view.drain_reason or 'no reason given'})")
        return
    turn.orders.withdraw(node.about, "a person drained it")
    node_record.unbrake(turn, node)
    turn.move_node(node, NodeTrigger.QUARANTINE)
    why = f"{event.who}: {event.why or 'drained by hand'}"
    turn.orders.issue(nodes.order_to_fence(turn, node, why, repair_by))


def _return(turn: Turn, event: e.OperatorCommand, node: NodeRecord) -> None:
    """Take it back into service: the person vouches for it."""
    theirs = bool(node.view.failed_check) or not nodes.is_ours(node.view)  # only a quarantine makes Slurm's drain ours
    if node.view.drained and not node.drained_by_us and theirs:
        reason = node.view.drain_reason or "no reason given"
        refuse(turn, event, f"it was drained by somebody else ({reason}); whoever did that returns it")
        return
    ours = node.drained_by_us or node.view.drained or node.phase not in {NodeState.HEALTHY, NodeState.SUSPECT}
    nodes.vouched(turn, node, f"{event.who} vouches for it")
    if ours:
        why = f"by {event.who}"
        turn.orders.issue(turn.outgoing.make(o.ReturnNode, node=node.name, instance_id=node.instance_id, why=why))


def _repair(turn: Turn, event: e.OperatorCommand, node: NodeRecord) -> None:
    """Reboot or replace it, once nothing runs there any more. Its jobs are moved at once where the wish says so."""
    rung = _REPAIRS[event.command]
    state = node.phase
    if state in {NodeState.REPAIRING, NodeState.VALIDATING}:
        refuse(turn, event, f"it is {state} already")
        return
    if node.view.drained and not node.drained_by_us and not nodes.is_ours(node.view):
        refuse(turn, event, f"it is drained by somebody else ({node.view.drain_reason or 'no reason given'})")
        return
    finding = _word(turn, event, rung)
    incident = repair.incident_of(turn, node) or incidents.open_new(turn, finding)
    incidents.add(turn, incident, finding)
    incidents.attach_node(turn, incident, node)
    incidents.judge(turn, incident, None)
    node_record.repair_asked(node, finding.rule)
    turn.state.approved[node.about] = [rung]
    if state is NodeState.DRAINING:
        turn.orders.withdraw(node.about, "a person chose the repair")
        repair.check_drained(turn, node)
    elif state in {NodeState.HEALTHY, NodeState.SUSPECT}:
        _drain(turn, event, node, rung)
    elif state is NodeState.RETIRED:
        turn.move_node(node, NodeTrigger.CHECK)
        repair.try_rung(turn, node, 0, f"{event.who} asks for its repair")
    if node.view.moves_jobs:
        _move_jobs(turn, event, node)


def _evacuate_node(turn: Turn, event: e.OperatorCommand, node: NodeRecord) -> None:
    """Have all its jobs save, stop and go elsewhere."""
    if not turn.index.jobs_on.get(node.name):
        refuse(turn, event, "no job runs there")
        return
    _drain(turn, event, node)
    _move_jobs(turn, event, node)


def _move_jobs(turn: Turn, event: e.OperatorCommand, node: NodeRecord) -> None:
    """Keep all its jobs off it; those whose attempt runs save, stop and go elsewhere. The others leave already."""
    for name in sorted(turn.index.jobs_on.get(node.name, ())):
        job = turn.state.jobs[name]
        if not job.over:
            restart.exclude(turn, job, [node.name])
            if job.state in _RUNS_ON:
                _evacuate(turn, event, job)


_ON_NODES: dict[Command, Callable[[Turn, e.OperatorCommand, NodeRecord], None]] = {
    Command.DRAIN: _drain,
    Command.RETURN: _return,
    Command.REBOOT: _repair,
    Command.REPLACE: _repair,
    Command.CONFIRM_HEALTHY: _return,
    Command.EVACUATE: _evacuate_node,
}


def _open_for(turn: Turn, event: e.OperatorCommand, job: JobRecord, what: str) -> IncidentRecord:
    """An incident whose cause is the person's word."""
    incident = incidents.open_new(turn, _word(turn, event, what))
    incidents.attach_job(turn, incident, job)
    incidents.judge(turn, incident, job)
    job_record.broken(turn, job, incident.id)
    return incident


def _requeue(turn: Turn, event: e.OperatorCommand, job: JobRecord) -> None:
    """Stop it, queue it, let it start again."""
    if turn.in_allocation:
        refuse(turn, event, "a launcher cannot requeue; ask the controller or the scheduler")
    elif job.over:
        refuse(turn, event, f"it is {job.state}")
    elif job.state in _RUNS_ON:
        incident = _open_for(turn, event, job, "requeue")
        job_record.asked_for(turn, job, Remedy.REQUEUE)
        restart.requeue(turn, job, incident, f"{event.who} asked for it")
    elif (known := restart.incident_of(turn, job)) is not None and job.state in _STOPPED_SO_FAR and not job.in_queue:
        turn.orders.withdraw(job.about, "a person asked for a requeue")
        job_record.asked_for(turn, job, Remedy.REQUEUE)
        restart.requeue(turn, job, known, f"{event.who} asked for it")
    else:
        refuse(turn, event, "it is in the queue already")


def _hold(turn: Turn, event: e.OperatorCommand, job: JobRecord) -> None:
    """Do not release it before somebody says so. What runs is not stopped by this."""
    if job.over:
        refuse(turn, event, f"it is {job.state}")
        return
    turn.claim(job, Claim.HELD, event.who)
    incident = restart.incident_of(turn, job)
    if job.state is JobState.HELD:
        turn.orders.withdraw(job.about, f"{event.who} holds it")
        restart.go_on_from_hold(turn, job)
    elif (
        incident is not None
        and not turn.in_allocation
        and job.state in restart.WAITS
        and job.view.state in {SchedulerState.PENDING, SchedulerState.HELD}
    ):
        # It is queued already: the same requeue order, with the count it had before, means "ensure that it is held".
        turn.orders.withdraw(job.about, f"{event.who} holds it")
        turn.orders.issue(
            turn.order(
                o.RequeueHeld,
                job,
                incident.id,
                Remedy.REQUEUE,
                f"{event.who} holds it",
                restart_count=max(0, job.view.restart_count - 1),
            )
        )
        restart.entered_requeue(turn, job, incident, f"{event.who} holds it")


def _release(turn: Turn, event: e.OperatorCommand, job: JobRecord) -> None:
    """End a person's hold."""
    if not job.held_by:
        refuse(turn, event, "nobody holds it")
        return
    turn.claim(job, Claim.HOLD_ENDED)
    restart.go_on_from_hold(turn, job)


def _give_up(turn: Turn, event: e.OperatorCommand, job: JobRecord) -> None:
    if job.over:
        refuse(turn, event, f"it is {job.state}")
        return
    why = f"{event.who} asked for it{': ' + event.why if event.why else ''}"
    incident = restart.incident_of(turn, job) or _open_for(turn, event, job, "give_up")
    restart.give_up(turn, job, incident, why)


def _evacuate(turn: Turn, event: e.OperatorCommand, job: JobRecord) -> None:
    """Save, stop, and start again."""
    if job.state not in _RUNS_ON or not job.alive:
        refuse(turn, event, f"it is {job.state}, so there is nothing to save")
        return
    if turn.in_allocation and job.authority is not Authority.LAUNCHER:
        refuse(turn, event, "its launcher has handed it over")
        return
    incident = _open_for(turn, event, job, "evacuate")
    if job.authority is Authority.LAUNCHER:
        job_record.asked_for(turn, job, Remedy.EVACUATE, Remedy.REQUEUE)
        recovery.evacuate(turn, job, incident, f"{event.who} asked for it")
    else:
        job_record.asked_for(turn, job, Remedy.REQUEUE)
        turn.tell(job, "No launcher can have it saved, so it is requeued as it is.")
        restart.requeue(turn, job, incident, f"{event.who} asked for it")


_ON_JOBS: dict[Command, Callable[[Turn, e.OperatorCommand, JobRecord], None]] = {
    Command.REQUEUE: _requeue,
    Command.HOLD: _hold,
    Command.RELEASE: _release,
    Command.GIVE_UP: _give_up,
    Command.EVACUATE: _evacuate,
}


def _decide(turn: Turn, event: e.OperatorCommand) -> None:
    record = turn.state.orders.get(event.order)
    if record is None or record.status is not OrderStatus.PROPOSED:
        refuse(turn, event, f"{event.order or 'it'} is not waiting for a decision")
        return
    if event.command is Command.WITHDRAW:
        _take_back(turn, event, record)
        return
    if event.command is Command.REJECT:
        why = f"rejected by {event.who}{': ' + event.why if event.why else ''}"
        turn.orders.settle(record.order.id, OrderStatus.REJECTED, why)
        _dropped(turn, record, why)
        return
    obstacle = _no_longer_applies(turn, record)
    if obstacle:
        turn.orders.settle(record.order.id, OrderStatus.WITHDRAWN, obstacle)
        refuse(turn, event, obstacle)
        _dropped(turn, record, obstacle)
        return
    _drop_void(turn, event, record)
    if record.is_approved:
        refuse(turn, event, f"it is approved, and {nodes.BRAKE}")
    elif record.approvals_needed <= 1 and not nodes.is_braked(turn, record):
        _approve(turn, record, event.who)
    elif not _agrees(turn, event, record):
        return
    elif nodes.is_braked(turn, record):
        _tell_of(turn, record, f"{event.who} approved: {describe(record.order)}.")
        nodes.wait_for_brake(turn, record)
    else:
        _approve(turn, record, story.listed([known.who for known in record.approvals]))


def _drop_void(turn: Turn, event: e.OperatorCommand, record: OrderRecord) -> None:
    """Count no more what came with tokens that were revoked, or have ended."""
    left = [known for known in record.approvals if known.by not in event.void]
    if len(left) < len(record.approvals):
        gone = story.listed([known.who for known in record.approvals if known.by in event.void])
        _leave(turn, record, left)
        _tell_of(turn, record, f"the approval of {gone} counts no more: the token was revoked, or has ended.")


def _leave(turn: Turn, record: OrderRecord, left: list[Approval]) -> None:
    """These approvals are left. An order that waited for a brake alone waits for people again."""
    was_approved = record.is_approved
    turn.orders.agree(record, left)
    if was_approved and isinstance(record.order, o.NodeOrder):
        nodes.wait_for_people(turn, record)


def _agrees(turn: Turn, event: e.OperatorCommand, record: OrderRecord) -> bool:
    """Count this person's approval, once. True when it was the last that was needed."""
    if any(known.is_of(event.by) for known in record.approvals):
        token = event.by.partition(" ")[0] or event.who
        text = f"{token} has approved it already; it takes {record.approvals_needed} people, each with their own token"
        refuse(turn, event, text)
        return False
    turn.orders.agree(record, [*record.approvals, Approval(event.who, event.by, turn.now)])
    missing = record.approvals_needed - len(record.approvals)
    if missing > 0:
        _tell_of(turn, record, f"{event.who} approved: {describe(record.order)}. It takes {missing} more.")
    return missing <= 0


def _take_back(turn: Turn, event: e.OperatorCommand, record: OrderRecord) -> None:
    """Withdraw a person's own approval of an order that waits still, or those whose tokens hold no more."""
    if event.void:
        _drop_void(turn, event, record)
        return
    left = [known for known in record.approvals if not known.is_of(event.by)]
    if len(left) == len(record.approvals):
        refuse(turn, event, f"{event.by.partition(' ')[0] or event.who} has not approved it")
        return
    _leave(turn, record, left)
    _tell_of(turn, record, f"{event.who} withdrew their approval: {describe(record.order)}.")


def _tell_of(turn: Turn, record: OrderRecord, sentence: str) -> None:
    """Tell the story of what the order is about, and of its incident."""
    order = record.order
    about: JobRecord | NodeRecord | None = None
    if isinstance(order, o.JobOrder):
        about = turn.job(order.job)
    elif isinstance(order, o.NodeOrder):
        about = turn.state.nodes.get(order.node)
    if about is not None:
        turn.tell_all(turn.state.incidents.get(order.incident), about, sentence)


def _approve(turn: Turn, record: OrderRecord, who: str) -> None:
    order = record.order
    turn.orders.approve(record, who)
    if isinstance(order, o.JobOrder):
        job = turn.job(order.job)
        if job is not None:
            turn.tell(job, f"{who} approved: {describe(order)}.")
            recovery.approved(turn, job, order)
    elif isinstance(order, o.NodeOrder):
        node = turn.state.nodes[order.node]
        turn.tell(node, f"{who} approved: {describe(order)}.")
        incident = repair.incident_of(turn, node)
        if isinstance(order, o.QuarantineNode) and incident is not None:
            nodes.approved(turn, node, incident)
        elif isinstance(order, repair.REPAIR_ORDERS):
            repair.approved(turn, node, order)


def _no_longer_applies(turn: Turn, record: OrderRecord) -> str:
    """Why a proposal has been overtaken by what happened since; empty: it stands."""
    order = record.order
    if order.incident and order.incident not in turn.state.incidents:
        return "its incident is closed"
    if isinstance(order, o.JobOrder):
        job = turn.job(order.job)
        if job is None or job.state is not JobState.DIAGNOSING or not _still_about(turn, job, order):
            return "the job's state has changed since"
        number = getattr(order, "attempt", None)
        current = job.attempt.number if job.attempt is not None else 0
        expected = current + 1 if isinstance(order, o.RestartInPlace) else current
        if number is not None and number != expected:
            return "another attempt runs by now"
        if isinstance(order, o.RequeueHeld) and job.view.restart_count > order.restart_count:
            return "it has been requeued already"
    elif isinstance(order, o.NodeOrder):
        node = turn.state.nodes.get(order.node)
        if node is None or other_machine(order.instance_id, node.instance_id, node.agent_instance_id):
            return "another machine has taken the node's place"
        if isinstance(order, o.QuarantineNode) and node.phase is not NodeState.SUSPECT:
            return f"the node is {node.phase} by now"
    return ""


def _still_about(turn: Turn, job: JobRecord, order: o.JobOrder) -> bool:
    """A second trouble that came to govern the job meanwhile does not change what a requeue or an end would do."""
    if job.incident == order.incident:
        return True
    incident = turn.state.incidents.get(order.incident)
    return isinstance(order, o.RequeueHeld | o.GiveUp) and incident is not None and job.key in incident.jobs_open


def lapsed(turn: Turn, order_id: str) -> None:
    """`propose:ID` fired: nobody decided in time."""
    record = turn.state.orders.get(order_id)
    if record is None or record.status is not OrderStatus.PROPOSED:
        return
    turn.orders.settle(order_id, OrderStatus.EXPIRED, "nobody decided in time")
    _dropped(turn, record, "nobody decided in time")


def _dropped(turn: Turn, record: OrderRecord, why: str) -> None:
    order = record.order
    if isinstance(order, o.JobOrder):
        job = turn.job(order.job)
        if job is not None:
            recovery.not_approved(turn, job, why)
    elif isinstance(order, o.NodeOrder):
        node = turn.state.nodes.get(order.node)
        if node is not None:
            nodes.not_approved(turn, node, why)


def _set_mode(turn: Turn, event: e.OperatorCommand) -> None:
    known_modes = {str(mode) for mode in Mode}
    if event.value not in known_modes:
        refuse(turn, event, f"{event.value!r} is no mode; it is one of {', '.join(sorted(known_modes))}")
    elif event.remedy and event.remedy not in {str(remedy) for remedy in Remedy}:
        refuse(turn, event, f"{event.remedy!r} is no rung")
    else:
        ladder.set_mode(turn.state.modes, event.group, event.remedy, Mode(event.value))
        what = event.remedy.replace("_", " ") or "everything"
        where = event.group or "the cluster"
        text = f"{event.who}: {event.why}".rstrip(": ")
        turn.notify(f"mode:{event.group}", Severity.INFO, f"Mode of {what} in {where}: {event.value}", text)

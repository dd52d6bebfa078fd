"""The ways back for a job whose attempt is over: decide the rung, then in place, or through the queue.

`recovery.py` brings an attempt to its end and hands over; outcomes of orders come back through `order_done` and
`order_failed`. The engine that does not lead the job makes the same moves and orders nothing. How time passes: settling
(`settle:INCIDENT`) before the first diagnosis, and the job's own timer behind every order.
"""

from __future__ import annotations

from holdfast.decide import budgets, exclusions, incidents, nodes, remedies
from holdfast.decide.proof import finish, give_up, incident_of, policy_wait, wait
from holdfast.decide.transitions import JOB, can
from holdfast.decide.turn import Turn
from holdfast.errors import EXIT_FAILED, EXIT_RESTART_ME
from holdfast.model import orders as o
from holdfast.model import story
from holdfast.model.cluster import ENDED, SchedulerState
from holdfast.model.evidence import Diagnosis, Remedy, Severity
from holdfast.model.orders import OrderStatus
from holdfast.model.policy import Mode, Trouble
from holdfast.model.records import (
    AttemptRecord,
    Authority,
    Broke,
    IncidentRecord,
    JobRecord,
    JobState,
    JobTrigger,
    Mark,
    NodeState,
)

RUNS = frozenset({SchedulerState.RUNNING, SchedulerState.COMPLETING})
_WAYS = (o.RequeueHeld, o.GiveUp, o.RestartInPlace)
"""While one of these is under way, or a person is asked for it, nothing else is decided."""
_NODE_TROUBLES = frozenset({Trouble.HARDWARE, Trouble.NODE_LOST})


# --- facts ------------------------------------------------------------------------------------------------------------


def alive(job: JobRecord) -> bool:
    """Does its newest attempt still run, as far as anybody knows?"""
    attempt = job.attempt
    if attempt is not None and attempt.ended_at:
        return False
    return job.view.state in RUNS or job.view.state is SchedulerState.UNKNOWN


def facts(turn: Turn, job: JobRecord, incident: IncidentRecord) -> remedies.Facts:
    """What is true of the job now."""
    attempt = job.attempt
    used = attempt.nodes if attempt is not None and attempt.nodes else job.view.nodes
    allocation = job.view.nodes or used
    good = [node for node in allocation if node not in job.excluded]
    leave = any(node in job.excluded for node in used)
    launcher = job.authority is Authority.LAUNCHER
    evacuated = Remedy.EVACUATE in incident.remedies
    enough = len(good) >= len(used)
    return remedies.Facts(
        launcher=launcher,
        enough_nodes=enough,
        leave_node=leave,
        swap=launcher
        and leave
        and enough
        and not evacuated
        and (turn.in_allocation or incident.source.startswith("launcher")),
        alive=alive(job),
        in_queue=job.in_queue,
        evacuated=evacuated,
        asked=_asked_for(turn, job, incident),
        moved=attempt is None or attempt.first_step is not None or attempt.last_step is not None,
        broke=budgets.where(attempt, incident),
    )


def _asked_for(turn: Turn, job: JobRecord, incident: IncidentRecord) -> bool:
    """Did a person wish for this end of the attempt, or did it leave its node in time? Neither is a failure."""
    attempt = job.attempt
    ended_by = turn.state.incidents.get(attempt.incident) if attempt is not None else None
    since = attempt.started_at if attempt is not None else 0.0
    for known in (incident, ended_by):
        if known is None:
            continue
        diagnosis = known.diagnosis
        if Remedy.EVACUATE in known.remedies or (
            diagnosis is not None and diagnosis.cause.startswith(remedies.OPERATOR)
        ):
            return True
        if any(finding.rule.startswith(remedies.OPERATOR) and finding.at >= since for finding in known.findings):
            return True
    return False


def _exclude_suspects(turn: Turn, job: JobRecord, incident: IncidentRecord, diagnosis: Diagnosis) -> None:
    """Suspects of hardware troubles, and others when the node's own evidence or its history agrees."""
    attempt = job.attempt
    used = attempt.nodes if attempt is not None and attempt.nodes else job.view.nodes
    trouble = remedies.trouble_of(diagnosis)
    if trouble in _NODE_TROUBLES or (trouble is Trouble.STRAGGLER and turn.policy_of(job).straggler.exclude):
        exclusions.exclude(turn, job, diagnosis.nodes)
    limits = budgets.limits_of(turn.policy_of(job), job.view.recovery)
    charged = _charged_nodes(diagnosis, budgets.where(attempt, incident))
    exclusions.exclude(turn, job, budgets.node_overdrawn(job, limits, charged))
    known = turn.state.nodes
    bad = [name for name in used if name in known and (known[name].phase is not NodeState.HEALTHY or known[name].gone)]
    exclusions.exclude(turn, job, bad)


def _charged_nodes(diagnosis: Diagnosis, broke: Broke) -> tuple[str, ...]:
    """Nodes to which a restart is charged: of all that the incident names, those that broke this attempt.

    Bad numbers come from a checkpoint; who reports them is by chance.
    """
    if remedies.trouble_of(diagnosis) is Trouble.BAD_NUMBERS:
        return ()
    return tuple(node for node in diagnosis.nodes if node in broke.nodes) or diagnosis.nodes


def _fence_suspects(turn: Turn, job: JobRecord, incident: IncidentRecord, diagnosis: Diagnosis) -> None:
    """When the diagnosis, not a single finding, shows a bad node (an ECC error in a rank's log), fence it too."""
    if turn.in_allocation or remedies.trouble_of(diagnosis) not in _NODE_TROUBLES:
        return
    roots = {judged.finding for judged in diagnosis.judged if judged.role == "root"}
    for finding in [f for f in incident.findings if f.id in roots]:
        name = finding.place.node
        if name and name in diagnosis.nodes and remedies.wants_node(finding):
            node = nodes.record_of(turn, name)
            if finding.rule not in node.findings and finding.at > node.clean_at:
                nodes.suspect(turn, node, incident, finding)
    del job


# --- the decision -----------------------------------------------------------------------------------------------------


def attempt_is_over(turn: Turn, job: JobRecord, incident: IncidentRecord, at: float | None = None) -> None:
    """Its processes are gone: stamp it, and decide as soon as the evidence has settled."""
    _not_restarted(job, incident)
    turn.stamp(incident, Mark.STOPPED, at)
    turn.complete(job.about, "the attempt is over", o.StopAttempt, o.SaveAndStop)
    turn.withdraw(job.about, "the attempt is over", o.CaptureStacks, o.SetExcluded, o.ReleaseJob)
    if job.state in {JobState.RELEASED, JobState.WAITING_FOR_NODES, JobState.RESTARTING}:
        job.in_queue = False  # it was started, and has ended before anybody saw it run
    if turn.open_orders(job.about, *_WAYS):
        return
    if job.state is not JobState.DIAGNOSING:
        turn.move_job(job, JobTrigger.ATTEMPT_OVER)
    turn.cancel_timer(job.timer)
    hurried = job.in_queue and not turn.policy_of(job).requeue_held
    if f"settle:{incident.id}" not in turn.state.timers or hurried:
        decide(turn, job, incident)
    else:
        _hold_first(turn, job, incident)


def _hold_first(turn: Turn, job: JobRecord, incident: IncidentRecord) -> None:
    """Queue it again, held, while the evidence settles, where policy wants that and a first look says "requeue".

    A job that the settled evidence stops is cancelled in the queue; one whose requeues are used up stays as it ended.
    """
    policy = turn.policy_of(job)
    if not policy.hold_first or turn.in_allocation or job.in_queue or not turn.leads(job):
        return
    first = incidents.at_first_look(incident, job)
    choice = remedies.choose(job, policy, first, facts(turn, job, incident))
    mode = turn.mode(policy, job.view.partition, Remedy.REQUEUE, incident.id)
    if choice.remedy is Remedy.REQUEUE and mode is Mode.ACT:
        requeue(turn, job, incident, first.summary or first.cause)


def _not_restarted(job: JobRecord, incident: IncidentRecord) -> None:
    """It leaves `in_place` without a new attempt: that restart does not count, or the fault would be counted twice."""
    if job.state is JobState.IN_PLACE:
        diagnosis = incident.diagnosis
        broke = budgets.where(job.attempt, incident)
        budgets.refund(job, diagnosis, _charged_nodes(diagnosis, broke) if diagnosis is not None else ())


def decide(turn: Turn, job: JobRecord, incident: IncidentRecord) -> None:
    """Diagnose from what is known so far, and take the rung."""
    diagnosis = incidents.judge(turn, incident, job)
    if turn.open_orders(job.about, *_WAYS):
        return
    _exclude_suspects(turn, job, incident, diagnosis)
    _fence_suspects(turn, job, incident, diagnosis)
    policy = turn.policy_of(job)
    choice = remedies.choose(job, policy, diagnosis, facts(turn, job, incident))
    if job.state is not JobState.DIAGNOSING:
        return
    if choice.passed:
        turn.tell(job, f"{choice.passed[-1][0].upper()}{choice.passed[-1][1:]}.")
    acts = choice.remedy in {Remedy.RESTART_IN_PLACE, Remedy.EVACUATE, Remedy.REQUEUE, Remedy.STOP}
    rung = Remedy.REQUEUE if choice.remedy is Remedy.EVACUATE else choice.remedy
    if acts and only_observes(turn, job, incident, rung, choice.why or diagnosis.summary or diagnosis.cause):
        return
    if choice.remedy is Remedy.RESTART_IN_PLACE:
        _in_place(turn, job, incident, diagnosis)
    elif choice.remedy in {Remedy.REQUEUE, Remedy.EVACUATE}:
        _through_queue(turn, job, incident, diagnosis)
    elif choice.remedy is Remedy.STOP:
        _stop(turn, job, incident, choice.why)
    else:
        if choice.remedy is Remedy.NOTIFY:
            _tell_people(turn, job, incident, diagnosis)
        leave_alone(turn, job, incident, choice.why or "policy only tells people")


def _tell_people(turn: Turn, job: JobRecord, incident: IncidentRecord, diagnosis: Diagnosis) -> None:
    incidents.tried(turn, incident, Remedy.NOTIFY)
    text = diagnosis.story or story.of_diagnosis(diagnosis)
    turn.notify(incident.id, Severity.WARNING, f"{job.name}: {diagnosis.summary}", text, job=job.key)


def _awaits_launcher(turn: Turn, job: JobRecord) -> bool:
    """The launcher decides, and this engine is the controller's: it waits for the launcher's word, for a while."""
    if turn.leads(job) or turn.in_allocation:
        return False
    wait(turn, job, turn.policy_of(job).waits.order_s)
    return True


def _in_place(turn: Turn, job: JobRecord, incident: IncidentRecord, diagnosis: Diagnosis) -> None:
    _step_back(turn, job, diagnosis)
    if turn.leads(job):
        number = job.attempt.number + 1 if job.attempt is not None else 0
        order = turn.make(
            o.RestartInPlace,
            incident=incident.id,
            remedy=Remedy.RESTART_IN_PLACE,
            why=diagnosis.summary,
            job=job.key,
            attempt=number,
            epoch=job.epoch + 1,
            exclude_nodes=tuple(node for node in job.excluded if node in job.view.nodes or not job.view.nodes),
            restore_step_max=job.restore_step_max,
        )
        if not ask_first(turn, job, incident, order):
            return
    job.epoch += 1
    entered_in_place(turn, job, incident, diagnosis)


def entered_in_place(turn: Turn, job: JobRecord, incident: IncidentRecord, diagnosis: Diagnosis) -> None:
    """The restart in place is ordered (here, or by the launcher)."""
    broke = budgets.where(job.attempt, incident)
    nodes_charged = _charged_nodes(diagnosis, broke)
    budgets.charge(job, Remedy.RESTART_IN_PLACE, diagnosis, broke, nodes_charged, attempt=job.attempt)
    incidents.tried(turn, incident, Remedy.RESTART_IN_PLACE)
    turn.move_job(job, JobTrigger.RESTART_IN_PLACE)
    turn.stamp(incident, Mark.REQUEUED)
    turn.tell_all(incident, job, f"restarting in place ({job.in_place} since the last progress).")
    turn.notify(incident.id, Severity.INFO, f"{job.name} restarts in place", diagnosis.summary, job=job.key)
    wait(turn, job, turn.policy_of(job).waits.start_s)


def _step_back(turn: Turn, job: JobRecord, diagnosis: Diagnosis) -> None:
    """Bad numbers that come back were in the checkpoint: load one before it, each time one further back."""
    if remedies.trouble_of(diagnosis) is not Trouble.BAD_NUMBERS:
        return
    if not job.spent.get(budgets.fingerprint_of(diagnosis)):
        return
    attempt = job.attempt
    loaded = attempt.resumed_from if attempt is not None and attempt.resumed_from is not None else job.durable_step
    bad = min(loaded, job.restore_step_max) if job.restore_step_max is not None else loaded
    older = [step for step in job.durable_steps if step < bad]
    job.restore_step_max = older[-1] if older else max(0, bad - 1)
    turn.tell(
        job, f"The checkpoint of step {bad} is mistrusted; nothing newer than step {job.restore_step_max} is loaded."
    )


def ask_first(turn: Turn, job: JobRecord, incident: IncidentRecord, order: o.AnyOrder) -> bool:
    """Ask the mode. True: ordered. Otherwise the job waits for a person, or is left alone."""
    policy = turn.policy_of(job)
    status = turn.ask(order, policy, job.view.partition)
    if status is OrderStatus.PENDING:
        return True
    if status is OrderStatus.PROPOSED:
        turn.tell_all(incident, job, "waiting for a person to approve.")
        turn.withdraw(job.about, "there is enough to ask a person", o.CaptureStacks)
        if job.state is not JobState.DIAGNOSING:
            turn.move_job(job, JobTrigger.LOOK)
        turn.cancel_timer(job.timer)
    else:
        _observed(turn, job, incident)
    return False


def _observed(turn: Turn, job: JobRecord, incident: IncidentRecord) -> None:
    """Tell the cause and leave the job as it is; the orders that observe kept back are recorded already."""
    incidents.judge(turn, incident, job)
    leave_alone(turn, job, incident, f"policy says {Mode.OBSERVE}")


def only_observes(turn: Turn, job: JobRecord, incident: IncidentRecord, remedy: Remedy, why: str) -> bool:
    """Does the mode of this rung keep it from being taken? Then what would have been ordered is written down.

    A job that our own requeue holds is past that question: nobody else would release it.
    """
    mode = turn.mode(turn.policy_of(job), job.view.partition, remedy, incident.id)
    if mode is not Mode.OBSERVE or job.in_queue:
        return False
    order: o.AnyOrder
    common = {"incident": incident.id, "remedy": remedy, "why": why, "job": job.key}
    number = job.attempt.number if job.attempt is not None else 0
    if remedy is Remedy.STOP:
        order = turn.make(o.GiveUp, **common)
    elif remedy is Remedy.RESTART_IN_PLACE and alive(job):
        order = turn.make(o.StopAttempt, attempt=number, grace_s=turn.policy_of(job).waits.stop_grace_s, **common)
    elif remedy is Remedy.RESTART_IN_PLACE:
        order = turn.make(o.RestartInPlace, attempt=number + 1, epoch=job.epoch + 1, **common)
    else:
        order = turn.make(o.RequeueHeld, restart_count=job.view.restart_count, gone=_gone(turn, job), **common)
    turn.ask(order, turn.policy_of(job), job.view.partition)
    _observed(turn, job, incident)
    return True


def _through_queue(turn: Turn, job: JobRecord, incident: IncidentRecord, diagnosis: Diagnosis) -> None:
    if job.in_queue:
        hold(turn, job, incident, diagnosis)
    elif turn.in_allocation:
        leave_allocation(turn, job, incident, diagnosis.summary or diagnosis.cause, EXIT_RESTART_ME)
    elif not _awaits_launcher(turn, job):
        requeue(turn, job, incident, diagnosis.summary or diagnosis.cause)


def _stop(turn: Turn, job: JobRecord, incident: IncidentRecord, why: str) -> None:
    if not turn.in_allocation and _awaits_launcher(turn, job):
        return
    policy = turn.policy_of(job)
    mode = turn.mode(policy, job.view.partition, Remedy.STOP, incident.id)
    if mode is Mode.ACT or turn.in_allocation:
        give_up(turn, job, incident, why)
        return
    order = turn.make(o.GiveUp, incident=incident.id, remedy=Remedy.STOP, job=job.key, why=why)
    ask_first(turn, job, incident, order)


def leave_allocation(turn: Turn, job: JobRecord, incident: IncidentRecord, why: str, code: int) -> None:
    """The launcher hands over, or without a controller exits with this code. What follows comes from outside."""
    number = job.attempt.number if job.attempt is not None else 0
    turn.issue(
        turn.make(
            o.Escalate,
            incident=incident.id,
            remedy=Remedy.REQUEUE,
            why=why,
            job=job.key,
            attempt=number,
            exit_code=code,
            exclude_nodes=job.excluded,
        )
    )
    job.authority = Authority.CONTROLLER
    _not_restarted(job, incident)
    if job.state is not JobState.DIAGNOSING:
        turn.move_job(job, JobTrigger.ATTEMPT_OVER)
    turn.move_job(job, JobTrigger.HOLD)
    turn.cancel_timer(job.timer)
    turn.tell_all(incident, job, f"leaves its allocation with exit code {code}: {why}.")
    turn.notify(incident.id, Severity.WARNING, f"{job.name} leaves its allocation", why, job=job.key)


def leave_alone(turn: Turn, job: JobRecord, incident: IncidentRecord, why: str) -> None:
    """Nothing may be done. The incident stays open while the attempt lasts, so that its other findings join it."""
    incident.outcome = incident.outcome or incidents.OBSERVED
    turn.tell_all(incident, job, f"left alone: {why}.")
    others = [i for i in incidents.open_of_job(turn, job) if i.id != incident.id and i.remedies]
    over = not alive(job)
    if over and turn.in_allocation:
        attempt = job.attempt
        code = _own_code(attempt)
        leave_allocation(turn, job, incident, why, code)
        return
    if job.view.state in ENDED:
        finish(
            turn,
            job,
            JobTrigger.GIVE_UP,
            incidents.OBSERVED,
            f"it has ended ({job.view.state}) and is left alone: {why}",
        )
        return
    if not others and job.state in {JobState.IN_PLACE, JobState.RESTARTING}:
        turn.move_job(job, JobTrigger.LOOK)  # what was expected has not come, and nothing may be done about it
    if can(JOB, job.state, JobTrigger.FALSE_ALARM):
        # An attempt that is over can prove nothing any more: what comes next is the scheduler's word.
        turn.move_job(job, JobTrigger.PROVE_AGAIN if others and not over else JobTrigger.FALSE_ALARM)
        turn.cancel_timer(job.timer)
    if job.state is JobState.WATCHING:
        wait(turn, job, turn.policy_of(job).waits.propose_s)
    elif others:
        # An earlier recovery goes on; this trouble is only written down.
        job.incident = others[-1].id
        incidents.job_settled(turn, incident, job, incidents.OBSERVED, why)
    if job.state is not JobState.WATCHING and job.timer not in turn.state.timers and not job.held_by:
        wait(turn, job, policy_wait(turn.policy_of(job), job.state))


def _own_code(attempt: AttemptRecord | None) -> int:
    """What a shell would report of the attempt."""
    if attempt is None:
        return EXIT_FAILED
    if attempt.signal:
        return 128 + attempt.signal
    return attempt.exit_code or EXIT_FAILED


# --- through the queue ------------------------------------------------------------------------------------------------


def requeue(turn: Turn, job: JobRecord, incident: IncidentRecord, why: str) -> bool:
    """Have it stopped, queued and held. Only the controller's engine calls this."""
    if turn.open_orders(job.about, o.RequeueHeld):
        return True
    order = turn.make(
        o.RequeueHeld,
        incident=incident.id,
        remedy=Remedy.REQUEUE,
        why=why,
        job=job.key,
        restart_count=job.view.restart_count,
        gone=_gone(turn, job),
        leased=any(attempt.epoch for attempt in job.attempts[-1:]),
    )
    if not ask_first(turn, job, incident, order):
        return False
    entered_requeue(turn, job, incident, why)
    return True


def _gone(turn: Turn, job: JobRecord) -> tuple[str, ...]:
    known = turn.state.nodes
    return tuple(name for name in job.view.nodes if name in known and known[name].gone)


def entered_requeue(turn: Turn, job: JobRecord, incident: IncidentRecord, why: str) -> None:
    """The requeue is ordered."""
    _not_restarted(job, incident)
    turn.withdraw(job.about, "it is requeued", o.StopAttempt, o.CaptureStacks, o.SaveAndStop, o.RestartInPlace)
    if job.state is not JobState.STOPPING:
        turn.move_job(job, JobTrigger.STOP)
    incidents.tried(turn, incident, Remedy.REQUEUE)
    turn.tell_all(incident, job, f"stopped and requeued, held: {why.rstrip('.')}.")
    turn.notify(incident.id, Severity.WARNING, f"{job.name} is requeued, held", why, job=job.key)
    wait(turn, job, turn.policy_of(job).waits.order_s)


def requeued(turn: Turn, job: JobRecord, restart_count: int) -> None:
    """It is back in the queue and held; the old attempt is provably over. `restart_count`: the run that was stopped."""
    incident = incident_of(turn, job)
    if job.state is not JobState.STOPPING or incident is None:
        return
    is_over = job.view.state in ENDED
    if job.view.restart_count > restart_count and (is_over or job.view.state is SchedulerState.RUNNING):
        # Somebody else requeued it (a preemption, for instance) and it started: it is in no queue, and perhaps on a bad
        # node. A requeue of the run that is there now holds it.
        requeue(turn, job, incident, f"it was started again meanwhile{', and has ended' if is_over else ''}")
        return
    job.in_queue = True
    job.authority = Authority.CONTROLLER
    attempt = job.attempt
    if attempt is not None and not attempt.ended_at:
        attempt.ended_at = turn.now
        attempt.stopped = True
    turn.stamp(incident, Mark.STOPPED)
    turn.stamp(incident, Mark.REQUEUED)
    attempt_is_over(turn, job, incident)


def hold(turn: Turn, job: JobRecord, incident: IncidentRecord, diagnosis: Diagnosis) -> None:
    """It stays held while bad nodes are taken out of its reach."""
    if not _asked_for(turn, job, incident):
        _step_back(turn, job, diagnosis)
        broke = budgets.where(job.attempt, incident)
        budgets.charge(job, Remedy.REQUEUE, diagnosis, broke, _charged_nodes(diagnosis, broke), attempt=job.attempt)
    turn.move_job(job, JobTrigger.HOLD)
    known = turn.state.nodes
    job.excluded = tuple(
        name
        for name in job.excluded
        if name in diagnosis.nodes
        or name in incident.nodes
        or name not in known
        or not (known[name].clean_at and known[name].phase is NodeState.HEALTHY)
    )
    go_on_from_hold(turn, job)


def go_on_from_hold(turn: Turn, job: JobRecord) -> None:
    """Exclude, then release; a person's hold is waited out."""
    incident = incident_of(turn, job)
    if job.state is not JobState.HELD or incident is None or turn.in_allocation:
        return
    if job.held_by:
        turn.tell_all(incident, job, f"held by {job.held_by}; it is not released before they say so.")
        turn.cancel_timer(job.timer)
        return
    if turn.open_orders(job.about, o.SetExcluded, o.ReleaseJob):
        return
    exclusions.exclude_unfenced(turn, job)
    wait(turn, job, turn.policy_of(job).waits.order_s)
    if set(job.excluded) - set(job.view.excluded) or exclusions.outdated(job):
        exclusions.ask(turn, job, incident)
    else:
        release(turn, job)


def release(turn: Turn, job: JobRecord) -> None:
    """Let it start."""
    incident = incident_of(turn, job)
    if job.state is not JobState.HELD or incident is None:
        return
    if job.held_by:
        go_on_from_hold(turn, job)
        return
    job.epoch += 1
    turn.issue(
        turn.make(
            o.ReleaseJob,
            incident=incident.id,
            remedy=Remedy.REQUEUE,
            job=job.key,
            epoch=job.epoch,
            restore_step_max=job.restore_step_max,
        )
    )
    turn.move_job(job, JobTrigger.RELEASE)
    wait(turn, job, policy_wait(turn.policy_of(job), job.state))


def released(turn: Turn, job: JobRecord) -> None:
    """The scheduler may start it."""
    job.in_queue = False
    turn.touch(job)
    _tell_released(turn, job)
    runs_already(turn, job)


def _tell_released(turn: Turn, job: JobRecord) -> None:
    incident = incident_of(turn, job)
    if incident is not None:
        turn.stamp(incident, Mark.RELEASED)
        off = f" without {story.listed(job.excluded)}" if job.excluded else ""
        turn.tell_all(incident, job, f"released{off}.")
        turn.notify(incident.id, Severity.INFO, f"{job.name} is released{off}", "", job=job.key)


def runs_already(turn: Turn, job: JobRecord) -> bool:
    """Released, and the last view showed it running anew: what is counts, not only what changes."""
    if job.state not in {JobState.RELEASED, JobState.WAITING_FOR_NODES} or job.view.state not in RUNS:
        return False
    attempt = job.attempt
    if attempt is not None and job.view.restart_count <= attempt.restart_count:
        return False
    runs(turn, job)
    return True


def runs(turn: Turn, job: JobRecord) -> None:
    """The scheduler runs it again."""
    job.in_queue = False
    if not can(JOB, job.state, JobTrigger.RUNS):
        return
    if any(record.status is OrderStatus.PENDING for record in turn.open_orders(job.about, o.ReleaseJob)):
        # Its effect is seen before its outcome is heard, for instance by a controller that was killed in between.
        _tell_released(turn, job)
    turn.complete(job.about, "it runs already", o.ReleaseJob)
    turn.withdraw(job.about, "it runs already", o.SetExcluded)
    turn.move_job(job, JobTrigger.RUNS)
    _stamp_placed(turn, job)
    turn.tell(job, f"The scheduler runs it again on {story.listed(job.view.nodes)}.")
    wait(turn, job, turn.policy_of(job).waits.start_s)


def _stamp_placed(turn: Turn, job: JobRecord) -> None:
    """It has nodes again: since the scheduler's own time of this start, which it may tell in whole seconds."""
    incident = incident_of(turn, job)
    if incident is not None:
        began = job.view.started_at if job.view.state in RUNS else 0.0
        is_this_start = began >= incident.marks.get(Mark.REQUEUED, incident.opened_at) - 1.0
        turn.stamp(incident, Mark.PLACED, began if is_this_start else None)


def adopt(turn: Turn, job: JobRecord, why: str) -> None:
    """Somebody else queued it: go on from there."""
    incident = incident_of(turn, job)
    turn.withdraw(job.about, why)
    turn.move_job(job, JobTrigger.ADOPT)
    job.authority = Authority.CONTROLLER
    job.in_queue = False
    turn.tell_all(incident, job, f"{why}.")
    if incident is not None:
        turn.stamp(incident, Mark.STOPPED)
        turn.stamp(incident, Mark.REQUEUED)
    wait(turn, job, policy_wait(turn.policy_of(job), job.state))


# --- outcomes of orders -----------------------------------------------------------------------------------------------


def order_done(turn: Turn, job: JobRecord, order: o.JobOrder) -> None:
    """What an order's success leads to. Those that end in an event of their own wait for it."""
    if isinstance(order, o.RequeueHeld):
        requeued(turn, job, order.restart_count)
    elif isinstance(order, o.SetExcluded):
        _excluded(turn, job, order)
    elif isinstance(order, o.ReleaseJob):
        released(turn, job)


def _excluded(turn: Turn, job: JobRecord, order: o.SetExcluded) -> None:
    """Done; but another node may have failed since it was asked for."""
    incident = incident_of(turn, job)
    if job.state is JobState.HELD:
        exclusions.exclude_unfenced(turn, job)
    if job.state is JobState.HELD and incident is not None and set(job.excluded) - set(order.nodes):
        exclusions.ask(turn, job, incident)
    else:
        release(turn, job)


def order_failed(turn: Turn, job: JobRecord, order: o.JobOrder, why: str) -> None:
    """The rung did not work: the next one, or people."""
    incident = incident_of(turn, job)
    if incident is None:
        return
    turn.tell_all(incident, job, f"{order.__struct_config__.tag} could not be carried out: {why}.")
    if isinstance(order, o.RequeueHeld) and job.state is JobState.STOPPING:
        _not_requeued(turn, job, incident, why)
    elif isinstance(order, o.SetExcluded):
        _not_excluded(turn, job, incident, order, why)
    elif isinstance(order, o.ReleaseJob) and job.state is JobState.RELEASED:
        turn.move_job(job, JobTrigger.HOLD)
        turn.notify(incident.id, Severity.ERROR, f"{job.name} could not be released", why, job=job.key)
        wait(turn, job, turn.policy_of(job).waits.order_s)
    elif isinstance(order, o.StopAttempt | o.RestartInPlace) and turn.in_allocation:
        leave_allocation(turn, job, incident, why, EXIT_RESTART_ME)
    elif isinstance(order, o.GiveUp):
        turn.notify(incident.id, Severity.ERROR, f"{job.name} could not be stopped", why, job=job.key)


def _not_excluded(turn: Turn, job: JobRecord, incident: IncidentRecord, order: o.SetExcluded, why: str) -> None:
    """The scheduler refuses the exclusions: released now, the job could start on the nodes that it must leave.

    A scheduler refuses names that it does not know and cannot give out either: the job goes on at once without them,
    also where no other name is left. What it refuses all the same is asked for again after a while; meanwhile the job
    stays held.
    """
    if job.state is not JobState.HELD:
        return
    unknown = [name for name in order.nodes if not exclusions.is_known(turn, name)]
    if unknown:
        job.excluded = tuple(name for name in job.excluded if name not in unknown)
        turn.tell_all(incident, job, f"the scheduler does not know {story.listed(unknown)}: it goes on without them.")
        go_on_from_hold(turn, job)
        return
    off = story.listed(order.nodes)
    after_s = turn.policy_of(job).waits.nodes_s
    text = (
        f"{why}. It stays held and is tried again in {story.seconds(after_s)}. Or exclude them by hand and release it."
    )
    turn.notify(incident.id, Severity.ERROR, f"{job.name} could not be kept off {off}", text, job=job.key)
    wait(turn, job, after_s)


def _not_requeued(turn: Turn, job: JobRecord, incident: IncidentRecord, why: str) -> None:
    """The scheduler will not requeue it. What still runs is left running; what has ended is given up."""
    reason = f"it could not be requeued: {why}"
    if incident.diagnosis is None:
        incidents.judge(turn, incident, job)  # a job that is held first is queued again before it is attributed
    if alive(job) and job.view.state not in ENDED:
        turn.notify(incident.id, Severity.ERROR, f"{job.name} could not be requeued", why, job=job.key)
        incident.outcome = incidents.GIVEN_UP
        leave_alone(turn, job, incident, reason)
    else:
        give_up(turn, job, incident, reason, cancel=False)

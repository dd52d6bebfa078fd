"""How a job's recovery begins: from a fault to the provable end of the broken attempt.

`findings.py` calls `fault` for evidence that asks for action; `jobs.py` reports ends of attempts. What comes after the
end is `restart.py`. Who orders: the engine that leads the job; a hardware fault that an agent saw is always the
controller's. How time passes: the job's timer bounds stacks, evacuation and stopping; its firing means "look again".
"""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.decide import incidents, ladder, nodes, restart
from holdfast.decide.machine import Claim, JobPlace
from holdfast.decide.records import incident as incident_record
from holdfast.decide.records import job as job_record
from holdfast.decide.records.incident import GIVEN_UP, OBSERVED
from holdfast.decide.records.turn import Turn
from holdfast.errors import EXIT_RESTART_ME
from holdfast.model import events as e
from holdfast.model import orders as o
from holdfast.model import story
from holdfast.model.cluster import ENDED, SchedulerState
from holdfast.model.evidence import Diagnosis, Domain, Evidence, EvidenceKind, Finding, Place, Remedy, Role, Severity
from holdfast.model.policy import Mode, Policy, Trouble
from holdfast.model.records import Authority, IncidentRecord, JobRecord, JobState, JobTrigger, Mark, NodeState

_BEGINS = frozenset({JobState.WATCHING, JobState.PROVING, JobState.RESTARTING})
_UNDECIDED = Diagnosis(cause="unknown", fingerprint="unknown")
_WAYS = (o.RequeueHeld, o.GiveUp, o.RestartInPlace)
"""While one of these is under way, or a person is asked for it, nothing else is decided."""


def recoverable(turn: Turn, job: JobRecord) -> bool:
    """Did anybody ask for its recovery? A launcher around it is such a wish."""
    spec = job.view.recovery
    if spec is not None:
        return spec.enabled
    return turn.in_allocation or job.authority is Authority.LAUNCHER or turn.policy_of(job).enabled_by_default


def by_launcher(turn: Turn) -> bool:
    """Was the event in hand seen by a launcher?"""
    return turn.in_allocation or turn.event.source.startswith("launcher")


def fault(turn: Turn, job: JobRecord, incident: IncidentRecord, finding: Finding, *, leave: str = "") -> None:
    """Evidence against the job's running attempt, or against a node that it must `leave`."""
    if job.over:
        return
    incidents.attach_job(turn, incident, job)
    attempt = job.attempt
    if attempt is not None and not attempt.incident:
        job_record.ends_by(job, incident.id)
    if not recoverable(turn, job):
        if job.incident == incident.id:
            return
        if job.state is not JobState.WATCHING:
            incidents.job_settled(turn, incident, job, OBSERVED, "nobody asks for its recovery any more.")
        else:
            job_record.governed(turn, job, incident.id)
            turn.tell(job, f"{story.of_finding(finding)}.")
            restart.leave_alone(turn, job, incident, "nobody asked for its recovery, so it is only watched")
        return
    if leave:
        restart.exclude(turn, job, [leave])
        _ask_anew(turn, job)
    if job.state in _BEGINS and job.incident != incident.id:
        _begin(turn, job, incident, finding)
    elif job.state in _BEGINS:
        _again(turn, job, incident, finding)
    elif job.state is JobState.EVACUATING and not finding.predicts:
        end_attempt(turn, job, incident, Remedy.REQUEUE if leave else Remedy.RESTART_IN_PLACE)
    elif leave and not turn.in_allocation and not by_launcher(turn):
        _take_from_launcher(turn, job, incident)
    elif turn.place(job) is JobPlace.LOOKING and not finding.rule.startswith(("hang.", "hyperpod.hang")):
        end_attempt(turn, job, incident, Remedy.RESTART_IN_PLACE)


def _again(turn: Turn, job: JobRecord, incident: IncidentRecord, finding: Finding) -> None:
    """The governing incident is this one already: a recurrence while proving, or more of what was left alone."""
    if job.state is JobState.WATCHING:
        return
    _begin(turn, job, incident, finding)


def _take_from_launcher(turn: Turn, job: JobRecord, incident: IncidentRecord) -> None:
    """A restart inside the allocation is under way, but a node of it must be left: the controller requeues instead."""
    if job.state in {JobState.STOPPING, JobState.IN_PLACE, JobState.DIAGNOSING} and not job.in_queue:
        job_record.governed(turn, job, incident.id)
        restart.requeue(turn, job, incident, "a node of its allocation must be left")


def _ask_anew(turn: Turn, job: JobRecord) -> None:
    """Take back a restart in place that waits for approval and does not leave out the node that must be left since."""
    incident = restart.incident_of(turn, job)
    asked = turn.orders.about(job.about, o.RestartInPlace) if turn.place(job) is JobPlace.ASKING else []
    if incident is not None and asked:
        turn.orders.withdraw(job.about, "a further node must be left", o.RestartInPlace)
        decide(turn, job, incident)


def _begin(turn: Turn, job: JobRecord, incident: IncidentRecord, finding: Finding) -> None:
    """The first evidence against this attempt: choose how to end it."""
    job_record.broken(turn, job, incident.id)
    if job.attempt is not None:
        turn.tell_all(incident, job, f"fault of {job.name}: {story.of_finding(finding)}.")
    policy = turn.policy_of(job)
    guess = first_guess(finding)
    kind = ladder.trouble_of(guess)
    if finding.predicts:
        _on_trend(turn, job, incident, policy, finding)
        return
    if kind is Trouble.STRAGGLER and policy.straggler.exclude:
        restart.exclude(turn, job, guess.nodes)
    choice = ladder.choose(job, policy, guess, facts(turn, job, incident))
    if kind is Trouble.STRAGGLER and policy.straggler.exclude and choice.remedy is Remedy.NOTIFY:
        choice = ladder.Choice(Remedy.REQUEUE, "policy excludes stragglers at once")
    if finding.remedy is Remedy.NOTIFY and kind is not Trouble.STRAGGLER and job.alive:
        choice = ladder.Choice(Remedy.NOTIFY, "its rule says that people are told and the job goes on")
    if choice.remedy in {Remedy.NOTIFY, Remedy.NONE}:
        _only_tell(turn, job, incident, choice)
        return
    if not job.alive:
        turn.timers.start(f"settle:{incident.id}", policy.waits.settle_s, incident.id)
        attempt_is_over(turn, job, incident)
        return
    mode = turn.mode(policy, job.view.partition, choice.remedy, incident.id)
    if kind is Trouble.HANG and mode is not Mode.OBSERVE:
        _look(turn, job, incident, policy)  # taking stacks disturbs the job, too
    else:
        turn.timers.start(f"settle:{incident.id}", policy.waits.settle_s, incident.id)
        end_attempt(turn, job, incident, choice.remedy, choice.why)


def first_guess(finding: Finding) -> Diagnosis:
    """What a single finding says, before there is a diagnosis."""
    return Diagnosis(
        cause=finding.rule,
        domain=finding.domain,
        summary=finding.summary or finding.rule,
        confidence=0.5,
        nodes=(finding.place.node,) if finding.place.node else (),
        remedy=finding.remedy,
        fingerprint=finding.recurs_as,
    )


def _only_tell(turn: Turn, job: JobRecord, incident: IncidentRecord, choice: ladder.Choice) -> None:
    diagnosis = incidents.judge(turn, incident, job)
    for node in diagnosis.nodes:
        turn.tell(job, f"{node} is named; policy says: {choice.remedy}.")
    if choice.remedy is Remedy.NOTIFY:
        incident_record.tried(turn, incident, Remedy.NOTIFY)
    restart.leave_alone(turn, job, incident, choice.why or "policy only tells people")


def _look(turn: Turn, job: JobRecord, incident: IncidentRecord, policy: Policy) -> None:
    """Nothing moves: take stacks before anything is ended."""
    turn.move_job(job, JobTrigger.LOOK)
    attempt = job.attempt
    if turn.leads(job) and attempt is not None:
        turn.orders.issue(
            turn.order(
                o.CaptureStacks,
                job,
                incident.id,
                why="nothing moves",
                attempt=attempt.number,
                limit_s=policy.waits.stacks_s,
            )
        )
    turn.tell_all(incident, job, "nothing moves; stacks of all ranks are taken.")
    slack = 0.0 if turn.leads(job) else policy.waits.order_s
    restart.wait(turn, job, policy.waits.stacks_s + slack)


def stacks(turn: Turn, job: JobRecord, event: e.StacksCaptured) -> None:
    """Stacks of all ranks: the odd one is evidence."""
    incident = restart.incident_of(turn, job)
    attempt = job.attempt
    if incident is None or attempt is None or attempt.number != event.attempt:
        return
    for rank in event.odd_ranks[:4]:
        group = next((g for g in event.groups if rank in g.ranks), None)
        frames = group.frames[:6] if group is not None else ()
        does = "is stopped (SIGSTOP)" if rank in event.stopped_ranks else "stands elsewhere"
        incidents.add(
            turn,
            incident,
            Finding(
                id=f"{event.id}:rank:{rank}",
                rule="hang.rank",
                # Dated just before the wait it caused, so that it, not the wait, is the first thing seen.
                at=min(incidents.first_said(incident, event.at), event.at) - 0.001,
                role=Role.ROOT,
                severity=Severity.FATAL,
                remedy=Remedy.RESTART_IN_PLACE,
                place=Place(node=incidents.node_of_rank(attempt, rank), rank=rank),
                job=job.key,
                attempt=event.attempt,
                summary=f"rank {rank} {does} while the others wait for it",
                fingerprint="hang.rank",
                evidence=tuple(Evidence(EvidenceKind.STACK, frame[:200]) for frame in frames),
            ),
        )
    if event.silent_ranks:
        turn.tell(incident, f"No stack came from {_ranks(event.silent_ranks)}.")
    _after_look(turn, job, incident)


def _ranks(ranks: tuple[int, ...]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {story.listed([str(rank) for rank in ranks])}"


def _after_look(turn: Turn, job: JobRecord, incident: IncidentRecord) -> None:
    if turn.place(job) is not JobPlace.LOOKING:
        return
    turn.orders.withdraw(job.about, "the look is over", o.CaptureStacks)
    diagnosis = incidents.judge(turn, incident, job)
    choice = ladder.choose(job, turn.policy_of(job), diagnosis, facts(turn, job, incident))
    if choice.remedy in {Remedy.NOTIFY, Remedy.NONE}:
        restart.leave_alone(turn, job, incident, choice.why or "policy only tells people")
    else:
        end_attempt(turn, job, incident, choice.remedy, choice.why)


def _is_observed_hang(job: JobRecord, incident: IncidentRecord) -> bool:
    return incident.is_observed(job.about) and ladder.trouble_of(incident.findings[0]) is Trouble.HANG


def moves_again(turn: Turn, job: JobRecord, step: int) -> None:
    """Progress while one was still looking: it was slow, not hung."""
    incident = restart.incident_of(turn, job)
    if incident is not None and job.state is JobState.WATCHING and _is_observed_hang(job, incident):
        restart.passed_by_itself(turn, job, incident, f"it moves again (step {step})")
        return
    if incident is None or incident.diagnosis is not None or turn.place(job) is not JobPlace.LOOKING:
        return
    turn.orders.withdraw(job.about, "it moves again", o.CaptureStacks)
    turn.timers.cancel(job.timer)
    others = [i for i in incidents.open_of_job(turn, job) if i.id != incident.id]
    turn.move_job(job, JobTrigger.PROVE_AGAIN if others else JobTrigger.FALSE_ALARM)
    job_record.ends_by(job, "")
    incidents.job_settled(turn, incident, job, OBSERVED, f"it moves again (step {step}).")
    if others:
        job_record.governed(turn, job, others[-1].id)
        restart.wait(turn, job)


def end_attempt(turn: Turn, job: JobRecord, incident: IncidentRecord, remedy: Remedy, why: str = "") -> None:
    """Bring the broken attempt to its end, in the way that the rung asks for, by whoever decides."""
    policy = turn.policy_of(job)
    reason = why or (incident.diagnosis.summary if incident.diagnosis is not None else incident.findings[0].summary)
    if remedy is Remedy.EVACUATE:
        evacuate(turn, job, incident, reason)
        return
    if only_observes(turn, job, incident, remedy, reason):
        return
    if remedy is Remedy.STOP and _is_ours(turn, job, incident):
        if turn.mode(policy, job.view.partition, Remedy.STOP, incident.id) is Mode.ACT:
            incidents.judge(turn, incident, job)
            restart.give_up(turn, job, incident, reason or "its ladder ends here")
        else:
            turn.orders.withdraw(job.about, "its end is asked for anew", o.GiveUp)
            order = turn.order(o.GiveUp, job, incident.id, Remedy.STOP, reason)
            restart.ask_first(turn, job, incident, order)
        return
    if remedy is Remedy.REQUEUE and _is_ours(turn, job, incident):
        restart.requeue(turn, job, incident, reason)
        return
    _stop_ranks(turn, job, incident, remedy, reason)


def _is_ours(turn: Turn, job: JobRecord, incident: IncidentRecord) -> bool:
    """Is its requeue, or its end, this engine's to order? Of a job that a launcher leads only to get it off a node."""
    if turn.in_allocation:
        return False
    return turn.leads(job) or job.state is JobState.EVACUATING or facts(turn, job, incident).leave_node


def _stop_ranks(turn: Turn, job: JobRecord, incident: IncidentRecord, remedy: Remedy, reason: str) -> None:
    attempt = job.attempt
    policy = turn.policy_of(job)
    if turn.leads(job) and turn.in_allocation and attempt is not None:
        order = turn.order(
            o.StopAttempt,
            job,
            incident.id,
            Remedy.RESTART_IN_PLACE if remedy is not Remedy.STOP else Remedy.STOP,
            reason,
            attempt=attempt.number,
            grace_s=policy.waits.stop_grace_s,
        )
        if remedy in {Remedy.STOP, Remedy.REQUEUE}:
            turn.orders.issue(order)
        elif not restart.ask_first(turn, job, incident, order):
            return
    entered_stop(turn, job, incident)


def entered_stop(turn: Turn, job: JobRecord, incident: IncidentRecord) -> None:
    """The attempt's end is ordered (here, or by the launcher)."""
    turn.move_job(job, JobTrigger.STOP)
    turn.tell_all(incident, job, "its attempt is being stopped.")
    slack = 0.0 if turn.leads(job) else turn.policy_of(job).waits.order_s
    restart.wait(turn, job, turn.policy_of(job).waits.order_s + slack)


def _on_trend(turn: Turn, job: JobRecord, incident: IncidentRecord, policy: Policy, finding: Finding) -> None:
    """A fault is foretold: save and leave the node before it comes, when the job can and policy wants it."""
    if not policy.evacuate_on_trend or job.authority is not Authority.LAUNCHER or not job.alive:
        reason = "policy does not evacuate on trends" if not policy.evacuate_on_trend else "it cannot save and stop"
        _only_tell(turn, job, incident, ladder.Choice(Remedy.NOTIFY, reason))
        return
    incidents.judge(turn, incident, job)
    evacuate(turn, job, incident, story.of_finding(finding))


def evacuate(turn: Turn, job: JobRecord, incident: IncidentRecord, why: str) -> None:
    """Have it save a checkpoint and stop, with a limit; then it is requeued without its node."""
    attempt = job.attempt
    if attempt is None or not job.alive:
        attempt_is_over(turn, job, incident)
        return
    if not turn.can(job, JobTrigger.EVACUATE):
        end_attempt(turn, job, incident, Remedy.REQUEUE, why)  # it has hardly begun: there is nothing to save
        return
    limit_s = turn.policy_of(job).waits.evacuate_s
    order = turn.order(o.SaveAndStop, job, incident.id, Remedy.EVACUATE, why, attempt=attempt.number, limit_s=limit_s)
    if restart.ask_first(turn, job, incident, order):
        entered_evacuation(turn, job, incident, limit_s)


def entered_evacuation(turn: Turn, job: JobRecord, incident: IncidentRecord, limit_s: float) -> None:
    """Saving and stopping is ordered."""
    turn.move_job(job, JobTrigger.EVACUATE)
    job_record.evacuated(job)
    incident_record.tried(turn, incident, Remedy.EVACUATE)
    turn.tell_all(incident, job, f"asked to save a checkpoint and stop within {story.seconds(limit_s)}.")
    turn.notify(incident.id, Severity.INFO, f"{job.name} saves and stops", "Its node must be left.", job=job.key)
    restart.wait(turn, job, limit_s + turn.policy_of(job).waits.stop_grace_s)


def approved(turn: Turn, job: JobRecord, order: o.JobOrder) -> None:
    """A person approved what was proposed for the job, and it has been ordered: go on as if it had been all along."""
    incident = restart.incident_of(turn, job)
    if incident is None:
        return
    diagnosis = incident.diagnosis or _UNDECIDED
    if isinstance(order, o.StopAttempt):
        entered_stop(turn, job, incident)
    elif isinstance(order, o.RestartInPlace):
        restart.entered_in_place(turn, job, incident, diagnosis)
    elif isinstance(order, o.SaveAndStop):
        entered_evacuation(turn, job, incident, order.limit_s)
    elif isinstance(order, o.RequeueHeld):
        restart.entered_requeue(turn, job, incident, order.why)
    elif isinstance(order, o.GiveUp):
        incident_record.tried(turn, incident, Remedy.STOP)
        turn.notify(incident.id, Severity.FATAL, f"{job.name} was given up", order.why, job=job.key)
        why = f"given up: {order.why}"
        restart.finish(turn, job, JobTrigger.GIVE_UP, GIVEN_UP, why, by=order.id)


def not_approved(turn: Turn, job: JobRecord, why: str) -> None:
    """The proposal was rejected, lapsed, or no longer applies."""
    incident = restart.incident_of(turn, job)
    if incident is not None and job.state is JobState.DIAGNOSING and not turn.orders.about(job.about):
        restart.leave_alone(turn, job, incident, why)


def timer(turn: Turn, job: JobRecord) -> None:
    """`job:SLUG` fired: look again at what its state waits for."""
    incident = restart.incident_of(turn, job)
    policy = turn.policy_of(job)
    state = job.state
    if incident is None:
        return
    if state is JobState.WATCHING:
        _left_alone(turn, job, incident)
    elif state is JobState.STOPPING:
        _look_at_orders(turn, job, incident)
    elif state is JobState.EVACUATING:
        turn.orders.withdraw(job.about, "it did not stop in time", o.SaveAndStop)
        turn.tell_all(incident, job, "it did not save and stop in time.")
        end_attempt(turn, job, incident, Remedy.REQUEUE)
    elif state is JobState.DIAGNOSING:
        _look_at_diagnosis(turn, job, incident)
    elif state is JobState.IN_PLACE or (state is JobState.RESTARTING and not turn.blind_to(job)):
        _not_started(turn, job, incident, policy)
    elif state in restart.WAITS:
        _still_waiting(turn, job, incident, policy)
    elif state is JobState.HELD:
        restart.go_on_from_hold(turn, job)
    elif state is JobState.PROVING and not turn.blind_to(job):
        restart.prove_timer(turn, job)
    else:
        restart.wait(turn, job, policy.waits.order_s)


def _left_alone(turn: Turn, job: JobRecord, incident: IncidentRecord) -> None:
    """A job whose fault was only observed is looked at until it has come past the fault, or is over."""
    reached = job.attempt.reached if job.attempt is not None else None
    if incident.is_observed(job.about) and reached is not None and reached <= (incident.step_before or 0):
        restart.wait(turn, job)
    else:
        incidents.job_settled(turn, incident, job, OBSERVED, "left alone, and quiet since.")


def _look_at_diagnosis(turn: Turn, job: JobRecord, incident: IncidentRecord) -> None:
    """No stacks, or no word of the launcher, within the time it has for them."""
    if job.alive and not job.in_queue:
        _after_look(turn, job, incident)
    elif turn.in_allocation:
        attempt_is_over(turn, job, incident)
    else:
        take_over(turn, job, "the launcher gave no sign of what it does")


def settled(turn: Turn, incident: IncidentRecord) -> None:
    """`settle:INCIDENT` fired: enough evidence is gathered; jobs whose attempt is over are decided on."""
    for key in tuple(incident.jobs_open):
        job = turn.job(key)
        if job is None or job.incident != incident.id or job.state is not JobState.DIAGNOSING:
            continue
        if job.timer not in turn.state.timers and turn.place(job) is not JobPlace.ASKING:
            decide(turn, job, incident)


def _look_at_orders(turn: Turn, job: JobRecord, incident: IncidentRecord) -> None:
    """Stopping takes long: send what is pending once more (same id, same effect), or take over from the launcher."""
    pending = turn.orders.about(job.about, o.StopAttempt, o.RequeueHeld)
    if pending:
        turn.outgoing.orders.extend(record.order for record in pending)
        restart.wait(turn, job, turn.policy_of(job).waits.order_s)
    elif turn.in_allocation:
        why = "its attempt could not be seen to end"
        restart.leave_allocation(turn, job, incident, why, EXIT_RESTART_ME)
    else:
        turn.tell_all(incident, job, "the launcher did not end its attempt in time.")
        take_over(turn, job, "the launcher did not end its attempt in time")


def take_over(turn: Turn, job: JobRecord, why: str) -> None:
    """The controller goes on where the launcher left off."""
    incident = restart.incident_of(turn, job)
    if incident is None or turn.in_allocation:
        return
    turn.claim(job, Claim.TAKEN_OVER)
    turn.tell_all(incident, job, f"the controller takes over: {why}.")
    if job.state in {JobState.STOPPING, JobState.IN_PLACE, JobState.EVACUATING}:
        if not turn.orders.under_way(job.about, o.RequeueHeld):
            restart.requeue(turn, job, incident, why)
    elif job.state is JobState.DIAGNOSING:
        decide(turn, job, incident)


def _not_started(turn: Turn, job: JobRecord, incident: IncidentRecord, policy: Policy) -> None:
    """The new attempt's processes did not come up in time: that is a fault of its own kind."""
    turn.tell_all(incident, job, f"nothing was started within {story.seconds(policy.waits.start_s)}.")
    turn.orders.withdraw(job.about, "nothing was started in time", o.RestartInPlace)
    if turn.in_allocation:
        restart.leave_allocation(turn, job, incident, "the restart in place did not come up", EXIT_RESTART_ME)
        return
    turn.claim(job, Claim.TAKEN_OVER)
    diagnosis = incident.diagnosis or _UNDECIDED
    late = replace(diagnosis, cause=ladder.START_TIMEOUT, domain=Domain.PLATFORM, fingerprint=ladder.START_TIMEOUT)
    choice = ladder.choose(job, policy, late, facts(turn, job, incident))
    if choice.remedy is Remedy.REQUEUE:
        restart.requeue(turn, job, incident, "nothing was started in time")
    elif not only_observes(turn, job, incident, Remedy.STOP, choice.why or "nothing was started in time"):
        restart.give_up(turn, job, incident, choice.why or "nothing was started in time")


def _still_waiting(turn: Turn, job: JobRecord, incident: IncidentRecord, policy: Policy) -> None:
    if restart.runs_already(turn, job):
        return
    if job.state is JobState.RELEASED:
        turn.move_job(job, JobTrigger.WAIT)
    restart.allow_healthy(turn, job)
    restart.correct_exclusions(turn, job)
    turn.notify(
        incident.id,
        Severity.WARNING,
        f"{job.name} waits for nodes",
        f"Released {story.seconds(policy.waits.nodes_s)} ago and not started yet. {job.view.reason}".strip(),
        job=job.key,
    )
    restart.wait(turn, job)


def facts(turn: Turn, job: JobRecord, incident: IncidentRecord) -> ladder.Facts:
    """What is true of the job now."""
    attempt = job.attempt
    used = attempt.nodes if attempt is not None and attempt.nodes else job.view.nodes
    allocation = job.view.nodes or used
    good = [node for node in allocation if node not in job.excluded]
    leave = any(node in job.excluded for node in used)
    launcher = job.authority is Authority.LAUNCHER
    evacuated = attempt is not None and attempt.evacuated
    enough = len(good) >= len(used)
    return ladder.Facts(
        launcher=launcher,
        enough_nodes=enough,
        leave_node=leave,
        swap=launcher
        and leave
        and enough
        and not evacuated
        and (turn.in_allocation or incident.source.startswith("launcher")),
        alive=job.alive,
        in_queue=job.in_queue,
        evacuated=evacuated,
        asked=restart.asked_for(turn, job, incident),
        moved=attempt is None or attempt.first_step is not None or attempt.last_step is not None,
        broke=ladder.where_broke(attempt, incident),
    )


def _exclude_suspects(turn: Turn, job: JobRecord, incident: IncidentRecord, diagnosis: Diagnosis) -> None:
    """Suspects of hardware troubles, and others when the node's own evidence or its history agrees."""
    attempt = job.attempt
    used = attempt.nodes if attempt is not None and attempt.nodes else job.view.nodes
    trouble = ladder.trouble_of(diagnosis)
    if trouble in ladder.NODE_TROUBLES or (trouble is Trouble.STRAGGLER and turn.policy_of(job).straggler.exclude):
        restart.exclude(turn, job, diagnosis.nodes)
    limits = ladder.limits_of(turn.policy_of(job), job.view.recovery)
    charged = restart.charged_nodes(diagnosis, ladder.where_broke(attempt, incident))
    restart.exclude(turn, job, ladder.node_overdrawn(job, limits, charged))
    known = turn.state.nodes
    bad = [name for name in used if name in known and (known[name].phase is not NodeState.HEALTHY or known[name].gone)]
    restart.exclude(turn, job, bad)


def _fence_suspects(turn: Turn, job: JobRecord, incident: IncidentRecord, diagnosis: Diagnosis) -> None:
    """When the diagnosis, not a single finding, shows a bad node (an ECC error in a rank's log), fence it too."""
    if turn.in_allocation or ladder.trouble_of(diagnosis) not in ladder.NODE_TROUBLES:
        return
    roots = {judged.finding for judged in diagnosis.judged if judged.role == "root"}
    for finding in [f for f in incident.findings if f.id in roots]:
        name = finding.place.node
        if name and name in diagnosis.nodes and ladder.wants_node(finding):
            node = nodes.record_of(turn, name)
            if finding.rule not in node.findings and finding.at > node.clean_at:
                nodes.suspect(turn, node, incident, finding, job=job)


def attempt_is_over(turn: Turn, job: JobRecord, incident: IncidentRecord, at: float | None = None) -> None:
    """Its processes are gone: stamp it, and decide as soon as the evidence has settled."""
    restart.not_restarted(job, incident)
    restart.stamp_stopped(turn, job, incident, at)
    turn.orders.complete(job.about, "the attempt is over", o.StopAttempt, o.SaveAndStop)
    turn.orders.withdraw(job.about, "the attempt is over", o.CaptureStacks, o.SetExcluded, o.ReleaseJob)
    if job.state in restart.WAITS or job.state is JobState.RESTARTING:
        turn.claim(job, Claim.STARTED)  # and has ended before anybody saw it run
    if turn.orders.about(job.about, *_WAYS):
        return
    turn.move_job(job, JobTrigger.ATTEMPT_OVER)
    turn.timers.cancel(job.timer)
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
    choice = ladder.choose(job, policy, first, facts(turn, job, incident))
    mode = turn.mode(policy, job.view.partition, Remedy.REQUEUE, incident.id)
    if choice.remedy is Remedy.REQUEUE and mode is Mode.ACT:
        restart.requeue(turn, job, incident, first.summary or first.cause)


def decide(turn: Turn, job: JobRecord, incident: IncidentRecord) -> None:
    """Diagnose from what is known so far, and take the rung."""
    diagnosis = incidents.judge(turn, incident, job)
    if turn.orders.about(job.about, *_WAYS):
        return
    _exclude_suspects(turn, job, incident, diagnosis)
    _fence_suspects(turn, job, incident, diagnosis)
    policy = turn.policy_of(job)
    choice = ladder.choose(job, policy, diagnosis, facts(turn, job, incident))
    if job.state is not JobState.DIAGNOSING:
        return
    if choice.passed:
        turn.tell(job, f"{choice.passed[-1][0].upper()}{choice.passed[-1][1:]}.")
    acts = choice.remedy in {Remedy.RESTART_IN_PLACE, Remedy.EVACUATE, Remedy.REQUEUE, Remedy.STOP}
    rung = Remedy.REQUEUE if choice.remedy is Remedy.EVACUATE else choice.remedy
    if acts and only_observes(turn, job, incident, rung, choice.why or diagnosis.summary or diagnosis.cause):
        return
    if choice.remedy is Remedy.RESTART_IN_PLACE:
        restart.in_place(turn, job, incident, diagnosis)
    elif choice.remedy in {Remedy.REQUEUE, Remedy.EVACUATE}:
        _through_queue(turn, job, incident, diagnosis)
    elif choice.remedy is Remedy.STOP:
        _stop(turn, job, incident, choice.why)
    else:
        if choice.remedy is Remedy.NOTIFY:
            _tell_people(turn, job, incident, diagnosis)
        restart.leave_alone(turn, job, incident, choice.why or "policy only tells people")


def _tell_people(turn: Turn, job: JobRecord, incident: IncidentRecord, diagnosis: Diagnosis) -> None:
    incident_record.tried(turn, incident, Remedy.NOTIFY)
    text = diagnosis.story or story.of_diagnosis(diagnosis)
    turn.notify(incident.id, Severity.WARNING, f"{job.name}: {diagnosis.clause}", text, job=job.key)


def _awaits_launcher(turn: Turn, job: JobRecord) -> bool:
    """The launcher decides, and this engine is the controller's: it waits for the launcher's word, for a while."""
    if turn.leads(job) or turn.in_allocation:
        return False
    restart.wait(turn, job, turn.policy_of(job).waits.order_s)
    return True


def only_observes(turn: Turn, job: JobRecord, incident: IncidentRecord, remedy: Remedy, why: str) -> bool:
    """Does the mode of this rung keep it from being taken? Then what would have been ordered is written down.

    A job that our own requeue holds is past that question: nobody else would release it.
    """
    mode = turn.mode(turn.policy_of(job), job.view.partition, remedy, incident.id)
    if mode is not Mode.OBSERVE or job.in_queue or job_record.is_asked_for(turn, job, incident.id, remedy):
        return False
    order: o.AnyOrder
    what = (job, incident.id, remedy, why)
    number = job.attempt.number if job.attempt is not None else 0
    if remedy is Remedy.STOP:
        order = turn.order(o.GiveUp, *what)
    elif remedy is Remedy.RESTART_IN_PLACE and job.alive:
        order = turn.order(o.StopAttempt, *what, attempt=number, grace_s=turn.policy_of(job).waits.stop_grace_s)
    elif remedy is Remedy.RESTART_IN_PLACE:
        order = turn.order(o.RestartInPlace, *what, attempt=number + 1, epoch=job.epoch + 1)
    else:
        gone = restart.gone_nodes(turn, job)
        order = turn.order(o.RequeueHeld, *what, restart_count=job.view.restart_count, gone=gone)
    turn.ask(order, turn.policy_of(job), job.view.partition)
    restart.observed(turn, job, incident)
    return True


def _through_queue(turn: Turn, job: JobRecord, incident: IncidentRecord, diagnosis: Diagnosis) -> None:
    if job.in_queue:
        restart.hold(turn, job, incident, diagnosis)
    elif turn.in_allocation:
        restart.leave_allocation(turn, job, incident, diagnosis.summary or diagnosis.cause, EXIT_RESTART_ME)
    elif not _awaits_launcher(turn, job):
        restart.requeue(turn, job, incident, diagnosis.summary or diagnosis.cause)


def _stop(turn: Turn, job: JobRecord, incident: IncidentRecord, why: str) -> None:
    if not turn.in_allocation and _awaits_launcher(turn, job):
        return
    policy = turn.policy_of(job)
    mode = turn.mode(policy, job.view.partition, Remedy.STOP, incident.id)
    if mode is Mode.ACT or turn.in_allocation:
        restart.give_up(turn, job, incident, why)
        return
    order = turn.order(o.GiveUp, job, incident.id, Remedy.STOP, why)
    restart.ask_first(turn, job, incident, order)


def requeued(turn: Turn, job: JobRecord, restart_count: int) -> None:
    """It is back in the queue and held; the old attempt is provably over. `restart_count`: the run that was stopped."""
    incident = restart.incident_of(turn, job)
    if job.state is not JobState.STOPPING or incident is None:
        return
    is_over = job.view.state in ENDED
    if job.view.restart_count > restart_count and (is_over or job.view.state is SchedulerState.RUNNING):
        # Somebody else requeued it (a preemption, for instance) and it started: it is in no queue, and perhaps on a bad
        # node. A requeue of the run that is there now holds it.
        restart.requeue(turn, job, incident, f"it was started again meanwhile{', and has ended' if is_over else ''}")
        return
    turn.claim(job, Claim.QUEUED)
    job_record.end_with_its_run(turn, job)
    turn.stamp(incident, Mark.REQUEUED)
    attempt_is_over(turn, job, incident)


def order_done(turn: Turn, job: JobRecord, order: o.JobOrder) -> None:
    """What an order's success leads to. Those that end in an event of their own wait for it."""
    if isinstance(order, o.RequeueHeld):
        requeued(turn, job, order.restart_count)
    elif isinstance(order, o.SetExcluded):
        _excluded(turn, job, order)
    elif isinstance(order, o.ReleaseJob):
        restart.released(turn, job)


def _excluded(turn: Turn, job: JobRecord, order: o.SetExcluded) -> None:
    """Done; but another node may have failed since it was asked for."""
    incident = restart.incident_of(turn, job)
    if job.state is JobState.HELD:
        restart.exclude_unfenced(turn, job)
    if job.state in restart.IN_QUEUE and incident is not None and set(job.excluded) - set(order.nodes):
        restart.ask_exclusions(turn, job, incident)
    else:
        restart.release(turn, job)


def order_failed(turn: Turn, job: JobRecord, order: o.JobOrder, why: str) -> None:
    """The rung did not work: the next one, or people."""
    incident = restart.incident_of(turn, job)
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
        restart.wait(turn, job, turn.policy_of(job).waits.order_s)
    elif isinstance(order, o.StopAttempt | o.RestartInPlace) and turn.in_allocation:
        restart.leave_allocation(turn, job, incident, why, EXIT_RESTART_ME)
    elif isinstance(order, o.GiveUp):
        turn.notify(incident.id, Severity.ERROR, f"{job.name} could not be stopped", why, job=job.key)


def _not_excluded(turn: Turn, job: JobRecord, incident: IncidentRecord, order: o.SetExcluded, why: str) -> None:
    """The scheduler refuses the exclusions, without which the job may start on the nodes that it must leave.

    A scheduler refuses names that it does not know and cannot give out either: the job goes on at once without them,
    also where no other name is left. What it refuses all the same is told, and asked for again after a while. A job
    that is held stays so meanwhile. Another may start, which is why people are told.
    """
    if job.state not in restart.IN_QUEUE:
        return
    is_held = job.state is JobState.HELD
    unknown = [name for name in order.nodes if not restart.is_known(turn, name)]
    if unknown:
        job_record.readmit(job, unknown)
        turn.tell_all(incident, job, f"the scheduler does not know {story.listed(unknown)}: it goes on without them.")
        if is_held:
            restart.go_on_from_hold(turn, job)
        else:
            restart.correct_exclusions(turn, job)
        return
    off = story.listed(order.nodes)
    after = story.seconds(turn.policy_of(job).waits.nodes_s)
    if is_held:
        text = f"{why}. It stays held and is tried again in {after}. Or exclude them by hand and release it."
        restart.wait(turn, job, turn.policy_of(job).waits.nodes_s)
    else:
        text = f"{why}. It may start there: hold it, or exclude them by hand. It is tried again in {after}."
    turn.notify(incident.id, Severity.ERROR, f"{job.name} could not be kept off {off}", text, job=job.key)


def _not_requeued(turn: Turn, job: JobRecord, incident: IncidentRecord, why: str) -> None:
    """The scheduler will not requeue it. What still runs is left running; what has ended is given up."""
    reason = f"it could not be requeued: {why}"
    if incident.diagnosis is None:
        incidents.judge(turn, incident, job)  # a job that is held first is queued again before it is attributed
    if job.alive and job.view.state not in ENDED:
        turn.notify(incident.id, Severity.ERROR, f"{job.name} could not be requeued", why, job=job.key)
        incident_record.comes_to(incident, GIVEN_UP)
        restart.leave_alone(turn, job, incident, reason)
    else:
        restart.give_up(turn, job, incident, reason, cancel=False)

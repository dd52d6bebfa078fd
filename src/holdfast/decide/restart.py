"""The ways back for a job whose attempt is over: decide the rung, then in place, or through the queue.

`recovery.py` brings an attempt to its end and hands over; outcomes of orders come back through `order_done` and
`order_failed`. The engine that does not lead the job makes the same moves and orders nothing. How time passes: settling
(`settle:INCIDENT`) before the first diagnosis, and the job's own timer behind every order.
"""

from __future__ import annotations

from holdfast.decide import incidents, ladder, trust
from holdfast.decide.machine import Claim
from holdfast.decide.records import incident as incident_record
from holdfast.decide.records import job as job_record
from holdfast.decide.records import node as node_record
from holdfast.decide.records.incident import GIVEN_UP, OBSERVED, RECOVERED
from holdfast.decide.records.turn import Turn
from holdfast.errors import EXIT_DO_NOT_REQUEUE, EXIT_FAILED
from holdfast.model import events as e
from holdfast.model import orders as o
from holdfast.model import story
from holdfast.model.cluster import ENDED, JobView, NodeView, SchedulerState
from holdfast.model.evidence import Diagnosis, Remedy, Severity
from holdfast.model.orders import OrderStatus
from holdfast.model.policy import Mode, Proof, Trouble
from holdfast.model.records import (
    RUNS,
    AttemptRecord,
    Broke,
    IncidentRecord,
    JobRecord,
    JobState,
    JobTrigger,
    Mark,
    NodeState,
    slug,
)

WAITS = frozenset({JobState.RELEASED, JobState.WAITING_FOR_NODES})
"""It is in the queue, and the scheduler may start it."""
IN_QUEUE = WAITS | {JobState.HELD}
_UNFENCED = frozenset({NodeState.SUSPECT, NodeState.QUARANTINED})
_JUST_CHARGED = IN_QUEUE | {JobState.IN_PLACE}
"""The restart that follows has been counted, and the attempt that it leads to has hardly begun."""


def asked_for(turn: Turn, job: JobRecord, incident: IncidentRecord) -> bool:
    """Did a person wish for this end of the attempt, or did it leave its node in time? Neither is a failure."""
    attempt = job.attempt
    ended_by = turn.state.incidents.get(attempt.incident) if attempt is not None else None
    if attempt is not None and attempt.evacuated:
        return True
    since = max(attempt.started_at if attempt is not None else 0.0, job.released_at)
    return any(known is not None and incidents.is_asked(known, since) for known in (incident, ended_by))


def charged_nodes(diagnosis: Diagnosis, broke: Broke) -> tuple[str, ...]:
    """Nodes to which a restart is charged: of all that the incident names, those that broke this attempt.

    Bad numbers come from a checkpoint; who reports them is by chance.
    """
    if ladder.trouble_of(diagnosis) is Trouble.BAD_NUMBERS:
        return ()
    return tuple(node for node in diagnosis.nodes if node in broke.nodes) or diagnosis.nodes


def not_restarted(job: JobRecord, incident: IncidentRecord) -> None:
    """It leaves `in_place` without a new attempt: that restart does not count, or the fault would be counted twice."""
    if job.state is JobState.IN_PLACE:
        diagnosis = incident.diagnosis
        broke = ladder.where_broke(job.attempt, incident)
        job_record.refund(job, diagnosis, charged_nodes(diagnosis, broke) if diagnosis is not None else ())


def in_place(turn: Turn, job: JobRecord, incident: IncidentRecord, diagnosis: Diagnosis) -> None:
    """Order the restart in place, or ask for it; a launcher that leads orders it itself."""
    step_back(turn, job, diagnosis)
    if turn.leads(job):
        number = job.attempt.number + 1 if job.attempt is not None else 0
        order = turn.order(
            o.RestartInPlace,
            job,
            incident.id,
            Remedy.RESTART_IN_PLACE,
            diagnosis.summary,
            attempt=number,
            epoch=job.epoch + 1,
            exclude_nodes=tuple(node for node in job.excluded if node in job.view.nodes or not job.view.nodes),
            restore_step_max=job.restore_step_max,
        )
        if not ask_first(turn, job, incident, order):
            return
    entered_in_place(turn, job, incident, diagnosis)


def entered_in_place(turn: Turn, job: JobRecord, incident: IncidentRecord, diagnosis: Diagnosis) -> None:
    """The restart in place is ordered (here, or by the launcher)."""
    job_record.next_epoch(job)
    broke = ladder.where_broke(job.attempt, incident)
    nodes_charged = charged_nodes(diagnosis, broke)
    job_record.charge(job, Remedy.RESTART_IN_PLACE, diagnosis, broke, nodes_charged, attempt=job.attempt)
    incident_record.tried(turn, incident, Remedy.RESTART_IN_PLACE)
    turn.move_job(job, JobTrigger.RESTART_IN_PLACE)
    turn.stamp(incident, Mark.REQUEUED)
    turn.tell_all(incident, job, f"restarting in place ({job.in_place} since the last progress).")
    turn.notify(incident.id, Severity.INFO, f"{job.name} restarts in place", diagnosis.summary, job=job.key)
    wait(turn, job)


def step_back(turn: Turn, job: JobRecord, diagnosis: Diagnosis) -> None:
    """Bad numbers that come back were in the checkpoint: load one before it, each time one further back."""
    if ladder.trouble_of(diagnosis) is not Trouble.BAD_NUMBERS:
        return
    if not job.spent.get(ladder.fingerprint_of(diagnosis)):
        return
    attempt = job.attempt
    loaded = attempt.resumed_from if attempt is not None and attempt.resumed_from is not None else job.durable_step
    bad = min(loaded, job.restore_step_max) if job.restore_step_max is not None else loaded
    job_record.mistrust(job, bad)
    turn.tell(
        job, f"The checkpoint of step {bad} is mistrusted; nothing newer than step {job.restore_step_max} is loaded."
    )


def ask_first(turn: Turn, job: JobRecord, incident: IncidentRecord, order: o.AnyOrder) -> bool:
    """Ask the mode, unless a person's command names the order. True: ordered. Else the job waits, or is left alone."""
    if job_record.is_asked_for(turn, job, order.incident, order.remedy):
        job_record.asked_is_given(turn, job, order.remedy)
        turn.orders.issue(order)
        return True
    policy, group = turn.policy_of(job), job.view.partition
    reporter = trust.forced_by(turn, job, order)
    acts = turn.mode(policy, group, order.remedy, order.incident) is Mode.ACT
    if acts and (because := trust.holds_requeue(turn, job, order, reporter)):
        turn.propose(order, policy, group, waits_for=because)
        node_record.rest_held(turn, group, reporter, order.id)
        status = OrderStatus.PROPOSED
    else:
        status = turn.ask(order, policy, group)
    if status is OrderStatus.PENDING:
        if reporter:
            node_record.rest_requeue(turn, group, reporter)
        return True
    if status is OrderStatus.PROPOSED:
        turn.tell_all(incident, job, "waiting for a person to approve.")
        turn.orders.withdraw(job.about, "there is enough to ask a person", o.CaptureStacks)
        not_restarted(job, incident)
        turn.move_job(job, JobTrigger.ASK)
        turn.timers.cancel(job.timer)
    else:
        observed(turn, job, incident)
    return False


def observed(turn: Turn, job: JobRecord, incident: IncidentRecord) -> None:
    """Tell the cause and leave the job as it is; the orders that observe kept back are recorded already."""
    incidents.judge(turn, incident, job)
    leave_alone(turn, job, incident, f"policy says {Mode.OBSERVE}")


def leave_allocation(turn: Turn, job: JobRecord, incident: IncidentRecord, why: str, code: int) -> None:
    """The launcher hands over, or without a controller exits with this code. What follows comes from outside."""
    number = job.attempt.number if job.attempt is not None else 0
    turn.orders.issue(
        turn.order(
            o.Escalate,
            job,
            incident.id,
            Remedy.REQUEUE,
            why,
            attempt=number,
            exit_code=code,
            exclude_nodes=job.excluded,
        )
    )
    turn.claim(job, Claim.LEFT)
    not_restarted(job, incident)
    turn.move_job(job, JobTrigger.LEAVE)
    turn.timers.cancel(job.timer)
    turn.tell_all(incident, job, f"leaves its allocation with exit code {code}: {why}.")
    turn.notify(incident.id, Severity.WARNING, f"{job.name} leaves its allocation", why, job=job.key)


def leave_alone(turn: Turn, job: JobRecord, incident: IncidentRecord, why: str) -> None:
    """Nothing may be done. The incident stays open while the attempt lasts, so that its other findings join it."""
    incident_record.comes_to(incident, OBSERVED)
    turn.tell_all(incident, job, f"left alone: {why}.")
    others = [i for i in incidents.open_of_job(turn, job) if i.id != incident.id and i.remedies]
    over = not job.alive
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
            OBSERVED,
            f"it has ended ({job.view.state}) and is left alone: {why}",
        )
        return
    if not others and job.state in {JobState.IN_PLACE, JobState.RESTARTING}:
        turn.move_job(job, JobTrigger.ATTEMPT_OVER)  # what was expected has not come, and nothing may be done about it
    if turn.can(job, JobTrigger.FALSE_ALARM):
        # An attempt that is over can prove nothing any more: what comes next is the scheduler's word.
        proves = others and not over and turn.can(job, JobTrigger.PROVE_AGAIN)
        turn.move_job(job, JobTrigger.PROVE_AGAIN if proves else JobTrigger.FALSE_ALARM)
        turn.timers.cancel(job.timer)
    if job.state is JobState.WATCHING:
        wait(turn, job)
    elif others:
        # An earlier recovery goes on; this trouble is only written down.
        job_record.governed(turn, job, others[-1].id)
        incidents.job_settled(turn, incident, job, OBSERVED, why)
    kept_by_person = job.state is JobState.HELD and job.held_by
    if job.state is not JobState.WATCHING and job.timer not in turn.state.timers and not kept_by_person:
        wait(turn, job)


def _own_code(attempt: AttemptRecord | None) -> int:
    """What a shell would report of the attempt."""
    if attempt is None:
        return EXIT_FAILED
    if attempt.signal:
        return 128 + attempt.signal
    return attempt.exit_code or EXIT_FAILED


def requeue(turn: Turn, job: JobRecord, incident: IncidentRecord, why: str) -> bool:
    """Have it stopped, queued and held. Only the controller's engine calls this."""
    if turn.orders.about(job.about, o.RequeueHeld):
        return True
    order = turn.order(
        o.RequeueHeld,
        job,
        incident.id,
        Remedy.REQUEUE,
        why,
        restart_count=job.view.restart_count,
        gone=gone_nodes(turn, job),
        leased=any(attempt.epoch for attempt in job.attempts[-1:]),
    )
    if not ask_first(turn, job, incident, order):
        return False
    entered_requeue(turn, job, incident, why)
    return True


def gone_nodes(turn: Turn, job: JobRecord) -> tuple[str, ...]:
    """Its nodes of which there is evidence that they do not run."""
    known = turn.state.nodes
    return tuple(name for name in job.view.nodes if name in known and known[name].gone)


def entered_requeue(turn: Turn, job: JobRecord, incident: IncidentRecord, why: str) -> None:
    """The requeue is ordered."""
    not_restarted(job, incident)
    other_ways = (o.StopAttempt, o.CaptureStacks, o.SaveAndStop, o.RestartInPlace, o.GiveUp)
    turn.orders.withdraw(job.about, "it is requeued", *other_ways)
    if job.state is not JobState.STOPPING:
        turn.move_job(job, JobTrigger.STOP)
    incident_record.tried(turn, incident, Remedy.REQUEUE)
    turn.tell_all(incident, job, f"stopped and requeued, held: {why.rstrip('.')}.")
    turn.notify(incident.id, Severity.WARNING, f"{job.name} is requeued, held", why, job=job.key)
    wait(turn, job)


def hold(turn: Turn, job: JobRecord, incident: IncidentRecord, diagnosis: Diagnosis) -> None:
    """It stays held while bad nodes are taken out of its reach."""
    if not asked_for(turn, job, incident) and not _held_again(job):
        step_back(turn, job, diagnosis)
        broke = ladder.where_broke(job.attempt, incident)
        job_record.charge(job, Remedy.REQUEUE, diagnosis, broke, charged_nodes(diagnosis, broke), attempt=job.attempt)
    turn.move_job(job, JobTrigger.HOLD)
    known = turn.state.nodes
    named = {*diagnosis.nodes, *incident.nodes}
    free = [name for name in job.excluded if name in known and name not in named]
    job_record.readmit(job, [n for n in free if known[n].clean_at and known[n].phase is NodeState.HEALTHY])
    go_on_from_hold(turn, job)


def _held_again(job: JobRecord) -> bool:
    """Does a person hold what had been queued before, so that no attempt has ended since the last restart counted?"""
    attempt = job.attempt
    return bool(job.held_by) and attempt is not None and (attempt.restart_count, attempt.number) == job.charged


def go_on_from_hold(turn: Turn, job: JobRecord) -> None:
    """Exclude, then release; a person's hold is waited out."""
    incident = incident_of(turn, job)
    if job.state is not JobState.HELD or incident is None or turn.in_allocation:
        return
    if job.held_by:
        turn.tell_all(incident, job, f"held by {job.held_by}; it is not released before they say so.")
        turn.timers.cancel(job.timer)
        return
    if turn.orders.about(job.about, o.SetExcluded, o.ReleaseJob):
        return
    exclude_unfenced(turn, job)
    wait(turn, job)
    if _excludes_otherwise(job):
        ask_exclusions(turn, job, incident)
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
    job_record.let_start(turn, job)
    job_record.next_epoch(job)
    turn.orders.issue(
        turn.order(
            o.ReleaseJob, job, incident.id, Remedy.REQUEUE, epoch=job.epoch, restore_step_max=job.restore_step_max
        )
    )
    turn.move_job(job, JobTrigger.RELEASE)
    wait(turn, job)


def released(turn: Turn, job: JobRecord) -> None:
    """The scheduler may start it."""
    turn.claim(job, Claim.RELEASED)
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
    if job.state not in WAITS or job.view.state not in RUNS:
        return False
    attempt = job.attempt
    if attempt is not None and job.view.restart_count <= attempt.restart_count:
        return False
    runs(turn, job)
    return True


def runs(turn: Turn, job: JobRecord, before: SchedulerState = SchedulerState.UNKNOWN) -> None:
    """The scheduler runs it again; what it showed `before` as held, a person has let go."""
    turn.claim(job, Claim.LET_GO if before is SchedulerState.HELD else Claim.STARTED)
    if not turn.can(job, JobTrigger.RUNS):
        return
    if turn.orders.under_way(job.about, o.ReleaseJob):
        # Its effect is seen before its outcome is heard, for instance by a controller that was killed in between.
        _tell_released(turn, job)
    turn.orders.complete(job.about, "it runs already", o.ReleaseJob)
    turn.orders.withdraw(job.about, "it runs already", o.SetExcluded)
    turn.move_job(job, JobTrigger.RUNS)
    _stamp_placed(turn, job)
    turn.tell(job, f"The scheduler runs it again on {story.listed(job.view.nodes)}.")
    wait(turn, job)


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
    turn.orders.withdraw(job.about, why)
    turn.move_job(job, JobTrigger.ADOPT)
    turn.claim(job, Claim.ADOPTED)
    turn.tell_all(incident, job, f"{why}.")
    if incident is not None:
        stamp_stopped(turn, job, incident)
        turn.stamp(incident, Mark.REQUEUED)
        _lift_outdated(turn, job, incident)
    wait(turn, job)


def keep_off_bad(turn: Turn, job: JobRecord) -> None:
    """Have the scheduler keep it off all bad nodes now: it is queued, and no hold of ours gives the time."""
    exclude_unfenced(turn, job)
    correct_exclusions(turn, job)


def keep_queued_off(turn: Turn, names: list[str]) -> None:
    """These nodes count as bad, and the scheduler still gives them out: jobs that it may start are kept off them."""
    known = [name for name in names if is_known(turn, name)]
    for job in _queued(turn, WAITS):
        if not _is_observed(turn, job):
            exclude(turn, job, known)
            correct_exclusions(turn, job)


def exclusions_changed(turn: Turn, job: JobRecord, old: JobView) -> None:
    """Correct what a command of ours has changed that took effect after a later one: the scheduler may start the job.

    A node that we never had excluded is its owner's, or the scheduler's.
    """
    changed = set(old.excluded) ^ set(job.view.excluded)
    if job.state in WAITS and job.view.state not in RUNS and changed & set(job.excluded_asked):
        correct_exclusions(turn, job)


def _excludes_otherwise(job: JobRecord) -> bool:
    """Return whether the scheduler lacks an exclusion that we want, or keeps one of ours that we want no more."""
    return bool(set(job.excluded) - set(job.view.excluded) or job_record.outdated_exclusions(job))


def correct_exclusions(turn: Turn, job: JobRecord) -> None:
    """Ask for the exclusions that we want; what is under way is waited for (`recovery.order_done`)."""
    if turn.in_allocation or turn.orders.about(job.about, o.SetExcluded):
        return  # a launcher commands no scheduler
    if _excludes_otherwise(job) and not _is_observed(turn, job):
        ask_exclusions(turn, job, incident_of(turn, job))


def _is_observed(turn: Turn, job: JobRecord) -> bool:
    """Does policy leave the nodes that it is given to people?"""
    return turn.mode(turn.policy_of(job), job.view.partition, Remedy.REQUEUE, job.incident) is Mode.OBSERVE


def _lift_outdated(turn: Turn, job: JobRecord, incident: IncidentRecord | None) -> None:
    """Have the scheduler give it the nodes that are fit for it again, unless it has started without them."""
    if job.view.state not in RUNS and job_record.outdated_exclusions(job):
        ask_exclusions(turn, job, incident)


def exclude(turn: Turn, job: JobRecord, names: list[str] | tuple[str, ...]) -> None:
    """Keep the job off these nodes."""
    new = job_record.keep_off(job, names)
    if new:
        turn.tell(job, f"It {'would be' if _is_observed(turn, job) else 'is'} kept off {story.listed(new)}.")


def is_known(turn: Turn, name: str) -> bool:
    """Return whether the scheduler itself has named this node. No other is given out, and none can be excluded."""
    node = turn.state.nodes.get(name)
    return node is not None and node.view != NodeView(name=name)


def exclude_unfenced(turn: Turn, job: JobRecord) -> None:
    """Known bad, and not drained (yet, for the brake, or by failure): the scheduler would still give it out."""
    known = turn.state.nodes
    names = {name for brake in turn.state.brakes.values() for name in brake.waiting} | {*turn.state.fence_failed}
    for incident in turn.state.incidents.values():
        names.update(name for name in incident.nodes_open if known[name].phase in _UNFENCED)
    exclude(turn, job, sorted(name for name in names if is_known(turn, name)))


def ask_exclusions(turn: Turn, job: JobRecord, incident: IncidentRecord | None) -> None:
    """Have the scheduler keep it off exactly these nodes."""
    diagnosis = incident.diagnosis if incident is not None else None
    turn.orders.withdraw(job.about, "other nodes are to be left by now", o.SetExcluded)
    job_record.exclusions_asked(turn, job)
    turn.orders.issue(
        turn.order(
            o.SetExcluded,
            job,
            incident.id if incident is not None else "",
            Remedy.REQUEUE,
            diagnosis.summary if diagnosis is not None else "",
            nodes=tuple(sorted(job.excluded)),
        )
    )


def readmit(turn: Turn, names: list[str]) -> None:
    """These nodes are clean: jobs in the queue that we kept off them may use them again, or would wait for ever."""
    for job in _queued(turn, IN_QUEUE):
        _allow(turn, job, [node for node in names if node in job.excluded])


def _queued(turn: Turn, states: frozenset[JobState]) -> list[JobRecord]:
    """List the jobs in our care that are in one of these states of the queue, by name; a launcher has none."""
    if turn.in_allocation:
        return []
    names = {slug(key) for incident in turn.state.incidents.values() for key in incident.jobs_open}
    return [job for name in sorted(names) if (job := turn.state.jobs[name]).state in states]


def allow_healthy(turn: Turn, job: JobRecord) -> None:
    """It has waited for long: a node that only thin evidence speaks against is better than none."""
    known = turn.state.nodes
    _allow(turn, job, [name for name in job.excluded if name in known and known[name].state is NodeState.HEALTHY])


def _allow(turn: Turn, job: JobRecord, names: list[str]) -> None:
    incident = incident_of(turn, job)
    if not names or incident is None:
        return
    job_record.readmit(job, names)
    turn.tell_all(incident, job, f"it may use {story.listed(names)} again.")
    if job_record.outdated_exclusions(job):
        ask_exclusions(turn, job, incident)


def incident_of(turn: Turn, job: JobRecord) -> IncidentRecord | None:
    """The open incident that governs its recovery."""
    return turn.state.incidents.get(job.incident)


def stamp_stopped(turn: Turn, job: JobRecord, incident: IncidentRecord, at: float | None = None) -> None:
    """The broken attempt is over: since its own end where that is known, however late the job is found in the queue."""
    ended_at = job.attempt.ended_at if job.attempt is not None else 0.0
    turn.stamp(incident, Mark.STOPPED, ended_at or at)


def wait(turn: Turn, job: JobRecord, after_s: float | None = None) -> None:
    """Look at it again when its state has lasted long enough, or after so many seconds."""
    turn.timers.start(job.timer, turn.wait_s(job) if after_s is None else after_s, job.incident)


def step_done(turn: Turn, job: JobRecord, attempt: int, step: int) -> None:
    """A step was completed; of an older attempt it only tells how far that one had come."""
    record = job.numbered(attempt)
    if record is None:
        return
    further = job_record.stepped(turn, job, record, step)
    is_current = record is job.attempt
    if is_current and further and job.state is JobState.PROVING and turn.policy_of(job).proof is Proof.PASSED_FAULT:
        _progress(turn, job, f"it passed step {step}, further than before the fault")
        proven(turn, job, f"step {step} is past the fault")


def checkpoint_saved(turn: Turn, job: JobRecord, attempt: int, step: int) -> None:
    """A durable checkpoint exists. Beyond what must be passed it is real progress; it may be the proof."""
    told, record = job.numbered(attempt), job.attempt
    newest = record if told is record else None
    if told is not None:
        incident_record.stepped(turn, job, told, step)
    if newest is not None and newest.resumed_from is None and newest.durable_step is None:
        job_record.resumed_at(turn, job, step)  # nothing told where it began: no later than here
    passed = step > job_record.to_pass(job)
    since = passed and record is not None and not job.over and _is_since_the_last_charge(job, record, attempt)
    beyond = newest is not None and (passed if newest.began_at is None else step > newest.began_at)
    job_record.keep_durable(turn, job, newest, step, progress=since)
    if job.state is JobState.PROVING and beyond and turn.policy_of(job).proof is Proof.FIRST_CHECKPOINT:
        proven(turn, job, f"its first durable checkpoint after the restart is step {step}")
    if since:
        _progress(turn, job, f"checkpoint of step {step} is durable")
    incident = incident_of(turn, job)
    is_observed = incident is not None and incident.is_observed(job.about) and job.state is JobState.WATCHING
    if incident is not None and is_observed and newest is not None and step > (incident.step_before or 0):
        passed_by_itself(turn, job, incident, f"checkpoint of step {step} is durable")


def passed_by_itself(turn: Turn, job: JobRecord, incident: IncidentRecord, why: str) -> None:
    """A fault that was only observed is behind the job, which went on without help."""
    if job.attempt is not None and job.attempt.incident == incident.id:
        job_record.ends_by(job, "")
    turn.timers.cancel(job.timer)
    turn.tell(job, f"It is past the fault: {why}.")
    incidents.job_settled(turn, incident, job, OBSERVED, f"it went on by itself: {why}.")


def _is_since_the_last_charge(job: JobRecord, newest: AttemptRecord, attempt: int) -> bool:
    """Was it made after the last restart that was charged? A launcher that was cut off tells of it when it is heard.

    A restart is charged when the end of the attempt before it is diagnosed. So words of the attempt that is being ended
    count; of one that was charged already they do not. Of an attempt whose start nobody has told of only the number is
    known: a word that overtook the start of its attempt is of one that came after the charge. The job's epoch says
    nothing here: a release that came to no attempt raises it, too.
    """
    told = job.numbered(attempt)
    if told is not None:
        return (told.restart_count, told.number) > job.charged
    if attempt < newest.number:
        return attempt > job.charged[1]
    return job.state not in _JUST_CHARGED


def _progress(turn: Turn, job: JobRecord, why: str) -> None:
    if job_record.reset_budgets(job):
        turn.tell(job, f"Budgets start anew: {why}.")


def first_step(turn: Turn, job: JobRecord, event: e.FirstStepDone) -> None:
    """The current attempt completed its first step."""
    record = job.attempt
    if record is None or record.first_step is not None:
        return
    job_record.first_step(turn, job, record, event)
    for incident in incidents.open_of_job(turn, job):
        if record.incident != incident.id and job.state is JobState.PROVING:
            incident_record.goes_on(turn, incident, Mark.FIRST_STEP, job, event.at)
    if job.state is JobState.PROVING and turn.policy_of(job).proof is Proof.FIRST_STEP:
        proven(turn, job, f"it completed step {event.step}")


def proven(turn: Turn, job: JobRecord, why: str) -> None:
    """The restart has succeeded, as policy asks for it."""
    job_record.proven(turn, job, why)
    _recovered(turn, job, why)


def _recovered(turn: Turn, job: JobRecord, why: str) -> None:
    for incident in incidents.open_of_job(turn, job):
        incident_record.goes_on(turn, incident, Mark.PROVEN, job)
        took = turn.now - incident.marks.get(Mark.FAULT, incident.opened_at)
        lost = incident.lost_steps
        steps = f" {lost} steps were lost." if lost is not None else ""
        turn.notify(
            incident.id,
            Severity.INFO,
            f"{job.name} has recovered",
            f"{why[0].upper()}{why[1:]}, {story.seconds(took)} after the fault.{steps}",
            job=job.key,
        )
        incidents.job_settled(turn, incident, job, RECOVERED, f"recovered: {why}.")


def prove_timer(turn: Turn, job: JobRecord) -> None:
    """It runs, but the proof has not come within `prove_s`."""
    attempt = job.attempt
    policy = turn.policy_of(job)
    silent = attempt is not None and attempt.first_step is None and attempt.last_step is None
    if silent and not job.durable_step:
        # Nothing ever told of this job's steps, so living on is all the proof there will be.
        proven(
            turn, job, f"it has run for {story.seconds(policy.waits.prove_s)} with no new fault; it reports no progress"
        )
        return
    incident = incident_of(turn, job)
    if incident is not None:
        turn.notify(
            incident.id,
            Severity.WARNING,
            f"{job.name} runs, but is not proven",
            f"No proof ({policy.proof}) within {story.seconds(policy.waits.prove_s)} of its restart.",
            job=job.key,
        )
    wait(turn, job)


def finish(turn: Turn, job: JobRecord, trigger: JobTrigger, outcome: str, why: str, *, by: str = "") -> None:
    """The job is over: nothing is waited for any more, but the order `by` which it is ended."""
    if job.over:
        return
    job_record.over(turn, job, trigger, why, by)
    if outcome == RECOVERED:
        _recovered(turn, job, why)
    for incident in incidents.open_of_job(turn, job):
        incidents.job_settled(turn, incident, job, outcome, f"{why}.")
    turn.claim(job, Claim.OVER)


def give_up(turn: Turn, job: JobRecord, incident: IncidentRecord | None, why: str, *, cancel: bool = True) -> None:
    """Stop it for good and say why. The launcher leaves with the code that forbids a requeue."""
    order: o.GiveUp | o.Escalate
    number = job.attempt.number if job.attempt is not None else 0
    what = (job, incident.id if incident is not None else "", Remedy.STOP, why)
    if turn.in_allocation:
        order = turn.order(o.Escalate, *what, attempt=number, exit_code=EXIT_DO_NOT_REQUEUE)
        turn.claim(job, Claim.LEFT)
    else:
        order = turn.order(o.GiveUp, *what, cancel=cancel)
    if incident is not None:
        incident_record.tried(turn, incident, Remedy.STOP)
        summary = incident.diagnosis.story if incident.diagnosis is not None else ""
        text = summary if summary.startswith(why) else f"{why}. {summary}".strip()
        turn.notify(incident.id, Severity.FATAL, f"{job.name} was given up", text, job=job.key)
    finish(turn, job, JobTrigger.GIVE_UP, GIVEN_UP, f"given up: {why}")
    turn.orders.issue(order)


def end_again(turn: Turn, job: JobRecord, why: str) -> None:
    """It is over, and in the queue again by our own doing: nobody would ever release it."""
    job_record.requeue_undone(job)
    incident = job.attempt.incident if job.attempt is not None else ""
    turn.tell(job, f"It is ended once more: {why}.")
    turn.orders.issue(turn.order(o.GiveUp, job, incident, why=why))


def revive(turn: Turn, job: JobRecord, *, forgotten: bool = False) -> None:
    """Watch a finished job again that somebody queued once more, with fresh budgets and without our exclusions.

    Where the scheduler has only `forgotten` its end, nobody wanted another run, and the budgets stay as they were.
    """
    why = "the scheduler has forgotten that it had ended" if forgotten else "it was queued again by somebody else"
    turn.orders.withdraw(job.about, why)
    job_record.revived(turn, job, fresh=not forgotten)
    turn.tell(job, f"{why[0].upper()}{why[1:]}; watched from here on.")
    _lift_outdated(turn, job, None)

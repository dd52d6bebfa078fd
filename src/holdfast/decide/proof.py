"""How a job's recovery ends: proven by progress, or over because the job ended, was cancelled or was given up.

`jobs.py` reports steps and checkpoints here, `restart.py` and `operators.py` ask for the other ends. Progress, which
gives a job its budgets back, is a durable checkpoint of an attempt since the last restart, beyond `to_pass`; where
policy says `passed_fault`, also a completed step beyond the fault. How time passes: `wait` sets the one timer of a job,
`job:SLUG`, to what its state waits for.
"""

from __future__ import annotations

from holdfast.decide import budgets, incidents
from holdfast.decide.turn import Turn
from holdfast.errors import EXIT_DO_NOT_REQUEUE
from holdfast.model import orders as o
from holdfast.model import story
from holdfast.model.evidence import Remedy, Severity
from holdfast.model.orders import OrderStatus
from holdfast.model.policy import Policy, Proof
from holdfast.model.records import AttemptRecord, Authority, IncidentRecord, JobRecord, JobState, JobTrigger, Mark

STEPS_KEPT = 24
"""Durable checkpoints remembered per job: a poisoned one is stepped over to an older one."""
_NOT_YET_CHARGED = frozenset({JobState.STOPPING, JobState.EVACUATING, JobState.DIAGNOSING})
"""The attempt is to end or has ended, and the restart that follows has not been counted yet."""


def incident_of(turn: Turn, job: JobRecord) -> IncidentRecord | None:
    """The open incident that governs its recovery."""
    return turn.state.incidents.get(job.incident)


def wait(turn: Turn, job: JobRecord, after_s: float) -> None:
    """Look at it again then, unless something happens before."""
    turn.start_timer(job.timer, after_s, job.incident)


# --- progress ---------------------------------------------------------------------------------------------------------


def step_done(turn: Turn, job: JobRecord, attempt: int, step: int) -> None:
    """A step was completed; of an older attempt it only tells how far that one had come."""
    record = job.numbered(attempt)
    if record is None:
        return
    turn.touch(job)
    record.last_step = max(step, record.last_step or 0)
    _step_before(turn, record, step)
    if record is not job.attempt:
        job.best_step = max(job.best_step, step)
        return
    policy = turn.policy_of(job)
    passed = step > job.best_step
    job.best_step = max(job.best_step, step)
    if job.state is JobState.PROVING and passed and policy.proof is Proof.PASSED_FAULT:
        _progress(turn, job, f"it passed step {step}, further than before the fault")
        proven(turn, job, f"step {step} is past the fault")


def _step_before(turn: Turn, record: AttemptRecord, step: int) -> None:
    """How far the attempt had come that this incident ended; words of that may come late."""
    incident = turn.state.incidents.get(record.incident)
    if incident is None or incident.attempt_before != record.number:
        return
    if not incident.would and step > (incident.step_before or -1):
        incident.step_before = step
        turn.touch(incident)


def checkpoint_saved(turn: Turn, job: JobRecord, attempt: int, step: int) -> None:
    """A durable checkpoint exists. Beyond what must be passed it is real progress; it may be the proof."""
    turn.touch(job)
    record = job.attempt
    is_current = record is not None and record.number == attempt
    if (told := job.numbered(attempt)) is not None:
        _step_before(turn, told, step)
    if record is not None and is_current and record.resumed_from is None and record.durable_step is None:
        _resumed_at(turn, job, step)  # nothing told where it began: no later than here
    passed = step > to_pass(job)
    since = passed and record is not None and _is_since_the_last_charge(job, record, attempt)
    _keep(job, step, counts=is_current or since)
    if record is not None and is_current:
        began = record.durable_step if record.resumed_from is None else record.resumed_from
        beyond = step > began if began is not None else passed
        record.durable_step = max(step, record.durable_step or 0)
        record.durable_at = turn.now
        if job.state is JobState.PROVING and beyond and turn.policy_of(job).proof is Proof.FIRST_CHECKPOINT:
            proven(turn, job, f"its first durable checkpoint after the restart is step {step}")
    if since:
        job.progressed += 1
        _progress(turn, job, f"checkpoint of step {step} is durable")
    incident = incident_of(turn, job)
    is_observed = incident is not None and incident.would and job.state is JobState.WATCHING
    if incident is not None and is_observed and is_current and step > (incident.step_before or 0):
        passed_by_itself(turn, job, incident, f"checkpoint of step {step} is durable")


def passed_by_itself(turn: Turn, job: JobRecord, incident: IncidentRecord, why: str) -> None:
    """A fault that was only observed is behind the job, which went on without help."""
    if job.attempt is not None and job.attempt.incident == incident.id:
        job.attempt.incident = ""
    turn.cancel_timer(job.timer)
    turn.tell(job, f"It is past the fault: {why}.")
    incidents.job_settled(turn, incident, job, incidents.OBSERVED, f"it went on by itself: {why}.")


def to_pass(job: JobRecord) -> int:
    """The step that a durable checkpoint must pass to be progress.

    It is the furthest durable step. When an attempt resumes before it (newer checkpoints are damaged, gone or
    mistrusted), the steps in between are lost, and progress counts from where that attempt resumed. A job that falls
    back to the same step once more, or behind it, must pass what it had regained: otherwise a crash that comes back at
    the same step would have new budgets each time.
    """
    return job.durable_step if job.fell_to is None else job.regained


def _resumed_at(turn: Turn, job: JobRecord, step: int) -> None:
    """The current attempt goes on from this step: the job has fallen back when more had been durable."""
    lost = to_pass(job)
    if step < lost and (job.fell_to is None or step > job.fell_to):
        job.fell_to = job.regained = step
        job.durable_steps = [saved for saved in job.durable_steps if saved <= step]
        turn.tell(job, f"It fell back from step {lost} to step {step}: progress counts from there.")
    elif job.fell_to is not None:
        job.regained = max(job.regained, step)


def _keep(job: JobRecord, step: int, *, counts: bool) -> None:
    """Remember a durable step; `counts`: it is of an attempt since the job fell back."""
    if step > job.durable_step:
        job.durable_step = step
        if counts:
            job.fell_to = None
    if counts:
        job.regained = max(job.regained, step)
    if step not in job.durable_steps:
        job.durable_steps = sorted([*job.durable_steps, step])[-STEPS_KEPT:]


def _is_since_the_last_charge(job: JobRecord, newest: AttemptRecord, attempt: int) -> bool:
    """Was it made after the last restart that was charged? A launcher that was cut off tells of it when it is heard.

    A restart is charged when the end of the attempt before it is diagnosed. So words of the attempt that is being ended
    count; of one that was charged already they do not. A word that overtook the start of its attempt is of one that
    came after the charge. The job's epoch says nothing here: a release that came to no attempt raises it, too.
    """
    if job.state in {JobState.WATCHING, JobState.PROVING}:
        return attempt >= newest.number
    if attempt > newest.number:
        return job.state in _NOT_YET_CHARGED or job.state is JobState.RESTARTING
    if attempt < newest.number or job.state not in _NOT_YET_CHARGED:
        return False
    return (newest.restart_count, newest.number) > job.charged


def _progress(turn: Turn, job: JobRecord, why: str) -> None:
    if budgets.reset(job):
        turn.tell(job, f"Budgets start anew: {why}.")


def first_step(turn: Turn, job: JobRecord, step: int, resumed_from: int, at: float) -> None:
    """The current attempt completed its first step."""
    record = job.attempt
    if record is None or record.first_step is not None:
        return
    turn.touch(job)
    record.first_step = step
    record.first_step_at = at
    if record.durable_step is None:
        _resumed_at(turn, job, resumed_from)
    record.resumed_from = resumed_from
    for incident in incidents.open_of_job(turn, job):
        if record.incident == incident.id or job.state is not JobState.PROVING:
            continue
        turn.stamp(incident, Mark.FIRST_STEP, at)
        incident.step_resumed = resumed_from
        incident.attempt_after = record.number
    if job.state is JobState.PROVING and turn.policy_of(job).proof is Proof.FIRST_STEP:
        proven(turn, job, f"it completed step {step}")


def proven(turn: Turn, job: JobRecord, why: str) -> None:
    """The restart has succeeded, as policy asks for it."""
    turn.move_job(job, JobTrigger.PROVEN)
    turn.cancel_timer(job.timer)
    job.restore_step_max = None
    job.rung = 0
    turn.tell(job, f"Recovered: {why}.")
    _recovered(turn, job, why)
    job.incident = ""


def _recovered(turn: Turn, job: JobRecord, why: str) -> None:
    attempt = job.attempt
    for incident in incidents.open_of_job(turn, job):
        turn.stamp(incident, Mark.PROVEN)
        if attempt is not None and incident.attempt_after is None:
            incident.attempt_after = attempt.number
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
        incidents.job_settled(turn, incident, job, incidents.RECOVERED, f"recovered: {why}.")


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
    wait(turn, job, policy.waits.prove_s)


# --- other ends -------------------------------------------------------------------------------------------------------


def finish(turn: Turn, job: JobRecord, trigger: JobTrigger, outcome: str, why: str) -> None:
    """The job is over: nothing is waited for any more."""
    if job.over:
        return
    for record in turn.open_orders(job.about, o.RequeueHeld):
        if record.status is OrderStatus.PENDING and isinstance(record.order, o.RequeueHeld):
            job.requeue_dropped = record.order.restart_count
    turn.withdraw(job.about, why)
    turn.cancel_timer(job.timer)
    turn.move_job(job, trigger)
    turn.tell(job, f"{why[0].upper()}{why[1:]}.")
    if outcome == incidents.RECOVERED:
        _recovered(turn, job, why)
    for incident in incidents.open_of_job(turn, job):
        incidents.job_settled(turn, incident, job, outcome, f"{why}.")
    job.incident = ""
    job.in_queue = False
    job.held_by = ""


def give_up(turn: Turn, job: JobRecord, incident: IncidentRecord | None, why: str, *, cancel: bool = True) -> None:
    """Stop it for good and say why. The launcher leaves with the code that forbids a requeue."""
    order: o.GiveUp | o.Escalate
    number = job.attempt.number if job.attempt is not None else 0
    common = {
        "incident": incident.id if incident is not None else "",
        "remedy": Remedy.STOP,
        "job": job.key,
        "why": why,
    }
    if turn.in_allocation:
        order = turn.make(o.Escalate, attempt=number, exit_code=EXIT_DO_NOT_REQUEUE, **common)
        job.authority = Authority.CONTROLLER
    else:
        order = turn.make(o.GiveUp, cancel=cancel, **common)
    if incident is not None:
        incidents.tried(turn, incident, Remedy.STOP)
        summary = incident.diagnosis.story if incident.diagnosis is not None else ""
        turn.notify(incident.id, Severity.FATAL, f"{job.name} was given up", f"{why}. {summary}".strip(), job=job.key)
    finish(turn, job, JobTrigger.GIVE_UP, incidents.GIVEN_UP, f"given up: {why}")
    turn.issue(order)


def end_again(turn: Turn, job: JobRecord, why: str) -> None:
    """It is over, and in the queue again by our own doing: nobody would ever release it."""
    job.requeue_dropped = None
    incident = job.attempt.incident if job.attempt is not None else ""
    turn.tell(job, f"It is ended once more: {why}.")
    turn.issue(turn.make(o.GiveUp, incident=incident, job=job.key, why=why))


def revive(turn: Turn, job: JobRecord) -> None:
    """Somebody queued a finished job once more: watch it again, with fresh budgets."""
    turn.withdraw(job.about, "it was queued again by somebody else")
    turn.move_job(job, JobTrigger.REVIVED)
    budgets.reset(job)
    job.excluded = ()
    job.restore_step_max = None
    job.requeue_dropped = None
    turn.tell(job, "It was queued again by somebody else; watched from here on.")


def policy_wait(policy: Policy, state: JobState) -> float:
    """How long a state may last before one looks again."""
    waits = policy.waits
    if state in {JobState.RELEASED, JobState.WAITING_FOR_NODES}:
        return waits.nodes_s
    if state in {JobState.RESTARTING, JobState.IN_PLACE}:
        return waits.start_s
    return waits.prove_s if state is JobState.PROVING else waits.order_s

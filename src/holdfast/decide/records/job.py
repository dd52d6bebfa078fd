"""What happens to the record of a job and to those of its attempts. State and leader are `Turn.move_job` and `claim`.

Imported by the flows as `job_record`. Progress and budgets are counted here and judged in `ladder.py`. The time is the
event's.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.decide import ladder, machine
from holdfast.decide.records import incident as incident_record
from holdfast.decide.records.turn import Turn
from holdfast.model import events as e
from holdfast.model import orders as o
from holdfast.model.cluster import JobView
from holdfast.model.evidence import Diagnosis, Remedy, Severity
from holdfast.model.orders import OrderStatus
from holdfast.model.records import AttemptRecord, Broke, JobRecord, JobTrigger
from holdfast.model.toml_lines import did_you_mean

ATTEMPTS_MAX = 64
NODES_KEPT = 3
"""So many attempts of a large job name their nodes; with all of them its record, written with every event, was 1 MB."""
NODES_SMALL = 64
STEPS_KEPT = 24
"""Durable checkpoints remembered per job: a poisoned one is stepped over to an older one."""


# --- the job ----------------------------------------------------------------------------------------------------------


def create(turn: Turn, view: JobView) -> JobRecord:
    """A job is seen for the first time."""
    job = JobRecord(key=view.key, view=view, since=turn.now)
    turn.state.jobs[job.about] = job
    turn.index.by_id.setdefault(view.key.id, set()).add(job.about)
    turn.index.occupied(job.about, None, view)
    if turn.in_allocation:
        turn.claim(job, machine.Claim.ATTACHED)
    turn.changes.add(job)
    _warn(turn, job, None)
    return job


def _warn(turn: Turn, job: JobRecord, old: JobView | None) -> None:
    """Its owner will not get all that was meant: said once, or nobody learns of it before it is needed."""
    known = _slips(turn, old) if old is not None else []
    for words in _slips(turn, job.view):
        if words not in known:
            turn.tell(job, f"{words[0].upper()}{words[1:]}.")
            # One matter for all jobs of a user: each of them may be submitted with another slip.
            topic = f"asked:{job.view.user}" if job.view.user else job.about
            title = f"{job.name}: recovery may differ from what was asked"
            turn.notify(topic, Severity.WARNING, title, f"{words}.", job=job.key)


def _slips(turn: Turn, view: JobView) -> list[str]:
    """What the adapter did not understand, and a policy of a name that this site does not have."""
    asked, names = view.recovery.policy if view.recovery is not None else "", turn.policies.named
    if not asked or asked in names or turn.in_allocation:
        return list(view.warnings)
    return [*view.warnings, f"policy '{asked}' is not known here, so the site's holds{did_you_mean(asked, names)}"]


def seen(turn: Turn, job: JobRecord, view: JobView) -> list[str]:
    """Keep what is said of it now. Returns the nodes that it has left, sorted."""
    old, job.view = job.view, view
    turn.changes.add(job)
    _warn(turn, job, old)
    return turn.index.occupied(job.about, old, view)


def asked_for(turn: Turn, job: JobRecord, *rungs: Remedy) -> None:
    """A person's command names these orders: the next one of each rung needs no further approval."""
    turn.state.approved[job.about] = list(rungs)


def is_asked_for(turn: Turn, job: JobRecord, incident: str, rung: Remedy) -> bool:
    """Has a person's command, for the incident that governs the job, named an order of this rung that is not given?"""
    return incident == job.incident and rung in turn.state.approved.get(job.about, ())


def asked_is_given(turn: Turn, job: JobRecord, rung: Remedy) -> None:
    """The order of this rung that a person's command named is given: it approves no other."""
    turn.state.approved[job.about].remove(rung)
    if not turn.state.approved[job.about]:
        del turn.state.approved[job.about]


def attached(turn: Turn, job: JobRecord, restart_count: int) -> None:
    """A launcher of this start leads it."""
    turn.claim(job, machine.Claim.ATTACHED)
    job.led_at = restart_count
    turn.timers.cancel(f"lapse:{job.about}")


def governed(turn: Turn, job: JobRecord, incident: str) -> None:
    """This incident governs its recovery from now on; empty: none does."""
    job.incident = incident
    turn.changes.add(job)


def broken(turn: Turn, job: JobRecord, incident: str) -> None:
    """This incident governs its recovery, and is what its newest attempt ends by."""
    governed(turn, job, incident)
    ends_by(job, incident)


def ends_by(job: JobRecord, incident: str) -> None:
    """This incident is what its newest attempt ends by; empty: the attempt goes on."""
    if job.attempt is not None:
        job.attempt.incident = incident


def evacuated(job: JobRecord) -> None:
    """Its newest attempt is asked to save and stop."""
    if job.attempt is not None:
        job.attempt.evacuated = True


def keep_off(job: JobRecord, names: Iterable[str]) -> list[str]:
    """Keep the job off these nodes. Returns those that are new to it."""
    new = [name for name in names if name not in job.excluded]
    job.excluded = (*job.excluded, *new)
    return new


def readmit(job: JobRecord, names: Iterable[str]) -> None:
    """The job may use these nodes again."""
    allowed = set(names)
    job.excluded = tuple(name for name in job.excluded if name not in allowed)


def exclusions_asked(turn: Turn, job: JobRecord) -> None:
    """The scheduler is asked to keep it off its excluded nodes, and off no other that we had named.

    What it still shows of those stays known as ours: the order may be taken back before it has its effect.
    """
    job.excluded_asked = tuple(sorted({*job.excluded, *outdated_exclusions(job)}))
    turn.changes.add(job)


def outdated_exclusions(job: JobRecord) -> set[str]:
    """Nodes that we had the scheduler keep it off, and that are fit for it again."""
    return (set(job.excluded_asked) - set(job.excluded)) & set(job.view.excluded)


def next_epoch(job: JobRecord) -> None:
    """What it starts from now on has a later fencing epoch."""
    job.epoch += 1


def let_start(turn: Turn, job: JobRecord) -> None:
    """It may start from the queue: what was asked of its former runs is done with."""
    job.released_at = turn.now
    if job.attempt is not None:
        job.attempt.evacuated = False


def mistrust(job: JobRecord, bad: int) -> None:
    """The checkpoint of this step is bad: none but an older one is loaded."""
    older = [step for step in job.durable_steps if step < bad]
    job.restore_step_max = older[-1] if older else max(0, bad - 1)


def proven(turn: Turn, job: JobRecord, why: str) -> None:
    """Its restart has succeeded."""
    turn.move_job(job, JobTrigger.PROVEN)
    turn.timers.cancel(job.timer)
    job.restore_step_max = None
    turn.tell(job, f"Recovered: {why}.")


def over(turn: Turn, job: JobRecord, trigger: JobTrigger, why: str, by: str) -> None:
    """It is over: orders about it are taken back except the one `by` which it is ended, and its timer stops."""
    for record in turn.orders.about(job.about, o.RequeueHeld):
        if record.status is OrderStatus.PENDING and isinstance(record.order, o.RequeueHeld):
            job.requeue_dropped = record.order.restart_count
    turn.orders.withdraw(job.about, why, but=by)
    turn.timers.cancel(job.timer)
    turn.move_job(job, trigger)
    turn.tell(job, f"{why[0].upper()}{why[1:]}.")


def requeue_undone(job: JobRecord) -> None:
    """The requeue of ours that took effect after it had ended is answered."""
    job.requeue_dropped = None


def revived(turn: Turn, job: JobRecord, *, fresh: bool) -> None:
    """It was queued once more after it had ended. `fresh`: nothing counts any more that is of before."""
    turn.move_job(job, JobTrigger.REVIVED)
    if not fresh:
        return
    reset_budgets(job)
    job.excluded, job.restore_step_max, job.requeue_dropped = (), None, None


# --- attempts ---------------------------------------------------------------------------------------------------------


def attempt_of(event: e.AttemptStarted) -> AttemptRecord:
    """The attempt as its start tells of it."""
    return AttemptRecord(
        number=event.attempt,
        epoch=event.epoch,
        restart_count=event.restart_count,
        in_place=event.in_place,
        nodes=event.nodes,
        ranks=event.ranks,
        standby=event.standby,
        log_dir=event.log_dir,
        started_at=event.at,
    )


def start_attempt(turn: Turn, job: JobRecord, event: e.AttemptStarted) -> None:
    """Its launcher has started an attempt; one that was only implied gives way to it."""
    while job.attempts and job.attempts[-1].number >= event.attempt:
        job.attempts.pop()
    made = attempt_of(event)
    if not event.in_place and event.restart_count == job.view.restart_count and job.view.started_at <= event.at:
        made.placed_at = job.view.started_at
    job.epoch = max(job.epoch, event.epoch)
    add_attempt(turn, job, made)


def add_attempt(turn: Turn, job: JobRecord, attempt: AttemptRecord) -> None:
    """Begin a new attempt; the list of attempts stays bounded. What a person asked for was of the one before."""
    turn.state.approved.pop(job.about, None)
    job.attempts.append(attempt)
    if len(job.attempts) > ATTEMPTS_MAX:
        del job.attempts[0]
    for old in job.attempts[:-NODES_KEPT]:
        if len(old.nodes) > NODES_SMALL:
            old.nodes = ()  # its AttemptStarted holds them
    turn.changes.add(job)


def attempt_over(
    attempt: AttemptRecord, at: float, code: int | None = None, signal: int | None = None, *, stopped: bool = False
) -> None:
    """No process of the attempt runs any more. What is known of its end already stays."""
    attempt.ended_at = attempt.ended_at or at
    if attempt.exit_code is None:
        attempt.exit_code, attempt.signal = code, signal
        attempt.stopped = attempt.stopped or stopped


def launcher_left(attempt: AttemptRecord, at: float, code: int) -> None:
    """Its launcher left with this exit code, which goes before that of a rank."""
    attempt.ended_at, attempt.exit_code = attempt.ended_at or at, code


def end_with_its_run(turn: Turn, job: JobRecord) -> None:
    """The run of its newest attempt is over, and the attempt with it, although nobody told of its end."""
    attempt = job.attempt
    if attempt is not None and not attempt.ended_at:
        attempt_over(attempt, turn.now, stopped=True)


def stepped(turn: Turn, job: JobRecord, attempt: AttemptRecord, step: int) -> bool:
    """The attempt completed a step. True when no attempt of the job had come so far."""
    turn.changes.add(job)
    attempt.last_step = max(step, attempt.last_step or 0)
    incident_record.stepped(turn, job, attempt, step)
    further = step > job.best_step
    job.best_step = max(job.best_step, step)
    return further


def first_step(turn: Turn, job: JobRecord, attempt: AttemptRecord, event: e.FirstStepDone) -> None:
    """Its newest attempt completed its first step, and tells from where it resumed."""
    turn.changes.add(job)
    attempt.first_step, attempt.first_step_at = event.step, event.at
    if attempt.durable_step is None:
        resumed_at(turn, job, event.resumed_from)
    attempt.resumed_from = event.resumed_from


# --- budgets ----------------------------------------------------------------------------------------------------------


def charge(
    job: JobRecord,
    remedy: Remedy,
    diagnosis: Diagnosis | None,
    broke: Broke,
    nodes: Iterable[str] = (),
    *,
    attempt: AttemptRecord | None = None,
) -> None:
    """Count one restart of `attempt`, which broke there; `nodes`: to which it is charged as well."""
    if attempt is not None:
        job.charged = (attempt.restart_count, attempt.number)
    if remedy is Remedy.RESTART_IN_PLACE:
        job.in_place += 1
    else:
        job.requeues += 1
    if diagnosis is not None:
        name = ladder.fingerprint_of(diagnosis)
        job.spent[name] = ladder.times_answered(job, diagnosis, broke) + 1
        job.broke[name] = broke
    for node in nodes:
        job.spent[ladder.NODE_KEY + node] = job.spent.get(ladder.NODE_KEY + node, 0) + 1


def refund(job: JobRecord, diagnosis: Diagnosis | None, nodes: Iterable[str] = ()) -> None:
    """A restart in place that was charged never came about: what its attempt did counts as before."""
    job.in_place = max(0, job.in_place - 1)
    job.charged = (job.charged[0], job.charged[1] - 1)
    names = [ladder.NODE_KEY + node for node in nodes]
    if diagnosis is not None:
        names.append(ladder.fingerprint_of(diagnosis))
    for name in names:
        left = job.spent.get(name, 0) - 1
        if left > 0:
            job.spent[name] = left
        else:
            job.spent.pop(name, None)


def reset_budgets(job: JobRecord) -> bool:
    """Progress was made: forget all counts. True when there was something to forget."""
    had = bool(job.in_place or job.requeues or job.spent)
    job.in_place = 0
    job.requeues = 0
    if job.spent:
        job.spent, job.broke = {}, {}
    return had


# --- durable steps ----------------------------------------------------------------------------------------------------


def to_pass(job: JobRecord) -> int:
    """The step that a durable checkpoint must pass to be progress.

    It is the furthest durable step. When an attempt resumes before it (newer checkpoints are damaged, gone or
    mistrusted), the steps in between are lost, and progress counts from where that attempt resumed. A job that falls
    back to the same step once more, or behind it, must pass what it had regained: otherwise a crash that comes back at
    the same step would have new budgets each time.
    """
    return job.durable_step if job.fell_to is None else job.regained


def resumed_at(turn: Turn, job: JobRecord, step: int) -> None:
    """The current attempt goes on from this step: the job has fallen back when more had been durable."""
    lost = to_pass(job)
    if step < lost and (job.fell_to is None or step > job.fell_to):
        job.fell_to = job.regained = step
        job.durable_steps = [saved for saved in job.durable_steps if saved <= step]
        turn.tell(job, f"It fell back from step {lost} to step {step}: progress counts from there.")
    elif job.fell_to is not None:
        job.regained = max(job.regained, step)


def keep_durable(turn: Turn, job: JobRecord, newest: AttemptRecord | None, step: int, *, progress: bool) -> None:
    """Remember a durable step.

    Args:
        turn: the event's turn.
        job: whose it is.
        newest: its newest attempt when that one has made it, else None.
        step: of the checkpoint.
        progress: it was made since the last restart that was charged.
    """
    turn.changes.add(job)
    counts = progress or newest is not None
    if step > job.durable_step:
        job.durable_step = step
        if counts:
            job.fell_to = None
    if counts:
        job.regained = max(job.regained, step)
    if step not in job.durable_steps:
        job.durable_steps = sorted([*job.durable_steps, step])[-STEPS_KEPT:]
    if newest is not None:
        newest.durable_step, newest.durable_at = max(step, newest.durable_step or 0), turn.now
    if progress:
        job.progressed += 1

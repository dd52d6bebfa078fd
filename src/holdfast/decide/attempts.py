"""Attempts: one execution of a job each; how they start and end, and what their ends say.

`jobs.py` adds what schedulers and launchers say of the job as a whole; `engine.py` hands the launcher's events about
attempts in. Words of older attempts and repeated words change nothing but the record. The only time is the event's.
"""

from __future__ import annotations

from holdfast.decide import budgets, findings, incidents, proof, recovery, remedies, repair, restart
from holdfast.decide.proof import incident_of, wait
from holdfast.decide.state import occupying
from holdfast.decide.transitions import JOB, can
from holdfast.decide.turn import Turn
from holdfast.errors import EXIT_DO_NOT_REQUEUE, EXIT_RESTART_ME
from holdfast.model import events as e
from holdfast.model import orders as o
from holdfast.model import story
from holdfast.model.cluster import JobKey, JobView, SchedulerState
from holdfast.model.evidence import Domain, Evidence, EvidenceKind, Finding, Place, Remedy, Role, Severity
from holdfast.model.records import AttemptRecord, Authority, JobRecord, JobState, JobTrigger, Mark, slug

ATTEMPTS_MAX = 64
NODES_KEPT = 3
"""So many attempts of a large job name their nodes; with all of them its record, written with every event, was 1 MB."""
NODES_SMALL = 64


def create(turn: Turn, view: JobView) -> JobRecord:
    """A job is seen for the first time."""
    job = JobRecord(key=view.key, view=view, since=turn.now)
    name = slug(view.key)
    turn.state.jobs[name] = job
    turn.index.by_id.setdefault(view.key.id, set()).add(name)
    for node in occupying(view):
        turn.index.jobs_on.setdefault(node, set()).add(name)
    if turn.in_allocation:
        job.authority = Authority.LAUNCHER
    turn.touch(job)
    _warn(turn, job, ())
    return job


def _warn(turn: Turn, job: JobRecord, known: tuple[str, ...]) -> None:
    """Its owner meant something that is not understood: said once, or nobody learns of it before it is needed."""
    for words in job.view.warnings:
        if words not in known:
            turn.tell(job, f"{words[0].upper()}{words[1:]}.")
            title = f"{job.name}: asked for something that is not understood"
            turn.notify(job.about, Severity.WARNING, title, f"{words}.", job=job.key)


def forgotten(turn: Turn, key: JobKey) -> bool:
    """Is it a job of former days, whose id the scheduler has given to another? Late words of it bring nothing back."""
    later = turn.index.by_id.get(key.id, ())
    return any(turn.state.jobs[name].key.generation > key.generation for name in later)


def set_view(turn: Turn, job: JobRecord, view: JobView) -> None:
    """Keep what is said of it, and which nodes it is on."""
    old, job.view = job.view, view
    turn.touch(job)
    _warn(turn, job, old.warnings)
    before, after = occupying(old), occupying(view)
    if before == after:
        return
    name = job.about
    left = set(before) - set(after)
    for node in after:
        turn.index.jobs_on.setdefault(node, set()).add(name)
    for node in sorted(left):
        on = turn.index.jobs_on.get(node)
        if on is not None:
            on.discard(name)
            if not on:
                del turn.index.jobs_on[node]
        record = turn.state.nodes.get(node)
        if record is not None and record.incident:
            repair.check_drained(turn, record)


def implied(turn: Turn, job: JobRecord) -> None:
    """A job without a launcher has attempts all the same: one per start by the scheduler."""
    attempt = job.attempt
    if turn.in_allocation:
        return  # the launcher itself says what it starts
    if attempt is not None and (attempt.restart_count >= job.view.restart_count or attempt.epoch):
        return
    # As the scheduler counts: what reads its restart count (an agent, the job's own log files) means the same attempt.
    number = max(attempt.number + 1 if attempt is not None else 0, job.view.restart_count)
    _append(
        turn,
        job,
        AttemptRecord(
            number=number,
            restart_count=job.view.restart_count,
            nodes=job.view.nodes,
            started_at=job.view.started_at or turn.now,
        ),
    )
    findings.overtook(turn, job)


def _append(turn: Turn, job: JobRecord, attempt: AttemptRecord) -> None:
    job.attempts.append(attempt)
    if len(job.attempts) > ATTEMPTS_MAX:
        del job.attempts[0]
    for old in job.attempts[:-NODES_KEPT]:
        if len(old.nodes) > NODES_SMALL:
            old.nodes = ()  # its AttemptStarted holds them
    turn.touch(job)


def has_launcher(job: JobRecord) -> bool:
    """Is it one that a launcher reports of?"""
    return any(attempt.epoch for attempt in job.attempts[-3:]) or job.authority is Authority.LAUNCHER


def said_by_scheduler(turn: Turn, job: JobRecord, rule: str, summary: str) -> Finding:
    """A finding whose evidence is the scheduler's word."""
    return Finding(
        id=f"{rule}:{job.about}:{turn.seq}",
        rule=rule,
        at=turn.event.at,
        domain=Domain.PLATFORM,
        role=Role.ROOT,
        job=job.key,
        summary=summary,
        fingerprint=rule,
        evidence=(Evidence(EvidenceKind.SCHEDULER, job.view.reason[:200]),),
    )


def restart_me(turn: Turn, job: JobRecord) -> Finding:
    """It saved and stopped because it was asked to, or asks for a restart."""
    return said_by_scheduler(turn, job, remedies.RESTART_ME, "it asks to be started again (exit code 85)")


def end_of_attempt(turn: Turn, job: JobRecord, code: int | None, signal: int | None) -> Finding:
    """An end that nobody explained: the exit itself is the evidence."""
    rule = f"exit.signal.{signal}" if signal else f"exit.code.{code if code is not None else 'unknown'}"
    words = f"signal {signal}" if signal else f"exit code {code}"
    return Finding(
        id=f"end:{job.about}:{turn.seq}",
        rule=rule,
        at=turn.event.at,
        domain=Domain.UNKNOWN,
        role=Role.ROOT,
        place=Place(),
        job=job.key,
        attempt=job.attempt.number if job.attempt is not None else None,
        summary=f"the job ended with {words}",
        fingerprint=rule,
        evidence=(Evidence(EvidenceKind.EXIT, words),),
    )


def settle_observed(turn: Turn, job: JobRecord, why: str) -> None:
    """What was left alone is over by itself."""
    for incident in incidents.open_of_job(turn, job):
        incidents.job_settled(turn, incident, job, incidents.OBSERVED, why)
    turn.cancel_timer(job.timer)
    job.incident = ""


def attempt_started(turn: Turn, event: e.AttemptStarted) -> None:
    """All processes of an attempt are started."""
    job = turn.job(event.job)
    if job is None and forgotten(turn, event.job):
        return
    if job is None:
        view = JobView(
            key=event.job, state=SchedulerState.RUNNING, nodes=event.nodes, restart_count=event.restart_count
        )
        job = create(turn, view)
    implied_one = job.attempt if _is_implied(job, event) else None
    if event.restart_count < job.view.restart_count or not _give_way(job, event):
        return
    made = record_of(event)
    if not event.in_place and event.restart_count == job.view.restart_count and job.view.started_at <= event.at:
        made.placed_at = job.view.started_at
    _append(turn, job, made)
    job.epoch = max(job.epoch, event.epoch)
    _begun(turn, job, event, implied_one)
    findings.overtook(turn, job)


def record_of(event: e.AttemptStarted) -> AttemptRecord:
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


def _begun(turn: Turn, job: JobRecord, event: e.AttemptStarted, implied_one: AttemptRecord | None) -> None:
    """What the start of its newest attempt means for the job."""
    record = job.attempts[-1]
    if job.over:
        return
    if implied_one is not None and implied_one.incident in turn.state.incidents:
        record.incident = implied_one.incident  # its fault was heard of before its start: this is no restart
        return
    if turn.under_way(job.about, o.RequeueHeld):
        record.incident = job.incident  # it will be stopped by the requeue that is under way
        return
    before = job.attempts[-2] if len(job.attempts) > 1 else None
    if job.in_queue and before is not None and event.restart_count <= before.restart_count:
        # Restarted in place just before our requeue ended that run, and told of late: it runs no more.
        record.incident, record.ended_at, record.stopped = job.incident, event.at, True
        return
    if job.state is JobState.WATCHING:
        turn.tell(job, f"{job.name} is started on {story.listed(event.nodes)}.")
        if job.incident:
            settle_observed(turn, job, "it was started again without us.")
        return
    if job.state is JobState.PROVING:
        turn.tell(job, f"{job.name} is started, without us.")
        return
    started(turn, job, event.at)


def _is_implied(job: JobRecord, event: e.AttemptStarted) -> bool:
    """Is the newest attempt this one, of which so far only the scheduler has told?"""
    attempt = job.attempt
    return (
        attempt is not None
        and not attempt.epoch
        and not event.in_place
        and attempt.restart_count == event.restart_count
    )


def _give_way(job: JobRecord, event: e.AttemptStarted) -> bool:
    """False when this attempt is known, or an older one. What was only implied gives way to the launcher's word.

    A start that failed before its launcher made an attempt has none by the launcher's count.
    """
    attempt = job.attempt
    if attempt is None or event.attempt > attempt.number:
        return True
    same = attempt.restart_count == event.restart_count
    if same and (attempt.ended_at or event.in_place):
        return False
    real = [known for known in job.attempts if known.epoch]
    if attempt.epoch or (real and real[-1].number >= event.attempt):
        return False
    while job.attempts and job.attempts[-1].number >= event.attempt:
        job.attempts.pop()
    return True


def started(turn: Turn, job: JobRecord, at: float) -> None:
    """The new attempt of a recovery runs: now it has to prove itself."""
    incident = incident_of(turn, job)
    if incident is not None and job.state in {JobState.STOPPING, JobState.DIAGNOSING}:
        # The launcher was faster than its own reports: the decision that this engine did not see is made up for.
        turn.stamp(incident, Mark.STOPPED, at)
        diagnosis = incidents.judge(turn, incident, job)
        job.incident = incident.id
        before = job.attempts[-2] if len(job.attempts) > 1 else None
        broke = budgets.where(before, incident)
        budgets.charge(job, Remedy.RESTART_IN_PLACE, diagnosis, broke, diagnosis.nodes, attempt=before)
        incidents.tried(turn, incident, Remedy.RESTART_IN_PLACE)
        turn.stamp(incident, Mark.REQUEUED, at)
    turn.complete(job.about, "a new attempt is started", o.RestartInPlace, o.SetExcluded, o.ReleaseJob)
    turn.withdraw(job.about, "a new attempt is started")
    turn.move_job(job, JobTrigger.STARTED)
    job.in_queue = False
    attempt = job.attempt
    for known in incidents.open_of_job(turn, job):
        turn.stamp(known, Mark.STARTED, at)
        known.attempt_after = attempt.number if attempt is not None else None
    where = f" on {story.listed(attempt.nodes)}" if attempt is not None and attempt.nodes else ""
    turn.tell_all(incident, job, f"{job.name} is started{where}.")
    wait(turn, job, turn.policy_of(job).waits.prove_s)


def attempt_ended(turn: Turn, event: e.AttemptEnded) -> None:
    """No process of an attempt runs any more."""
    job = turn.job(event.job)
    if job is None:
        return
    record = job.numbered(event.attempt)
    if record is None:
        return
    if event.last_step is not None:
        proof.step_done(turn, job, event.attempt, event.last_step)
    known = bool(record.ended_at)
    record.ended_at = record.ended_at or event.at
    if record.exit_code is None:
        record.exit_code = event.exit_code
        record.signal = event.signal
        record.stopped = record.stopped or event.stopped
    turn.touch(job)
    if known or record is not job.attempt or job.over:
        return
    incident = incident_of(turn, job)
    if incident is not None and record.incident == incident.id and job.state is not JobState.WATCHING:
        _ended_in_recovery(turn, job, event)
    elif event.exit_code == 0 and not event.signal:
        _ended_well(turn, job)
    elif job.state is JobState.WATCHING and incident is not None and record.incident == incident.id:
        turn.stamp(incident, Mark.STOPPED, event.at)
        restart.leave_alone(turn, job, incident, "it was to be left alone, and has ended")
    elif event.exit_code == EXIT_DO_NOT_REQUEUE and turn.in_allocation:
        proof.give_up(turn, job, incident, "it asked not to be requeued (exit code 86)")
    elif event.exit_code == EXIT_RESTART_ME:
        _asks_for_restart(turn, job, stopped=event.stopped)
    elif event.stopped:
        turn.tell(job, f"{job.name} was ended from outside; the scheduler will say why.")
    elif event.exit_code != EXIT_DO_NOT_REQUEUE:
        findings.job_fault(turn, job, end_of_attempt(turn, job, event.exit_code, event.signal))


def _ended_in_recovery(turn: Turn, job: JobRecord, event: e.AttemptEnded) -> None:
    incident = incident_of(turn, job)
    if incident is None:
        return
    if event.exit_code == 0 and not event.signal and not event.stopped:
        _ended_well(turn, job)
    elif can(JOB, job.state, JobTrigger.ATTEMPT_OVER) or job.state is JobState.DIAGNOSING:
        restart.attempt_is_over(turn, job, incident, event.at)


def _ended_well(turn: Turn, job: JobRecord) -> None:
    """All ranks ended with 0. Whether the job as a whole has completed the scheduler knows."""
    if turn.in_allocation:
        outcome = incidents.RECOVERED if job.in_recovery else incidents.OBSERVED
        proof.finish(turn, job, JobTrigger.COMPLETED, outcome, "it completed")
    elif job.state is JobState.PROVING:
        proof.proven(turn, job, "it ran to its end")
    else:
        turn.tell(job, f"{job.name} ended with exit code 0.")
        if job.in_recovery:
            wait(turn, job, turn.policy_of(job).waits.order_s)


def _asks_for_restart(turn: Turn, job: JobRecord, *, stopped: bool) -> None:
    """Exit code 85. Whoever had it saved and stopped wants it away from here; else it may go on where it is."""
    if stopped and not turn.in_allocation:
        return
    finding = restart_me(turn, job)
    if stopped:
        incident = incidents.open_new(turn, finding)
        incident.remedies.append(Remedy.EVACUATE)
        recovery.fault(turn, job, incident, finding)
    else:
        findings.job_fault(turn, job, finding)

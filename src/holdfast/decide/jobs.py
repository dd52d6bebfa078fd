"""Jobs: what the scheduler and the launchers say of them, turned into ends, starts and progress of attempts.

`engine.py` hands events in. Words of older attempts, repeated words and words that arrive late change nothing but the
record. How time passes: `lapse:SLUG` bounds how long a launcher that went silent may come back.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.decide import findings, incidents, ladder, recovery, repair, restart
from holdfast.decide.machine import Claim
from holdfast.decide.records import incident as incident_record
from holdfast.decide.records import job as job_record
from holdfast.decide.records.incident import CANCELLED, GIVEN_UP, OBSERVED, RECOVERED
from holdfast.decide.records.turn import Turn
from holdfast.errors import EXIT_DO_NOT_REQUEUE, EXIT_RESTART_ME
from holdfast.model import events as e
from holdfast.model import orders as o
from holdfast.model import story
from holdfast.model.cluster import ENDED, JobKey, JobView, SchedulerState
from holdfast.model.evidence import Domain, Evidence, EvidenceKind, Finding, Place, Remedy, Severity
from holdfast.model.records import AttemptRecord, Authority, IncidentRecord, JobRecord, JobState, JobTrigger, Mark

LATE_S = 900.0
"""A job that is first seen after its failure is recovered when that is not longer ago; schedulers forget soon after."""
_FAILURES = frozenset({SchedulerState.FAILED, SchedulerState.NODE_FAIL, SchedulerState.PREEMPTED})
OUTPUT_REFUSED = 53
"""Slurm ends a job with this "signal" whose output file it cannot open."""
_QUEUED = frozenset({SchedulerState.PENDING, SchedulerState.HELD})
_STARTS = _QUEUED | {SchedulerState.RUNNING}
"""States in which a job that had ended has been queued again. One that completes is on its way to the same end."""
_ENDS = {
    SchedulerState.COMPLETED: JobTrigger.COMPLETED,
    SchedulerState.TIMEOUT: JobTrigger.COMPLETED,
    SchedulerState.CANCELLED: JobTrigger.CANCEL,
    SchedulerState.FAILED: JobTrigger.GIVE_UP,
    SchedulerState.NODE_FAIL: JobTrigger.GIVE_UP,
    SchedulerState.PREEMPTED: JobTrigger.GIVE_UP,
}


def observed(turn: Turn, event: e.JobObserved) -> None:
    """The job is now like this."""
    view = event.job
    job = turn.job(view.key)
    _id_given_anew(turn, view.key)
    if job is None:
        _first_seen(turn, view)
        return
    old = job.view
    if view.restart_count < old.restart_count:
        return
    if turn.in_allocation:
        view = _of_allocation(job, view)
    set_view(turn, job, view)
    restart.exclusions_changed(turn, job, old)
    if view.state is SchedulerState.RUNNING or (view.state in _FAILURES and view.started_at):
        implied(turn, job)  # also of one that was over before anybody saw it run
    if old.state is view.state and old.restart_count == view.restart_count:
        restart.runs_already(turn, job)
        _lacks_nodes(turn, job)
        return
    if job.over:
        _is_over(turn, job)
        grown = view.state not in ENDED and view.restart_count > old.restart_count
        again = grown or (view.state in _STARTS and old.state in ENDED)
        if again and view.state is not SchedulerState.UNKNOWN and not _is_not_news(turn, job, old):
            restart.revive(turn, job, forgotten=not grown and bool(view.restart_count))
    elif view.state in ENDED:
        _started_unseen(turn, job, old)
        _ended(turn, job)
    elif view.state in _QUEUED:
        _queued(turn, job, old)
    elif view.state is SchedulerState.RUNNING:
        _running(turn, job, old)


def _id_given_anew(turn: Turn, key: JobKey) -> None:
    """A scheduler gives an id again when the job that had it is gone, also one of which only its launcher had told."""
    for name in sorted(turn.index.by_id.get(key.id, ())):
        known = turn.state.jobs[name].key
        if known.cluster == key.cluster and known.generation < key.generation:
            _forget(turn, turn.state.jobs[name])


def _is_over(turn: Turn, job: JobRecord) -> None:
    """The scheduler confirms the end of a job that is given up or cancelled: its attempt ran until then."""
    if job.view.state in ENDED:
        job_record.end_with_its_run(turn, job)


def _is_not_news(turn: Turn, job: JobRecord, old: JobView) -> bool:
    """Was a job that is over queued anew by us, or before its end could take effect, so that it stays over?"""
    return _is_being_ended(turn, job, old) or _by_our_requeue(turn, job, old)


def _is_being_ended(turn: Turn, job: JobRecord, old: JobView) -> bool:
    """Has our give-up not taken effect yet? What the scheduler starts by itself until then takes nothing back."""
    return old.state not in ENDED and turn.orders.under_way(job.about, o.GiveUp)


def _by_our_requeue(turn: Turn, job: JobRecord, old: JobView) -> bool:
    """Is a job that is over seen held in the queue because a requeue of ours took effect late? Then it is ended there.

    Its end may be under way still; else a requeue that was taken back when the job ended has hung until now, or the
    scheduler has forgotten the run that came after our requeue.
    """
    if job.view.state is not SchedulerState.HELD or turn.in_allocation:
        return False
    if turn.orders.under_way(job.about, o.GiveUp):
        return True
    if job.state is JobState.GIVEN_UP and 0 < job.view.restart_count == old.restart_count:
        restart.end_again(turn, job, "the scheduler has forgotten its last run")
        return True
    if job.requeue_dropped is None or job.view.restart_count != job.requeue_dropped + 1:
        return False
    restart.end_again(turn, job, "our own requeue of it took effect after it had ended")
    return True


def _of_allocation(job: JobRecord, view: JobView) -> JobView:
    """The view inside an allocation, which may not name its nodes."""
    if view.restart_count > job.view.restart_count:
        # A new allocation: whoever gave it knows which nodes are good by now, and what was left out is another's.
        job_record.readmit(job, job.excluded)
    return view if view.nodes else replace(view, nodes=job.view.nodes)


def _first_seen(turn: Turn, view: JobView) -> None:
    """A new one. It may have failed between two looks, or while nobody looked: that is a failure all the same."""
    job = job_record.create(turn, view)
    if view.state in _FAILURES and view.recovery is not None and turn.event.at - view.ended_at <= LATE_S:
        implied(turn, job)
        _ended(turn, job)
    elif view.state in ENDED:
        turn.move_job(job, _ENDS[view.state])
    elif view.state is SchedulerState.RUNNING:
        implied(turn, job)


def _queued(turn: Turn, job: JobRecord, old: JobView) -> None:
    """It stands in the queue, held or not."""
    view = job.view
    state = job.state
    grown = view.restart_count > old.restart_count
    if state is JobState.STOPPING and turn.orders.under_way(job.about, o.RequeueHeld):
        return
    if state in restart.WAITS:
        if view.state is SchedulerState.PENDING and job.in_queue and _is_let_go(turn, job, old):
            # Our release's effect is seen before its outcome: tried again later, it would undo a person's hold.
            turn.orders.complete(job.about, "it is seen released", o.ReleaseJob)
            restart.released(turn, job)
        if view.state is SchedulerState.HELD and old.state is SchedulerState.PENDING and not job.in_queue:
            _held_by_person(turn, job)
        else:
            _lacks_nodes(turn, job)
        return
    if state is JobState.HELD:
        if view.state is SchedulerState.PENDING and old.state is SchedulerState.HELD:
            turn.claim(job, Claim.HOLD_ENDED)
            restart.adopt(turn, job, "somebody else released it")
            restart.keep_off_bad(turn, job)
        return
    if state is JobState.WATCHING and view.state is SchedulerState.HELD and old.state not in _QUEUED:
        _held_after_its_run(turn, job)
    if not grown:
        return
    job_record.end_with_its_run(turn, job)
    turn.claim(job, Claim.REQUEUED)
    if state is JobState.WATCHING:
        turn.tell(job, "It was requeued by the scheduler or a person.")
        settle_observed(turn, job, "it was requeued by somebody else.")
    elif job.in_queue:
        return
    else:
        restart.adopt(turn, job, "it was requeued already, by the scheduler or a person")
        restart.keep_off_bad(turn, job)


def _held_after_its_run(turn: Turn, job: JobRecord) -> None:
    """Tell its owner, once: the scheduler (RequeueExitHold, an expedited requeue) or a person wants it so."""
    if job.view.recovery is None:
        return
    why = f" ({job.view.reason})" if job.view.reason else ""
    text = (
        f"The scheduler or a person has requeued it and holds it{why}. Nothing is done about it until somebody "
        f"releases it: scontrol release {job.key.id}."
    )
    turn.notify(job.about, Severity.WARNING, f"{job.name} is held in the queue", text, job=job.key)


def _is_let_go(turn: Turn, job: JobRecord, old: JobView) -> bool:
    """Is a job that is seen queued without a hold released, and not yet to be held?

    Slurm may queue it before we hold it. Our release is ordered when the hold is confirmed, so a look that began after
    that saw no time before the hold.
    """
    looked_since = any(turn.said_at > record.issued_at for record in turn.orders.about(job.about, o.ReleaseJob))
    return old.state is SchedulerState.HELD or looked_since


def _lacks_nodes(turn: Turn, job: JobRecord) -> None:
    """A released job waits for nodes, as its scheduler says with its first look at the job or with a later one."""
    view = job.view
    if view.state is SchedulerState.PENDING and job.state is JobState.RELEASED and view.lacks_nodes:
        turn.move_job(job, JobTrigger.WAIT)
        turn.tell_all(restart.incident_of(turn, job), job, f"waits for nodes ({view.reason}).")


def _held_by_person(turn: Turn, job: JobRecord) -> None:
    turn.claim(job, Claim.HELD, "a person")
    turn.orders.withdraw(job.about, "a person holds it", o.ReleaseJob, o.SetExcluded)
    turn.move_job(job, JobTrigger.HOLD)
    turn.timers.cancel(job.timer)
    turn.tell_all(restart.incident_of(turn, job), job, "a person holds it in the queue; it waits for them.")


def _running(turn: Turn, job: JobRecord, old: JobView) -> None:
    """The scheduler runs it."""
    grown = job.view.restart_count > old.restart_count
    attempt = job.attempt
    again = grown or old.state in _QUEUED or old.state in ENDED
    if job.state in restart.IN_QUEUE and again:
        restart.runs(turn, job, old.state)
    elif job.in_queue and job.alive and job.state is JobState.DIAGNOSING:
        _released_while_settling(turn, job)
        restart.runs(turn, job, old.state)
    elif grown and turn.can(job, JobTrigger.ADOPT) and not turn.orders.under_way(job.about, o.RequeueHeld):
        restart.adopt(turn, job, "the scheduler runs it again by itself")
        restart.runs(turn, job)
    if job.state is JobState.RESTARTING and not has_launcher(job) and attempt is not None:
        started(turn, job, turn.now)


def _started_unseen(turn: Turn, job: JobRecord, old: JobView) -> None:
    """End the hold of a job that somebody else let start, and that was over before a look saw it run."""
    grown = job.view.restart_count > old.restart_count
    started = job.view.state in _FAILURES and (grown or old.state in _QUEUED)
    if started and job.state is JobState.HELD and not turn.in_allocation:
        restart.runs(turn, job, old.state)


def _ended(turn: Turn, job: JobRecord) -> None:
    """The scheduler says that it has ended."""
    view = job.view
    attempt = job.attempt
    code = view.exit_code
    if attempt is not None:
        if attempt.exit_code in {EXIT_RESTART_ME, EXIT_DO_NOT_REQUEUE}:
            code = attempt.exit_code
        if not attempt.ended_at:
            job_record.attempt_over(attempt, turn.now, code, view.signal)
    if not turn.in_allocation:
        turn.claim(job, Claim.ENDED)
    if view.state is SchedulerState.CANCELLED:
        restart.finish(turn, job, JobTrigger.CANCEL, CANCELLED, "it was cancelled, which is no failure")
    elif view.state is SchedulerState.TIMEOUT:
        why = "it reached its time limit, which is no failure"
        restart.finish(turn, job, JobTrigger.COMPLETED, CANCELLED, why)
    elif view.state is SchedulerState.COMPLETED and code != EXIT_RESTART_ME:
        outcome = RECOVERED if job.in_recovery else OBSERVED
        restart.finish(turn, job, JobTrigger.COMPLETED, outcome, "it completed")
    elif turn.orders.under_way(job.about, o.RequeueHeld):
        return
    elif code == EXIT_DO_NOT_REQUEUE:
        restart.finish(turn, job, JobTrigger.GIVE_UP, GIVEN_UP, "it asked not to be requeued (exit code 86)")
    elif not recovery.recoverable(turn, job) and not has_launcher(job):
        why = f"it failed (exit code {code}); nobody asked for its recovery"
        restart.finish(turn, job, JobTrigger.GIVE_UP, OBSERVED, why)
    else:
        _failed(turn, job, code)


def _failed(turn: Turn, job: JobRecord, code: int | None) -> None:
    incident = restart.incident_of(turn, job)
    attempt = job.attempt
    if job.state in restart.WAITS and attempt is not None and incident is not None and attempt.incident != incident.id:
        restart.runs(turn, job)  # it was started, and has failed, between two looks
    if (
        incident is not None
        and job.state is not JobState.WATCHING
        and (attempt is None or attempt.incident == incident.id)
    ):
        if turn.can(job, JobTrigger.ATTEMPT_OVER):
            recovery.attempt_is_over(turn, job, incident)
        return
    if incident is not None and job.state is JobState.WATCHING:
        restart.stamp_stopped(turn, job, incident)
        restart.finish(turn, job, JobTrigger.GIVE_UP, OBSERVED, f"it ended (exit code {code}) and was left alone")
        return
    if job.view.state is SchedulerState.NODE_FAIL:
        finding = said_by_scheduler(turn, job, "scheduler.node_fail", "the scheduler lost a node of the job")
    elif job.view.state is SchedulerState.PREEMPTED:
        finding = said_by_scheduler(turn, job, "scheduler.preempted", "the scheduler preempted the job")
    elif code == EXIT_RESTART_ME:
        finding = restart_me(turn, job)
    else:
        finding = end_of_attempt(turn, job, code, job.view.signal)
    findings.job_fault(turn, job, finding)


def vanished(turn: Turn, event: e.JobVanished) -> None:
    """The scheduler has forgotten it; so do we."""
    job = turn.job(event.job)
    if job is not None:
        _forget(turn, job)


def _forget(turn: Turn, job: JobRecord) -> None:
    busy = job.in_recovery
    trigger = JobTrigger.CANCEL if busy else JobTrigger.COMPLETED
    restart.finish(turn, job, trigger, CANCELLED, "the scheduler no longer knows it")
    name = job.about
    turn.timers.cancel(f"lapse:{name}")
    set_view(turn, job, replace(job.view, nodes=()))
    turn.index.by_id[job.key.id].discard(name)
    if not turn.index.by_id[job.key.id]:
        del turn.index.by_id[job.key.id]
    turn.state.context.pop(name, None)
    turn.orders.withdraw(name, "the job is gone", o.GiveUp)
    del turn.state.jobs[name]


def attached(turn: Turn, event: e.LauncherAttached) -> None:
    """A launcher takes authority inside its allocation."""
    job = turn.job(event.job)
    if job is None and forgotten(turn, event.job):
        return
    if job is None:
        view = JobView(
            key=event.job, state=SchedulerState.RUNNING, nodes=event.nodes, restart_count=event.restart_count
        )
        job = job_record.create(turn, view)
    if event.restart_count < job.view.restart_count:
        return
    view = job.view
    known_run = event.restart_count == view.restart_count
    if not known_run or (turn.in_allocation and event.nodes):
        changed = replace(
            view,
            restart_count=event.restart_count,
            state=SchedulerState.RUNNING,
            nodes=event.nodes or view.nodes,
        )
        set_view(turn, job, changed)
    if job.over:
        attempt = job.attempt
        if attempt is not None and event.restart_count <= attempt.restart_count:
            return
        if (known_run and view.state in ENDED) or _is_being_ended(turn, job, view):
            return  # a late word from the run that has ended, or one from the job that is being ended for good
        restart.revive(turn, job)
    starts_anew = job.attempt is None or event.restart_count > job.attempt.restart_count
    pending = turn.orders.under_way(job.about, o.RequeueHeld)
    if pending or (job.in_queue and not starts_anew):
        return
    _released_while_settling(turn, job)
    job_record.attached(turn, job, event.restart_count)
    turn.tell(job, f"A launcher holds its allocation ({len(event.nodes)} nodes, {event.ranks} ranks).")
    if starts_anew and job.state in restart.IN_QUEUE:
        restart.runs(turn, job, job.view.state)


def _released_while_settling(turn: Turn, job: JobRecord) -> None:
    """What our requeue had put into the queue starts while its evidence settles: somebody else has let it go."""
    if job.in_queue and job.state is JobState.DIAGNOSING:
        restart.adopt(turn, job, "somebody else released it")


def lapsed(turn: Turn, event: e.LauncherLapsed) -> None:
    """The launcher left, or was not heard within its lease."""
    job = turn.job(event.job)
    if job is None or turn.in_allocation or job.authority is not Authority.LAUNCHER:
        return
    if event.restart_count is not None and event.restart_count < job.led_at:
        return  # the next start's launcher was faster than this one's good-bye
    turn.claim(job, Claim.LAPSED)
    attempt = job.attempt
    if event.left:
        turn.tell(job, f"Its launcher left with exit code {event.exit_code}.")
        asked_itself = attempt is not None and attempt.exit_code == EXIT_DO_NOT_REQUEUE
        if attempt is not None and event.exit_code is not None:
            job_record.launcher_left(attempt, turn.now, event.exit_code)
        if (
            event.exit_code == EXIT_DO_NOT_REQUEUE
            and not asked_itself
            and turn.orders.under_way(job.about, o.RequeueHeld)
        ):
            # It took what a node's fault did to its ranks for a crash loop: only this engine hears the nodes' agents.
            turn.tell(job, "Its launcher gave it up, but it is being requeued for a reason of its own.")
        elif event.exit_code == EXIT_DO_NOT_REQUEUE:
            incident = restart.incident_of(turn, job)
            why = "its launcher gave it up (exit code 86)"
            if not job.over:
                restart.give_up(turn, job, incident, why, cancel=False)
            return
    else:
        turn.tell(job, "Its launcher's lease ended without a word.")
    if job.in_recovery and job.state in {
        JobState.STOPPING,
        JobState.DIAGNOSING,
        JobState.IN_PLACE,
        JobState.EVACUATING,
    }:
        _take_over(turn, job, left=event.left)
    elif not event.left and not job.over:
        turn.timers.start(f"lapse:{job.about}", turn.policy_of(job).waits.unknown_s, job.incident)


def _take_over(turn: Turn, job: JobRecord, *, left: bool) -> None:
    incident = restart.incident_of(turn, job)
    if incident is None:
        return
    job_record.end_with_its_run(turn, job)  # the launcher's ranks end with its lease
    if turn.orders.under_way(job.about, o.RequeueHeld):
        return
    if job.state is JobState.EVACUATING or left:
        recovery.attempt_is_over(turn, job, incident)
    else:
        recovery.take_over(turn, job, "its launcher's lease ended")


def lapse_timer(turn: Turn, job: JobRecord) -> None:
    """The launcher has not come back: its ranks are over, by the lease's end. Blind, one cannot say that."""
    if job.authority is not Authority.CONTROLLER or job.over or (job.in_recovery and job.in_queue):
        return
    if turn.blind_to(job):
        turn.timers.start(f"lapse:{job.about}", turn.policy_of(job).waits.unknown_s, job.incident)
        return
    if job.view.state not in {SchedulerState.RUNNING, SchedulerState.COMPLETING, SchedulerState.UNKNOWN}:
        return
    if job.state not in {JobState.WATCHING, JobState.PROVING, JobState.RESTARTING}:
        return
    summary = "its launcher was not heard again after its lease had ended"
    finding = said_by_scheduler(turn, job, ladder.LAUNCHER_LOST, summary)
    findings.job_fault(turn, job, finding)


def escalated(turn: Turn, event: e.Escalated) -> None:
    """The launcher has no rung left inside the allocation: the controller goes on with the ladder."""
    job = turn.job(event.job)
    if job is None or turn.in_allocation or job.over:
        return
    attempt = job.attempt
    if attempt is not None and event.attempt < attempt.number:
        return
    restart.exclude(turn, job, event.exclude_nodes)
    is_late = attempt is not None and attempt.restart_count < job.view.restart_count  # its run is over
    is_left = turn.orders.under_way(job.about, o.RequeueHeld) or job.in_queue or job.state in restart.WAITS
    if is_late or is_left:
        return
    turn.claim(job, Claim.ESCALATED)
    turn.tell(job, f"Its launcher hands over: {event.why or 'no rung is left in its allocation'}.")
    job_record.end_with_its_run(turn, job)
    incident = restart.incident_of(turn, job)
    if incident is None or (attempt is not None and attempt.incident not in {"", incident.id}):
        findings.job_fault(turn, job, _from_launcher(turn, job, event))
        return
    if event.diagnosis is not None and (incident.diagnosis is None or incident.diagnosis.cause == "unknown"):
        incident_record.diagnosed(turn, incident, event.diagnosis)
    if job.state is JobState.DIAGNOSING:
        recovery.decide(turn, job, incident)
    elif turn.can(job, JobTrigger.ATTEMPT_OVER):
        recovery.attempt_is_over(turn, job, incident)


def _from_launcher(turn: Turn, job: JobRecord, event: e.Escalated) -> Finding:
    made = event.diagnosis
    cause = made.cause if made is not None else "launcher.escalated"
    evidence = Evidence(EvidenceKind.EXIT, event.why[:200])
    return turn.finding(
        cause,
        job.about,
        (made.summary if made is not None else "") or event.why or "the launcher handed over",
        evidence,
        id=f"escalated:{job.about}:{turn.state.seq}",
        domain=made.domain if made is not None else Domain.UNKNOWN,
        severity=Severity.ERROR,
        remedy=made.remedy if made is not None else Remedy.NONE,
        place=Place(node=made.nodes[0] if made is not None and made.nodes else ""),
        job=job.key,
        attempt=event.attempt,
        fingerprint=made.fingerprint if made is not None else "",
    )


def forgotten(turn: Turn, key: JobKey) -> bool:
    """Is it a job of former days, whose id the scheduler has given to another? Late words of it bring nothing back."""
    known = (turn.state.jobs[name].key for name in turn.index.by_id.get(key.id, ()))
    return any(one.cluster == key.cluster and one.generation > key.generation for one in known)


def set_view(turn: Turn, job: JobRecord, view: JobView) -> None:
    """Keep what is said of it, and which nodes it is on."""
    for node in job_record.seen(turn, job, view):
        record = turn.state.nodes.get(node)
        if record is not None and record.incident:
            repair.check_drained(turn, record)
            repair.look_closer(turn, record)


def implied(turn: Turn, job: JobRecord) -> None:
    """A job without a launcher has attempts all the same: one per start by the scheduler."""
    attempt = job.attempt
    if turn.in_allocation:
        return  # the launcher itself says what it starts
    if attempt is not None and (attempt.restart_count >= job.view.restart_count or attempt.epoch):
        return
    # As the scheduler counts: what reads its restart count (an agent, the job's own log files) means the same attempt.
    number = max(attempt.number + 1 if attempt is not None else 0, job.view.restart_count)
    job_record.add_attempt(
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


def has_launcher(job: JobRecord) -> bool:
    """Is it one that a launcher reports of?"""
    return any(attempt.epoch for attempt in job.attempts[-3:]) or job.authority is Authority.LAUNCHER


def said_by_scheduler(turn: Turn, job: JobRecord, rule: str, summary: str) -> Finding:
    """A finding whose evidence is the scheduler's word."""
    evidence = Evidence(EvidenceKind.SCHEDULER, job.view.reason[:200])
    return turn.finding(rule, job.about, summary, evidence, domain=Domain.PLATFORM, job=job.key)


def restart_me(turn: Turn, job: JobRecord) -> Finding:
    """It saved and stopped because it was asked to, or asks for a restart."""
    return said_by_scheduler(turn, job, ladder.RESTART_ME, "it asks to be started again (exit code 85)")


def end_of_attempt(turn: Turn, job: JobRecord, code: int | None, signal: int | None) -> Finding:
    """An end that nobody explained: the exit itself is the evidence."""
    rule = f"exit.signal.{signal}" if signal else f"exit.code.{code if code is not None else 'unknown'}"
    words = f"signal {signal}" if signal else f"exit code {code}"
    if signal == OUTPUT_REFUSED:
        words = "exit 0:53: its output file could not be written"
    return turn.finding(
        rule,
        job.about,
        f"the job ended with {words}",
        Evidence(EvidenceKind.EXIT, words),
        id=f"end:{job.about}:{turn.state.seq}",
        place=Place(),  # journals hold it, empty
        job=job.key,
        attempt=job.attempt.number if job.attempt is not None else None,
    )


def settle_observed(turn: Turn, job: JobRecord, why: str) -> None:
    """What was left alone is over by itself."""
    for incident in incidents.open_of_job(turn, job):
        incidents.job_settled(turn, incident, job, OBSERVED, why)
    turn.timers.cancel(job.timer)


def attempt_started(turn: Turn, event: e.AttemptStarted) -> None:
    """All processes of an attempt are started."""
    job = turn.job(event.job)
    if job is None and forgotten(turn, event.job):
        return
    if job is None:
        view = JobView(
            key=event.job, state=SchedulerState.RUNNING, nodes=event.nodes, restart_count=event.restart_count
        )
        job = job_record.create(turn, view)
    implied_one = job.attempt if _is_implied(job, event) else None
    if event.restart_count < job.view.restart_count or not _is_new(job, event):
        return
    job_record.start_attempt(turn, job, event)
    _begun(turn, job, event, implied_one)
    findings.overtook(turn, job)


def _begun(turn: Turn, job: JobRecord, event: e.AttemptStarted, implied_one: AttemptRecord | None) -> None:
    """What the start of its newest attempt means for the job."""
    record = job.attempts[-1]
    if job.over:
        return
    known = turn.state.incidents.get(implied_one.incident) if implied_one is not None else None
    if known is not None and not _is_left(known, event.nodes):
        job_record.ends_by(job, known.id)  # its fault was heard of before its start: this is no restart
        return
    if turn.orders.under_way(job.about, o.RequeueHeld):
        job_record.ends_by(job, job.incident)  # it will be stopped by the requeue that is under way
        return
    before = job.attempts[-2] if len(job.attempts) > 1 else None
    if job.in_queue and before is not None and event.restart_count <= before.restart_count:
        # Restarted in place just before our requeue ended that run, and told of late: it runs no more.
        job_record.ends_by(job, job.incident)
        job_record.attempt_over(record, event.at, stopped=True)
        return
    if job.state is JobState.WATCHING:
        turn.tell(job, f"{job.name} is started on {story.listed(event.nodes)}.")
        if job.incident:
            settle_observed(turn, job, "it was started again without us.")
        return
    if job.state is JobState.PROVING:
        turn.tell(job, f"{job.name} is started, without us.")
        return
    _released_while_settling(turn, job)
    started(turn, job, event.at)


def _is_left(incident: IncidentRecord, nodes: Sequence[str]) -> bool:
    """Did the launcher, which heard of it first, start on other nodes than those that the incident is about?"""
    return bool(incident.nodes and nodes) and not set(incident.nodes) & set(nodes)


def _is_implied(job: JobRecord, event: e.AttemptStarted) -> bool:
    """Is the newest attempt this one, of which so far only the scheduler has told?"""
    attempt = job.attempt
    return (
        attempt is not None
        and not attempt.epoch
        and not event.in_place
        and attempt.restart_count == event.restart_count
    )


def _is_new(job: JobRecord, event: e.AttemptStarted) -> bool:
    """False when this attempt is known, or an older one. What was only implied counts for less than a launcher's word.

    A start that failed before its launcher made an attempt has none by the launcher's count.
    """
    attempt = job.attempt
    if attempt is None or event.attempt > attempt.number:
        return True
    same = attempt.restart_count == event.restart_count
    if same and (attempt.ended_at or event.in_place):
        return False
    real = [known for known in job.attempts if known.epoch]
    return not (attempt.epoch or (real and real[-1].number >= event.attempt))


def started(turn: Turn, job: JobRecord, at: float) -> None:
    """The new attempt of a recovery runs: now it has to prove itself."""
    incident = restart.incident_of(turn, job)
    if incident is not None and job.state in {JobState.STOPPING, JobState.DIAGNOSING}:
        # The launcher was faster than its own reports: the decision that this engine did not see is made up for.
        before = job.attempts[-2] if len(job.attempts) > 1 else None
        restart.stamp_stopped(turn, job, incident, before.ended_at if before is not None and before.ended_at else at)
        diagnosis = incidents.judge(turn, incident, job)
        job_record.governed(turn, job, incident.id)
        broke = ladder.where_broke(before, incident)
        job_record.charge(job, Remedy.RESTART_IN_PLACE, diagnosis, broke, diagnosis.nodes, attempt=before)
        incident_record.tried(turn, incident, Remedy.RESTART_IN_PLACE)
        turn.stamp(incident, Mark.REQUEUED, at)
    turn.orders.complete(job.about, "a new attempt is started", o.RestartInPlace, o.SetExcluded, o.ReleaseJob)
    turn.orders.withdraw(job.about, "a new attempt is started")
    turn.move_job(job, JobTrigger.STARTED)
    turn.claim(job, Claim.STARTED)
    attempt = job.attempt
    for known in incidents.open_of_job(turn, job):
        incident_record.goes_on(turn, known, Mark.STARTED, job, at)
    where = f" on {story.listed(attempt.nodes)}" if attempt is not None and attempt.nodes else ""
    turn.tell_all(incident, job, f"{job.name} is started{where}.")
    restart.wait(turn, job)
    lost = _lost_before_start(turn, job, incident)
    if incident is not None and lost is not None:
        recovery.fault(turn, job, incident, lost, leave=lost.place.node)


def _lost_before_start(turn: Turn, job: JobRecord, incident: IncidentRecord | None) -> Finding | None:
    """Evidence against a node of the new attempt: its launcher chose the node before it lost it."""
    if not turn.in_allocation or incident is None or job.attempt is None:
        return None
    left = set(job.attempt.nodes) & set(job.excluded)
    return next((finding for finding in reversed(incident.findings) if finding.place.node in left), None)


def attempt_ended(turn: Turn, event: e.AttemptEnded) -> None:
    """No process of an attempt runs any more."""
    job = turn.job(event.job)
    if job is None:
        return
    record = job.numbered(event.attempt)
    if record is None:
        return
    if event.last_step is not None:
        restart.step_done(turn, job, event.attempt, event.last_step)
    known = bool(record.ended_at)
    job_record.attempt_over(record, event.at, event.exit_code, event.signal, stopped=event.stopped)
    turn.changes.add(job)
    if known or record is not job.attempt or job.over:
        return
    incident = restart.incident_of(turn, job)
    if incident is not None and record.incident == incident.id and job.state is not JobState.WATCHING:
        _ended_in_recovery(turn, job, event)
    elif event.exit_code == 0 and not event.signal:
        _ended_well(turn, job)
    elif job.state is JobState.WATCHING and incident is not None and record.incident == incident.id:
        restart.stamp_stopped(turn, job, incident, event.at)
        restart.leave_alone(turn, job, incident, "only observed, and it has ended")
    elif event.exit_code == EXIT_DO_NOT_REQUEUE and turn.in_allocation:
        restart.give_up(turn, job, incident, "it asked not to be requeued (exit code 86)")
    elif event.exit_code == EXIT_RESTART_ME:
        _asks_for_restart(turn, job, stopped=event.stopped)
    elif event.stopped:
        turn.tell(job, f"{job.name} was ended from outside; the scheduler will say why.")
    elif event.exit_code != EXIT_DO_NOT_REQUEUE:
        findings.job_fault(turn, job, end_of_attempt(turn, job, event.exit_code, event.signal))


def _ended_in_recovery(turn: Turn, job: JobRecord, event: e.AttemptEnded) -> None:
    incident = restart.incident_of(turn, job)
    if incident is None:
        return
    if event.exit_code == 0 and not event.signal and not event.stopped:
        _ended_well(turn, job)
    elif turn.can(job, JobTrigger.ATTEMPT_OVER):
        recovery.attempt_is_over(turn, job, incident, event.at)


def _ended_well(turn: Turn, job: JobRecord) -> None:
    """All ranks ended with 0. Whether the job as a whole has completed the scheduler knows."""
    if turn.in_allocation:
        outcome = RECOVERED if job.in_recovery else OBSERVED
        restart.finish(turn, job, JobTrigger.COMPLETED, outcome, "it completed")
    elif job.state is JobState.PROVING:
        restart.proven(turn, job, "it ran to its end")
    else:
        turn.tell(job, f"{job.name} ended with exit code 0.")
        if job.in_recovery:
            restart.wait(turn, job, turn.policy_of(job).waits.order_s)


def _asks_for_restart(turn: Turn, job: JobRecord, *, stopped: bool) -> None:
    """Exit code 85. Whoever had it saved and stopped wants it away from here; else it may go on where it is."""
    if stopped and not turn.in_allocation:
        return
    finding = restart_me(turn, job)
    if stopped:
        incident = incidents.open_new(turn, finding)
        job_record.evacuated(job)
        incident_record.tried(turn, incident, Remedy.EVACUATE)
        recovery.fault(turn, job, incident, finding)
    else:
        findings.job_fault(turn, job, finding)

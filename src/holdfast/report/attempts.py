"""Attempts that a job's record no longer holds, made again from the events of the journal.

Called by `gather`. The engine remembers the newest 64 attempts of a job; a job that runs for months has more, and its
time, steps and failures are those of all of them. Pure: events in, records out. Times are Unix seconds.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.decide.records.job import attempt_of
from holdfast.model.cluster import ENDED, SchedulerState
from holdfast.model.events import (
    AnyEvent,
    AttemptEnded,
    AttemptStarted,
    CheckpointSaved,
    FirstStepDone,
    JobObserved,
    StepReached,
)
from holdfast.model.records import AttemptRecord, JobRecord

KINDS = ("attempt_started", "attempt_ended", "first_step_done", "step_reached", "checkpoint_saved", "job_observed")
"""Events that tell of attempts."""
_Told = AttemptEnded | FirstStepDone | StepReached | CheckpointSaved
_OVER = frozenset({SchedulerState.PENDING, SchedulerState.HELD, *ENDED})


def lacks_some(job: JobRecord) -> bool:
    """Had the job attempts that its record does not hold?"""
    return bool(job.attempts) and job.attempts[0].number > 0


def earlier(job: JobRecord, events: Iterable[AnyEvent]) -> list[AttemptRecord]:
    """The attempts before the first one that the record holds, oldest first, as far as events tell of them.

    A job whose launcher says nothing has one attempt for each start by the scheduler.

    Args:
        job: its record.
        events: of the job, of `KINDS`, in order of their numbers; those of other jobs are passed over.
    """
    first = job.attempts[0].number if job.attempts else 0
    found: dict[int, AttemptRecord] = {}
    for event in sorted(events, key=lambda one: one.seq):
        if isinstance(event, JobObserved):
            if event.job.key == job.key:
                _observed(found, event)
        elif isinstance(event, AttemptStarted):
            if event.job == job.key:
                _started(found, event)
        elif isinstance(event, _Told) and event.job == job.key and event.attempt in found:
            _told(found[event.attempt], event)
    return [found[number] for number in sorted(found) if number < first]


def _started(found: dict[int, AttemptRecord], event: AttemptStarted) -> None:
    if event.attempt in found and found[event.attempt].epoch:
        return
    newest = max(found, default=-1)
    if newest >= event.attempt and not found[newest].epoch and not event.in_place:
        # Only the scheduler had told of this start so far; the launcher counts otherwise.
        del found[newest]
    found[event.attempt] = attempt_of(event)


def _observed(found: dict[int, AttemptRecord], event: JobObserved) -> None:
    view = event.job
    newest = found[max(found)] if found else None
    if view.state in _OVER:
        if newest is not None and not newest.ended_at:
            newest.ended_at = event.received_at
        return
    if view.state is not SchedulerState.RUNNING:
        return
    if newest is not None and (newest.epoch or newest.restart_count >= view.restart_count):
        return
    number = max(newest.number + 1 if newest is not None else 0, view.restart_count)
    started_at = view.started_at or event.received_at
    found[number] = AttemptRecord(number, restart_count=view.restart_count, nodes=view.nodes, started_at=started_at)


def _told(attempt: AttemptRecord, event: _Told) -> None:
    if isinstance(event, AttemptEnded):
        attempt.ended_at = attempt.ended_at or event.at
        attempt.exit_code, attempt.signal, attempt.stopped = event.exit_code, event.signal, event.stopped
        _reached(attempt, event.last_step)
    elif isinstance(event, FirstStepDone):
        if attempt.first_step is None:
            attempt.first_step_at, attempt.first_step = event.at, event.step
            attempt.resumed_from = event.resumed_from
        _reached(attempt, event.step)
    elif isinstance(event, StepReached):
        _reached(attempt, event.step)
    elif event.durable:
        attempt.durable_step, attempt.durable_at = max(event.step, attempt.durable_step or 0), event.received_at


def _reached(attempt: AttemptRecord, step: int | None) -> None:
    if step is not None:
        attempt.last_step = max(step, attempt.last_step or 0)

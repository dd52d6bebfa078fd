"""Training-time efficiency: which part of a job's time was training that was kept, and the downtime of each attempt.

Called by `gather`, the cockpit and `holdfast job`. Pure: all times were measured elsewhere. The definition is that of
`MISSION_CONTROL_GUIDE`: work that was not saved before a failure is downtime, and computing it again is training.
ETTR, in `figures`, counts the first time as training and the second as lost. Times are Unix seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from math import inf

from msgspec import Struct

from holdfast.model.policy import PolicySet, Proof
from holdfast.model.records import JOB_ENDED, AttemptRecord, JobRecord, JobState
from holdfast.report.figures import ends, first_step_at, tells_steps


class Restart(StrEnum):
    """What became of an attempt that was not the first."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    UNDER_WAY = "under way"


class AttemptTime(Struct, frozen=True):
    """One attempt. Seconds."""

    attempt: int
    trained_s: float
    """From its first completed step to its newest durable checkpoint; to its end when it completed or still runs."""
    downtime_s: float
    """From the newest checkpoint before it to its first completed step. A failed restart is downtime to its end; what a
    job's last attempt did not save belongs to that attempt."""
    restart: Restart | None
    """None: the first attempt, which is no restart."""


class TrainingTime(Struct, frozen=True):
    """One job, or several together. Seconds."""

    job: str
    trained_s: float
    downtime_s: float
    restarts: int
    restarts_failed: int
    """Restarts that ended before the point that the policy's `proof` names."""
    attempts: tuple[AttemptTime, ...] = ()

    @property
    def efficiency(self) -> float | None:
        """Trained / (trained + downtime), 0 to 1. None: nothing tells when it trained."""
        whole = self.trained_s + self.downtime_s
        return self.trained_s / whole if whole > 0 else None


_NOT_RESTARTED = JOB_ENDED | {JobState.WATCHING, JobState.PROVING}
"""States in which nobody brings back a job whose last attempt has ended. A user who stops `holdfast run` leaves it
watching or proving: no scheduler is there to call it cancelled."""


def training_time(job: JobRecord, now: float, proof: Proof, *, since: float = 0.0, until: float = inf) -> TrainingTime:
    """Downtime and training of a job's attempts, as far as they lie in a span.

    Args:
        job: its record. Of one that nothing tells the steps of, no time is counted.
        now: when the record was read; a running attempt and a job that waits last until then.
        proof: the point that an attempt has to reach to be a successful restart.
        since: begin of the span.
        until: its end. A restart counts in the span in which its attempt started.
    """
    started = [attempt for attempt in job.attempts if attempt.started_at > 0] if tells_steps(job) else []
    found: list[AttemptTime] = []
    kept_until: float | None = None
    best: int | None = None
    for attempt, end in zip(started, ends(started, now), strict=True):
        is_last = attempt is started[-1]
        is_running = is_last and not attempt.ended_at
        is_whole = is_running or _is_complete(attempt) or (is_last and job.state is JobState.COMPLETED)
        first, last = _training(attempt, end, is_whole=is_whole)
        fate = None if attempt is started[0] else _fate(attempt, proof, best, is_running=is_running)
        down = [(first if kept_until is None else kept_until, first)]
        kept_until = last
        if not is_whole and (is_last or (fate is Restart.FAILED and last <= first)):
            kept_until = now if is_last and job.state not in _NOT_RESTARTED else end
            down.append((last, kept_until))
        trained_s = _inside(first, last, since, until)
        downtime_s = sum(_inside(begin, stop, since, until) for begin, stop in down)
        begins_here = since <= attempt.started_at < until
        if trained_s or downtime_s or begins_here:
            found.append(AttemptTime(attempt.number, trained_s, downtime_s, fate if begins_here else None))
        best = max((step for step in (best, attempt.reached) if step is not None), default=None)
    return _of(str(job.key), found)


def proof_of(job: JobRecord, policies: PolicySet) -> Proof:
    """The point that a restart of this job has to reach."""
    asked = job.view.recovery.policy if job.view.recovery is not None else ""
    return policies.for_job(job.view.partition, asked).proof


def in_total(jobs: Sequence[TrainingTime]) -> TrainingTime:
    """Several jobs together: their times are added up, so that a long job weighs more than a short one."""
    return TrainingTime(
        "",
        sum(one.trained_s for one in jobs),
        sum(one.downtime_s for one in jobs),
        sum(one.restarts for one in jobs),
        sum(one.restarts_failed for one in jobs),
    )


def _of(job: str, attempts: Sequence[AttemptTime]) -> TrainingTime:
    return TrainingTime(
        job,
        sum(one.trained_s for one in attempts),
        sum(one.downtime_s for one in attempts),
        sum(1 for one in attempts if one.restart is not None),
        sum(1 for one in attempts if one.restart is Restart.FAILED),
        tuple(attempts),
    )


def _training(attempt: AttemptRecord, end: float, *, is_whole: bool) -> tuple[float, float]:
    """From when to when an attempt trained for good; both are its end when it completed no step."""
    if attempt.first_step_at <= 0 and attempt.reached is None:
        return end, end
    first = min(first_step_at(attempt), end)
    if is_whole:
        return first, end
    return first, min(max(first, attempt.durable_at), end) if _has_saved(attempt) else first


def _is_complete(attempt: AttemptRecord) -> bool:
    return attempt.exit_code == 0 and not attempt.stopped


def _has_saved(attempt: AttemptRecord) -> bool:
    """Has it made a durable checkpoint beyond the one that it loaded?"""
    saved, loaded = attempt.durable_step, attempt.resumed_from
    return saved is not None and (loaded is None or saved > loaded)


def _fate(attempt: AttemptRecord, proof: Proof, best: int | None, *, is_running: bool) -> Restart:
    reached = {
        Proof.FIRST_CHECKPOINT: _has_saved(attempt),
        Proof.FIRST_STEP: attempt.first_step_at > 0,
        Proof.PASSED_FAULT: (attempt.reached or 0) > (best or 0),
    }[proof]
    if reached or _is_complete(attempt):
        return Restart.SUCCEEDED
    return Restart.UNDER_WAY if is_running else Restart.FAILED


def _inside(begin: float, end: float, since: float, until: float) -> float:
    return max(0.0, min(end, until) - max(begin, since))

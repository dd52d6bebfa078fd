"""Training-time efficiency by hand: a job's attempts as one line of minutes, and what each of them counts as."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.model.cluster import JobKey, JobView, RecoverySpec
from holdfast.model.policy import Policy, PolicySet, Proof
from holdfast.model.records import AttemptRecord, JobRecord, JobState
from holdfast.report.training_time import Restart, TrainingTime, in_total, proof_of, training_time

BEGIN = 1_800_000_000.0
NOW = 1000.0
"""As all times here, seconds after BEGIN."""


def attempt(number: int, started: float, **fields: Any) -> AttemptRecord:
    for name in ("first_step_at", "durable_at", "ended_at"):
        if fields.get(name):
            fields[name] += BEGIN
    return AttemptRecord(number, started_at=BEGIN + started, **fields)


def times(record: JobRecord, proof: Proof = Proof.FIRST_CHECKPOINT, **span: float) -> TrainingTime:
    return training_time(record, BEGIN + NOW, proof, **{name: BEGIN + at for name, at in span.items()})


def saved(number: int, started: float, first: float, last_save: float, ended: float, **fields: Any) -> AttemptRecord:
    """It loaded step 100 x number, and saved one step for each second behind it."""
    loaded = 100 * number
    steps = {
        "first_step": loaded + 1,
        "last_step": loaded + 90,
        "resumed_from": loaded,
        "durable_step": loaded + 80,
        "signal": 9,
    }
    return attempt(number, started, first_step_at=first, durable_at=last_save, ended_at=ended, **{**steps, **fields})


def unsaved(number: int, started: float, first: float, ended: float, **fields: Any) -> AttemptRecord:
    """It completed steps and saved none of them."""
    return saved(number, started, first, 0.0, ended, **{"durable_step": None, **fields})


def job(*attempts: AttemptRecord, state: JobState = JobState.CANCELLED) -> JobRecord:
    key = JobKey("c", "7")
    return JobRecord(key, JobView(key), attempts=list(attempts), state=state)


def told(record: JobRecord, proof: Proof = Proof.FIRST_CHECKPOINT, **span: float) -> list[tuple[float, float, Any]]:
    found = times(record, proof, **span)
    assert (found.trained_s, found.downtime_s) == (
        pytest.approx(sum(one.trained_s for one in found.attempts)),
        pytest.approx(sum(one.downtime_s for one in found.attempts)),
    )
    return [(one.trained_s, one.downtime_s, one.restart) for one in found.attempts]


def test_downtime_lasts_from_the_newest_save_to_the_next_first_step() -> None:
    """What was not saved before the fault is downtime, and what a job's last attempt did not save is its own."""
    record = job(saved(0, 0, 10, 90, 100), saved(1, 120, 130, 180, 200))
    assert told(record) == [(80, 0, None), (50, 40 + 20, Restart.SUCCEEDED)]
    assert times(record, Proof.FIRST_STEP).efficiency == pytest.approx(130 / 190)


def test_an_attempt_that_ends_before_its_first_checkpoint_is_a_failed_restart() -> None:
    """All of its time is downtime; the next one's begins where it ended."""
    record = job(saved(0, 0, 10, 90, 100), unsaved(1, 120, 130, 160), saved(2, 180, 190, 240, 240, exit_code=0))
    assert told(record) == [
        (80, 0, None), (0, 160 - 90, Restart.FAILED), (50, 190 - 160, Restart.SUCCEEDED),
    ]  # fmt: skip
    whole = times(record)
    assert (whole.restarts, whole.restarts_failed) == (2, 1)


@pytest.mark.parametrize(
    ("proof", "fates"),
    [
        (Proof.FIRST_CHECKPOINT, [Restart.FAILED, Restart.SUCCEEDED]),
        (Proof.FIRST_STEP, [Restart.SUCCEEDED, Restart.SUCCEEDED]),
        (Proof.PASSED_FAULT, [Restart.FAILED, Restart.FAILED]),
    ],
)
def test_the_policys_proof_says_which_restarts_failed(proof: Proof, fates: list[Restart]) -> None:
    """The sums of seconds are the same whatever it says."""
    record = job(
        saved(0, 0, 10, 90, 100, last_step=500),
        unsaved(1, 120, 130, 160, last_step=450),
        saved(2, 180, 190, 240, 250, last_step=480),
    )
    found = times(record, proof)
    assert [one.restart for one in found.attempts[1:]] == fates
    assert (found.trained_s, found.downtime_s) == (80 + 50, 190 - 90 + 10)


def test_a_checkpoint_that_was_loaded_is_not_one_that_was_saved() -> None:
    """An attempt that tells of the step that it came from has saved nothing yet."""
    record = job(saved(0, 0, 10, 90, 100), saved(1, 120, 130, 131, 160, durable_step=100))
    assert told(record)[1] == (0, 70, Restart.FAILED)


def test_what_runs_is_under_way() -> None:
    """Until now: training from its first step on, downtime until then; before its first step all is downtime."""
    first = saved(0, 0, 10, 90, 100)
    running = unsaved(1, 120, 130, 0.0)
    assert told(job(first, running, state=JobState.PROVING))[1] == (NOW - 130, 40, Restart.UNDER_WAY)
    loading = attempt(1, 120)
    assert told(job(first, loading, state=JobState.RESTARTING))[1] == (0, NOW - 90, Restart.UNDER_WAY)


def test_a_job_that_waits_is_down_until_now() -> None:
    """Held or waiting for nodes; once it is over its downtime ends with its last attempt."""
    first = saved(0, 0, 10, 90, 100)
    assert told(job(first, state=JobState.HELD)) == [(80, NOW - 90, None)]
    assert told(job(first, state=JobState.GIVEN_UP)) == [(80, 10, None)]


def test_a_completed_attempt_keeps_all_of_its_work() -> None:
    """Also where only the scheduler tells that the job completed, and where it never saved."""
    assert told(job(unsaved(0, 0, 10, 100, signal=None), state=JobState.COMPLETED)) == [(90, 0, None)]
    again = unsaved(1, 120, 130, 200, signal=None, exit_code=0)
    assert told(job(saved(0, 0, 10, 90, 100), again, state=JobState.COMPLETED))[1] == (70, 40, Restart.SUCCEEDED)


def test_an_attempt_whose_end_nobody_told_ended_with_the_next_ones_start() -> None:
    """Only the newest attempt can be running."""
    record = job(unsaved(0, 0, 10, 0.0), unsaved(1, 50, 60, 0.0), saved(2, 80, 90, 140, 140), state=JobState.GIVEN_UP)
    assert told(record) == [(0, 0, None), (0, 80 - 10, Restart.FAILED), (50, 10, Restart.SUCCEEDED)]


def test_spans_that_lie_side_by_side_add_up() -> None:
    """Each second and each restart is in one of them."""
    record = job(saved(0, 0, 10, 90, 100), unsaved(1, 120, 130, 160), saved(2, 180, 190, 240, 250))
    whole = times(record)
    for cut in (5.0, 50.0, 95.0, 125.0, 185.0, 245.0):
        parts = [
            times(record, until=cut),
            times(record, since=cut),
        ]
        together = in_total(parts)
        assert (together.trained_s, together.downtime_s) == pytest.approx((whole.trained_s, whole.downtime_s))
        assert (together.restarts, together.restarts_failed) == (2, 1)


def test_a_job_of_whose_steps_nothing_tells_has_no_efficiency() -> None:
    """And it counts for nothing in the total."""
    silent = times(job(attempt(0, 0, ended_at=100)))
    assert (silent.efficiency, silent.attempts) == (None, ())
    other = times(job(saved(0, 0, 10, 90, 100)))
    assert in_total([silent, other]).efficiency == other.efficiency == pytest.approx(80 / 90)


def test_the_proof_is_that_of_the_jobs_own_policy() -> None:
    """The one that its owner asked for by name, else its partition's, else the site's."""
    policies = PolicySet(
        groups={"gpu": Policy(proof=Proof.FIRST_STEP)}, named={"mine": Policy(proof=Proof.PASSED_FAULT)}
    )
    key = JobKey("c", "7")
    for view, proof in (
        (JobView(key), Proof.FIRST_CHECKPOINT),
        (JobView(key, partition="gpu"), Proof.FIRST_STEP),
        (JobView(key, partition="gpu", recovery=RecoverySpec(policy="mine")), Proof.PASSED_FAULT),
    ):
        assert proof_of(JobRecord(key, view), policies) is proof

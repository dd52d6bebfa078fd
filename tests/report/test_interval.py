"""Advice on how often to save: the formula against the full model's numeric minimum, and advice on small histories."""

from __future__ import annotations

from math import exp, isclose, sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.cluster import JobKey, JobView
from holdfast.model.records import AttemptRecord, IncidentRecord, JobRecord, Mark
from holdfast.report.interval import IntervalAdvice, advise, best_interval_s, lost_share

KEY = JobKey("lab", "7")


def wall_per_work(gap_s: float, save_s: float, mtbf_s: float) -> float:
    """Daly's complete model: wall time per second of work when `gap_s` of work lie between two saves."""
    return mtbf_s * (exp((gap_s + save_s) / mtbf_s) - 1) / gap_s


@given(st.floats(0.01, 100.0), st.floats(500.0, 1e6))
def test_the_best_interval_is_the_minimum_of_the_full_model(save_s: float, mtbf_s: float) -> None:
    """No interval within a factor of three loses less than 0.1 % less than the one advised."""
    best = best_interval_s(save_s, mtbf_s) - save_s
    least = min(wall_per_work(best * factor, save_s, mtbf_s) for factor in (1 / 3, 0.6, 0.8, 0.95, 1.05, 1.2, 1.6, 3))
    assert wall_per_work(best, save_s, mtbf_s) <= least * 1.001


def test_small_costs_give_the_square_root_of_young() -> None:
    """With a save of 1 s and a failure a week the interval is sqrt(2 w M) to a part in a thousand."""
    assert isclose(best_interval_s(1.0, 604800.0), sqrt(2 * 604800.0), rel_tol=1e-3)


@pytest.mark.parametrize(("save_s", "mtbf_s"), [(0.0, 1.0), (1.0, 0.0), (-1.0, 5.0)])
def test_costs_that_are_not_positive_are_refused(save_s: float, mtbf_s: float) -> None:
    """Zero or negative input is named, not computed with."""
    with pytest.raises(ValueError, match="must be more than 0"):
        best_interval_s(save_s, mtbf_s)


def test_the_share_lost_is_that_of_the_full_model() -> None:
    """dt = 100 s, w = 2 s, M = 10,000 s, R = 50 s; Meta's first order, 1 - (1 - 0.01) / 1.02, is near it there."""
    by_hand = 1 - 1 / (wall_per_work(98.0, 2.0, 10_000.0) * exp(50.0 / 10_000.0))
    assert lost_share(100.0, 2.0, 10_000.0, 50.0) == pytest.approx(by_hand) == pytest.approx(1 - 0.99 / 1.02, abs=1e-3)


@pytest.mark.parametrize("save_s", [0.01, 1.0, 50.0, 300.0, 1000.0, 5000.0])
def test_nothing_loses_less_than_the_best_interval(save_s: float) -> None:
    """Also where a save takes as long as the job lives: no advice has a gain below nothing (0.1 % for rounding)."""
    best = best_interval_s(save_s, 1000.0)
    least = lost_share(best, save_s, 1000.0, 10.0)
    for factor in (0.01, 0.1, 0.4, 0.9, 1.1, 3.0, 100.0, 1e6):
        assert least <= lost_share(best * factor, save_s, 1000.0, 10.0) + 1e-3


def test_how_far_metas_formula_holds() -> None:
    """As the definitions say: 0.01 apart at w = 0.05 M and the best interval, 0.1 at w = M."""
    for save_s, apart in ((0.05, 0.01), (1.0, 0.11)):
        best = best_interval_s(save_s, 1.0)
        meta = 1 - (1 - best / 2) / (1 + save_s / best)
        assert abs(meta - lost_share(best, save_s, 1.0, 0.0)) == pytest.approx(apart, abs=0.01)


def history(*, drill: str = "") -> tuple[JobRecord, list[IncidentRecord]]:
    """Two attempts of 1,000 s each, the first ended by a failure, training again 20 s later."""
    first = AttemptRecord(0, started_at=1000.0, first_step_at=1000.0, first_step=1, last_step=1000, ended_at=2000.0)
    second = AttemptRecord(1, started_at=2010.0, first_step_at=2020.0, first_step=901, last_step=1800, ended_at=3010.0)
    incident = IncidentRecord(
        id="i-1",
        opened_at=2000.0,
        jobs=[KEY],
        attempt_before=0,
        drill=drill,
        outcome="recovered",
        closed_at=3000.0,
        marks={Mark.FAULT: 2000.0, Mark.FIRST_STEP: 2020.0},
    )
    return JobRecord(key=KEY, view=JobView(KEY), attempts=[first, second]), [incident]


UP_S = 2000.0
"""Of the history's two attempts."""


def advice(*, every_s: float, saves_s: tuple[float, ...] = (0.9, 1.0, 5.0), drill: str = "") -> IntervalAdvice:
    job, incidents = history(drill=drill)
    durable = [start + every_s * n for start in (1000.0, 2010.0) for n in range(1, int(990 // every_s) + 1)]
    return advise(job, incidents, durable=durable, saves_s=saves_s, up_s=UP_S)


def test_a_job_that_saves_too_often_is_told_so() -> None:
    """A failure in 2,000 s of training and saves of 1 s: best is about 64 s; every 10 s is too often."""
    got = advice(every_s=10.0)
    assert (got.actual_s, got.save_s, got.mtbf_s, got.failures) == (10.0, 1.0, 2000.0, 1)
    assert got.best_s == pytest.approx(sqrt(2 * 2000.0), rel=0.02)
    assert got.is_off
    assert "more often than is worth while" in got.says


def test_a_gap_across_a_restart_is_no_interval() -> None:
    """The time between the last save of one attempt and the first of the next does not count."""
    job, incidents = history()
    got = advise(job, incidents, durable=[1500.0, 2510.0], saves_s=[1.0], up_s=UP_S)
    assert got.actual_s is None


def test_near_the_best_interval_nothing_is_urged() -> None:
    """Within a factor of two of the best the sentence holds figures and no verdict."""
    got = advice(every_s=60.0)
    assert not got.is_off
    assert "worth while" not in got.says


def test_what_is_missing_for_advice_is_said() -> None:
    """Without a measured save, or without a failure, the sentence says which."""
    job, incidents = history()
    assert "what a save costs was not measured" in advise(job, incidents, durable=[], saves_s=[], up_s=UP_S).says
    assert "no failure" in advise(job, [], durable=[], saves_s=[1.0], up_s=UP_S).says


def test_failures_made_by_drills_are_named() -> None:
    """An interval worked out from drills is not to be acted on: the sentence says so."""
    assert "1 of its 1 failures were drills" in advice(every_s=60.0, drill="xid").says


def test_drills_are_counted() -> None:
    """Whoever makes proposals can tell that the failures were drills."""
    assert (advice(every_s=10.0, drill="xid").drills, advice(every_s=10.0).drills) == (1, 0)

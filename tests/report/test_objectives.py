"""Verdicts: each objective passes and fails where it must, and shows its arithmetic."""

from __future__ import annotations

import pytest

from holdfast.model.cluster import JobKey
from holdfast.model.policy import Slo
from holdfast.model.records import IncidentRecord, Mark
from holdfast.report.figures import CATEGORIES, Accounting
from holdfast.report.objectives import Verdict, judge
from holdfast.report.series import JobSeries, Point, Throughput, throughput

KEY = JobKey("lab", "7")


def incident(name: str, *, detect: float, recover: float | None, outcome: str = "recovered") -> IncidentRecord:
    marks = {Mark.FAULT: 100.0, Mark.DETECTED: 100.0 + detect}
    if recover is not None:
        marks[Mark.FIRST_STEP] = 100.0 + recover
    return IncidentRecord(
        id=name, opened_at=100.0 + detect, jobs=[KEY], marks=marks, attempt_before=0, attempt_after=1, outcome=outcome,
        closed_at=400.0,
    )  # fmt: skip


def verdicts(slo: Slo, *incidents: IncidentRecord, wall_s: float = 10_000.0, speeds: tuple[Throughput, ...] = ()):
    account = Accounting("7", wall_s, wall_s, dict.fromkeys(CATEGORIES, 0.0), wall_s, 0, 0)
    found = judge(slo, incidents=incidents, accounts=[account], throughputs=speeds)
    return {verdict.objective: verdict for verdict in found}


def test_objectives_that_are_not_set_are_not_judged() -> None:
    """The default policy has none."""
    assert verdicts(Slo(), incident("a", detect=1, recover=9)) == {}


def test_detection_is_judged_by_the_95th_percentile() -> None:
    """Nineteen quick ones and one slow: the slow one is the twentieth of twenty, beyond 95 %."""
    many = [incident(f"i{n}", detect=0.5, recover=5) for n in range(19)]
    slow = incident("slow", detect=60, recover=70)
    assert verdicts(Slo(detect_s=1), *many, slow)["detect"].passed is True
    failed = verdicts(Slo(detect_s=1), *many, slow, slow)["detect"]
    assert failed == Verdict("detect", "p95 <= 1 s", "60.000 s", False, "p95 of n=21: 60.000 s > 1 s")


def test_a_job_that_was_given_up_fails_recovery() -> None:
    """One of two never came back: no speed of the other makes up for it."""
    found = verdicts(
        Slo(recover_s=30), incident("a", detect=1, recover=5), incident("b", detect=1, recover=None, outcome="given_up")
    )["recover"]
    assert found.passed is False
    assert found.arithmetic.startswith("1 of 2 (50.0 %) were given up; p95 of n=1: 5.000 s <= 30 s")


@pytest.mark.parametrize(("recover", "passed"), [(9.0, True), (11.0, False)])
def test_availability_has_a_budget(recover: float, passed: bool) -> None:
    """99.9 % of 10,000 s leaves 10 s; the arithmetic names the month's 43.2 minutes, too."""
    found = verdicts(Slo(availability=99.9), incident("a", detect=1, recover=recover))["availability"]
    assert found.passed is passed
    assert f"1 - {recover:.1f} s down / 10000.0 s" in found.arithmetic
    assert found.arithmetic.endswith("the budget of this time is 10.0 s, of a month 43.2 min")


def test_performance_is_judged_by_the_worst() -> None:
    """10 % slower fails 5 %, and names the incident."""
    speeds = (Throughput("a", "tokens/s", 100.0, 99.0), Throughput("b", "tokens/s", 100.0, 90.0))
    found = verdicts(Slo(performance_loss=5), incident("a", detect=1, recover=2), speeds=speeds)["performance"]
    assert (found.passed, found.measured) == (False, "10.0 %")
    assert "(b): 1 - 90 / 100 tokens/s = 10.0 % > 5 %" in found.arithmetic


def test_without_data_there_is_no_verdict() -> None:
    """`no data` is neither passed nor failed."""
    found = verdicts(Slo(detect_s=1, recover_s=1, performance_loss=5), wall_s=0)
    assert {verdict.word for verdict in found.values()} == {"no data"}


def test_throughput_is_the_median_on_either_side() -> None:
    """10 tokens a second before with one slow gap, 8 after: 20 % less, and the slow gap changes nothing."""
    before = [Point(float(t), 10.0 * t) for t in range(20)] + [Point(60.0, 200.0), Point(61.0, 210.0)]
    after = [Point(100.0 + t, 8.0 * t) for t in range(20)]
    series = JobSeries(tokens={0: before, 1: after})
    got = throughput(incident("a", detect=1, recover=2), series)
    assert (got.unit, got.before, got.after) == ("tokens/s", 10.0, 8.0)
    assert got.loss_percent == pytest.approx(20.0)


def test_steps_speak_where_tokens_are_not_told() -> None:
    """Too few points give no figure, not a wrong one."""
    steps = {0: [Point(float(t), t) for t in range(10)], 1: [Point(100.0, 1.0)]}
    got = throughput(incident("a", detect=1, recover=2), JobSeries(steps=steps))
    assert (got.unit, got.before, got.after, got.loss_percent) == ("steps/s", 1.0, None, None)

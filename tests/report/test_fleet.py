"""A fleet's figures, recomputed here in the plainest way from the same records."""

from __future__ import annotations

from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.report.histories import BEGIN, a_year

from holdfast.model.cluster import JobKey
from holdfast.model.events import Command, OperatorCommand
from holdfast.model.records import Mark
from holdfast.report.fleet import Economics, is_beyond_chance
from holdfast.report.gather import ReportData
from holdfast.report.sections import sections

DAYS = 365.0


def data(seed: int = 1, *, incidents: int = 400, commands: list[OperatorCommand] | None = None) -> ReportData:
    jobs, nodes, found = a_year(seed, incidents=incidents)
    made = ReportData("t", "sim", BEGIN + DAYS * 86400.0, jobs, nodes, found, since=BEGIN, commands=commands or [])
    made.economics = Economics(gpu_hour=2.0, person_minutes=30.0, spare_nodes=2)
    return made


@pytest.mark.parametrize("seed", range(5))
def test_figures_are_what_the_records_say(seed: int) -> None:
    """Counts, rates, means and GPU-hours against sums written out here; drills are no failures."""
    made = data(seed)
    fleet = made.fleet
    real = [i for i in made.incidents if not i.drill]
    back = [i for i in real if Mark.FIRST_STEP in i.marks]
    assert fleet.failures == len(real)
    assert fleet.per_1000_node_days == pytest.approx(len(real) / (64 * 365) * 1000)
    assert (fleet.came_back, fleet.by_themselves, fleet.resubmitted) == (len(back), len(back), 0)
    assert fleet.given_up == sum(i.outcome == "given_up" for i in real)
    assert fleet.mttr.mean == pytest.approx(fmean(i.marks[Mark.FIRST_STEP] - i.marks[Mark.FAULT] for i in back))
    assert fleet.mttd.mean == pytest.approx(fmean(i.marks[Mark.DETECTED] - i.marks[Mark.FAULT] for i in real))
    assert sum(fleet.by_cause.values()) == sum(fleet.by_domain.values()) == len(real)
    assert fleet.by_cause["node.lost"] == sum(i.diagnosis.cause == "node.lost" for i in real)
    assert sum(fleet.by_hour) == len(real)
    assert sum(week.failures for week in fleet.weeks) == len(real)
    assert sum(week.node_days for week in fleet.weeks) == pytest.approx(64 * 365)
    saved = sum(max(0.0, 1800 - (i.marks[Mark.FIRST_STEP] - i.marks[Mark.FAULT])) * 8 * 8 for i in back) / 3600
    assert fleet.cost.saved == pytest.approx(saved)
    assert fleet.cost.spares == pytest.approx(2 * 8 * 365 * 24)
    lost = sum(sum(account.badput.values()) * 64 for account in made.accounts) / 3600
    assert fleet.cost.lost == pytest.approx(lost)
    assert fleet.cost.lost_money == pytest.approx(2 * lost)
    up = sum((a.ended_at or made.made_at) - a.started_at for job in made.jobs for a in job.attempts)
    assert fleet.mtbf_s == pytest.approx(up / len(real))
    assert sum(week.up_s for week in fleet.weeks) == pytest.approx(up)
    assert all(week.mtbf_s == pytest.approx(week.up_s / week.failures) for week in fleet.weeks if week.failures)


def test_a_fenced_node_that_came_back_unrepaired_is_a_false_alarm() -> None:
    """Returned without reset, reboot or replacement; a node that was lost is none."""
    made = data(3)
    fenced = [i for i in made.incidents if Mark.ISOLATED in i.marks and not i.drill]
    false = [
        i for i in fenced
        if Mark.NODE_RETURNED in i.marks and "replace" not in i.remedies and i.diagnosis.cause != "node.lost"
    ]  # fmt: skip
    assert 0 < len(false) < len(fenced)
    assert (made.fleet.fenced, made.fleet.false_alarms) == (len(fenced), len(false))


def command(at: float, **target: object) -> OperatorCommand:
    return OperatorCommand(id=f"c{at}", at=at, command=Command.RELEASE, who="mei", **target)  # type: ignore[arg-type]


def test_a_recovery_with_a_persons_order_is_not_automatic() -> None:
    """An order about its job while it is open counts; one about another job, or after its end, does not."""
    plain = data(1)
    one = next(i for i in plain.incidents if not i.drill and i.outcome == "recovered")
    inside, after = one.opened_at + 1, (one.closed_at or 0) + 1
    other = JobKey("sim", "999")
    assert data(1, commands=[command(inside, job=one.jobs[0])]).fleet.resubmitted == 1
    assert data(1, commands=[command(inside, job=other), command(after, job=other)]).fleet.resubmitted == 0


def test_a_former_span_is_set_beside_this_one() -> None:
    """A second column, and a sentence on whether chance explains the difference."""
    made, former = data(1, incidents=400), data(2, incidents=80)
    made.former = former
    overview = next(section for section in sections(made, "fleet") if section.key == "fleet")
    assert overview.headings == ("figure", "value", "span before")
    assert "more than chance explains" in overview.intro


@given(st.integers(0, 2000), st.integers(0, 2000))
def test_chance_is_symmetric_and_never_sees_a_difference_in_equals(before: int, after: int) -> None:
    """Two equal counts differ by nothing, and the order of the spans does not matter."""
    assert not is_beyond_chance(before, before)
    assert is_beyond_chance(before, after) == is_beyond_chance(after, before)


def test_every_kind_of_report_has_its_sections() -> None:
    """A full year gives every table of the fleet report, and the summary what it promises."""
    made = data(1)
    assert [s.key for s in sections(made, "fleet")] == [
        "fleet", "training", "causes", "domains", "lost", "weeks", "cost", "published", "proposals",
    ]  # fmt: skip
    assert {"ran", "problems", "proposals"} <= {s.key for s in sections(made, "summary")}
    for section in [*sections(made, "fleet"), *sections(made, "summary")]:
        assert all(len(row) == len(section.headings) for row in section.rows), section.key


def test_nothing_known_is_no_error() -> None:
    """An empty journal gives a report with dashes."""
    empty = ReportData("t", "sim", BEGIN)
    assert empty.fleet.failures == 0
    assert [section.key for section in sections(empty, "fleet")][:1] == ["fleet"]

"""One incident in depth: what it cost, and its nodes before and after, worked out once more by hand."""

from __future__ import annotations

import asyncio

import pytest
from tests.report.test_figures import KEY, a_job, first, second, the_incident

from holdfast.adapters.memory import MemoryJournal, MemoryStore
from holdfast.model.cluster import NodeView
from holdfast.model.policy import Slo
from holdfast.model.records import NodeRecord
from holdfast.ports import Sample
from holdfast.report import gather as gather_module
from holdfast.report.fleet import Economics
from holdfast.report.gather import ReportData
from holdfast.report.sections import money, performance
from holdfast.report.series import JobSeries, Point
from holdfast.report.single import cost, figures

FAULT = 150.0


def data() -> ReportData:
    """Two nodes of 8 GPUs, then node b and node c; step 41 was reached before the fault and again at 165 s."""
    one, two = first(), second()
    one.nodes, two.nodes = ("a", "b"), ("b", "c")
    nodes = [NodeRecord(name, NodeView(name, gpus=8)) for name in "abc"]
    made = ReportData("t", "lab", 999.0, [a_job(one, two)], nodes, [the_incident()])
    made.series = {str(KEY): JobSeries(steps={1: [Point(155.0, 31), Point(165.0, 41), Point(170.0, 46)]})}
    return made


def measured(node: str, *points: tuple[float, float]) -> list[Sample]:
    return [Sample("validate.figure", f"node:{node}/gpu.matmul", at, value) for at, value in points]


def test_gpu_hours_are_standing_still_and_computing_again_times_gpus() -> None:
    """5 s from the fault to the first step, 10 s until the old step is passed, 16 GPUs of the attempt that holds them."""
    made = data()
    incident = made.incidents[0]
    (row,) = cost(made, incident).rows
    assert row == (str(KEY), f"{incident.lost_steps}", "5.000", "10.000", "16", f"{15 * 16 / 3600:.4f}")


def test_an_incident_that_stopped_nothing_cost_nothing() -> None:
    """No row, so no table."""
    made = data()
    made.incidents[0].attempt_before = None
    assert cost(made, made.incidents[0]).rows == ()


def test_a_nodes_figures_before_and_after() -> None:
    """The last before the fault, the first after it; the node that came in has none before; what is missing says so."""
    made = data()
    incident = made.incidents[0]
    incident.nodes = ["a", "x"]
    made.measured = {
        "a": measured("a", (10.0, 100.0), (20.0, 90.0), (200.0, 99.0), (300.0, 50.0)),
        "c": measured("c", (200.0, 101.0)),
    }
    assert figures(made, incident).rows == (
        ("a", "gpu.matmul", "90", "99", "+10.0 %"),
        ("c", "gpu.matmul", "-", "101", "-"),
        ("x", "not measured", "-", "-", "-"),
    )


def test_only_the_figures_of_the_incidents_nodes_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of its nodes, and of the node that came in for one; with very many all are asked for at once, none other kept."""
    made = data()
    made.incidents[0].nodes = ["a"]
    told = [*measured("a", (10.0, 1.0)), *measured("b", (10.0, 2.0)), *measured("c", (10.0, 3.0))]
    told += measured("c2", (10.0, 4.0))
    asked: list[str] = []

    class Journal(MemoryJournal):
        async def samples(self, series: str, subject: str = "", *, after: float = 0.0) -> list[Sample]:
            asked.append(subject)
            return await super().samples(series, subject, after=after)

    async def work() -> dict[str, list[Sample]]:
        journal = Journal(MemoryStore())
        await journal.add_samples(told)
        return await gather_module._measured(journal, made.jobs, made.incidents)

    for most, subjects in ((500, ["node:a/*", "node:c/*"]), (1, ["node:*"])):
        monkeypatch.setattr(gather_module, "MEASURED_MAX", most)
        asked.clear()
        assert asyncio.run(work()) == {"a": told[:1], "c": told[2:3]}
        assert asked == subjects


@pytest.mark.parametrize(("limit", "words"), [(0.0, ("-", "-")), (30.0, ("30 %", "PASS")), (10.0, ("10 %", "FAIL"))])
def test_throughput_is_held_against_the_tolerance(limit: float, words: tuple[str, str]) -> None:
    """20 % slower: within 30, beyond 10, not judged without an objective."""
    made = data()
    made.slo = Slo(performance_loss=limit)
    made.series[str(KEY)] = JobSeries(
        steps={
            0: [Point(110.0 + n, n) for n in range(39)],
            1: [Point(155.0 + 1.25 * n, 31 + n) for n in range(30)],
        }
    )
    (row,) = performance(made).rows
    assert row[3:] == ("20.0 %", *words)


def test_running_holdfast_is_set_against_what_it_saved() -> None:
    """2 an hour over a day is 48; it leaves the net, with its arithmetic."""
    made = data()
    made.since, made.made_at = 0.0, 86400.0
    made = ReportData("t", "lab", 86400.0 + 100.0, made.jobs, made.nodes, made.incidents, since=100.0)
    made.economics = Economics(gpu_hour=10.0, person_minutes=30.0, spare_nodes=1, holdfast_hour=2.0)
    got = made.fleet.cost
    assert got.holdfast_money == pytest.approx(48.0)
    assert got.net_money == pytest.approx((30 * 60 - 5) * 16 / 3600 * 10 - 8 * 24 * 10 - 48)
    assert got.arithmetic.endswith("; Holdfast: 2 an hour x 24.0 h = 48.00")
    assert {row[0]: row[2] for row in money(made).rows}["running Holdfast"] == "48.00"

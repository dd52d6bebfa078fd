"""A figure followed to its events: parts add up to the figure, and each mark names the event that set it."""

from __future__ import annotations

import pytest
from tests.report.test_figures import KEY, a_job, first, second, the_incident

from holdfast.model import events as e
from holdfast.model.cluster import NodeView
from holdfast.model.evidence import Finding
from holdfast.model.records import Mark, NodeRecord
from holdfast.report.fleet import Economics
from holdfast.report.gather import ReportData
from holdfast.report.trace import COUNTS, FIGURES, GPU_HOURS, SAVED, Told, trace, wanted


def data() -> ReportData:
    return ReportData("t", "lab", 999.0, [a_job(first(), second())], [], [the_incident()])


def events() -> list[e.AnyEvent]:
    return [
        e.AttemptStarted(id="a", at=100.0, received_at=100.0, seq=3, source="launcher:7", job=KEY, attempt=0, epoch=1),
        e.FindingSeen(
            id="b", at=151.0, received_at=151.0, seq=7, source="agent:n1",
            finding=Finding(id="f", rule="exit.signal.11", at=150.0, job=KEY),
        ),
        e.AttemptEnded(id="c", at=151.5, received_at=151.5, seq=8, source="launcher:7", job=KEY, attempt=0),
        e.AttemptStarted(id="d", at=152.0, received_at=152.0, seq=9, source="launcher:7", job=KEY, attempt=1, epoch=2),
        e.FirstStepDone(id="f", at=155.0, received_at=155.1, seq=11, source="launcher:7", job=KEY, attempt=1, step=31),
        e.CheckpointSaved(
            id="g", at=170.0, received_at=170.0, seq=15, source="launcher:7", job=KEY, attempt=1, step=42, durable=True
        ),
    ]  # fmt: skip


def follow(figure: str) -> object:
    return trace(data(), figure, Told({"i-1": events(), "7": events()}))


def test_a_span_names_the_events_of_both_marks() -> None:
    """MTTR: the finding that told the fault's own time, and the first step."""
    found = follow("MTTR")
    assert (found.value, found.arithmetic) == (5.0, "(5.000) / 1 = 5.000 s")
    assert [(p.name, p.at, p.seq, p.event, p.source) for p in found.parts[0].points] == [
        ("fault", 150.0, 7, "finding_seen", "agent:n1"),
        ("first_step", 155.0, 11, "first_step_done", "launcher:7"),
    ]
    assert [p.seq for p in follow("MTTD").parts[0].points] == [7, 7]
    assert [p.seq for p in follow("MTTP").parts[0].points] == [7, 15]


def test_mtbf_is_up_times_over_failures() -> None:
    """51.5 s and 43 s of two attempts over one incident; the second's end has no event in this journal."""
    found = follow("MTBF")
    assert [(p.of, p.value) for p in found.parts] == [("7(0)", 51.5), ("7(1)", 43.0)]
    assert found.arithmetic == "94.500 s up / 1 failures (i-1) = 94.500 s"
    assert [point.seq for part in found.parts for point in part.points] == [3, 8, 9, 0]


def test_lost_steps_are_those_computed_again() -> None:
    """Attempt 1 begins at 31 although 41 had been reached: eleven steps."""
    found = follow("lost steps")
    assert (found.value, found.arithmetic) == (11.0, "11 = 11 steps")
    assert [(p.name, p.step, p.seq) for p in found.parts[0].points] == [
        ("reached before", 41, 0),
        ("first step", 31, 11),
    ]


def test_ratios_show_what_is_divided() -> None:
    """70 of 95 s, and of the 85 s after start-up."""
    assert follow("ETTR").arithmetic == "70.000 s productive / 95.000 s of wall time = 0.7368"
    assert follow("goodput").arithmetic.startswith("70.000 s productive / (95.000 - 10.000 s of start-up) = 82.35")
    assert {point.seq for point in follow("ETTR").parts[0].points} >= {3, 8, 9, 11}


def test_counts_of_the_fleet_name_their_incidents() -> None:
    """One failure, recovered by itself: it is both; its part has all its marks with their events."""
    for figure in ("failures", "automatic"):
        found = follow(figure)
        assert (found.value, [part.of for part in found.parts]) == (1.0, ["i-1"])
        assert {point.seq for part in found.parts for point in part.points} >= {7, 11, 15}
    for figure in ("incidents", "recovered", "trained again"):
        assert (follow(figure).value, [part.of for part in follow(figure).parts]) == (1.0, ["i-1"])
    none = ("given up", "false alarms", "fenced", "resubmitted")
    assert [follow(figure).value for figure in none] == [0.0] * len(none)
    hours = follow("GPU hours lost")
    assert hours.value == pytest.approx(25.0 / 3600.0)
    assert sum(part.value for part in hours.parts) == pytest.approx(hours.value)


def test_what_needed_a_person_names_the_persons_order() -> None:
    """An order about the job while the incident was open, by its event; one that came later is none of it."""
    made = data()
    made.commands = [
        e.OperatorCommand(id=f"c{at}", at=at, seq=seq, source="api", command=e.Command.RELEASE, who="mei", job=KEY)
        for seq, at in ((13, 153.0), (20, 180.0))
    ]
    found = trace(made, "resubmitted", Told({"i-1": events()}))
    assert (found.value, found.arithmetic, made.fleet.resubmitted) == (1.0, "1 of 1 failures", 1)
    assert [(p.name, p.seq) for p in found.parts[0].points if p.seq == 13] == [("release by mei", 13)]
    assert trace(made, "automatic", Told()).value == 0.0
    assert trace(made, "GPU hours saved", Told()).parts == ()


def test_a_fenced_node_is_followed_to_its_mark() -> None:
    """Fenced at 151.2 s and back without a repair: it is both fenced and a false alarm."""
    made = data()
    made.incidents[0].marks |= {Mark.ISOLATED: 151.2, Mark.NODE_RETURNED: 160.0}
    for figure, text in (("fenced", "1 incidents"), ("false alarms", "1 of 1 nodes fenced")):
        found = trace(made, figure, Told({"i-1": events()}))
        assert (found.value, found.arithmetic) == (1.0, text)
        assert ("isolated", 151.2) in [(point.name, point.at) for point in found.parts[0].points]


def test_rate_availability_and_savings_show_their_arithmetic() -> None:
    """One failure of 5 s in 95 s of job time, on two nodes of 8 GPUs, against a person's ten minutes."""
    made = data()
    made.nodes = [NodeRecord(name, NodeView(name, gpus=8), first_seen_at=50.0) for name in "ab"]
    for attempt in made.jobs[0].attempts:
        attempt.nodes = ("a", "b")
    made.economics, made.since = Economics(person_minutes=10.0), 99.0
    days = 2 * 900.0 / 86400
    told = Told({"i-1": events()})
    rate = trace(made, "failure rate", told)
    assert (rate.value, rate.value) == (pytest.approx(1000 / days), made.fleet.per_1000_node_days)
    saved = trace(made, "GPU hours saved", told)
    assert (saved.value, sum(p.value for p in saved.parts)) == (pytest.approx(595 * 16 / 3600), saved.value)
    up = trace(made, "availability", told)
    assert (up.value, up.parts[0].value) == (pytest.approx(100 * (1 - 5 / 95)), 5.0)
    assert up.arithmetic == "1 - 5.000 s down / 95.000 s of job time = 94.737 %"
    for found in (rate, saved, up):
        assert [point.seq for point in found.parts[0].points] == [7, 11]


@pytest.mark.parametrize("figure", FIGURES)
def test_a_figure_of_an_empty_journal_is_not_defined(figure: str) -> None:
    """No parts, no number, no error."""
    empty = ReportData("t", "lab", 1.0)
    found = trace(empty, figure, Told())
    counts = figure in {"lost steps", *COUNTS, GPU_HOURS, SAVED}
    assert (found.parts, found.value) == ((), 0.0 if counts else None)
    assert wanted(empty, figure) == ([], [])

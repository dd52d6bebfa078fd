"""Tables of one incident, coverage and proposals, each figure worked out once more by hand from made-up histories."""

from __future__ import annotations

import csv
import io
import json
import re
from math import exp, sqrt

import pytest
from rich.console import Console
from tests.report.test_figures import KEY, a_job, first, second, the_incident

from holdfast.model import events as e
from holdfast.model.cluster import JobKey, JobView, NodeView, SchedulerState
from holdfast.model.evidence import Diagnosis, Domain, Remedy
from holdfast.model.records import AttemptRecord, IncidentRecord, JobRecord, JobState, Mark, NodeRecord
from holdfast.report.csv_form import render_csv
from holdfast.report.gather import ReportData
from holdfast.report.html import render_html
from holdfast.report.json_form import render_json
from holdfast.report.proposals import RULES, Proposal
from holdfast.report.sections import coverage, environment, intervals
from holdfast.report.series import JobSeries, Point
from holdfast.report.single import affected, incident_sections, losses, machines
from holdfast.report.terminal import render

OTHER = JobKey("lab", "8")


def data(*others: JobRecord) -> ReportData:
    return ReportData("t", "lab", 999.0, [a_job(first(), second()), *others], [], [the_incident()])


def command(at: float, kind: e.Command) -> e.OperatorCommand:
    return e.OperatorCommand(id=f"c{at}", at=at, command=kind, who="mei", job=KEY)


# --- jobs that an incident touched ---


def test_a_job_comes_back_by_itself_or_by_a_persons_order() -> None:
    """The attempt behind the fault; by whom, when a person released or requeued it while the incident was open."""
    made = data()
    assert affected(made, made.incidents[0]).rows == (("7", "running", "7(1), by itself"),)
    made.commands = [command(140.0, e.Command.RELEASE), command(171.0, e.Command.RELEASE)]
    assert affected(made, made.incidents[0]).rows[0][2] == "7(1), by itself"
    made.commands.append(command(160.0, e.Command.REQUEUE))
    assert affected(made, made.incidents[0]).rows[0][2] == "7(1), by mei"


def test_a_job_that_a_person_sent_in_again_is_named_with_its_successor() -> None:
    """Same name and user, submitted after the fault, while the first one is over; else it is not back."""
    lost, again = a_job(first()), JobRecord(OTHER, JobView(OTHER, name="gpt", user="li", submitted_at=160.0))
    lost.view, lost.state = JobView(KEY, name="gpt", user="li"), JobState.GIVEN_UP
    made = ReportData("t", "lab", 999.0, [lost, again], [], [the_incident()])
    assert affected(made, made.incidents[0]).rows == (("7", "running", "resubmitted by a person as 8"),)
    again.view = JobView(OTHER, name="gpt", user="li", submitted_at=149.0)
    assert affected(made, made.incidents[0]).rows == (("7", "running", "not back"),)


def test_jobs_that_waited_meanwhile_are_listed() -> None:
    """Queued when the fault came and not started before it; only where a node was taken away."""

    def queued(number: str, submitted: float, started: float) -> JobRecord:
        key = JobKey("lab", number)
        view = JobView(key, submitted_at=submitted, state=SchedulerState.PENDING)
        return JobRecord(key, view, attempts=[AttemptRecord(0, started_at=started)] if started else [])

    made = data(
        queued("10", 140.0, 180.0), queued("11", 140.0, 0.0), queued("12", 155.0, 0.0), queued("13", 90.0, 95.0)
    )
    assert [row[0] for row in affected(made, made.incidents[0]).rows] == ["7"]
    made.incidents[0].nodes = ["n1"]
    assert affected(made, made.incidents[0]).rows[1:] == (("10", "waiting", "-"), ("11", "waiting", "-"))


# --- its loss ---


def test_losses_of_steps_computed_twice_are_compared_at_the_worst_step() -> None:
    """Steps 31 to 33 stand on both sides; 32 differs most."""
    made = data()
    before = [Point(30, 2.5), Point(31, 2.4), Point(32, 2.3), Point(33, 2.2)]
    after = [Point(31, 2.4), Point(32, 2.5), Point(33, 2.3), Point(34, 2.1)]
    made.series = {"7": JobSeries(losses={0: before, 1: after})}
    assert losses(made, made.incidents[0]).rows == (("31-33 (3), step 32", "2.3", "2.5", "0.2"),)


def test_losses_without_a_common_step_are_medians_of_either_side() -> None:
    """3, 2, 10 before and 4, 1, 2.5 after: 3 and 2.5. Nothing on one side: not measured."""
    made = data()
    sides = {0: [Point(1, 3.0), Point(2, 2.0), Point(3, 10.0)], 1: [Point(4, 4.0), Point(5, 1.0), Point(6, 2.5)]}
    made.series = {"7": JobSeries(losses=sides)}
    assert losses(made, made.incidents[0]).rows == (("1-6, medians", "3", "2.5", "0.5"),)
    made.series = {"7": JobSeries(losses={0: sides[0]})}
    assert losses(made, made.incidents[0]).rows == (("not measured", "-", "-", "-"),)


# --- its machines, and what was covered ---


def test_machines_have_what_validation_said_while_the_incident_was_open() -> None:
    """One node failed and passed then, what was said later is another matter; one was never asked."""
    made = data()
    made.incidents[0].nodes = ["n1", "n2"]
    told = [(120.0, True), (155.0, False), (165.0, True), (171.0, False)]
    made.events = [
        e.NodeValidated(id=f"v{at}", at=at, node="n1", instance_id="i-1", passed=passed, detail=f"at {at:.0f}")
        for at, passed in told
    ]
    rows = machines(made, made.incidents[0]).rows
    assert [(row[0], row[2], row[3]) for row in rows] == [
        ("n1", "FAIL", "at 155"), ("n1", "PASS", "at 165"), ("n2", "not measured", "-"),
    ]  # fmt: skip
    environs = {row[0]: row[1:] for row in environment(made).rows}
    assert environs["nodes validated"] == ("50.0 % (2 of 4)", "n1, n1")


def test_coverage_counts_the_attempts_that_have_two_points() -> None:
    """Steps of both attempts, a loss of one, tokens of none (samples of one do instead); a drill nobody noticed."""
    made = data()
    made.has_series = True
    two = [Point(1, 1), Point(2, 2)]
    made.series = {"7": JobSeries(steps={0: two, 1: two}, losses={0: two, 1: two[:1]}, samples={1: two})}
    made.events = [e.DrillFired(id=f"d{n}", at=150.0, drill=name, kind="kill9", job=KEY) for n, name in enumerate("ab")]
    made.incidents[0].drill = "a"
    rows = {row[0]: row[1:] for row in coverage(made).rows}
    assert [rows[name][0] for name in ("steps", "training loss", "tokens or samples")] == [
        "100.0 % (2 of 2)", "50.0 % (1 of 2)", "50.0 % (1 of 2)",
    ]  # fmt: skip
    assert rows["injected faults that were noticed"] == ("50.0 % (1 of 2)", "no incident: b")
    assert rows["incidents that people were told of"] == ("0.0 % (0 of 1)", "nobody was told of: i-1")


# --- proposals: each rule on the smallest history that meets it, and on one that just does not ---


def incident(
    number: int, *, cause: str = "exit.signal.11", remedies: tuple[Remedy, ...] = (), **marks: float
) -> IncidentRecord:
    at = 1000.0 * (number + 1)
    return IncidentRecord(
        id=f"i-{number}", opened_at=at, jobs=[KEY], attempt_before=number, attempt_after=number + 1, outcome="recovered",
        closed_at=at + 900, diagnosis=Diagnosis(cause=cause, domain=Domain.APPLICATION), remedies=list(remedies),
        marks={Mark.FAULT: at} | {Mark(name): at + after for name, after in marks.items()},
    )  # fmt: skip


def found(rule: str, made: ReportData) -> list[Proposal]:
    assert rule in {one.name for one in RULES}
    return [one for one in made.proposals if one.rule == rule]


def fleet_of(*incidents: IncidentRecord, nodes: list[NodeRecord] | None = None) -> ReportData:
    job = a_job(*(AttemptRecord(n, started_at=1000.0 * n + 10, ended_at=1000.0 * (n + 1)) for n in range(1, 9)))
    return ReportData("t", "lab", 20_000.0, [job], nodes or [], list(incidents))


def test_the_slowest_phase_needs_more_than_half_of_two_recoveries() -> None:
    """Start takes 30 + 50 of 40 + 60 s: 80 %, 40 s each. Half or less, or one recovery alone, proposes nothing."""
    one = incident(0, detected=5, stopped=10, started=40)
    two = incident(1, detected=5, stopped=10, started=60)
    [told] = found("slowest-phase", fleet_of(one, two))
    assert (told.evidence, told.gain) == (
        '"start" took 80.0 of 100.0 s (80 %) of 2 recoveries',
        "up to 40.0 s per recovery",
    )
    assert found("slowest-phase", fleet_of(one)) == []
    even = [incident(n, detected=5, stopped=20, started=25) for n in range(2)]
    assert found("slowest-phase", fleet_of(*even))[0].what.startswith("shorten waits.stop_grace_s")
    assert found("slowest-phase", fleet_of(*(incident(n, detected=10, stopped=20) for n in range(2)))) == []


def test_spares_are_proposed_for_waits_of_more_than_a_minute() -> None:
    """61 s and 3,539 s of waiting are an hour; 60 s is none."""
    waits = [
        incident(0, released=5, placed=66),
        incident(1, released=5, placed=3544),
        incident(2, released=5, placed=65),
    ]
    [told] = found("spares", fleet_of(*waits))
    assert told.evidence == "2 recoveries waited more than a minute for nodes, the longest 59 min"
    assert told.gain == "1.0 hours of waiting"


def test_a_lemon_was_fenced_three_times() -> None:
    """Two offences are no lemon yet."""
    nodes = [NodeRecord(name, NodeView(name), offences=[1.0] * count) for name, count in (("a", 2), ("b", 3), ("c", 5))]
    told = found("lemon", fleet_of(nodes=nodes))
    assert [(one.what.split()[1], one.evidence, one.gain) for one in told] == [
        ("c", "it was fenced 5 times within 28 days", "about 5 failures in 28 days"),
        ("b", "it was fenced 3 times within 28 days", "about 3 failures in 28 days"),
    ]


@pytest.mark.parametrize(("false", "proposed"), [(1, False), (2, True)])
def test_false_alarms_are_more_than_every_fifth_of_five(false: int, proposed: bool) -> None:
    """One of five fenced nodes without a repair is every fifth and no more; two of five are."""
    fenced = [
        incident(n, remedies=() if n < false else (Remedy.REPLACE,), isolated=2, node_returned=500) for n in range(5)
    ]
    told = found("false-alarms", fleet_of(*fenced))
    assert [(one.evidence, one.gain) for one in told] == (
        [("2 of 5 fenced nodes came back without any repair", "2 nodes not fenced")] if proposed else []
    )


def test_a_fault_that_a_time_out_hid_was_seen_after_ten_minutes() -> None:
    """600 s and 1,200 s are half an hour of detection; 599 s is not counted."""
    [told] = found("hidden-by-time-out", fleet_of(*(incident(n, detected=s) for n, s in enumerate((599, 600, 1200)))))
    assert told.evidence.startswith("2 faults were noticed only 10 minutes or more")
    assert told.evidence.endswith("i-1, i-2")
    assert told.gain == "0.5 hours of detection"


@pytest.mark.parametrize(("unknown", "proposed"), [(1, False), (2, True)])
def test_unknown_causes_are_more_than_every_fifth(unknown: int, proposed: bool) -> None:
    """One of five is not, two of five are."""
    failed = [incident(n, cause="unknown" if n < unknown else "node.lost") for n in range(5)]
    told = found("unknown-causes", fleet_of(*failed))
    assert [one.evidence for one in told] == (["2 of 5 failures have no known cause"] if proposed else [])


def test_the_checkpoint_interval_gains_what_dalys_model_says() -> None:
    """A save of 2 s every 8 s, up for 94.5 s and one failure: best interval, and the loss at both, by Daly."""
    made = data()
    saved = [Point(111.0, 10), Point(119.0, 20), Point(127.0, 30)]
    made.series = {"7": JobSeries(checkpoints=saved, saves=[Point(111.0, 2.0), Point(119.0, 2.0)])}
    mtbf = (151.5 - 100.0) + (195.0 - 152.0)
    best = sqrt(2 * 2.0 * mtbf) * (1 + sqrt(2.0 / (2 * mtbf)) / 3 + 2.0 / (18 * mtbf))

    def lost(every: float) -> float:
        return 1 - (every - 2.0) / mtbf * exp(-5.0 / mtbf) / (exp(every / mtbf) - 1)

    [told] = found("checkpoint-interval", made)
    assert told.what == f"save job 7 every {best:.0f} s instead of every 8 s"
    assert told.gain == f"{100 * (lost(8.0) - lost(best)):.1f} % of the job's time"
    made.incidents[0].drill = "kill9"
    again = ReportData("t", "lab", 999.0, made.jobs, [], made.incidents, made.series)
    assert found("checkpoint-interval", again) == []


# --- every form has the tables of one incident ---


def whole() -> ReportData:
    """A report of one incident with a row in every table."""
    made = data()
    made.incident = "i-1"
    made.incidents[0].nodes = ["n1"]
    points = [Point(31, 2.5), Point(41, 2.4)]
    made.series = {"7": JobSeries(losses={0: points, 1: points})}
    made.events = [
        e.NodeValidated(id="v", at=160.0, node="n1", instance_id="i-1", passed=True, detail="4 checks passed")
    ]
    return made


KEYS = ["phases", "affected", "lost-to-it", "loss", "machines", "measured"]


def test_json_has_the_tables_of_each_incident() -> None:
    """Rows by their headings, the same as the page's."""
    made = whole()
    tables = incident_sections(made, made.incidents[0])
    [form] = json.loads(render_json(made))["incidents"]
    assert [table["key"] for table in form["tables"]] == [table.key for table in tables] == KEYS
    for got, table in zip(form["tables"], tables, strict=True):
        assert got["title"] == table.title
        assert [tuple(row.values()) for row in got["rows"]] == list(table.rows)
        assert all(tuple(row) == table.headings for row in got["rows"])


def test_csv_of_one_incident_has_its_tables_behind_its_row() -> None:
    """Each begins with its headings; a report of many keeps one plain table of incidents."""
    made = whole()
    rows = list(csv.reader(io.StringIO(render_csv(made))))
    for table in incident_sections(made, made.incidents[0]):
        at = rows.index(["section", *table.headings])
        assert rows[at + 1 : at + 1 + len(table.rows)] == [[table.key, *row] for row in table.rows]
    made.incident = ""
    assert len({len(row) for row in csv.reader(io.StringIO(render_csv(made)))}) == 1


@pytest.mark.parametrize("form", ["terminal", "html"])
def test_a_terminal_shows_what_the_page_shows(form: str) -> None:
    """Title and every cell of every table of the incident."""
    made = whole()
    out = io.StringIO()
    if form == "terminal":
        Console(file=out, width=240).print(render(made))
    else:
        out.write(re.sub(r"<[^>]+>", " ", render_html(made, script="")))
    shown = " ".join(out.getvalue().split())
    for table in incident_sections(made, made.incidents[0]):
        assert table.title in shown
        for value in (cell for row in table.rows for cell in row):
            assert " ".join(value.split()) in shown, (table.key, value)


def test_a_fleets_page_has_no_totals_that_count_drills() -> None:
    """They would stand beside figures that leave drills out; the other two kinds have them."""
    made = whole()
    has = {kind: 'id="totals"' in render_html(made, kind=kind, script="") for kind in ("full", "fleet", "summary")}
    assert has == {"full": True, "fleet": False, "summary": True}


def test_one_incident_gives_no_advice_on_intervals() -> None:
    """How often the job fails is not told by one of its incidents."""
    made = whole()
    made.series["7"].checkpoints = [Point(111.0, 10), Point(119.0, 20)]
    assert intervals(made).rows == ()
    made.incident = ""
    assert len(intervals(made).rows) == 1

"""Every form of a report shows the same facts, and text from outside stays text."""

from __future__ import annotations

import io
import json
import re

from rich.console import Console

from holdfast.model.cluster import JobKey, JobView
from holdfast.model.evidence import Diagnosis, Domain
from holdfast.model.records import AttemptRecord, IncidentRecord, JobRecord, Mark
from holdfast.ports import Sample
from holdfast.report.gather import ReportData, one_rank
from holdfast.report.html import render_html, render_markdown
from holdfast.report.json_form import render_json
from holdfast.report.plots import loss_plot, step_plot
from holdfast.report.series import JobSeries, Point
from holdfast.report.tables import Section, offsets, seconds
from holdfast.report.terminal import ROWS_MAX, render, section_table

HOSTILE = "</script><img src=x onerror=alert(1)> [red]x[/red] |*_`"
KEY = JobKey("lab", "7")
NOW = 1_800_000_000.0


def report() -> ReportData:
    incident = IncidentRecord(
        id="i-1",
        opened_at=NOW + 50,
        jobs=[KEY],
        attempt_before=0,
        step_before=41,
        step_resumed=30,
        outcome="recovered",
        closed_at=NOW + 70,
        diagnosis=Diagnosis(
            cause="exit.signal.11",
            domain=Domain.APPLICATION,
            summary=HOSTILE,
            ranks=(2,),
            nodes=("node03",),
            story=HOSTILE,
        ),
        marks={Mark.FAULT: NOW + 50, Mark.DETECTED: NOW + 50.042, Mark.FIRST_STEP: NOW + 52, Mark.PROVEN: NOW + 60},
        story=[HOSTILE, "The attempt was started again."],
    )
    job = JobRecord(
        key=KEY,
        view=JobView(KEY, name=HOSTILE),
        attempts=[
            AttemptRecord(0, started_at=NOW, first_step_at=NOW + 2, first_step=1, last_step=41, ended_at=NOW + 50.1),
            AttemptRecord(
                1, started_at=NOW + 51, first_step_at=NOW + 52, first_step=31, last_step=80, ended_at=NOW + 90
            ),
        ],
    )
    series = JobSeries(
        steps={0: [Point(NOW + 2, 1), Point(NOW + 50, 41)], 1: [Point(NOW + 52, 31), Point(NOW + 90, 80)]},
        losses={0: [Point(1, 3.2), Point(41, 2.5)], 1: [Point(31, 2.6), Point(80, 2.0)]},
        checkpoints=[Point(NOW + 40, 30), Point(NOW + 60, 40)],
    )
    return ReportData(
        "Drill report",
        "lab",
        NOW + 91,
        [job],
        [],
        [incident],
        {"7": series},
        [Point(1, 3.2), Point(80, 2.0)],
        [HOSTILE],
    )


def test_html_stands_alone_and_escapes() -> None:
    """No reference leaves the file, and hostile text is neither tag nor script."""
    page = render_html(report(), script="/* plotly */")
    assert "<img" not in page
    assert page.count("</script>") == 2
    assert re.findall(r"(?:src|href)\s*=\s*[\"']?(?:https?:)?//", page) == []
    assert "+0.042" in page
    assert "11" in page


def test_html_brings_plotly_along() -> None:
    """The packaged script is inside, so the page opens without a network."""
    assert len(render_html(report())) > 1_000_000


def test_json_form_is_stable() -> None:
    """Top-level fields and an incident's fields are exactly the documented ones."""
    form = json.loads(render_json(report()))
    assert sorted(form) == [
        "alerts",
        "cluster",
        "convergence",
        "executive_summary",
        "fleet",
        "incidents",
        "intervals",
        "jobs",
        "made_at",
        "notes",
        "objectives",
        "proposals",
        "throughput",
        "title",
        "totals",
        "training",
        "version",
    ]
    incident = form["incidents"][0]
    assert (incident["cause"], incident["lost_steps"], incident["suspects"]["ranks"]) == ("exit.signal.11", 11, [2])
    assert [p["name"] for p in incident["phases"]] == ["detect", "first step", "prove"]


def test_markdown_escapes_what_comes_from_outside() -> None:
    """No raw markup from a log line, and one row per figure."""
    text = render_markdown(report())
    assert "<img" not in text.replace("\\<img", "")
    assert "| MTTD | 0.042 s (n=1, p95 0.042 s) |" in text


def test_terminal_fits_80_columns_and_reads_no_markup() -> None:
    """Rich markup in a story is shown as it is, and no line is wider than the terminal."""
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(render(report()))
    text = console.export_text()
    assert "[red]x[/red]" in text
    assert max(len(line) for line in text.splitlines()) <= 80


def test_plots_hold_the_series_and_mark_the_incident() -> None:
    """A line per attempt, checkpoints as marks, a band from fault to first step."""
    figure = step_plot(report(), "7")
    assert [t["name"] for t in figure["data"]] == ["7(0)", "7(1)", "durable checkpoint"]
    assert (figure["layout"]["shapes"][0]["x0"], figure["layout"]["shapes"][0]["x1"]) == (
        (NOW + 50) * 1000,
        (NOW + 52) * 1000,
    )
    assert [t["name"] for t in loss_plot(report(), "7")["data"]] == ["undisturbed run", "7(0)", "7(1)"]


def test_an_empty_report_can_be_shown_in_every_form() -> None:
    """Nothing happened: still a report."""
    empty = ReportData("Empty", "lab", NOW)
    assert "None." in render_html(empty, script="")
    assert json.loads(render_json(empty))["incidents"] == []
    assert "incidents" in render_markdown(empty)
    Console(width=80, file=io.StringIO()).print(render(empty))


def test_offsets_show_a_dash_for_what_is_not_known() -> None:
    """A missing mark is not zero."""
    assert dict(offsets(report().incidents[0]))["isolated"] == "-"
    assert [seconds(v) for v in (None, 0.0421, 1.26, 125, 7380)] == [
        "-",
        "0.042 s",
        "1.3 s",
        "2 min 05 s",
        "2 h 03 min",
    ]


def test_a_plot_follows_one_rank() -> None:
    """All ranks go through the same steps: the job's own series comes first, then the lowest rank's."""
    of_ranks = [Sample("step", f"job:7(0)/rank:{rank}", NOW + rank, 3.0) for rank in (10, 2, 1)]
    assert [s.subject for s in one_rank(of_ranks)] == ["job:7(0)/rank:1"]
    assert one_rank([*of_ranks, Sample("step", "job:7(0)", NOW, 3.0)])[0].subject == "job:7(0)"
    assert one_rank([]) == []


def test_a_terminal_cuts_a_long_table_and_says_where_the_rest_is() -> None:
    """The first sixty rows, of weeks the newest; all of them stand in the other forms."""
    rows = tuple((f"row{n:03d}",) for n in range(1, 101))
    for key, first, last in (("causes", "row001", "row060"), ("weeks", "row041", "row100")):
        out = io.StringIO()
        Console(file=out, width=100).print(section_table(Section(key, "T", "", ("name",), rows)))
        assert re.findall(r"row\d+", out.getvalue())[:: ROWS_MAX - 1] == [first, last]
        assert "40 rows more" in out.getvalue()

"""`holdfast report`: kinds, comparison, prices, CSV and PDF; and what it says of a journal that is not whole."""

from __future__ import annotations

import csv
import io
import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from journal_with_history import NOW, make, records

from conftest import Holdfast, Ran
from holdfast.adapters.journal.version import HEAD
from holdfast.cli import pdf

Report = Callable[..., Ran]


@pytest.fixture
def report(holdfast: Holdfast, journal: Path) -> Report:
    return lambda *argv: holdfast("report", "--journal", journal, *argv, columns=160)


def test_the_fleets_figures_in_a_terminal(report: Report) -> None:
    """One failure, cause and domain by name, the arithmetic of the cost, published fleets beside it."""
    ran = report("--kind", "fleet")
    assert (ran.code, ran.err) == (0, "")
    for part in (
        "Holdfast fleet report",
        "exit.signal.11",
        "application",
        "Meta RSC-1",
        "no price given",
        "each against 30 min",
    ):
        assert part in ran.out, part


def test_prices_become_money(report: Report) -> None:
    """`--gpu-hour`, `--person-minutes`, `--spare-nodes`: saved hours are those that a person would have taken longer."""
    form = json.loads(
        report("--kind", "fleet", "--gpu-hour", "2.5", "--person-minutes", "60", "--spare-nodes", "3", "--json").out
    )
    cost = form["fleet"]["cost"]
    # One recovery of three seconds on three nodes whose GPUs are not known: each counts as one.
    assert cost["saved"] == pytest.approx((3600 - 3) * 3 / 3600)
    assert cost["saved_money"] == pytest.approx(2.5 * cost["saved"])
    assert cost["spares_money"] == pytest.approx(2.5 * cost["spares"])


def test_a_span_is_set_beside_the_one_before(report: Report) -> None:
    """`--compare` adds a column; with nothing in the former span chance is named."""
    ran = report("--kind", "fleet", "--last", "250s", "--compare")
    assert "span before" in ran.out
    assert "1 failures after 0 in the span before: chance explains" in " ".join(ran.out.split())


def test_the_summary_is_short(report: Report) -> None:
    """What ran and which objectives were met: fits on a page."""
    ran = report("--kind", "summary")
    assert "What was run" in ran.out
    assert len(ran.out.splitlines()) < 66


def test_a_prometheus_that_is_away_costs_the_summary_only_its_alerts(report: Report) -> None:
    """`[report] prometheus` that does not answer is a note; `--prometheus` that does not is an error. No password."""
    url = "http://me:s3cr3t@127.0.0.1:1"
    Path("h.toml").write_text(f'[report]\nprometheus = "{url}"\n')
    ran = report("--kind", "summary", "--config", "h.toml", "--json")
    assert (ran.code, ran.err) == (0, "")
    form = json.loads(ran.out)
    assert form["alerts"] is None
    assert [note for note in form["notes"] if "[report] prometheus http://127.0.0.1:1: no answer" in note]
    assert "The alerts are not measured" in report("--kind", "summary", "--config", "h.toml").out
    asked = report("--kind", "summary", "--prometheus", url)
    assert (asked.code, "--prometheus http://127.0.0.1:1: no answer" in asked.sentence) == (69, True)
    assert "s3cr3t" not in ran.out + asked.out + asked.err


def test_objectives_come_from_a_policy_file(report: Report) -> None:
    """`--policy FILE`: its `[slo]` is judged; a file with a mistake is one sentence with its line."""
    Path("p.toml").write_text("[slo]\ndetect_s = 0.05\nrecover_s = 60\n")
    verdicts = {
        v["objective"]: v["verdict"] for v in json.loads(report("--policy", "p.toml", "--json").out)["objectives"]
    }
    assert verdicts == {"detect": "FAIL", "recover": "PASS"}
    Path("p.toml").write_text("[slo]\ndetct_s = 1\n")
    ran = report("--policy", "p.toml")
    assert (ran.code, "p.toml:2" in ran.sentence) == (78, True)


def test_csv_by_suffix_and_by_name(report: Report) -> None:
    """One row for each incident; for a fleet the rows of its tables."""
    assert report("-o", "r.csv").code == 0
    rows = list(csv.DictReader(io.StringIO(Path("r.csv").read_text(encoding="utf-8"))))
    assert [row["incident"] for row in rows] == ["i-1", "i-2"]
    assert float(rows[0]["detected_at"]) - float(rows[0]["fault_at"]) == pytest.approx(0.1)
    fleet = list(csv.reader(io.StringIO(report("--kind", "fleet", "--format", "csv").out)))
    assert {row[0] for row in fleet} >= {"section", "fleet", "causes", "cost"}


def test_a_pdf_is_printed_by_a_real_browser(report: Report) -> None:
    """Where a Chromium is installed it prints the page; where none is, the sentence names what is missing."""
    ran = report("-o", "r.pdf")
    if any(shutil.which(name) for name in pdf.BROWSERS):
        assert (ran.code, ran.err) == (0, "r.pdf\n")
        made = Path("r.pdf").read_bytes()
        assert made.startswith(b"%PDF-")
        assert made.count(b"/Type /Page\n") + made.count(b"/Type /Page ") >= 1
    else:
        assert ran.code == 2
        assert "is printed by a browser" in ran.sentence


def test_without_a_browser_a_pdf_is_one_sentence(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sentence names the browsers that would do."""
    monkeypatch.setattr(pdf, "BROWSERS", ("no-such-browser",))
    ran = report("-o", "r.pdf")
    assert (ran.code, "none of no-such-browser is installed" in ran.sentence) == (2, True)


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        (["--compare"], "--compare needs --last TIME"),
        (["--format", "pdf"], "a PDF goes to a file: give -o FILE.pdf"),
        (["--incident", "i-3"], 'no incident "i-3"'),
        (["--job", "1777"], 'no job "1777"'),
        (["--policy", "no.toml"], "no.toml"),
    ],
)
def test_what_does_not_fit_is_one_sentence(argv: list[str], part: str, report: Report) -> None:
    """Each names the option or the thing that is missing."""
    ran = report(*argv)
    assert ran.code != 0
    assert part in ran.sentence


@pytest.mark.parametrize(
    "argv", [["--gpu-hour", "-1"], ["--gpu-hour", "dear"], ["--kind", "flet"], ["--spare-nodes", "-2"]]
)
def test_values_out_of_range_are_usage_errors(argv: list[str], report: Report) -> None:
    """The option is named, and the exit code is that of a wrong call."""
    ran = report(*argv)
    assert ran.code == 2
    assert argv[0] in ran.err


# --- an incident's lines, and others like it ---


def test_a_merged_timeline_as_table_and_json(holdfast: Holdfast, journal: Path) -> None:
    """Every event of the incident's job by one clock; `--only` narrows by source or kind."""
    form = json.loads(holdfast("incident", "i-2", "--timeline", "--journal", journal, "--json").out)
    assert (form["version"], form["incident"]) == (1, "i-2")
    shown = holdfast("incident", "i-1", "--timeline", "--journal", journal)
    assert shown.code == 0
    none = json.loads(holdfast("incident", "i-1", "--timeline", "--only", "agent", "--journal", journal, "--json").out)
    assert none["lines"] == []


@pytest.mark.parametrize("suffix", ["csv", "json", "md"])
def test_a_timeline_is_exported(suffix: str, holdfast: Holdfast, tmp_path: Path) -> None:
    """All lines go to the file, in the form that its suffix names."""
    journal = make(tmp_path / "then.db", records(), at=NOW - 170)
    path = tmp_path / f"lines.{suffix}"
    ran = holdfast("incident", "i-1", "--timeline", "-o", path, "--zone", "Asia/Tokyo", "--journal", journal)
    assert (ran.code, ran.out) == (0, "")
    count = len(json.loads(holdfast("incident", "i-1", "--timeline", "--json", "--journal", journal).out)["lines"])
    text = path.read_bytes().decode()
    found = {"json": text.count('"seq":'), "csv": text.count("\r\n") - 1, "md": text.count(" JST ")}[suffix]
    assert found == count > 0


def test_others_like_it(holdfast: Holdfast, tmp_path: Path) -> None:
    """The same cause a day before is found with what was tried and how long it took."""
    touched = records()
    earlier = records().incidents[0]
    earlier.id, earlier.opened_at = "i-0", NOW - 86400
    touched.incidents.append(earlier)
    path = make(tmp_path / "more.db", touched)
    form = json.loads(holdfast("incident", "i-1", "--similar", "--journal", path, "--json").out)
    assert [(one["incident"], one["remedies"], one["outcome"]) for one in form["similar"]] == [
        ("i-0", ["restart_in_place"], "recovered")
    ]
    assert form["similar"][0]["recovered_s"] == pytest.approx(3.0)
    assert "i-0" in holdfast("incident", "i-1", "--similar", "--journal", path).out
    assert "Nothing like it is known." in holdfast("incident", "i-2", "--similar", "--journal", path).out


@pytest.mark.parametrize(
    ("argv", "part"),
    [
        (["i-1", "--timeline", "--similar"], "two views"),
        (["i-1", "--only", "agent"], "--only narrows --timeline"),
        (["i-1", "-o", "x.csv"], "-o and --zone are for --timeline"),
        (["i-1", "--timeline", "-o", "x.txt"], "ends in .csv, .json or .md"),
        (["i-1", "--timeline", "-o", "/nowhere/x.md"], "cannot write /nowhere/x.md"),
        (["i-1", "--timeline", "--zone", "Mars"], '"Mars" is no time zone'),
        (["i-7", "--timeline"], 'no incident "i-7"'),
    ],
)
def test_views_of_an_incident_that_do_not_fit(argv: list[str], part: str, holdfast: Holdfast, journal: Path) -> None:
    """One sentence."""
    ran = holdfast("incident", *argv, "--journal", journal)
    assert ran.code != 0
    assert part in ran.sentence


# --- journals that are not whole ---


def test_a_damaged_journal_still_gives_a_report(holdfast: Holdfast, journal: Path, tmp_path: Path) -> None:
    """The node table is torn: incidents are reported, the loss is named in the report and beside every other view."""
    path = tmp_path / "damaged.db"
    shutil.copy(journal, path)
    with sqlite3.connect(path) as connection:
        page = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'nodes'").fetchone()[0]
    connection.close()
    with path.open("r+b") as file:
        file.seek((page - 1) * 4096)
        file.write(b"\x55" * 4096)
    ran = holdfast("report", "--journal", path, "--json")
    assert (ran.code, ran.err) == (0, "")
    form = json.loads(ran.out)
    assert [incident["id"] for incident in form["incidents"]] == ["i-1", "i-2"]
    assert any("nodes could" in note for note in form["notes"]), form["notes"]
    assert "nodes could" in holdfast("report", "--journal", path, "--kind", "fleet", columns=200).out
    seen = holdfast("nodes", "--journal", path)
    assert (seen.code, seen.sentence.startswith("The journal is damaged")) == (0, True)
    spoken = holdfast("report", "--journal", path, "--language", "ja", "--format", "md").out
    [told] = [line for line in spoken.splitlines() if line.startswith(">")]
    assert told.startswith("> 注: ジャーナルが損傷: nodes")
    assert told.endswith(("読めなかった。", "不明。"))


def test_a_journal_that_is_being_written_says_so(holdfast: Holdfast, tmp_path: Path) -> None:
    """The lease is alive: the report names its holder and the event up to which it knows."""
    path = make(tmp_path / "live.db")
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE lease SET holder = 'controller@mgmt', expires = ?", (NOW + 5,))
    connection.close()
    notes = json.loads(holdfast("report", "--journal", path, "--json").out)["notes"]
    assert notes == ["controller@mgmt is writing this journal: all of this is as of event 1."]


def test_an_older_journal_is_reported_and_left_as_it_is(holdfast: Holdfast, tmp_path: Path) -> None:
    """Without the series store plots are missing, and that is said; the file is not upgraded."""
    path = make(tmp_path / "old.db")
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '0000'")
        connection.execute("DROP TABLE samples")
    connection.close()
    before = path.read_bytes()
    form = json.loads(holdfast("report", "--journal", path, "--json").out)
    assert form["totals"]["mttd"]["n"] == 1
    assert [note.split(",")[0] for note in form["notes"]] == [
        f"The journal is of the older version 0000 (here: {HEAD})",
        "The journal has no samples: what rests on them is not in this report.",
    ]
    assert path.read_bytes() == before


# --- following a figure, language, zone, templates ---


def test_a_figure_is_followed_to_its_events(report: Report) -> None:
    """`--trace`: formula, arithmetic, each mark with its time; the JSON form is the documented one."""
    ran = report("--trace", "mttr", "--zone", "Asia/Tokyo")
    assert (ran.code, ran.err) == (0, "")
    for part in ("MTTR = 3 s", "(3.000) / 1 = 3.000 s", "i-1", "first_step", "JST"):
        assert part in ran.out, part
    form = json.loads(report("--trace", "lost-steps", "--json").out)
    assert set(form) == {"version", "figure", "value", "unit", "formula", "arithmetic", "parts"}
    assert (form["figure"], form["value"]) == ("lost steps", 30.0)


def test_a_report_in_japanese_with_local_times(report: Report) -> None:
    """`--language ja --zone Asia/Tokyo`, in the terminal and on the page."""
    ran = report("--kind", "fleet", "--language", "ja", "--zone", "Asia/Tokyo")
    assert ran.code == 0
    assert "原因別の障害" in ran.out
    assert report("--language", "ja", "-o", "r.html").code == 0
    assert '<html lang="ja">' in Path("r.html").read_text(encoding="utf-8")


def test_a_sites_settings_hold_where_no_option_is_given(report: Report) -> None:
    """`[report]` of holdfast.toml; an option wins over it."""
    Path("own").mkdir()
    Path("own/report.md").write_text("{{ data.made_at | time }} {{ t('Totals') }}")
    Path("holdfast.toml").write_text('[report]\nzone = "Asia/Tokyo"\nlanguage = "ja"\ntemplates = "own"\n')
    assert report("--format", "md").out.strip() == "2027-01-15 17:05:00.000 JST 合計"
    assert (
        report("--format", "md", "--zone", "UTC", "--language", "en").out.strip()
        == "2027-01-15 08:05:00.000 UTC Totals"
    )


@pytest.mark.parametrize(
    ("argv", "code", "part"),
    [
        (["--trace", "MTTX"], 2, '--trace "MTTX" is no figure that can be followed; did you mean "MTT'),
        (["--trace", "MTTR", "-o", "t.html"], 2, "--trace prints to the terminal"),
        (["--zone", "Asia/Tokio"], 2, '--zone "Asia/Tokio" is no time zone; did you mean "Asia/Tokyo"?'),
        (["--zone", "../x"], 2, "is no time zone"),
        (["--language", "de"], 2, '--language "de" is not known here: write en or ja'),
        (["--format", "md", "--templates", "nowhere"], 78, "nowhere: there is no such folder of templates"),
    ],
)
def test_wrong_words_are_one_sentence(argv: list[str], code: int, part: str, report: Report) -> None:
    """Each names the option and the nearest right word."""
    ran = report(*argv)
    assert ran.code == code
    assert part in ran.sentence


def test_a_broken_template_names_file_and_line(report: Report) -> None:
    """One sentence, nothing is written."""
    Path("own").mkdir()
    Path("own/report.html").write_text("<p>\n{% for %}\n")
    ran = report("--templates", "own", "-o", "r.html")
    assert (ran.code, Path("r.html").exists()) == (78, False)
    assert ran.sentence.startswith("own/report.html:2: ")

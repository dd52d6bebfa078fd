"""Language and zone: every fixed word of a report has a Japanese form, and times stand in the chosen zone."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from tests.report.histories import BEGIN
from tests.report.test_fleet import data
from tests.report.test_forms import report
from tests.report.test_interval import advice
from tests.report.test_recorded import Raw
from tests.report.test_recorded_series import Recorded

import holdfast.report
from holdfast.errors import ConfigError
from holdfast.model.policy import Slo
from holdfast.model.records import PHASE_MARKS
from holdfast.report import sections as of
from holdfast.report.definitions import DEFINITIONS
from holdfast.report.gather import ReportData, gather
from holdfast.report.html import render_html, render_markdown
from holdfast.report.proposals import RULES, SPEEDUPS
from holdfast.report.sections import KINDS
from holdfast.report.single import incident_sections
from holdfast.report.tables import total_rows
from holdfast.report.timeline import PHASE_NAMES
from holdfast.report.words import COUNTS, JAPANESE, STORY, Words

JA = Words("ja", "Asia/Tokyo")
ROOT = Path(holdfast.report.__file__).parents[1]


def recorded(name: str) -> ReportData:
    """A recorded history as `gather` reads it."""
    raw = Raw(name)
    since, now = raw.lines[0]["at"], raw.lines[-1]["at"] + 1
    return asyncio.run(gather(Recorded(raw), title="Holdfast report", cluster="lab", now=now, since=since))


TEMPLATES = Path(of.__file__).parent / "templates"
SAME = {"", "MTTD", "MTTR", "MTTP", "MTBF", "ETTR", "ETTR [%]"}
"""Symbols that the field writes alike everywhere."""


def is_japanese(text: str) -> bool:
    return bool(re.search(r"[\u3040-\u30ff\u4e00-\u9fff]", text)) or text in SAME


def rich_data() -> ReportData:
    made = data(1)
    made.slo = Slo(detect_s=1, recover_s=60, availability=99.9, performance_loss=5)
    made.former = data(2, incidents=80)
    return made


def test_every_heading_title_and_introduction_has_a_japanese_form() -> None:
    """All tables of all kinds, and those of single incidents: no English word is left at their head."""
    made = rich_data()
    tables = [make(made) for makers in KINDS.values() for make in makers]
    tables += [table for incident in report().incidents for table in incident_sections(report(), incident)]
    for table in tables:
        for text in (table.title, *table.headings, table.intro):
            assert is_japanese(JA.say(text)), (table.key, text)


def test_every_fixed_label_and_verdict_has_a_japanese_form() -> None:
    """Labels of the overview, the summary, cost, totals, marks, phases, verdicts, outcomes, meanings."""
    made = rich_data()
    labels = [row[0] for make in (of.overview, of.ran, of.money) for row in make(made).rows]
    labels += [row[0] for row in total_rows(made.totals)] + [row[2] for row in total_rows(made.totals)]
    labels += [
        *(mark.value.replace("_", " ") for mark in PHASE_MARKS),
        *PHASE_NAMES.values(),
        *SPEEDUPS.values(),
        *of.MISSION_CONTROL.values(),
    ]
    labels += ["PASS", "FAIL", "no data", "recovered", "given_up", "cancelled", "observed", "open"]
    labels += [entry.name for entry in DEFINITIONS if entry.symbol in {"MTTD", "MTTR", "MTTP", "MTBF", "ETTR"}]
    labels += [proposal.what for proposal in made.proposals] + [proposal.evidence for proposal in made.proposals]
    labels += [verdict.arithmetic for verdict in made.verdicts if not verdict.arithmetic.startswith("p95")]
    for label in labels:
        if label != "GPUs":
            assert is_japanese(JA.say(label)), label


@pytest.mark.parametrize("drill", ["", "xid"])
@pytest.mark.parametrize("every_s", [10.0, 60.0, 400.0])
def test_advice_on_intervals_has_a_japanese_form(every_s: float, drill: str) -> None:
    """Too often, about right, too rarely; with and without drills: no English sentence is left, all figures are."""
    text = advice(every_s=every_s, drill=drill).says
    got = JA.say(text)
    assert is_japanese(got)
    assert not re.search(r"[a-z]{4,}", got), got
    assert sorted(re.findall(r"\d+", text)) == sorted(re.findall(r"\d+", got))


def test_every_word_of_the_templates_has_a_japanese_form() -> None:
    """Whatever a shipped template says with t("...") is in the table."""
    for path in TEMPLATES.iterdir():
        for text in re.findall(r'\bt\("([^"]+)"\)', path.read_text(encoding="utf-8")):
            assert text in JAPANESE, (path.name, text)


def test_figures_survive_translation() -> None:
    """Every number of a sentence stands in its Japanese form, too."""
    for table in (make(rich_data()) for makers in KINDS.values() for make in makers):
        for text in (table.intro, *(value for row in table.rows for value in row)):
            assert sorted(re.findall(r"\d+", text)) == sorted(re.findall(r"\d+", JA.say(text))), text


def test_the_whole_report_in_japanese() -> None:
    """The page says its language; headings, totals and verdicts are Japanese, words from the journal stay."""
    made = report()
    made.words = JA
    page = render_html(made, script="")
    assert '<html lang="ja">' in page
    for part in ("合計", "インシデント", "検知", "exit.signal.11" if "exit.signal.11" in page else "node03"):
        assert part in page
    assert "17:00" in page
    assert "17:00:50" in render_markdown(made)


def test_what_could_not_be_read_is_said_in_japanese() -> None:
    """Every sentence that the journal's readers and the report's command have for it; names and reasons stay."""
    sources = [ROOT / "adapters/journal" / name for name in ("reading.py", "reading_postgres.py")]
    sources += [ROOT / "cli" / name for name in ("records.py", "report.py", "report_alerts.py")]
    literals = [text for path in sources for text in re.findall(r'f?"([^"]*)"', path.read_text(encoding="utf-8"))]
    said = [text for text in literals if re.match(r"(The journal|Of the samples|Only the newest|The alerts)\b", text)]
    said += [text for text in literals if re.search(r"is writing this|newest snapshot are|left out: \{", text)]
    assert len(said) >= 12
    for template in said:
        filled = re.sub(r"\{(age|table|name|shown|holder|error)\}", "older", template)
        note = re.sub(r"\{[^}]*\}", "7", filled)
        told = JA.say(f"Note: {note}")
        assert told.startswith("注: "), note
        assert set(english(told.replace("older", ""))) <= {"journal"}, told
        assert sorted(re.findall(r"\d+", note)) == sorted(re.findall(r"\d+", told)), told


NOT_TRANSLATED = re.compile(
    r"https?://\S+|arXiv|docs/reports\.md|--\w+( URL| full)?|`[^`]*`|\[\w+\] ?\w*|waits\.\w+|[\w]+[-_.]\w[\w.-]*"  # places, names, options
    r"|(tokens|samples|steps)/s|\bmin\b|Holdfast|Prometheus|Google|Mission Control|badput|node\d+"
)
"""Names, rules, sources, options, units: as the field writes them everywhere."""

RULES_AND_CLUSTERS = {rule.name for rule in RULES} | {"lab", "sim"}


def english(text: str) -> list[str]:
    """Words of a Japanese text that are neither names nor units."""
    return [
        word for word in re.findall(r"\b[a-z]{3,}\b", NOT_TRANSLATED.sub("", text)) if word not in RULES_AND_CLUSTERS
    ]


@pytest.mark.parametrize("name", ["embedded-drills", "slurm-drills", "a year"])
def test_no_value_of_a_recorded_history_stays_english(name: str) -> None:
    """Every cell of every table of every kind, and of each incident, but for names, rules, sources and units."""
    made = rich_data() if name == "a year" else recorded(name)
    made.slo = Slo(detect_s=1, recover_s=3, availability=99.9, performance_loss=5)
    tables = [make(made) for makers in KINDS.values() for make in makers]
    tables += [table for incident in made.incidents[:20] for table in incident_sections(made, incident)]
    for table in tables:
        if table.key == "published" or table.intro.startswith("Categories:"):  # the names of papers and guides
            continue
        for value in (table.intro, *(cell for row in table.rows for cell in row)):
            said = JA.say(value)
            assert not english(said), (table.key, said)


def test_a_recorded_story_is_told_in_japanese() -> None:
    """Each line has its clock in the zone; what a rule found stays, what was done about it is translated."""
    made = recorded("embedded-drills")
    seen = [re.search(r"Seen: (.+) \(", line) for incident in made.incidents for line in incident.story]
    kept = {found[1] for found in seen if found}
    assert len(kept) >= 4
    for incident in made.incidents:
        assert incident.diagnosis is not None
        for line in (
            *(JA.tell(line, incident.opened_at) for line in incident.story),
            JA.explain(incident.diagnosis.story),
        ):
            for text in kept:
                line = line.replace(text, "")  # noqa: PLW2901
            left = re.sub(r"\(node\d+, (rank|GPU|link).*?\)|\(place unknown\)|, on node\d+|rank \d+", "", line)
            assert not english(left), line
    first = made.incidents[0]
    assert [JA.tell(line, first.opened_at)[:12] for line in first.story[:1]] == [
        JA.time(first.opened_at)[11:19] + " JST"
    ]
    assert (
        Words("ja").tell("10:02:03Z Job 7(0): released without n1 and n2.", BEGIN)
        == "10:02:03Z ジョブ 7(0): n1, n2 を除いて解放。"
    )


def test_a_story_in_a_zone_keeps_its_words_in_english() -> None:
    """Only the clock moves, over midnight, too; what is no line of a story stays."""
    tokyo = Words(zone="Asia/Tokyo")
    assert tokyo.tell("15:51:04Z n1: quarantined.", BEGIN) == "00:51:04 JST n1: quarantined."
    assert Words(zone="America/New_York").tell("02:00:00Z n1: quarantined.", BEGIN) == "21:00:00 EST n1: quarantined."
    assert Words().tell("15:51:04Z n1: quarantined.", BEGIN) == "15:51:04Z n1: quarantined."
    assert tokyo.tell("anything else: no clock", BEGIN) == "anything else: no clock"


def test_every_sentence_of_a_story_and_of_a_diagnosis_has_a_japanese_form() -> None:
    """Of each template, filled with names; each pattern of a diagnosis compiles and changes what it matches."""
    for template in STORY:
        filled = re.sub(r"\{(\w+)\}", lambda found: "3" if found[1] in COUNTS else "n1", template)
        assert is_japanese(JA.tell(f"10:00:00Z {filled}", BEGIN)), template
    for told in (
        "It failed: a hardware fault. A restart helps when it leaves out n1 and n2.",
        "It failed: an error of the program. It was seen 3 times and counts as one. A restart should get past it.",
        "It failed: a person's doing. 2 further findings on 1 other rank within 0.2 s followed from it (a and b).",
        "Nothing that was seen explains the failure.",
    ):
        said = JA.explain(told)
        assert not english(said.replace("It failed", "").replace("n1 and n2", "").replace("a and b", "")), said
        assert sorted(re.findall(r"\d+", told)) == sorted(re.findall(r"\d+", said))


def test_a_text_of_colons_does_not_end_a_report() -> None:
    """A hostile line (a job's name, a person's reason) is told as it is, however often it looks like a sentence."""
    hostile = "a: " * 5000 + "{0.__class__} <b>"
    assert Words(language="ja").tell(f"18:04:07Z Job 7(0): {hostile}", 1.0e9).endswith("{0.__class__} <b>")
    assert Words(language="ja").say(hostile) == hostile


def test_times_in_a_zone() -> None:
    """The same moment in UTC, Tokyo, and New York on either side of the change of clocks."""
    assert Words().time(BEGIN) == "2023-11-14 22:13:20.000 UTC"
    assert JA.time(BEGIN) == "2023-11-15 07:13:20.000 JST"
    york = Words("en", "America/New_York")
    assert (york.offset_s(BEGIN), york.offset_s(BEGIN + 200 * 86400)) == (-18000.0, -14400.0)
    assert JA.time(0.0) == "-"


def test_the_busiest_hour_is_counted_in_the_zone() -> None:
    """Failures by hour of the day move by the zone's offset."""
    utc, tokyo = data(1), data(1)
    tokyo.words = JA
    assert tokyo.fleet.by_hour == tuple(utc.fleet.by_hour[(hour - 9) % 24] for hour in range(24))


# --- templates of a site ---


def test_a_sites_template_takes_the_place_of_the_shipped_one(tmp_path: Path) -> None:
    """One that changes a part, one that is all new; what the folder lacks is the shipped one."""
    (tmp_path / "report.md").write_text("{{ data.title }}: {{ data.totals.incidents }} of {{ data.cluster | plain }}")
    assert render_markdown(report(), templates=tmp_path) == "Drill report: 1 of lab\n"
    assert "<!doctype html>" in render_html(report(), script="", templates=tmp_path)
    (tmp_path / "base.html").write_text("ACME {% include 'shipped/report.html' %}")
    (tmp_path / "report.html").write_text("{% extends 'base.html' %}")
    assert render_html(report(), script="", templates=tmp_path).startswith("ACME <!doctype html>")


@pytest.mark.parametrize(
    ("text", "line", "part"),
    [
        ("one\n{% if %}", 2, "Expected an expression"),
        ("one\ntwo\n{{ data.titel }}", 3, "titel"),
        ("{{ nothing }}", 1, "'nothing' is undefined"),
        ("a\n\n{{ 1 / 0 }}", 3, "ZeroDivisionError"),
        ("{% include 'no.html' %}", 1, "no.html"),
        ("{{ ''.__class__.__mro__ }}", 1, "unsafe"),
        ("x\n{{ data.title | shout }}", 2, "shout"),
    ],
)
def test_a_broken_template_is_one_sentence(text: str, line: int, part: str, tmp_path: Path) -> None:
    """The file, the line, and what is wrong there."""
    (tmp_path / "report.md").write_text(text)
    with pytest.raises(ConfigError) as caught:
        render_markdown(report(), templates=tmp_path)
    said = str(caught.value)
    assert said.startswith(f"{tmp_path / 'report.md'}:{line}: ")
    assert part in said
    assert "\n" not in said

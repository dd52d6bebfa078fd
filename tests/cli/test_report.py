"""`holdfast report`: every form, from the journal of a dead controller, with the right refusals."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest

from conftest import Holdfast
from holdfast.cli.report import parse_last, parse_month
from holdfast.errors import UsageError
from holdfast.report.words import Words


@pytest.fixture
def dead_cluster(journal: Path, tmp_path: Path) -> Path:
    """A cluster's folder whose controller was killed: its journal is there, nobody answers."""
    folder = tmp_path / "lab"
    (folder / "controller").mkdir(parents=True)
    shutil.copy(journal, folder / "controller" / "journal.db")
    (folder / "controller" / "controller.json").write_text('{"url": "http://127.0.0.1:1", "pid": 1}')
    return folder


def test_a_dead_controllers_folder_is_enough(holdfast: Holdfast, dead_cluster: Path) -> None:
    """`--dir` reads the journal itself; the figures are those of `--journal`."""
    ran = holdfast("report", "--dir", dead_cluster, "--json")
    assert (ran.code, ran.err) == (0, "")
    found = json.loads(ran.out)
    assert (found["cluster"], found["version"]) == ("lab", 1)
    assert [incident["id"] for incident in found["incidents"]] == ["i-1", "i-2"]
    assert found["totals"]["mttd"]["mean"] == pytest.approx(0.1)
    of_file = holdfast("report", "--journal", dead_cluster / "controller" / "journal.db", "--format", "json")
    assert json.loads(of_file.out) == found


@pytest.mark.parametrize(
    ("name", "begins"),
    [("r.html", "<!doctype html>"), ("r.md", "# Holdfast report"), ("r.json", "{"), ("r.txt", "Holdfast report")],
)
def test_the_suffix_names_the_form(name: str, begins: str, holdfast: Holdfast, dead_cluster: Path) -> None:
    """`-o FILE` writes the form that its suffix says, and says where to standard error only."""
    ran = holdfast("report", "--dir", dead_cluster, "-o", name)
    assert (ran.code, ran.out, ran.err) == (0, "", f"{name}\n")
    text = Path(name).read_text(encoding="utf-8")
    assert text.lower().startswith(begins.lower())
    assert "exit.signal.11" in text or "segmentation fault" in text
    assert "\x1b" not in text or name == "r.html"


def test_format_wins_over_the_suffix(holdfast: Holdfast, dead_cluster: Path) -> None:
    """`--format md -o r.txt` writes Markdown."""
    assert holdfast("report", "--dir", dead_cluster, "--format", "md", "-o", "r.txt").code == 0
    assert Path("r.txt").read_text().startswith("# Holdfast report")


def test_a_report_narrows_to_job_incident_and_time(holdfast: Holdfast, dead_cluster: Path) -> None:
    """`--job`, `--incident`, `--last`."""

    def incidents(*options: str) -> list[str]:
        found = json.loads(holdfast("report", "--dir", dead_cluster, "--json", *options).out)
        return [incident["id"] for incident in found["incidents"]]

    assert incidents("--job", "1779") == []
    assert incidents("--job", "1778") == ["i-1", "i-2"]
    assert incidents("--job", "1778(1)") == ["i-1", "i-2"]  # as notices and `holdfast job` have it
    assert incidents("--incident", "i-1") == ["i-1"]
    assert incidents("--last", "80s") == ["i-2"]
    assert incidents("--last", "1h") == ["i-1", "i-2"]


@pytest.mark.parametrize(
    ("argv", "code", "part"),
    [
        (["--last", "3x"], 2, '--last "3x" is not a time: write a number and s, m, h, d or w, such as 30d'),
        (["--month", "26-11"], 2, '--month "26-11" is not a month: write year and month, such as 2026-11'),
        (["--month", "2026-11", "--last", "3d"], 2, "--last and --month name two spans: give one of them"),
        (["--last", "0d"], 2, '--last "0d" is not a time'),
        (["--json", "--format", "md"], 2, "--json and --format md name two forms"),
        (["-o", "no/such/folder.md"], 2, "cannot write no/such/folder.md: No such file or directory"),
        (["--url", "http://127.0.0.1:1"], 2, "name different sources"),
    ],
)
def test_what_does_not_fit_is_one_sentence(
    argv: list[str], code: int, part: str, holdfast: Holdfast, dead_cluster: Path
) -> None:
    """Each names the option and the fix."""
    ran = holdfast("report", "--dir", dead_cluster, *argv)
    assert ran.code == code
    assert part in ran.sentence


def test_a_folder_that_is_not_there(holdfast: Holdfast) -> None:
    """Exit code 1; with a folder that no controller ran in, 69."""
    assert holdfast("report", "--dir", "no").sentence == "--dir: there is no folder no"
    assert holdfast("report", "--dir", ".").code == 69


def test_a_month_is_one_of_the_reports_zone() -> None:
    """It ends where the next one begins, also over a change of clocks; the current one has no end yet."""
    now = datetime(2026, 11, 25, tzinfo=UTC).timestamp()
    tokyo, york = Words("ja", "Asia/Tokyo"), Words("en", "America/New_York")

    def said(text: str, words: Words, back: int = 0) -> list[str]:
        return [
            f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H}" if at else "now"
            for at in parse_month(text, words, now, back=back)
        ]

    assert said("2026-10", Words()) == ["2026-10-01 00", "2026-11-01 00"]
    assert said("2026-10", tokyo) == ["2026-09-30 15", "2026-10-31 15"]
    assert said("2026-11", york) == ["2026-11-01 04", "now"]
    assert said("2026-01", Words(), back=1) == ["2025-12-01 00", "2026-01-01 00"]


def test_times() -> None:
    """Seconds, minutes, hours, days, weeks."""
    assert [parse_last(text) for text in ("90s", "45m", "12h", "30d", "4w")] == [90, 2700, 43200, 2592000, 2419200]
    for wrong in ("", "d", "-3d", "3 d", "3.5h", "99999999d", "3D"):
        with pytest.raises(UsageError):
            parse_last(wrong)

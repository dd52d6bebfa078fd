"""A run of the calendar whose process was killed: the cluster's report names it, and what it had injected."""

from __future__ import annotations

import json
from pathlib import Path

from holdfast.cli.report import drills_cut_short
from holdfast.model.cluster import JobKey
from holdfast.model.events import DrillFired
from holdfast.report.gather import ReportData
from holdfast.report.words import Words

CALENDAR = '[[drill.schedule]]\nname = "nightly"\ndrills = ["kill9"]\nat = "03:00"\nlimit_min = 60\n'
BEGAN = 1_763_607_600.0  # 20 November 2025, 03:00 UTC


def report(*drills: str, at: float = BEGAN + 60) -> ReportData:
    key = JobKey("lab", "7")
    fired = [DrillFired(id=f"d{n}", at=at, drill=name, kind=name, job=key) for n, name in enumerate(drills)]
    return ReportData("t", "lab", BEGAN + 1e5, events=list(fired))


def folder_of(tmp_path: Path) -> tuple[Path, Path]:
    """(configuration, folder of the one run, empty as a killed process leaves it)."""
    config = tmp_path / "holdfast.toml"
    config.write_text(CALENDAR + f"[drill]\nresults = {json.dumps(str(tmp_path / 'results'))}\n")
    folder = tmp_path / "results" / "nightly" / "20251120T030000Z"
    folder.mkdir(parents=True)
    return config, folder


def test_a_killed_run_is_told(tmp_path: Path) -> None:
    """After its limit, with what it had injected; in Japanese, too."""
    config, _ = folder_of(tmp_path)
    [note] = drills_cut_short(config, report("1-kill9", "2-xid"), BEGAN + 7200)
    assert note == (
        "Drill run nightly of 2025-11-20 03:00:00.000 UTC did not come to its end (it left no results): of it 1-kill9, 2-xid"
        " had been injected, and what they broke may not have been undone."
    )
    told = Words("ja", "UTC").say(note)
    assert told.startswith("ドリル実行 nightly(2025-11-20 03:00:00.000 UTC)は最後まで行われなかった(結果なし)")
    assert "1-kill9, 2-xid" in told


def test_why_it_was_aborted_is_told(tmp_path: Path) -> None:
    """A run that could still say why."""
    config, folder = folder_of(tmp_path)
    (folder / "aborted.json").write_text('{"why": "by a person"}')
    [note] = drills_cut_short(config, report("1-kill9"), BEGAN + 600)
    assert "did not come to its end (by a person)" in note


def test_what_is_no_matter_of_this_cluster_is_not_told(tmp_path: Path) -> None:
    """It may run still; it came to its end; it injected nothing here, or not then; there is no calendar."""
    config, folder = folder_of(tmp_path)
    assert drills_cut_short(config, report("1-kill9"), BEGAN + 600) == []
    assert drills_cut_short(config, report(), BEGAN + 7200) == []
    assert drills_cut_short(config, report("1-kill9", at=BEGAN - 10), BEGAN + 7200) == []
    (folder / "drills.json").write_text('{"passed": true}')
    (folder / "regressions.json").write_text("[]")
    assert drills_cut_short(config, report("1-kill9"), BEGAN + 7200) == []
    config.write_text("")
    assert drills_cut_short(config, report("1-kill9"), BEGAN + 7200) == []

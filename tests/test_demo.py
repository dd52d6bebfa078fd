"""The whole demo as a newcomer runs it, with its default settings: three faults survived, and the proof of it."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest

from holdfast.adapters.local import processes

LIMIT_S = 180.0
"""What the README promises on two idle cores."""

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(420)]


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """(its form, seconds that the command took, its folder)."""
    folder = tmp_path_factory.mktemp("demo") / "demo"
    argv = [sys.executable, "-m", "holdfast.cli.main", "demo", "--json", "--launcher", "holdfast", "--dir", str(folder)]
    began = time.monotonic()
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=400, check=False)
        seconds = time.monotonic() - began
    finally:
        processes.end_all(lambda: processes.marked(folder / "cluster"))
    assert done.stdout, done.stderr[-4000:]
    return json.loads(done.stdout), seconds, folder, done


def test_the_demo_survives_its_three_faults_in_time(demo):
    """Exit code 0, every check of every drill, the job at its last step, in less than three minutes."""
    form, seconds, _, done = demo
    assert [(drill["name"], drill["failed_checks"]) for drill in form["drills"]] == [
        ("crash_segfault", []),
        ("xid_74_replace", []),
        ("hang_allreduce", []),
    ]
    assert (form["passed"], form["completed"], done.returncode) == (True, True, 0), done.stderr[-4000:]
    assert form["last_step"] == max(attempt["last_step"] or 0 for attempt in form["report"]["jobs"][0]["attempts"])
    assert seconds < LIMIT_S


def test_its_losses_are_those_of_the_undisturbed_run_to_the_last_bit(demo):
    """Compared at every step, also at those that were done again."""
    form, _, _, _ = demo
    assert form["loss"] == {"steps_compared": form["last_step"], "largest_difference": 0.0}


def test_its_three_incidents_have_the_right_causes(demo):
    """A crash is one of the program, Xid 74 one of the hardware, the hang is named as one; all are recovered from."""
    form, _, _, _ = demo
    incidents = sorted(form["report"]["incidents"], key=lambda one: one["opened_at"])
    assert [one["outcome"] for one in incidents] == ["recovered"] * 3
    crash, xid, hang = (one["cause"] for one in incidents)
    assert (crash, xid) == ("exit.signal.11", "nvidia.xid.74")
    assert hang.startswith("hang."), "of a step, or of the rank that stacks single out"


def test_it_writes_its_page(demo):
    """Self-contained, with the incidents in it."""
    form, _, folder, _ = demo
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "<html" in page
    assert 'src="http' not in page
    assert all(incident["id"] in page for incident in form["report"]["incidents"])


def test_nothing_of_it_runs_on(demo):
    """No process carries its cluster's mark."""
    _, _, folder, _ = demo
    assert processes.marked(folder / "cluster") == []

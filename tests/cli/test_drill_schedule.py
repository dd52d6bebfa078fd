"""`holdfast drill schedule`: the calendar of holdfast.toml, run on a real embedded cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.webhook import webhook

from conftest import Holdfast

CALENDAR = """
[[drill.schedule]]
name = "nightly"
drills = ["kill9"]
at = "03:00"
zone = "Asia/Tokyo"
"""


PATIENT = """
name = "patient"
kind = "kill9"
title = "A rank is killed with signal 9"
about = "On a machine that may be as busy as it likes: what is quick enough is no matter here."

[when]
steps_after = 4

[expect]
causes = ["*"]
detect_s_max = 90.0
recover_s_max = 180.0
"""


def test_the_calendar_is_listed(holdfast: Holdfast) -> None:
    """What is due next, in its own zone; nothing has run yet."""
    Path("holdfast.toml").write_text(CALENDAR)
    ran = holdfast("drill", "schedule", "list", columns=120)
    assert ran.code == 0
    assert "2027-01-16 03:00:00.000 JST" in ran.out
    form = json.loads(holdfast("drill", "schedule", "list", "--json").out)
    assert form["schedules"][0]["next"] == 1_800_036_000.0
    assert form["schedules"][0]["last"] is None


@pytest.mark.parametrize(
    ("text", "argv", "code", "part"),
    [
        ("", ["list"], 2, "there is no calendar"),
        (CALENDAR + 'quiet = ["00:00-23:59"]', ["run", "--once"], 2, "ever due"),
        (CALENDAR + 'quiet = ["2020-01-01..2099-12-31"]', ["run", "--now"], 77, "quiet hours"),
        (CALENDAR, ["run", "nightli", "--now"], 2, 'no schedule "nightli"; did you mean "nightly"?'),
        (CALENDAR.replace("kill9", "kill8"), ["run", "--now"], 1, "kill8"),
        (CALENDAR + 'days = ["monday"]', ["list"], 78, "holdfast.toml:"),
        (CALENDAR + 'on = "production"', ["list"], 78, "holdfast.toml:"),
        (CALENDAR + CALENDAR, ["list"], 2, "same name"),
        (CALENDAR + 'at_ = "x"', ["list"], 78, "at_"),
        (CALENDAR + '[[notify.to]]\nname = "team"\nurl = "nosuch://x"', ["run", "--now"], 78, "'team'"),
    ],
)
def test_a_wrong_calendar_is_one_sentence(text: str, argv: list[str], code: int, part: str, holdfast: Holdfast) -> None:
    """Nothing is broken; the sentence names the line or the schedule. Only clusters made for it can be named."""
    Path("holdfast.toml").write_text(text)
    ran = holdfast("drill", "schedule", *argv)
    assert (ran.code, part in ran.sentence) == (code, True), ran.err
    assert not Path("drill-results").exists()


def scheduled(folder: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    environ = {k: v for k, v in os.environ.items() if not k.startswith("HOLDFAST_")}
    return subprocess.run(
        [sys.executable, "-m", "holdfast.cli.main", "drill", "schedule", *argv],
        cwd=folder, env=environ, capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip


@pytest.mark.cluster
def test_a_run_is_compared_with_the_last_and_a_regression_is_flagged(tmp_path: Path) -> None:
    """The first has nothing to compare with; a last run made ten times quicker by hand makes the second one worse.

    People are told of the second one, as of a drill.
    """
    with webhook() as web:
        notify = f'[notify]\ngroup_s = 0\nallow = ["127.0.0.1"]\n[[notify.to]]\nname = "team"\nurl = "{web.url}"\n'
        (tmp_path / "patient.toml").write_text(PATIENT)
        (tmp_path / "holdfast.toml").write_text(CALENDAR.replace("kill9", "patient.toml") + notify)
        _two_runs(tmp_path)
    [told] = web.got
    assert (told["title"], told["severity"]) == ("Drill: nightly: passed, 1 worse than in the run before", "warning")
    assert "patient: recover_s 0.01 s -> " in told["message"]


def _two_runs(tmp_path: Path) -> None:
    first = scheduled(tmp_path, "run", "nightly", "--now", "--json")
    assert first.returncode == 0, first.stdout + first.stderr
    form = json.loads(first.stdout)
    assert (form["compared_with"], form["regressions"], form["run"]["passed"]) == (None, [], True)
    kept = Path(form["results"]) / "drills.json"
    before = json.loads(kept.read_text())
    # Only this time is compared: how soon it was detected depends on what else the machine does.
    before["drills"][0].update(recover_s=0.01, detect_s=None)
    kept.write_text(json.dumps(before))
    second = scheduled(tmp_path, "run", "nightly", "--now", "--json")
    assert second.returncode == 1, second.stdout + second.stderr
    form = json.loads(second.stdout)
    assert form["compared_with"] == str(kept.parent)
    assert [(r["drill"], r["what"], r["before"]) for r in form["regressions"]] == [("patient", "recover_s", "0.01 s")]
    assert "worse" in scheduled(tmp_path, "list").stdout


@pytest.mark.cluster
def test_a_run_is_aborted_at_its_limit_and_leaves_nothing_running(tmp_path: Path) -> None:
    """Three seconds are too few: exit code 1, and no process of its cluster is left."""
    (tmp_path / "holdfast.toml").write_text(CALENDAR + "limit_min = 0.05\n")
    ran = scheduled(tmp_path, "run", "--now")
    assert ran.returncode == 1
    assert "aborted at its limit" in ran.stderr
    left = [
        pid
        for pid in os.listdir("/proc")
        if pid.isdigit() and str(tmp_path).encode() in _command(pid) and int(pid) != os.getpid()
    ]
    assert left == []


def _command(pid: str) -> bytes:
    try:
        return Path("/proc", pid, "cmdline").read_bytes()
    except OSError:
        return b""

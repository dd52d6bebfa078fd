"""`holdfast cluster ...` as a person runs it: processes of its own, nothing left behind."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.adapters.local.daemon import daemon_pid
from holdfast.adapters.local.processes import marked

pytestmark = pytest.mark.cluster


def holdfast(*args: str, code: int = 0, **env: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "holdfast.cli.main", "cluster", *args],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **env},
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def folder(tmp_path: Path):
    yield tmp_path / "c"
    holdfast("down", "--dir", str(tmp_path / "c")) if (tmp_path / "c").exists() else None
    assert marked((tmp_path / "c").resolve()) == []


def test_up_submit_status_down(folder: Path) -> None:
    """A cluster comes up, runs a job whose exit code submit --wait passes on, is seen, and goes down."""
    where = ("--dir", str(folder))
    facts = json.loads(holdfast("up", *where, "--nodes", "2", "--spares", "1", "--json"))
    assert facts["pid"] == daemon_pid(folder.resolve())
    said = holdfast("submit", *where, "-N", "2", "--wait", "--", "bash", "-c", "exit 7", code=7)
    assert "exit 7 on node0" in said
    job = json.loads(holdfast("submit", *where, "--hold", "--recover", "--json", "sleep", "100"))["job"]
    assert (job["state"], job["name"], "recovery" in job) == ("held", "sleep", True)
    seen = json.loads(holdfast("status", *where, "--json"))
    assert [node["name"] for node in seen["nodes"]] == ["node01", "node02", "node03"]
    assert "held" in holdfast("status", *where)
    assert "cancelled" in holdfast("cancel", *where, job["key"]["id"])
    assert "is down" in holdfast("down", *where)
    assert "no cluster ran" in holdfast("down", *where)


def test_a_second_up_and_a_missing_cluster_are_one_sentence(folder: Path, tmp_path: Path) -> None:
    """Starting twice, asking a cluster that is down or was never there: what it is and what to do."""
    where = ("--dir", str(folder))
    holdfast("up", *where, "--nodes", "1")
    assert "runs in" in holdfast("up", *where, code=69)
    holdfast("down", *where)
    assert "`holdfast cluster up` starts one" in holdfast("status", *where, code=69)
    assert "`holdfast cluster up` starts one" in holdfast("status", "--dir", str(tmp_path / "never"), code=1)
    assert "there is no cluster" in holdfast("status", code=1, XDG_DATA_HOME=str(tmp_path))


def test_down_finds_what_a_killed_daemon_left(folder: Path) -> None:
    """With the daemon killed there is nothing to end, and down says so without waiting."""
    facts = json.loads(holdfast("up", "--dir", str(folder), "--nodes", "1", "--json"))
    os.kill(facts["pid"], 9)
    holdfast("down", "--dir", str(folder))
    assert marked(folder.resolve()) == []

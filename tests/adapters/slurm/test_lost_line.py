"""On a real Slurm munge is away for longer than SlurmdTimeout: Slurm sets all nodes DOWN, and none of them is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.lab.waiting import wait_until
from slurm_keeper import keeping
from slurm_world import small_lab

pytestmark = [pytest.mark.cluster, pytest.mark.soak, pytest.mark.timeout(300)]

NAMES = ["node01", "node02", "node03", "node04"]
SCRIPT = """#!/bin/bash
#SBATCH --ntasks=1 --output=/dev/null
#SBATCH --comment='{"holdfast": {"max_requeues": 3}}'
exec sleep 1000
"""


def test_nodes_that_an_outage_of_munge_sets_down_are_neither_fenced_nor_left(tmp_path: Path) -> None:
    """The job that Slurm ended runs again and may use every node; people are told of the scheduler, not of nodes."""
    with small_lab(4) as lab, keeping(lab, tmp_path) as kept:
        job = lab.sbatch([], script=SCRIPT)
        kept.until(lambda: kept.attempts(job) == [0], "it runs")
        lab.daemons.stop("munged")
        down = "not responding, setting DOWN"
        wait_until(lambda: down in lab.ctld_log.read_text(), "Slurm sets its nodes down", limit_s=60.0)
        lab.daemons.start_munge()
        kept.until(lambda: len(kept.attempts(job)) > 1 and kept.job(job)["view"]["state"] == "running", "it runs again")
        kept.until(lambda: all(kept.node(name)["view"].get("alive") for name in NAMES), "all nodes answer")
        assert [kept.node(name)["state"] for name in NAMES] == ["healthy"] * 4
        assert kept.job(job).get("excluded", []) == []
        assert "brake" not in kept.notices()
        assert "no longer runs" not in kept.notices()

"""Jobs that a real Slurm takes the nodes away from, for others of higher priority: they come back, requeued once."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_keeper import keeping
from slurm_world import small_lab

pytestmark = [pytest.mark.cluster, pytest.mark.soak, pytest.mark.timeout(300)]

PARTITIONS = """PreemptType=preempt/partition_prio
PreemptMode={mode}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
PartitionName=high Nodes=ALL PriorityTier=10 PreemptMode=OFF State=UP Default=NO"""
OURS = """#!/bin/bash
#SBATCH --exclusive --output=/dev/null --requeue
#SBATCH --comment='{"holdfast": {"max_requeues": 3}}'
exec sleep 1000
"""


@pytest.mark.parametrize("mode", ["REQUEUE", "CANCEL"])
def test_a_preempted_job_comes_back(tmp_path: Path, mode: str) -> None:
    """Where Slurm requeues it, that is left to Slurm; where Slurm ends it, it is requeued and released by us, once."""
    with small_lab(1, extra_conf=PARTITIONS.format(mode=mode)) as lab, keeping(lab, tmp_path / "c") as kept:
        job = lab.sbatch([], script=OURS)
        kept.until(lambda: kept.attempts(job) == [0], "it runs")
        other = lab.sbatch(["--partition=high", "--exclusive", "--output=/dev/null"], script=OURS)
        kept.until(lambda: lab.job(other)["JobState"] == "RUNNING", "the other has its node")
        kept.until(
            lambda: (seen := lab.job(job))["JobState"] == "PENDING" and seen["Reason"] == "Resources",
            "it waits in the queue",
        )
        lab.run(["scancel", other])
        kept.until(lambda: lab.job(job)["JobState"] == "RUNNING", "it runs again")
        assert lab.job(job)["Restarts"] == "1"
        told = [(one["diagnosis"]["cause"], one["remedies"]) for one in kept.incidents()]
        assert told == ([] if mode == "REQUEUE" else [("scheduler.preempted", ["requeue"])])

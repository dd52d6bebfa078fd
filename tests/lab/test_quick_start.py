"""The script with which Mission Control's users try auto-resume, unchanged, on a real Slurm with a real controller."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from holdfast.drill.clusters import StageSettings
from holdfast.drill.stage import Stage
from holdfast.model.cluster import JobKey
from holdfast.model.records import JobRecord, JobState
from slurm_fixture import need_slurm, short_folder

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

SCRIPT = """\
#!/bin/bash
#SBATCH --job-name=auto_resume
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --output=/dev/null
#SBATCH --requeue
#SBATCH --comment='{"APS": {"auto_resume_mode": "requeue", "max_requeue_times": 1}}'
DATETIME=$(date +'date_%y-%m-%d_time_%H-%M-%S')
srun --output="%x_%j_$DATETIME.log" bash -c 'echo "Rank0: (1) segmentation fault: artificial segfault"; sleep 2; exit 1'
"""
"""It prints a fault, sleeps, and fails; its comment asks for one requeue. Of every run, a step writes a log of its own."""


@pytest.fixture(scope="module")
def quick_start() -> dict[str, Any]:
    """What has become of it: the record, its logs by name, slurmctld's log, Slurm's last word."""
    need_slurm()
    with short_folder() as folder:
        return asyncio.run(_run(StageSettings(folder=folder / "lab", on="slurm", nodes=2, spares=0, accounting=False)))


async def _run(settings: StageSettings) -> dict[str, Any]:
    async with Stage(settings) as stage:
        key = JobKey(stage.cluster_name, stage.cluster.lab.sbatch([], script=SCRIPT))
        record: JobRecord = await stage.until(key, lambda job: job.state is JobState.GIVEN_UP, limit_s=300)
        logs = {path.name: path.read_text() for path in (stage.folder / "jobs").glob(f"auto_resume_{key.id}_*.log")}
        ctld = stage.cluster.lab.ctld_log.read_text().splitlines()
        return {"record": record, "logs": logs, "last": stage.cluster.lab.job(key.id), "ctld": ctld}


def test_it_runs_twice(quick_start: dict[str, Any]) -> None:
    """Attempts 0 and 1, and no third one: the job's own number of requeues holds."""
    assert [attempt.number for attempt in quick_start["record"].attempts] == [0, 1]
    assert quick_start["last"]["Restarts"] == "1"
    assert quick_start["last"]["JobState"] == "FAILED"


def test_it_is_held_in_between_and_released(quick_start: dict[str, Any]) -> None:
    """The requeue waits, held, until somebody has said why it failed: slurmctld itself wrote down that it let it go."""
    assert len([line for line in quick_start["ctld"] if "release hold on JobId=" in line]) == 1
    assert any("released" in line for line in quick_start["record"].story)


def test_each_attempt_has_a_log_of_its_own(quick_start: dict[str, Any]) -> None:
    """Two files, named by the script's own pattern, each with the words of both tasks."""
    logs = quick_start["logs"]
    assert len(logs) == 2
    assert {text.count("artificial segfault") for text in logs.values()} == {2}


def test_it_says_why_it_gave_up(quick_start: dict[str, Any]) -> None:
    """The last line of its story names what was reached: the limit that its own comment sets."""
    assert re.search(r"\b1 requeue\b.*, which is the limit", quick_start["record"].story[-1])

"""The controller is killed again and again while it recovers jobs of a real Slurm: nothing stays held, nothing is done twice."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from holdfast.lab.slurm_lab import SlurmLab
from slurm_keeper import Kept, keeping

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

ONCE = """#!/bin/bash
#SBATCH --ntasks=1 --output=/dev/null
#SBATCH --comment='{"holdfast": {"max_requeues": 3}}'
if [ -z "$SLURM_RESTART_COUNT" ]; then sleep 0.2; exit 3; fi
exec sleep 1000
"""
WINDOW_S = 2.4
"""From a job's submission to its running again: the kills are spread over it."""


def killed_at(kept: Kept, lab: SlurmLab, points: Iterable[float]) -> list[str]:
    """One job per point (share of the window): submit it, kill the controller so far into its recovery, start the next."""
    jobs = []
    for point in points:
        jobs.append(lab.sbatch([], script=ONCE))
        lab.until_job(jobs[-1], "RUNNING", "FAILED", "COMPLETING", "PENDING")
        time.sleep(WINDOW_S * point)
        kept.kill()
        kept.start(60.0)
    return jobs


def judge(kept: Kept, lab: SlurmLab, jobs: list[str]) -> None:
    """Every job runs, requeued exactly once, and its page says why; none is left held."""

    def seen() -> dict[str, tuple[str, str]]:
        rows = lab.run(["squeue", "-h", "-t", "all", "-O", "JobID:12,State:16,RestartCnt:6"]).splitlines()
        return {row.split()[0]: (row.split()[1], row.split()[2]) for row in rows}

    kept.until(lambda: all(seen()[job] == ("RUNNING", "1") for job in jobs), "all run again, requeued once")
    kept.until(lambda: all(kept.state(job) == "proving" for job in jobs), "all are proving")
    for job in jobs:
        story = " ".join(kept.job(job)["story"])
        assert "exit code 3" in story
        assert kept.attempts(job) == [0, 1]


def test_ten_kills(slurm_lab: SlurmLab, tmp_path: Path) -> None:
    """SIGKILL at ten points between a job's failure and its next start."""
    with keeping(slurm_lab, tmp_path / "c") as kept:
        judge(kept, slurm_lab, killed_at(kept, slurm_lab, [point / 10 for point in range(10)]))


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_hundred_kills(slurm_lab: SlurmLab, tmp_path: Path) -> None:
    """The same at a hundred points, twenty jobs at a time, the points of each twenty between those of the others."""
    begun = time.monotonic()
    with keeping(slurm_lab, tmp_path / "c") as kept:
        for group in range(5):
            jobs = killed_at(kept, slurm_lab, [point / 100 for point in range(group, 100, 5)])
            judge(kept, slurm_lab, jobs)
            slurm_lab.run(["scancel", *jobs])
    print(f"100 kills of the controller: every job ran again, requeued once; {time.monotonic() - begun:.0f} s")

"""Two controllers, one Slurm, one journal: one leads, one stands by, one that was not asked to is turned away."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.lab.slurm_lab import SlurmLab
from slurm_keeper import Kept

pytestmark = [pytest.mark.cluster, pytest.mark.soak, pytest.mark.timeout(900)]

ONCE = """#!/bin/bash
#SBATCH --ntasks=1 --output=/dev/null
#SBATCH --comment='{{"holdfast": {{"max_requeues": 3}}}}'
if [ -n "$SLURM_RESTART_COUNT" ]; then exec sleep 1000; fi
while [ ! -e {go} ]; do sleep 0.1; done
exit 3
"""


def test_the_second_controller_stands_by_and_takes_over(slurm_lab: SlurmLab, tmp_path: Path) -> None:
    """The first one is killed before a job fails: the second one knows the job and brings it back, once."""
    tmp_path.chmod(0o755)
    first, second, third = (Kept(slurm_lab, tmp_path / name) for name in ("first", "second", "third"))
    for kept in (first, second, third):
        kept.more = ("--journal", f"sqlite:///{tmp_path}/journal.db", "--lease-s", "10")
    second.more += ("--standby",)
    try:
        first.start(90)
        second.launch()
        first.until(lambda: "standing by" in second.log(), "the second one stands by")
        third.launch()
        assert third.process is not None
        assert third.process.wait(90) != 0
        assert "is the active controller of this journal" in third.log()
        go = tmp_path / "go"
        job = slurm_lab.sbatch([], script=ONCE.format(go=go))
        first.until(lambda: first.attempts(job) == [0], "the job is seen")
        first.kill()
        go.touch()
        second.connect(90)
        second.until(lambda: second.attempts(job) == [0, 1], "it was brought back")
        assert slurm_lab.until_job(job, "RUNNING")["Restarts"] == "1"
    finally:
        for kept in (first, second, third):
            kept.end()

"""A supervised step of a real Slurm is asked to save and stop, by way of a real controller: nothing of its work is lost."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from holdfast.lab.slurm_lab import SlurmLab
from holdfast.lab.waiting import wait_until
from slurm_keeper import Kept

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

TASK = """
import os, sys, time
import holdfast.telemetry as telemetry
rank, again = int(os.environ["SLURM_PROCID"]), os.environ.get("SLURM_RESTART_COUNT", "0") != "0"
first = int(open("saved").read()) + 1 if again else 1
for step in range(first, first + 3 if again else 1 << 30):
    with telemetry.step(step):
        time.sleep(0.05)
    if telemetry.evacuate_requested():
        print(f"saves rank={rank} step={step}", flush=True)
        if rank == 0:
            with open("saved", "w") as file:
                file.write(str(step))
            telemetry.checkpoint(step, durable=True)
        sys.exit(85)
if rank == 0:
    telemetry.checkpoint(first + 2, durable=True)
print(f"ends rank={rank} from={first}", flush=True)
"""
SCRIPT = """#!/bin/bash
#SBATCH --nodes=2 --exclusive --requeue
#SBATCH --comment='{{"holdfast": {{"max_requeues": 3}}}}'
export HOLDFAST_CONTROLLER_FILE={controller}/controller.json HOLDFAST_TOKEN_FILE={controller}/agent-token
cd {folder}
exec >>said 2>&1
{python} -m holdfast srun --auto-resume=1 --job-dir {folder}/job --ntasks-per-node=1 {python} task.py
code=$?
echo code=$code restart=${{SLURM_RESTART_COUNT:-0}}
exit $code
"""


def test_a_step_saves_before_it_is_stopped(slurm_lab: SlurmLab, tmp_path: Path) -> None:
    """A person asks the job away from its nodes: tasks on both nodes hear of it, save and end with code 85, the script
    gets that code, the job is requeued once, and goes on at the step after the saved one."""
    tmp_path.chmod(0o755)
    (tmp_path / "task.py").write_text(TASK)
    said = tmp_path / "said"
    kept = Kept(slurm_lab, tmp_path / "c")
    kept.listen = f"{slurm_lab.facts.ctld_address}:0"
    try:
        kept.start()
        script = SCRIPT.format(controller=tmp_path / "c" / "controller", folder=tmp_path, python=sys.executable)
        job = slurm_lab.sbatch([], script=script, cwd=tmp_path)
        asked: set[int] = set()

        def saves() -> bool:
            """Asks once for each attempt that takes steps, see below."""
            newest = (kept.job(job).get("attempts") or [{}])[-1]
            if newest.get("last_step") and newest["number"] not in asked:
                asked.add(newest["number"])
                kept.command("evacuate", job=kept.job(job)["key"])
            return (tmp_path / "saved").exists()

        kept.until(saves, "it saves")
        wait_until(lambda: "restart=1" in said.read_text(), "its second run ends", limit_s=90.0, logs=(said,))
        wait_until(lambda: slurm_lab.job(job)["JobState"] == "COMPLETED", "ended", limit_s=90.0, logs=(said,))
        kept.until(lambda: kept.state(job) == "completed", "its end is seen")
        saved = int((tmp_path / "saved").read_text())
        # Starved of CPU for seconds the supervisor loses its lease and starts the step again: then in a newer attempt.
        ends = set(re.findall(r"^ends rank=(\d) from=(\d+)$", said.read_text(), re.MULTILINE))
        assert ends == {("0", str(saved + 1)), ("1", str(saved + 1))}
        attempts = kept.job(job)["attempts"]
        assert [attempt["durable_step"] for attempt in attempts if attempt.get("exit_code") == 85] == [saved]
        assert attempts[-1]["first_step"] == saved + 1
        told = [(one["remedies"], one["outcome"]) for one in kept.incidents()]
        assert (["evacuate", "requeue"], "recovered") in told
        assert slurm_lab.job(job)["Restarts"] == "1"
    finally:
        kept.end()

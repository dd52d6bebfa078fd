"""A container image that loads slowly at a restart on a real Slurm: not a hang, and a row of its own in the report.

Emulated: Pyxis and enroot are not installed here. A TaskProlog stands in their place: slurmstepd runs it where Pyxis
loads the image, before the task is; it prints Pyxis' lines and ends when the image "is there". All else is real.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from holdfast.lab.waiting import wait_until
from slurm_keeper import TINY, Kept
from slurm_world import small_lab

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

PYXIS = """#!/bin/sh
[ "$SLURM_RESTART_COUNT" ] || exit 0
echo "print pyxis: importing docker image: nvcr.io#nvidia/nemo:25.04"
touch {folder}/loading
while [ ! -e {folder}/loaded ]; do sleep 0.05; done
echo "print pyxis: imported docker image: nvcr.io#nvidia/nemo:25.04"
"""
PATIENT = "[hang]\nfloor_s = 60\n"
"""A busy machine's steps are as unsteady as its launchers: neither is what is looked at here."""
TRAIN = """
import os, time
import holdfast.telemetry as telemetry
for step in range(1, 4 if "SLURM_RESTART_COUNT" in os.environ else 1 << 30):
    with telemetry.step(step):
        time.sleep(0.05)
telemetry.checkpoint(3, durable=True)
"""
SCRIPT = """#!/bin/bash
#SBATCH --ntasks=1 --requeue
#SBATCH --comment='{{"holdfast": {{"max_requeues": 3}}}}'
export HOLDFAST_CONTROLLER_FILE={controller}/controller.json HOLDFAST_TOKEN_FILE={controller}/agent-token
srun {python} -m holdfast run --lease-s 60 --policy {folder}/job.toml --job-dir {folder}/job --nproc-per-node 1 {folder}/train.py
"""


def test_a_slow_image_is_no_hang_and_stands_in_the_report(tmp_path: Path) -> None:
    """While it loads the restart goes on: nothing is called a hang, the job is not requeued once more, and the seconds of
    the load are the report's phase "image load"."""
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "job.toml").write_text(PATIENT)
    prolog = tmp_path / "pyxis"
    prolog.write_text(PYXIS.format(folder=tmp_path))
    prolog.chmod(0o755)
    with small_lab(1, extra_conf=f"TaskProlog={prolog}") as lab:
        kept = Kept(lab, tmp_path / "c", TINY)
        try:
            kept.start()
            script = SCRIPT.format(controller=tmp_path / "c" / "controller", folder=tmp_path, python=sys.executable)
            job = lab.sbatch([], script=script, cwd=tmp_path)
            kept.until(lambda: (kept.job(job).get("attempts") or [{}])[-1].get("last_step"), "steps are told of")
            kept.command("requeue", job=kept.job(job)["key"])
            kept.until((tmp_path / "loading").exists, "the image is being loaded")
            kept.until(lambda: kept.state(job) == "restarting", "the controller has seen that it runs")
            begun = time.time()
            wait_until(lambda: time.time() > begun + 1.0, "a while", limit_s=60.0)
            assert kept.state(job) == "restarting"
            assert kept.events(kind="finding_seen") == []
            loading_s = time.time() - begun
            (tmp_path / "loaded").touch()
            kept.until(lambda: kept.state(job) == "completed", "it ends well")
            (incident,) = kept.incidents()
            assert lab.job(job)["Restarts"] == "1"
        finally:
            kept.end()
        asked = ["report", "--dir", str(tmp_path / "c"), "--incident", incident["id"], "--json"]
        told = subprocess.run([sys.executable, "-m", "holdfast", *asked], capture_output=True, check=True, timeout=120)
        (phases,) = [table for table in json.loads(told.stdout)["incidents"][0]["tables"] if table["key"] == "phases"]
        (row,) = [row for row in phases["rows"] if row["phase"] == "image load"]
        assert float(row["seconds"]) >= loading_s

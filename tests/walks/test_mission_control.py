"""W3: what Mission Control's users do, on a real Slurm: the quick-start script, the injector's table, a slow container.

Emulated: Slack (a webhook on loopback receives the messages) and Pyxis (a TaskProlog prints its lines and takes its
time, where slurmstepd loads the image). The scripts, the scheduler, the agents and the controller are real.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.webhook import Web, webhook
from holdfast.lab.slurm_lab import SlurmLab
from slurm_keeper import Kept
from slurm_world import small_lab

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

POLICY = 'preset = "mission-control"\n'
NOTIFY = """\
[notify]
group_s = 0.0
[[notify.to]]
name = "training-channel"
url = "{url}"
"""
QUICK_START = """\
#!/bin/bash
#SBATCH --job-name=auto_resume
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --output={folder}/%x_%j.out
#SBATCH --comment='{{"APS": {{"auto_resume_mode": "requeue", "max_requeue_times": 1}}}}'
DATETIME=$(date +'date_%y-%m-%d_time_%H-%M-%S')
srun --output="{folder}/%x_%j_$DATETIME.log" bash -c '
  echo "Rank0: (1) segmentation fault: artificial segfault"; sleep 3; exit 1'
"""
"""The script prints a fault, sleeps, and fails; its comment asks for one requeue. The guide's sleeps for a minute."""


class Site:
    """A Slurm of three nodes with agents, a controller under the preset, and the channel that it tells."""

    def __init__(self, lab: SlurmLab, kept: Kept, web: Web) -> None:
        self.lab, self.kept, self.web = lab, kept, web

    def holdfast(self, *words: str) -> str:
        """What a command prints on a login node."""
        env = {**self.lab.env(), "HOLDFAST_TOKEN_FILE": f"{self.kept.folder}/controller/token", "COLUMNS": "160"}
        assert self.kept.client is not None
        argv = [sys.executable, "-m", "holdfast.cli.main", *words, "--url", str(self.kept.client.base_url)]
        return subprocess.run(argv, env=env, capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with small_lab(3, agents=True) as lab, webhook() as web:
        kept = Kept(lab, lab.folder, POLICY, NOTIFY.format(url=web.url))
        try:
            kept.start()
            kept.until(lambda: [bool(n.get("agent_boot_id")) for n in kept.get("nodes")] == [True] * 3, "agents")
            yield Site(lab, kept, web)
        finally:
            kept.end()


class Queue:
    """What `squeue` shows of a job, each state once, looked at all the time."""

    def __init__(self, lab: SlurmLab, job: str) -> None:
        self.lab, self.job = lab, job
        self.seen: list[str] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Queue:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(0.1):
            found = self.lab.run(["squeue", "-h", "--states=all", "-j", self.job, "-o", "%t %r"]).strip()
            if found and found not in self.seen[-1:]:
                self.seen.append(found)


@pytest.mark.walk("W3.1")
def test_the_quick_start_script_is_held_attributed_and_released(site: Site, tmp_path: Path) -> None:
    """squeue shows "job requeued in held state", then running again; each attempt has a log file of its own; the channel
    is told of the requeue, of the attribution and of the release, in this order. The second fault ends it."""
    folder = site.lab.folder / "jobs" / "quick"
    folder.mkdir()
    job = site.lab.sbatch([], script=QUICK_START.format(folder=folder), cwd=folder)
    with Queue(site.lab, job) as queue:
        site.kept.until(lambda: site.kept.state(job) == "given_up", "given up after one requeue")
    told = site.holdfast("job", job)
    print(queue.seen, told, *site.web.got, sep="\n")
    print(sorted(path.name for path in folder.iterdir()))
    raise AssertionError

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

import httpx
import pytest

from cli.webhook import Web, webhook
from holdfast.lab.slurm_lab import SlurmLab
from holdfast.lab.waiting import wait_until
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

    def page(self, path: str) -> str:
        """A page of the cockpit, as a browser gets it."""
        assert self.kept.client is not None
        token = (self.kept.folder / "controller" / "token").read_text().strip()
        with httpx.Client(base_url=self.kept.client.base_url, follow_redirects=True, timeout=60) as browser:
            origin = {"Origin": str(self.kept.client.base_url).rstrip("/")}
            browser.post("/login", data={"token": token}, headers=origin).raise_for_status()
            return browser.get(path).raise_for_status().text

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
    states = [state for n, state in enumerate(queue.seen) if "None" not in state or state.startswith("R")]
    assert states == ["R None", "F NonZeroExitCode", "PD job requeued in held state", "R None", "F NonZeroExitCode"]

    told = site.holdfast("job", job)
    assert re.findall(rf"^({job}\(\d\)) .* exit 1", told, re.MULTILINE) == [f"{job}(0)", f"{job}(1)"]
    page = site.page(f"/jobs/{job}")
    assert f"{job}(0)" in page and f"{job}(1)" in page
    logs = sorted(folder.glob(f"auto_resume_{job}_date_*.log"))
    assert [log.read_text().count("artificial segfault") for log in logs] == [2, 2]

    wait_until(lambda: len(site.web.got) == 4, "four messages", limit_s=60)
    requeued, attribution, released, gave_up = site.web.got
    assert requeued["title"] == f"{job}(0) is requeued, held"
    assert re.match(rf"{job}\(0\): Segmentation fault, on node0\d", attribution["title"])
    assert released["title"] == f"{job}(0) is released"

    assert f"{job}(1) was given up" in gave_up["title"]
    assert "1 requeue, which is the limit" in gave_up["message"]
    seen = site.lab.job(job)
    assert (seen["JobState"], seen["Restarts"]) == ("FAILED", "1")


CLUSTER_FILE = """\
cluster = "slurm:{conf}"
controller = "{url}"
token_file = "{folder}/controller/token"

[drill.site]
folder = "{folder}/jobs/drills"
nodes = 2
ranks_per_node = 1
partition = "main"
account = "resiliency"
options = ["--time=00:30:00"]
start_s = 60.0

[drill.site.env]
HOLDFAST_CONTROLLER_FILE = "{folder}/controller/controller.json"
HOLDFAST_TOKEN_FILE = "{folder}/controller/agent-token"
HOLDFAST_NODE_ADDRESS = "127.0.0.1"
"""
"""The cluster's own. The nodes of the lab share this machine's address, hence the last line."""


class Injector:
    """`holdfast drill run` at work, and what it has said so far."""

    def __init__(self, folder: Path, *words: str, env: dict[str, str]) -> None:
        self.out = folder / "injector.out"
        with self.out.open("wb") as out:
            argv = [sys.executable, "-m", "holdfast.cli.main", "drill", "run", *words]
            self.process = subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=folder)

    def said(self) -> str:
        return self.out.read_text(errors="replace")

    def until_said(self, pattern: str, limit_s: float = 240.0) -> str:
        """The first group of the pattern, once it has said so."""

        def look() -> bool:
            assert self.process.poll() is None or re.search(pattern, self.said()), self.said()
            return re.search(pattern, self.said()) is not None

        wait_until(look, f"the injector says {pattern!r}", limit_s=limit_s, logs=(self.out,))
        found = re.search(pattern, self.said())
        assert found is not None
        return found[1]

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


@contextlib.contextmanager
def injecting(folder: Path, *words: str, env: dict[str, str] | None = None) -> Iterator[Injector]:
    made = Injector(folder, *words, env=env or dict(os.environ))
    try:
        yield made
    finally:
        made.end()


@pytest.mark.walk("W3.2")
def test_the_injectors_table_runs_on_a_slurm_that_is_there_until_scancel(site: Site, tmp_path: Path) -> None:
    """The cluster's own file says which controller, partition, account and folder; the job is an ordinary one in the
    queue, and after its faults it trains on until its owner cancels it. The site's controller is the same all along."""
    file = tmp_path / "eos.toml"
    assert site.kept.client is not None
    facts = {"conf": site.lab.facts.conf, "url": site.kept.client.base_url, "folder": site.kept.folder}
    file.write_text(CLUSTER_FILE.format(**facts))
    words = ["hang_user_buffer", "crash_segfault", "--on", "site", "--config", str(file), "-debug", "-v"]
    with injecting(tmp_path, *words, "--until-cancelled", env=site.lab.env()) as injector:
        job = injector.until_said(r"job (\d+) is submitted")
        seen = site.lab.job(job)
        assert (seen["Partition"], seen["Account"], seen["NumNodes"]) == ("main", "resiliency", "2")
        assert injector.until_said(r"job (\d+) trains on until it is cancelled") == job
        print(injector.said())
        assert site.lab.job(job)["JobState"] == "RUNNING"
        site.lab.run(["scancel", job])
        assert injector.process.wait(120) == 0, injector.said()
    print(injector.said())
    raise AssertionError

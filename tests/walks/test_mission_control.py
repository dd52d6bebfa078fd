"""W3: what Mission Control's users do, on a real Slurm: the quick-start script, the injector's table, a slow container.

Emulated: Slack (a webhook on loopback receives the messages) and Pyxis (a TaskProlog prints its lines and takes its
time, where slurmstepd loads the image). The scripts, the scheduler, the agents and the controller are real.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import tomllib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest
from tests.walks.login_node import holdfast, page

from cli.webhook import Web, webhook
from holdfast.adapters.kubernetes.api import KubeApi
from holdfast.adapters.local.client import LocalOrchestrator
from holdfast.drill.clusters import StageSettings
from holdfast.drill.queues import jobs_path
from holdfast.drill.stage import Stage
from holdfast.lab.slurm_lab import SlurmLab
from holdfast.lab.waiting import wait_until
from holdfast.model.cluster import SchedulerState
from slurm_fixture import short_folder
from slurm_keeper import Kept
from slurm_world import small_lab

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

POLICY = 'preset = "mission-control"\n'
NOTIFY = """\
[notify]
group_s = 0.0
allow = ["127.0.0.1"]
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


LOAD_S = 3
PYXIS = """\
#!/bin/sh
[ "$NEMO_IMAGE" ] || exit 0
date +%s.%N > "$NEMO_FOLDER/begun-${{SLURM_RESTART_COUNT:-0}}"
echo "print pyxis: importing docker image: $NEMO_IMAGE"
sleep {load_s}
echo "print pyxis: imported docker image: $NEMO_IMAGE"
date +%s.%N > "$NEMO_FOLDER/done-${{SLURM_RESTART_COUNT:-0}}"
"""
"""In Pyxis' place: a TaskProlog runs where Pyxis loads the image, before the task is."""


class Site:
    """A Slurm of three nodes with agents, a controller under the preset, and the channel that it tells."""

    def __init__(self, lab: SlurmLab, kept: Kept, web: Web) -> None:
        self.lab, self.kept, self.web = lab, kept, web

    def of_job(self, job: str) -> str:
        """What Slurm and the controller say of a job."""
        queue = self.lab.run(["squeue", "--states=all"])
        return f"\n{queue}\n{self.lab.job(job)}\n{json.dumps(self.kept.job(job), indent=1)}\n{self.kept.log()}"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    prolog = tmp_path_factory.mktemp("pyxis") / "task-prolog"
    prolog.write_text(PYXIS.format(load_s=LOAD_S))
    prolog.chmod(0o755)
    with small_lab(3, agents=True, extra_conf=f"TaskProlog={prolog}") as lab, webhook() as web:
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

    def __enter__(self) -> Self:
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
    runs, held = "R None", "PD job requeued in held state"  # others pass too quickly to be seen each time
    assert [state for state in queue.seen if state in {runs, held}] == [runs, held, runs], queue.seen

    told = holdfast("job", job, kept=site.kept)
    assert re.findall(rf"^({job}\(\d\)) .* exit 1", told, re.MULTILINE) == [f"{job}(0)", f"{job}(1)"]
    shown = page(site.kept, f"/jobs/{job}")
    assert f"{job}(0)" in shown
    assert f"{job}(1)" in shown
    logs = sorted(folder.glob(f"auto_resume_{job}_date_*.log"))
    assert [log.read_text().count("artificial segfault") for log in logs] == [2, 2]

    wait_until(lambda: len(site.web.got) == 4, "four messages", limit_s=60)
    requeued, attribution, released, gave_up = site.web.got
    assert requeued["title"] == f"{job}(0) is requeued, held"
    assert re.match(rf"{job}\(0\): Segmentation fault, on node0\d", attribution["title"])
    assert re.fullmatch(rf"{job}\([01]\) is released", released["title"]), "by its new number where it runs already"

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
            # As a person's shell starts it; below a background job Ctrl-C is ignored.
            argv = ["env", "--default-signal=INT", sys.executable, "-m", "holdfast", "drill", "run", *words]
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

    def ended(self, limit_s: float = 120.0, also: Callable[[], str] = str) -> int:
        """Its exit code, once it has ended by itself. `also`: what is told beside its output when it has not."""
        try:
            return self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the injector goes on:\n{self.said()}{also()}") from None

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
        assert (seen["Partition"], seen["Account"], seen["JobName"]) == ("main", "resiliency", "drill")
        assert injector.until_said(r"job (\d+) trains on until it is cancelled") == job
        assert re.search(r"^ok +hang_user_buffer +hang\.", injector.said(), re.MULTILINE), injector.said()
        assert re.search(r"^ok +crash_segfault +exit\.signal\.11", injector.said(), re.MULTILINE), injector.said()
        assert re.search(r"\d\d:\d\d:\d\dZ .*stacks of all ranks are taken", injector.said()), "-v tells the story"
        assert site.lab.job(job)["JobState"] == "RUNNING"
        site.lab.run(["scancel", job])
        assert injector.ended(also=lambda: site.of_job(job)) == 0, injector.said()
    assert "2 of 2 drills passed" in injector.said()
    assert site.lab.job(job)["JobState"] == "CANCELLED"
    assert site.kept.process is not None
    assert site.kept.process.poll() is None


@contextlib.asynccontextmanager
async def embedded(folder: Path) -> AsyncIterator[tuple[Path, dict[str, str]]]:
    """An embedded cluster that runs already, its own file, and the environment of whoever uses it."""
    async with Stage(StageSettings(folder=folder / "lab", nodes=2, spares=1)):
        file = folder / "lab.toml"
        file.write_text(f'dir = "{folder}/lab"\n[drill.site]\nstart_s = 60.0\n')
        yield file, dict(os.environ)


KUBERNETES_FILE = """\
cluster = "kubernetes:"
controller = "{url}"
token_file = "{folder}/controller/token"

[kubernetes]
kubeconfig = "{kubeconfig}"
cluster = "kubernetes-lab"

[drill.site]
folder = "{folder}/jobs"
namespace = "default"
gpus_per_node = 8
start_s = 60.0

[drill.site.env]
HOLDFAST_CONTROLLER_FILE = "{folder}/controller/controller.json"
"""


@contextlib.asynccontextmanager
async def kubernetes(folder: Path) -> AsyncIterator[tuple[Path, dict[str, str]]]:
    """The same on Kubernetes."""
    settings = StageSettings(folder=folder / "kube", on="kubernetes", nodes=2, spares=1, boot_s=0.2, up_limit_s=300.0)
    async with Stage(settings) as stage:
        file = folder / "kube.toml"
        url, kubeconfig = stage.eyes.url, stage.cluster.lab.kubeconfig
        file.write_text(KUBERNETES_FILE.format(url=url, folder=stage.folder, kubeconfig=kubeconfig))
        yield file, dict(os.environ)


@contextlib.asynccontextmanager
async def slurm(folder: Path) -> AsyncIterator[tuple[Path, dict[str, str]]]:
    """The same on Slurm, under Holdfast's own policy."""
    with small_lab(3, agents=True) as lab:
        kept = Kept(lab, lab.folder)
        try:
            await asyncio.to_thread(kept.start)
            assert kept.client is not None
            file = folder / "slurm.toml"
            file.write_text(CLUSTER_FILE.format(conf=lab.facts.conf, url=kept.client.base_url, folder=kept.folder))
            yield file, lab.env()
        finally:
            kept.end()


@pytest.mark.walk("W3.2")
def test_the_injector_on_an_embedded_cluster_that_is_there_until_ctrl_c() -> None:
    """One line names the cluster. Ctrl-C ends the job, keeps the results, and leaves the cluster as it was."""

    async def body(folder: Path) -> None:
        async with embedded(folder) as (file, env):
            words = ["hang_allreduce", "--on", "site", "--config", str(file), "--until-cancelled"]
            with injecting(folder, *words, env=env) as injector:
                await asyncio.to_thread(injector.until_said, r"job (\d+) trains on")
                injector.process.send_signal(signal.SIGINT)
                assert await asyncio.to_thread(injector.ended) == 0, injector.said()
            assert "1 of 1 drills passed" in injector.said()
            (job,) = (await LocalOrchestrator(folder / "lab" / "cluster.sock").observe()).jobs
            assert job.state is SchedulerState.CANCELLED

    with short_folder() as folder:
        asyncio.run(body(folder))


@pytest.mark.walk("W3.2")
def test_the_injector_on_a_kubernetes_that_is_there() -> None:
    """The job is a PyTorchJob in the namespace of the cluster's file; it is gone from the API server afterwards."""

    async def body(folder: Path) -> None:
        async with kubernetes(folder) as (file, env):
            words = ["hang_p2p", "--on", "site", "--config", str(file), "-v"]
            with injecting(folder, *words, env=env) as injector:
                job = await asyncio.to_thread(injector.until_said, r"job (\S+) is submitted")
                settings = tomllib.loads(file.read_text())
                api = await KubeApi.connect("", Path(settings["kubernetes"]["kubeconfig"]))
                try:
                    found = (await api.list_all(jobs_path("default")))[0]
                    assert [f"default.pytorchjob.{one['metadata']['name']}" for one in found] == [job]
                    assert await asyncio.to_thread(injector.ended, 240.0) == 0, injector.said()
                    assert (await api.list_all(jobs_path("default")))[0] == []
                finally:
                    await api.close()
            assert "1 of 1 drills passed" in injector.said()

    with short_folder() as folder:
        asyncio.run(body(folder.resolve()))


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.walk("W3.2")
@pytest.mark.parametrize("where", [embedded, slurm, kubernetes])
def test_the_whole_table_is_one_command(where: Callable[[Path], Any], capsys: pytest.CaptureFixture[str]) -> None:
    """Good, user-buffer hang, segfault, straggler, all-reduce hang, send-receive hang, straggler then hang: all pass."""

    async def body(folder: Path) -> None:
        async with where(folder) as (file, env):
            with injecting(folder, "--table", "--on", "site", "--config", str(file), env=env) as injector:
                code = await asyncio.to_thread(injector.ended, 1500.0)
            with capsys.disabled():
                print(f"\n{where.__name__}\n{injector.said()}")
            assert code == 0, injector.said()
            assert "7 of 7 drills passed" in injector.said()

    with short_folder() as folder:
        asyncio.run(body(folder.resolve()))


TRAIN = """
import os, time
import holdfast.telemetry as telemetry
again = "SLURM_RESTART_COUNT" in os.environ
for step in range(1, 4 if again else 1 << 30):
    with telemetry.step(step):
        time.sleep(0.05)
telemetry.checkpoint(3, durable=True)
"""
CONTAINER = """\
#!/bin/bash
#SBATCH --job-name=nemo --ntasks=1 --requeue --output={folder}/slurm.out
#SBATCH --comment='{{"APS": {{"auto_resume_mode": "requeue", "max_requeue_times": 1}}}}'
export HOLDFAST_CONTROLLER_FILE={controller}/controller.json HOLDFAST_TOKEN_FILE={controller}/agent-token
export NEMO_IMAGE=nvcr.io#nvidia/nemo:25.04 NEMO_FOLDER={folder}
srun {python} -m holdfast run --job-dir {folder}/job --nproc-per-node 1 {folder}/train.py
"""


@pytest.mark.walk("W3.5")
def test_a_containers_start_is_start_up_and_image_load_is_named(site: Site, tmp_path: Path) -> None:
    """From the nodes to the first step is start-up; what of it went to the image is named in the text and in JSON, of
    the first start and of a restart."""
    folder = site.lab.folder / "jobs" / "nemo"
    folder.mkdir()
    (folder / "train.py").write_text(TRAIN)
    script = CONTAINER.format(folder=folder, controller=site.kept.folder / "controller", python=sys.executable)
    job = site.lab.sbatch([], script=script, cwd=folder)
    site.kept.until(lambda: (site.kept.job(job).get("attempts") or [{}])[-1].get("last_step"), "steps are told of")
    site.kept.command("requeue", job=site.kept.job(job)["key"])
    site.kept.until(lambda: site.kept.state(job) == "completed", "it ends well")
    loads = [tuple(float((folder / f"{name}-{n}").read_text()) for name in ("begun", "done")) for n in (0, 1)]

    form = json.loads(holdfast("report", "--job", job, "--format", "json", kept=site.kept))
    (told,) = form["jobs"]
    first = told["attempts"][0]
    assert first["placed_at"] <= loads[0][0] < loads[0][1] <= first["started_at"] + 0.05
    assert told["image_load_s"] == pytest.approx(first["started_at"] - first["placed_at"])
    assert told["badput"]["startup"] == pytest.approx(first["first_step_at"] - first["placed_at"])
    (incident,) = form["incidents"]
    (phases,) = [table["rows"] for table in incident["tables"] if table["key"] == "phases"]
    (row,) = [row for row in phases if row["phase"] == "image load"]
    assert float(row["seconds"]) >= loads[1][1] - loads[1][0] - 0.05

    text = holdfast("report", "--job", job, kept=site.kept)
    assert re.search(r"startup \d+\.\d+ s \(image load \d+\.\d+ s\)", " ".join(text.split())), text
    told_of = holdfast("report", "--incident", incident["id"], kept=site.kept)
    assert re.search(rf"image load +{re.escape(row['seconds'])}", told_of)

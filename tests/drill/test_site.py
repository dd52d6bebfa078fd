"""Drills on a cluster that runs already: what its file may say, and what is submitted to it."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from holdfast.adapters.clock import SystemClock
from holdfast.cli.drill import TABLE, app
from holdfast.drill.campaign import CampaignSettings, job_for
from holdfast.drill.queues import SlurmQueue
from holdfast.drill.scenario import find
from holdfast.drill.site import SiteStage, fitted, lacking_on_site
from holdfast.drill.site_settings import SiteConfig, SiteSettings
from holdfast.drill.submission import batch_script, container, pytorch_job
from holdfast.drill.training import TrainingJob
from holdfast.errors import ConfigError, LinkError, TemporaryOrderError, UsageError
from holdfast.model.cluster import JobKey
from holdfast.model.evidence import Remedy
from holdfast.wiring.drill_site import site_of

SLURM = 'cluster = "slurm:/etc/slurm/slurm.conf"\ncontroller = "http://127.0.0.1:8470"\n[drill.site]\n'


def written(folder: Path, text: str) -> Path:
    path = folder / "eos.toml"
    path.write_text(text)
    return path


def test_a_clusters_file_says_where_and_what(tmp_path: Path) -> None:
    """Scheduler, controller, folder (beside the file when it is relative) and the job's own wishes."""
    found = site_of(written(tmp_path, SLURM + 'folder = "jobs"\npartition = "batch"\nnodes = 4\n'))
    assert (found.scheduler, found.place, found.url) == ("slurm", "/etc/slurm/slurm.conf", "http://127.0.0.1:8470")
    assert (found.folder, found.config.partition, found.config.nodes) == (tmp_path / "jobs", "batch", 4)


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ('controller = "http://127.0.0.1:1"\n', UsageError, 'write cluster = "slurm:"'),
        (SLURM, UsageError, "has no [drill.site] folder"),
        (SLURM + 'partitions = "batch"\n', ConfigError, "partition"),
    ],
)
def test_a_file_that_does_not_suffice_is_refused(tmp_path: Path, text: str, error: type, words: str) -> None:
    """One sentence names the file, the place and what to write."""
    with pytest.raises(error) as caught:
        site_of(written(tmp_path, text))
    assert "eos.toml" in str(caught.value)
    assert words in str(caught.value)


def test_a_file_for_another_place_is_refused(tmp_path: Path) -> None:
    """`--config` without `--on site` would be read by nobody."""
    file = written(tmp_path, SLURM)
    assert isinstance(CliRunner().invoke(app, ["run", "kill9", "--config", str(file)]).exception, UsageError)


def test_sbatch_is_told_what_the_site_wants(tmp_path: Path) -> None:
    """Partition, account and the site's own options; the image goes to srun, the environment into the script."""
    config = SiteConfig(partition="batch", account="ops", options=("--time=30",))
    said = SlurmQueue(config, tmp_path, None).options(TrainingJob(nodes=4))
    assert [word for word in said if word.startswith(("--nodes", "--part", "--acc"))] == [
        "--nodes=4",
        "--partition=batch",
        "--account=ops",
    ]
    assert said[-1] == "--time=30"
    (comment,) = [word.partition("=")[2] for word in said if word.startswith("--comment=")]
    assert json.loads(comment) == {"holdfast": {"drill_ok": True}}
    script = batch_script(["run", "a b"], folder="/jobs", exports={"X": "1 2"}, srun=["--container-image=nemo"])
    assert "export X='1 2'" in script
    assert script.splitlines()[-1] == "srun --kill-on-bad-exit=1 --container-image=nemo run 'a b'"


def test_a_job_is_cancelled_before_it_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed first it would have failed, and the site's controller would requeue it; one that was requeued is cancelled."""
    queue, states = SlurmQueue(SiteConfig(), tmp_path, None), ["RUNNING", "COMPLETING", "PENDING", ""]
    given: list[str] = []

    async def run(argv: Sequence[str], **_: object) -> bytes:
        if argv[0] == "squeue":
            return states.pop(0).encode()
        given.append(" ".join(argv[1:]))
        return b""

    monkeypatch.setattr(queue._tool, "run", run)
    asyncio.run(queue.cancel("7"))
    kill = "--signal=KILL --full 7"
    assert given == ["7", kill, kill, "7", kill]


def test_a_job_is_ended_though_slurmctld_is_away_for_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No answer does not say that the job is over: it is asked again, and cancelled again."""
    queue, answers = SlurmQueue(SiteConfig(), tmp_path, None), ["away", "away", "RUNNING", ""]
    given: list[str] = []

    async def run(argv: Sequence[str], **_: object) -> bytes:
        if argv[0] == "squeue":
            if answers[0] == "away":
                answers.pop(0)
                raise TemporaryOrderError("unable to contact slurm controller")
            return answers.pop(0).encode()
        given.append(" ".join(argv[1:]))
        return b""

    monkeypatch.setattr(queue._tool, "run", run)
    asyncio.run(queue.cancel("7"))
    assert given.count("7") == 3
    assert not answers


class FakeQueue:
    """A scheduler that answers late, and refuses to end one job."""

    breaker = None

    def __init__(self) -> None:
        self.answer = asyncio.Event()
        self.asked = asyncio.Event()
        self.said: list[str] = []

    async def submit(self, job: TrainingJob) -> JobKey:
        self.asked.set()
        await self.answer.wait()
        return JobKey("slurm", "8")

    async def cancel(self, job: str, *, limit_s: float = 60.0) -> None:
        self.said.append(job)
        if job == "7":
            raise LinkError("job 7 did not end")

    async def close(self) -> None:
        self.said.append("closed")


def test_ctrl_c_while_a_job_is_submitted_leaves_none(tmp_path: Path) -> None:
    """The scheduler has it already and its number comes later: it is ended. One that cannot be ended is told of."""

    async def body() -> FakeQueue:
        stage, queue = SiteStage(SiteSettings(config=SiteConfig(), scheduler="slurm"), SystemClock()), FakeQueue()
        stage._queue, stage._mine = queue, {JobKey("slurm", "7")}
        stage._ending.push_async_callback(queue.close)
        submitting = asyncio.create_task(stage.submit(TrainingJob()))
        await queue.asked.wait()
        submitting.cancel()
        await asyncio.sleep(0)
        queue.answer.set()
        with pytest.raises(asyncio.CancelledError):
            await submitting
        with pytest.raises(LinkError, match="job 7"):
            await stage.close()
        return queue

    said = asyncio.run(body()).said
    assert sorted(said) == ["7", "8", "closed"]
    assert said[-1] == "closed"


SLEEPER = """
import asyncio, signal
from holdfast.cli import drill
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup, as tests may run, it is ignored
drill._end_in_order()
async def main():
    print("up", flush=True)
    try:
        await asyncio.sleep(60)
    finally:
        await asyncio.sleep(0)
        print("ended", flush=True)
asyncio.run(main())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_time_limit_ends_a_drill_as_ctrl_c_does(number: signal.Signals) -> None:
    """`timeout 600 holdfast drill run`, or a terminal that is gone: what was started is ended first."""
    process = subprocess.Popen([sys.executable, "-c", SLEEPER], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process:
        assert process.stdout.readline() == "up\n"
        process.send_signal(number)
        assert process.communicate(timeout=60)[0] == "ended\n"


def test_a_pytorchjob_has_the_sites_image_and_volume() -> None:
    """One container a pod, the claim mounted where the jobs' folders are."""
    key = JobKey("prod", "default.pytorchjob.drill-1")
    pytorch = container(["run"], folder="/jobs/x", image="nemo:25.04", gpus=0, env={"A": "b"})
    form = pytorch_job(TrainingJob(name="drill-1", nodes=2), key, pytorch, folder="/jobs/x", claim=("shared", "/jobs"))
    pod = form["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]
    (one,) = pod["containers"]
    assert (one["image"], one["resources"]) == ("nemo:25.04", {})
    assert {"name": "jobs", "mountPath": "/jobs"} in one["volumeMounts"]
    assert {"name": "HOLDFAST_JOB_ID", "value": key.id} in one["env"]
    assert form["metadata"]["annotations"]["holdfast.dev/drill-ok"] == "true"


def test_a_site_is_held_to_its_own_measure() -> None:
    """Its policy may requeue, its starts take their time; a program of its own has losses that nobody knows."""
    plain = find("crash_segfault")
    made = fitted(plain, SiteConfig(start_s=300.0, nodes=8, ranks_per_node=4))
    assert made.expect.remedies == (Remedy.RESTART_IN_PLACE, Remedy.REQUEUE)
    assert made.expect.recover_s_max == (plain.expect.recover_s_max or 0) + 300.0
    assert (made.job.nodes, made.job.ranks_per_node, made.expect.loss_matches) == (8, 4, True)
    own = fitted(find("good"), SiteConfig(command=("train.py",)))
    assert (own.expect.loss_matches, own.expect.job_completes) == (False, False)


def test_the_job_runs_the_sites_program() -> None:
    """`command` and `python` of the file, below `holdfast run`."""
    config = SiteConfig(command=("train.py", "--lr=1"), python="/opt/bin/python")
    site = SiteSettings(config=config, scheduler="slurm")
    job = job_for(find("kill9"), CampaignSettings(folder=Path("/none"), on="site", site=site))
    words = ["/opt/bin/python", "-m", "holdfast", "run", "--nproc-per-node", "1", "train.py", "--lr=1"]
    assert job.argv() == words
    assert TrainingJob().argv()[0] == sys.executable


def test_nothing_but_the_job_is_broken() -> None:
    """A drill that hits nodes or the scheduler is left out, unless the cluster is an embedded one."""
    slurm = SiteSettings(config=SiteConfig(), scheduler="slurm")
    local = SiteSettings(config=SiteConfig(), scheduler="local")
    own = SiteSettings(config=SiteConfig(command=("train.py",)), scheduler="slurm")
    assert [lacking_on_site(find(name).definition, slurm) for name in TABLE] == [""] * 7
    assert "only on a cluster that is brought up" in lacking_on_site(find("node_loss").definition, slurm)
    assert lacking_on_site(find("node_loss").definition, local) == ""
    assert "brought up" in lacking_on_site(find("slurmctld_restarted").definition, local)
    assert "own workload" in lacking_on_site(find("corrupt_checkpoint").definition, own)

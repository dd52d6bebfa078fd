"""`holdfast run` in a batch script of a real Slurm: one launcher per node by srun, restarts in place, requeue by right."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest

from holdfast.adapters.slurm.output import node_names
from holdfast.errors import EXIT_DO_NOT_REQUEUE, EXIT_RESTART_ME
from holdfast.lab.settings import LabSettings
from holdfast.lab.slurm_lab import SlurmLab
from holdfast.lab.waiting import wait_until
from slurm_fixture import need_slurm, short_folder

pytestmark = pytest.mark.cluster
LIMIT_S = 120.0


class Job:
    """A batch job that runs `holdfast run` on each of its nodes."""

    def __init__(self, lab: SlurmLab, folder: Path) -> None:
        self.lab = lab
        self.folder = folder
        self.out = folder / "job.out"
        self.job = ""

    def submit(self, run: str, *sbatch: str) -> None:
        script = (
            f"#!/bin/bash\nexport PATH={Path(sys.executable).parent}:$PATH\ncd {self.folder}\n"
            "echo script restart=${SLURM_RESTART_COUNT:-0} nodes=$SLURM_JOB_NODELIST at=$(date +%s.%N)\n"
            f"{run}\necho code=$?\n"
        )
        args = [f"--output={self.out}", "--open-mode=append", "--exclusive", *sbatch]
        self.job = self.lab.sbatch(args, script=script, cwd=self.folder)

    def text(self) -> str:
        return self.out.read_text(errors="replace") if self.out.exists() else ""

    def until(self, what: str, pattern: str) -> re.Match[str]:
        found: list[re.Match[str]] = []

        def there() -> bool:
            found[:] = re.finditer(pattern, self.text(), re.MULTILINE)
            return bool(found)

        wait_until(there, f"{what} in\n{self.text()[-3000:]}", limit_s=LIMIT_S, logs=(self.out,))
        return found[-1]


@pytest.fixture
def job(slurm_lab: SlurmLab, tmp_path: Path) -> Job:
    tmp_path.chmod(0o755)
    return Job(slurm_lab, tmp_path)


COUNT = """
import os, signal, sys, time
rank, attempt = int(os.environ["RANK"]), int(os.environ["HOLDFAST_ATTEMPT"])
print(f"began rank={rank} of={os.environ['WORLD_SIZE']} node={os.environ.get('SLURMD_NODENAME')} attempt={attempt}", flush=True)
while attempt == 0 and not os.path.exists("go"):
    time.sleep(0.01)
if attempt == 0 and rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(0.5 if attempt else 60)
"""


def test_launchers_of_two_nodes_restart_in_place(job: Job) -> None:
    """The launcher of the first node leads, the other follows; a killed rank brings attempt 1 on both, in the same job."""
    (job.folder / "count.py").write_text(COUNT)
    job.submit(
        f"srun --ntasks-per-node=1 holdfast run --job-dir {job.folder}/job --standbys 0 --tee all --nproc-per-node 1 count.py",
        "--nodes=2",
    )
    job.until("both ranks", r"began rank=1 of=2 .*attempt=0")
    job.until("the leader's word", r"attempt 0 \(epoch 1\): 2 ranks on node01, node02")
    (job.folder / "go").touch()
    job.until("attempt 1 on the second node", r"began rank=1 of=2 .*attempt=1")
    assert job.until("the end", r"^code=(\d+)$")[1] == "0"
    assert job.lab.job(job.job)["Restarts"] == "0"


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_real_training_goes_on_from_its_checkpoint(job: Job) -> None:
    """PyTorch on two nodes: rank 1 is killed in mid-training, the next attempt loads the newest checkpoint and ends well."""
    run = (
        f"srun --ntasks-per-node=1 holdfast run --job-dir {job.folder}/job --tee all --nproc-per-node 1 "
        "-m holdfast.workload.gpt_torch --steps 12 --checkpoint-every 3 --step-time 0.1 --loss-log loss.jsonl"
    )
    job.submit(run, "--nodes=2")
    loss = job.folder / "loss.jsonl"
    wait_until(
        lambda: loss.exists() and len(loss.read_text().splitlines()) >= 5, "five steps", limit_s=90.0, logs=(job.out,)
    )
    victims = [
        process.pid
        for process in psutil.process_iter(["environ"])
        if (process.info["environ"] or {}).get("RANK") == "1"
        and (process.info["environ"] or {}).get("HOLDFAST_JOB_DIR") == f"{job.folder}/job"
        and (process.info["environ"] or {}).get("HOLDFAST_ATTEMPT") == "0"
    ]
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    assert job.until("the end", r"^code=(\d+)$")[1] == "0"
    rows = [json.loads(line) for line in loss.read_text().splitlines()]
    second = [row["step"] for row in rows if str(row["attempt"]) == "1"]
    assert rows[-1]["step"] == 12
    assert second[0] > 1
    assert second == list(range(second[0], 13))


def test_a_lost_node_has_the_job_requeued_by_its_owner(job: Job, netns_lab: SlurmLab) -> None:
    """Nobody else is there to do it: let go, requeued, called back at once elsewhere, and it goes on with attempt 1."""
    (job.folder / "count.py").write_text(COUNT.replace("rank == 1", "rank == 9"))
    job.submit(
        f"srun --ntasks-per-node=1 holdfast run --job-dir {job.folder}/job --standbys 0 --tee all --nproc-per-node 1 count.py",
        "--nodes=2",
        "--requeue",
    )
    job.until("both ranks", r"began rank=1 of=2 .*attempt=0")
    job.until("the leader's word", r"attempt 0 \(epoch 1\)")
    off = time.time()
    netns_lab.node("crash", "node02")
    again = job.until("the second run", r"^script restart=1 nodes=(\S+) at=([\d.]+)$")
    assert "node02" not in again[1]
    assert float(again[2]) - off < 20.0
    job.until("attempt 1", r"began rank=1 of=2 .*attempt=1")
    assert job.until("the end", r"restart=1 [\s\S]*^code=(\d+)$")[1] == "0"


def test_without_a_controller_a_follower_calls_the_job_back_that_lost_its_leader(tmp_path: Path) -> None:
    """The node of the batch script is gone, and Slurm alone may say so. It queues the job for two minutes hence, as it
    does by default; the last act of one of the followers is to have it start as soon as it is queued."""
    need_slurm(netns=True)
    tmp_path.chmod(0o755)
    with short_folder() as place:
        stock = f"AuthInfo=socket={place.resolve()}/munge/socket\nTCPTimeout=1\nKillWait=30"
        settings = LabSettings(nodes=4, netns=True, boot_s=0.3, slurmd_timeout_s=5, extra_conf=stock)
        with SlurmLab.start(settings, place) as lab:
            job = Job(lab, tmp_path)
            (tmp_path / "count.py").write_text(COUNT.replace("rank == 1", "rank == 9"))
            job.submit(
                f"srun --ntasks-per-node=1 holdfast run --job-dir {tmp_path}/job --standbys 0 --tee all --nproc-per-node 1 count.py",
                "--nodes=3",
                "--requeue",
            )
            job.until("all ranks", r"began rank=2 of=3 .*attempt=0")
            lab.crash("node01")
            again = job.until("the second run", r"^script restart=1 nodes=(\S+) at=([\d.]+)$")
            assert "node01" not in again[1]
            told = [log.read_text() for log in (tmp_path / "job" / "logs" / "attempt-0").glob("launcher-node0[23].log")]
            assert sum("node01 is lost, and the scheduler has requeued the job" in text for text in told) == 1
            assert lab.job(job.job)["ExcNodeList"] == "node01"


GOES_ON = """
import os, sys, time
rank, attempt = int(os.environ["RANK"]), int(os.environ["HOLDFAST_ATTEMPT"])
print(f"began rank={rank} node={os.environ.get('SLURMD_NODENAME')} attempt={attempt}", flush=True)
while not os.path.exists("go"):
    time.sleep(0.05)
exec(open("go").read())
"""


def outlives_a_lost_node(lab: SlurmLab, job: Job, *, which: str, requeue: str, end: str, code: int) -> None:
    """Switch a node of three off (`spare`: the one that the ranks do not use), wait until Slurm has given it up, and
    see that the same job and the same launchers still train, and that the script sees how they `end`."""
    (job.folder / "goes_on.py").write_text(GOES_ON)
    run = f"srun --ntasks-per-node=1 holdfast run --nnodes 2 --job-dir {job.folder}/job --standbys 0 --tee all"
    job.submit(f"{run} --nproc-per-node 1 goes_on.py", "--nodes=3", requeue)
    for rank in (0, 1):
        job.until("both ranks", rf"began rank={rank} .*attempt=0")
    job.until("the leader's word", r"attempt 0 \(epoch 1\)")
    used = set(re.findall(r"began rank=\d node=(\S+) attempt=0", job.text()))
    shown = lab.job(job.job)
    (spare,) = set(node_names(shown["NodeList"])) - used
    lost = spare if which == "spare" else (used - {shown["BatchHost"]}).pop()
    lab.crash(lost)
    attempt = 0
    if which != "spare":
        job.until("attempt 1 on the spare", rf"began rank=\d node={spare} attempt=1")
        attempt = 1
    job.until("let go", r"the job goes on with")
    wait_until(
        lambda: lab.node_states()[lost].startswith("down"), "Slurm gives it up", limit_s=60, logs=(lab.ctld_log,)
    )
    seen = lab.job(job.job)
    assert (seen["JobState"], seen["Restarts"], seen["NumNodes"]) == ("RUNNING", "0", "2")
    assert f"attempt={attempt + 1}" not in job.text()
    (job.folder / "go.new").write_text(end)
    (job.folder / "go.new").rename(job.folder / "go")
    assert job.until("the end", r"^code=(\d+)$")[1] == str(code)


@pytest.mark.parametrize(
    ("which", "requeue", "end", "code"),
    [
        ("in use", "--requeue", "raise ValueError('batch is empty')", EXIT_DO_NOT_REQUEUE),
        pytest.param("spare", "--requeue", "", 0, marks=pytest.mark.soak),
        pytest.param("in use", "--no-requeue", f"sys.exit({EXIT_RESTART_ME})", EXIT_RESTART_ME, marks=pytest.mark.soak),
        pytest.param("spare", "--no-requeue", "", 0, marks=pytest.mark.soak),
    ],
)
def test_a_lost_node_ends_no_job_that_goes_on_without_it(
    job: Job, netns_lab: SlurmLab, which: str, requeue: str, end: str, code: int
) -> None:
    """Past SlurmdTimeout the same attempt still trains: the node was let go before Slurm gave it up. The launchers'
    exit code reaches the script, although srun does not hear of the lost node's."""
    outlives_a_lost_node(netns_lab, job, which=which, requeue=requeue, end=end, code=code)

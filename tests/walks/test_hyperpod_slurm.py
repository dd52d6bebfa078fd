"""W1: the batch script of a Megatron-LM user with auto-resume, on a real Slurm.

The training is real (`examples/megatron/pretrain_gpt.py`: gloo on processors), GPUs and dcgmi are emulated. In the
site's profile `holdfast srun` takes srun's place; the SPANK plugin that does so is tested in tests/deploy/test_spank.py.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.walks.login_node import holdfast, process_of

from holdfast.adapters.slurm.output import node_names
from holdfast.lab.settings import LabSettings
from holdfast.lab.slurm_lab import SlurmLab
from holdfast.lab.waiting import wait_until
from slurm_fixture import need_slurm, short_folder
from slurm_keeper import Kept, keeping

pytestmark = pytest.mark.cluster

TRAINER = Path(__file__).parents[2] / "examples" / "megatron" / "pretrain_gpt.py"
ITERATIONS = 40
POLICY = 'preset = "hyperpod-slurm"\n[brake]\nmax_percent = 100\nmax_nodes = 64\n'
LATE_S = 5.0
"""A line is read within a tenth of a second; a machine with other work may take longer."""
LIMIT_S = 90.0
SCRIPT = """\
#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive

AUTO_RESUME="--auto-resume=1"
MASTER=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -1)
TORCHRUN_ARGS=(
  --nproc_per_node=1 --nnodes=$SLURM_JOB_NUM_NODES
  --rdzv_id=$SLURM_JOB_ID --rdzv_backend=c10d --rdzv_endpoint=$MASTER:$((20000 + SLURM_JOB_ID))
)
srun ${AUTO_RESUME} -l torchrun "${TORCHRUN_ARGS[@]}" {trainer} \\
  --tensor-model-parallel-size 1 --pipeline-model-parallel-size 1 --num-layers 2 --hidden-size 32 \\
  --num-attention-heads 2 --seq-length 16 --max-position-embeddings 16 --micro-batch-size 2 --global-batch-size 8 \\
  --train-iters {iterations} --lr 0.003 --min-lr 0.0001 --lr-decay-style linear --data-path my-gpt2_text_document \\
  --vocab-file gpt2-vocab.json --merge-file gpt2-merges.txt --split 98,2,0 --clip-grad 1.0 --weight-decay 0.1 \\
  --save {folder}/ckpt --load {folder}/ckpt --save-interval 1 --log-interval 1 --iteration-s {pace}
"""


PROFILE = """\
# /etc/profile.d/holdfast.sh of this site
export PATH={bin}:$PATH HOLDFAST_CONTROLLER_FILE={site}/controller.json HOLDFAST_TOKEN_FILE={site}/agent-token
srun() { holdfast srun "$@"; }
[ -n "$BASH_VERSION" ] && export -f srun
"""
REPLACE = """\
#!/bin/sh
# This site's provider: another machine under the old name, which registers in the main partition only.
scontrol update PartitionName=batch Nodes="$(sinfo -h -p batch -N -o %N | grep -vx "$1" | paste -sd,)" || exit
exec {bin}/replace-node "$1"
"""
HOME = """\
#!/bin/sh
# The machine is new: its home folders are the shared ones again, and the other hosts learn its own key.
ln -s {shared}/home {nodes}/$HOLDFAST_NODE/home || exit
ssh-keygen -q -t ed25519 -N "" -f {nodes}/$HOLDFAST_NODE/ssh_host_ed25519_key || exit
echo "$HOLDFAST_NODE $(cut -d" " -f1,2 {nodes}/$HOLDFAST_NODE/ssh_host_ed25519_key.pub)" >>{shared}/known_hosts
"""
PARTITIONS = """\
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
PartitionName=batch Nodes=node[01-06] MaxTime=INFINITE State=UP
"""
OLD_KEY = "AAAAC3NzaC1lZDI1NTE5AAAAIJm1oldoldoldoldoldoldoldoldoldoldoldoldoldA"


@pytest.fixture(scope="module")
def site() -> Iterator[Kept]:
    """A site as HyperPod's: agents, GPUs (emulated), the preset, a provider and the two hooks of docs/repair.md."""
    need_slurm(netns=True)
    wanted = LabSettings(nodes=6, netns=True, gpus=2, boot_s=6.0, agents=True, devices=True, extra_conf=PARTITIONS)
    with short_folder() as folder, SlurmLab.start(wanted, folder) as lab:
        places = {"bin": folder / "bin", "shared": folder / "shared", "nodes": folder / "nodes"}
        (folder / "shared" / "home" / "mei").mkdir(parents=True)
        (folder / "shared" / "known_hosts").write_text(
            "".join(f"{name} ssh-ed25519 {OLD_KEY}\n" for name in lab.facts.names)
        )
        for name, text in (("provider", REPLACE), ("remap-home", HOME)):
            (folder / "bin" / name).write_text(text.format(**places))
            (folder / "bin" / name).chmod(0o755)
        config = (
            f'[slurm]\nreplace_program = ["{folder}/bin/provider"]\n[repair]\nafter_replace = [\n'
            f'  ["ssh-keygen", "-f", "{folder}/shared/known_hosts", "-R", "{{node}}"],\n'
            f'  ["{folder}/bin/remap-home", "{{node}}"],\n]\n'
        )
        with keeping(lab, folder, policy=POLICY, config=config, listen=f"{lab.facts.ctld_address}:0") as kept:
            kept.until(lambda: all(kept.node(name).get("agent_boot_id") for name in lab.facts.names), "agents")
            yield kept


def losses(text: str) -> dict[int, str]:
    """Iteration -> its last loss, of Megatron's lines behind srun's label."""
    return {
        int(m[1]): m[2]
        for m in re.finditer(r"^\d: .*\biteration +(\d+)/ +\d+ \|.* lm loss: (\S+) \|", text, re.MULTILINE)
    }


def filled(text: str, places: dict[str, object]) -> str:
    """Shell text has braces of its own."""
    for name, value in places.items():
        text = text.replace(f"{{{name}}}", str(value))
    return text


class Job:
    """One run of the script in a folder of its own."""

    def __init__(self, lab: SlurmLab, folder: Path, *, kept: Kept | None = None, pace: float = 0.05) -> None:
        """Submit it from a login shell. Without a controller (`kept`) also without auto-resume, which srun alone lacks."""
        folder.mkdir()
        folder.chmod(0o755)
        self.lab, self.folder, self.out = lab, folder, folder / "slurm.out"
        script, profile = folder / "pretrain.sbatch", folder / "profile.sh"
        places = {"trainer": TRAINER, "folder": folder, "iterations": ITERATIONS, "pace": pace}
        script.write_text(filled(SCRIPT if kept else SCRIPT.replace("--auto-resume=1", ""), places))
        site = kept.folder / "controller" if kept else ""
        head = PROFILE if kept else PROFILE[: PROFILE.index("srun()")]
        profile.write_text(filled(head, {"bin": Path(sys.executable).parent, "site": site}))
        submit = f"source {profile}; exec sbatch --parsable --output={self.out} {script}"
        self.id = lab.run(["bash", "-c", submit], cwd=folder).strip()

    def text(self) -> str:
        return self.out.read_text(errors="replace") if self.out.exists() else ""

    def newest_saved(self) -> int:
        saved = re.findall(r"successfully saved checkpoint from iteration +(\d+)", self.text())
        return int(saved[-1]) if saved else 0

    def saved_at(self, iteration: int) -> float:
        """When the tracker could name it: its folder's file was complete."""
        return max(path.stat().st_mtime for path in (self.folder / f"ckpt/iter_{iteration:07d}").rglob("*"))

    def training_on(self, node: str) -> int:
        """The process of the training on a node, not torchrun's own."""
        wanted = (node, self.id, str(self.lab.facts.conf))

        def is_it(_: psutil.Process, words: list[str], env: dict[str, str]) -> bool:
            of = (env.get("SLURMD_NODENAME"), env.get("SLURM_JOB_ID"), env.get("SLURM_CONF"))
            return of == wanted and words[1:2] != ["-m"] and str(TRAINER) in words[:3]

        return process_of(f"training of job {self.id} on {node}", is_it).pid


@pytest.mark.walk("W1.1")
@pytest.mark.walk("W1.2")
@pytest.mark.timeout(240)
def test_the_users_script_resumes_with_the_losses_of_an_undisturbed_run(slurm_lab: SlurmLab, tmp_path: Path) -> None:
    """kill -9 of the training on the second node: the step runs again in the same allocation, from its newest iteration.

    The controller, which the site's profile names, shows both attempts: where each began, what it saved and when.
    """
    tmp_path.chmod(0o755)
    with keeping(slurm_lab, tmp_path / "c", listen=f"{slurm_lab.facts.ctld_address}:0") as kept:
        job = Job(slurm_lab, tmp_path / "job", kept=kept)
        wait_until(lambda: job.newest_saved() >= 10, "ten iterations", limit_s=LIMIT_S, logs=(job.out,))
        second = node_names(slurm_lab.job(job.id)["NodeList"])[1]
        os.kill(job.training_on(second), signal.SIGKILL)
        slurm_lab.until_job(job.id, "COMPLETED", limit_s=LIMIT_S)
        kept.until(lambda: kept.state(job.id) == "completed", "completed")
        told, seen = holdfast("job", job.id, kept=kept), kept.job(job.id)
        saves = [event for event in kept.events(job=job.id) if event["event"] == "checkpoint_saved"]
    calm = Job(slurm_lab, tmp_path / "calm")  # not beside the other: leases lapse where five trainings share two cores
    slurm_lab.until_job(calm.id, "COMPLETED", limit_s=LIMIT_S)
    (resumed,) = re.findall(r"successfully loaded checkpoint from .* at iteration (\d+)", job.text())
    assert int(resumed) >= 10
    assert slurm_lab.job(job.id)["Restarts"] == "0", (
        f"{told}\n{(job.folder / f'holdfast-run-{job.id}/step-0/story.txt').read_text()}"
    )
    assert list(losses(job.text())) == list(range(1, ITERATIONS + 1))
    assert losses(job.text()) == losses(calm.text())

    first, again = seen["attempts"]
    assert (first["first_step"], first["resumed_from"], first["durable_step"]) == (1, 0, int(resumed))
    assert (again["first_step"], again["resumed_from"]) == (int(resumed) + 1, int(resumed))
    assert (again["last_step"], again["durable_step"]) == (ITERATIONS, ITERATIONS)
    assert re.search(rf"{job.id}\(1\) .* {int(resumed) + 1}-{ITERATIONS} +{resumed} +{ITERATIONS} +exit 0", told), told
    assert saves[0]["step"] < 10, "saves of the first half second count, too; of lines read together the newest is told"
    for save in saves:
        written = job.saved_at(save["step"])
        assert written - 0.01 <= save["at"] <= written + LATE_S, save


def machines(lab: SlurmLab) -> dict[str, str]:
    """Node -> the machine that answers to its name."""
    return {name: node["instance_id"] for name, node in lab.status()["nodes"].items()}


def shown(lab: SlurmLab, node: str) -> tuple[str, str]:
    """State and reason, as sinfo shows them."""
    state, _, reason = lab.run(["sinfo", "-h", "-N", "-p", "main", "-n", node, "-o", "%t %E"]).strip().partition(" ")
    return state, reason


def mark(lab: SlurmLab, node: str, state: str, reason: str) -> None:
    """What an operator types."""
    lab.run(["scontrol", "update", f"node={node}", f"state={state}", f"reason={reason}"])


def assert_told(log: Path, *wanted: str | re.Pattern[str]) -> None:
    """These lines stand in the log, in this order."""
    lines = iter(log.read_text(errors="replace").splitlines())
    for told in wanted:
        pattern = re.compile(re.escape(told)) if isinstance(told, str) else told
        assert any(pattern.search(line) for line in lines), f"{pattern.pattern}, after the lines before it"


def started(job: str) -> re.Pattern[str]:
    """What slurmctld logs of a start: by its backfill plugin (`Started`), or by its main scheduler (`Allocate`)."""
    return re.compile(rf"(Started JobId={job} in main on|Allocate JobId={job} NodeList=.* Partition=main)")


def assert_put_right(site: Kept, node: str) -> None:
    """In all its partitions, with the shared home folder, under its new host key; only our own words are gone."""
    lab, shared = site.lab, site.lab.folder / "shared"
    assert lab.run(["sinfo", "-h", "-N", "-n", node, "-o", "%R"]).split() == ["main", "batch"]
    assert (lab.node_dir(node) / "home" / "mei").is_dir()
    keys = [line.split()[2] for line in (shared / "known_hosts").read_text().splitlines() if line.split()[0] == node]
    assert keys == [(lab.node_dir(node) / "ssh_host_ed25519_key.pub").read_text().split()[1]] != [OLD_KEY]
    assert "Comment=" not in lab.run(["scontrol", "show", "node", node])


@pytest.mark.walk("W1.3")
@pytest.mark.walk("W1.5")
@pytest.mark.timeout(240)
def test_a_gpu_error_and_kill_9(site: Kept, tmp_path: Path) -> None:
    """The second node shows Action:Replace, is replaced, checked and returned; the job goes on elsewhere where it was.

    Who knows Slurm alone reads all of it in sinfo, squeue, scontrol and slurmctld.log.
    """
    tmp_path.chmod(0o755)
    lab, before = site.lab, machines(site.lab)
    job = Job(lab, tmp_path / "job", kept=site, pace=0.1)
    wait_until(lambda: job.newest_saved() >= 5, "five iterations", limit_s=LIMIT_S, logs=(job.out,))
    second = node_names(lab.job(job.id)["NodeList"])[1]
    dcgmi = [f"{lab.node_dir(second)}/devices/bin/dcgmi", "test", "--inject", "--gpuid", "0", "-f", "319", "-v", "4"]
    assert "Successfully injected" in subprocess.run(dcgmi, capture_output=True, text=True, check=True).stdout
    os.kill(job.training_on(second), signal.SIGKILL)

    site.until(lambda: shown(lab, second) in {("failg", "Action:Replace"), ("fail", "Action:Replace")}, "marked")
    why = "[holdfast] 4 uncorrectable memory errors on GPU 0"
    assert f"Comment={why} ({second}, GPU 0)" in lab.run(["scontrol", "show", "node", second])
    assert re.search(rf"^Action:Replace .* {second}$", lab.run(["sinfo", "-R"]), re.MULTILINE)
    site.until(lambda: lab.run(["squeue", "-h", "-j", job.id, "-o", "%t %x"]).split() == ["R", second], "it runs again")
    again = lab.job(job.id)
    assert second not in node_names(again["NodeList"])
    assert (again["Restarts"], again["AdminComment"]) == ("1", why.replace("] ", "] requeued: "))

    site.until(lambda: shown(lab, second) == ("idle", "none"), "it is back")
    assert {name for name, machine in machines(lab).items() if machine != before[name]} == {second}
    assert any("passed its checks" in line for line in site.node(second)["story"])
    assert_put_right(site, second)
    lab.until_job(job.id, "COMPLETED", limit_s=LIMIT_S)
    old = (job.folder / "slurm.attempt-0.out").read_text()
    (resumed,) = re.findall(r"successfully loaded checkpoint from .* at iteration (\d+)", job.text())
    assert int(resumed) == max(map(int, re.findall(r"successfully saved checkpoint from iteration +(\d+)", old)))
    assert list(losses(job.text())) == list(range(int(resumed) + 1, ITERATIONS + 1))
    assert_told(
        lab.ctld_log,
        started(job.id),
        f"Requeuing JobId={job.id}",
        f"setting exc_nodes to {second} for JobId={job.id}",
        started(job.id),
        f"Node {second} rebooted",
        "setting nodes to node[01-06] for partition batch",
        f"update_node: node {second} state set to IDLE",
    )
    assert_told(
        lab.ctld_log,
        f"update_node: node {second} reason set to: Action:Replace",
        f"update_node: node {second} state set to FAILING",
        f"setting admin_comment to {why.replace('] ', '] requeued: ')} for JobId={job.id}",
    )


@pytest.mark.walk("W1.4")
@pytest.mark.walk("W1.5")
@pytest.mark.timeout(240)
def test_repairs_asked_for_by_hand(site: Kept, tmp_path: Path) -> None:
    """Action:Replace and Action:Reboot: under a job after its end, with state down at once, without a job at once.

    A near miss is reported and nothing is done.
    """
    tmp_path.chmod(0o755)
    lab, before = site.lab, machines(site.lab)
    options, end = ["--exclusive", "--requeue", "--output=/dev/null", "--wrap"], tmp_path / "end"
    stays = lab.sbatch([*options, f"until [ -e {end} ]; do sleep 0.1; done"])
    moves = lab.sbatch([*options, f"until [ -e {end} ]; do sleep 0.1; done"])
    under, down = (lab.until_job(job, "RUNNING")["NodeList"] for job in (stays, moves))
    reboots, swaps, *nearly = (name for name in lab.facts.names if name not in {under, down})
    boots = {name: node["boot_id"] for name, node in lab.status()["nodes"].items()}

    mark(lab, under, "fail", "Action:Replace")
    mark(lab, nearly[0], "fail", "Action: Replace")
    mark(lab, nearly[1], "fail", "action:replace")
    mark(lab, down, "down", "Action:Replace")
    mark(lab, reboots, "fail", "Action:Reboot")
    mark(lab, swaps, "fail", "Action:Replace")
    assert shown(lab, under) == ("failg", "Action:Replace")
    assert lab.job(moves)["Restarts"] == "1", "requeued at once"

    for node in (reboots, swaps, down):
        site.until(lambda name=node: shown(lab, name) in {("idle", "none"), ("alloc", "none")}, f"{node} is back")
    lab.until_job(moves, "RUNNING", limit_s=LIMIT_S)
    now = lab.status()["nodes"]
    assert {name for name, machine in machines(lab).items() if machine != before[name]} == {swaps, down}
    assert {name for name, node in now.items() if node["boot_id"] != boots[name]} == {swaps, down, reboots}
    assert (lab.job(stays)["JobState"], shown(lab, under)) == ("RUNNING", ("failg", "Action:Replace"))

    end.touch()
    site.until(lambda: shown(lab, under) == ("idle", "none"), "it is replaced after its job's end")
    assert lab.job(stays)["JobState"] == "COMPLETED"
    assert {name for name, machine in machines(lab).items() if machine != before[name]} == {swaps, down, under}
    for node in (swaps, down, under):
        assert_put_right(site, node)
    for node, reason in zip(nearly, ("Action: Replace", "action:replace"), strict=True):
        assert shown(lab, node) == ("fail", reason)
        assert f"its reason '{reason}' asks for nothing; Action:Replace would, exactly so" in site.notices()
    for node, reason in ((down, "Action:Replace"), (reboots, "Action:Reboot"), (under, "Action:Replace")):
        assert_told(
            lab.ctld_log,
            f"update_node: node {node} reason set to: {reason}",
            f"Node {node} rebooted",
            f"update_node: node {node} state set to IDLE",
        )
    assert_told(lab.ctld_log, f"requeue job JobId={moves} due to failure of node {down}", f"Node {down} rebooted")
    for node in nearly:
        lab.resume(node)

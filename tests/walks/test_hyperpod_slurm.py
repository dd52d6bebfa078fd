"""W1: the batch script of a Megatron-LM user with auto-resume, on a real Slurm.

The training is real (`examples/megatron/pretrain_gpt.py`: gloo on processors). SLURM's SPANK plugin is not there, so that
`holdfast srun` stands in srun's place; the rest of the script is the user's.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from holdfast.adapters.slurm.output import node_names
from holdfast.lab.slurm_lab import SlurmLab
from holdfast.lab.waiting import wait_until
from slurm_keeper import Kept, keeping

pytestmark = pytest.mark.cluster

TRAINER = Path(__file__).parents[2] / "examples" / "megatron" / "pretrain_gpt.py"
ITERATIONS = 60
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
holdfast srun ${AUTO_RESUME} -l torchrun "${TORCHRUN_ARGS[@]}" {trainer} \\
  --tensor-model-parallel-size 1 --pipeline-model-parallel-size 1 --num-layers 2 --hidden-size 32 \\
  --num-attention-heads 2 --seq-length 16 --max-position-embeddings 16 --micro-batch-size 2 --global-batch-size 8 \\
  --train-iters {iterations} --lr 0.003 --min-lr 0.0001 --lr-decay-style linear --data-path my-gpt2_text_document \\
  --vocab-file gpt2-vocab.json --merge-file gpt2-merges.txt --split 98,2,0 --clip-grad 1.0 --weight-decay 0.1 \\
  --save {folder}/ckpt --load {folder}/ckpt --save-interval 1 --log-interval 1 --iteration-s 0.05
"""


def losses(text: str) -> dict[int, str]:
    """Iteration -> its last loss, of Megatron's lines behind srun's label."""
    return {
        int(m[1]): m[2]
        for m in re.finditer(r"^\d: .*\biteration +(\d+)/ +\d+ \|.* lm loss: (\S+) \|", text, re.MULTILINE)
    }


def holdfast(kept: Kept, *words: str) -> str:
    """What an operator's command prints."""
    assert kept.client is not None
    env = {**os.environ, "HOLDFAST_TOKEN_FILE": f"{kept.folder}/controller/token", "COLUMNS": "160"}
    argv = [sys.executable, "-m", "holdfast.cli.main", *words, "--url", str(kept.client.base_url)]
    return subprocess.run(argv, env=env, capture_output=True, text=True, check=True, timeout=60).stdout


class Job:
    """One run of the script in a folder of its own."""

    def __init__(self, lab: SlurmLab, folder: Path, *, auto_resume: bool = True, kept: Kept | None = None) -> None:
        folder.mkdir()
        folder.chmod(0o755)
        self.lab, self.folder, self.out = lab, folder, folder / "slurm.out"
        script = SCRIPT.replace("{trainer}", str(TRAINER)).replace("{folder}", str(folder))
        script = script.replace("{iterations}", str(ITERATIONS))
        if not auto_resume:
            script = script.replace("--auto-resume=1", "")
        head, body = script.split("\n\n", 1)
        profile = [f"export PATH={Path(sys.executable).parent}:$PATH"]
        if kept is not None:
            profile += [
                f"export HOLDFAST_CONTROLLER_FILE={kept.folder}/controller/controller.json",
                f"export HOLDFAST_TOKEN_FILE={kept.folder}/controller/agent-token",
            ]
        script = "\n".join([head, *profile, body])
        self.id = lab.sbatch([f"--output={self.out}", f"--chdir={folder}"], script=script, cwd=folder)

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
        for process in psutil.process_iter():
            try:
                words, env = process.cmdline(), process.environ()
            except psutil.Error:
                continue
            of = (env.get("SLURMD_NODENAME"), env.get("SLURM_JOB_ID"), env.get("SLURM_CONF"))
            if of == (node, self.id, str(self.lab.facts.conf)) and words[1:2] != ["-m"] and str(TRAINER) in words[:3]:
                return process.pid
        raise AssertionError(f"no training of job {self.id} on {node}")


@pytest.mark.walk("W1.1")
@pytest.mark.walk("W1.2")
@pytest.mark.timeout(240)
def test_the_users_script_resumes_with_the_losses_of_an_undisturbed_run(slurm_lab: SlurmLab, tmp_path: Path) -> None:
    """kill -9 of the training on the second node: the step runs again in the same allocation, from its newest iteration.

    The controller, which the site's profile names, shows both attempts: where each began, what it saved and when.
    """
    tmp_path.chmod(0o755)
    with keeping(slurm_lab, tmp_path / "c", listen=f"{slurm_lab.facts.ctld_address}:0") as kept:
        calm = Job(slurm_lab, tmp_path / "calm", auto_resume=False)
        job = Job(slurm_lab, tmp_path / "job", kept=kept)
        wait_until(lambda: job.newest_saved() >= 10, "ten iterations", limit_s=LIMIT_S, logs=(job.out,))
        second = node_names(slurm_lab.job(job.id)["NodeList"])[1]
        os.kill(job.training_on(second), signal.SIGKILL)
        slurm_lab.until_job(job.id, "COMPLETED", limit_s=LIMIT_S)
        slurm_lab.until_job(calm.id, "COMPLETED", limit_s=LIMIT_S)
        kept.until(lambda: kept.state(job.id) == "completed", "completed")
        told, seen = holdfast(kept, "job", job.id), kept.job(job.id)
        saves = [event for event in kept.events(job=job.id) if event["event"] == "checkpoint_saved"]
    (resumed,) = re.findall(r"successfully loaded checkpoint from .* at iteration (\d+)", job.text())
    assert int(resumed) >= 10
    assert slurm_lab.job(job.id)["Restarts"] == "0"
    assert list(losses(job.text())) == list(range(1, ITERATIONS + 1))
    assert losses(job.text()) == losses(calm.text())

    first, again = seen["attempts"]
    assert (first["first_step"], first["resumed_from"], first["durable_step"]) == (1, 0, int(resumed))
    assert (again["first_step"], again["resumed_from"]) == (int(resumed) + 1, int(resumed))
    assert (again["last_step"], again["durable_step"]) == (ITERATIONS, ITERATIONS)
    assert re.search(rf"{job.id}\(1\) .* {int(resumed) + 1}-{ITERATIONS} +{resumed} +{ITERATIONS} +exit 0", told), told
    assert saves[0]["step"] <= 3, "the first saves count, too"
    for save in saves:
        written = job.saved_at(save["step"])
        assert written - 0.01 <= save["at"] <= written + LATE_S, save

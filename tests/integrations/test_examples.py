"""The examples, as users start them: a rank is killed, and the job ends at its step from a durable checkpoint."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.launch.conftest import Launched

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]

EXAMPLES = Path(__file__).parents[2] / "examples"


def killed_and_resumed(run: Launched, *, after: int) -> int:
    """Kill rank 0 once a checkpoint of at least step `after` is durable; the step that the next attempt loaded."""
    run.wait_event("checkpoint_saved", lambda event: event.durable and event.step >= after, limit_s=60)
    os.kill(run.rank_pid(0, attempt=0), signal.SIGKILL)
    first = run.wait_event("first_step_done", lambda event: event.attempt == 1, limit_s=60)
    assert run.wait(90) == 0
    return first.resumed_from


def test_fsdp_resumes_with_the_losses_of_an_undisturbed_run(launched: Callable[..., Launched], tmp_path: Path) -> None:
    """Two ranks with sharded state: killed, restored, and every loss equals the undisturbed run's to the last digit."""
    train = str(EXAMPLES / "fsdp" / "train.py")
    run = launched("--nproc-per-node", "2", train, "--steps", "400", "--checkpoint-dir", str(tmp_path / "a"))
    assert killed_and_resumed(run, after=20) >= 20
    calm = launched(
        "--nproc-per-node", "2", train, "--steps", "400", "--checkpoint-dir", str(tmp_path / "b"),
        job_dir=tmp_path / "job2",
    )  # fmt: skip
    assert calm.wait(90) == 0
    told = [dict(re.findall(r"step (\d+) loss (\S+)", one.text())) for one in (run, calm)]
    assert len(told[1]) == 400
    assert told[0] == told[1]


def test_lightning_resumes(launched: Callable[..., Launched], tmp_path: Path) -> None:
    """One callback: steps and durable checkpoints are known, and the restart loads one."""
    train = str(EXAMPLES / "lightning" / "train.py")
    run = launched("--nproc-per-node", "1", train, "--steps", "2000", "--checkpoint-dir", str(tmp_path / "ckpt"))
    assert killed_and_resumed(run, after=20) >= 20
    assert "training complete at step 2000" in run.text()


def test_megatron_resumes_by_its_log_lines_alone(launched: Callable[..., Launched], tmp_path: Path) -> None:
    """No line of Holdfast in the script: progress and checkpoints are read from Megatron's own lines."""
    train = str(EXAMPLES / "megatron" / "pretrain_gpt.py")
    folder = str(tmp_path / "ckpt")
    run = launched("--nproc-per-node", "2", train, "--train-iters", "200", "--iteration-s", "0.02",
                   "--save", folder, "--load", folder)  # fmt: skip
    run.wait_event("checkpoint_saved", lambda event: event.durable and event.step >= 40, limit_s=60)
    from tests.launch.conftest import environ_of, marked

    ranks = [pid for pid in marked(run.mark) if environ_of(pid).get("RANK") == "0"]
    os.kill(ranks[0], signal.SIGKILL)
    first = run.wait_event("first_step_done", lambda event: event.attempt == 1, limit_s=60)
    assert first.step > 40
    assert run.wait(90) == 0
    assert "successfully saved checkpoint from iteration     200" in run.text()

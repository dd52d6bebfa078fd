"""W3.3: a training loop of its own that saves by nvidia-resiliency-ext (the real package, over gloo on processors).

Between staging and finalization a save is held up from outside: by a named pipe where a file is to be written. What the
package asks of CUDA is answered by the CPU (`examples/nvrx/on_cpu.py`); nothing of the package itself is replaced.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.launch.conftest import Launched, environ_of, marked, wait_for
from tests.launch.conftest import launched as launched  # noqa: PLC0414 - a fixture
from tests.walks.login_node import holdfast, page, process_of

from holdfast.lab.slurm_lab import SlurmLab
from holdfast.lab.waiting import wait_until
from slurm_keeper import Kept

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

TRAIN = Path(__file__).parents[2] / "examples" / "nvrx" / "train.py"
SLOW_DISK = Path(__file__).with_name("slow_disk.py")
LIMIT_S = 90.0
LATE_S = 5.0
STEPS = 40
SAYS = (
    "SAVE_CHECKPOINT: iteration: {step}, ckpt saving takes {s:.3f} seconds",
    "Saved checkpoint to {path}",
    "    save-checkpoint ................................: ({s:.2f}, 1234.50)",
    "our saver: generation {step} is on the shared disk after {s:.3f} s",
)
SITE_RULE = """\
[[rule]]
id = "site.saved"
role = "checkpoint"
domain = "application"
severity = "info"
kind = "checkpoint-saved"
title = "Our saver has written a generation"
pattern = '''our saver: generation (?P<step>\\d+) is on the shared disk after (?P<elapsed_s>[\\d.]+) s'''
matches = ["our saver: generation 40 is on the shared disk after 1.250 s"]
"""
SCRIPT = """\
#!/bin/bash
#SBATCH --nodes=1
#SBATCH --exclusive
export HOLDFAST_CONTROLLER_FILE={controller}/controller/controller.json
export HOLDFAST_TOKEN_FILE={controller}/controller/agent-token
export OMP_NUM_THREADS=1
{python} -m holdfast run --nproc-per-node 2 --checkpoints {saved} {train} --saves async --dir {saved} --steps {steps}
"""


def losses(text: str) -> dict[int, set[str]]:
    """Step -> every loss that was printed for it."""
    told: dict[int, set[str]] = {}
    for step, loss in re.findall(r"step (\d+) loss (\S+)", text):
        told.setdefault(int(step), set()).add(loss)
    return told


def after_restart(text: str) -> list[int]:
    """Steps printed by the second attempt."""
    return [int(step) for step in re.findall(r"step (\d+) loss", text.split("attempt 1 (epoch", 1)[1])]


def saves(kept: Kept, job: str) -> list[dict[str, Any]]:
    """What the API tells of the job's checkpoints, oldest first."""
    assert kept.client is not None
    return kept.client.get(f"/v1/jobs/{job}/checkpoints").json()


def rank_of_job(rank: int, saved: Path) -> int:
    """The process of a rank of the training that saves there."""

    def is_it(process: psutil.Process, words: list[str], env: dict[str, str]) -> bool:
        if not {str(TRAIN), str(saved)} <= set(words) or env.get("RANK") != str(rank) or "spawn_main" in str(words):
            return False
        parent = process.parent()
        return parent is None or str(TRAIN) not in parent.cmdline()[:4]

    return process_of(f"rank {rank} that saves to {saved}", is_it).pid


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2 + 1000] ^= 1
    path.write_bytes(content)


@pytest.mark.walk("W3.3")
def test_a_save_that_was_staged_and_not_finished_never_gates_a_restart(slurm_lab: SlurmLab, tmp_path: Path) -> None:
    """Asynchronous saves on Slurm: step 30 is staged and held up, a bit of step 20 flips, rank 1 is killed.

    The API, `holdfast job` and the cockpit tell when each save was staged and durable; step 30 is not durable although
    training goes on. The job resumes from step 10, the newest complete one that is whole, and repeats its losses.
    """
    tmp_path.chmod(0o755)
    saved, out = tmp_path / "saved", tmp_path / "slurm.out"
    held = saved / "iter_0000030"
    kept = Kept(slurm_lab, tmp_path / "controller")
    kept.listen = f"{slurm_lab.facts.ctld_address}:0"
    try:
        kept.start()
        script = SCRIPT.format(controller=kept.folder, python=sys.executable, saved=saved, train=TRAIN, steps=STEPS)
        job = slurm_lab.sbatch([f"--output={out}", f"--chdir={tmp_path}"], script=script, cwd=tmp_path)

        def printed(step: int) -> bool:
            return out.exists() and f"step {step} loss" in out.read_text()

        # Before a start the launcher looks at what is there, so that the pipe comes after it.
        wait_until(lambda: printed(1), "the first step", limit_s=LIMIT_S, logs=(out,))
        held.mkdir(parents=True)
        os.mkfifo(held / "__1_0.distcp")
        # The loop waits for the save of step 30 before it begins the one of step 40.
        wait_until(lambda: printed(40), "step 40", limit_s=LIMIT_S, logs=(out,))
        both = {(20, True), (30, False)}
        kept.until(lambda: both <= {(one["step"], one["durable"]) for one in saves(kept, job)}, "step 30 is staged")
        told, seen, shown = saves(kept, job), holdfast("job", job, kept=kept), page(kept, f"/jobs/{job}")
        assert not (held / ".metadata").exists()
        written = (saved / "iter_0000020" / ".metadata").stat().st_mtime
        flip_a_bit(saved / "iter_0000020" / "__0_0.distcp")
        os.kill(rank_of_job(1, saved), signal.SIGKILL)
        slurm_lab.until_job(job, "COMPLETED", limit_s=LIMIT_S)
        kept.until(lambda: kept.state(job) == "completed", "completed")
        attempts, newest = kept.job(job)["attempts"], saves(kept, job)[-1]
    finally:
        kept.end()
    text = out.read_text()

    assert [one["durable"] for one in told if one["step"] == 30] == [False], told
    (durable,) = [one for one in told if one["step"] == 20 and one["durable"]]
    assert written - 0.01 <= durable["at"] <= written + LATE_S
    # Where the next save was staged before a look, the ranks' clocks no longer tell: the pages take the events' times.
    took = f"{durable['took_s']:.1f} s" if "took_s" in durable else r"(?:[\d.]+ s|-)"
    assert (newest["step"], newest["durable"]) == (STEPS, True)
    assert 0 < newest["took_s"] < LIMIT_S
    assert re.search(rf"30 +{job}\(0\) +[\d:]{{8}} +not yet +-", seen), seen
    assert re.search(rf"20 +{job}\(0\) +.* +[\d:]{{8}} +{took}", seen), seen
    assert re.search(r'<td class="n">30</td>.*?<td>not yet</td><td class="n">-</td>', shown), shown
    assert re.search(f'<td class="n">20</td>.*?<td class="n">{took}</td>', shown, re.DOTALL), shown

    assert "iter_0000030 is damaged: .metadata: missing, so the save was never finished: set aside" in text
    assert re.search(r"iter_0000020 is damaged: __0_0.distcp: the record at byte \d+: .* differs .*: set aside", text)
    assert after_restart(text) == list(range(11, STEPS + 1))
    assert {step for step, values in losses(text).items() if len(values) > 1} == set()
    assert [(one["resumed_from"], one["durable_step"]) for one in attempts] == [(0, 20), (10, STEPS)]
    good = holdfast("checkpoints", "verify", str(saved))
    assert f"Newest good one: iter_{STEPS:07d}." in good


@pytest.mark.walk("W3.3")
def test_a_local_save_with_a_torn_part_is_passed_over_and_a_damaged_copy_replaced(
    launched: Callable[..., Launched], tmp_path: Path
) -> None:
    """Local saves with replicas: rank 1 is killed while its part of step 30 is written, a copy of step 20 is cut.

    Step 30 is staged, never durable; the launcher sets its parts aside, and the damaged copy, so that rank 0 gets its
    part of step 20 from rank 1's disk. Step 30 is saved anew under the name that the torn file had.
    """
    saved, pipe = tmp_path / "saved", tmp_path / "pipe"
    os.mkfifo(pipe)
    run = launched(
        "--nproc-per-node", "2", "--checkpoints", str(saved), str(SLOW_DISK), str(pipe), "iter_0000030_1_local.dirty.pt",
        str(TRAIN), "--saves", "local", "--dir", str(saved), "--steps", str(STEPS), env={"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    run.wait_event("checkpoint_saved", lambda event: event.step == 30, limit_s=LIMIT_S)
    wait_for("step 40", lambda: "step 40 loss" in run.text(), LIMIT_S)
    torn = saved / "1" / "iter_0000030_1_local.dirty.pt"
    wait_for("half a file", lambda: torn.exists() and torn.stat().st_size, LIMIT_S)
    listed = json.loads(holdfast("checkpoints", "list", str(saved), "--json"))["checkpoints"]
    told = [(event.step, event.durable) for event in run.events("checkpoint_saved")]
    pipe.unlink()
    os.truncate(saved / "0" / "iter_0000020_0_local.pt", 1000)
    rank = next(pid for pid in marked(run.mark) if environ_of(pid).get("RANK") == "1")
    os.kill(rank, signal.SIGKILL)
    assert run.wait(LIMIT_S) == 0
    text = run.text()

    assert [(one["step"], one["layout"], one["ok"]) for one in listed] == [
        (30, "nvrx-local", False),
        (20, "nvrx-local", True),
    ]
    assert listed[0]["problem"] == "1/iter_0000030_1_local.pt: missing, so the save was never finished"
    assert (20, True) in told
    assert (30, True) not in told
    assert "iter_0000030 is damaged: 1/iter_0000030_1_local.pt: missing, so the save was never finished" in text
    assert "0/iter_0000020_0_local.pt is damaged: set aside, there is another copy" in text
    assert (saved / "1" / "bad-iter_0000030_1_local.dirty.pt").is_file()
    assert after_restart(text) == list(range(21, STEPS + 1))
    assert {step for step, values in losses(text).items() if len(values) > 1} == set()
    (first,) = [event for event in run.events("first_step_done") if event.attempt == 1]
    assert first.resumed_from == 20
    assert f"Newest good one: iter_{STEPS:07d}." in holdfast("checkpoints", "verify", str(saved))


@pytest.mark.walk("W3.3")
def test_saves_are_recognised_by_their_lines_alone(launched: Callable[..., Launched], tmp_path: Path) -> None:
    """No line of Holdfast in the script: three forms that the catalogue knows, and one that the site's own rule tells."""
    plain = [line for line in TRAIN.read_text().splitlines(keepends=True) if "(holdfast)" not in line]
    (tmp_path / "train.py").write_text("".join(plain))
    (tmp_path / "on_cpu.py").write_text(TRAIN.with_name("on_cpu.py").read_text())
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "saves.toml").write_text(SITE_RULE)
    (tmp_path / "holdfast.toml").write_text('rules = "rules"\n')
    saved = tmp_path / "saved"
    run = launched(
        "--nproc-per-node", "2", str(tmp_path / "train.py"), "--dir", str(saved), "--steps", str(STEPS), "--says", *SAYS,
        env={"OMP_NUM_THREADS": "1", "HOLDFAST_CONFIG": str(tmp_path / "holdfast.toml")},
    )  # fmt: skip
    assert run.wait(LIMIT_S) == 0
    told = {event.step: event for event in run.events("checkpoint_saved")}
    text = run.text()
    timed = re.search(r"iteration: 10, ckpt saving takes (\S+) seconds", text)
    own = re.search(r"generation 40 is on the shared disk after (\S+) s", text)
    assert timed is not None, text
    assert own is not None, text
    assert all(event.durable for event in told.values())
    # A line without a step counts for the newest one printed before it; training has gone on since the save began.
    (untold,) = sorted(set(told) - {10, 20, 40})
    assert 30 <= untold < 40
    assert {step: event.took_s for step, event in told.items()} == {
        10: float(timed[1]), 20: None, untold: 1.2345, 40: float(own[1]),
    }  # fmt: skip
    assert told[20].path == str(saved / "iter_0000020")
    assert "holdfast" not in "".join(plain).split('"""', 2)[2]

"""A person's cancel of a supervised step and srun's word about its tasks, in both orders, with a srun that says them so.

The real thing is in `test_slurm_steps.py`; there nobody can choose which of two connections is the quicker.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SRUN = """\
#!/bin/sh
echo began $HOLDFAST_ATTEMPT
[ "$HOLDFAST_ATTEMPT" = 0 ] || exit 0
{body}
"""
KILLED = "echo 'srun: error: here: task 0: Killed' >&2"
CANCELLED = "echo 'slurmstepd-here: error: *** STEP 18.0 ON here CANCELLED AT 2026-11-21T23:00:24 ***' >&2"
ABORTED = "echo 'srun: Job step aborted: Waiting up to 4 seconds for job step to finish.' >&2"
OWN = "echo 'srun: launch/slurm: _step_signal: Terminating StepId=18.0' >&2"
PAUSE = "sleep 0.8"
"""Longer than the engine gathers findings: by then it has ordered that the attempt be stopped."""


def supervise(folder: Path, body: list[str], *words: str) -> subprocess.CompletedProcess[str]:
    """`holdfast srun` in an allocation of one node, whose srun does this in its first attempt."""
    tools = folder / "tools"
    tools.mkdir()
    for name, text in {"srun": SRUN.format(body="\n".join(body)), "scontrol": "#!/bin/sh\nexit 1\n"}.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    environ = {
        "PATH": f"{tools}:/usr/bin:/bin",
        "HOME": str(folder),
        "SLURM_JOB_ID": "18",
        "SLURM_JOB_NODELIST": "here",
        "SLURMD_NODENAME": "here",
        "SLURM_SUBMIT_DIR": str(folder),
    }
    argv = [sys.executable, "-m", "holdfast", "srun", "--auto-resume=1", *words, "-n1", "train"]
    return subprocess.run(argv, env=environ, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize(
    "body",
    [
        [CANCELLED, KILLED, "exit 137"],
        [KILLED, CANCELLED, "exit 137"],
        [KILLED, PAUSE, CANCELLED, "exit 137"],
        [ABORTED, KILLED, PAUSE, CANCELLED, "exit 137"],
        [CANCELLED, "exit 143"],
        [ABORTED, KILLED, "exit 137"],
        [ABORTED, KILLED, PAUSE, PAUSE, "exit 137"],
        [KILLED, PAUSE, ABORTED, "exit 137"],
        [ABORTED, "exit 137"],
    ],
    ids=[
        "cancel first",
        "task first",
        "task long before",
        "known to be over",
        "no word of a task",
        "slurmstepd's word is lost",
        "lost and srun stays",
        "lost and task long before",
        "lost and no word of a task",
    ],
)
def test_a_cancelled_step_is_not_run_again(tmp_path: Path, body: list[str]) -> None:
    """Whether slurmstepd's word or the task's end is read first, even when the restart has been ordered by then."""
    done = supervise(tmp_path, body)
    assert "began 1" not in done.stdout, done.stderr
    assert done.returncode == int(body[-1].split()[1])
    assert "the step was cancelled: it is not run again" in done.stderr


@pytest.mark.parametrize(
    "body",
    [
        [KILLED, "exit 137"],
        [KILLED, PAUSE, "exit 137"],
        [KILLED, OWN, CANCELLED, "exit 137"],
        [ABORTED, KILLED, OWN, "exit 137"],
    ],
    ids=["at once", "srun stays", "Slurm's own deed", "Slurm's own deed, its reason last"],
)
def test_a_killed_task_brings_a_new_step(tmp_path: Path, body: list[str]) -> None:
    """The same end of a task without a person's cancel is a fault, and is answered."""
    done = supervise(tmp_path, body)
    assert done.stdout.split("\n")[:2] == ["began 0", "began 1"], done.stderr
    assert done.returncode == 0
    assert "the step was cancelled" not in done.stderr


def test_a_cancel_in_an_output_file_counts(tmp_path: Path) -> None:
    """With `--output` slurmstepd writes to that file, and srun says only what it knows itself."""
    into = CANCELLED.replace(">&2", ">> out.log")
    done = supervise(tmp_path, [ABORTED, KILLED, into, PAUSE, "exit 137"], "-o", "out.log")
    assert "began 1" not in done.stdout, done.stderr
    assert done.returncode == 137


def test_a_task_that_asks_to_be_started_again_has_not_failed(tmp_path: Path) -> None:
    """Exit code 85 after a save: srun's word about it is no error of the program, and the script gets the code."""
    saved = "echo 'srun: error: here: task 0: Exited with exit code 85' >&2"
    done = supervise(tmp_path, [saved, PAUSE, "exit 85"])
    assert "began 1" not in done.stdout, done.stderr
    assert done.returncode == 85
    assert "asks to be started again" in done.stderr
    assert "error of the program" not in done.stderr

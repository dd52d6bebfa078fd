"""Where a batch job writes, and what the file of an old run is called."""

from __future__ import annotations

import pytest

from holdfast.adapters.slurm.old_output import aside, expanded, output_files
from holdfast.adapters.slurm.output import SlurmJob

JOB = SlurmJob(id="12", name="train", user="mei", workdir="/home/mei", batch_host="node07.cluster", states=frozenset())
TASK = SlurmJob(id="15", array_job=12, array_task=3, name="t", workdir="/home/mei", states=frozenset())


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        ("logs/%x_%j.log", "/home/mei/logs/train_12.log"),
        ("/scratch/%u/%6j-%N.out", "/scratch/mei/000012-node07.out"),
        ("%%j.out", "/home/mei/%j.out"),
        ("../other/%j", "/home/other/12"),
    ],
)
def test_patterns_are_filled_in_as_slurm_does(pattern: str, path: str) -> None:
    """sbatch(1): job id with a width, name, user, host; a relative one is in the job's folder."""
    assert expanded(pattern, JOB) == path


def test_usual_names() -> None:
    """Without --output: slurm-JOB.out, of an array's task slurm-ARRAY_TASK.out; errors beside them only when asked."""
    assert output_files(JOB) == ("/home/mei/slurm-12.out",)
    assert output_files(TASK) == ("/home/mei/slurm-12_3.out",)


def test_devices_and_steps_without_a_script_have_no_file() -> None:
    """/dev/null is no log to keep, and an interactive allocation writes none."""
    assert output_files(SlurmJob(id="1", workdir="/x", stdout="/dev/null", states=frozenset())) == ()
    assert output_files(SlurmJob(id="1", workdir="/x", stdout="/tmp/../dev/null", states=frozenset())) == ()
    assert output_files(SlurmJob(id="1", workdir="/x", batch=False, states=frozenset())) == ()


def test_old_runs_are_named_by_attempt() -> None:
    """Beside the file, before its suffix."""
    assert aside("/home/mei/slurm-12.out", 0) == "/home/mei/slurm-12.attempt-0.out"
    assert aside("/home/mei/log", 2) == "/home/mei/log.attempt-2"

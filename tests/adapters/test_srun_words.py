"""What srun and slurmstepd print about a step, and how a person's cancel is told from every other end."""

from __future__ import annotations

import itertools

import pytest

from holdfast.adapters.slurm.srun_words import CANCEL_HOLDS_S, StepFate, lost_node, task_end

CANCELLED = "slurmstepd-node01: error: *** STEP 18.0 ON node01 CANCELLED AT 2026-11-21T23:00:24 ***"
ABORTED = "srun: Job step aborted: Waiting up to 4 seconds for job step to finish."
KILLED = "srun: error: node01: task 0: Killed"
TERMINATING = "srun: launch/slurm: _step_signal: Terminating StepId=18.0"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("srun: error: node02: task 3: Killed", ("node02", (3,), None, 9)),
        ("srun: error: node01: tasks 0-1: Terminated", ("node01", (0, 1), None, 15)),
        ("srun: error: gpu-7.x: tasks 0,4-5: Exited with exit code 3", ("gpu-7.x", (0, 4, 5), 3, None)),
        ("srun: error: node07: task 5: Segmentation fault (core dumped)", ("node07", (5,), None, 11)),
        ("srun: error: node07: task 5: Out Of Memory", ("node07", (5,), None, 9)),
    ],
)
def test_lines_about_tasks_are_read(line: str, expected: tuple[object, ...]) -> None:
    """As 22.05 printed them on the lab; code or signal, node and tasks."""
    found = task_end(line)
    assert found is not None
    assert (found.node, found.tasks, found.code, found.signal) == expected


@pytest.mark.parametrize(
    "line",
    [
        "srun: error: Unable to create step for job 2: Job/step already completing or completed",
        "srun: Force Terminated StepId=1.0",
        "node02: task 3: Killed",
        "srun: error: node02: task 3: something new",
    ],
)
def test_other_lines_are_not(line: str) -> None:
    """Only srun's own words about a task count."""
    assert task_end(line) is None


def test_a_lost_node_is_named() -> None:
    """slurmctld's own word, as srun passes it on."""
    assert lost_node("srun: error: Node failure on node03") == "node03"
    assert lost_node(KILLED) is None


def fate_of(*lines: str, job: str = "18") -> StepFate:
    fate = StepFate(job)
    for at, line in enumerate(lines):
        fate.take(line, float(at))
    return fate


@pytest.mark.parametrize("lines", list(itertools.permutations([CANCELLED, ABORTED, KILLED])))
def test_a_cancel_is_known_in_whatever_order_its_three_lines_come(lines: tuple[str, ...]) -> None:
    """They come over three connections: slurmctld's word to srun, the step's stderr, and the tasks' ends."""
    assert fate_of(*lines).is_cancelled(3.0)


@pytest.mark.parametrize("lines", list(itertools.permutations([ABORTED, KILLED])))
def test_an_abort_without_a_reason_is_a_cancel_once_all_is_said(lines: tuple[str, ...]) -> None:
    """slurmstepd's own line is lost when its connection ends with the tasks."""
    assert not fate_of(*lines).is_cancelled(3.0)
    assert fate_of(*lines).is_cancelled(3.0, is_all_said=True)


TIME_LIMIT = CANCELLED.removesuffix("***") + "DUE TO TIME LIMIT ***"


@pytest.mark.parametrize("lines", list(itertools.permutations([ABORTED, KILLED, TIME_LIMIT])))
def test_a_time_limit_is_no_cancel(lines: tuple[str, ...]) -> None:
    """slurmctld ends the step in the same way, and slurmstepd says why."""
    assert not fate_of(*lines).is_cancelled(3.0, is_all_said=True)


def test_a_killed_task_alone_is_no_cancel() -> None:
    """`kill -9` of a task, and of all of them."""
    assert not fate_of(KILLED, "srun: Force Terminated StepId=18.0").is_cancelled(2.0)
    assert not fate_of(KILLED).is_aborted


@pytest.mark.parametrize(
    "reason",
    [
        TERMINATING,
        "srun: Terminating StepId=18.0",
        "srun: First task exited 1s ago",
        "srun: forcing job termination",
        "srun: error: Node failure on node02",
        "srun: error: Task launch for StepId=18.0 failed on node node02: Unspecified error",
        "srun: error: step_launch_notify_io_failure: aborting, io error with slurmstepd on node 1",
        "slurmstepd-node01: error: StepId=18.0 exceeded memory limit (900 > 800), being killed",
        "0: slurmstepd-node01: error: StepId=18.0 exceeded memory limit (900 > 800), being killed",
    ],
)
def test_a_step_that_slurm_itself_ends_is_no_cancel(reason: str) -> None:
    """slurmstepd says CANCELLED for whoever ended the step: `-K1`, `--wait`, a failed launch, a limit."""
    fate = fate_of(KILLED, reason, ABORTED, CANCELLED)
    assert not fate.is_cancelled(4.0)
    assert not fate.is_aborted


def test_a_reason_that_comes_after_the_cancel_changes_nothing() -> None:
    """With `-K1` srun ends a step that was cancelled once more."""
    assert fate_of(ABORTED, CANCELLED, KILLED, TERMINATING).is_cancelled(4.0)


def test_what_we_have_srun_do_is_no_cancel() -> None:
    """Two interrupts, or a SIGTERM that it passes on, show as CANCELLED, too."""
    fate = fate_of(KILLED)
    fate.explain()
    fate.take(CANCELLED, 2.0)
    assert not fate.is_cancelled(2.0)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (f"0: {CANCELLED}", True),
        (f"{CANCELLED[:-4]} DUE to SIGNAL Killed ***", True),
        (f"{CANCELLED[:-4]} DUE TO TIME LIMIT ***", False),
        (f"{CANCELLED[:-4]} DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***", False),
        (f"{CANCELLED[:-4]} DUE TO TASK FAILURE ***", False),
        (CANCELLED.replace("STEP 18.0", "STEP 17.0"), False),
    ],
)
def test_the_line_about_the_end_is_read(line: str, *, expected: bool) -> None:
    """Labelled (`-l`), with a signal (23.11), with a reason that is Slurm's; another job's does not count."""
    assert fate_of(line).is_cancelled(1.0) is expected


def test_a_program_that_goes_on_was_not_cancelled() -> None:
    """`scancel --signal=TERM` may only ask for a checkpoint: what happens much later has another cause."""
    assert fate_of(CANCELLED).is_cancelled(CANCEL_HOLDS_S - 1)
    assert not fate_of(CANCELLED).is_cancelled(CANCEL_HOLDS_S + 1)

"""Whatever a collector, a launcher or a logger puts before every line, the traceback below it is read whole."""

from __future__ import annotations

import pytest

from whole_logs import Whole, assert_right, titan

TRACE = (
    "Traceback (most recent call last):",
    '  File "/w/train.py", line 88, in main',
    "    resume()",
    "AssertionError",
)


@pytest.mark.parametrize(
    "prefix",
    [
        "[rank3]: ",
        "[default3]:",
        "[trainer3|0]:",
        "0: ",
        "[1,3]<stderr>: ",
        "node07: ",
        "worker-0 | ",
        "(WorkerDict pid=4211) ",
        "2025-03-01T10:11:02.478Z ",
        "2025-03-01T10:11:02.478123456Z stderr F ",
        "Mar  1 10:11:02 node07 train.sh[812]: ",
        "<13>Mar  1 10:11:02 node07 train.sh[812]: ",
        "2025-03-01 10:11:02,478 - INFO - ",
        "2025-03-01 10:11:02,478 - trainer.main - INFO - [rank0]: ",
        "03/01/2025 10:11:02 - ERROR - __main__ - ",
        "I0301 10:11:02.478123 812 log.py:3] ",
        "    ",
        "> ",
        "[gpu07:4211] ",
        "(worker1, rank=1, pid=1234, ip=10.0.0.1) ",
        "1740823862478 ",
        "ERROR:root:",
        "2025-03-01 10:11:02.123 | ERROR    | __main__:main:88 - ",
        "[2025-03-01 10:11:02,123][__main__][ERROR] - ",
        "#3 12.33 ",
    ],
)
def test_a_traceback_is_read_whole_behind_any_prefix(prefix, tmp_path):
    """The exception's own line is the cause: an assertion without words, which nothing else would find."""
    text = titan(12) + "".join(f"{prefix}{line}\n" for line in TRACE)
    assert_right(Whole("prefix", text, "fault", ("data.bug",), "application"), tmp_path)


def test_the_program_of_a_syslog_line_stays_where_it_is_no_traceback(tmp_path):
    """A service's own name is what its rules look for."""
    text = "Mar  1 10:11:02 node07 systemd[1]: slurmd.service: Failed with result 'exit-code'.\n"
    assert_right(Whole("service", text, "fault", ("health.service",), "platform"), tmp_path)


def test_a_prefix_whose_numbers_change_is_the_same_prefix(tmp_path):
    """Times, process ids and ranks differ from line to line."""
    text = titan(12) + "".join(f"<w{number}> t={number * 17} {line}\n" for number, line in enumerate(TRACE))
    assert_right(Whole("changing", text, "fault", ("data.bug",), "application"), tmp_path)


def test_prose_before_a_traceback_is_no_prefix_of_what_follows(tmp_path):
    """Only its first line has it; the others are read as they are, and other lines keep what looks like it."""
    text = titan(12) + "Training failed: " + "\n".join(TRACE) + "\n"
    assert_right(Whole("prose", text, "fault", ("data.bug",), "application"), tmp_path)


LINES = (
    ("KeyError: 'attention_mask'", "data.bug"),
    ("  Remote daemon: [[4711,0],1] on node train-worker-0", "mpi.daemon_lost"),
    ("double free or corruption (!prev)", "process.heap"),
    ("Call to ibv_reg_mr failed with error Cannot allocate memory", "nccl.ibv"),
)
"""What rules know by where a line begins, without a traceback above."""


@pytest.mark.parametrize(("line", "cause"), LINES)
@pytest.mark.parametrize(
    "label",
    ["node04: ", "trainer-0: ", "trainer-0 | ", "train-0 pytorch ", "worker-3> ", "10.0.0.4: ", "[node04] ", "(trainer-0) ",
     "trainer-0\t", "[2025-03-01 10:00:00] [trainer-0] ", "2025-03-01 10:00:00,123 INFO stdout: ",
     "Mar  1 10:00:00 node04 train[411]: ", "    "],
)  # fmt: skip
def test_a_label_before_every_line_hides_nothing(label, line, cause, tmp_path):
    """What all lines of a stream begin with is learned from the first ones."""
    text = "".join(f"{label}{one}\n" for one in (titan(12) + line).splitlines())
    assert_right(Whole(label, text, "fault", (cause,)), tmp_path, label)


@pytest.mark.parametrize("label", ["[INFO] ", "INFO: ", "DEBUG "])
def test_a_word_of_severity_is_no_label(label, tmp_path):
    """What a logger calls information is not read as if it stood alone."""
    text = "".join(f"{label}{one}\n" for one in (*(f"epoch {i} of 9" for i in range(9)), "KeyError: 'x' (handled)"))
    assert_right(Whole(label, text, "healthy"), tmp_path)


@pytest.mark.parametrize("line", ["the job ended (exit code 137): CUDA error: uncorrectable ECC error encountered"])
def test_an_exit_code_beside_a_cause_says_less(line, tmp_path):
    """Where one line tells the cause and how it ended, the cause is named."""
    assert_right(Whole("both", titan(12) + line + "\n", "fault", ("cuda.ecc",), "hardware"), tmp_path)

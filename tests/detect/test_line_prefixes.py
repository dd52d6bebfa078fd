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

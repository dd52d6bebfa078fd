"""Lines that collectors wrapped in JSON objects are read as they were written."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from holdfast.adapters.log_files import CHUNK, read_chunks
from holdfast.adapters.wrapped_logs import unwrapped
from whole_logs import Whole, assert_right, titan

TRACE = (
    "Traceback (most recent call last):",
    '  File "/w/train.py", line 88, in main',
    "    resume()",
    "AssertionError",
)
AT = "2025-03-01T10:03:{:02d}.478123456Z"


def docker(line: str, second: int = 0) -> str:
    return json.dumps({"log": line + "\n", "stream": "stderr", "time": AT.format(second)})


def cloud(line: str, second: int = 0) -> str:
    return json.dumps({"insertId": "1", "severity": "ERROR", "textPayload": line, "timestamp": AT.format(second)})


def collector(line: str, second: int = 0) -> str:
    return json.dumps({"@timestamp": AT.format(second), "message": line, "kubernetes": {"pod": "worker-3"}})


def journal(line: str, second: int = 0) -> str:
    at = 1740823380478123 + second * 1_000_000
    return json.dumps(
        {
            "__REALTIME_TIMESTAMP": str(at),
            "_HOSTNAME": "gpu07",
            "SYSLOG_IDENTIFIER": "train.sh",
            "_PID": "812",
            "MESSAGE": line,
        }
    )


@pytest.mark.parametrize("wrap", [docker, cloud, collector, journal])
def test_a_wrapped_traceback_is_a_traceback(wrap, tmp_path: Path) -> None:
    """Its exception is the cause, and the line's number that of the object."""
    lines = [wrap(line) for line in titan(12).splitlines()] + [wrap(line, 20) for line in TRACE]
    text = "\n".join(lines) + "\n"
    path = tmp_path / "job.log"
    path.write_text(text)
    shown = b"".join(read_chunks(str(path))).decode().splitlines()
    assert len(shown) == len(lines)
    stamp = AT.format(20)
    told = f"{stamp[:-4]}+00:00 gpu07 train.sh[812]: " if wrap is journal else f"{stamp} stderr F "
    assert shown[-1] == told + "AssertionError"
    assert_right(Whole("as written", "\n".join(shown) + "\n", "fault", ("data.bug",), "application"), tmp_path)


def test_a_healthy_job_is_healthy_though_its_collector_calls_stderr_errors(tmp_path: Path) -> None:
    """Cloud Logging gives all that a container writes to stderr the severity ERROR."""
    text = "\n".join(cloud(line) for line in titan(20).splitlines()) + "\n"
    shown = b"".join(unwrapped(iter([text.encode()]))).decode()
    assert_right(Whole("healthy", shown, "healthy"), tmp_path)


def test_a_kernels_journal_names_the_node(tmp_path: Path) -> None:
    """`journalctl -k -o json`: the host of an Xid's line is the suspect."""
    entry = {
        "__REALTIME_TIMESTAMP": "1740823200123456",
        "_HOSTNAME": "gpu07",
        "_TRANSPORT": "kernel",
        "SYSLOG_IDENTIFIER": "kernel",
    }
    entry["MESSAGE"] = "NVRM: Xid (PCI:0000:65:00): 79, pid=4211, name=python, GPU has fallen off the bus."
    shown = b"".join(unwrapped(iter([json.dumps(entry).encode()]))).decode()
    assert_right(Whole("journal", shown, "fault", ("nvidia.xid.79",), "hardware", nodes=("gpu07",)), tmp_path)


def test_compressed_cut_and_mixed_files(tmp_path: Path) -> None:
    """Pieces may end anywhere; what is no object, or of another form, passes as it is."""
    lines = [docker(f"line {number}", number % 60) for number in range(3 * CHUNK // 100)]
    lines[7] = "not json at all"
    lines[8] = '{"log": 5}'
    lines.append('{"log":"the last one, cut')
    path = tmp_path / "c-json.log.gz"
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    shown = b"".join(read_chunks(str(path))).decode().split("\n")
    assert len(shown) == len(lines)
    assert shown[6].endswith("stderr F line 6")
    assert shown[7:9] == lines[7:9]
    assert shown[-1] == lines[-1]


@pytest.mark.parametrize(
    "lines",
    [
        ("step 1 loss 2.0", '{"log": "x"}'),
        ('{"loss": 2.1, "step": 1}', '{"loss": 2.0, "step": 2}'),
        ('{"level":"error","msg":"x","ts":1}',),
        ('{"message": "without a time"}',),
        ('{"MESSAGE": [72, 105], "__REALTIME_TIMESTAMP": "1740823200123456"}',),
        ('{"MESSAGE": "x", "__REALTIME_TIMESTAMP": "99999999999999999999999"}',),
        ("",),
    ],
)
def test_other_logs_pass_untouched(lines: Sequence[str]) -> None:
    """Also those that are JSON of another kind, and in whatever pieces they come."""
    data = "\n".join(lines).encode()
    pieces = [data[begin : begin + 5] for begin in range(0, len(data), 5)]
    assert b"".join(unwrapped(iter(pieces))) == data

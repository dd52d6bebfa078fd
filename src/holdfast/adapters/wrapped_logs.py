"""Logs whose lines a collector has wrapped in JSON objects: unwrapped to what was written, with its time in front.

Docker's json-file driver (`log`), Cloud Logging's exports (`textPayload`), Fluent Bit, Vector or Filebeat (`message`
beside a time) and `journalctl -o json` (`MESSAGE`) write an object a line. What comes out has the form of Kubernetes'
own log files (time, stream, F, text), of a journal that of syslog (time, host, program, text).
Called by `log_files.read_chunks`; what is no such log passes as it is, a look at its first bytes later.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec
from msgspec import Struct, field

_HEAD = re.compile(rb'\s*\{(?=[^\n]{0,4000}"(?:log|textPayload|message|MESSAGE)"\s*:\s*")')
TIME_DIGITS_MAX = 17
_LINE_MAX = 4 << 20
"""A line that is longer is no object of a collector: it passes as it is."""


class _Wrapped(Struct):
    log: str | None = None
    text_payload: str | None = field(name="textPayload", default=None)
    message: str | None = None
    error: str = ""
    exception: str = ""
    stream: str = "stderr"
    time: str = ""
    timestamp: str = ""
    at: str = field(name="@timestamp", default="")
    told: str | None = field(name="MESSAGE", default=None)
    told_at: str = field(name="__REALTIME_TIMESTAMP", default="")
    host: str = field(name="_HOSTNAME", default="")
    program: str = field(name="SYSLOG_IDENTIFIER", default="")
    pid: str = field(name="_PID", default="")


_DECODER = msgspec.json.Decoder(_Wrapped)


def unwrapped(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """The chunks, or, when the log begins with a wrapped line, the lines that were wrapped. A line for a line."""
    first = next(chunks, b"")
    if _HEAD.match(first) is None or _text(first.partition(b"\n")[0]) is None:
        if first:
            yield first
        yield from chunks
        return
    rest = b""
    for data in _chained(first, chunks):
        *lines, rest = (rest + data).split(b"\n")
        yield b"".join(_line(line) + b"\n" for line in lines)
        if len(rest) > _LINE_MAX:
            yield rest
            rest = b""
    if rest:
        yield _line(rest)


def _chained(first: bytes, chunks: Iterator[bytes]) -> Iterator[bytes]:
    yield first
    yield from chunks


def _line(line: bytes) -> bytes:
    text = _text(line)
    return line if text is None else text


def _text(line: bytes) -> bytes | None:
    """What was wrapped; None when it is no wrapped line."""
    try:
        wrapped = _DECODER.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    if wrapped.told is not None and wrapped.told_at.isdecimal() and len(wrapped.told_at) <= TIME_DIGITS_MAX:
        return _of_a_journal(wrapped, wrapped.told).encode()
    at = wrapped.time or wrapped.at or wrapped.timestamp
    text = wrapped.log if wrapped.log is not None else wrapped.text_payload
    if text is None and wrapped.message is not None and at:
        text = " ".join(part for part in (wrapped.message, wrapped.error, wrapped.exception) if part)
    if text is None:
        return None
    told = _one_line(text)
    return (f"{at} {wrapped.stream} F {told}" if at else told).encode()


def _of_a_journal(wrapped: _Wrapped, told: str) -> str:
    at = datetime.fromtimestamp(int(wrapped.told_at) / 1e6, UTC).isoformat(timespec="microseconds")
    program = wrapped.program or "unknown"
    # A kernel's lines have no process id, and rules for them look for `kernel: `.
    pid = f"[{wrapped.pid}]" if wrapped.pid and program != "kernel" else ""
    return f"{at} {wrapped.host or '-'} {program}{pid}: {_one_line(told)}"


def _one_line(text: str) -> str:
    """Several lines in one object stay one line: what is found in it has this line's number."""
    return text.rstrip("\r\n").replace("\n", " ")

"""What ranks print: their log files, the launcher's own output, and the matcher.

Used by the node runner. Every rank writes into its own file, which is only ever appended to; this module reads what is
new in it, repeats chosen ranks' lines on the launcher's output, keeps the last lines for evidence, and has the matcher
look for faults, progress and checkpoints. Time passes in the caller, who pumps about twenty times a second.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # ranks start before the matcher is loaded
    from holdfast.detect.matcher import LineStream, Match

TAIL_LINES = 40
TAIL_LINE_CHARS = 500
_BLOCK = 1 << 18
_LINE_MAX = 1 << 16


class RankLog:
    """One rank's log file: its writer's descriptor, and our reading of it.

    Args:
        path: the file; what is in it already belongs to an earlier run and is not read.
        rank: the rank, None for a supervised command.
        prefix: put before each line that is repeated on the launcher's output.
        repeat: takes those lines, None when this rank's output is not repeated.
        stream: makes the matcher's stream when there is something to match.
        on_lines: takes complete lines as they are read, with the time.
    """

    def __init__(
        self,
        path: Path,
        *,
        rank: int | None,
        prefix: bytes,
        repeat: Callable[[bytes], None] | None,
        stream: Callable[[], LineStream],
        on_lines: Callable[[list[bytes], float], None],
    ) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self.rank = rank
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self.descriptor = os.open(path, flags, 0o644)
        self._offset = os.fstat(self.descriptor).st_size
        self._prefix = prefix
        self._repeat = repeat
        self._make_stream = stream
        self._on_lines = on_lines
        self._stream: LineStream | None = None
        self._carry = b""
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)

    def pump(self, at: float) -> list[Match]:
        """Read what is new; returns the matcher's matches."""
        matches: list[Match] = []
        while self.descriptor >= 0:
            try:
                data = os.pread(self.descriptor, _BLOCK, self._offset)
            except OSError:  # a folder that is gone must not end the job
                break
            if not data:
                break
            self._offset += len(data)
            self._take(data, at)
            if self._stream is None:
                self._stream = self._make_stream()
            matches += self._stream.feed(data, at)
        return matches

    def _take(self, data: bytes, at: float) -> None:
        lines = (self._carry + data).split(b"\n")
        self._carry = lines.pop()
        if len(self._carry) > _LINE_MAX:
            lines.append(self._carry)
            self._carry = b""
        self._tail.extend(line[:TAIL_LINE_CHARS].decode(errors="replace") for line in lines[-TAIL_LINES:])
        if lines:
            self._on_lines(lines, at)
        if self._repeat is not None and lines:
            self._repeat(b"".join(self._prefix + line + b"\n" for line in lines))

    def finish(self, at: float) -> list[Match]:
        """The writer has ended: read the rest, an unfinished line included."""
        matches = self.pump(at)
        if self._carry:
            self._take(b"\n", at)
        if self._stream is not None:
            matches += self._stream.flush(at)
        return matches

    def close(self) -> None:
        """Let go of the file."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def tail(self, lines: int = 20) -> tuple[str, ...]:
        """The last lines, oldest first, blank ones left out."""
        return tuple([line for line in self._tail if line.strip()][-lines:])


class OwnOutput:
    """The launcher's stdout: never blocks the loop for long and never ends the job when its reader is gone."""

    def __init__(self, descriptor: int = 1) -> None:
        self._descriptor = descriptor
        self._is_broken = False

    def write(self, data: bytes) -> None:
        """Write all of it; a broken pipe silences this output for good, the logs keep everything."""
        view = memoryview(data)
        while view and not self._is_broken:
            try:
                view = view[os.write(self._descriptor, view) :]
            except BlockingIOError:
                os.set_blocking(self._descriptor, True)
            except OSError:
                self._is_broken = True


class Voice:
    """The launcher's own lines: to stderr as `[holdfast] ...`, and with the time into its log file."""

    def __init__(self) -> None:
        self._output = OwnOutput(2)
        self._file: Path | None = None

    def write_to(self, path: Path) -> None:
        """From now on the log is this file."""
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path

    def say(self, *lines: str) -> None:
        """Tell people."""
        self._output.write("".join(f"[holdfast] {line}\n" for line in lines).encode())
        self.note(*lines)

    def note(self, *lines: str) -> None:
        """Into the log file only."""
        if self._file is not None:
            now = time.strftime("%Y-%m-%d %H:%M:%S")
            with contextlib.suppress(OSError), self._file.open("a", encoding="utf-8") as file:
                file.writelines(f"{now} {line}\n" for line in lines)

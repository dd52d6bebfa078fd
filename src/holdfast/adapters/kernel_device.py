"""Reads `/dev/kmsg`, the kernel log of a real machine: one record per read, told as soon as the kernel has it.

The agent follows it inside its asyncio loop (the device can be polled; there is no thread). Records carry a sequence
number that only grows within a boot and the seconds since boot, from which the time on the wall is worked out. When the
ring was overwritten before we read it, the gap is counted and reading goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path

from holdfast.adapters.kernel_record import Record, parse_record
from holdfast.errors import LinkError
from holdfast.ports import Clock

RECORD_MAX = 8192
"""CONSOLE_EXT_LOG_MAX of the kernel; a shorter buffer makes the read fail."""
RECORDS_PER_TURN = 256


class KernelDevice:
    """Follows the device.

    Args:
        on_record: called with each record and the Unix time at which the kernel wrote it.
        clock: the machine's.
        path: the device.
        after: sequence number of the last record that is known already; -1: none.
        open_device: gives a readable descriptor; for tests.
    """

    def __init__(
        self,
        on_record: Callable[[Record, float], None],
        clock: Clock,
        path: Path = Path("/dev/kmsg"),
        *,
        after: int = -1,
        open_device: Callable[[Path], int] | None = None,
    ) -> None:
        self._on_record = on_record
        self._clock = clock
        self._path = path
        self._after = after
        self._open = open_device or _open
        self._fd = -1
        self.gaps = 0
        """How often the kernel had overwritten records before they were read."""

    def start(self) -> None:
        """Read what the ring holds and follow it. Raises LinkError when the device cannot be opened or followed."""
        try:
            self._fd = self._open(self._path)
        except OSError as error:
            raise LinkError(f"the kernel log {self._path} cannot be read: {error.strerror}") from error
        try:
            asyncio.get_running_loop().add_reader(self._fd, self._read)
        except PermissionError:  # epoll knows no events of it
            self.close()
            raise LinkError(f"{self._path} is not a kernel log: it cannot be followed") from None

    def close(self) -> None:
        """Stop following. Calling it twice is harmless."""
        if self._fd >= 0:
            with contextlib.suppress(RuntimeError):  # the loop may be closed already
                asyncio.get_running_loop().remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _read(self) -> None:
        for _ in range(RECORDS_PER_TURN):
            try:
                raw = os.read(self._fd, RECORD_MAX)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno == errno.EPIPE:
                    self.gaps += 1
                    continue
                self.close()
                return
            if not raw:
                self.close()
                return
            record = parse_record(raw)
            if record is not None and record.sequence > self._after:
                self._after = record.sequence
                age_s = max(0.0, self._clock.monotonic() - record.seconds)
                self._on_record(record, self._clock.now() - age_s)


def _open(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)

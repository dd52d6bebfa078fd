"""Signals to processes that are not children of ours: a number may be another process's by the time of the signal.

Each process is held by a descriptor first, and looked at then. Called by the launcher's parts, the embedded cluster's
breakers and the lab; no time passes here but that of a look.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

HELD_MAX = 256
"""Processes that are held at once: a limit of 1024 descriptors is common, and the look at them needs some, too."""


def strike(pids: Iterable[int], sig: int, *, of: Callable[[], Collection[int]]) -> list[int]:
    """Signal those of these processes that are meant still, and return them; never this process.

    Args:
        pids: as they were found.
        sig: the signal.
        of: tells the processes that are meant as they are now.
    """
    found = list(pids)
    parts = [found[start : start + HELD_MAX] for start in range(0, len(found), HELD_MAX)]
    return [pid for some in parts for pid in _strike(some, sig, of)]


def _strike(pids: Iterable[int], sig: int, of: Callable[[], Collection[int]]) -> list[int]:
    held: dict[int, int] = {}
    try:
        for pid in pids:
            with contextlib.suppress(OSError):
                held[pid] = os.pidfd_open(pid)
        meant = set(of()) - {os.getpid()} if held else set()
        hit = []
        for pid, fd in held.items():
            if pid in meant and not _has_ended(fd):  # alive, so that its number is its own
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    signal.pidfd_send_signal(fd, sig)
                    hit.append(pid)
        return hit
    finally:
        for fd in held.values():
            os.close(fd)


def _has_ended(fd: int) -> bool:
    """Whether the process of this descriptor has; `select` would take none above 1023."""
    asked = select.poll()
    asked.register(fd, select.POLLIN)
    return bool(asked.poll(0))


def catches(pid: int, sig: int) -> bool:
    """Whether this process has a handler of its own for the signal, so that the signal does not end it."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    mask = next((line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")), "0")
    return bool(int(mask, 16) >> (sig - 1) & 1)

"""Finding and ending processes of an embedded cluster; `node_init` has what its nodes need of that, too.

Called by the daemon (for its nodes) and by tests (to prove that nothing is left). No time passes here except in
`end_all`, which waits until the killed processes are gone.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from holdfast.adapters.local.node_init import process_table, send_signal
from holdfast.os.processes import strike

CLUSTER_MARK = "HOLDFAST_CLUSTER_DIR"
"""Environment variable that everything started by an embedded cluster carries; its value is the cluster's folder."""


def environment_of(pid: int) -> dict[str, str]:
    """The environment that a process was started with; empty when it is gone or not ours to read."""
    pairs = (entry.decode(errors="replace").partition("=") for entry in _environ(pid) if entry)
    return {name: value for name, _, value in pairs}


def _environ(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def command_of(pid: int) -> list[str]:
    """The argument list of a process; empty when it is gone."""
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return []
    return [part.decode(errors="replace") for part in raw.split(b"\0")]


def marked(folder: Path, mark: str = CLUSTER_MARK) -> list[int]:
    """Live processes of this machine that were started inside the embedded cluster, or the lab, of this folder."""
    wanted = f"{mark}={folder}".encode()
    return [pid for pid in process_table() if wanted in _environ(pid)]


def end_all(look: Callable[[], Iterable[int]], *, limit_s: float = 5.0) -> list[int]:
    """SIGKILL whatever `look` returns until it returns nothing; the ones that would not go are returned."""
    deadline = time.monotonic() + limit_s
    left = [pid for pid in look() if pid != os.getpid()]
    while left and time.monotonic() < deadline:
        strike(left, signal.SIGKILL, of=lambda: set(look()))
        time.sleep(0.002)
        left = [pid for pid in look() if pid != os.getpid()]
    return left


def end_child(pid: int, *, limit_s: float = 1.0) -> None:
    """SIGKILL a child of this process and wait until it has ended, so that its own children have a new parent."""
    send_signal([pid], signal.SIGKILL)
    deadline = time.monotonic() + limit_s
    try:
        while os.waitpid(pid, os.WNOHANG)[0] == 0 and time.monotonic() < deadline:
            time.sleep(0.0005)
    except ChildProcessError:
        pass  # collected already


async def watch_process(pid: int) -> None:
    """Return when this process, of whatever parentage, has ended."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    loop = asyncio.get_running_loop()
    over = loop.create_future()

    def note() -> None:
        if not over.done():
            over.set_result(None)

    try:
        loop.add_reader(fd, note)
        await over
    finally:
        loop.remove_reader(fd)
        os.close(fd)

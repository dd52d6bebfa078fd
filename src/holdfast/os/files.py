"""Small files: locked, read without a complaint, and written whole, so that a reader sees all of one or the one before.

Time passes in `locked` alone, where it waits for another holder.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

_LOCK_POLL_S = 0.02
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""Another one after each boot of this machine."""


def write_whole(path: Path, data: bytes, *, mode: int = 0o666, durable: bool = False) -> None:
    """Replace a file.

    Args:
        path: the file; its folder exists.
        data: all of it.
        mode: its permission bits, of which the umask takes away.
        durable: it is on disk when this returns.

    Raises:
        OSError: it cannot be written; the one before still stands.
    """
    staged = path.with_name(f".{path.name}.new")
    staged.unlink(missing_ok=True)
    with os.fdopen(os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    staged.replace(path)


@contextlib.contextmanager
def locked(
    path: Path, *, wait_s: float | None = 0.0, on_wait: Callable[[], None] | None = None, needed: bool = True
) -> Iterator[None]:
    """Hold the lock of a file, which is made and names its holder. The kernel frees it when this process dies.

    Args:
        path: the lock's own file; its folder exists.
        wait_s: seconds to wait for another holder; None: as long as it takes.
        on_wait: called once when there is another holder to wait for.
        needed: False: go on without a lock where the file system has none, as Lustre without `flock`.

    Raises:
        BlockingIOError: another one holds it; its `strerror` says which process on which machine.
        OSError: the file cannot be opened, or the file system has no locks.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        try:
            _lock(fd, wait_s, on_wait)
        except BlockingIOError as error:
            holder = os.pread(fd, 200, 0).decode(errors="replace").strip() or "pid unknown"
            raise BlockingIOError(errno.EAGAIN, holder, str(path)) from error
        except OSError:
            if needed:
                raise
        with contextlib.suppress(OSError):  # who holds it is for people only, and a full disk is no reason to stop
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"pid {os.getpid()} on {os.uname().nodename}\n".encode(), 0)
        yield
    finally:
        os.close(fd)


def _lock(fd: int, wait_s: float | None, on_wait: Callable[[], None] | None) -> None:
    deadline = None if wait_s is None else time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if deadline is not None and time.monotonic() >= deadline:
                raise
        else:
            return
        if on_wait is not None:
            on_wait()
            on_wait = None
        time.sleep(_LOCK_POLL_S)


def is_on_read_only(path: Path) -> bool:
    """The file is there, on a file system that is mounted read-only here."""
    return path.exists() and bool(os.statvfs(path).f_flag & os.ST_RDONLY)


def text_of(path: Path) -> str:
    """A small file of the kernel or the system, stripped; empty when it is not there or cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""

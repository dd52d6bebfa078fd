"""Files: locked; written whole, so that a reader sees all of one or the one before; read if they are what they seem.

`foreign` and `open_regular` are the two checks of everything that is read from where others may write. Time passes in
`locked` alone, where it waits for another holder.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

LOCK_MODE = 0o600
"""Of a lock's file. Whoever may read it may hold it, and keep its owner out."""
_LOCK_POLL_S = 0.02
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""Another one after each boot of this machine."""


def write_whole(path: Path, data: bytes, *, mode: int = 0o644, durable: bool = False) -> None:
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
    try:
        with os.fdopen(os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        staged.replace(path)
    except OSError:
        with contextlib.suppress(OSError):  # what did not fit is in nobody's way
            staged.unlink()
        raise


def append_whole(path: Path, data: bytes, *, mode: int = 0o644, durable: bool = False) -> None:
    """Add to a file, which is made where it is missing: all or nothing, so that no half line takes the next along.

    Raises:
        OSError: it cannot be written; the file is as it was.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, mode)
    try:
        size = os.fstat(descriptor).st_size
        try:
            while data:
                data = data[os.write(descriptor, data) :]
            if durable:
                os.fsync(descriptor)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(descriptor, size)
            raise
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def locked(
    path: Path, *, wait_s: float | None = 0.0, on_wait: Callable[[], None] | None = None, needed: bool = True
) -> Iterator[None]:
    """Hold the lock of a file, which is made and names its holder. The kernel frees it when this process dies.

    Nobody but its owner may open the file, and so hold it: the mode of an older version's file is narrowed.

    Args:
        path: the lock's own file; its folder exists.
        wait_s: seconds to wait for another holder; None: as long as it takes.
        on_wait: called once when there is another holder to wait for.
        needed: False: go on without a lock where the file system has none, as Lustre without `flock`, and where the
            file is another user's, as in a folder that a group shares.

    Raises:
        BlockingIOError: another one holds it; its `strerror` says who, as far as that is known.
        OSError: the file cannot be opened, may be held by others, or the file system has no locks.
    """
    fd = -1
    try:
        try:
            fd = _open_lock(path)
            _lock(fd, wait_s, on_wait)
        except BlockingIOError as error:
            raise BlockingIOError(errno.EAGAIN, _holder(fd), str(path)) from error
        except PermissionError:
            if needed:
                raise
        except OSError:
            if needed or fd < 0:
                raise
        if fd >= 0:
            with contextlib.suppress(OSError):  # who holds it is for people only, and a full disk is no reason to stop
                os.ftruncate(fd, 0)
                os.pwrite(fd, f"pid {os.getpid()} on {os.uname().nodename}\n".encode(), 0)
        yield
    finally:
        if fd >= 0:
            os.close(fd)


def _open_lock(path: Path) -> int:
    """A descriptor of a lock's file that its owner alone may open, and that is no other file by another name.

    Its owner is this user, root, or whose the folder is, who may exchange the file in any case.

    Raises:
        PermissionError: it is another user's.
        OSError: it cannot be opened, or is something else.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, LOCK_MODE)
    try:
        seen = os.fstat(fd)
        _check_lock(path, seen)
        if stat.S_IMODE(seen.st_mode) & ~LOCK_MODE:
            with contextlib.suppress(OSError):  # some file systems have one mode for all files
                os.fchmod(fd, LOCK_MODE)
    except OSError:
        os.close(fd)
        raise
    return fd


def _check_lock(path: Path, seen: os.stat_result) -> None:
    if not stat.S_ISREG(seen.st_mode):
        raise OSError(errno.EINVAL, "it is no ordinary file", str(path))
    if seen.st_nlink > 1:
        raise OSError(errno.EMLINK, "it has a second name", str(path))
    if seen.st_uid not in {0, os.geteuid(), path.parent.stat().st_uid}:
        raise PermissionError(errno.EPERM, f"it belongs to another user (uid {seen.st_uid})", str(path))


def _holder(fd: int) -> str:
    """Who holds a lock: a process that lives. A name that a dead one has left behind would mislead."""
    named = re.fullmatch(r"pid (\d{1,10}) on (\S+)\s*", os.pread(fd, 200, 0).decode(errors="replace"))
    if named is None:
        return "holder unknown"
    pid, host = named.groups()
    if host != os.uname().nodename:
        return f"taken last by pid {pid} on {host}"  # whether that lives cannot be seen from here
    try:
        os.kill(int(pid), 0)
    except PermissionError:
        pass
    except (OSError, OverflowError):
        return "holder unknown"
    return f"pid {pid} on {host}"


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


def foreign(found: os.stat_result) -> str:
    """Why others may have written a file; empty: it belongs to us or to root, and nobody else may write it."""
    if found.st_uid not in {0, os.geteuid()}:
        return f"belongs to another user (uid {found.st_uid})"
    return "may be written by others" if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) else ""


def open_regular(path: Path, *, below: Path | None = None) -> int:
    """A descriptor to read an ordinary file with; nothing else that has this name is opened.

    Opening alone may act: a pipe waits for its writer, and a watchdog's device begins to count. So the name is resolved
    first, without opening, and what it stands for is opened by that descriptor.

    Args:
        path: the file.
        below: behind this folder others may have placed things. Links of theirs are not followed, and a file with a
            second name, which may be anybody's, counts only in a folder where nobody else writes. None: all is taken.

    Raises:
        OSError: it cannot be read, is a folder, a pipe or a device, or was placed by others.
    """
    found, folder = _found(path, below)
    try:
        seen = os.fstat(found)
        if not stat.S_ISREG(seen.st_mode):
            raise OSError(errno.EINVAL, "it is no ordinary file", str(path))
        if folder is not None and seen.st_nlink > 1 and foreign(folder):
            raise OSError(errno.EMLINK, "it has a second name, in a folder of others", str(path))
        return os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(found)


def read_bounded(path: Path, size_max: int) -> bytes:
    """All of an ordinary file. Raises OSError as `open_regular` does, and for one that is larger."""
    with os.fdopen(open_regular(path), "rb") as file:
        data = file.read(size_max + 1)
    if len(data) > size_max:
        raise OSError(errno.EFBIG, f"it is larger than {size_max} bytes", str(path))
    return data


def open_folder(path: Path, below: Path) -> int:
    """A descriptor of a folder, to list it and to open what is in it. Raises OSError as `open_regular` does."""
    found, _ = _found(path, below)
    try:
        return os.open(f"/proc/self/fd/{found}/.", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        os.close(found)


def _found(path: Path, below: Path | None) -> tuple[int, os.stat_result | None]:
    """What a name stands for, by a descriptor that opens nothing, and its folder where there was a look at it."""
    if below is None:
        return os.open(path, os.O_PATH | os.O_CLOEXEC), None
    here, folder = os.open(below, os.O_PATH | os.O_CLOEXEC), None
    for part in path.relative_to(below).parts:
        try:
            folder = os.fstat(here)
            inside = _part(part, here)
        finally:
            os.close(here)
        here = inside
    return here, folder


def _part(name: str, folder: int) -> int:
    """What a name stands for in an open folder; a link is followed where root or we have placed it."""
    found = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    seen = os.fstat(found)
    if not stat.S_ISLNK(seen.st_mode):
        return found
    try:
        if seen.st_uid not in {0, os.geteuid()}:
            raise OSError(errno.ELOOP, "a link of another user is not followed", name)
        # The link that was looked at, whatever bears its name by now.
        return os.open(os.readlink("", dir_fd=found), os.O_PATH | os.O_CLOEXEC, dir_fd=folder)
    finally:
        os.close(found)

"""Claims a checkpoint folder for one job, for as long as a process of the job saves into it.

Two jobs in one folder would clear away each other's unfinished saves and older checkpoints, and publish under each
other's names. A writer holds a lock on `.writer` in the folder, which the kernel frees when its process dies, and
which names the job. Attempts of one job do not keep each other out: which of them may publish is the epoch's to say
(`fence`). Where the file system has no locks, as Lustre mounted without `flock`, nothing is kept out.

Only the lock counts: a `.writer` that nobody holds is free at once, whichever job and host it names. A `.writer` that
others may have placed counts for nothing, since it would keep a job from saving: one line on stderr says so.
"""

import contextlib
import errno
import fcntl
import json
import os
import stat
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

LOCK_FILE = ".writer"
LOCK_MODE = 0o600
"""Whoever may read the file may hold it, and keep the job from saving."""
CONTENT_MAX = 65_536
"""Bytes of a file that names a writer: a path has at most 4,096, each six in JSON."""
_held: dict[tuple[int, int], int] = {}
"""Identity of each lock's file that this process holds -> its descriptor, which is never closed."""
_told: set[Path] = set()
"""Files that people were told of."""


@dataclass(frozen=True, slots=True)
class Writer:
    """A process that saves into a folder."""

    job: str
    """Folder of the job; empty without a launcher."""
    pid: int
    host: str

    def __str__(self) -> str:
        """As people are told."""
        of = f"the job of {self.job}" if self.job else "a program without a launcher"
        return f"{of} (process {self.pid} on {self.host})"


def claim(folder: Path, job_dir: Path | None) -> Writer | None:
    """Take the folder for this job; None when it is ours, else who has it.

    Args:
        folder: of checkpoints; it exists.
        job_dir: folder of our job.
    """
    us = Writer(str(job_dir.resolve()) if job_dir is not None else "", os.getpid(), os.uname().nodename)
    path = folder / LOCK_FILE
    try:
        lock = _open(path)
    except OSError as error:
        _tell(path, error)
        return None
    found = os.fstat(lock)
    if (found.st_dev, found.st_ino) in _held:
        os.close(lock)
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = _read(os.pread(lock, CONTENT_MAX, 0)) if error.errno in {errno.EWOULDBLOCK, errno.EACCES} else None
        os.close(lock)
        return holder if holder is not None and not _gives_way(holder, us) else None
    _held[found.st_dev, found.st_ino] = lock
    with contextlib.suppress(OSError):  # on a full disk nobody is named
        os.ftruncate(lock, 0)
        os.pwrite(lock, json.dumps(asdict(us)).encode(), 0)
    return None


def _open(path: Path) -> int:
    """A descriptor of the lock's file, which nobody but its owner may open.

    Raises:
        OSError: it cannot be opened, others may have placed it, or it holds something else.
    """
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, LOCK_MODE)
    why = _why_not(lock, path)
    if why:
        os.close(lock)
        raise OSError(errno.EPERM, why, str(path))
    with contextlib.suppress(OSError):  # some file systems have one mode for all files
        if stat.S_IMODE(os.fstat(lock).st_mode) & ~LOCK_MODE:
            os.fchmod(lock, LOCK_MODE)
    return lock


def _why_not(lock: int, path: Path) -> str:
    """Why an open file is no lock that counts; empty: it is one."""
    found = os.fstat(lock)
    if not stat.S_ISREG(found.st_mode):
        return "it is no ordinary file"
    if found.st_nlink > 1:
        return "it has a second name"
    # The folder's owner may remove all that is in it in any case; on some network file systems nothing is ours by name.
    if found.st_uid not in {0, os.geteuid(), path.parent.stat().st_uid}:
        return f"it belongs to another user (uid {found.st_uid})"
    content = os.pread(lock, CONTENT_MAX, 0)
    return "it holds something else" if content and _read(content) is None else ""


def _tell(path: Path, error: OSError) -> None:
    """Say once that a file keeps nobody out. A folder that cannot be written says so when a checkpoint is written."""
    if path in _told or error.errno == errno.EROFS or not os.path.lexists(path):
        return
    _told.add(path)
    why = "it is a link" if path.is_symlink() else error.strerror
    sys.stderr.write(
        f"holdfast.checkpoint: {path} is no lock of this job ({why}), so nothing keeps another job from saving there: "
        "remove it, or give each job a folder of its own; saves go on\n"
    )


def _gives_way(holder: Writer, us: Writer) -> bool:
    """The lock is held by our own job, or by children that a dead process has left behind."""
    if holder.job and holder.job == us.job:
        return True
    return holder.host == us.host and not Path(f"/proc/{holder.pid}").exists()


def _read(content: bytes) -> Writer | None:
    try:
        return Writer(**json.loads(content))
    except (ValueError, TypeError):
        return None

"""Claims a checkpoint folder for one job, for as long as a process of the job saves into it.

Two jobs in one folder would clear away each other's unfinished saves and older checkpoints, and publish under each
other's names. A writer holds a lock on `.writer` in the folder, which the kernel frees when its process dies, and
which names the job. Attempts of one job do not keep each other out: which of them may publish is the epoch's to say
(`fence`). Where the file system has no locks, as Lustre mounted without `flock`, nothing is kept out.
"""

import contextlib
import errno
import fcntl
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

LOCK_FILE = ".writer"
_held: dict[tuple[int, int], int] = {}
"""Identity of each lock's file that this process holds -> its descriptor, which is never closed."""


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
    try:
        lock = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    except OSError:
        return None  # a folder that cannot be written says so when a checkpoint is written into it
    found = os.fstat(lock)
    if (found.st_dev, found.st_ino) in _held:
        os.close(lock)
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = _read(lock) if error.errno in {errno.EWOULDBLOCK, errno.EACCES} else None
        os.close(lock)
        return holder if holder is not None and not _gives_way(holder, us) else None
    _held[found.st_dev, found.st_ino] = lock
    with contextlib.suppress(OSError):  # on a full disk nobody is named
        os.ftruncate(lock, 0)
        os.pwrite(lock, json.dumps(asdict(us)).encode(), 0)
    return None


def _gives_way(holder: Writer, us: Writer) -> bool:
    """The lock is held by our own job, or by children that a dead process has left behind."""
    if holder.job and holder.job == us.job:
        return True
    return holder.host == us.host and not Path(f"/proc/{holder.pid}").exists()


def _read(lock: int) -> Writer | None:
    try:
        return Writer(**json.loads(os.pread(lock, 4096, 0)))
    except (OSError, ValueError, TypeError):
        return None

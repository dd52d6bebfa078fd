"""The fencing epoch in the job's folder, and what was started there before. Called by the leader.

`<job_dir>/epoch` holds one ASCII integer that only grows. Checkpoints of an attempt with a smaller one are refused.
"""

from __future__ import annotations

import os
from pathlib import Path

from holdfast.errors import UserError
from holdfast.os.files import locked

EPOCH_FILE = "epoch"
LOCK_FILE = ".epoch.lock"
LOCK_S = 10.0
"""A launcher that raises the epoch is done in milliseconds; one that was stopped meanwhile is not waited for."""


def read_epoch(job_dir: Path) -> int:
    """The newest epoch, 0 when there has been none.

    Raises:
        OSError: the folder cannot be read now.
        UserError: the file holds something else.
    """
    path = job_dir / EPOCH_FILE
    try:
        text = path.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        # An unreachable file system must not look like a job that has never run.
        os.stat(job_dir)  # noqa: PTH116 - raises OSError, which is the point
        return 0
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not a whole number; restore it or delete it with the job's checkpoints") from error
    if not text.isdecimal():
        raise UserError(f"{path}: {text[:40]!r} is not a whole number; put back the largest epoch that was used")
    return int(text)


def raise_epoch(job_dir: Path, epoch: int) -> int | None:
    """Take a new epoch so that this survives a crash of the machine. Of launchers that want the same one, one gets it.

    Returns:
        None when it is ours; else the equal or larger epoch with which somebody else has started the job.

    Raises:
        BlockingIOError: another launcher is stuck as it writes its own.
        OSError: it cannot be written.
    """
    path = job_dir / EPOCH_FILE
    fresh = path.with_name(f".{EPOCH_FILE}.{os.getpid()}")
    with locked(job_dir / LOCK_FILE, wait_s=LOCK_S, needed=False):
        if (found := read_epoch(job_dir)) >= epoch:
            return found
        with fresh.open("w", encoding="ascii") as file:
            file.write(f"{epoch}\n")
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
        folder = os.open(job_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    return None


def newest_attempt(job_dir: Path) -> int:
    """The newest attempt that has a folder of logs, -1 when there has been none."""
    numbers = [path.name.removeprefix("attempt-") for path in (job_dir / "logs").glob("attempt-*")]
    return max((int(number) for number in numbers if number.isdecimal()), default=-1)


def restored_step(job_dir: Path, epoch: int) -> int | None:
    """The step that this epoch's attempt resumed from, as the checkpoint library noted it; None when it did not."""
    steps = []
    for path in (job_dir / "checkpoint-seals").glob(f"*/e{epoch:06d}.base"):
        try:
            steps.append(int(path.read_text(encoding="ascii")))
        except (OSError, ValueError):
            continue
    return max(steps, default=None)

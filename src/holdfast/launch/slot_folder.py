"""The folder of this node's slots in memory: ours alone, and removed also when a kill took us and our guard at once.

Used by `program`. A launcher locks a file in its folder for as long as it lives; the kernel lets go of the lock with
its last process. The next launcher of the same user removes every folder whose lock is free. No time passes here.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

from holdfast.os.files import foreign, locked, open_regular

LOCK = "held"


def claim(folder: Path) -> contextlib.ExitStack:
    """Make the folder, which nobody else may enter.

    Returns:
        The lock on it, to be closed when the folder is not used any more.

    Raises:
        OSError: it cannot be made, or is there already.
    """
    folder.mkdir(mode=0o700)
    made, held = folder / ".new", contextlib.ExitStack()
    try:
        held.enter_context(locked(made))
        made.rename(folder / LOCK)  # it has its name only when it is held: nobody finds it free before
    except OSError:
        held.close()
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return held


def sweep(memory: Path) -> None:
    """Remove what launchers of this user have left here. Folders without a lock are another's to remove."""
    with contextlib.suppress(OSError):
        for folder in memory.glob(f"holdfast-{os.getuid()}-*"):
            with contextlib.suppress(OSError):
                if not foreign(folder.lstat()) and is_free(folder):
                    shutil.rmtree(folder, ignore_errors=True)


def is_free(folder: Path) -> bool:
    """Whether nobody holds the folder's lock. Raises OSError where there is none."""
    os.close(open_regular(folder / LOCK, below=folder.parent))
    try:
        with locked(folder / LOCK):
            return True
    except BlockingIOError:
        return False

"""One drill as a rank knows it: its command, whether it has fired, whether it is aborted.

Made by the hook's thread, taken by whichever thread injects the fault, read by the faults.
"""

import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from time import time
from typing import Any

from holdfast.failpoint.command import FaultCommand, abort_name, failed_name, fired_name

Mark = Callable[[], None]
"""Writes the fired mark; called by a fault once it is certain that it can be done."""

# More than any machine has, less than the allocators refuse as nonsense before they ask the system.
BEYOND_MEMORY_BYTES = 1 << 60


class CannotInjectError(Exception):
    """This process offers nothing to break in that way; goes into the `.failed` file."""


class AlreadyFiredError(Exception):
    """The fired mark exists: an earlier process of this rank has done this drill."""


class Drill:
    """A command that names this rank. `aborted` is set from the hook's thread."""

    def __init__(self, command: FaultCommand, folder: Path, rank: int, seen_at: float) -> None:
        self.command = command
        self.folder = folder
        self.rank = rank
        self.seen_at = seen_at  # monotonic seconds
        self.aborted = threading.Event()
        self.undo: Callable[[], None] = _nothing
        self.is_slowing = False
        self.slowed_steps = 0
        self._taken = threading.Lock()

    @property
    def abort_path(self) -> Path:
        """The file whose presence aborts this drill."""
        return self.folder / abort_name(self.command.id)

    def param(self, name: str) -> Any:
        """A parameter, with its default applied."""
        return self.command.params[name]

    @property
    def is_taken(self) -> bool:
        """Whether some thread has begun to inject it."""
        return self._taken.locked()

    def take(self) -> bool:
        """Claim the injection for the calling thread; False when another has it, or it is aborted."""
        return not self.aborted.is_set() and self._taken.acquire(blocking=False)

    def mark_fired(self, step: int | None) -> None:
        """Put the fired mark on disk.

        Raises:
            AlreadyFiredError: there is one.
            CannotInjectError: it cannot be written; a fault without a time would be of no use to the report.
        """
        thread = "main" if threading.current_thread() is threading.main_thread() else threading.current_thread().name
        word = {"at": time(), "pid": os.getpid(), "step": step, "thread": thread}
        path = self.folder / fired_name(self.command.id, self.rank)
        try:
            is_first = write_once(path, word)
        except OSError as error:
            raise CannotInjectError(f"{path}: {error.strerror}") from error
        if not is_first:
            raise AlreadyFiredError

    def mark_failed(self, reason: str) -> None:
        """Say that the fault could not be injected, if the folder can be written."""
        try:
            write_once(
                self.folder / failed_name(self.command.id, self.rank),
                {"at": time(), "pid": os.getpid(), "error": reason},
            )
        except OSError:
            return


def _nothing() -> None:
    return


def write_once(path: Path, value: dict[str, Any]) -> bool:
    """Write `value` as JSON under a new name, with its folder synced; False when the name is taken.

    A fired mark is whole, on disk and unique before the fault takes effect: its time is the fault's time in reports,
    and its presence keeps a restarted rank from doing it again.

    Raises:
        OSError: the folder cannot be written; nothing is left under the name.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(value, file)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            # A link fails where the name exists, which a rename would not.
            path.hardlink_to(temporary)
        except FileExistsError:
            return False
    finally:
        temporary.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return True

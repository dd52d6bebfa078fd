"""A job's folder that cannot be used: what people are told of it, and when a launcher stops waiting for it.

The leader feeds it about ten times a second with what the journal and the epoch file say. Ranks that run go on without
the folder; a fault cannot be recovered from until it can be used again. Pure: times come in.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from holdfast.errors import FolderError

TELL_S = 1.0


def unusable(folder: Path, why: object) -> FolderError:
    """The error to raise: one sentence with the folder, the reason and the fix."""
    if isinstance(why, BlockingIOError):  # `raise_epoch`: nothing is wrong with the folder itself
        return FolderError(
            f"another launcher holds {why.filename} ({why.strerror}) and does not let go: it is stopped or hangs as it "
            "starts this job; nothing is lost; end that process or let it go on, then start the job again"
        )
    said = str(why.strerror if isinstance(why, OSError) and why.strerror else why).rpartition(": ")[2]
    return FolderError(
        f"the job's folder {folder} cannot be used ({said}): free space there, make it writable or mount it again, "
        "or name another one with --job-dir"
    )


class FolderWatch:
    """Whether the folder can be used now, and since when not. `say` takes sentences for people."""

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self._folder = folder
        self._say = say
        self._why = ""
        self._since = 0.0
        self._is_told = False

    def look(self, why: str, now: float, *, is_read: bool = True) -> None:
        """Take in why the folder cannot be used now; empty: it can. The attempt lease lives on reading it."""
        if why and not self._why:
            self._since = now
        self._why = why
        if why and not self._is_told and now - self._since >= TELL_S:
            self._is_told = True
            killed = "is killed when the attempt lease runs out, unless a controller answers;"
            goes_on = "goes on, but" if is_read else killed
            self._say(f"{self.error}; what runs {goes_on} nothing is recovered until then")
        elif not why and self._is_told:
            self._is_told = False
            self._say(f"the job's folder {self._folder} can be used again")

    def refused_for(self, now: float) -> float:
        """Seconds since it cannot be used, 0 when it can."""
        return now - self._since if self._why else 0.0

    @property
    def error(self) -> FolderError:
        """What to tell people while it cannot be used."""
        return unusable(self._folder, self._why)

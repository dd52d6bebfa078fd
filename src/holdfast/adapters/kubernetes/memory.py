"""Which job of a name is which: names are used again, and a job that is made anew for a restart stays the same.

A job's lineage is the uid of its first object (an annotation carries it on). A new lineage under a known name is the
next generation. Where the number is more than one, `client` also writes it on the job, so that a standby without this
file knows it too. The file is small and rewritten whole; without one everything is kept in memory. No time passes here.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import structlog
from msgspec import Struct

from holdfast.adapters.kubernetes.objects import GENERATION, Workload, count_of
from holdfast.os.files import write_whole

KEPT_MAX = 10_000
NAME = "kubernetes-jobs.json"
_log = structlog.get_logger("holdfast.kubernetes")


class Entry(Struct):
    """The newest of a name."""

    lineage: str
    generation: int


class Memory:
    """See the module."""

    def __init__(self, folder: Path | None) -> None:
        self._path = folder / NAME if folder is not None else None
        self.jobs: dict[str, Entry] = {}
        if self._path is not None:
            try:
                self.jobs = msgspec.json.decode(self._path.read_bytes(), type=dict[str, Entry])
            except FileNotFoundError:
                pass
            except (OSError, msgspec.MsgspecError) as error:
                _log.warning("what was known of earlier jobs cannot be read", file=str(self._path), why=str(error))

    def generation(self, job: Workload) -> int:
        """Number of this job among those of its name."""
        entry = self.jobs.get(job.id)
        if entry is not None and entry.lineage == job.lineage:
            return entry.generation
        written = count_of(job.annotations.get(GENERATION))
        number = written or (entry.generation + 1 if entry is not None else 1)
        self.jobs.pop(job.id, None)
        self.jobs[job.id] = Entry(job.lineage, number)
        while len(self.jobs) > KEPT_MAX:
            del self.jobs[next(iter(self.jobs))]
        self._write()
        return number

    def _write(self) -> None:
        if self._path is None:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._path, msgspec.json.encode(self.jobs))
        except OSError as error:
            _log.warning("what is known of jobs cannot be written", file=str(self._path), why=str(error))

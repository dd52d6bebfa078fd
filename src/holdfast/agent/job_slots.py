"""What ranks without a launcher say of themselves: their telemetry slots, read by the agent of their node.

`SlurmOutput` asks for jobs that it follows. A slot counts while the process that wrote it is one of the job's: what a
run before has left, and files of somebody else's making, do not. The folder is the job's own word, and its reader is
root: no link in it is followed, and what is not the job's user's is not read. Nothing here waits: slots lie in memory.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path

from holdfast.adapters.slurm.open_files import OpenJob
from holdfast.detect.evaluations import Evaluations
from holdfast.model.wire import SamplePoint
from holdfast.os.files import open_folder
from holdfast.telemetry.slot import SlotError, SlotView, read_slot

SLOTS_MAX = 64
"""Slots read per folder: more ranks than a node runs."""
NAMES_MAX = 1024
"""Names looked at per folder."""
POINTS_MAX = 500
"""Points in one beat."""


def read_slots(job: OpenJob) -> list[SlotView]:
    """The slots of the job's living ranks on this node, by rank."""
    found: dict[int, SlotView] = {}
    for folder in job.telemetry:
        try:
            opened = open_folder(Path(folder), below=Path(*Path(folder).parts[:2]))
        except (OSError, ValueError):
            continue
        try:
            found |= _slots_in(opened, job)
        except OSError:
            continue
        finally:
            os.close(opened)
    return [found[rank] for rank in sorted(found)]


def _slots_in(folder: int, job: OpenJob) -> dict[int, SlotView]:
    found: dict[int, SlotView] = {}
    with os.scandir(folder) as entries:
        names = [entry.name for entry in islice(entries, NAMES_MAX)]
    slots = sorted(name for name in names if name.startswith("rank-") and name.endswith(".slot"))
    for name in slots[:SLOTS_MAX]:
        try:
            view = read_slot(Path("/proc/self/fd", str(folder), name), job.users)
        except SlotError:
            continue
        if view.pid in job.writers:
            found[view.rank] = view
    return found


def progress_of(views: Sequence[SlotView]) -> tuple[int | None, int, int]:
    """The job's newest ended step, the step that it was resumed from, and its newest durable checkpoint.

    Only the node of rank 0 speaks for the job: (None, 0, 0) elsewhere, and before the first step.
    """
    first = next((view for view in views if view.rank == 0), None)
    if first is None or first.step_ended is None:
        return None, 0, 0
    durable = max((view.checkpoint_durable or 0 for view in views), default=0)
    return first.step_ended, max(0, first.step_ended - first.steps), durable


class SlotPoints:
    """Points for the pages: step, loss, accuracy and step time of each rank that has changed since the last beat."""

    def __init__(self) -> None:
        self._newest: dict[tuple[str, int], SlotView] = {}
        self._told: dict[tuple[str, int], int] = {}
        self._evaluations = Evaluations()

    def take(self, attempt: str, views: Iterable[SlotView]) -> None:
        """What was seen of an attempt, named as `7(0)`."""
        for view in views:
            self._newest[attempt, view.rank] = view

    def keep(self, attempts: set[str]) -> None:
        """Forget all others."""
        for key in [key for key in self._newest if key[0] not in attempts]:
            del self._newest[key]
            self._told.pop(key, None)
            self._evaluations.forget(key)

    def points(self, at: float) -> list[SamplePoint]:
        """For the next beat, at most POINTS_MAX."""
        found: list[SamplePoint] = []
        for (attempt, rank), view in self._newest.items():
            if view.step_ended is None or self._told.get((attempt, rank)) == view.writes or len(found) >= POINTS_MAX:
                continue
            self._told[attempt, rank] = view.writes
            values = (
                ("step", float(view.step_ended)),
                ("loss", view.loss),
                ("accuracy", self._evaluations.new((attempt, rank), view.accuracy)),
                ("step_s", view.step_s_last),
            )
            found += [
                SamplePoint(series, f"job:{attempt}/rank:{rank}", at, value)
                for series, value in values
                if value is not None and math.isfinite(value)
            ]
        return found

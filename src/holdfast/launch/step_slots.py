"""Telemetry of a step's tasks on one node: where their slots lie, what is new in them, stacks of those who have one.

Nobody of ours runs on a node before the tasks do, so that they make the folder themselves: its name, which
`HOLDFAST_TELEMETRY_DIR` gives them, cannot be guessed. Used by the supervisor for its own node and by the watchers
(`step_tasks`) for theirs. Time passes in the asyncio loop.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from holdfast.launch.frames import AnyReport, RankStack, SlotsSeen
from holdfast.launch.slots import SlotReader
from holdfast.os.clock import steady_time
from holdfast.telemetry.slot import request_evacuate

ENV_PREFIX = "HOLDFAST_STEP_TELEMETRY"
"""Tells a watcher what the folders' names begin with."""
LOOK_S = 0.1
_MEMORY = Path("/dev/shm")  # noqa: S108 - the folders below are private, and nobody can know their names before


def new_prefix(job_id: str) -> str:
    """What the names of this step's folders begin with; empty where a node has no memory to keep files in."""
    if not (_MEMORY.is_dir() and os.access(_MEMORY, os.W_OK)):
        return ""
    return str(_MEMORY / f"holdfast-telemetry-{os.getuid()}-{job_id}.{secrets.token_hex(8)}")


def slots_folder(prefix: str, attempt: int, node: str = "%N") -> str:
    """An attempt's folder on a node; nodes of a lab share a machine, so that each has its own."""
    return f"{prefix}-a{attempt}.{node}"


class StepSlots:
    """The slots of a step's tasks on this node.

    Args:
        prefix: see `new_prefix`; empty: there are none.
        node: this node.
        report: takes what is new.
    """

    def __init__(self, prefix: str, node: str, report: Callable[[AnyReport], None]) -> None:
        self._prefix = prefix
        self._node = node
        self._report = report
        self._attempt = -1
        self._reader: SlotReader | None = None

    def begin(self, attempt: int) -> None:
        """From now on this attempt's; those of the one before are removed."""
        if not self._prefix or attempt == self._attempt:
            return
        self.close()
        self._attempt = attempt
        self._reader = SlotReader(Path(slots_folder(self._prefix, attempt, self._node)))

    def look(self) -> None:
        """Report what has changed."""
        reader = self._reader
        if reader is None:
            return
        reader.read(reader.discover())
        changed = reader.changed(time.monotonic())
        if changed:
            self._report(SlotsSeen(attempt=self._attempt, at=steady_time(), slots=changed))

    async def watch(self) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            self.look()

    async def dump(self, attempt: int, limit_s: float, ours: Callable[[], set[int]]) -> tuple[RankStack, ...]:
        """Stacks of the tasks that have a slot.

        Args:
            attempt: of which they are wanted.
            limit_s: for each of them.
            ours: finds the step's processes: a slot's word alone has nobody signalled.
        """
        reader = self._reader
        if reader is None or attempt != self._attempt:
            return ()
        from holdfast.launch.stack_dump import Target, dump_stacks  # noqa: PLC0415 - few attempts ever hang

        living = await asyncio.to_thread(ours)
        targets = [Target(rank, view.pid, view) for rank, view in reader.views.items() if view.pid in living]
        return tuple(await dump_stacks(targets, reader.folder, limit_s))

    def evacuate(self, attempt: int) -> None:
        """Ask the tasks that have a slot, also those that make theirs later, to save a checkpoint and stop.

        Raises:
            SlotError: they cannot be asked: none has made the folder, or it cannot be written.
        """
        reader = self._reader
        if reader is not None and attempt == self._attempt:
            request_evacuate(reader.folder)

    def close(self) -> None:
        """Remove the folder."""
        if self._reader is not None:
            shutil.rmtree(self._reader.folder, ignore_errors=True)
            self._reader = None

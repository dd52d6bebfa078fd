"""The tasks of a step on one node: found by their environment, ended, and proved to be gone.

slurmstepd starts them, so they are nobody's children here: a task is known by the job's id and the attempt's epoch
that it inherited, and by being below such a process. Used on every node of the allocation, by the supervisor on its
own node and by the watchers (`step_watch`) on the others. Time passes in the asyncio loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Coroutine
from typing import Any

from msgspec import Struct

from holdfast.launch.environment import AttemptSpec
from holdfast.launch.frames import (
    AnyAsk,
    AnyReport,
    AskEvacuate,
    DumpStacks,
    EndRanks,
    PassSignal,
    RanksGone,
    RanksStarted,
    StacksDumped,
    StartRanks,
)
from holdfast.launch.process import descendants, environ_of, parents
from holdfast.launch.step_slots import StepSlots
from holdfast.os.processes import strike
from holdfast.telemetry.slot import SlotError

_PAUSE_S = 0.02
_KILL_LIMIT_S = 60.0
_LATE_S = (0.1, 0.4, 1.5)
"""srun may still have been starting tasks when it was ended: looked for again after so long."""


def tasks_of(job_id: str, step_dir: str, epochs: Callable[[int], bool]) -> set[int]:
    """Process ids of the job's tasks whose epoch fits, with everything below them; never this process or those above.

    Args:
        job_id: SLURM_JOB_ID.
        step_dir: HOLDFAST_JOB_DIR, which tells steps of one job apart.
        epochs: which epochs are meant.
    """
    table = parents()
    found = set()
    for pid in table:
        environ = environ_of(pid)
        if (environ.get("SLURM_JOB_ID"), environ.get("HOLDFAST_JOB_DIR")) != (job_id, step_dir):
            continue
        # Only what slurmstepd started has a place among the tasks; srun and the supervisor have the rest alike.
        is_task = "SLURM_PROCID" in environ and environ.get("SLURM_STEP_ID", "").isdecimal()
        epoch = environ.get("HOLDFAST_EPOCH", "")
        if is_task and epoch.isdecimal() and epochs(int(epoch)):
            found.add(pid)
    found |= descendants(found, table)
    pid = os.getpid()
    while pid > 1:
        found.discard(pid)
        pid = table.get(pid, 0)
    return found


async def kill_all(find: Callable[[], set[int]]) -> bool:
    """Kill what `find` finds until two looks in a row find nothing; False when something outlives a minute of it."""
    deadline = time.monotonic() + _KILL_LIMIT_S
    quiet = 0
    while quiet < 2:
        found = await asyncio.to_thread(find)
        await asyncio.to_thread(strike, found, signal.SIGKILL, of=find)
        quiet = 0 if found else quiet + 1
        if time.monotonic() > deadline:
            return False
        if quiet < 2:
            await asyncio.sleep(_PAUSE_S if found else _PAUSE_S / 4)
    return True


class HeldAttempt(Struct):
    """The attempt that may run on this node, in the words that `Follower` asks in."""

    spec: AttemptSpec
    is_ending: bool = False
    is_gone: bool = False


class WatchRunner:
    """A watcher's part in the place of `NodeRunner`: it starts nothing, and ends the node's tasks when told or cut off.

    Args:
        job_id: SLURM_JOB_ID.
        step_dir: the step's folder.
        slots: of the tasks' telemetry on this node.
        report: takes what is to be said to the supervisor.
    """

    local_ranks = 1

    def __init__(self, job_id: str, step_dir: str, slots: StepSlots, report: Callable[[AnyReport], None]) -> None:
        self.attempt: HeldAttempt | None = None
        self.report = report
        self._slots = slots
        self._job_id = job_id
        self._step_dir = step_dir
        self._tasks: set[asyncio.Task[None]] = set()

    def ask_soon(self, ask: AnyAsk) -> None:
        """Carry out in the background."""
        match ask:
            case StartRanks():
                self.attempt = HeldAttempt(ask.spec)
                self._slots.begin(ask.spec.attempt)
                self.report(RanksStarted(attempt=ask.spec.attempt))
            case EndRanks():
                self._soon(self.end(ask.attempt, ask.grace_s))
            case DumpStacks():
                self._soon(self._dump(ask))
            case AskEvacuate():
                with contextlib.suppress(SlotError):  # tasks without a slot here; those elsewhere may have theirs
                    self._slots.evacuate(ask.attempt)
            case PassSignal() | _:
                return

    def _soon(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def end(self, number: int, grace_s: float, why: str = "") -> None:  # noqa: ARG002 - srun passes SIGTERM on
        """End this node's tasks of the attempt and of those before it; reports when none is left."""
        held = self.attempt
        if held is None or held.spec.attempt > number:
            self.report(RanksGone(attempt=number, why=why))
            return
        held.is_ending = True
        if await kill_all(lambda: self._ours(held)):
            held.is_gone = True
            self._slots.look()
            self.report(RanksGone(attempt=number, why=why))
            self._soon(self._look_again(held))

    def _ours(self, held: HeldAttempt) -> set[int]:
        return tasks_of(self._job_id, self._step_dir, lambda epoch: epoch <= held.spec.epoch)

    async def _dump(self, ask: DumpStacks) -> None:
        held = self.attempt
        ours = set[int] if held is None else lambda: self._ours(held)
        stacks = await self._slots.dump(ask.attempt, ask.limit_s, ours)
        self.report(StacksDumped(attempt=ask.attempt, stacks=stacks))

    async def _look_again(self, held: HeldAttempt) -> None:
        for pause_s in _LATE_S:
            await asyncio.sleep(pause_s)
            await kill_all(lambda: self._ours(held))

    def pass_signal(self, signum: int) -> None:
        """Nothing: srun passes signals on to all tasks, and none is to come twice."""

    async def watch(self) -> None:
        """Slots, until cancelled; what tasks print the supervisor reads."""
        await self._slots.watch()

    async def close(self, grace_s: float) -> None:  # noqa: ARG002 - nothing is ended
        """A watcher that leaves ends nothing: its tasks were ended before, or got the scheduler's own signal."""
        self._slots.close()

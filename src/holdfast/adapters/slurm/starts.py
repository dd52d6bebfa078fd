"""Starts that Slurm itself refuses or forgets: seen and mended before anybody takes them for a crash, or for a hold.

The credential race: a launch in the same second as the kill before it is refused by slurmd ("Job credential revoked").
The job ends FAILED with exit code 1 within that second, and nothing of it has run. Such an end is no attempt's failure.
It is told from a program that fails at once by the time of the kill, and by the output file, which a refused start does
not make: a start two or more seconds after the kill is never suspected, so a mended start that fails again is believed.
A release that a killed slurmctld had not saved is lost in the same silence: the job is back in our own hold, and is
released again. `client.py` shows the job as waiting meanwhile.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Awaitable, Callable

import structlog

from holdfast.adapters.slurm import commands
from holdfast.adapters.slurm.looks import Looks, Reading
from holdfast.adapters.slurm.memory import JobEntry, Memory
from holdfast.adapters.slurm.old_output import output_files
from holdfast.adapters.slurm.output import SlurmJob
from holdfast.adapters.slurm.tool import Tool
from holdfast.adapters.slurm.views import state_of
from holdfast.adapters.tasks import end
from holdfast.errors import LinkError, OrderError, PermanentOrderError
from holdfast.model.cluster import SchedulerState

NEXT_SECOND_S = 1.0
"""A start this long after the second of the kill is suspected only when nothing was written: clocks of two machines."""
MEND_IN_S = 3
RELEASE_IN_S = 1
LIMIT_S = 60.0
NUDGE_AFTER_S = 0.05
"""After the begin time's second has turned."""
NUDGE_AGAIN_S = (0.4, 1.0, 3.0, 3.0)
"""slurmctld's clock may be a little behind ours, and its scheduler busy."""
_MENDED = frozenset({SchedulerState.FAILED, SchedulerState.HELD})
_BEGAN = {SchedulerState.RUNNING: True, SchedulerState.PENDING: False}
"""A released run waits again where slurmctld has forgotten its start: from then on people may hold it."""
_DUE = frozenset({"", "None", "BeginTime"})
"""Reasons of a job that only waits for the scheduler's turn."""
HELD_BY_ADMIN = "JobHeldAdmin"
"""Reason of a hold by `hold` of SlurmUser or root, as we are; `requeuehold` and `uhold` give JobHeldUser."""
REQUEUED_HELD = "job requeued in held state"
"""Slurm's words for a hold by `requeuehold`."""
_log = structlog.get_logger("holdfast.slurm")


def was_refused(job: SlurmJob, entry: JobEntry, *, wrote: bool | None) -> bool:
    """Does this end look like a start that was refused? `wrote`: its output file is there; None: one cannot tell."""
    looks_so = (
        state_of(job) is SchedulerState.FAILED
        and job.exit_code == 1
        and job.signal is None
        and job.restart_count > 0
        and job.batch
        and entry.ended_at > 0
        and job.started_at > 0
        and job.ended_at - job.started_at <= 1.0
    )
    if not looks_so or wrote:
        return False
    after_s = job.started_at - math.floor(entry.ended_at)
    return -1.0 <= after_s < NEXT_SECOND_S or (after_s == NEXT_SECOND_S and wrote is False)


def was_forgotten(job: SlurmJob, entry: JobEntry, at: float) -> bool:
    """Does a look that began `at` show our own hold again, although we released this very run before?

    A hold by `requeuehold` bears its words, and an administrator's hold over it the reason JobHeldAdmin beside them.
    Our own plain hold bears that reason, too: it is ours where the run was seen running, and not waiting since.
    """
    if state_of(job) is not SchedulerState.HELD or entry.released != job.restart_count or entry.released_at >= at:
        return False
    by_requeue = REQUEUED_HELD in f"{job.reason} {job.description}"
    return by_requeue is not (job.reason == HELD_BY_ADMIN) and (by_requeue or entry.ran)


def wrote_output(job: SlurmJob) -> bool | None:
    """Is there an output file of this run? The one of the run before was moved aside."""
    files = output_files(job)
    if not files or not os.path.isdir(job.workdir):  # noqa: PTH112 - Path.is_dir raises where a folder may not be read
        return None
    return os.path.lexists(files[0])


class Starts:
    """See the module. `on_change` is called when a mended job's state is worth another look."""

    def __init__(self, tool: Tool, looks: Looks, memory: Memory, *, on_change: Callable[[], None]) -> None:
        self._tool = tool
        self._looks = looks
        self._memory = memory
        self._on_change = on_change
        self._mending: dict[str, int] = {}
        """Job -> restart count of the run."""
        self._refused: dict[str, int] = {}
        """The same, of those for which Slurm refuses even that: they are shown as they are."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.mended = 0
        """Starts that were asked for again."""

    def look(self, reading: Reading) -> None:
        """Find refused starts and forgotten releases in a reading and begin to mend them."""
        for job in reading.jobs.values():
            if job.id in self._mending or self._refused.get(job.id) == job.restart_count or not job.restart_count:
                continue
            entry = self._memory.seen(job)
            # Whether it wrote is looked up only when the rest fits.
            if was_refused(job, entry, wrote=False) and was_refused(job, entry, wrote=wrote_output(job)):
                self._begin(job, self._start_again)
            elif was_forgotten(job, entry, reading.at):
                self._begin(job, self._release_again)
            else:
                self._note_run(job, entry, reading.at)

    def _note_run(self, job: SlurmJob, entry: JobEntry, at: float) -> None:
        """Whether the run that we released has begun; one that somebody else holds by now is ours no longer."""
        state = state_of(job)
        if entry.released != job.restart_count or entry.released_at >= at:
            return
        if state is SchedulerState.HELD:
            entry.released, entry.ran = -1, False
        elif state in _BEGAN and entry.ran is not _BEGAN[state]:
            entry.ran = _BEGAN[state]
        else:
            return
        self._memory.keep(entry)

    def is_mending(self, job: SlurmJob) -> bool:
        """Is this very run one whose start is being asked for again?"""
        return self._mending.get(job.id) == job.restart_count and state_of(job) in _MENDED

    def _begin(self, job: SlurmJob, how: Callable[[SlurmJob], Awaitable[None]]) -> None:
        self._mending[job.id] = job.restart_count
        task = asyncio.create_task(self._mend(job, how), name=f"mend start of {job.id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _mend(self, job: SlurmJob, how: Callable[[SlurmJob], Awaitable[None]]) -> None:
        try:
            await how(job)
            self.mended += 1
        except (OrderError, LinkError) as error:
            if isinstance(error, PermanentOrderError):
                self._refused[job.id] = job.restart_count
            _log.warning("a start could not be asked for again", job=job.ref, why=str(error))
        finally:
            del self._mending[job.id]
            self._on_change()

    async def _start_again(self, job: SlurmJob) -> None:
        _log.warning("Slurm refused a start in the second of the kill: it is asked again", job=job.ref)
        await self._tool.run(commands.control("requeue", job.ref))
        await self._pull_in(job)

    async def _release_again(self, job: SlurmJob) -> None:
        _log.warning("slurmctld has forgotten a release: it is asked again", job=job.ref)
        await self._tool.run(commands.control("release", job.ref))
        await self._tool.run(commands.start_in(job.ref, RELEASE_IN_S))
        self.released(job, RELEASE_IN_S)

    async def _pull_in(self, job: SlurmJob) -> None:
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            now = (await self._looks.fresh()).jobs.get(job.id)
            if now is None or state_of(now) is SchedulerState.RUNNING:
                return
            if state_of(now) is SchedulerState.PENDING:
                await self._tool.run(commands.start_in(job.ref, MEND_IN_S))
                return
            await asyncio.sleep(0.05)

    def released(self, job: SlurmJob, in_s: float) -> None:
        """See that the scheduler neither sleeps over a release to begin in `in_s` seconds nor forgets it."""
        entry = self._memory.seen(job)
        entry.released, entry.released_at, entry.ran = job.restart_count, time.time(), False
        self._memory.keep(entry)
        task = asyncio.create_task(self._nudge(job, in_s), name=f"nudge {job.id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _nudge(self, job: SlurmJob, in_s: float) -> None:
        """Nothing wakes the main scheduler when a begin time comes.

        Any update of a job has it run within batch_sched_delay (3 s); without one the backfill's turn (30 s) may have
        to be waited for.
        """
        await asyncio.sleep(in_s + NUDGE_AFTER_S)
        for pause_s in NUDGE_AGAIN_S:
            try:
                now = (await self._looks.fresh()).jobs.get(job.id)
                if now is None or state_of(now) is not SchedulerState.PENDING or now.reason not in _DUE:
                    return
                await self._tool.run(commands.nudge(job.ref, requeue=now.requeue))
            except (OrderError, LinkError):
                return  # the scheduler's own turn comes in any case
            await asyncio.sleep(pause_s)

    async def close(self) -> None:
        """End what is under way."""
        await end(self._tasks)

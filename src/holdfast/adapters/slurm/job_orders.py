"""Orders about jobs: requeue held, exclude, release, give up. Each looks first, acts once, and looks again.

The order of things, each measured on real clusters: the steps' tasks are killed first, because a task that traps
SIGTERM would cost KillWait (30 s); then `requeuehold`; then one waits until no node owes the word that it is over (the
job leaves COMPLETING); only then the exclusion, the release, and the begin time that the requeue set 121 s ahead is
pulled in. A job that Slurm queued by itself meanwhile is taken as it is. Readings are shared, see `looks.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any

import structlog

from holdfast.adapters.slurm import commands
from holdfast.adapters.slurm.asks import PREFIX
from holdfast.adapters.slurm.daemons import address_of, answers_not
from holdfast.adapters.slurm.looks import Looks, Reading
from holdfast.adapters.slurm.memory import Memory
from holdfast.adapters.slurm.old_output import OldOutput
from holdfast.adapters.slurm.output import NO_REQUEUE, SlurmJob
from holdfast.adapters.slurm.tool import Tool, is_queued, over_already
from holdfast.adapters.slurm.views import NO_ANSWER, is_completing, state_of
from holdfast.errors import OrderError, PermanentOrderError, TemporaryOrderError
from holdfast.model import orders as o
from holdfast.model.cluster import ENDED, JobKey, SchedulerState

POLL_FIRST_S = 0.02
POLL_SOON_S = 0.1
POLL_MAX_S = 0.5
SOON_S = 2.0
"""An end is looked for this often at first: tasks end within a second, unless a slurmd is slow or lost."""
SLOW_END_S = 5.0
"""Longer than a launcher's lease (3 s at most by default) and its margin."""
CONNECT_S, TRIES = 0.7, 3
KILL_S = 5.0
KILL_LEAD_S = 0.1
"""That a kill gets before the node's loss is told: tasks that trap SIGTERM would cost KillWait."""
KILL_BESIDE_LOSS_S = 1.0
"""Scancel sleeps 5 s and tries again, ten times, while a job is completing; its tasks are being ended then anyway. A
node's loss sets it completing at any moment."""
LET_GO_S = 6.0
"""Longer than a launcher takes from a node's loss to its next attempt elsewhere, after which it lets the node go."""
CLOCKS_S = 0.1
"""By how much our clock and slurmctld's may differ without a start that is refused. (One that is, is mended.)"""
S = SchedulerState
_QUEUED = frozenset({S.PENDING, S.HELD})
_log = structlog.get_logger("holdfast.slurm")


def waits_for(job: SlurmJob, jobs: dict[str, SlurmJob]) -> bool:
    """Does another job wait for this one's end? Then it must not be seen FAILED, not even for a moment."""
    names = rf"(?<![0-9]){job.id}(?![0-9])|(?<![0-9]){job.array_job or job.id}_"
    for other in jobs.values():
        if other.id == job.id or not other.dependency:
            continue
        if re.search(names, other.dependency):
            return True
        if "singleton" in other.dependency and (other.user, other.name) == (job.user, job.name):
            return True
    return False


def pull_in(ended_at: float, now: float, pull_in_s: int) -> int:
    """Whole seconds from now when a released job may begin; 0: at once, since its end was in an earlier second.

    Args:
        ended_at: when we saw that nothing of it was left, Unix seconds; 0: not known.
        now: Unix seconds.
        pull_in_s: what is asked otherwise.
    """
    return 0 if ended_at > 0 and now - math.floor(ended_at) > 1.0 + CLOCKS_S else pull_in_s


class JobOrders:
    """See the module.

    Args:
        tool, looks, memory: the adapter's.
        find: gives the job of a key in a reading, None when that id is another job by now.
        released: told of a job that was released, and in how many seconds it may begin.
        pull_in_s: see `client.SlurmOrchestrator`.
    """

    def __init__(
        self,
        tool: Tool,
        looks: Looks,
        memory: Memory,
        *,
        find: Callable[[Reading, JobKey], SlurmJob | None],
        released: Callable[[SlurmJob, float], None],
        pull_in_s: int = 1,
    ) -> None:
        self._tool = tool
        self._looks = looks
        self._memory = memory
        self._find = find
        self._released = released
        self._pull_in_s = pull_in_s
        self._old_output = OldOutput(tool)
        self._whys: dict[str, str] = {}
        """Job -> why it was requeued, until a command that changes the job takes that along."""
        self._losing: list[tuple[asyncio.Event, tuple[str, ...]]] = []
        self._does: dict[type[o.Order], Callable[[Any, SlurmJob], Awaitable[str]]] = {
            o.SetExcluded: self._exclude,
            o.ReleaseJob: self._release,
            o.GiveUp: self._give_up,
        }

    def can(self, order: o.AnyOrder) -> bool:
        """Is it one of ours?"""
        return isinstance(order, o.RequeueHeld) or type(order) in self._does

    async def execute(self, order: o.JobOrder) -> str:
        """See ports.Orchestrator."""
        if isinstance(order, o.RequeueHeld):
            return await self._requeue_held_losing(order)
        _, job = await self._look(order.job)
        return await self._does[type(order)](order, job)

    async def _look(self, key: JobKey) -> tuple[Reading, SlurmJob]:
        commands.job_ref(key.id)
        reading = await self._looks.fresh()
        job = self._find(reading, key)
        if job is None:
            raise PermanentOrderError(f"Slurm knows no job {key}")
        return reading, job

    async def _until(self, key: JobKey, holds: Callable[[SlurmJob], bool], *, leased: bool = False) -> SlurmJob:
        """Look until it is so. The executor limits the time. `leased`: see `_write_off_silent`."""
        pause_s, begun, said = POLL_FIRST_S, time.monotonic(), False
        while True:
            reading, job = await self._look(key)
            if holds(job):
                return job
            if not said and time.monotonic() - begun > SLOW_END_S:
                said = True
                _log.info("a job's end takes long", job=job.ref, states=sorted(job.states), nodes=job.nodes)
                if leased:
                    await self._write_off_silent(reading, job)
            await asyncio.sleep(pause_s)
            soon_s = max(POLL_SOON_S, 2 * self._looks.cost_s) if time.monotonic() - begun < SOON_S else POLL_MAX_S
            pause_s = min(pause_s * 1.5, soon_s, POLL_MAX_S)

    async def _write_off_silent(self, reading: Reading, job: SlurmJob) -> None:
        """Set down the nodes that still owe their word and whose slurmd takes no connection.

        Their launchers' lease is over by now, so nothing of the job runs, and Slurm need not wait for SlurmdTimeout.
        """
        nodes = [reading.nodes[name] for name in job.nodes if name in reading.nodes]
        owing = [node for node in nodes if "DOWN" not in node.states]
        port = self._looks.facts.slurmd_port
        gone = await asyncio.gather(
            *(answers_not(address_of(node, port), tries=TRIES, limit_s=CONNECT_S) for node in owing)
        )
        silent = [node.name for node, is_gone in zip(owing, gone, strict=True) if is_gone]
        if silent:
            _log.warning("nodes do not answer while a job ends there: set down", job=job.ref, nodes=silent)
            await self._tool.run(commands.set_nodes(silent, "DOWN", NO_ANSWER))

    # --- requeue ---

    async def _requeue_held_losing(self, order: o.RequeueHeld) -> str:
        killed = (asyncio.Event(), order.gone)
        self._losing.append(killed)  # before anything is awaited: its nodes' own orders come in the same moment
        try:
            reading, job = await self._look(order.job)
            said = await self._requeue_held(order, reading, job, killed[0])
            if order.why and (not job.admin_comment or job.admin_comment.startswith(PREFIX)):
                self._whys[job.id] = f"{PREFIX} requeued: {order.why}"
            return said
        finally:
            self._losing.remove(killed)
            killed[0].set()

    async def until_killed(self, node: str) -> None:
        """Wait while tasks of jobs that lose this node are being ended: once it is down slurmctld ends none of them.

        Wait too while a job of several nodes still has it and nobody requeues the job: its launcher may go on with a
        spare and is about to let the node go. Slurm would requeue the whole job for a node that is down.
        """
        await self._until_let_go(node)
        doing = [asyncio.create_task(killed.wait()) for killed, nodes in self._losing if node in nodes]
        if doing:
            _, late = await asyncio.wait(doing, timeout=KILL_BESIDE_LOSS_S)
            for task in late:
                task.cancel()

    async def _until_let_go(self, node: str) -> None:
        deadline = time.monotonic() + LET_GO_S
        while time.monotonic() < deadline and not any(node in nodes for _, nodes in self._losing):
            jobs = (await self._looks.fresh()).jobs.values()
            if not any(node in job.nodes and len(job.nodes) > 1 and self._is_running(job) for job in jobs):
                return
            await asyncio.sleep(POLL_SOON_S)

    async def _requeue_held(self, order: o.RequeueHeld, reading: Reading, job: SlurmJob, killed: asyncio.Event) -> str:
        state = state_of(job)
        if job.restart_count > order.restart_count:
            if state not in _QUEUED and not (is_completing(job) and "PENDING" in self._base(job)):
                return f"it was requeued already ({job.restart_count} restarts) and is {state}"
            return await self._hold_queued(order.job, "Slurm had queued it already")
        if state in _QUEUED:
            # It has not started, or its start failed and Slurm holds it: nothing of it runs.
            return await self._hold_queued(order.job, "it was waiting")
        if not job.requeue:
            raise PermanentOrderError(NO_REQUEUE)
        gently = waits_for(job, reading.jobs)
        if order.gone:
            if not order.leased:
                await self._kill_beside_loss(order.job, job, gently=gently)
            killed.set()
            job = await self._write_off(order, reading, job)
        elif self._is_running(job):
            await self._kill(job, gently=gently, batch=True)
        if job.restart_count <= order.restart_count:
            await self._requeuehold(order.job, job)
        return await self._hold_queued(order.job, "stopped and queued", leased=order.leased)

    @staticmethod
    def _is_running(job: SlurmJob) -> bool:
        return state_of(job) is S.RUNNING and not is_completing(job)

    async def _kill_beside_loss(self, key: JobKey, job: SlurmJob, *, gently: bool) -> None:
        """End its tasks on the nodes that are left; over at once when a node's loss ends the job meanwhile.

        From then on slurmctld signals nothing in it any more, and `scancel` would only wait. Launchers end their ranks
        themselves: with a launcher this is not called, since a step that is killed beside a dead node may take Slurm
        seconds to clean up.
        """
        if not self._is_running(job):
            return
        doing = {
            asyncio.create_task(self._kill(job, gently=gently, batch=False)),
            asyncio.create_task(self._until(key, lambda seen: not self._is_running(seen))),
        }
        try:
            await asyncio.wait(doing, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in doing:
                task.cancel()
            await asyncio.gather(*doing, return_exceptions=True)

    @staticmethod
    def _base(job: SlurmJob) -> frozenset[str]:
        """22.05 shows COMPLETING alone; a requeued one is known there by its being held with priority 0."""
        return frozenset({"PENDING"}) if job.priority == 0 or "PENDING" in job.states else job.states

    async def _write_off(self, order: o.RequeueHeld, reading: Reading, job: SlurmJob) -> SlurmJob:
        """Nodes that are gone are set down, or Slurm would wait for their word; it queues the job by that itself."""
        lost = [
            n for n in order.gone if n in job.nodes and n in reading.nodes and "DOWN" not in reading.nodes[n].states
        ]
        if lost:
            await self._tool.run(commands.set_nodes(lost, "DOWN", f"{PREFIX} {order.why}"))
        return (await self._look(order.job))[1]

    async def _kill(self, job: SlurmJob, *, gently: bool, batch: bool) -> None:
        """End its tasks now. `gently`: leave it to `requeuehold`, which never shows the job as FAILED.

        Without `batch` the script is left to it, too: the loss of a node is about to queue the job.
        """
        if gently:
            return
        listed = commands.steps_of(await self._tool.text(commands.steps(job.ref)))
        limit_s = KILL_S if batch else KILL_BESIDE_LOSS_S
        try:
            if listed:
                await self._tool.run(commands.kill_steps(listed, beside_loss=not batch), limit_s=limit_s, again=False)
            if job.batch and batch:
                await self._tool.run(commands.kill_batch(job.ref), limit_s=limit_s, again=False)
            if listed and not batch:
                await asyncio.sleep(KILL_LEAD_S)
        except OrderError as error:
            _log.info("tasks could not be killed ahead of the requeue", job=job.ref, why=str(error))

    async def _requeuehold(self, key: JobKey, job: SlurmJob) -> None:
        try:
            await self._tool.run(commands.control("requeuehold", job.ref))
        except PermanentOrderError as error:
            _, now = await self._look(key)
            if now.restart_count > job.restart_count or (over_already(str(error)) and state_of(now) in _QUEUED):
                return
            if is_queued(str(error)):
                return  # a node went down under it: Slurm has queued it, although it still shows COMPLETING
            raise

    async def _hold_queued(self, key: JobKey, what: str, *, leased: bool = False) -> str:
        """Wait until no node owes a word of it, and see that it is held."""

        def is_over(seen: SlurmJob) -> bool:
            return state_of(seen) in _QUEUED or state_of(seen) is S.RUNNING

        now = await self._until(key, is_over, leased=leased)
        over_at = time.time()
        if state_of(now) is S.RUNNING:
            return f"{what}, and it runs again"
        if state_of(now) is S.PENDING:
            await self._tool.run(commands.control("hold", now.ref))
            now = await self._until(key, lambda seen: state_of(seen) is not S.PENDING)
        entry = self._memory.seen(now)
        entry.ended_at = over_at
        entry.released, entry.ran = -1, False  # this hold is wanted, whatever slurmctld forgets from now on
        self._memory.keep(entry)
        kept = await self._old_output.keep(now, now.restart_count - 1)
        return f"{what}, held; its restart count is {now.restart_count}{'; ' + kept if kept else ''}"

    # --- exclude, release, give up ---

    async def _exclude(self, order: o.SetExcluded, job: SlurmJob) -> str:
        """Exactly the owner's own nodes and the ones asked for; what we had excluded before comes free again."""
        entry = self._memory.seen(job)
        own = [node for node in job.excluded if node not in entry.ours]
        wanted = tuple(dict.fromkeys([*own, *order.nodes]))
        if set(wanted) == set(job.excluded):
            return "excluded already"
        await self._tool.run(commands.exclude(job.ref, wanted, self._whys.pop(job.id, "")))
        entry.ours = tuple(node for node in order.nodes if node not in own)
        self._memory.keep(entry)
        return f"kept off {commands.node_ref(wanted)}" if wanted else "kept off no node"

    async def _release(self, order: o.ReleaseJob, job: SlurmJob) -> str:
        if is_completing(job):
            job = await self._until(order.job, lambda seen: not is_completing(seen))
        state = state_of(job)
        if state in ENDED:
            raise PermanentOrderError(f"job {job.ref} is {state}, so there is nothing to release")
        if state not in _QUEUED:
            return f"it is {state} already"
        if state is S.HELD:
            await self._tool.run(commands.control("release", job.ref))
        asked_at = time.time()
        in_s = pull_in(self._memory.seen(job).ended_at, asked_at, self._pull_in_s)
        try:
            await self._tool.run(commands.start_in(job.ref, in_s, self._whys.pop(job.id, "")))
        except PermanentOrderError:
            # Its begin time had passed, and it was started between the two commands.
            now = (await self._look(order.job))[1]
            if state_of(now) in _QUEUED:
                raise
        # Begin times are whole seconds: "in a second" is when the next one begins.
        self._released(job, max(0.0, math.floor(asked_at) + in_s - time.time()))
        return f"released, to start {f'in {in_s} s' if in_s else 'now'} or as soon as there are nodes"

    async def _give_up(self, order: o.GiveUp, job: SlurmJob) -> str:
        self._whys.pop(job.id, None)
        if not order.cancel:
            return "left as it is"
        state = state_of(job)
        if state in ENDED:
            return f"it is {state} already"
        if state is S.RUNNING:
            listed = commands.steps_of(await self._tool.text(commands.steps(job.ref)))
            if listed:
                with contextlib.suppress(OrderError):  # the cancel below ends them too, only less quickly
                    await self._tool.run(commands.kill_steps(listed), limit_s=KILL_S, again=False)
        await self._tool.run(commands.cancel(job.ref))
        try:
            now = await self._until(order.job, lambda seen: state_of(seen) in ENDED)
        except PermanentOrderError:
            return "cancelled"  # forgotten at once (MinJobAge is short here)
        if state_of(now) in _QUEUED:
            raise TemporaryOrderError(f"job {now.ref} is in the queue again")
        return "cancelled"

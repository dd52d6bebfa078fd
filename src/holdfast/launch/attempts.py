"""Starts attempts, each behind the epoch that `core.fence` has raised for it. Used by the leader."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from msgspec import Struct, structs

from holdfast.errors import PermanentOrderError
from holdfast.launch.checkpoint_gate import before_start
from holdfast.launch.core.fence import (
    EpochRaised,
    EpochTaken,
    Fence,
    FenceAsk,
    FenceReport,
    LaidOut,
    LayOut,
    PinCheckpoint,
    Pinned,
    RaiseEpoch,
    RenewLease,
    Resumed,
    StartOrdered,
    StartRanks,
    advance,
)
from holdfast.launch.core.lease import YieldJob
from holdfast.launch.crew import Crew, free_port
from holdfast.launch.environment import AttemptSpec
from holdfast.launch.epoch import newest_attempt, raise_epoch, read_epoch
from holdfast.launch.folder import unusable
from holdfast.launch.launcher_events import LauncherEvents
from holdfast.launch.options import RunOptions
from holdfast.launch.output import Voice
from holdfast.launch.place import JobPlace
from holdfast.model.events import AttemptStarted
from holdfast.model.records import JobRecord

_START_LIMIT_S = 120.0


class _Wanted(Struct):
    """An attempt on its way to its ranks. `spec` is None until it is laid out."""

    nodes: tuple[str, ...]
    restore_step: int | None
    spec: AttemptSpec | None = None


class Attempts:
    """Starts one after the other.

    Args:
        place: the leader's.
        options: of the run.
        crew: starts the ranks.
        events: tells of each start.
        voice: for people.
        max_restarts: in place, as the ranks are told.
        is_leaving: whether this launcher was told to end.
        renew_lease: told the monotonic time at which the job was proven to be ours.
        yield_job: called with a newer epoch that another launcher has raised.
    """

    def __init__(
        self,
        place: JobPlace,
        options: RunOptions,
        *,
        crew: Crew,
        events: LauncherEvents,
        voice: Voice,
        max_restarts: int,
        is_leaving: Callable[[], bool],
        renew_lease: Callable[[float], None],
        yield_job: Callable[[int], Awaitable[None]],
    ) -> None:
        self.fence = Fence()
        self.spec: AttemptSpec | None = None
        """The newest attempt whose ranks were told to start."""
        self.started_mono = 0.0
        self._place = place
        self._options = options
        self._crew = crew
        self._events = events
        self._voice = voice
        self._max_restarts = max_restarts
        self._is_leaving = is_leaving
        self._renew_lease = renew_lease
        self._yield_job = yield_job
        self._starting = asyncio.Lock()

    def resume(self, record: JobRecord | None) -> None:
        """Go on with numbers and epochs where they were left. Raises FolderError."""
        job_dir = self._place.job_dir
        try:
            epoch = read_epoch(job_dir)
        except OSError as error:
            raise unusable(job_dir, error) from error
        known = record.attempt if record is not None else None
        resumed = Resumed(
            epoch=epoch,
            record_epoch=record.epoch if record is not None else None,
            record_attempt=known.number if known is not None else None,
            folder_attempt=newest_attempt(job_dir) if epoch else -1,
        )
        self.fence.handle(resumed)

    async def start(self, ordered: StartOrdered, nodes: tuple[str, ...], restore_step: int | None) -> None:
        """Fence the attempts before it, start it on these nodes, and say so.

        Raises:
            OrderError: the epoch cannot be raised, or a node cannot start its ranks (now).
        """
        async with self._starting:
            wanted = _Wanted(nodes, restore_step)
            await advance(self.fence, ordered, lambda ask: self._carry_out(ask, wanted))

    async def _carry_out(self, ask: FenceAsk, wanted: _Wanted) -> FenceReport | None:
        match ask:
            case LayOut():
                wanted.spec = self._lay_out(ask, wanted)
                return LaidOut(ask.attempt, ask.epoch)
            case RaiseEpoch():
                return await _raise_epoch(self._place.job_dir, ask.epoch)
            case YieldJob():
                await self._yield_job(ask.epoch)
            case RenewLease():
                self._renew_lease(ask.since)
            case PinCheckpoint():
                options = self._options
                wanted.restore_step = await before_start(options.checkpoints, wanted.restore_step, self._voice.say)
                return Pinned(is_leaving=self._is_leaving())
            case StartRanks() if wanted.spec is not None:
                await self._start_ranks(structs.replace(wanted.spec, restore_step=wanted.restore_step))
        return None

    def _lay_out(self, ask: LayOut, wanted: _Wanted) -> AttemptSpec:
        """Ranks over nodes, consecutive per node; the first node holds rank 0 and the rendezvous."""
        nodes, place, crew = wanted.nodes, self._place, self._crew
        address = crew.address_of(nodes[0])
        return AttemptSpec(
            attempt=ask.attempt,
            epoch=ask.epoch,
            in_place=ask.in_place,
            nodes=nodes,
            local_ranks=tuple(crew.local_ranks(node) for node in nodes),
            master_addr=address,
            master_port=free_port(address if nodes[0] == place.node else place.address),
            restore_step=wanted.restore_step,
            max_restarts=self._max_restarts,
        )

    async def _start_ranks(self, spec: AttemptSpec) -> None:
        self.spec, self.started_mono = spec, time.monotonic()
        await self._crew.start(spec, _START_LIMIT_S)
        self._events.submit(self._started(spec))
        what = self._crew.describe(spec, is_command=self._options.is_command)
        self._voice.say(f"attempt {spec.attempt} (epoch {spec.epoch}): {what} on {', '.join(spec.nodes)}")

    def _started(self, spec: AttemptSpec) -> AttemptStarted:
        place = self._place
        return self._events.event(
            AttemptStarted,
            job=place.job,
            attempt=spec.attempt,
            epoch=spec.epoch,
            restart_count=place.restart_count,
            in_place=spec.in_place,
            nodes=spec.nodes,
            ranks=spec.world_size,
            standby=self._crew.standbys_used > 0,
            log_dir=str(place.logs(spec.attempt)),
        )


async def _raise_epoch(job_dir: Path, epoch: int) -> EpochRaised | EpochTaken:
    since = time.monotonic()
    try:
        taken = await asyncio.to_thread(raise_epoch, job_dir, epoch)
        return EpochRaised(since) if taken is None else EpochTaken(taken)
    except OSError as error:
        raise PermanentOrderError(str(unusable(job_dir, error))) from error

"""Drives the leader's own lease (`core.lease.LeaderLease`): reads its epoch in the job's folder and kills when asked.

A task of the leader. Time is the loop's monotonic.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from holdfast.errors import TemporaryOrderError, UserError
from holdfast.launch.core.lease import (
    AwaitEpoch,
    EpochRead,
    EpochUnread,
    LeaderLease,
    LeaseAsk,
    LeaseChecked,
    LeaseLooked,
    LeaseReport,
    LoseLease,
    ReadEpoch,
    YieldJob,
)
from holdfast.launch.epoch import read_epoch
from holdfast.launch.link import Network
from holdfast.launch.place import JobPlace

_POLL_S = 0.1


class OwnLease:
    """Keeps the leader's lease.

    Args:
        place: the leader's.
        lease_s: seconds that an unrenewed lease lasts.
        network: cut off, nothing is proven by the job's folder.
        epoch: the newest epoch that this leader has raised.
        has_begun: whether this leader has started an attempt.
        is_held: whether there are ranks that need a lease.
        on_lost: called when it has run out.
        on_superseded: called with a newer epoch that is found in the job's folder.
    """

    def __init__(
        self,
        place: JobPlace,
        lease_s: float,
        *,
        network: Network,
        epoch: Callable[[], int],
        has_begun: Callable[[], bool],
        is_held: Callable[[], bool],
        on_lost: Callable[[], Awaitable[None]],
        on_superseded: Callable[[int], Awaitable[None]],
    ) -> None:
        self._core = LeaderLease(lease_s, time.monotonic())
        self._job_dir = place.job_dir
        self._network = network
        self._epoch = epoch
        self._has_begun = has_begun
        self._is_held = is_held
        self._on_lost = on_lost
        self._on_superseded = on_superseded
        self._reading: asyncio.Future[int] | None = None
        self._since = 0.0

    @property
    def unread(self) -> str:
        """Why the folder could not be read the last time; empty: it could."""
        return self._core.unread

    @property
    def is_over(self) -> bool:
        """The lease has run out."""
        return self._core.lease.is_over(time.monotonic())

    def renew(self, since: float) -> None:
        """The job was proven to be ours at this monotonic time."""
        self._core.lease.renew(since)

    async def until_sure(self, limit_s: float) -> None:
        """Wait until it surely holds. Raises TemporaryOrderError after `limit_s` seconds."""
        deadline = time.monotonic() + limit_s
        while not self._core.is_sure(time.monotonic(), is_cut=self._network.is_cut):
            if time.monotonic() > deadline:
                raise TemporaryOrderError("this launcher cannot prove that it still holds the job")
            await asyncio.sleep(_POLL_S)

    async def keep(self) -> None:
        """Read the epoch again and again, and act on what that means, until cancelled."""
        while True:
            await asyncio.sleep(self._core.pause_s)
            now, is_reading = time.monotonic(), self._reading is not None
            await self._tell(LeaseLooked(now=now, is_cut=self._network.is_cut, is_reading=is_reading))
            if self._reading is not None and self._reading.done():
                done, self._reading = self._reading, None
                await self._tell(self._read(done, self._since, has_begun=self._has_begun()))
            await self._tell(
                LeaseChecked(
                    now=time.monotonic(),
                    is_cut=self._network.is_cut,
                    is_reading=self._reading is not None,
                    is_held=self._is_held(),
                )
            )

    async def is_ours_now(self) -> bool:
        """Read the epoch once, now, and act on it; False: another launcher has started the job since we attached."""
        since, reading = time.monotonic(), self._begin_to_read()
        await asyncio.wait([reading])
        # The caller takes the job's journal next: the start of another one counts, whether we have begun or not.
        asks = await self._tell(self._read(reading, since, has_begun=True))
        return not any(isinstance(ask, YieldJob) for ask in asks)

    def _begin_to_read(self) -> asyncio.Future[int]:
        # In a thread: a read from a network file system that is away may not return for minutes.
        return asyncio.ensure_future(asyncio.to_thread(read_epoch, self._job_dir))

    def _read(self, done: asyncio.Future[int], since: float, *, has_begun: bool) -> LeaseReport:
        try:
            found = done.result()
        except (OSError, UserError) as error:
            return EpochUnread((error.strerror if isinstance(error, OSError) else None) or str(error))
        return EpochRead(
            now=time.monotonic(),
            since=since,
            is_cut=self._network.is_cut,
            found=found,
            own=self._epoch(),
            has_begun=has_begun,
        )

    async def _tell(self, report: LeaseReport) -> list[LeaseAsk]:
        asks = self._core.handle(report)
        for ask in asks:
            await self._carry_out(ask)
        return asks

    async def _carry_out(self, ask: LeaseAsk) -> None:
        match ask:
            case ReadEpoch():
                self._since, self._reading = time.monotonic(), self._begin_to_read()
            case AwaitEpoch() if self._reading is not None:
                await asyncio.wait([self._reading], timeout=ask.limit_s)
            case LoseLease():
                await self._on_lost()
            case YieldJob():
                await self._on_superseded(ask.epoch)
            case _:
                return

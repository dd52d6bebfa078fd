"""The leader's own right to have ranks running, renewed by the controller's answer or by its epoch in the job's folder.

A task of the leader. Whoever takes the job over writes a newer epoch before it starts anything, so that reading our own
there proves that nobody has. Cut off from both for a lease's time, the leader kills. Time is the loop's monotonic.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from holdfast.adapters.local.link import NodeLink
from holdfast.errors import TemporaryOrderError, UserError
from holdfast.launch.epoch import read_epoch
from holdfast.launch.lease import Lease
from holdfast.launch.place import JobPlace

_CHECK_S = 0.2
_ASLEEP_S = 0.5
"""The loop was away for longer than it asked by this much: stopped, starved, or the machine was paused."""
_POLL_S = 0.1
_HUNG_S = 60.0
"""A network file system may take so long to come back from its server's restart."""
_LEAST_S = 3.0
"""A folder on a network file system may stand still for longer than a connection between two launchers does."""


class OwnLease:
    """See the module.

    Args:
        place: the leader's.
        lease_s: how long an unrenewed lease lasts, 3 s at least.
        epoch: the newest epoch that this leader has started.
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
        epoch: Callable[[], int],
        has_begun: Callable[[], bool],
        is_held: Callable[[], bool],
        on_lost: Callable[[], Awaitable[None]],
        on_superseded: Callable[[int], Awaitable[None]],
    ) -> None:
        self.lease = Lease(max(lease_s, _LEAST_S), time.monotonic())
        self._job_dir = place.job_dir
        self._link = NodeLink(place.node_dir)
        self._epoch = epoch
        self._has_begun = has_begun
        self._is_held = is_held
        self._on_lost = on_lost
        self._on_superseded = on_superseded
        self._read_at = time.monotonic()
        self.unread = ""
        """Why the folder could not be read the last time; empty: it could."""

    @property
    def is_over(self) -> bool:
        """It has run out."""
        return self.lease.is_over(time.monotonic())

    async def until_sure(self, limit_s: float) -> None:
        """Wait until it surely holds. Raises TemporaryOrderError after `limit_s` seconds."""
        deadline = time.monotonic() + limit_s
        while self.is_over or self._link.is_cut:
            if time.monotonic() > deadline:
                raise TemporaryOrderError("this launcher cannot prove that it still holds the job")
            await asyncio.sleep(_POLL_S)

    async def keep(self) -> None:
        """Read the epoch again and again, and act on what that means, until cancelled."""
        pause_s = min(_CHECK_S, self.lease.lease_s / 4)
        reading: asyncio.Future[int] | None = None
        since = woke = time.monotonic()
        while True:
            await asyncio.sleep(pause_s)
            was_asleep = time.monotonic() - woke > 2 * pause_s + _ASLEEP_S
            woke = time.monotonic()
            if reading is None and not self._link.is_cut:
                # In a thread: a read from a network file system that is away may not return for minutes.
                since = woke
                reading = asyncio.ensure_future(asyncio.to_thread(read_epoch, self._job_dir))
            if reading is not None and was_asleep:
                # This process stood still, so that nothing could be renewed: the newest word of the folder decides.
                await asyncio.wait([reading], timeout=1.0)
            if reading is not None and reading.done():
                await self._take(reading, since)
                reading = None
            if reading is not None and woke - self._read_at > _HUNG_S and not self._link.is_cut:
                self.unread = f"no answer for {_HUNG_S:g} s"
            if self.is_over and self._is_held():
                await self._on_lost()

    async def _take(self, done: asyncio.Future[int], since: float) -> None:
        try:
            found = done.result()
        except (OSError, UserError) as error:
            self.unread = (error.strerror if isinstance(error, OSError) else None) or str(error)
            return
        self._read_at, self.unread = time.monotonic(), ""
        if self._link.is_cut:
            return
        if found > self._epoch() and self._has_begun():
            await self._on_superseded(found)
        else:
            self.lease.renew(since)

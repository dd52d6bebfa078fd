"""The launcher's controller before it is there: it takes events at once, and hands them on when the journal is open.

Made by `leading`. Ranks must not wait for the engine, the journal and their libraries, most of what a launcher loads:
they are started first, and what the leader has to say meanwhile is kept here in order. Everything that asks for an
answer (a number, a beat's answer, events on disk) waits until the controller runs. Time passes in the asyncio loop.
"""

from __future__ import annotations

import asyncio
import functools
from typing import TYPE_CHECKING

from holdfast.errors import LinkError

if TYPE_CHECKING:  # loaded with what it stands for
    from holdfast.launch.allocation import RunnableController
    from holdfast.model.events import AnyEvent
    from holdfast.model.wire import Beat, BeatAnswer
    from holdfast.ports import Journal


class LateController:
    """An `AllocationController` that becomes the real one."""

    def __init__(self) -> None:
        self.ready = asyncio.Event()
        self._waiting: list[tuple[AnyEvent, asyncio.Future[int]]] = []
        self._real: RunnableController | None = None
        self._coming: RunnableController | None = None
        self._is_over = False

    @property
    def seq(self) -> int:
        """Number of the newest event on disk; 0 before the journal is open."""
        return self._real.seq if self._real is not None else 0

    @property
    def failing(self) -> str:
        """Why the journal cannot be written now; empty: it can, or is not open yet."""
        return self._coming.failing if self._coming is not None else ""

    @property
    def journal(self) -> Journal:
        """The journal. Raises LinkError before it is open."""
        if self._real is None:
            raise LinkError("the launcher's journal is not open yet")
        return self._real.journal

    def submit(self, event: AnyEvent) -> asyncio.Future[int]:
        """Take an event in, in order; the future gives its number once it is on disk."""
        if self._real is not None:
            return self._real.submit(event)
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        if self._is_over:
            _fail(future)
        else:
            self._waiting.append((event, future))
        return future

    async def beat(self, beat: Beat, *, wait_s: float = 0.0) -> BeatAnswer:
        """See `AllocationController.beat`; waits for the controller first."""
        return await (await self._there()).beat(beat, wait_s=wait_s)

    async def events_after(self, after: int, *, limit: int = 1000, wait_s: float = 0.0) -> list[AnyEvent]:
        """See `AllocationController.events_after`; waits for the controller first."""
        return await (await self._there()).events_after(after, limit=limit, wait_s=wait_s)

    async def _there(self) -> RunnableController:
        await self.ready.wait()
        if self._real is None:
            raise LinkError("the launcher's controller has ended")
        return self._real

    async def run(self, real: RunnableController) -> None:
        """Run the real one to its end, and hand over what waits as soon as it takes events.

        Raises:
            JournalError, WireError: the journal cannot be read.
        """
        self._coming = real
        running = asyncio.create_task(real.run(), name="controller")
        ready = asyncio.create_task(real.ready.wait())
        try:
            await asyncio.wait([ready, running], return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                self._hand_over(real)
            await running
        finally:
            for task in (ready, running):
                task.cancel()
            await asyncio.gather(ready, running, return_exceptions=True)
            self.end()  # last: whoever is refused now must not end before this has told why

    def _hand_over(self, real: RunnableController) -> None:
        """Nothing waits in here, so that no event overtakes another."""
        self._real = real
        waiting, self._waiting = self._waiting, []
        for event, future in waiting:
            real.submit(event).add_done_callback(functools.partial(_copy, future))
        self.ready.set()

    def stop(self) -> None:
        """Ask for an orderly end."""
        if self._coming is not None:
            self._coming.stop()

    def end(self) -> None:
        """Refuse everything that still waits, and all that comes."""
        self._is_over = True
        for _, future in self._waiting:
            _fail(future)
        self._waiting.clear()
        self.ready.set()


def _copy(future: asyncio.Future[int], done: asyncio.Future[int]) -> None:
    if future.done():
        return
    if done.cancelled():
        future.cancel()
    elif (error := done.exception()) is not None:
        future.set_exception(error)
        future.exception()  # who does not wait for it must not leave a warning behind
    else:
        future.set_result(done.result())


def _fail(future: asyncio.Future[int]) -> None:
    if not future.done():
        future.set_exception(LinkError("the launcher's controller has ended"))
        future.exception()  # as above

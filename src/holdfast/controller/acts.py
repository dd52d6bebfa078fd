"""Work with a limit, and what adapters do for an order: tried again while it may help, cut off when the lease ends.

Called by `executors.py`; `within` by everything here that waits. Time passes by the clock port only. Nothing is begun
while `may_act` says no: the lease is in doubt, or outcomes cannot be stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import structlog

from holdfast.controller.settings import Settings
from holdfast.errors import LinkError, TemporaryOrderError
from holdfast.model import orders as o
from holdfast.model.wire import kind_of
from holdfast.ports import Clock

T = TypeVar("T")
_log = structlog.get_logger("holdfast.controller")

GATE_S = 0.1


async def within(
    clock: Clock, seconds: float, work: Coroutine[Any, Any, T], *, running: dict[asyncio.Task[Any], None] | None = None
) -> T:
    """Await `work` for at most so long by the clock port; raises TimeoutError after it has ended the work.

    While it runs its task stands in `running`: who cancels it there has CancelledError raised here.
    """
    task = asyncio.ensure_future(work)
    if running is not None:
        running[task] = None
        task.add_done_callback(lambda done: running.pop(done, None))
    late = False

    def stop() -> None:
        nonlocal late
        late = not task.done()
        task.cancel()

    cancel = clock.call_later(seconds, stop)
    try:
        return await task
    except asyncio.CancelledError:
        current = asyncio.current_task()
        if late and not (current is not None and current.cancelling()):
            raise TimeoutError from None
        task.cancel()
        raise
    finally:
        cancel()


class Acts:
    """What adapters are doing now."""

    def __init__(
        self, clock: Clock, settings: Settings, may_act: Callable[[], bool], storing: Callable[[], int]
    ) -> None:
        self._clock = clock
        self._settings = settings
        self._may_act = may_act
        self._storing = storing
        # In order of their beginning, not a set: a simulation must cut them off in the same order each time.
        self.running: dict[asyncio.Task[Any], None] = {}
        self.killed = False
        """Nothing is begun again."""
        self.settled: set[str] = set()
        """Orders that ended while they ran: not tried again, which could undo what came after their effect."""
        self._interrupted = False

    def interrupt(self) -> None:
        """Cut off what runs: the right to act has ended. It is begun again once there is a right again."""
        self._interrupted = bool(self.running)
        for act in list(self.running):
            act.cancel()

    async def gate(self) -> None:
        """Return when something may be begun."""
        while not self._may_act():
            await self._clock.sleep(GATE_S)

    async def attempt(self, order: o.AnyOrder, act: Callable[[], Coroutine[Any, Any, T]], limit_s: float) -> T:
        """Do it; retry what is temporary, with growing pauses, until the order's limit.

        Raises:
            OrderError: as `act` does; TemporaryOrderError when the limit is over.
        """
        pause_s = self._settings.retry_first_s
        await self.gate()
        deadline = self._clock.monotonic() + limit_s
        while True:
            left_s = deadline - self._clock.monotonic()
            try:
                return await within(self._clock, left_s, act(), running=self.running)
            except asyncio.CancelledError:
                current = asyncio.current_task()
                if not self._interrupted or self.killed or (current is not None and current.cancelling()):
                    raise
                _log.warning("order is cut off: the lease was not renewed in time", order=order.id, kind=kind_of(order))
                await self.gate()
                deadline = self._clock.monotonic() + limit_s
                if order.id in self.settled:
                    raise TemporaryOrderError("cut off, and its order has ended") from None
            except TimeoutError as error:
                raise TemporaryOrderError(f"not done within {limit_s:g} s") from error
            except (TemporaryOrderError, LinkError) as error:
                wait_s = max(pause_s, error.retry_after_s if isinstance(error, TemporaryOrderError) else 0.0)
                if self._clock.monotonic() + wait_s >= deadline:
                    raise TemporaryOrderError(f"{error} (tried for {limit_s:g} s)") from error
                _log.info("order is tried again", order=order.id, kind=kind_of(order), why=str(error), in_s=wait_s)
                await self._clock.sleep(wait_s)
                pause_s = min(pause_s * 2, self._settings.retry_max_s)
                batch = self._storing()
                while batch and self._storing() == batch:
                    await self._clock.sleep(GATE_S)  # the order's end may be in what is being stored
                await self.gate()
                if order.id in self.settled:
                    raise TemporaryOrderError(f"{error} (its order has ended)") from error

"""The lease of the controller that leads: taken, renewed, and over at its time whatever the journal says.

`loop.py` runs it. `election.py` holds the judgement. Time is the clock port's.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from holdfast.controller.election import Leading
from holdfast.controller.patience import Patience
from holdfast.errors import FencedError, JournalError
from holdfast.ports import Clock, Journal, LeaseRow

_log = structlog.get_logger("holdfast.controller")


class Lease:
    """One holder's lease. `interrupt` cuts off what runs when the lease ends."""

    def __init__(
        self,
        journal: Journal,
        clock: Clock,
        patience: Patience,
        interrupt: Callable[[], object],
        *,
        holder: str,
        lease_s: float,
    ) -> None:
        self.holder, self.lease_s = holder, lease_s
        self.epoch = 0
        self._journal = journal
        self._clock = clock
        self._patience = patience
        self._interrupt = interrupt
        self._leading = Leading(lease_s)
        self._forget_alarm: Callable[[], None] = lambda: None

    def may_act(self) -> bool:
        """Is it surely ours now?"""
        return self._leading.may_act(self._clock.monotonic())

    async def take(self, seen: LeaseRow | None) -> int:
        """Take it, and return its epoch.

        Raises:
            JournalBusyError: another controller is active.
        """
        before = self._clock.monotonic()
        self.epoch = await self._journal.acquire(self.holder, lease_s=self.lease_s, now=self._clock.now(), seen=seen)
        self._renewed(before)
        return self.epoch

    async def keep(self) -> None:
        """Renew it for ever.

        Raises:
            FencedError: another controller has taken over.
        """
        while True:
            await self._clock.sleep(self.lease_s / 3)
            before = self._clock.monotonic()
            try:
                await self._journal.renew(now=self._clock.now())
            except FencedError:
                _log.error("another controller has taken over: this one stops", epoch=self.epoch)
                raise
            except JournalError as error:
                self._patience.warn_seldom("the lease could not be renewed", error)
                await self._clock.sleep(min(0.5, self.lease_s / 10))
                continue
            self._renewed(before)

    async def give_back(self) -> None:
        """Let another take it at once. It is not surely ours from before that: no old state is shown as the newest."""
        self.close()
        await self._journal.release()

    def close(self) -> None:
        """Forget the alarm for its end, and take the lease for ours no longer."""
        self._forget_alarm()
        self._leading.lapse(self._clock.monotonic())

    def _renewed(self, asked_at: float) -> None:
        """Ours until a lease's time after it was asked for. What runs then may be another's to do: it is cut off."""
        self._leading.renewed(asked_at)
        self._forget_alarm()
        self._forget_alarm = self._clock.call_later(self._leading.until - self._clock.monotonic(), self._lapsed)

    def _lapsed(self) -> None:
        self._leading.lapse(self._clock.monotonic())
        self._interrupt()

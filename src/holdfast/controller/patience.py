"""A journal that refuses is asked again, and its refusals are logged now and then. Time is the clock port's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from holdfast.errors import FencedError, JournalError
from holdfast.ports import Clock

R = TypeVar("R")
_log = structlog.get_logger("holdfast.controller")

RETRY_FIRST_S = 0.05
SAY_AGAIN_S = 30.0


class Patience:
    """What the controller knows of the journal's refusals."""

    def __init__(self, clock: Clock, retry_max_s: float) -> None:
        self._clock = clock
        self._retry_max_s = retry_max_s
        self._warned_at: dict[str, float] = {}
        self.failing = ""
        """Why the journal cannot be written now; empty: it can."""
        self.refuses = asyncio.Event()
        """Set while it cannot be written."""

    async def insist(self, work: Callable[[], Awaitable[R]]) -> R:
        """Do what the journal must do, again and again while the disk refuses; nothing is begun meanwhile.

        Raises:
            FencedError: another controller has taken over.
        """
        pause_s, said_at = RETRY_FIRST_S, -SAY_AGAIN_S
        while True:
            try:
                result = await work()
            except FencedError:
                raise
            except JournalError as error:
                self.failing = str(error)
                self.refuses.set()
                if self._clock.monotonic() - said_at >= SAY_AGAIN_S:
                    said_at = self._clock.monotonic()
                    _log.error("the journal refuses: nothing new is begun until it takes events again", why=str(error))
                await self._clock.sleep(pause_s)
                pause_s = min(pause_s * 2, self._retry_max_s)
                continue
            if self.failing:
                _log.info("the journal takes events again")
                self.failing = ""
                self.refuses.clear()
            return result

    def warn_seldom(self, what: str, error: JournalError) -> None:
        """Log what can wait; the same once in `SAY_AGAIN_S`."""
        now = self._clock.monotonic()
        if now - self._warned_at.get(what, -SAY_AGAIN_S) >= SAY_AGAIN_S:
            self._warned_at[what] = now
            _log.warning(what, why=str(error))

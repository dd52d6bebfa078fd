"""What the controller writes beside its events: samples once a second; old history is dropped now and then.

One task of `loop.py`. Time is the clock port's.
"""

from __future__ import annotations

import structlog

from holdfast.controller.patience import Patience
from holdfast.controller.presence import Presence
from holdfast.controller.settings import Settings
from holdfast.errors import FencedError, JournalError
from holdfast.os.clock import EvenClock
from holdfast.ports import Clock, Journal

_log = structlog.get_logger("holdfast.controller")

JUMP_S = 60.0
DOUBT_S = 86400.0
"""After its clock was set forward, a controller drops no history for so long: the clock may have been set wrong."""


class Housekeeping:
    """Samples that beats brought, and the journal's retention."""

    def __init__(
        self, journal: Journal, clock: Clock, settings: Settings, presence: Presence, patience: Patience
    ) -> None:
        self._journal = journal
        self._clock = clock
        self._settings = settings
        self._presence = presence
        self._patience = patience
        self._even = EvenClock(clock.now, clock.monotonic)
        self._drops_from = float("-inf")

    async def run(self) -> None:
        """Keep house for ever."""
        retained_at = self._clock.monotonic()
        while True:
            await self._clock.sleep(self._settings.samples_s)
            await self.flush_samples()
            self._watch_clock()
            if self._clock.monotonic() - retained_at >= self._settings.retain_every_s:
                retained_at = self._clock.monotonic()
                if retained_at < self._drops_from:
                    continue
                try:
                    dropped = await self._journal.retain(self._clock.now() - self._settings.retain_s)
                except FencedError:
                    raise
                except JournalError as error:
                    _log.warning("old events could not be dropped", why=str(error))
                else:
                    _log.info("old events dropped", count=dropped)

    def _watch_clock(self) -> None:
        if (by_s := self._even.set_s()) > JUMP_S:
            self._drops_from = self._clock.monotonic() + DOUBT_S
            _log.warning("the clock was set forward: no history is dropped for a day", by_s=by_s)
        self._even = EvenClock(self._clock.now, self._clock.monotonic)

    async def flush_samples(self) -> None:
        """Write what has arrived."""
        samples = list(self._presence.samples)
        self._presence.samples.clear()
        try:
            await self._journal.add_samples(samples)
        except JournalError as error:
            # Plots have a gap; recovery does not depend on them.
            self._patience.warn_seldom("samples could not be written", error)

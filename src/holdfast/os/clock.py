"""Unix time that goes on evenly, and how far a clock was set since.

Most of all for processes whose waits are counted in the times that they tell of.

A launcher's findings, progress and limits are told and compared by one clock. Where the machine's clock is set while
it runs, an hour forward would be an hour of silence to it, and an hour back a fault that is never due. So it takes the
wall clock once and counts on by the monotonic one. Who hears of it knows from its beats how far it is off.
"""

from __future__ import annotations

import time
from collections.abc import Callable


class EvenClock:
    """Unix time as a clock told it when this was made, counted on by the monotonic one.

    Args:
        now: the clock that may be set; Unix seconds.
        monotonic: seconds that never go back.
    """

    def __init__(self, now: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._monotonic = monotonic
        self._began = now() - monotonic()

    def now(self) -> float:
        """Unix seconds."""
        return self.at(self._monotonic())

    def at(self, mono: float) -> float:
        """Unix seconds of a moment of the monotonic clock."""
        return self._began + mono

    def set_s(self) -> float:
        """How far the clock was set forward since; negative: back."""
        return self._now() - self.now()


_OURS = EvenClock()


def steady_time() -> float:
    """Unix seconds, by the machine's clock as it stood when this process began."""
    return _OURS.now()

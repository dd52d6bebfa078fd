"""Timers that the engine asked for: waiting by the clock port, coming back as `TimerFired`.

Started by `loop.py` once the order is on disk. What must survive a restart is in `ShellState.timers`; here is only the
waiting. One that was overdue at a restart fires at once.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.controller.state import Waiting
from holdfast.model.events import AnyEvent, TimerFired
from holdfast.ports import Clock


class Timers:
    """Names and what cancels each."""

    def __init__(self, clock: Clock, submit: Callable[[AnyEvent], object]) -> None:
        self._clock = clock
        self._submit = submit
        self._cancels: dict[str, Callable[[], None]] = {}

    def start(self, name: str, waiting: Waiting) -> None:
        """Wait until it is due; one of the same name that waits already is replaced."""
        self.cancel(name)
        after_s = max(0.0, waiting.due - self._clock.now())
        self._cancels[name] = self._clock.call_later(after_s, lambda: self._fire(name, waiting))

    def cancel(self, name: str) -> None:
        """Forget it."""
        cancel = self._cancels.pop(name, None)
        if cancel is not None:
            cancel()

    def clear(self) -> None:
        """Forget all."""
        for name in list(self._cancels):
            self.cancel(name)

    def _fire(self, name: str, waiting: Waiting) -> None:
        self._cancels.pop(name, None)
        self._submit(TimerFired(id=waiting.event_id, at=self._clock.now(), source="controller", timer=name))

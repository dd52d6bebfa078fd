"""The controller's own events about who is there: each with its id, each submitted once while it is not stored.

Used by `presence.py` and `doubts.py`. Times are the clock port's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from holdfast.model.events import AnyEvent
from holdfast.ports import Clock


class Announcer:
    """Submits transitions. `settled` is called with what was said once that is stored or refused."""

    def __init__(
        self, clock: Clock, submit: Callable[[AnyEvent], asyncio.Future[int]], settled: Callable[[str], object]
    ) -> None:
        self._clock = clock
        self._submit = submit
        self._settled = settled
        self._said: set[str] = set()
        self._counter = 0
        self.epoch = 0

    def say(self, what: str, kind: Callable[..., AnyEvent], /, *, source: str = "controller", **fields: Any) -> None:
        """Submit a transition once, also when the reason for it is met again before it is stored."""
        self._counter += 1
        if what in self._said:
            return
        self._said.add(what)
        event = kind(id=f"presence:{self.epoch}.{self._counter}", at=self._clock.now(), source=source, **fields)
        self._submit(event).add_done_callback(lambda done: self._unsay(what, done))

    def _unsay(self, what: str, done: asyncio.Future[int]) -> None:
        self._said.discard(what)
        self._settled(what)
        if not done.cancelled():
            # A controller that stops fails what it could not store; the next one will notice the same again.
            done.exception()

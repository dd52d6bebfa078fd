"""The newest events on disk, in memory: duplicates are known by their ids, readers wait here for the next event.

`intake.py` writes it with every commit; `loop.py` reads it for the API. Time is the clock port's.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque

from holdfast.controller.acts import within
from holdfast.model.events import AnyEvent
from holdfast.ports import Clock, Journal


class Recent:
    """Up to `kept` events, which are the newest of the journal without a hole."""

    def __init__(self, journal: Journal, clock: Clock, kept: int) -> None:
        self._journal = journal
        self._clock = clock
        self._kept = kept
        self._events: deque[AnyEvent] = deque(maxlen=kept)
        self._ids: OrderedDict[str, None] = OrderedDict()
        self._news = asyncio.Event()
        self.seq = 0
        """Sequence number of the newest event on disk."""
        self.closed = False
        """No event will follow."""

    def __contains__(self, event_id: str) -> bool:
        return event_id in self._ids

    def clear(self) -> None:
        """Forget all, before a replay."""
        self._events.clear()
        self._ids.clear()

    def add(self, event: AnyEvent) -> None:
        """Keep an event that is on disk."""
        self._events.append(event)
        self._ids[event.id] = None
        if len(self._ids) > self._kept:
            self._ids.popitem(last=False)

    def ring(self) -> None:
        """Wake whoever waits in `after`."""
        self._news.set()
        self._news = asyncio.Event()

    def close(self) -> None:
        """Let nobody wait any longer."""
        self.closed = True
        self.ring()

    async def after(self, after: int, *, limit: int, wait_s: float) -> list[AnyEvent]:
        """Events on disk with seq > after, oldest first; when there are none, waits up to `wait_s` for some."""
        deadline = self._clock.monotonic() + wait_s
        while self.seq <= after:
            left_s = deadline - self._clock.monotonic()
            if left_s <= 0 or self.closed:
                return []
            try:
                await within(self._clock, left_s, self._news.wait())
            except TimeoutError:
                return []
        if self._events and self._events[0].seq <= after + 1:
            # Sequence numbers in memory have no holes, so the place is known without a search.
            start = after + 1 - self._events[0].seq
            return [self._events[index] for index in range(start, min(start + limit, len(self._events)))]
        return await self._journal.events(after=after, limit=limit)

"""Keeping open pages up to date: one message for all who look at the same page, at most one a second.

Each open page (`overview`, `job:1778`) is a topic while somebody looks at it. When the board says that it changed, its
parts are made once and what differs is sent to every viewer, as server-sent events: `{"seq", "parts": {id: html},
"cells": {node: [state, label]}}`. What a person should see at once (a new fault) goes out at once, from a small
allowance; the rest waits for the second to be over. A viewer that is slow misses nothing: parts that it has not taken
yet are merged. Time passes by the loop's clock. Called by `cockpit.py` and `routes.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
import structlog

from holdfast.errors import HoldfastError

MERGE_S = 0.9
"""Between two messages to a viewer, on average: about one a second, and what waits longest still shows within one."""
BURST = 3
"""Notable changes that may go out at once before the pace holds for them, too."""
BEAT_S = 15.0
"""A comment as often as this keeps proxies from closing the line, and tells the page that it is alive."""
VIEWERS_MAX = 1000

Parts = dict[str, str]
Cells = dict[str, tuple[str, str]]
Make = Callable[[str, int], Awaitable[tuple[Parts, Cells]]]
"""(page, number of the event since which cells changed) -> its parts, and cells of nodes that changed since."""

_log = structlog.get_logger("holdfast.cockpit")


class Viewer:
    """One open page. Holds what was not sent yet, merged."""

    def __init__(self) -> None:
        self.parts: Parts = {}
        self.cells: Cells = {}
        self.bell = asyncio.Event()
        self.message: bytes | None = None
        """The newest message as all viewers get it, when nothing else waits for this one."""
        self.seq = 0

    def push(self, seq: int, parts: Parts, cells: Cells, message: bytes) -> None:
        """Hand over a message."""
        self.message = message if not self.bell.is_set() else None
        self.parts.update(parts)
        self.cells.update(cells)
        self.seq = seq
        self.bell.set()

    def take(self) -> bytes:
        """What is to be sent now."""
        message = self.message if self.message is not None else encoded(self.seq, self.parts, self.cells)
        self.parts, self.cells, self.message = {}, {}, None
        self.bell.clear()
        return message


class Topic:
    """A page that somebody looks at, from its first viewer to its last."""

    def __init__(self, page: str, hub: Hub) -> None:
        self.page = page
        self.viewers: set[Viewer] = set()
        self.dirty = asyncio.Event()
        self.urgent = asyncio.Event()
        """Something came that a person should see at once."""
        self._hub = hub
        self._sent: Parts = {}
        self._learned = asyncio.Event()
        self._seq = hub.seq()
        self._allowance = float(BURST)
        self._at = asyncio.get_running_loop().time()
        self.task = asyncio.create_task(self._follow(), name=f"live {page}")

    async def _follow(self) -> None:
        loop = asyncio.get_running_loop()
        await self._learn()
        while True:
            await self.dirty.wait()
            self._refill(loop.time())
            # A message costs one. What can wait goes out only from a full allowance: so there is one for what cannot.
            needed = 1.0 if self.urgent.is_set() else float(BURST)
            if self._allowance < needed:
                await self._pause((needed - self._allowance) * MERGE_S)
                continue
            self._allowance -= 1.0
            self.dirty.clear()
            self.urgent.clear()
            try:
                await self._send()
            except HoldfastError as error:
                _log.warning("a live page could not be made", page=self.page, why=str(error))

    async def _learn(self) -> None:
        """How the page looks now: so that only what differs is sent, and a viewer who comes costs no page."""
        with contextlib.suppress(HoldfastError):
            self._sent, _ = await self._hub.make(self.page, self._seq)
        self._learned.set()

    async def greeting(self, since: int) -> bytes:
        """What a viewer who has the page as of event `since` lacks; the topic's next message goes on from there."""
        await self._learned.wait()
        return encoded(self._seq, self._sent, self._hub.cells(self.page, since))

    async def _pause(self, seconds: float) -> None:
        if self.urgent.is_set():
            await asyncio.sleep(seconds)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.urgent.wait()

    def _refill(self, now: float) -> None:
        self._allowance = min(float(BURST), self._allowance + (now - self._at) / MERGE_S)
        self._at = now

    async def _send(self) -> None:
        since, self._seq = self._seq, self._hub.seq()
        parts, cells = await self._hub.make(self.page, since)
        changed = {name: html for name, html in parts.items() if self._sent.get(name) != html}
        self._sent = parts
        if not changed and not cells:
            return
        message = encoded(self._seq, changed, cells)
        self._hub.messages += 1
        for viewer in self.viewers:
            viewer.push(self._seq, changed, cells, message)


class Hub:
    """All topics. `make` makes a page's parts, `cells` those of nodes alone; `seq` tells the newest event."""

    def __init__(self, make: Make, cells: Callable[[str, int], Cells], seq: Callable[[], int]) -> None:
        self.make = make
        self.cells = cells
        self.seq = seq
        self.messages = 0
        """Messages made so far, each for all viewers of its page."""
        self._topics: dict[str, Topic] = {}
        self._closed = False

    @property
    def viewers(self) -> int:
        """Open pages."""
        return sum(len(topic.viewers) for topic in self._topics.values())

    @property
    def is_full(self) -> bool:
        """No further page is taken on."""
        return self.viewers >= VIEWERS_MAX

    def changed(self, pages: frozenset[str], notable: bool) -> None:
        """These pages look different now. A list that is filtered (`jobs?q=gpt`) changes with the whole list."""
        for topic in self._topics.values():
            if topic.page.partition("?")[0] in pages:
                topic.dirty.set()
                if notable:
                    topic.urgent.set()

    def all_changed(self) -> None:
        """Something that every page shows is different."""
        self.changed(frozenset(page.partition("?")[0] for page in self._topics), notable=True)

    async def follow(self, page: str, since: int) -> AsyncIterator[bytes]:
        """Messages for one viewer who has the page as of event `since`; ends when the hub is closed.

        Ends at once when the hub is full: many may have been let in before the first of them begins here.
        """
        if self.is_full:
            return
        viewer = Viewer()
        topic = self._topics.get(page)
        if topic is None:
            topic = self._topics[page] = Topic(page, self)
        topic.viewers.add(viewer)
        try:
            yield b"retry: 1000\n\n"
            if self.seq() != since:
                yield await topic.greeting(since)
            while not self._closed:
                try:
                    async with asyncio.timeout(BEAT_S):
                        await viewer.bell.wait()
                except TimeoutError:
                    yield b": beat\n\n"
                else:
                    if not self._closed:
                        yield viewer.take()
        finally:
            topic.viewers.discard(viewer)
            if not topic.viewers and self._topics.get(page) is topic:
                del self._topics[page]
                topic.task.cancel()

    def close(self) -> None:
        """End every open page's line."""
        self._closed = True
        for topic in self._topics.values():
            topic.task.cancel()
            for viewer in topic.viewers:
                viewer.bell.set()


def encoded(seq: int, parts: Parts, cells: Cells) -> bytes:
    """One server-sent event. JSON has no bare line breaks, so nothing in it can begin a field of its own."""
    body: dict[str, Any] = {"seq": seq, "parts": parts, "cells": cells}
    return b"event: update\nid: %d\ndata: %s\n\n" % (seq, msgspec.json.encode(body))

"""Events on their way to the controller: in order, on disk until the controller has stored them, bounded.

Whoever sees something calls `put`; the sender takes batches and confirms them. An event is written to the spool before
it is sent, so that an agent's death loses none; event ids make a second delivery harmless. When the controller stays
away for long, the oldest events that are not roots are dropped first, and counted. A disk that takes nothing does not
keep events from being sent. No time passes here except in `wait`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections import deque
from pathlib import Path

import structlog

from holdfast.errors import WireError
from holdfast.model.events import AnyEvent, FindingSeen
from holdfast.model.evidence import Role
from holdfast.model.wire import decode_event, encode

EVENTS_MAX = 10_000
"""At up to about 2 kB each the spool stays under 20 MB."""

_log = structlog.get_logger("holdfast.agent")


class Outbox:
    """A queue of events with a spool file behind it.

    Args:
        spool: the file; made when it is missing. What an earlier agent left in it is sent first.
        events_max: most events kept.
    """

    def __init__(self, spool: Path, *, events_max: int = EVENTS_MAX) -> None:
        self._spool = spool
        self._events_max = events_max
        self._waiting: deque[AnyEvent] = deque()
        self._news = asyncio.Event()
        self._file_lines = 0
        self.dropped = 0
        """Events lost since the start because the controller was away for too long."""
        self.disk_failed = False
        self._load()

    def __len__(self) -> int:
        return len(self._waiting)

    def _load(self) -> None:
        try:
            lines = self._spool.read_bytes().split(b"\n")
        except OSError:
            return
        for line in lines:
            if line:
                # The last line of a killed agent can be torn; an event of a newer version cannot be read back.
                with contextlib.suppress(WireError):
                    self._waiting.append(decode_event(line))
        self._rewrite()
        if self._waiting:
            self._news.set()

    def put(self, event: AnyEvent) -> None:
        """Queue an event for sending. Raises WireError when it cannot be written as JSON."""
        line = encode(event) + b"\n"
        self._waiting.append(event)
        self._news.set()
        if len(self._waiting) > self._events_max:
            self._make_room()
            return
        try:
            with self._spool.open("ab") as file:
                file.write(line)
        except OSError as error:
            self._note_disk(error)
        else:
            self._file_lines += 1
            self.disk_failed = False

    def _make_room(self) -> None:
        """Drop a tenth at once, so that the spool is not rewritten at every event."""
        goal = self._events_max - self._events_max // 10
        surplus = len(self._waiting) - goal
        kept: deque[AnyEvent] = deque()
        for event in self._waiting:
            if surplus > 0 and not (isinstance(event, FindingSeen) and event.finding.role is Role.ROOT):
                surplus -= 1
            else:
                kept.append(event)
        while len(kept) > goal:
            kept.popleft()
        lost = len(self._waiting) - len(kept)
        self.dropped += lost
        self._waiting = kept
        _log.warning("the controller has been away for too long: events were dropped", dropped=lost, total=self.dropped)
        self._rewrite()

    async def wait(self) -> None:
        """Return when there is something to send."""
        await self._news.wait()

    def batch(self, limit: int) -> list[AnyEvent]:
        """The oldest events, without taking them out."""
        return [event for event, _ in zip(self._waiting, range(limit), strict=False)]

    def confirm(self, events: list[AnyEvent]) -> None:
        """The controller has stored these (or can never store them): forget them."""
        done = {event.id for event in events}
        if done and all(self._waiting[i].id in done for i in range(min(len(events), len(self._waiting)))):
            for _ in range(min(len(events), len(self._waiting))):
                self._waiting.popleft()
        else:  # room was made in between
            self._waiting = deque(event for event in self._waiting if event.id not in done)
        if not self._waiting:
            self._news.clear()
        if not self._waiting or self._file_lines > 4 * max(64, len(self._waiting)):
            self._rewrite()

    def _rewrite(self) -> None:
        """Bring the spool file down to what still waits."""
        try:
            if not self._waiting:
                if self._file_lines or self._spool.exists():
                    os.truncate(self._spool, 0)
            else:
                fresh = self._spool.with_suffix(".new")
                fresh.write_bytes(b"".join(encode(event) + b"\n" for event in self._waiting))
                fresh.replace(self._spool)
            self._file_lines = len(self._waiting)
        except OSError as error:
            self._note_disk(error)

    def _note_disk(self, error: OSError) -> None:
        if not self.disk_failed:
            _log.warning(
                "the spool cannot be written; events are kept in memory", file=str(self._spool), why=str(error)
            )
        self.disk_failed = True

"""Events that must reach the controller although it may be away: kept in order, delivered at least once.

Used by the agent and the launcher. `Spool` keeps, in memory or in a bounded file that survives the process; `Reporter`
delivers in the background. The controller knows duplicates by their id. Time passes in the pauses between tries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from holdfast.client.http import AsyncClient
from holdfast.errors import LinkError, RefusedError, WireError
from holdfast.model.events import AnyEvent
from holdfast.model.wire import encode
from holdfast.os.files import append_whole, write_whole

BATCH_MAX = 500
BATCH_BYTES_MAX = 2 * 1024 * 1024
"""Of one request; the controller refuses bodies of more than 8 MiB."""
EVENT_BYTES_MAX = 1024 * 1024

_Event = TypeVar("_Event")


class ClientSource(Protocol):
    """Gives the client to use now; raises LinkError when no controller is known yet."""

    async def __call__(self) -> AsyncClient:
        """Called before each try."""


async def send_by_halves(
    events: Sequence[_Event],
    send: Callable[[Sequence[_Event]], Awaitable[None]],
    refuse: Callable[[_Event, WireError], None],
) -> None:
    """Send all of them; one that cannot be understood is found by halves, and does not keep the others back for ever.

    Args:
        events: at least one, in their order.
        send: raises WireError when the other side cannot read what it was given.
        refuse: is told of each event that cannot be read by itself, and why.
    """
    try:
        await send(events)
    except WireError as error:
        if len(events) == 1:
            refuse(events[0], error)
            return
        middle = len(events) // 2
        await send_by_halves(events[:middle], send, refuse)
        await send_by_halves(events[middle:], send, refuse)


class Spool:
    """Events that wait for delivery, oldest first, bounded; in a file when a path is given.

    The file is appended to and flushed with every event, so it survives the process (a power cut may lose the newest).
    Beyond `bytes_max` the oldest events are dropped and counted in `dropped`: new evidence is worth more than old.
    """

    def __init__(self, path: Path | None = None, *, bytes_max: int = 16 * 1024 * 1024) -> None:
        self._path = path
        self._bytes_max = bytes_max
        self._waiting: list[bytes] = []
        self._bytes = 0
        self._stale_lines = 0
        self.dropped = 0
        if path is not None:
            self._read(path)

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def has_room(self) -> bool:
        """Is less than half of it taken? Then what is added drives nothing else out for a while."""
        return self._bytes < self._bytes_max / 2

    def _read(self, path: Path) -> None:
        try:
            lines = path.read_bytes().split(b"\n")
        except FileNotFoundError:
            return
        except OSError as error:
            raise LinkError(f"the spool {path} cannot be read: {error.strerror}") from error
        # The last piece is empty, or an event that was being written when its process died: never acknowledged.
        self._waiting = [line for line in lines[:-1] if line]
        self._bytes = sum(map(len, self._waiting))
        self._rewrite()

    def add(self, event: bytes) -> None:
        """Keep an event. A disk that refuses leaves it in memory only."""
        self._waiting.append(event)
        self._bytes += len(event)
        while self._bytes > self._bytes_max and len(self._waiting) > 1:
            self._bytes -= len(self._waiting.pop(0))
            self._stale_lines += 1
            self.dropped += 1
        if self._path is not None:
            try:
                append_whole(self._path, event + b"\n")
            except OSError:
                # Telling about the full disk matters more than keeping the telling on it.
                return
            self._tidy()

    def first(self, count: int) -> list[bytes]:
        """The oldest events, at least one of them if there are any, together at most BATCH_BYTES_MAX."""
        chosen: list[bytes] = []
        size = 0
        for event in self._waiting[:count]:
            size += len(event)
            if chosen and size > BATCH_BYTES_MAX:
                break
            chosen.append(event)
        return chosen

    def delivered(self, events: Iterable[bytes]) -> None:
        """Forget these; others may have been added or dropped meanwhile."""
        gone = {id(event) for event in events}
        before = len(self._waiting)
        self._waiting = [event for event in self._waiting if id(event) not in gone]
        self._bytes = sum(map(len, self._waiting))
        self._stale_lines += before - len(self._waiting)
        self._tidy()

    def _tidy(self) -> None:
        if self._path is not None and self._stale_lines and (not self._waiting or self._stale_lines > 1000):
            self._rewrite()

    def _rewrite(self) -> None:
        if self._path is None:
            return
        try:
            write_whole(self._path, b"".join(event + b"\n" for event in self._waiting))
        except OSError:
            # The old file stays: what it holds too much are duplicates, which the controller knows.
            return
        self._stale_lines = 0


class Reporter:
    """Delivers events of one source in the background: in order, at least once, through a controller's absence.

    Args:
        client: gives the client to use now; asked anew after each failure, because a controller that is started again
            may have another address.
        source: `agent:node07`, `launcher:1778`.
        spool: where events wait.
        retry_max_s: longest pause between two tries.
    """

    def __init__(
        self, client: ClientSource, source: str, spool: Spool | None = None, *, retry_max_s: float = 5.0
    ) -> None:
        self._client = client
        self.source = source
        self.spool = spool if spool is not None else Spool()
        self._retry_max_s = retry_max_s
        self._bell = asyncio.Event()
        self._empty = asyncio.Event()
        self.refused = 0
        """Events that the controller will never take."""
        self.last_error = ""
        """Why the last try failed; empty: it did not."""
        self._ring()

    def report(self, event: AnyEvent) -> None:
        """Keep an event for delivery. Never waits and never raises for the link's sake.

        Raises:
            WireError: the event cannot be written, or is larger than EVENT_BYTES_MAX.
        """
        written = encode(event)
        if len(written) > EVENT_BYTES_MAX:
            raise WireError(f"event {event.id!r} is larger than {EVENT_BYTES_MAX} bytes: bound its evidence")
        self.spool.add(written)
        self._ring()

    def _ring(self) -> None:
        if len(self.spool):
            self._empty.clear()
            self._bell.set()
        else:
            self._empty.set()

    async def run(self) -> None:
        """Deliver for ever."""
        pause_s = 0.1
        while True:
            await self._bell.wait()
            events = self.spool.first(BATCH_MAX)
            try:
                await self._deliver(events)
            except (LinkError, RefusedError) as error:
                self.last_error = str(error)
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, self._retry_max_s)
                continue
            self.last_error, pause_s = "", 0.1
            self.spool.delivered(events)
            self._bell.clear()
            self._ring()

    async def _deliver(self, events: Sequence[bytes]) -> None:
        client = await self._client()

        async def send(some: Sequence[bytes]) -> None:
            self.refused += len((await client.ingest_encoded(self.source, some)).refused)

        def refuse(_event: bytes, _why: WireError) -> None:
            self.refused += 1

        await send_by_halves(events, send, refuse)

    async def flush(self, limit_s: float) -> bool:
        """Wait until everything is delivered; False when it is not within `limit_s`."""
        try:
            await asyncio.wait_for(self._empty.wait(), limit_s)
        except TimeoutError:
            return False
        return True

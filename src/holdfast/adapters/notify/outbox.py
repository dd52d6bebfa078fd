"""Notices that wait for their destination, on disk until it has taken them: at least once, in order, never blocking.

The controller's executors hand a notice over (`send`); it is in the outbox's file, flushed, before that returns, and
the journal's order is done. One task a destination sends what waits: grouped by matter, held back in quiet hours, as
digests above its limit an hour (`routing.batches`), again and again until the service takes it. A restart goes on where
it was; what was taken and not yet marked is sent twice rather than never. Time passes by the clock port.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import msgspec
import structlog
from msgspec import Struct, field
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from holdfast.adapters.notice_settings import Destination, NotifyConfig
from holdfast.adapters.notify.routing import (
    DIGEST,
    Facts,
    Message,
    Numbered,
    batches,
    joined,
    quiet_for_s,
    render,
    wants,
)
from holdfast.adapters.tasks import end
from holdfast.errors import TemporaryOrderError
from holdfast.model.evidence import Severity
from holdfast.model.orders import Notify
from holdfast.os.files import append_whole, write_whole
from holdfast.ports import Clock

RETRY_FIRST_S, RETRY_MAX_S = 1.0, 300.0
COMPACT_LINES = 2000
MATTERS_MAX = 2000
"""So many matters that were told by themselves are remembered, and so many threads; the oldest are forgotten first."""
_log = structlog.get_logger("holdfast.notice")


class Deliverer(Protocol):
    """Hands one message to a service."""

    async def deliver(self, destination: Destination, message: Message, thread: str) -> str:
        """Returns what names the message's thread there, if the service has threads.

        Raises:
            TemporaryOrderError: it was not taken.
        """

    async def refused(self, destination: Destination) -> str:
        """Why nothing would be sent there now, as a sentence; empty: it may be."""


class _Line(Struct, omit_defaults=True):
    """One line of the file: a notice that waits (`n`, `to`, `message`), or numbers that were taken (`done`).

    With the latter: the message's topic, its thread there, and whether that matter is over.
    """

    n: int = 0
    to: str = ""
    message: Message | None = None
    done: list[int] = field(default_factory=list)
    topic: str = ""
    thread: str = ""
    over: bool = False


class Outbox(Collector):
    """A `ports.Notifier`; an async context whose tasks send. Also counts, for `/metrics`.

    Args:
        config: destinations and links.
        path: the file.
        deliverer: hands messages to services.
        facts: what is known of a notice's matter now.
        clock: the time.
    """

    def __init__(
        self,
        config: NotifyConfig,
        path: Path,
        deliverer: Deliverer,
        facts: Callable[[Notify], Facts],
        clock: Clock,
    ) -> None:
        self._config = config
        self._path = path
        self._deliverer = deliverer
        self._facts = facts
        self._clock = clock
        self._waiting: dict[str, deque[Numbered]] = {one.name: deque() for one in config.to}
        self._bells = {one.name: asyncio.Event() for one in config.to}
        self._threads: dict[tuple[str, str], str] = {}
        self._told: dict[tuple[str, str], None] = {}
        """Destination and topic of what was told by itself and is not over, in the order of the last word."""
        self._held: set[str] = set()
        """Destinations for which something waits because of their limit."""
        self._sent_at: dict[str, deque[float]] = {one.name: deque() for one in config.to}
        self._number = 0
        self._lines = 0
        self._compact_at = COMPACT_LINES
        self._tasks: list[asyncio.Task[None]] = []
        self.outcomes: Counter[tuple[str, str]] = Counter()

    async def __aenter__(self) -> Self:
        self._read()
        self._tasks = [asyncio.create_task(self._serve(one), name=f"notices {one.name}") for one in self._config.to]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await end(self._tasks)

    def waiting(self) -> dict[str, int]:
        """How many notices wait, by destination."""
        return {name: len(queue) for name, queue in self._waiting.items()}

    async def send(self, notice: Notify) -> None:
        """See `ports.Notifier.send`: returns when it is in the file. Raises TemporaryOrderError when it cannot be."""
        facts = self._facts(notice)
        lines = []
        for one in self._config.to:
            if wants(one, notice, facts):
                self._number += 1
                lines.append(_Line(n=self._number, to=one.name, message=render(one, self._config, notice, facts)))
        if not lines:
            return
        self._write(lines)
        for line in lines:
            if line.message is not None:
                self._waiting[line.to].append((line.n, line.message))
                self._bells[line.to].set()

    # --- sending ---

    async def _serve(self, to: Destination) -> None:
        queue = self._waiting[to.name]
        if why := await self._deliverer.refused(to):
            _log.warning("notices cannot be sent", why=why)
        while True:
            while not queue:
                self._bells[to.name].clear()
                await self._bells[to.name].wait()
            for batch in await self._next(to):
                await self._insist(to, batch)

    async def _next(self, to: Destination) -> list[list[Numbered]]:
        """What goes out now, a list for each message; empty: look again."""
        queue = self._waiting[to.name]
        await self._clock.sleep(self._config.group_s)
        now = self._clock.now()
        quiet_s = {severity: quiet_for_s(to, severity, now) for severity in Severity}
        loud = [one for one in queue if quiet_s[one[1].severity] == 0.0]
        if not loud:
            await self._pause(to, min(quiet_s[message.severity] for _, message in queue))
            return []
        told = {topic for name, topic in self._told if name == to.name}
        room_s = self._room_s(to)
        if room_s > 0.0:
            self._held.add(to.name)
            found = batches(loud, told, only_from=to.quiet_unless)
            if not found:
                await self._pause(to, room_s)
            return found
        found = batches(loud, told, is_digest=to.name in self._held)
        if sum(len(batch) for batch in found) == len(loud):
            self._held.discard(to.name)
        return found

    async def _pause(self, to: Destination, seconds: float) -> None:
        """Wait for the end of the quiet hours or for room, or for something that is grave enough to be said before."""
        bell = self._bells[to.name]
        bell.clear()
        ringing = asyncio.ensure_future(bell.wait())
        waking = asyncio.ensure_future(self._clock.sleep(min(seconds, 60.0)))
        try:
            await asyncio.wait([ringing, waking], return_when=asyncio.FIRST_COMPLETED)
        finally:
            ringing.cancel()
            waking.cancel()

    def _room_s(self, to: Destination) -> float:
        """Seconds until one more message keeps within the limit an hour; 0.0: now."""
        sent, now = self._sent_at[to.name], self._clock.monotonic()
        while sent and sent[0] <= now - 3600.0:
            sent.popleft()
        return max(0.0, sent[-to.per_hour] + 3600.0 - now) if len(sent) >= to.per_hour else 0.0

    async def _insist(self, to: Destination, batch: list[Numbered]) -> None:
        pause_s = RETRY_FIRST_S
        message = joined([one for _, one in batch], more=len(self._waiting[to.name]) - len(batch))
        while True:
            try:
                thread = self._threads.get((to.name, message.topic), "")
                named = await self._deliverer.deliver(to, message, thread)
            except TemporaryOrderError as error:
                self.outcomes[to.name, "failed"] += 1
                _log.warning("a notice was not taken", destination=to.name, why=str(error), again_in_s=pause_s)
                await self._clock.sleep(pause_s)
                pause_s = min(pause_s * 2, RETRY_MAX_S)
                continue
            self.outcomes[to.name, "sent"] += 1
            self._sent_at[to.name].append(self._clock.monotonic())
            self._taken(to, batch, message, named)
            return

    def _taken(self, to: Destination, batch: list[Numbered], message: Message, thread: str) -> None:
        numbers = {number for number, _ in batch}
        kept = [one for one in self._waiting[to.name] if one[0] not in numbers]
        self._waiting[to.name].clear()
        self._waiting[to.name].extend(kept)
        self._remember(to.name, message.topic, thread, is_over=message.is_over)
        # It was taken; when this cannot be written, it will be told once more after a restart.
        with contextlib.suppress(TemporaryOrderError):
            self._write(
                [_Line(to=to.name, done=sorted(numbers), topic=message.topic, thread=thread, over=message.is_over)]
            )

    def _remember(self, name: str, topic: str, thread: str, *, is_over: bool) -> None:
        """Of a message that was taken: where its matter's thread is, and whether its end must be told by itself."""
        key = (name, topic)
        self._told.pop(key, None)
        if topic != DIGEST and not is_over:
            self._told[key] = None
        if thread:
            self._threads.pop(key, None)
            self._threads[key] = thread
        for kept in (self._told, self._threads):
            while len(kept) > MATTERS_MAX:
                del kept[next(iter(kept))]

    # --- the file ---

    def _write(self, lines: list[_Line]) -> None:
        if self._lines > self._compact_at:
            self._compact()
        data = b"".join(msgspec.json.encode(line) + b"\n" for line in lines)
        try:
            append_whole(self._path, data, mode=0o600, durable=True)
        except OSError as error:
            raise TemporaryOrderError(f"the outbox {self._path} cannot be written: {error.strerror}") from error
        self._lines += len(lines)

    def _compact(self) -> None:
        """Write the file anew with what still waits."""
        rows = [
            _Line(n=number, to=name, message=message)
            for name, queue in self._waiting.items()
            for number, message in queue
        ]
        rows += [
            _Line(to=key[0], topic=key[1], thread=self._threads.get(key, ""), over=key not in self._told)
            for key in [*(key for key in self._threads if key not in self._told), *self._told]
        ]
        with contextlib.suppress(OSError):
            lines = b"".join(msgspec.json.encode(line) + b"\n" for line in rows)
            write_whole(self._path, lines, mode=0o600, durable=True)
            self._lines = len(rows)
            self._compact_at = max(COMPACT_LINES, 2 * len(rows))

    def _read(self) -> None:
        """Take up what waited when the last controller ended. A torn last line was never acknowledged."""
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return
        waiting: dict[int, _Line] = {}
        for row in data.splitlines():
            try:
                line = msgspec.json.decode(row, type=_Line)
            except msgspec.DecodeError:
                continue
            self._lines += 1
            self._number = max(self._number, line.n)
            if line.message is not None:
                waiting[line.n] = line
            for number in line.done:
                waiting.pop(number, None)
            if line.topic:
                self._remember(line.to, line.topic, line.thread, is_over=line.over)
        for number, line in sorted(waiting.items()):
            if line.message is not None and line.to in self._waiting:
                self._waiting[line.to].append((number, line.message))
        if data and not data.endswith(b"\n"):
            self._compact()

    # --- figures ---

    def collect(self) -> Iterator[Metric]:
        """Messages by destination and outcome, and what waits."""
        family = CounterMetricFamily("holdfast_notices", "Messages to people.", labels=["destination", "outcome"])
        for (name, outcome), count in sorted(self.outcomes.items()):
            family.add_metric([name, outcome], count)
        yield family
        waits = GaugeMetricFamily("holdfast_notices_waiting", "Notices not taken yet.", labels=["destination"])
        for name, count in self.waiting().items():
            waits.add_metric([name], count)
        yield waits

"""The leader's line to the cluster's controller: its events in order, its beats, and the orders that come back.

The allocation's own journal is the spool: every event that this launcher made is on disk there first, and is sent from
there in the order of its number until the controller says that it is stored. The place reached is kept in
`<job_dir>/forwarded`; losing it only sends again what the controller knows by id. Without a controller none of this
runs. Time passes in the asyncio loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.errors import ConfigError, HoldfastError, LinkError, RefusedError, WireError
from holdfast.model.events import AnyEvent
from holdfast.model.orders import AnyOrder
from holdfast.model.wire import ADDRESS_SIZE_MAX, Beat
from holdfast.os.files import read_bounded
from holdfast.os.tls import DEFAULT_TRUST, Trust, trust_of
from holdfast.os.tokens import token_in
from holdfast.os.unix_sockets import SCHEME

if TYPE_CHECKING:
    from holdfast.client import AsyncClient

FORWARDED_FILE = "forwarded"
_BATCH = 200
_RETRY_FIRST_S = 0.2
_RETRY_MAX_S = 2.0


class ControllerLine:
    """The client to use now: the address may stand in a file that a new controller writes anew.

    Args:
        url: fixed address; empty when `file` names where it stands.
        file: a `controller.json`.
        token_file: bearer token, read anew with each connection; None: no token, and the socket beside `file`.
        trust: certificates, read anew with each connection.
    """

    def __init__(
        self,
        *,
        url: str = "",
        file: Path | None = None,
        token_file: Path | None = None,
        trust: Trust = DEFAULT_TRUST,
    ) -> None:
        self._url = url
        self._file = file
        self._token_file = token_file
        self._trust = trust
        self._client: AsyncClient | None = None
        self.no_token = ""
        """Why the token file gave none, for people; empty where it gave one, or none is named."""

    async def client(self) -> AsyncClient:
        """The client.

        Raises:
            LinkError: no controller is known yet.
            ConfigError: a certificate cannot be read.
            RefusedError: the token would cross a network unencrypted.
        """
        if self._client is not None and self._client.url.startswith(SCHEME):
            return self._client  # every controller of this folder has the same socket
        url = self._url or self._read_url()
        from holdfast.client import AsyncClient  # noqa: PLC0415 - HTTP is not loaded where there is no controller

        if self._client is None or self._client.url != url.rstrip("/"):
            await self.close()
            self._client = AsyncClient(url, self._token(), trust=self._trust)
        return self._client

    def _read_url(self) -> str:
        if self._file is None:
            raise LinkError("no controller is configured")
        if local := self._trust.socket_beside(self._file, self._token_file):
            return local
        try:
            return str(json.loads(read_bounded(self._file, ADDRESS_SIZE_MAX))["url"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise LinkError(f"{self._file}: {error}") from error

    def _token(self) -> str:
        self.no_token = ""
        if self._token_file is None:
            return ""
        try:
            return token_in(self._token_file)
        except OSError as error:
            self.no_token = f"the token file {self._token_file} cannot be read: {error.strerror}"
        except ConfigError as error:
            self.no_token = str(error)
        return ""

    async def close(self) -> None:
        """Close the connection; the next use opens it anew."""
        if self._client is not None:
            client, self._client = self._client, None
            await client.close()


def controller_line(environ: Mapping[str, str]) -> ControllerLine | None:
    """The line that the environment names, None when there is no controller."""
    token = environ.get("HOLDFAST_TOKEN_FILE", "")
    token_file = Path(token) if token else None
    named = environ.get("HOLDFAST_CONTROLLER", "")
    if named.startswith(("http://", "https://", SCHEME)):
        return ControllerLine(url=named, token_file=token_file, trust=trust_of(environ))
    file = named or environ.get("HOLDFAST_CONTROLLER_FILE", "")
    return ControllerLine(file=Path(file), token_file=token_file, trust=trust_of(environ)) if file else None


class Contact:
    """Whether the controller answers, and what is said when that changes.

    Args:
        on_line: told each change once, for people.
    """

    def __init__(self, on_line: Callable[[str], None]) -> None:
        self._on_line = on_line
        self._is_away = False
        self._refusal = ""
        """What the controller said when it did not let us in: told once."""
        self.has_answered = False
        """It has answered at least once."""

    @property
    def is_reachable(self) -> bool:
        """The controller answered the last time it was asked."""
        return self.has_answered and not self._is_away

    def answered(self) -> None:
        """Note an answer."""
        if self._is_away and self.has_answered:
            self._on_line("the controller answers again")
        self._is_away = False
        self.has_answered = True

    def failed(self, error: HoldfastError, no_token: str) -> None:
        """Note that no answer came, and why.

        Args:
            error: what came instead.
            no_token: why we had no token to show; empty when we had one, or need none.
        """
        if not self._is_away and self.has_answered:
            self._on_line(f"the controller does not answer ({error}); going on without it")
        elif isinstance(error, RefusedError) and str(error) != self._refusal:
            self._on_line(f"the controller does not let this launcher in ({no_token or error}); going on without it")
            self._refusal = str(error)
        self._is_away = True


class Uplink:
    """See the module.

    Args:
        line: to the controller.
        source: name of this launcher.
        events_after: (seq, wait_s) -> the next events of our own journal.
        is_ours: whether an event is to be forwarded.
        beat: makes the next beat, with its samples.
        on_order: carries out an order of the controller and gives its outcome, as an event to be stored.
        on_answer: told the monotonic time at which an answered beat was sent.
        on_unknown: the controller does not know this launcher; it must attach again.
        job_dir: where the place reached is kept.
        is_cut: whether this node is cut off from the network.
    """

    def __init__(
        self,
        line: ControllerLine,
        *,
        source: str,
        events_after: Callable[[int, float], Awaitable[Sequence[AnyEvent]]],
        is_ours: Callable[[AnyEvent], bool],
        beat: Callable[[], Beat],
        on_order: Callable[[AnyOrder], Awaitable[None]],
        on_answer: Callable[[float], None],
        on_unknown: Callable[[], None],
        job_dir: Path,
        is_cut: Callable[[], bool],
        on_line: Callable[[str], None],
    ) -> None:
        self._line = line
        self._source = source
        self._events_after = events_after
        self._is_ours = is_ours
        self._beat = beat
        self._on_order = on_order
        self._on_answer = on_answer
        self._on_unknown = on_unknown
        self._file = job_dir / FORWARDED_FILE
        self._is_cut = is_cut
        self._on_line = on_line
        self._orders: dict[str, asyncio.Task[None]] = {}
        self._contact = Contact(on_line)
        self.sent = self._read()
        """Number of the newest of our journal's events that the controller has."""

    @property
    def is_reachable(self) -> bool:
        """The controller answered the last time it was asked."""
        return self._contact.is_reachable

    def _read(self) -> int:
        try:
            return int(self._file.read_text(encoding="ascii"))
        except (OSError, ValueError):
            return 0

    async def forward(self) -> None:
        """Send our events for ever."""
        pause_s = _RETRY_FIRST_S
        while True:
            events = await self._events_after(self.sent, 60.0)
            if not events:
                await asyncio.sleep(0.05)  # our own controller ends, and answers at once
                continue
            ours = [event for event in events[:_BATCH] if self._is_ours(event)]
            try:
                await self._deliver(ours)
            except HoldfastError:
                await self._line.close()
                await asyncio.sleep(pause_s)
                pause_s = min(_RETRY_MAX_S, pause_s * 2)
                continue
            pause_s = _RETRY_FIRST_S
            self.sent = events[:_BATCH][-1].seq
            with contextlib.suppress(OSError):
                self._file.write_text(f"{self.sent}\n", encoding="ascii")

    async def _deliver(self, events: Sequence[AnyEvent]) -> None:
        if not events:
            return
        client = await self._line.client()
        from holdfast.client.reporter import send_by_halves  # noqa: PLC0415 - HTTP is loaded by now

        async def send(some: Sequence[AnyEvent]) -> None:
            self._check_cut()
            for why in (await client.ingest(self._source, some)).refused:
                self._on_line(f"the controller does not take an event of ours: {why}")

        def refuse(event: AnyEvent, why: WireError) -> None:
            self._on_line(f"the controller does not take an event of ours, `{event.id}`: {why}")

        await send_by_halves(events, send, refuse)

    async def close(self) -> None:
        """Let go of the connection and of orders under way."""
        for task in self._orders.values():
            task.cancel()
        await self._line.close()

    def _check_cut(self) -> None:
        if self._is_cut():
            raise LinkError("this node is cut off")

    async def beat(self, every_s: float) -> None:
        """Beat for ever, and take what the answers ask for; an answer may wait for an order, at most half that long."""
        loop = asyncio.get_running_loop()
        while True:
            sent_at = loop.time()
            try:
                self._check_cut()
                answer = await (await self._line.client()).beat(self._beat(), wait_s=every_s / 2)
                self._check_cut()
            except HoldfastError as error:
                await self._line.close()
                self._contact.failed(error, self._line.no_token)
            else:
                was_known = self._contact.has_answered
                self._contact.answered()
                if not answer.attached and was_known:
                    self._on_unknown()
                self._on_answer(sent_at)
                for order in answer.requests:
                    self._take(order)
            await asyncio.sleep(max(0.05, every_s - (loop.time() - sent_at)))

    def _take(self, order: AnyOrder) -> None:
        """Each id once; it is handed out again until its outcome has arrived."""
        if order.id in self._orders:
            return
        self._orders[order.id] = asyncio.create_task(self._carry_out(order), name=f"order {order.id}")

    async def _carry_out(self, order: AnyOrder) -> None:
        with contextlib.suppress(HoldfastError):
            await self._on_order(order)

    async def flush(self, seq: int, limit_s: float) -> bool:
        """Wait until everything up to `seq` is with the controller, at most this long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while self.sent < seq:  # noqa: ASYNC110 - called once, at the end
                    await asyncio.sleep(0.02)
        return self.sent >= seq

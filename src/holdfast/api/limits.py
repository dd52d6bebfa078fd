"""How much one client may ask for: requests a second, refused tokens, open streams, length of an address.

A leaky bucket per token and address, so that a page gone wild, a loop in somebody's script or a guesser of tokens slows
down itself and not the recovery of jobs. Agents and launchers have their own, wide one: their beats must get through.
Asked by the guard of `auth.py` and by the streams; time is the monotonic clock's, handed in.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from litestar.connection import ASGIConnection
from litestar.exceptions import HTTPException, TooManyRequestsException
from msgspec import Struct

from holdfast.api.auth import Identity, Role

BUCKETS_MAX = 4096
"""Clients that are remembered; beyond it the one not heard for longest starts anew."""

COMING_S = 5.0
"""Between the answer's head and the stream's first word."""


class Limits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much one client may ask for. `ApiServer` takes other numbers from whoever makes it."""

    requests_per_s: float = 200.0
    requests_burst: float = 1000.0
    """Of one token from one address, for people and their programs."""
    reports_per_s: float = 4000.0
    reports_burst: float = 20000.0
    """The same for agents and launchers: a cluster's share one token, maybe behind one address."""
    refusals_per_s: float = 5.0
    refusals_burst: float = 50.0
    """Tokens that were not accepted, from one address."""
    exchanges_per_s: float = 20.0
    exchanges_burst: float = 200.0
    """Tokens that are asked for by a proof, from one address: each costs a program."""
    streams: int = 1000
    """Event streams open at once, in all."""
    streams_each: int = 400
    """Of one token from one address."""
    query_max: int = 8192
    """Bytes of an address's query."""


class LimitGate:
    """Counts and refuses. Every refusal is a 429 that says in `Retry-After` when to come back."""

    def __init__(self, limits: Limits | None = None, *, now: Callable[[], float] = time.monotonic) -> None:
        limits = limits if limits is not None else Limits()
        self._limits = limits
        self._now = now
        self._people = _Buckets(limits.requests_per_s, limits.requests_burst)
        self._reports = _Buckets(limits.reports_per_s, limits.reports_burst)
        self._refusals = _Buckets(limits.refusals_per_s, limits.refusals_burst)
        self._exchanges = _Buckets(limits.exchanges_per_s, limits.exchanges_burst)
        self._streams: dict[str, int] = {}
        self._coming: list[tuple[str, float]] = []
        """Client and time of each place that was taken by a stream that has not begun."""
        self.refused = 0
        """Requests that were told to come back later."""

    def check(self, connection: ASGIConnection[Any, Any, Any, Any], identity: Identity) -> None:
        """Let one request of this identity pass, or raise TooManyRequestsException."""
        if len(connection.scope.get("query_string", b"")) > self._limits.query_max:
            raise HTTPException(detail=f"the query is longer than {self._limits.query_max} bytes", status_code=414)
        path = str(connection.scope.get("path", ""))
        reports = identity.role is Role.AGENT or path in {"/v1/beat", "/v1/ingest"}
        buckets = self._reports if reports else self._people
        self._take(buckets, client_of(connection, identity), "too many requests")

    def count_refusal(self, connection: ASGIConnection[Any, Any, Any, Any]) -> None:
        """One token was not accepted; raises TooManyRequestsException when that happened too often from there."""
        self._take(self._refusals, address_of(connection), "too many refused tokens")

    def check_exchange(self, connection: ASGIConnection[Any, Any, Any, Any]) -> None:
        """Let one exchange of a proof for a token pass, or raise TooManyRequestsException."""
        self._take(self._exchanges, address_of(connection), "too many tokens asked for")

    def _take(self, buckets: _Buckets, client: str, what: str) -> None:
        wait_s = buckets.take(client, self._now())
        if wait_s > 0.0:
            self.refused += 1
            raise TooManyRequestsException(f"{what}: come back later", headers={"Retry-After": str(math.ceil(wait_s))})

    def take_stream(self, client: str) -> AbstractContextManager[None]:
        """Take one place for an open stream; entered by the stream itself, which gives the place back at its end.

        A place that no stream has entered after `COMING_S`, because its reader has gone, is free again.

        Raises:
            TooManyRequestsException: all places are taken.
        """
        now = self._now()
        self._coming = [(one, at) for one, at in self._coming if now - at < COMING_S]
        each = self._streams.get(client, 0) + sum(one == client for one, _ in self._coming)
        if self.open_streams + len(self._coming) >= self._limits.streams or each >= self._limits.streams_each:
            self.refused += 1
            raise TooManyRequestsException("too many streams are open", headers={"Retry-After": "5"})
        coming = (client, now)
        self._coming.append(coming)
        return self._stream(coming)

    @contextmanager
    def _stream(self, coming: tuple[str, float]) -> Iterator[None]:
        client = coming[0]
        if coming in self._coming:
            self._coming.remove(coming)
        self._streams[client] = self._streams.get(client, 0) + 1
        try:
            yield
        finally:
            self._streams[client] -= 1
            if not self._streams[client]:
                del self._streams[client]

    @property
    def open_streams(self) -> int:
        """Streams that are open now."""
        return sum(self._streams.values())


class _Buckets:
    """One leaky bucket per client; the level is what was asked for and has not drained yet."""

    def __init__(self, per_s: float, burst: float) -> None:
        self._per_s, self._burst = per_s, burst
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, client: str, now: float) -> float:
        """Count one; returns 0.0, or after how many seconds there will be room."""
        level, at = self._levels.pop(client, (0.0, now))
        level = max(0.0, level - (now - at) * self._per_s)
        full = level + 1.0 > self._burst
        self._levels[client] = (level if full else level + 1.0, now)
        if len(self._levels) > BUCKETS_MAX:
            self._levels.popitem(last=False)
        return (level + 1.0 - self._burst) / self._per_s if full else 0.0


def address_of(connection: ASGIConnection[Any, Any, Any, Any]) -> str:
    """The address that the request came from, as the socket says: headers can be forged."""
    return connection.client.host if connection.client is not None else ""


def client_of(connection: ASGIConnection[Any, Any, Any, Any], identity: Identity) -> str:
    """A token at an address."""
    return f"{identity.id or identity.name} {address_of(connection)}"

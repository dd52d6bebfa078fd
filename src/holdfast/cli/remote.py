"""A live controller as `Records`, and the door for a person's commands: `holdfast.client` with sentences for people.

Called by `records.py` and `operate.py`. Whatever the other side or the network does wrong is said with the address
and with where that address came from.
"""

from __future__ import annotations

from typing import Any

import httpx

from holdfast.cli import screen
from holdfast.client import AsyncClient
from holdfast.errors import HoldfastError, LinkError, RefusedError, UsageError, VersionError, WireError
from holdfast.model.answers import CommandAnswer
from holdfast.model.events import AnyEvent, Command
from holdfast.model.records import IncidentRecord, OrderRecord
from holdfast.os.unix_sockets import socket_of
from holdfast.ports import Sample
from holdfast.wiring.settings import Link

ROWS_MAX = 1000
"""The API gives at most this many incidents or orders at once."""


class RemoteRecords(AsyncClient):
    """See `records.Records`. At most `ROWS_MAX` incidents or orders are read."""

    def __init__(self, link: Link) -> None:
        self._link = link
        try:
            super().__init__(link.url, link.token, trust=link.trust, explain=self._said_plainly)
        except httpx.InvalidURL as error:
            raise UsageError(f"{link.said_by}: {link.url!r} is not an address: {error}") from error

    async def incidents(self, *, limit: int = ROWS_MAX, **where: Any) -> list[IncidentRecord]:
        """Newest first."""
        return await super().incidents(limit=min(limit, ROWS_MAX), **where)

    async def orders(self, *, limit: int = ROWS_MAX, **where: Any) -> list[OrderRecord]:
        """Newest first."""
        return await super().orders(limit=min(limit, ROWS_MAX), **where)

    async def samples(self, series: str, subject: str = "", *, after: float = 0.0) -> list[Sample]:
        """Points of a series in order of time."""
        return await super().samples(series, subject, after=max(0.0, after))

    async def events(self, *, after: int = 0, limit: int = ROWS_MAX, **where: Any) -> list[AnyEvent]:  # type: ignore[override]
        """Events after a sequence number, oldest first."""
        return list((await super().events(after=after, limit=min(limit, ROWS_MAX), **where)).events)

    def _said_plainly(self, error: HoldfastError) -> HoldfastError:
        place = f"{self._link.url} ({self._link.said_by})"
        match error:
            case RefusedError():  # of the API: a token that does not suffice
                hint = self._link.no_token or "set HOLDFAST_TOKEN_FILE, or `token_file` in holdfast.toml"
                given = "" if self._link.token else f"; {hint}"
                return RefusedError(f"the controller at {place} refuses: {error}{given}")
            case LinkError() if socket_of(self._link.url) is not None:
                return LinkError(f"{error} ({self._link.said_by})")
            case LinkError():
                return LinkError(f"no answer from a controller at {place}: {error}")
            case WireError() if not isinstance(error, VersionError):
                return LinkError(f"{place} does not answer as a controller of this version does: {error}")
        return error


async def send(link: Link, command: Command, *, who: str, why: str, node: str = "", order: str = "") -> CommandAnswer:
    """Check that the target exists, then send the command; returns the controller's answer.

    Raises:
        NotFoundError: no such node or order, with the nearest one.
        UsageError: the order does not wait for a person.
        RefusedError: the token does not allow it, or the engine refused it.
        LinkError: no controller answers.
    """
    records = RemoteRecords(link)
    try:
        if node and not await records.nodes(node=node):
            raise screen.missing("node", node, [record.name for record in await records.nodes()])
        if order:
            found = await records.orders(order=order)
            if not found:
                raise screen.missing("order", order, [record.order.id for record in await records.orders()])
            if found[0].status != "proposed":
                raise UsageError(f"order {order} is {found[0].status}: only proposed orders wait for a person")
        done = await records.command(command, who=who, why=why, node=node, order=order)
        if done.refused:
            raise RefusedError(done.refused)
        return done
    finally:
        await records.close()

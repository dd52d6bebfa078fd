"""A live controller as `Records`, over `/v1`; and the door for a person's commands.

Called by `records.py` and `operate.py`. Waits at most `LIMIT_S` for an answer. Everything that the other side or the
network can do wrong becomes one sentence.
"""

from __future__ import annotations

import math
import ssl
import uuid
from typing import Any, TypeVar

import httpx
import msgspec
from msgspec import Struct

from holdfast.cli.config import Link
from holdfast.errors import HoldfastError, LinkError, NotFoundError, RefusedError, UsageError, UserError
from holdfast.model.events import Command
from holdfast.model.records import BrakeRecord, IncidentRecord, JobRecord, NodeRecord, OrderRecord
from holdfast.model.wire import decode
from holdfast.ports import Sample

R = TypeVar("R")

LIMIT_S = 20.0
CONNECT_S = 3.0
ROWS_MAX = 1000
"""The API gives at most this many incidents or orders at once."""


class _Problem(Struct):
    detail: str = ""


class _Samples(Struct):
    points: list[tuple[str, float, float | None]]


class _Record(Struct):
    record: msgspec.Raw


class _Seq(Struct):
    seq: int


class RemoteRecords:
    """See `records.Records`."""

    def __init__(self, link: Link) -> None:
        self._link = link
        headers = {"Authorization": f"Bearer {link.token}"} if link.token else {}
        verify: ssl.SSLContext | bool = True
        if link.ca_file is not None:
            try:
                verify = ssl.create_default_context(cafile=str(link.ca_file))
            except (OSError, ssl.SSLError) as error:
                raise UserError(f"the certificate file {link.ca_file} cannot be used: {error}") from error
        self._http = httpx.AsyncClient(
            base_url=link.url, headers=headers, verify=verify, timeout=httpx.Timeout(LIMIT_S, connect=CONNECT_S)
        )

    async def jobs(self, *, job: str = "") -> list[JobRecord]:
        """All jobs, or one."""
        if job:
            return await self._one("/v1/jobs/", job, JobRecord)
        return await self._get("/v1/jobs", list[JobRecord])

    async def nodes(self, *, node: str = "") -> list[NodeRecord]:
        """All nodes, or one."""
        if node:
            return await self._one("/v1/nodes/", node, NodeRecord)
        return await self._get("/v1/nodes", list[NodeRecord])

    async def brakes(self) -> list[BrakeRecord]:
        """The brake of every group."""
        return await self._get("/v1/brakes", list[BrakeRecord])

    async def incidents(
        self, *, incident: str = "", open_only: bool = False, limit: int = ROWS_MAX
    ) -> list[IncidentRecord]:
        """Newest first, at most `ROWS_MAX`."""
        if incident:
            return await self._one("/v1/incidents/", incident, IncidentRecord)
        parameters = {"open_only": str(open_only).lower(), "limit": str(min(limit, ROWS_MAX))}
        return await self._get("/v1/incidents", list[IncidentRecord], parameters)

    async def orders(
        self, *, incident: str = "", pending_only: bool = False, limit: int = ROWS_MAX
    ) -> list[OrderRecord]:
        """Newest first, at most `ROWS_MAX`."""
        parameters = {"pending_only": str(pending_only).lower(), "limit": str(min(limit, ROWS_MAX))}
        if incident:
            parameters["incident"] = incident
        return await self._get("/v1/orders", list[OrderRecord], parameters)

    async def samples(self, series: str, subject: str = "", *, after: float = 0.0) -> list[Sample]:
        """Points of a series in order of time."""
        parameters = {"series": series, "subject": subject, "after": str(max(0.0, after))}
        found = await self._get("/v1/samples", _Samples, parameters)
        return [Sample(series, who, at, math.nan if value is None else value) for who, at, value in found.points]

    async def command(self, command: Command, **fields: str) -> int:
        """Send a command; returns the journal's sequence number that it got."""
        body = {"command": command.value, "id": uuid.uuid4().hex} | {k: v for k, v in fields.items() if v}
        return (await self._call("POST", "/v1/commands", _Seq, json=body)).seq

    async def close(self) -> None:
        """Close connections."""
        await self._http.aclose()

    async def _one(self, route: str, name: str, kind: type[R]) -> list[R]:
        # A name with a slash cannot be written into a path by escaping: servers see it unescaped.
        if not name.strip(". ") or "/" in name:
            return []
        try:
            answer = await self._get(route + httpx.URL("").copy_with(path=f"/{name}").raw_path.decode()[1:], _Record)
        except NotFoundError:
            return []
        return [decode(answer.record, kind)]

    async def _get(self, route: str, kind: type[R], parameters: dict[str, str] | None = None) -> R:
        return await self._call("GET", route, kind, params=parameters)

    async def _call(self, method: str, route: str, kind: type[R], **arguments: Any) -> R:
        try:
            answer = await self._http.request(method, route, **arguments)
        except httpx.TimeoutException as error:
            raise LinkError(f"the controller at {self._place} did not answer within {LIMIT_S:.0f} s") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise LinkError(f"no controller answers at {self._place}: {str(error) or type(error).__name__}") from error
        if answer.status_code != httpx.codes.OK:
            raise self._error(answer)
        return decode(answer.content, kind)

    @property
    def _place(self) -> str:
        return f"{self._link.url} ({self._link.said_by})"

    def _error(self, answer: httpx.Response) -> HoldfastError:
        try:
            said = msgspec.json.decode(answer.content, type=_Problem).detail
        except msgspec.DecodeError:
            said = ""
        said = said or answer.reason_phrase
        code = answer.status_code
        if code == httpx.codes.UNAUTHORIZED:
            given = "its token is not accepted" if self._link.token else "it wants a token: set HOLDFAST_TOKEN_FILE"
            return RefusedError(f"the controller at {self._place} refuses: {given}")
        if code == httpx.codes.FORBIDDEN:
            return RefusedError(f"the controller at {self._place} refuses: {said}")
        if code == httpx.codes.NOT_FOUND:
            return NotFoundError(said)
        if code == httpx.codes.SERVICE_UNAVAILABLE:
            return LinkError(f"the controller at {self._place} cannot answer now: {said}")
        if code in {httpx.codes.BAD_REQUEST, httpx.codes.CONFLICT}:
            return UsageError(said)
        return LinkError(f"{self._place} answered {code} {said}: is this a Holdfast controller?")


async def send(link: Link, command: Command, *, who: str, why: str, node: str = "", order: str = "") -> int:
    """Check that the target exists, then send the command; returns the journal's sequence number.

    Raises:
        NotFoundError: no such node or order, with the nearest one.
        RefusedError: the token does not allow it.
        LinkError: no controller answers.
    """
    from holdfast.cli.records import missing  # noqa: PLC0415 - that module imports this one when it is needed

    records = RemoteRecords(link)
    try:
        if node and not await records.nodes(node=node):
            raise missing("node", node, [record.name for record in await records.nodes()])
        if order:
            known = {record.order.id: record for record in await records.orders()}
            if order not in known:
                raise missing("order", order, list(known))
            if known[order].status != "proposed":
                raise UsageError(f"order {order} is {known[order].status}: only proposed orders wait for a person")
        return await records.command(command, who=who, why=why, node=node, order=order)
    finally:
        await records.close()

"""The questions that are asked of a journal's tables, the same for SQLite and PostgreSQL. No time passes here.

`Reads` is the reading half of `ports.Journal`, for `sql.py` (the controller's journal) and `reading_postgres.py` (the
viewing commands).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Connection, Select, func, select, tuple_

from holdfast.adapters.journal import schema
from holdfast.errors import JournalError
from holdfast.model.events import AnyEvent
from holdfast.model.listing import first_of
from holdfast.model.orders import WAITING
from holdfast.model.records import BrakeRecord, IncidentRecord, JobRecord, NodeRecord, OrderRecord
from holdfast.model.wire import decode, decode_event, decode_orders
from holdfast.ports import Entry, Sample, Touched

R = TypeVar("R")
Rows = Select[Any]


class Reads(ABC):
    """The reading half of `ports.Journal`, for whoever can run a query."""

    @abstractmethod
    async def _rows(self, query: Rows) -> Sequence[Any]:
        """The rows of a query. Raises JournalError."""

    @abstractmethod
    async def _payloads(self, table: str, query: Rows, read: Callable[[str], R]) -> list[R]:
        """Payloads of a query on this table, as `read` understands them. Raises JournalError."""

    async def _records(self, table: str, query: Rows, kind: type[R]) -> list[R]:
        return await self._payloads(table, query, lambda payload: decode(payload, kind))

    async def _entries(self, query: Rows) -> list[Entry]:
        rows = await self._rows(query)
        return [Entry(decode_event(row.payload), decode_orders(row.orders), Touched()) for row in rows]

    async def events(
        self, *, after: int = 0, before: int = 0, limit: int = 1000, newest: bool = False, **where: Any
    ) -> list[AnyEvent]:
        """See `ports.Journal.events`."""
        query = events(after, limit, where, newest=newest)
        if before:
            query = query.where(schema.events.c.seq < before)
        found = await self._payloads("events", query, decode_event)
        return found[::-1] if newest else found

    async def entries(self, *, after: int = 0, limit: int = 1000) -> list[Entry]:
        """See `ports.Journal.entries`."""
        return await self._entries(entries(after, limit))

    async def entry(self, event_id: str) -> Entry | None:
        """See `ports.Journal.entry`."""
        return next(iter(await self._entries(entry(event_id))), None)

    async def entries_before(self, before: int, *, kinds: Sequence[str], limit: int = 100) -> list[Entry]:
        """See `ports.Journal.entries_before`."""
        return await self._entries(entries_before(before, kinds, limit))

    async def jobs(self, *, job: str | Sequence[str] = "") -> list[JobRecord]:
        """See `ports.Journal.jobs`."""
        return await self._records("jobs", jobs(job), JobRecord)

    async def nodes(self, *, node: str | Sequence[str] = "") -> list[NodeRecord]:
        """See `ports.Journal.nodes`."""
        return await self._records("nodes", nodes(node), NodeRecord)

    async def brakes(self) -> list[BrakeRecord]:
        """See `ports.Journal.brakes`."""
        return await self._records("brakes", brakes(), BrakeRecord)

    async def incidents(
        self,
        *,
        incident: str = "",
        job: str = "",
        node: str = "",
        open_only: bool = False,
        limit: int = 1000,
        before: tuple[float, str] | None = None,
    ) -> list[IncidentRecord]:
        """See `ports.Journal.incidents`."""

        def ask(behind: tuple[float, str] | None, size: int) -> Awaitable[list[IncidentRecord]]:
            query = incidents(incident, open_only=open_only, limit=size, before=behind)
            return self._records("incidents", query, IncidentRecord)

        def choose(found: list[IncidentRecord]) -> list[IncidentRecord]:
            return [one for one in found if one.concerns(job=job, node=node)]

        return await first_of(ask, choose, lambda one: (one.opened_at, one.id), limit, start=before)

    async def orders(
        self,
        *,
        order: str = "",
        incident: str = "",
        job: str = "",
        node: str = "",
        pending_only: bool = False,
        limit: int = 1000,
        before: tuple[float, str] | None = None,
    ) -> list[OrderRecord]:
        """See `ports.Journal.orders`."""
        where = {"id": order, "incident": incident, "job": job, "node": node}
        query = orders(where, pending_only=pending_only, limit=limit, before=before)
        return await self._records("orders", query, OrderRecord)

    async def samples(self, series: str, subject: str = "", *, after: float = 0.0) -> list[Sample]:
        """See `ports.Journal.samples`."""
        rows = await self._rows(samples(series, subject, after=after))
        return [Sample(row.series, row.subject, row.at, math.nan if row.value is None else row.value) for row in rows]


def jobs(job: str | Sequence[str] = "") -> Rows:
    """Payloads of job records; `job` as `str(JobKey)` writes it, or several."""
    return _chosen(select(schema.jobs.c.payload).order_by(schema.jobs.c.key), schema.jobs.c.id, job)


def nodes(node: str | Sequence[str] = "") -> Rows:
    """Payloads of node records."""
    return _chosen(select(schema.nodes.c.payload).order_by(schema.nodes.c.name), schema.nodes.c.name, node)


def _chosen(query: Rows, column: ColumnElement[str], wanted: str | Sequence[str]) -> Rows:
    if isinstance(wanted, str):
        return query.where(column == wanted) if wanted else query
    return query.where(column.in_(list(wanted)))


def brakes() -> Rows:
    """Payloads of brake records."""
    return select(schema.brakes.c.payload).order_by(schema.brakes.c.name)


def incidents(
    incident: str = "", *, open_only: bool = False, limit: int = 1000, before: tuple[float, str] | None = None
) -> Rows:
    """Payloads of incident records, newest first."""
    table = schema.incidents
    query = select(table.c.payload).order_by(table.c.opened_at.desc(), table.c.id.desc()).limit(limit)
    if incident:
        query = query.where(table.c.id == incident)
    if before is not None:
        query = query.where(tuple_(table.c.opened_at, table.c.id) < before)
    return query.where(table.c.closed_at == 0.0) if open_only else query


def orders(
    where: Mapping[str, str],
    *,
    pending_only: bool = False,
    limit: int = 1000,
    before: tuple[float, str] | None = None,
) -> Rows:
    """Payloads of order records, newest first; `where` names columns and what stands in them, empty for whatever."""
    table = schema.orders
    query = select(table.c.payload).order_by(table.c.issued_at.desc(), table.c.id.desc()).limit(limit)
    for name, value in where.items():
        if value:
            query = query.where(table.c[name] == value)
    if before is not None:
        query = query.where(tuple_(table.c.issued_at, table.c.id) < before)
    return query.where(table.c.status.in_([one.value for one in WAITING])) if pending_only else query


def samples(series: str, subject: str = "", *, after: float = 0.0) -> Rows:
    """Rows of the series store in order of time; `subject` may end in `*`."""
    table = schema.samples
    query = select(table).where(table.c.series == series, table.c.at > after)
    if subject.endswith("*"):
        query = query.where(table.c.subject.startswith(subject[:-1], autoescape=True))
    elif subject:
        query = query.where(table.c.subject == subject)
    return query.order_by(table.c.at, table.c.id)


def events(after: int, limit: int, where: Mapping[str, Any], *, newest: bool = False) -> Rows:
    """Payloads of events with seq > after, oldest first; with `newest` the last ones, newest first.

    Raises:
        JournalError: `where` names something else than incident, job, node or kind.
    """
    table = schema.events
    query = select(table.c.payload).where(table.c.seq > after)
    for name, value in where.items():
        if value:
            query = query.where(_condition(name, value))
    return query.order_by(table.c.seq.desc() if newest else table.c.seq).limit(limit)


def _condition(name: str, value: Any) -> ColumnElement[bool]:
    table = schema.events
    if name == "incident":
        link = schema.event_incidents
        return table.c.seq.in_(select(link.c.seq).where(link.c.incident == value))
    if name == "kind":
        return table.c.kind == value if isinstance(value, str) else table.c.kind.in_(list(value))
    if name in {"job", "node"}:
        return table.c[name] == str(value)
    raise JournalError(f"events cannot be chosen by {name!r}: use incident, job, node or kind")


def entries(after: int, limit: int) -> Rows:
    """Payloads of events with seq > after, and of the orders that each led to."""
    table = schema.events
    return select(table.c.payload, table.c.orders).where(table.c.seq > after).order_by(table.c.seq).limit(limit)


def entry(event_id: str) -> Rows:
    """Payload of the event of this id, and of the orders that it led to."""
    table = schema.events
    return select(table.c.payload, table.c.orders).where(table.c.id == schema.name_text(event_id))


def entries_before(before: int, kinds: Sequence[str], limit: int) -> Rows:
    """Payloads of events of these kinds with seq < before, newest first, and of the orders that each led to."""
    table = schema.events
    query = select(table.c.payload, table.c.orders).where(table.c.seq < before, table.c.kind.in_(list(kinds)))
    return query.order_by(table.c.seq.desc()).limit(limit)


def last_seq(connection: Connection) -> int:
    """Number of the newest event, 0 when there is none."""
    newest = connection.scalar(select(func.max(schema.events.c.seq))) or 0
    # Retention may have dropped every event behind the snapshot; numbers are never used twice.
    return max(newest, connection.scalar(select(func.max(schema.snapshots.c.seq))) or 0)


def missing_events(connection: Connection) -> tuple[int, int]:
    """How many events behind the newest snapshot are missing, of how many: numbers have no holes there."""
    newest = connection.scalar(select(func.max(schema.snapshots.c.seq))) or 0
    behind = schema.events.c.seq > newest
    row = connection.execute(select(func.count(), func.max(schema.events.c.seq)).where(behind)).one()
    expected = int(row[1] or newest) - newest
    return expected - int(row[0]), expected

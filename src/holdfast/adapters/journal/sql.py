"""The journal over SQLAlchemy Core: one writer thread, a few reader threads, one transaction per append.

Called by the controller and the launcher through `ports.Journal`. It reads no clock: times come with the calls.
Group commit is the caller's: a whole batch of entries is one transaction and one flush to disk. Every write is
fenced: it reads the lease row in its own transaction and refuses when a newer epoch stands there.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Connection, Engine, Select, and_, delete, func, insert, select, update
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError

from holdfast.adapters.journal import schema, series
from holdfast.errors import FencedError, JournalBusyError, JournalError
from holdfast.model.events import AnyEvent
from holdfast.model.orders import OrderStatus
from holdfast.model.records import BrakeRecord, IncidentRecord, JobRecord, NodeRecord, OrderRecord
from holdfast.model.wire import decode, decode_event, decode_orders
from holdfast.ports import Entry, Sample, Touched

R = TypeVar("R")

READERS = 2
LOAD_PAGE = 5000
SNAPSHOTS_KEPT = 2
IN_MAX = 500
"""Values in one IN list; SQLite's own limit is far above, PostgreSQL plans short ones better."""
RETAIN_CHUNK = 2000
"""Events deleted in one transaction, so that retention never holds the writer for long."""


class SqlJournal:
    """A `ports.Journal` in a relational store. Made by `open_journal`."""

    def __init__(self, writer: Engine, readers: Engine) -> None:
        self._writer = writer
        self._readers = readers
        self._dialect = writer.dialect.name
        self._upserts = {
            table: schema.upsert(table, self._dialect)
            for table in (schema.orders, schema.jobs, schema.nodes, schema.incidents, schema.brakes, schema.snapshots)
        }
        self._write_thread = ThreadPoolExecutor(1, thread_name_prefix="journal-write")
        self._read_threads = ThreadPoolExecutor(READERS, thread_name_prefix="journal-read")
        self._epoch = 0
        self._holder = ""
        self._lease_s = 0.0
        self._closed = False

    @property
    def epoch(self) -> int:
        """Fencing epoch of the lease held here, 0 before `acquire`."""
        return self._epoch

    # --- the lease ---

    async def acquire(self, holder: str, *, lease_s: float, now: float) -> int:
        """See `ports.Journal.acquire`. The same holder name takes its own lease over at once, with a new epoch."""

        def work(connection: Connection) -> int:
            row = connection.execute(select(schema.lease).with_for_update()).one_or_none()
            if row is None:
                connection.execute(
                    insert(schema.lease), {"id": 1, "holder": holder, "epoch": 1, "expires": now + lease_s}
                )
                return 1
            if row.holder not in {"", holder} and row.expires > now:
                raise JournalBusyError(
                    f"{row.holder!r} is the active controller of this journal for another {row.expires - now:.1f} s; "
                    "stop it first, or wait for its lease to end"
                )
            epoch = int(row.epoch) + 1
            connection.execute(update(schema.lease).values(holder=holder, epoch=epoch, expires=now + lease_s))
            return epoch

        self._epoch = await self._write(work, fenced=False)
        self._holder, self._lease_s = holder, lease_s
        return self._epoch

    async def renew(self, *, now: float) -> None:
        """See `ports.Journal.renew`."""
        expires = now + self._lease_s
        await self._write(lambda connection: connection.execute(update(schema.lease).values(expires=expires)))

    async def release(self) -> None:
        """See `ports.Journal.release`."""
        await self._write(lambda connection: connection.execute(update(schema.lease).values(holder="", expires=0.0)))
        self._epoch = 0

    # --- history ---

    async def append(self, entries: Sequence[Entry]) -> None:
        """See `ports.Journal.append`. Encoding, too, is done in the writer thread."""
        if not entries:
            return

        def work(connection: Connection) -> None:
            rows = [schema.event_row(entry) for entry in entries]
            connection.execute(insert(schema.events), rows)
            links = [{"incident": i, "seq": e.event.seq} for e in entries for i in sorted(schema.incidents_of(e))]
            if links:
                connection.execute(insert(schema.event_incidents), links)
            for table, found in schema.record_rows(entries).items():
                connection.execute(self._upserts[table], found)

        try:
            await self._write(work)
        except _ConflictError as error:
            # A commit whose answer was lost (an I/O error while flushing) may have happened all the same.
            if not await self._holds(entries):
                raise JournalError(f"events {entries[0].event.seq} and on cannot be stored: {error}") from error

    async def _holds(self, entries: Sequence[Entry]) -> bool:
        first, last = entries[0].event.seq, entries[-1].event.seq

        def work(connection: Connection) -> dict[int, str]:
            query = select(schema.events.c.seq, schema.events.c.id).where(schema.events.c.seq.between(first, last))
            return {int(row.seq): str(row.id) for row in connection.execute(query)}

        return await self._read(work) == {entry.event.seq: entry.event.id for entry in entries}

    async def load(self) -> tuple[bytes | None, int, Iterator[AnyEvent]]:
        """See `ports.Journal.load`. The events are read page by page while they are consumed."""

        def newest(connection: Connection) -> tuple[bytes | None, int]:
            query = select(schema.snapshots).order_by(schema.snapshots.c.seq.desc()).limit(1)
            row = connection.execute(query).one_or_none()
            return (bytes(row.state), int(row.seq)) if row is not None else (None, 0)

        state, seq = await self._read(newest)
        return state, seq, self._events_after(seq)

    def _events_after(self, seq: int) -> Iterator[AnyEvent]:
        while True:
            page = self._read_now(partial(_events, after=seq, limit=LOAD_PAGE, where={}))
            yield from page
            if not page:
                return
            seq = page[-1].seq

    async def snapshot(self, state: bytes, seq: int) -> None:
        """See `ports.Journal.snapshot`. The newest two are kept."""

        def work(connection: Connection) -> None:
            connection.execute(self._upserts[schema.snapshots], {"seq": seq, "state": state})
            column = schema.snapshots.c.seq
            kept = connection.scalars(select(column).order_by(column.desc()).limit(SNAPSHOTS_KEPT)).all()
            connection.execute(delete(schema.snapshots).where(column < min(kept)))

        await self._write(work)

    async def seen(self, event_ids: Sequence[str]) -> set[str]:
        """See `ports.Journal.seen`."""

        def work(connection: Connection) -> set[str]:
            found: set[str] = set()
            for start in range(0, len(event_ids), IN_MAX):
                query = select(schema.events.c.id).where(schema.events.c.id.in_(event_ids[start : start + IN_MAX]))
                found.update(connection.scalars(query))
            return found

        return await self._read(work) if event_ids else set()

    async def last_seq(self) -> int:
        """See `ports.Journal.last_seq`."""

        def work(connection: Connection) -> int:
            newest = connection.scalar(select(func.max(schema.events.c.seq))) or 0
            # Retention may have dropped every event behind the snapshot; numbers are never used twice.
            return max(newest, connection.scalar(select(func.max(schema.snapshots.c.seq))) or 0)

        return await self._read(work)

    async def events(self, *, after: int = 0, limit: int = 1000, **where: Any) -> list[AnyEvent]:
        """See `ports.Journal.events`."""
        return await self._read(lambda connection: _events(connection, after, limit, where))

    async def entries(self, *, after: int = 0, limit: int = 1000) -> list[Entry]:
        """See `ports.Journal.entries`."""
        columns = (schema.events.c.payload, schema.events.c.orders)
        query = select(*columns).where(schema.events.c.seq > after).order_by(schema.events.c.seq).limit(limit)
        rows = await self._rows(query)
        return [Entry(decode_event(row.payload), decode_orders(row.orders), Touched()) for row in rows]

    # --- read models ---

    async def jobs(self, *, job: str = "") -> list[JobRecord]:
        """See `ports.Journal.jobs`."""
        query = select(schema.jobs.c.payload).order_by(schema.jobs.c.key)
        return await self._records(query.where(schema.jobs.c.id == job) if job else query, JobRecord)

    async def nodes(self, *, node: str = "") -> list[NodeRecord]:
        """See `ports.Journal.nodes`."""
        query = select(schema.nodes.c.payload).order_by(schema.nodes.c.name)
        return await self._records(query.where(schema.nodes.c.name == node) if node else query, NodeRecord)

    async def brakes(self) -> list[BrakeRecord]:
        """See `ports.Journal.brakes`."""
        return await self._records(select(schema.brakes.c.payload).order_by(schema.brakes.c.name), BrakeRecord)

    async def incidents(
        self, *, incident: str = "", open_only: bool = False, limit: int = 1000
    ) -> list[IncidentRecord]:
        """See `ports.Journal.incidents`."""
        table = schema.incidents
        query = select(table.c.payload).order_by(table.c.opened_at.desc(), table.c.id.desc()).limit(limit)
        if incident:
            query = query.where(table.c.id == incident)
        if open_only:
            query = query.where(table.c.closed_at == 0.0)
        return await self._records(query, IncidentRecord)

    async def orders(self, *, incident: str = "", pending_only: bool = False, limit: int = 1000) -> list[OrderRecord]:
        """See `ports.Journal.orders`."""
        table = schema.orders
        query = select(table.c.payload).order_by(table.c.issued_at.desc(), table.c.id.desc()).limit(limit)
        if incident:
            query = query.where(table.c.incident == incident)
        if pending_only:
            query = query.where(table.c.status == OrderStatus.PENDING.value)
        return await self._records(query, OrderRecord)

    # --- the series store ---

    async def add_samples(self, samples: Sequence[Sample]) -> None:
        """See `ports.Journal.add_samples`. Also thins and bounds the store, a little with each call."""
        if samples:
            await self._write(lambda connection: series.add(connection, samples), fenced=False)

    async def samples(self, series: str, subject: str = "", *, after: float = 0.0) -> list[Sample]:
        """See `ports.Journal.samples`."""
        table = schema.samples
        query = select(table).where(table.c.series == series, table.c.at > after)
        if subject.endswith("*"):
            query = query.where(table.c.subject.startswith(subject[:-1], autoescape=True))
        elif subject:
            query = query.where(table.c.subject == subject)
        rows = await self._rows(query.order_by(table.c.at, table.c.id))
        return [Sample(row.series, row.subject, row.at, math.nan if row.value is None else row.value) for row in rows]

    # --- keeping house ---

    async def retain(self, before: float) -> int:
        """See `ports.Journal.retain`."""
        dropped = 0
        while True:
            count = await self._write(lambda connection: _drop_events(connection, before))
            dropped += count
            if count < RETAIN_CHUNK:
                break
        await self._write(lambda connection: _drop_orders(connection, before))
        return dropped

    async def close(self) -> None:
        """See `ports.Journal.close`. Calling it again does nothing."""
        if self._closed:
            return
        self._closed = True
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._write_thread, self._writer.dispose)
        await loop.run_in_executor(self._read_threads, self._readers.dispose)
        self._write_thread.shutdown()
        self._read_threads.shutdown()

    # --- the threads ---

    async def _write(self, work: Callable[[Connection], R], *, fenced: bool = True) -> R:
        return await self._on(self._write_thread, lambda: self._write_now(work, fenced=fenced))

    async def _read(self, work: Callable[[Connection], R]) -> R:
        return await self._on(self._read_threads, lambda: self._read_now(work))

    async def _on(self, threads: ThreadPoolExecutor, call: Callable[[], R]) -> R:
        if self._closed:
            raise JournalError("the journal is closed")
        running = asyncio.get_running_loop().run_in_executor(threads, call)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            # A transaction that has begun runs to its end; its outcome must not be reported as an unread exception.
            running.add_done_callback(lambda done: done.cancelled() or done.exception())
            raise

    async def _rows(self, query: Select[Any]) -> Sequence[Any]:
        return await self._read(lambda connection: connection.execute(query).all())

    async def _records(self, query: Select[Any], kind: type[R]) -> list[R]:
        # Decoded in the reader's thread: ten thousand nodes must not hold the caller's loop.
        return await self._read(lambda connection: [decode(payload, kind) for payload in connection.scalars(query)])

    def _read_now(self, work: Callable[[Connection], R]) -> R:
        try:
            with self._readers.connect() as connection:
                return work(connection)
        except SQLAlchemyError as error:
            raise JournalError(f"the journal cannot be read: {_said(error)}") from error

    def _write_now(self, work: Callable[[Connection], R], *, fenced: bool) -> R:
        try:
            with self._writer.begin() as connection:
                if fenced:
                    self._check_epoch(connection)
                return work(connection)
        except IntegrityError as error:
            raise _ConflictError(_said(error)) from error
        except SQLAlchemyError as error:
            raise JournalError(f"the journal cannot be written: {_said(error)}") from error

    def _check_epoch(self, connection: Connection) -> None:
        row = connection.execute(select(schema.lease.c.epoch, schema.lease.c.holder).with_for_update()).one_or_none()
        if self._epoch == 0:
            raise FencedError("the journal is written only by the holder of its lease: acquire it first")
        if row is None or int(row.epoch) != self._epoch:
            by = f" by {row.holder!r}" if row is not None and row.holder else ""
            raise FencedError(f"epoch {self._epoch} of {self._holder!r} was superseded{by}: this controller must stop")


class _ConflictError(JournalError):
    """A row that must be new exists already."""


def _said(error: SQLAlchemyError) -> str:
    return str(error.orig) if isinstance(error, DBAPIError) else str(error)


def _events(connection: Connection, after: int, limit: int, where: dict[str, Any]) -> list[AnyEvent]:
    table = schema.events
    query = select(table.c.payload).where(table.c.seq > after).order_by(table.c.seq).limit(limit)
    for name, value in where.items():
        if value:
            query = query.where(_condition(name, value))
    return [decode_event(payload) for payload in connection.scalars(query)]


def _condition(name: str, value: Any) -> ColumnElement[bool]:
    table = schema.events
    if name == "incident":
        link = schema.event_incidents
        return table.c.seq.in_(select(link.c.seq).where(link.c.incident == value))
    if name == "kind":
        return table.c.kind == value if isinstance(value, str) else table.c.kind.in_(list(value))
    if name in {"job", "node"}:
        return and_(table.c[name] == str(value))
    raise JournalError(f"events cannot be chosen by {name!r}: use incident, job, node or kind")


def _drop_events(connection: Connection, before: float) -> int:
    table, link = schema.events, schema.event_incidents
    newest = connection.scalar(select(func.max(schema.snapshots.c.seq))) or 0
    still_open = (
        select(link.c.seq)
        .join(schema.incidents, schema.incidents.c.id == link.c.incident)
        .where(schema.incidents.c.closed_at == 0.0)
    )
    old = and_(table.c.received_at < before, table.c.seq <= newest, table.c.seq.not_in(still_open))
    chosen = connection.scalars(select(table.c.seq).where(old).limit(RETAIN_CHUNK)).all()
    for start in range(0, len(chosen), IN_MAX):
        part = chosen[start : start + IN_MAX]
        connection.execute(delete(link).where(link.c.seq.in_(part)))
        connection.execute(delete(table).where(table.c.seq.in_(part)))
    return len(chosen)


def _drop_orders(connection: Connection, before: float) -> None:
    table = schema.orders
    still_open = select(schema.incidents.c.id).where(schema.incidents.c.closed_at == 0.0)
    old = and_(table.c.ended_at > 0.0, table.c.ended_at < before, table.c.incident.not_in(still_open))
    connection.execute(delete(table).where(old))

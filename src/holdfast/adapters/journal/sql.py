"""The journal over SQLAlchemy Core: one writer thread, a few reader threads, one transaction per append.

Called by the controller and the launcher through `ports.Journal`. It reads no clock: times come with the calls.
Group commit is the caller's: a whole batch of entries is one transaction and one flush to disk. Every write is
fenced: it reads the lease row in its own transaction and refuses when a newer epoch stands there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, Executable, Select, and_, delete, func, insert, select, update
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError

from holdfast.adapters.journal import chain, queries, schema, series
from holdfast.errors import FencedError, JournalBusyError, JournalError
from holdfast.model.audit import AUDITED, dropped
from holdfast.model.events import AnyEvent
from holdfast.model.wire import decode_event
from holdfast.ports import Entry, LeaseRow, Sample

R = TypeVar("R")

READERS = 2
LOAD_PAGE = 5000
SNAPSHOTS_KEPT = 2
IN_MAX = 500
"""Values in one IN list; SQLite's own limit is far above, PostgreSQL plans short ones better."""
RETAIN_CHUNK = 2000
"""Events deleted in one transaction, so that retention never holds the writer for long."""
LEASE_S = "lease_s"
"""Key in `meta`: how long the lease's holder may act after it last renewed."""
UPSERTED = (
    schema.orders, schema.jobs, schema.nodes, schema.incidents, schema.brakes, schema.snapshots, schema.meta,
)  # fmt: skip
TRIES = 20
"""A transaction that the store rolled back because of another one is done again so often."""
ROLLED_BACK = frozenset({"40001", "40P01"})
"""SQLSTATE of a serialisation failure and of a deadlock: nothing of the transaction has happened."""


class SqlJournal(queries.Reads):
    """A `ports.Journal` in a relational store. Made by `open_journal`."""

    def __init__(self, writer: Engine, readers: Engine) -> None:
        self._writer = writer
        self._readers = readers
        self._dialect = writer.dialect.name
        self._upserts = {table: schema.upsert(table, self._dialect) for table in UPSERTED}
        self._first_lease = schema.insert_missing(schema.lease, self._dialect)
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

    async def lease(self) -> LeaseRow | None:
        """See `ports.Journal.lease`."""
        return await self._read(_lease)

    async def acquire(self, holder: str, *, lease_s: float, now: float, seen: LeaseRow | None = None) -> int:
        """See `ports.Journal.acquire`. The same holder name takes its own lease over at once, with a new epoch."""
        holder = schema.name_text(holder)

        def work(connection: Connection) -> int:
            # Two that take a fresh journal's lease at once must both find a row to wait for.
            connection.execute(self._first_lease, {"id": 1, "holder": "", "epoch": 0, "expires": 0.0})
            row = connection.execute(select(schema.lease).with_for_update()).one()
            is_free = row.holder in {"", holder}
            if seen is not None and not is_free:
                if _lease(connection) != seen:
                    raise JournalBusyError(f"{row.holder!r} is the active controller of this journal and alive")
            elif not is_free and row.expires > now:
                raise JournalBusyError(
                    f"{row.holder!r} is the active controller of this journal for another {row.expires - now:.1f} s; "
                    "stop it first, or wait for its lease to end"
                )
            epoch = int(row.epoch) + 1
            connection.execute(update(schema.lease).values(holder=holder, epoch=epoch, expires=now + lease_s))
            connection.execute(self._upserts[schema.meta], {"key": LEASE_S, "value": repr(lease_s)})
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
            chain.add_events(connection, self._upserts[schema.meta], entries)

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
            page = self._events_now(seq)
            yield from page
            if not page:
                return
            seq = page[-1].seq

    def _events_now(self, after: int) -> list[AnyEvent]:
        query = queries.events(after, LOAD_PAGE, {})
        return self._read_now(lambda connection: [decode_event(payload) for payload in connection.scalars(query)])

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
        asked = {schema.name_text(one): one for one in event_ids}
        stored = list(asked)

        def work(connection: Connection) -> set[str]:
            found: set[str] = set()
            for start in range(0, len(stored), IN_MAX):
                query = select(schema.events.c.id).where(schema.events.c.id.in_(stored[start : start + IN_MAX]))
                found.update(asked[one] for one in connection.scalars(query))
            return found

        return await self._read(work) if event_ids else set()

    async def last_seq(self) -> int:
        """See `ports.Journal.last_seq`."""
        return await self._read(queries.last_seq)

    async def note(self, act: dict[str, Any]) -> None:
        """Add an act that is not an event to the audit; beside a controller, too."""
        upsert = self._upserts[schema.meta]
        await self._write(lambda connection: chain.note(connection, self._first_lease, upsert, act), fenced=False)

    async def audited(self, work: Callable[[Connection], R]) -> R:
        """Read the audit by a function of `chain`."""
        return await self._read(work)

    # --- the series store ---

    async def add_samples(self, samples: Sequence[Sample]) -> None:
        """See `ports.Journal.add_samples`. Also thins and bounds the store, a little with each call."""
        if samples:
            await self._write(lambda connection: series.add(connection, samples), fenced=False)

    # --- keeping house ---

    async def retain(self, before: float) -> int:
        """See `ports.Journal.retain`."""
        dropped = 0
        while True:
            count = await self._write(lambda connection: _drop_events(connection, self._upserts[schema.meta], before))
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

    async def _payloads(self, table: str, query: Select[Any], read: Callable[[str], R]) -> list[R]:  # noqa: ARG002 - see `Reads`
        # Decoded in the reader's thread: ten thousand nodes must not hold the caller's loop.
        return await self._read(lambda connection: [read(payload) for payload in connection.scalars(query)])

    def _read_now(self, work: Callable[[Connection], R]) -> R:
        try:
            with self._readers.connect() as connection:
                return work(connection)
        except SQLAlchemyError as error:
            raise JournalError(f"the journal cannot be read: {said_by(error)}") from error

    def _write_now(self, work: Callable[[Connection], R], *, fenced: bool) -> R:
        try:
            return self._transaction(work, fenced=fenced)
        except IntegrityError as error:
            raise _ConflictError(said_by(error)) from error
        except SQLAlchemyError as error:
            raise JournalError(f"the journal cannot be written: {said_by(error)}") from error

    def _transaction(self, work: Callable[[Connection], R], *, fenced: bool) -> R:
        tries = 0
        while True:
            tries += 1
            try:
                with self._writer.begin() as connection:
                    if fenced:
                        self._check_epoch(connection)
                    return work(connection)
            except DBAPIError as error:
                # Whoever won has committed by now, so that another try meets other rows, or is fenced.
                if tries == TRIES or getattr(error.orig, "sqlstate", "") not in ROLLED_BACK:
                    raise

    def _check_epoch(self, connection: Connection) -> None:
        row = connection.execute(select(schema.lease.c.epoch, schema.lease.c.holder).with_for_update()).one_or_none()
        if self._epoch == 0:
            raise FencedError("the journal is written only by the holder of its lease: acquire it first")
        if row is None or int(row.epoch) != self._epoch:
            by = f" by {row.holder!r}" if row is not None and row.holder else ""
            raise FencedError(f"epoch {self._epoch} of {self._holder!r} was superseded{by}: this controller must stop")


class _ConflictError(JournalError):
    """A row that must be new exists already."""


def said_by(error: SQLAlchemyError) -> str:
    """What the store said, in one line: psycopg adds lines of advice."""
    said = str(error.orig) if isinstance(error, DBAPIError) else str(error)
    return said.strip().partition("\n")[0] or type(error).__name__


def _lease(connection: Connection) -> LeaseRow | None:
    row = connection.execute(select(schema.lease)).one_or_none()
    lease_s = connection.scalar(select(schema.meta.c.value).where(schema.meta.c.key == LEASE_S))
    return LeaseRow(row.holder, int(row.epoch), row.expires, float(lease_s or 0.0)) if row and row.epoch else None


def _drop_events(connection: Connection, upsert: Executable, before: float) -> int:
    table, link = schema.events, schema.event_incidents
    newest = connection.scalar(select(func.max(schema.snapshots.c.seq))) or 0
    still_open = (
        select(link.c.seq)
        .join(schema.incidents, schema.incidents.c.id == link.c.incident)
        .where(schema.incidents.c.closed_at == 0.0)
    )
    old = and_(table.c.received_at < before, table.c.seq <= newest, table.c.seq.not_in(still_open))
    chosen = connection.scalars(select(table.c.seq).where(old).limit(RETAIN_CHUNK)).all()
    acts: list[int] = []
    for start in range(0, len(chosen), IN_MAX):
        part = chosen[start : start + IN_MAX]
        acts += connection.scalars(select(table.c.seq).where(table.c.seq.in_(part), table.c.kind.in_(AUDITED)))
        connection.execute(delete(link).where(link.c.seq.in_(part)))
        connection.execute(delete(table).where(table.c.seq.in_(part)))
    chain.add(connection, upsert, [dropped(acts, before)] if acts else [])
    return len(chosen)


def _drop_orders(connection: Connection, before: float) -> None:
    table = schema.orders
    still_open = select(schema.incidents.c.id).where(schema.incidents.c.closed_at == 0.0)
    old = and_(table.c.ended_at > 0.0, table.c.ended_at < before, table.c.incident.not_in(still_open))
    connection.execute(delete(table).where(old))

"""Tables of the journal, and how an entry becomes rows. Used by `sql.py` and the migrations; no time passes here.

Payloads are the wire format's JSON as text, so that a person can read a journal with nothing but `sqlite3` or `psql`.
Columns beside a payload only repeat what queries need. `seq` of a read model is that of the event that last changed it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Dialect,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
    insert,
    text,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql.dml import Insert

from holdfast.adapters.journal import version
from holdfast.model.cluster import JobKey
from holdfast.model.events import AnyEvent
from holdfast.model.orders import AnyOrder
from holdfast.model.wire import encode, job_of, kind_of, node_of
from holdfast.ports import Entry, Touched

HEAD = version.HEAD
FORMAT = "holdfast journal"
metadata = MetaData()

NAME_MAX = 300
"""Characters of a name in a column: two of them must fit into the 2,700 bytes that PostgreSQL's index takes."""
_DIGITS = 40


def name_text(value: str) -> str:
    """A name as a column holds it. The payload beside it keeps it as it was.

    PostgreSQL takes no NUL and no very long key. An event that it refused would be tried again for ever, so both are
    changed here, and by the same rule wherever such a name is asked for.
    """
    value = value.replace("\0", "\ufffd")
    if len(value) <= NAME_MAX:
        return value
    digest = hashlib.sha256(value.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]
    return f"{value[: NAME_MAX - _DIGITS - 1]}~{digest}"


class _Name(TypeDecorator[str]):
    """A name that people and machines give: see `name_text`. Sorted by code point in every store."""

    impl = String
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> Any:
        """PostgreSQL would sort by the database's language."""
        return dialect.type_descriptor(String(collation="C") if dialect.name == "postgresql" else String())

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:  # noqa: ARG002 - SQLAlchemy's
        """Before it is stored or compared."""
        return name_text(value) if value is not None else None


# SQLite gives automatic row ids only to a column of exactly this type.
_Auto = BigInteger().with_variant(Integer, "sqlite")

events = Table(
    "events",
    metadata,
    Column("seq", _Auto, primary_key=True, autoincrement=False),
    Column("id", _Name, nullable=False, unique=True),
    Column("kind", _Name, nullable=False),
    Column("at", Double, nullable=False),
    Column("received_at", Double, nullable=False),
    Column("source", _Name, nullable=False),
    Column("job", _Name, nullable=False),
    Column("node", _Name, nullable=False),
    Column("payload", Text, nullable=False),
    Column("orders", Text, nullable=False),
    Index("events_kind", "kind", "seq"),
    Index("events_job", "job", "seq"),
    Index("events_node", "node", "seq"),
    Index("events_received_at", "received_at"),
)
event_incidents = Table(
    "event_incidents",
    metadata,
    Column("incident", _Name, primary_key=True),
    Column("seq", BigInteger, primary_key=True),
    Index("event_incidents_seq", "seq"),
)
orders = Table(
    "orders",
    metadata,
    Column("id", _Name, primary_key=True),
    Column("seq", BigInteger, nullable=False),
    Column("kind", _Name, nullable=False),
    Column("status", _Name, nullable=False),
    Column("incident", _Name, nullable=False),
    Column("job", _Name, nullable=False),
    Column("node", _Name, nullable=False),
    Column("issued_at", Double, nullable=False),
    Column("ended_at", Double, nullable=False),
    Column("payload", Text, nullable=False),
    Index("orders_incident", "incident"),
    Index("orders_status", "status"),
    Index("orders_issued_at", "issued_at"),
)
jobs = Table(
    "jobs",
    metadata,
    Column("key", _Name, primary_key=True),
    Column("id", _Name, nullable=False),
    Column("state", _Name, nullable=False),
    Column("since", Double, nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("payload", Text, nullable=False),
    Index("jobs_id", "id"),
)
nodes = Table(
    "nodes",
    metadata,
    Column("name", _Name, primary_key=True),
    Column("state", _Name, nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("payload", Text, nullable=False),
)
incidents = Table(
    "incidents",
    metadata,
    Column("id", _Name, primary_key=True),
    Column("opened_at", Double, nullable=False),
    Column("closed_at", Double, nullable=False),
    Column("seq", BigInteger, nullable=False),
    Column("payload", Text, nullable=False),
    Index("incidents_opened_at", "opened_at"),
    Index("incidents_closed_at", "closed_at"),
)
brakes = Table(
    "brakes",
    metadata,
    Column("name", _Name, primary_key=True),
    Column("seq", BigInteger, nullable=False),
    Column("payload", Text, nullable=False),
)
snapshots = Table(
    "snapshots",
    metadata,
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("state", LargeBinary, nullable=False),
)
lease = Table(
    "lease",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("holder", _Name, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("expires", Double, nullable=False),
)
samples = Table(
    "samples",
    metadata,
    Column("id", _Auto, primary_key=True, autoincrement=True),
    Column("series", _Name, nullable=False),
    Column("subject", _Name, nullable=False),
    Column("at", Double, nullable=False),
    Column("value", Double, nullable=True),
    Column("tier", Integer, nullable=False),
    Index("samples_series", "series", "subject", "at"),
    Index("samples_tier", "tier", "at"),
)
audit = Table(
    "audit",
    metadata,
    Column("number", _Auto, primary_key=True, autoincrement=False),
    Column("seq", BigInteger, nullable=False),
    Column("line", Text, nullable=False),
)
meta = Table(
    "meta",
    metadata,
    Column("key", _Name, primary_key=True),
    Column("value", Text, nullable=False),
)


def make(connection: Connection) -> None:
    """Make all tables in an empty database."""
    metadata.create_all(connection)
    connection.execute(text("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY)"))
    connection.execute(text("INSERT INTO alembic_version VALUES (:head)"), {"head": HEAD})
    connection.execute(insert(meta), {"key": "format", "value": FORMAT})


def job_text(key: JobKey) -> str:
    """The whole key as text, unique over clusters and generations."""
    return f"{key.cluster}/{key.id}#{key.generation}"


def event_columns(event: AnyEvent) -> dict[str, Any]:
    """What a row of `events` repeats of its event, to be selected by."""
    return {
        "seq": event.seq,
        "id": event.id,
        "kind": kind_of(event),
        "at": event.at,
        "received_at": event.received_at,
        "source": event.source,
        "job": job_of(event),
        "node": node_of(event),
    }


def event_row(entry: Entry) -> dict[str, Any]:
    """The row of `events`."""
    return {
        **event_columns(entry.event),
        "payload": encode(entry.event).decode(),
        "orders": orders_text(entry),
    }


def orders_text(entry: Entry) -> str:
    """The orders that the event led to, as its row holds them."""
    return encode(entry.orders).decode() if entry.orders else "[]"


def incidents_of(entry: Entry) -> set[str]:
    """Incidents that the event belongs to: those it touched, and those of its orders."""
    found = {record.id for record in entry.touched.incidents}
    found.update(order.incident for order in entry.orders)
    found.update(record.order.incident for record in entry.touched.orders)
    found.discard("")
    return found


def _order_target(order: AnyOrder) -> tuple[str, str]:
    job = getattr(order, "job", None)
    return (str(job) if job is not None else "", getattr(order, "node", ""))


def record_rows(entries: Sequence[Entry]) -> dict[Table, list[dict[str, Any]]]:
    """Rows of the read models; of several changes to one record in a batch only the last is kept.

    Only the last one needs to be written, because a batch is one transaction and nobody sees its middle.
    """
    rows: dict[Table, dict[str, dict[str, Any]]] = {orders: {}, jobs: {}, nodes: {}, incidents: {}, brakes: {}}
    for entry in entries:
        _collect(rows, entry.touched, entry.event.seq)
    return {table: list(found.values()) for table, found in rows.items() if found}


def _collect(rows: dict[Table, dict[str, dict[str, Any]]], touched: Touched, seq: int) -> None:
    for order in touched.orders:
        job, node = _order_target(order.order)
        rows[orders][order.order.id] = {
            "id": order.order.id,
            "seq": seq,
            "kind": kind_of(order.order),
            "status": order.status.value,
            "incident": order.order.incident,
            "job": job,
            "node": node,
            "issued_at": order.issued_at,
            "ended_at": order.ended_at,
            "payload": encode(order).decode(),
        }
    for record in touched.jobs:
        key = job_text(record.key)
        rows[jobs][key] = {
            "key": key,
            "id": str(record.key),
            "state": record.state.value,
            "since": record.since,
            "seq": seq,
            "payload": encode(record).decode(),
        }
    for node_record in touched.nodes:
        rows[nodes][node_record.name] = {
            "name": node_record.name,
            "state": node_record.state.value,
            "seq": seq,
            "payload": encode(node_record).decode(),
        }
    for incident in touched.incidents:
        rows[incidents][incident.id] = {
            "id": incident.id,
            "opened_at": incident.opened_at,
            "closed_at": incident.closed_at,
            "seq": seq,
            "payload": encode(incident).decode(),
        }
    for brake in touched.brakes:
        rows[brakes][brake.group] = {"name": brake.group, "seq": seq, "payload": encode(brake).decode()}


def upsert(table: Table, dialect: str) -> Insert:
    """Insert a row, or replace the one with the same primary key; SQLite and PostgreSQL spell it alike."""
    keys = [column.name for column in table.primary_key.columns]
    statement = postgresql.insert(table) if dialect == "postgresql" else sqlite.insert(table)
    changed = {column.name: statement.excluded[column.name] for column in table.columns if column.name not in keys}
    return statement.on_conflict_do_update(index_elements=keys, set_=changed)


def insert_missing(table: Table, dialect: str) -> Insert:
    """Insert a row unless there is one with the same primary key."""
    if dialect == "postgresql":
        return postgresql.insert(table).on_conflict_do_nothing()
    return sqlite.insert(table).on_conflict_do_nothing()

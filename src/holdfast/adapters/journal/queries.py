"""The questions that are asked of a journal's tables, the same for SQLite and PostgreSQL. No time passes here.

Called by `sql.py` (the controller's journal) and `reading_postgres.py` (the viewing commands).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, func, select, tuple_

from holdfast.adapters.journal import schema
from holdfast.errors import JournalError
from holdfast.model.orders import OrderStatus

Rows = Select[Any]


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
    order: str = "",
    incident: str = "",
    *,
    pending_only: bool = False,
    limit: int = 1000,
    before: tuple[float, str] | None = None,
) -> Rows:
    """Payloads of order records, newest first."""
    table = schema.orders
    query = select(table.c.payload).order_by(table.c.issued_at.desc(), table.c.id.desc()).limit(limit)
    if order:
        query = query.where(table.c.id == order)
    if incident:
        query = query.where(table.c.incident == incident)
    if before is not None:
        query = query.where(tuple_(table.c.issued_at, table.c.id) < before)
    return query.where(table.c.status == OrderStatus.PENDING.value) if pending_only else query


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

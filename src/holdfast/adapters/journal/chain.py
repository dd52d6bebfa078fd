"""The audit's chain in the journal: a table of lines beside the events, written in the act's own transaction.

`sql.py` calls it with every batch. The head stands in `meta`, so that lines that vanish from the table's end are
missed, and by the next act's number, too. The lease's row is locked first: two controllers in turn, and the
command line that makes tokens beside a controller, write one chain. Retention leaves the lines, and adds one that names
the acts whose events it took. No time passes here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from sqlalchemy import Connection, Executable, and_, func, insert, or_, select

from holdfast.adapters.journal import schema
from holdfast.errors import UsageError, WireError
from holdfast.model.audit import (
    AUDITED,
    DROPPED,
    NOTHING,
    ORDERS,
    ChainError,
    Head,
    act_of,
    chained,
    read_head,
    verified,
)
from holdfast.model.wire import decode_event, kind_of
from holdfast.ports import Entry

HEAD = "audit_head"
"""Key in `meta`."""
HEAD_LOST = "audit_head_lost"
"""Act that goes before the next one where `meta` counted fewer lines than there are."""
PAGE = 1000


def add_events(connection: Connection, upsert: Executable, entries: Sequence[Entry]) -> None:
    """Add a line for each of these that is somebody's act."""
    add(
        connection,
        upsert,
        [act_of(entry.event, schema.orders_text(entry)) for entry in entries if kind_of(entry.event) in AUDITED],
    )


def add(connection: Connection, upsert: Executable, acts: Sequence[dict[str, Any]]) -> None:
    """Add lines. The caller's transaction holds the lease's row."""
    if not acts:
        return
    head, rows = _end_of(connection), []
    if head.number > head_of(connection).number:
        acts = [{"event": HEAD_LOST, "at": acts[0].get("at", 0.0), "line": head.number}, *acts]
    for act in acts:
        line, head = chained(act, head)
        rows.append({"number": head.number, "seq": act.get("seq", 0), "line": line})
    connection.execute(insert(schema.audit), rows)
    connection.execute(upsert, {"key": HEAD, "value": str(head)})


def note(connection: Connection, first_lease: Executable, upsert: Executable, act: dict[str, Any]) -> None:
    """Add an act beside a controller, which waits meanwhile."""
    connection.execute(first_lease, {"id": 1, "holder": "", "epoch": 0, "expires": 0.0})
    connection.execute(select(schema.lease).with_for_update())
    add(connection, upsert, [act])


def head_of(connection: Connection) -> Head:
    """The newest line, as the journal counts them; a count that cannot be read is a missing one."""
    said = connection.scalar(select(schema.meta.c.value).where(schema.meta.c.key == HEAD))
    try:
        return read_head(said) if said else Head()
    except UsageError:
        return Head()


def _end_of(connection: Connection) -> Head:
    """The head that the next line follows on: the journal's own count, or the last line where that is missing.

    Lines that are missing are not made up for: their numbers stay free, and show it. A last line that was changed
    stops no act: `check` tells of it.
    """
    head, table = head_of(connection), schema.audit
    last = connection.execute(select(table.c.number, table.c.line).order_by(table.c.number.desc()).limit(1)).first()
    if last is None or last.number <= head.number:
        return head
    try:
        end = verified([last.line])
    except ChainError:
        end = Head(last.number, NOTHING)
    return end if end.number >= last.number else Head(last.number, end.hash)


def lost_heads(lines: Iterable[str]) -> list[int]:
    """Numbers of the lines that tell that the journal's own count was missing before them."""
    found = (json.loads(line) for line in lines)
    return [one["number"] for one in found if one["act"].get("event") == HEAD_LOST]


def lines(connection: Connection, after: int = 0) -> Iterator[str]:
    """Lines behind a number, in order."""
    table = schema.audit
    while True:
        query = select(table.c.number, table.c.line).where(table.c.number > after).order_by(table.c.number).limit(PAGE)
        page = connection.execute(query).all()
        yield from (row.line for row in page)
        if len(page) < PAGE:
            return
        after = page[-1].number


def check(connection: Connection) -> Head:
    """Follow the whole chain, and compare it with the journal's own count and with the acts among its events.

    Raises:
        ChainError: names the first line, or the first act, that does not fit.
    """
    head, wanted = verified(lines(connection), before=Head()), head_of(connection)
    if wanted == Head() and head.number:
        raise ChainError(
            f"the journal's own count (meta.{HEAD}) is missing: whether lines behind line {head.number} were cut off, "
            "only a head that was noted elsewhere tells (--head); the next act counts on from there"
        )
    if head.number < wanted.number:
        raise ChainError(f"line {head.number + 1} is missing: the journal has written {wanted.number}")
    if head != wanted:
        raise ChainError(f"line {head.number} does not fit the journal, which ends in {wanted}")
    _check_acts(connection)
    _check_lines(connection)
    return head


def _check_acts(connection: Connection) -> None:
    """Each act that the journal still holds, from the first in the chain on, has the line that belongs to it.

    Lists select acts by the columns of their row, so these must say what the act says, too.
    """
    table, events = schema.audit, schema.events
    first = connection.scalar(select(func.min(table.c.seq)).where(table.c.seq > 0))
    if first is None:
        return
    query = (
        select(events, table.c.number, table.c.line)
        .outerjoin(table, table.c.seq == events.c.seq)
        .where(or_(events.c.kind.in_(AUDITED), table.c.number.is_not(None)), events.c.seq >= first)
        .order_by(events.c.seq)
    )
    for row in connection.execute(query):
        if row.number is None:
            raise ChainError(f"event {row.seq} is an act, and no line of the audit speaks of it")
        try:
            event = decode_event(row.payload)
        except WireError as error:
            raise ChainError(f"event {row.seq}, of which line {row.number} speaks, was changed: {error}") from error
        line, _ = chained(act_of(event, str(row.orders)), Head())
        act, said = json.loads(line)["act"], json.loads(row.line)["act"]
        if said.get(ORDERS, act[ORDERS]) != act[ORDERS]:
            raise ChainError(f"column orders of event {row.seq} was changed: line {row.number} tells of other orders")
        if act != {ORDERS: act[ORDERS], **said}:
            raise ChainError(f"line {row.number} and event {row.seq}, of which it speaks, differ: one was changed")
        for name, said in schema.event_columns(event).items():
            if getattr(row, name) != said:
                raise ChainError(f"column {name} of event {row.seq} was changed: its act says {said!r}")


def _check_lines(connection: Connection) -> None:
    """Each act of the chain stands among the events still, or a line of retention names it.

    Acts whose lines know nothing of orders are of a version that wrote no such line.
    """
    table, events = schema.audit, schema.events
    is_there = and_(events.c.seq == table.c.seq, events.c.kind.in_(AUDITED))
    query = select(table, events.c.seq.label("there")).outerjoin(events, is_there).order_by(table.c.number)
    gone: dict[int, int] = {}
    for row in connection.execute(query):
        act = json.loads(row.line)["act"]
        seq = act.get("seq", 0)
        if row.seq != seq:
            raise ChainError(f"column seq of line {row.number} was changed: its act says {seq}")
        if act.get("event") == DROPPED:
            for one in act["seqs"]:
                gone.pop(one, None)
        elif seq and row.there is None and ORDERS in act:
            gone[seq] = row.number
    for seq, number in gone.items():
        raise ChainError(f"event {seq} is missing, of which line {number} speaks: retention did not drop it")

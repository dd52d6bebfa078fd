"""Lists as one identity sees them, pages of records by cursor, and the audit.

Called by the routes; no time passes here but the journal's.

A cursor is opaque to its reader: it says behind which record the next page begins, so records that come or go meanwhile
make no page skip or repeat the others.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct

from holdfast.api.operate import refusal
from holdfast.api.tenants import Scope
from holdfast.controller import Controller
from holdfast.errors import UsageError
from holdfast.model import events as e
from holdfast.model.answers import Deed
from holdfast.model.audit import AUDITED
from holdfast.model.listing import first_of
from holdfast.model.records import IncidentRecord, OrderRecord
from holdfast.model.wire import kind_of
from holdfast.ports import Entry, Journal

T = TypeVar("T")
R = TypeVar("R", IncidentRecord, OrderRecord)


class Page(Struct, Generic[T], frozen=True):
    """Some records, and the cursor of the next page; empty: there is none."""

    items: list[T]
    next: str = ""


def encode_cursor(*mark: float | str) -> str:
    """A cursor behind this mark."""
    return base64.urlsafe_b64encode(msgspec.json.encode(mark)).decode().rstrip("=")


def decode_cursor(cursor: str, kind: type[T]) -> T:
    """The mark in a cursor.

    Raises:
        UsageError: it is none that was given out for this list.
    """
    try:
        data = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        return msgspec.json.decode(data, type=kind)
    except (binascii.Error, ValueError, msgspec.DecodeError) as error:
        raise UsageError("the cursor is not one of this list: begin again without it") from error


def page_of(found: list[T], limit: int, mark: Callable[[T], tuple[float | str, ...]]) -> Page[T]:
    """The first `limit` of what was found; when there is more, with a cursor behind the `mark` of the last."""
    return Page(found[:limit], encode_cursor(*mark(found[limit - 1])) if len(found) > limit else "")


def mark_of(record: IncidentRecord | OrderRecord) -> tuple[float, str]:
    """Where it stands in its list."""
    return (record.opened_at, record.id) if isinstance(record, IncidentRecord) else (record.issued_at, record.order.id)


async def incidents(
    journal: Journal, scope: Scope, *, limit: int, before: tuple[float, str] | None = None, **where: Any
) -> list[IncidentRecord]:
    """Incidents that are seen, newest first; `where` and `before` as the journal takes them."""
    return await _newest_first(journal.incidents, scope.incidents, limit, before, where)


async def orders(
    journal: Journal, scope: Scope, *, limit: int, before: tuple[float, str] | None = None, **where: Any
) -> list[OrderRecord]:
    """Orders that are seen, newest first; `where` and `before` as the journal takes them."""
    return await _newest_first(journal.orders, scope.orders, limit, before, where)


async def _newest_first(
    read: Callable[..., Awaitable[list[R]]],
    seen: Callable[[list[R]], list[R]],
    limit: int,
    before: tuple[float, str] | None,
    where: Mapping[str, Any],
) -> list[R]:
    def ask(behind: tuple[float, str] | None, size: int) -> Awaitable[list[R]]:
        return read(limit=size, before=behind, **where)

    return await first_of(ask, seen, mark_of, limit, start=before)


async def events(journal: Journal, scope: Scope, *, limit: int, after: int = 0, **where: Any) -> list[e.AnyEvent]:
    """Events that are seen, oldest first."""

    def ask(behind: int, size: int) -> Awaitable[list[e.AnyEvent]]:
        return journal.events(after=behind, limit=size, **where)

    return await first_of(ask, scope.events, lambda one: one.seq, limit, start=after)


async def newest_events(journal: Journal, scope: Scope, *, limit: int, **where: Any) -> list[e.AnyEvent]:
    """The newest events that are seen, newest first."""

    async def ask(before: int, size: int) -> list[e.AnyEvent]:
        return (await journal.events(before=before, limit=size, newest=True, **where))[::-1]

    return await first_of(ask, scope.events, lambda one: one.seq, limit, start=0)


async def audit(controller: Controller, scope: Scope, *, limit: int, cursor: str = "", who: str = "") -> Page[Deed]:
    """What people (and drills) did, newest first; `who`: only what this name stands behind."""

    def ask(before: int, size: int) -> Awaitable[list[Entry]]:
        return controller.journal.entries_before(before, kinds=AUDITED, limit=size)

    def choose(found: list[Entry]) -> list[Deed]:
        deeds = [_deed(entry.event, entry.orders) for entry in found if scope.has_event(entry.event)]
        return [deed for deed in deeds if who in {"", deed.who} or (who and deed.who.startswith(f"{who} "))]

    start = decode_cursor(cursor, tuple[int])[0] if cursor else controller.seq + 1
    found = await first_of(ask, choose, lambda entry: entry.event.seq, limit + 1, start=start)
    return page_of(found, limit, lambda deed: (deed.seq,))


def _deed(event: e.AnyEvent, orders_given: Sequence[Any]) -> Deed:
    given = tuple(f"{kind_of(order)} {order.id}" for order in orders_given if kind_of(order) not in _QUIET)
    match event:
        case e.OperatorCommand():
            target = event.node or str(event.job or "") or event.order or event.group
            value = " ".join(part for part in (event.remedy, event.value) if part)
            refused = refusal(event.id, orders_given)
            what = event.command.value
            return Deed(event.seq, event.at, event.who, what, target, value, event.why, refused, given, event.by)
        case e.PolicyLoaded():
            return Deed(event.seq, event.at, event.source, "policy_loaded", event.file, orders=given)
        case e.DrillRun():
            what, drills = f"drill_run {event.phase}", ", ".join(event.drills)
            return Deed(event.seq, event.at, event.who, what, drills, event.detail, event.why, orders=given)
        case e.DrillFired():
            target = event.node or str(event.job or "")
            return Deed(event.seq, event.at, event.source, "drill", target, event.kind, event.drill, orders=given)
        case _:
            return Deed(event.seq, event.at, event.source, kind_of(event))


_QUIET = frozenset({"notify", "start_timer", "cancel_timer"})

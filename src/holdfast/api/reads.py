"""Pages of records by cursor, and the audit. Called by the routes; no time passes here but the journal's.

A cursor is opaque to its reader: it says behind which record the next page begins, so records that come or go meanwhile
make no page skip or repeat the others.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct

from holdfast.api.operate import refusal
from holdfast.controller import Controller
from holdfast.errors import UsageError
from holdfast.model import events as e
from holdfast.model.answers import Deed
from holdfast.model.audit import AUDITED
from holdfast.model.wire import kind_of

T = TypeVar("T")

PAGE_MAX = 1000


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


async def audit(
    controller: Controller, has: Callable[[e.AnyEvent], bool], *, limit: int, cursor: str = "", who: str = ""
) -> Page[Deed]:
    """What people (and drills) did, newest first; `who`: only what this name stands behind.

    `has` says whether whoever asks may see an event.
    """
    before = decode_cursor(cursor, tuple[int])[0] if cursor else controller.seq + 1
    found: list[Deed] = []
    wanted = PAGE_MAX if who else limit + 1
    while len(found) <= limit:
        page = await controller.journal.entries_before(before, kinds=AUDITED, limit=wanted)
        deeds = [_deed(entry.event, entry.orders) for entry in page if has(entry.event)]
        found += [deed for deed in deeds if who in {"", deed.who} or (who and deed.who.startswith(f"{who} "))]
        if len(page) < wanted:
            break
        before, wanted = page[-1].event.seq, PAGE_MAX
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

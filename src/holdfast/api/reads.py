"""What can be asked of a controller, without HTTP: pages of records by cursor, the audit, single records.

A cursor is opaque to its reader: it says behind which record the next page begins, so records that come or go meanwhile
make no page skip or repeat the others. Called by the routes and by the cockpit. No time passes here but the journal's.
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
from holdfast.controller.fleet import Fleet, JobLine, NodeLine
from holdfast.errors import UsageError
from holdfast.model import events as e
from holdfast.model.answers import CheckpointSeen, Deed
from holdfast.model.records import IncidentRecord, JobRecord, NodeRecord, OrderRecord
from holdfast.model.wire import kind_of

T = TypeVar("T")

PAGE_MAX = 1000
DEEDS = ("operator_command", "policy_loaded", "controller_started", "drill_fired", "drill_run")
"""Kinds of events that are somebody's deed."""


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


async def jobs(
    controller: Controller, fleet: Fleet, chosen: Callable[[JobLine], bool], *, limit: int, cursor: str = ""
) -> Page[JobRecord]:
    """Jobs by id, those of whose lines `chosen` says yes."""
    names, following = _names(fleet.jobs, chosen, limit, cursor)
    return Page(await controller.journal.jobs(job=names) if names else [], following)


async def nodes(
    controller: Controller, fleet: Fleet, chosen: Callable[[NodeLine], bool], *, limit: int, cursor: str = ""
) -> Page[NodeRecord]:
    """Nodes by name, those of whose lines `chosen` says yes."""
    names, following = _names(fleet.nodes, chosen, limit, cursor)
    return Page(await controller.journal.nodes(node=names) if names else [], following)


def _names(lines: dict[str, T], chosen: Callable[[T], bool], limit: int, cursor: str) -> tuple[list[str], str]:
    after = decode_cursor(cursor, tuple[str])[0] if cursor else ""
    names = sorted(name for name, line in lines.items() if name > after and chosen(line))
    return names[:limit], encode_cursor(names[limit - 1]) if len(names) > limit else ""


async def incidents(
    controller: Controller, *, open_only: bool = False, limit: int, cursor: str = ""
) -> Page[IncidentRecord]:
    """Incidents, newest first."""
    before = decode_cursor(cursor, tuple[float, str]) if cursor else None
    found = await controller.journal.incidents(open_only=open_only, limit=limit + 1, before=before)
    following = encode_cursor(found[limit - 1].opened_at, found[limit - 1].id) if len(found) > limit else ""
    return Page(found[:limit], following)


async def orders(
    controller: Controller, *, incident: str = "", pending_only: bool = False, limit: int, cursor: str = ""
) -> Page[OrderRecord]:
    """Orders, newest first."""
    before = decode_cursor(cursor, tuple[float, str]) if cursor else None
    found = await controller.journal.orders(
        incident=incident, pending_only=pending_only, limit=limit + 1, before=before
    )
    following = encode_cursor(found[limit - 1].issued_at, found[limit - 1].order.id) if len(found) > limit else ""
    return Page(found[:limit], following)


async def audit(controller: Controller, *, limit: int, cursor: str = "", who: str = "") -> Page[Deed]:
    """What people (and drills) did, newest first; `who`: only what this name stands behind."""
    before = decode_cursor(cursor, tuple[int])[0] if cursor else controller.seq + 1
    found: list[Deed] = []
    while len(found) <= limit:
        page = await controller.journal.entries_before(before, kinds=DEEDS, limit=PAGE_MAX if who else limit + 1)
        deeds = [_deed(entry.event, entry.orders) for entry in page]
        found += [deed for deed in deeds if who in {"", deed.who} or (who and deed.who.startswith(f"{who} "))]
        if len(page) < (PAGE_MAX if who else limit + 1):
            break
        before = page[-1].event.seq
    return Page(found[:limit], encode_cursor(found[limit - 1].seq) if len(found) > limit else "")


def _deed(event: e.AnyEvent, orders_given: Sequence[Any]) -> Deed:
    given = tuple(f"{kind_of(order)} {order.id}" for order in orders_given if kind_of(order) not in _QUIET)
    match event:
        case e.OperatorCommand():
            target = event.node or str(event.job or "") or event.order or event.group
            value = " ".join(part for part in (event.remedy, event.value) if part)
            refused = refusal(event.id, orders_given)
            return Deed(event.seq, event.at, event.who, event.command.value, target, value, event.why, refused, given)
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


async def checkpoints(controller: Controller, *, job: str, limit: int, cursor: str = "") -> Page[CheckpointSeen]:
    """Checkpoints that launchers reported, oldest first; `job` empty: of all."""
    after = decode_cursor(cursor, tuple[int])[0] if cursor else 0
    found = await controller.journal.events(after=after, limit=limit + 1, job=job, kind="checkpoint_saved")
    lines = [
        CheckpointSeen(one.job, one.attempt, one.step, one.durable, one.at, one.seq, one.path, one.took_s)
        for one in found[:limit]
        if isinstance(one, e.CheckpointSaved)
    ]
    return Page(lines, encode_cursor(found[limit - 1].seq) if len(found) > limit else "")


async def findings(
    controller: Controller, *, job: str = "", node: str = "", incident: str = "", limit: int, cursor: str = ""
) -> Page[e.FindingSeen]:
    """Findings as they came in, oldest first."""
    after = decode_cursor(cursor, tuple[int])[0] if cursor else 0
    found = await controller.journal.events(
        after=after, limit=limit + 1, job=job, node=node, incident=incident, kind="finding_seen"
    )
    lines = [one for one in found[:limit] if isinstance(one, e.FindingSeen)]
    return Page(lines, encode_cursor(found[limit - 1].seq) if len(found) > limit else "")

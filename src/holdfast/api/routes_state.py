"""What can be read: jobs, nodes, incidents, orders, findings, checkpoints, the audit, events, samples.

All from the journal, open to all viewers; a token with a scope is shown its part alone (`tenants.py`). A list gives one
page; `Link: <...>; rel="next"` leads to the next one.
A record carries its entity tag, by which a command can say which state of it a person has seen (`If-Match`), and a
reader can ask for it only when it has changed (`If-None-Match`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial
from typing import Annotated, Any, TypeVar
from urllib.parse import urlencode

from litestar import Request, Response, get
from litestar.datastructures import State
from litestar.exceptions import HTTPException
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath, FromQuery, QueryParameter
from msgspec import Struct

from holdfast.api import reads
from holdfast.api.auth import SCOPED, Role, needs
from holdfast.api.operate import etag_of
from holdfast.api.tenants import scope_of
from holdfast.api.whole import WholeState
from holdfast.controller import Controller
from holdfast.errors import NotFoundError
from holdfast.model.answers import (
    Attempt,
    CheckpointSeen,
    Deed,
    DrillSeen,
    EventsAnswer,
    IncidentAnswer,
    JobAnswer,
    NodeAnswer,
    OrderAnswer,
    SamplesAnswer,
    StateAnswer,
)
from holdfast.model.events import AnyEvent, CheckpointSaved, DrillFired, FindingSeen, PolicyLoaded
from holdfast.model.records import BrakeRecord, IncidentRecord, JobRecord, NodeRecord, OrderRecord
from holdfast.ports import Journal

T = TypeVar("T")

EVENTS_MAX = 1000
EVENTS_BESIDE = 1000
"""Events that come with a single record: its newest."""
ORDERS_BESIDE = 1000
WAIT_S_MAX = 60.0
SEQ_MAX = 2**62

Limit = Annotated[int, QueryParameter(ge=1, le=EVENTS_MAX, description="Records of one page.")]
After = Annotated[int, QueryParameter(ge=0, le=SEQ_MAX, description="Sequence number of the newest event you have.")]
Cursor = Annotated[str, QueryParameter(max_length=1000, description="From the `next` link of the page before.")]
Name = Annotated[str, QueryParameter(max_length=256)]
Wait = Annotated[float, QueryParameter(ge=0.0, le=WAIT_S_MAX, description="Seconds to wait for the next event.")]
Asked = Request[Any, Any, State]

read = partial(get, guards=[needs(Role.VIEWER)], tags=["read"], opt=SCOPED)
"""Every route made with it shows a token with a scope that scope alone: tests/attack walks them all."""


def _paged(request: Asked, items: list[T], following: str) -> Response[list[T]]:
    headers = {}
    if following:
        query = [(key, value) for key, value in request.query_params.multi_items() if key != "cursor"]
        headers["Link"] = f'<{request.url.path}?{urlencode([*query, ("cursor", following)])}>; rel="next"'
    return Response(items, headers=headers)


def _by_name(names: Iterable[str], limit: int, cursor: str) -> reads.Page[str]:
    after = reads.decode_cursor(cursor, tuple[str])[0] if cursor else ""
    return reads.page_of(sorted(name for name in names if name > after), limit, lambda name: (name,))


def _before(cursor: str) -> tuple[float, str] | None:
    return reads.decode_cursor(cursor, tuple[float, str]) if cursor else None


async def _told(request: Asked, of: type[T], limit: int, cursor: str, **where: Any) -> reads.Page[T]:
    """Events of a kind, oldest first."""
    after = reads.decode_cursor(cursor, tuple[int])[0] if cursor else 0
    found = await reads.events(_journal(request), scope_of(request), after=after, limit=limit + 1, **where)
    page = reads.page_of(found, limit, lambda one: (one.seq,))
    return reads.Page([one for one in page.items if isinstance(one, of)], page.next)


async def _beside(request: Asked, **where: Any) -> list[AnyEvent]:
    """The newest events about a single record."""
    return (await reads.newest_events(_journal(request), scope_of(request), limit=EVENTS_BESIDE, **where))[::-1]


def _journal(request: Asked) -> Journal:
    found: Journal = request.app.state.controller.journal
    return found


async def _job(request: Asked, job: str) -> JobRecord:
    """The newest job of this name, where whoever asks may see it: one that is kept from them is as one that is not."""
    return _newest(scope_of(request).jobs(await _journal(request).jobs(job=job)), "job", job)


def _newest(found: list[T], what: str, name: str) -> T:
    if not found:
        raise NotFoundError(f"no {what} {name!r}")
    return found[-1]


def _tagged(request: Asked, record: Struct, answer: T) -> Response[T]:
    tag = etag_of(record)
    if tag in [one.strip() for one in request.headers.get("if-none-match", "").split(",")]:
        raise _UnchangedError(tag)
    return Response(answer, headers={"ETag": tag})


class _UnchangedError(HTTPException):
    """The reader has this state already."""

    def __init__(self, tag: str) -> None:
        super().__init__(status_code=304, headers={"ETag": tag})


@read("/state", responses={200: ResponseSpec(StateAnswer, description="Everything at a glance.")})
async def whole_state(request: Asked) -> Response[Any]:
    """Jobs, nodes, incidents and brakes: all of them, so large on a large cluster; the lists come in pages."""
    whole: WholeState = request.app.state.whole
    scope = scope_of(request)
    if scope.is_whole:
        return Response(await whole.json(), media_type="application/json")
    return Response(await whole.part(scope))


@read("/events")
async def events(
    request: Asked,
    *,
    after: After = 0,
    wait: Wait = 0.0,
    limit: Limit = EVENTS_MAX,
    incident: Name = "",
    job: Name = "",
    node: Name = "",
    kind: Name = "",
) -> EventsAnswer:
    """Events after `after`, oldest first; with none to give, waits up to `wait` seconds for the next commit."""
    controller: Controller = request.app.state.controller
    scope = scope_of(request)
    asked = {"incident": incident, "job": job, "node": node, "kind": kind}
    chosen = {name: value for name, value in asked.items() if value}
    until = controller.clock.monotonic() + wait
    while True:
        left_s = max(0.0, until - controller.clock.monotonic())
        found = await controller.events_after(after, limit=1 if chosen else limit, wait_s=left_s)
        seen, last = scope.events(found), found[-1].seq if found else after
        if chosen and found:
            newest = controller.seq
            seen = await reads.events(controller.journal, scope, after=after, limit=limit, **chosen)
            last = seen[-1].seq if len(seen) == limit else newest
        if seen or last == after:
            return EventsAnswer(last, seen)
        after = last


@read("/jobs")
async def jobs(
    request: Asked,
    *,
    limit: Limit = EVENTS_MAX,
    cursor: Cursor = "",
    job_state: Annotated[str, QueryParameter(name="state", max_length=64)] = "",
    user: Name = "",
    partition: Name = "",
) -> Response[list[JobRecord]]:
    """Jobs by id; `state` is that of their recovery."""
    scope = scope_of(request)
    names = [
        name
        for name, line in request.app.state.fleet.jobs.items()
        if job_state in {"", line.state} and user in {"", line.user} and partition in {"", line.partition}
        if scope.has_job(name)
    ]
    page = _by_name(names, limit, cursor)
    journal = _journal(request)
    return _paged(request, scope.jobs(await journal.jobs(job=page.items)) if page.items else [], page.next)


@read("/jobs/{job:str}")
async def one_job(request: Asked, job: FromPath[str]) -> Response[JobAnswer]:
    """One job, `1778` or `1778#2`, with its newest events."""
    record = await _job(request, job)
    return _tagged(request, record, JobAnswer(record, await _beside(request, job=job)))


@read("/jobs/{job:str}/attempts")
async def attempts(request: Asked, job: FromPath[str]) -> list[Attempt]:
    """The attempts of a job, `1778(0)`, `1778(1)`..., oldest first."""
    record = await _job(request, job)
    return [Attempt(record.key, f"{record.key}({one.number})", one) for one in record.attempts]


@read("/jobs/{job:str}/checkpoints")
async def checkpoints(
    request: Asked, job: FromPath[str], limit: Limit = EVENTS_MAX, cursor: Cursor = ""
) -> Response[list[CheckpointSeen]]:
    """Checkpoints of a job as its launchers reported them, oldest first."""
    page = await _told(request, CheckpointSaved, limit, cursor, job=job, kind="checkpoint_saved")
    seen = [
        CheckpointSeen(one.job, one.attempt, one.step, one.durable, one.at, one.seq, one.path, one.took_s)
        for one in page.items
    ]
    return _paged(request, seen, page.next)


@read("/nodes")
async def nodes(
    request: Asked,
    *,
    limit: Limit = EVENTS_MAX,
    cursor: Cursor = "",
    node_state: Annotated[str, QueryParameter(name="state", max_length=64)] = "",
    group: Name = "",
) -> Response[list[NodeRecord]]:
    """Nodes by name; `state` is that of their recovery."""
    scope = scope_of(request)
    names = [
        name
        for name, line in request.app.state.fleet.nodes.items()
        if node_state in {"", line.state} and group in {"", line.group}
        if scope.is_whole or any(scope.has_job(job) for job in line.jobs)
    ]
    page = _by_name(names, limit, cursor)
    found = await _journal(request).nodes(node=page.items) if page.items else []
    return _paged(request, scope.nodes(found), page.next)


@read("/nodes/{node:str}")
async def one_node(request: Asked, node: FromPath[str]) -> Response[NodeAnswer]:
    """One node with its newest events."""
    record = _newest(scope_of(request).nodes(await _journal(request).nodes(node=node)), "node", node)
    return _tagged(request, record, NodeAnswer(record, await _beside(request, node=node)))


@read("/incidents")
async def incidents(
    request: Asked,
    *,
    open_only: FromQuery[bool] = False,
    job: Name = "",
    node: Name = "",
    limit: Limit = 100,
    cursor: Cursor = "",
) -> Response[list[IncidentRecord]]:
    """Incidents, newest first; of a job, of a node."""
    where = {"open_only": open_only, "job": job, "node": node}
    journal, scope = _journal(request), scope_of(request)
    found = await reads.incidents(journal, scope, limit=limit + 1, before=_before(cursor), **where)
    page = reads.page_of(found, limit, reads.mark_of)
    return _paged(request, page.items, page.next)


@read("/incidents/{incident:str}")
async def one_incident(request: Asked, incident: FromPath[str]) -> Response[IncidentAnswer]:
    """One incident with its orders and its newest events."""
    journal, scope = _journal(request), scope_of(request)
    record = _newest(scope.incidents(await journal.incidents(incident=incident)), "incident", incident)
    beside = await _beside(request, incident=incident)
    orders = await reads.orders(journal, scope, limit=ORDERS_BESIDE, incident=incident)
    return _tagged(request, record, IncidentAnswer(record, orders, beside))


@read("/orders")
async def orders(
    request: Asked,
    *,
    incident: Name = "",
    job: Name = "",
    node: Name = "",
    pending_only: FromQuery[bool] = False,
    limit: Limit = 100,
    cursor: Cursor = "",
) -> Response[list[OrderRecord]]:
    """Orders, newest first; `pending_only`: without an outcome, that is proposed or under way."""
    where = {"incident": incident, "job": job, "node": node, "pending_only": pending_only}
    journal, scope = _journal(request), scope_of(request)
    found = await reads.orders(journal, scope, limit=limit + 1, before=_before(cursor), **where)
    page = reads.page_of(found, limit, reads.mark_of)
    return _paged(request, page.items, page.next)


@read("/orders/{order:str}")
async def one_order(request: Asked, order: FromPath[str]) -> Response[OrderAnswer]:
    """One order."""
    record = _newest(scope_of(request).orders(await _journal(request).orders(order=order)), "order", order)
    return _tagged(request, record, OrderAnswer(record))


@read("/findings")
async def findings(
    request: Asked,
    *,
    incident: Name = "",
    job: Name = "",
    node: Name = "",
    limit: Limit = 100,
    cursor: Cursor = "",
) -> Response[list[FindingSeen]]:
    """Findings as they came in, oldest first."""
    where = {"job": job, "node": node, "incident": incident, "kind": "finding_seen"}
    page = await _told(request, FindingSeen, limit, cursor, **where)
    return _paged(request, page.items, page.next)


@read("/drills")
async def drills(request: Asked, limit: Limit = 100) -> list[DrillSeen]:
    """Faults that drills injected, newest first, and what Holdfast made of them."""
    fired = await reads.newest_events(_journal(request), scope_of(request), kind="drill_fired", limit=limit)
    known = {one.drill: (one.id, one.outcome) for one in request.app.state.fleet.incidents.values() if one.drill}
    return [
        DrillSeen(one.drill, one.kind, one.at, one.seq, one.node, str(one.job or ""), *known.get(one.drill, ("", "")))
        for one in fired
        if isinstance(one, DrillFired)
    ]


@get("/policies", guards=[needs(Role.VIEWER)], tags=["read"])
async def policies(request: Asked, limit: Limit = 20) -> list[PolicyLoaded]:
    """Policies that were loaded, newest first; the first is the one that holds. Empty: the built-in defaults hold.

    They are about the whole cluster: a token with a scope is refused.
    """
    found = await _journal(request).events(kind="policy_loaded", limit=limit, newest=True)
    return [one for one in reversed(found) if isinstance(one, PolicyLoaded)]


@read("/audit")
async def audit(request: Asked, who: Name = "", limit: Limit = 100, cursor: Cursor = "") -> Response[list[Deed]]:
    """What people did, newest first: who, what, why, and what came of it."""
    controller: Controller = request.app.state.controller
    page = await reads.audit(controller, scope_of(request), who=who, limit=limit, cursor=cursor)
    return _paged(request, page.items, page.next)


@get("/brakes", guards=[needs(Role.VIEWER)], tags=["read"])
async def brakes(request: Asked) -> list[BrakeRecord]:
    """The quarantine brake of every group, and what rests on one reporter's word there (`[trust]` of the policy).

    They are about the whole cluster: a token with a scope is refused.
    """
    return await _journal(request).brakes()


@read("/samples")
async def samples(
    request: Asked,
    series: Annotated[str, QueryParameter(max_length=256)],
    subject: Name = "",
    after: Annotated[float, QueryParameter(ge=0.0, le=1e12)] = 0.0,
) -> SamplesAnswer:
    """Points of a series; `subject` may end in `*`."""
    found = await _journal(request).samples(series, subject, after=after)
    scope = scope_of(request)
    points = [
        (one.subject, one.at, one.value if math.isfinite(one.value) else None)
        for one in found
        if scope.has_subject(one.subject)
    ]
    return SamplesAnswer(series, points)


HANDLERS = [one for one in vars().values() if isinstance(one, HTTPRouteHandler)]

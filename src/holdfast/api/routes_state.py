"""What can be read: jobs, nodes, incidents, orders, findings, checkpoints, the audit, events, samples.

All from the journal, open to all viewers. A list gives one page; `Link: <...>; rel="next"` leads to the next one.
A record carries its entity tag, by which a command can say which state of it a person has seen (`If-Match`), and a
reader can ask for it only when it has changed (`If-None-Match`).
"""

from __future__ import annotations

import math
from typing import Annotated, Any, TypeVar
from urllib.parse import urlencode

from litestar import Request, Response, get
from litestar.datastructures import State
from litestar.exceptions import HTTPException
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath, FromQuery, QueryParameter
from msgspec import Struct

from holdfast.api import reads
from holdfast.api.auth import Role, needs
from holdfast.api.operate import etag_of
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
from holdfast.model.events import FindingSeen, PolicyLoaded
from holdfast.model.records import BrakeRecord, IncidentRecord, JobRecord, NodeRecord, OrderRecord

T = TypeVar("T")

EVENTS_MAX = 1000
EVENTS_BESIDE = 1000
"""Events that come with a single record: its newest."""
WAIT_S_MAX = 60.0
SEQ_MAX = 2**62

Limit = Annotated[int, QueryParameter(ge=1, le=EVENTS_MAX, description="Records of one page.")]
After = Annotated[int, QueryParameter(ge=0, le=SEQ_MAX, description="Sequence number of the newest event you have.")]
Cursor = Annotated[str, QueryParameter(max_length=1000, description="From the `next` link of the page before.")]
Name = Annotated[str, QueryParameter(max_length=256)]
Wait = Annotated[float, QueryParameter(ge=0.0, le=WAIT_S_MAX, description="Seconds to wait for the next event.")]


_viewer = [needs(Role.VIEWER)]


def _paged(request: Request[Any, Any, Any], page: reads.Page[T]) -> Response[list[T]]:
    headers = {}
    if page.next:
        query = [(key, value) for key, value in request.query_params.multi_items() if key != "cursor"]
        headers["Link"] = f'<{request.url.path}?{urlencode([*query, ("cursor", page.next)])}>; rel="next"'
    return Response(page.items, headers=headers)


def _tagged(request: Request[Any, Any, Any], record: Struct, answer: T) -> Response[T]:
    tag = etag_of(record)
    if tag in [one.strip() for one in request.headers.get("if-none-match", "").split(",")]:
        raise _UnchangedError(tag)
    return Response(answer, headers={"ETag": tag})


class _UnchangedError(HTTPException):
    """The reader has this state already."""

    def __init__(self, tag: str) -> None:
        super().__init__(status_code=304, headers={"ETag": tag})


@get(
    "/state",
    guards=_viewer,
    tags=["read"],
    responses={200: ResponseSpec(StateAnswer, description="Everything at a glance.")},
)
async def whole_state(state: State) -> Response[bytes]:
    """Jobs, nodes, incidents and brakes: all of them, so large on a large cluster; the lists come in pages."""
    whole: WholeState = state.whole
    return Response(await whole.json(), media_type="application/json")


@get("/events", guards=_viewer, tags=["read"])
async def events(
    state: State,
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
    controller: Controller = state.controller
    if incident or job or node or kind:
        if wait and controller.seq <= after:
            await controller.events_after(after, limit=1, wait_s=wait)
        last = controller.seq
        found = await controller.journal.events(
            after=after, limit=limit, incident=incident, job=job, node=node, kind=kind
        )
        return EventsAnswer(found[-1].seq if len(found) == limit else max(after, last), found)
    found = await controller.events_after(after, limit=limit, wait_s=wait)
    return EventsAnswer(found[-1].seq if found else after, found)


@get("/jobs", guards=_viewer, tags=["read"])
async def jobs(
    request: Request[Any, Any, State],
    *,
    limit: Limit = EVENTS_MAX,
    cursor: Cursor = "",
    job_state: Annotated[str, QueryParameter(name="state", max_length=64)] = "",
    user: Name = "",
    partition: Name = "",
) -> Response[list[JobRecord]]:
    """Jobs by id; `state` is that of their recovery."""
    app = request.app.state
    page = await reads.jobs(
        app.controller,
        app.fleet,
        lambda line: job_state in {"", line.state} and user in {"", line.user} and partition in {"", line.partition},
        limit=limit,
        cursor=cursor,
    )
    return _paged(request, page)


@get("/jobs/{job:str}", guards=_viewer, tags=["read"])
async def one_job(request: Request[Any, Any, State], state: State, job: FromPath[str]) -> Response[JobAnswer]:
    """One job, `1778` or `1778#2`, with its newest events."""
    journal = state.controller.journal
    found = await journal.jobs(job=job)
    if not found:
        raise NotFoundError(f"no job {job!r}")
    beside = await journal.events(job=job, limit=EVENTS_BESIDE, newest=True)
    return _tagged(request, found[-1], JobAnswer(found[-1], beside))


@get("/jobs/{job:str}/attempts", guards=_viewer, tags=["read"])
async def attempts(state: State, job: FromPath[str]) -> list[Attempt]:
    """The attempts of a job, `1778(0)`, `1778(1)`..., oldest first."""
    found = await state.controller.journal.jobs(job=job)
    if not found:
        raise NotFoundError(f"no job {job!r}")
    record: JobRecord = found[-1]
    return [Attempt(record.key, f"{record.key}({one.number})", one) for one in record.attempts]


@get("/jobs/{job:str}/checkpoints", guards=_viewer, tags=["read"])
async def checkpoints(
    request: Request[Any, Any, State], job: FromPath[str], limit: Limit = EVENTS_MAX, cursor: Cursor = ""
) -> Response[list[CheckpointSeen]]:
    """Checkpoints of a job as its launchers reported them, oldest first."""
    return _paged(request, await reads.checkpoints(request.app.state.controller, job=job, limit=limit, cursor=cursor))


@get("/nodes", guards=_viewer, tags=["read"])
async def nodes(
    request: Request[Any, Any, State],
    *,
    limit: Limit = EVENTS_MAX,
    cursor: Cursor = "",
    node_state: Annotated[str, QueryParameter(name="state", max_length=64)] = "",
    group: Name = "",
) -> Response[list[NodeRecord]]:
    """Nodes by name; `state` is that of their recovery."""
    app = request.app.state
    page = await reads.nodes(
        app.controller,
        app.fleet,
        lambda line: node_state in {"", line.state} and group in {"", line.group},
        limit=limit,
        cursor=cursor,
    )
    return _paged(request, page)


@get("/nodes/{node:str}", guards=_viewer, tags=["read"])
async def one_node(request: Request[Any, Any, State], state: State, node: FromPath[str]) -> Response[NodeAnswer]:
    """One node with its newest events."""
    journal = state.controller.journal
    found = await journal.nodes(node=node)
    if not found:
        raise NotFoundError(f"no node {node!r}")
    beside = await journal.events(node=node, limit=EVENTS_BESIDE, newest=True)
    return _tagged(request, found[0], NodeAnswer(found[0], beside))


@get("/incidents", guards=_viewer, tags=["read"])
async def incidents(
    request: Request[Any, Any, State], open_only: FromQuery[bool] = False, limit: Limit = 100, cursor: Cursor = ""
) -> Response[list[IncidentRecord]]:
    """Incidents, newest first."""
    controller = request.app.state.controller
    return _paged(request, await reads.incidents(controller, open_only=open_only, limit=limit, cursor=cursor))


@get("/incidents/{incident:str}", guards=_viewer, tags=["read"])
async def one_incident(
    request: Request[Any, Any, State], state: State, incident: FromPath[str]
) -> Response[IncidentAnswer]:
    """One incident with its orders and its newest events."""
    journal = state.controller.journal
    found = await journal.incidents(incident=incident)
    if not found:
        raise NotFoundError(f"no incident {incident!r}")
    beside = await journal.events(incident=incident, limit=EVENTS_BESIDE, newest=True)
    return _tagged(request, found[0], IncidentAnswer(found[0], await journal.orders(incident=incident), beside))


@get("/orders", guards=_viewer, tags=["read"])
async def orders(
    request: Request[Any, Any, State],
    *,
    incident: Name = "",
    pending_only: FromQuery[bool] = False,
    limit: Limit = 100,
    cursor: Cursor = "",
) -> Response[list[OrderRecord]]:
    """Orders, newest first."""
    controller = request.app.state.controller
    page = await reads.orders(controller, incident=incident, pending_only=pending_only, limit=limit, cursor=cursor)
    return _paged(request, page)


@get("/orders/{order:str}", guards=_viewer, tags=["read"])
async def one_order(request: Request[Any, Any, State], state: State, order: FromPath[str]) -> Response[OrderAnswer]:
    """One order."""
    found = await state.controller.journal.orders(order=order)
    if not found:
        raise NotFoundError(f"no order {order!r}")
    return _tagged(request, found[0], OrderAnswer(found[0]))


@get("/findings", guards=_viewer, tags=["read"])
async def findings(
    request: Request[Any, Any, State],
    *,
    incident: Name = "",
    job: Name = "",
    node: Name = "",
    limit: Limit = 100,
    cursor: Cursor = "",
) -> Response[list[FindingSeen]]:
    """Findings as they came in, oldest first."""
    page = await reads.findings(
        request.app.state.controller, job=job, node=node, incident=incident, limit=limit, cursor=cursor
    )
    return _paged(request, page)


@get("/drills", guards=_viewer, tags=["read"])
async def drills(state: State, limit: Limit = 100) -> list[DrillSeen]:
    """Faults that drills injected, newest first, and what Holdfast made of them."""
    controller: Controller = state.controller
    fired = await controller.journal.events(kind="drill_fired", limit=limit, newest=True)
    known = {one.drill: one for one in state.fleet.incidents.values() if one.drill}
    found = []
    for one in reversed(fired):
        incident = known.get(getattr(one, "drill", ""))
        found.append(
            DrillSeen(
                getattr(one, "drill", ""),
                getattr(one, "kind", ""),
                one.at,
                one.seq,
                getattr(one, "node", ""),
                str(getattr(one, "job", None) or ""),
                incident.id if incident is not None else "",
                incident.outcome if incident is not None else "",
            )
        )
    return found


@get("/policies", guards=_viewer, tags=["read"])
async def policies(state: State, limit: Limit = 20) -> list[PolicyLoaded]:
    """Policies that were loaded, newest first; the first is the one that holds. Empty: the built-in defaults hold."""
    found = await state.controller.journal.events(kind="policy_loaded", limit=limit, newest=True)
    return list(reversed(found))


@get("/audit", guards=_viewer, tags=["read"])
async def audit(
    request: Request[Any, Any, State], who: Name = "", limit: Limit = 100, cursor: Cursor = ""
) -> Response[list[Deed]]:
    """What people did, newest first: who, what, why, and what came of it."""
    return _paged(request, await reads.audit(request.app.state.controller, who=who, limit=limit, cursor=cursor))


@get("/brakes", guards=_viewer, tags=["read"])
async def brakes(state: State) -> list[BrakeRecord]:
    """The quarantine brake of every group."""
    found: list[BrakeRecord] = await state.controller.journal.brakes()
    return found


@get("/samples", guards=_viewer, tags=["read"])
async def samples(
    state: State,
    series: Annotated[str, QueryParameter(max_length=256)],
    subject: Name = "",
    after: Annotated[float, QueryParameter(ge=0.0, le=1e12)] = 0.0,
) -> SamplesAnswer:
    """Points of a series; `subject` may end in `*`."""
    found = await state.controller.journal.samples(series, subject, after=after)
    points = [(one.subject, one.at, one.value if math.isfinite(one.value) else None) for one in found]
    return SamplesAnswer(series, points)


HANDLERS = [
    whole_state,
    events,
    jobs,
    one_job,
    attempts,
    checkpoints,
    nodes,
    one_node,
    incidents,
    one_incident,
    orders,
    one_order,
    findings,
    drills,
    policies,
    audit,
    brakes,
    samples,
]

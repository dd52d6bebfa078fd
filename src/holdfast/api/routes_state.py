"""What can be read: jobs, nodes, incidents, orders, events, samples. All from the journal, open to all viewers."""

from __future__ import annotations

import math
from typing import Annotated

from litestar import get
from litestar.datastructures import State
from litestar.params import FromPath, FromQuery, QueryParameter
from msgspec import Struct

from holdfast.api.auth import Role, needs
from holdfast.controller import Controller, Health
from holdfast.errors import NotFoundError
from holdfast.model.events import AnyEvent
from holdfast.model.records import BrakeRecord, IncidentRecord, JobRecord, NodeRecord, OrderRecord

EVENTS_MAX = 1000
WAIT_S_MAX = 60.0
INCIDENTS_IN_STATE = 100

Limit = Annotated[int, QueryParameter(ge=1, le=EVENTS_MAX)]
After = Annotated[int, QueryParameter(ge=0)]


class StateAnswer(Struct, frozen=True):
    """Everything at a glance. Records may be newer than `seq`, never older."""

    seq: int
    health: Health
    jobs: list[JobRecord]
    nodes: list[NodeRecord]
    incidents: list[IncidentRecord]
    """Newest first; all open ones are among them unless there are more than a hundred newer."""
    brakes: list[BrakeRecord]


class EventsAnswer(Struct, frozen=True):
    """Events in order. Ask again with `after` = `last`."""

    last: int
    events: list[AnyEvent]


class SamplesAnswer(Struct, frozen=True):
    """Points of a series in order of time: `[subject, at, value]`; a value of null is NaN."""

    series: str
    points: list[tuple[str, float, float | None]]


class IncidentAnswer(Struct, frozen=True):
    """An incident with its events and orders."""

    record: IncidentRecord
    orders: list[OrderRecord]
    events: list[AnyEvent]


class JobAnswer(Struct, frozen=True):
    """A job with its newest events."""

    record: JobRecord
    events: list[AnyEvent]


class NodeAnswer(Struct, frozen=True):
    """A node with its newest events."""

    record: NodeRecord
    events: list[AnyEvent]


_viewer = [needs(Role.VIEWER)]


@get("/state", guards=_viewer, tags=["read"])
async def whole_state(state: State) -> StateAnswer:
    """Jobs, nodes, incidents and brakes."""
    controller: Controller = state.controller
    journal, seq = controller.journal, controller.seq
    return StateAnswer(
        seq=seq,
        health=controller.health(),
        jobs=await journal.jobs(),
        nodes=await journal.nodes(),
        incidents=await journal.incidents(limit=INCIDENTS_IN_STATE),
        brakes=await journal.brakes(),
    )


@get("/events", guards=_viewer, tags=["read"])
async def events(
    state: State,
    *,
    after: After = 0,
    wait: Annotated[float, QueryParameter(ge=0.0, le=WAIT_S_MAX)] = 0.0,
    limit: Limit = EVENTS_MAX,
    incident: FromQuery[str] = "",
    job: FromQuery[str] = "",
    node: FromQuery[str] = "",
    kind: FromQuery[str] = "",
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
async def jobs(state: State) -> list[JobRecord]:
    """All jobs."""
    found: list[JobRecord] = await state.controller.journal.jobs()
    return found


@get("/jobs/{job:str}", guards=_viewer, tags=["read"])
async def one_job(state: State, job: FromPath[str]) -> JobAnswer:
    """One job, `1778` or `1778#2`, with its events."""
    journal = state.controller.journal
    found = await journal.jobs(job=job)
    if not found:
        raise NotFoundError(f"no job {job!r}")
    return JobAnswer(found[-1], await journal.events(job=job))


@get("/nodes", guards=_viewer, tags=["read"])
async def nodes(state: State) -> list[NodeRecord]:
    """All nodes."""
    found: list[NodeRecord] = await state.controller.journal.nodes()
    return found


@get("/nodes/{node:str}", guards=_viewer, tags=["read"])
async def one_node(state: State, node: FromPath[str]) -> NodeAnswer:
    """One node with its events."""
    journal = state.controller.journal
    found = await journal.nodes(node=node)
    if not found:
        raise NotFoundError(f"no node {node!r}")
    return NodeAnswer(found[0], await journal.events(node=node))


@get("/incidents", guards=_viewer, tags=["read"])
async def incidents(state: State, open_only: FromQuery[bool] = False, limit: Limit = 100) -> list[IncidentRecord]:
    """Incidents, newest first."""
    found: list[IncidentRecord] = await state.controller.journal.incidents(open_only=open_only, limit=limit)
    return found


@get("/incidents/{incident:str}", guards=_viewer, tags=["read"])
async def one_incident(state: State, incident: FromPath[str]) -> IncidentAnswer:
    """One incident with its orders and events."""
    journal = state.controller.journal
    found = await journal.incidents(incident=incident)
    if not found:
        raise NotFoundError(f"no incident {incident!r}")
    return IncidentAnswer(found[0], await journal.orders(incident=incident), await journal.events(incident=incident))


@get("/orders", guards=_viewer, tags=["read"])
async def orders(
    state: State, incident: FromQuery[str] = "", pending_only: FromQuery[bool] = False, limit: Limit = 100
) -> list[OrderRecord]:
    """Orders, newest first."""
    journal = state.controller.journal
    found: list[OrderRecord] = await journal.orders(incident=incident, pending_only=pending_only, limit=limit)
    return found


@get("/brakes", guards=_viewer, tags=["read"])
async def brakes(state: State) -> list[BrakeRecord]:
    """The quarantine brake of every group."""
    found: list[BrakeRecord] = await state.controller.journal.brakes()
    return found


@get("/samples", guards=_viewer, tags=["read"])
async def samples(
    state: State,
    series: FromQuery[str],
    subject: FromQuery[str] = "",
    after: Annotated[float, QueryParameter(ge=0.0)] = 0.0,
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
    nodes,
    one_node,
    incidents,
    one_incident,
    orders,
    brakes,
    samples,
]

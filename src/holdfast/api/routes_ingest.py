"""What comes in: events and beats of agents and launchers, commands of operators.

An answer means: it is on disk. A source may send the same batch again; ids make it harmless. Agents and launchers may
say only what they can know: never an operator's word, never the controller's own events.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import structlog
from litestar import Request, post
from litestar.datastructures import State
from litestar.exceptions import HTTPException
from litestar.params import JSONBody, QueryParameter
from litestar.status_codes import HTTP_200_OK, HTTP_408_REQUEST_TIMEOUT
from msgspec import Raw, structs

from holdfast.api.auth import Identity, Role, needs
from holdfast.api.operate import CommandAnswer, CommandRequest, operate
from holdfast.api.own_job import LAUNCHER, OwnJob
from holdfast.controller import Controller
from holdfast.controller.state import ShellState
from holdfast.errors import LinkError, RefusedError, WireError
from holdfast.model import events as e
from holdfast.model.cluster import JobKey
from holdfast.model.wire import Batch, Beat, BeatAnswer, IngestAnswer, check_version, decode, decode_event, kind_of

EVENTS_MAX = 1000
BEAT_WAIT_S_MAX = 30.0
TEXT_MAX = 256
REFUSED_SHOWN = 10

FROM_SOURCES = (
    e.LauncherAttached,
    e.LauncherLapsed,
    e.AttemptStarted,
    e.AttemptEnded,
    e.FirstStepDone,
    e.CheckpointSaved,
    e.StepReached,
    e.StacksCaptured,
    e.Escalated,
    e.FindingSeen,
    e.FindingCleared,
    e.AgentAttached,
    e.NodeGone,
    e.NodeValidated,
    e.OrderDone,
    e.OrderFailed,
    e.DrillFired,
)
"""Events that agents, launchers and drills may send."""
SOURCES = ("agent:", "launcher:", "drill:")
BODY_WAIT_S = 30.0
"""A body that trickles in for longer than this is given up."""
COMMAND_MAX = 64 * 1024
"""Bytes of one command."""

_log = structlog.get_logger("holdfast.api")


@post("/ingest", guards=[needs(Role.AGENT)], status_code=HTTP_200_OK, tags=["report"])
async def ingest(request: Request[Any, Any, State], state: State) -> IngestAnswer:
    """Take in a batch of events; answers after the commit. Events that can never be taken are named in `refused`."""
    batch = decode(await _body(request), Batch)
    check_version(batch.version)
    _check_source(request.state.identity, batch.source)
    if len(batch.events) > EVENTS_MAX:
        raise WireError(f"{len(batch.events)} events in one batch: send at most {EVENTS_MAX}")
    controller: Controller = state.controller
    if controller.busy:
        raise LinkError("the controller has more waiting than it can take: come back later")
    oldest = controller.clock.now() - controller.settings.retain_s
    own = _own_job(controller, request.state.identity)
    futures: list[asyncio.Future[int]] = []
    refused: list[str] = []
    for raw in batch.events:
        try:
            event = _event(raw, batch.source)
            if own is not None:
                await own.check_event(event)
            event = _known(event, controller.shell())
        except (WireError, RefusedError) as error:
            # One event that will never be taken must not keep its neighbours from being stored.
            refused.append(str(error))
            continue
        if event.at < oldest:
            # Ids that old are no longer known: taking it in could do again what was done long ago.
            _log.warning("an event is older than the journal's memory", id=event.id, source=batch.source)
            continue
        futures.append(controller.submit(event))
    outcomes = await asyncio.gather(*futures, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, LinkError):
            raise outcome
    refused += [str(outcome) for outcome in outcomes if isinstance(outcome, BaseException)]
    if refused:
        _log.warning("events were refused", source=batch.source, count=len(refused), first=refused[0])
    stored = sum(not isinstance(outcome, BaseException) for outcome in outcomes)
    return IngestAnswer(seq=controller.seq, stored=stored, refused=refused[:REFUSED_SHOWN])


async def _body(request: Request[Any, Any, State]) -> bytes:
    """The whole body.

    Raises:
        HTTPException: it did not come in time.
    """
    try:
        async with asyncio.timeout(BODY_WAIT_S):
            return await request.body()
    except TimeoutError as error:
        raise HTTPException(
            detail=f"the body did not come within {BODY_WAIT_S:g} s", status_code=HTTP_408_REQUEST_TIMEOUT
        ) from error


def _event(raw: Raw, source: str) -> e.AnyEvent:
    event = decode_event(raw)
    if not isinstance(event, FROM_SOURCES):
        raise RefusedError(f"{source} may not send {kind_of(event)}")
    return structs.replace(event, source=source, seq=0, received_at=0.0)


def _known(event: e.AnyEvent, shell: ShellState) -> e.AnyEvent:
    """The event about the job as the scheduler's adapter knows it, see `ShellState.known_as`."""
    if isinstance(event, e.FindingSeen):
        job = event.finding.job
        key = shell.known_as(job) if job is not None else None
        return event if key == job else structs.replace(event, finding=structs.replace(event.finding, job=key))
    job = getattr(event, "job", None)
    key = shell.known_as(job) if isinstance(job, JobKey) else None
    return event if key is None or key == job else structs.replace(event, job=key)


@post("/beat", guards=[needs(Role.AGENT)], status_code=HTTP_200_OK, tags=["report"])
async def beat(
    request: Request[Any, Any, State],
    state: State,
    wait: Annotated[float, QueryParameter(ge=0.0, le=BEAT_WAIT_S_MAX)] = 0.0,
) -> BeatAnswer:
    """Alive, with samples; answers with the orders for this source, as soon as there are some or `wait` is over."""
    said = decode(await _body(request), Beat)
    check_version(said.version)
    _check_source(request.state.identity, said.source)
    if request.state.identity.only.startswith("agent:") and said.source != f"agent:{said.node}":
        raise RefusedError(f"{said.source} may not beat for node {said.node!r}")
    controller: Controller = state.controller
    if not controller.ready.is_set():
        raise LinkError("the controller is not ready yet")
    own = _own_job(controller, request.state.identity)
    if own is not None:
        await own.check_beat(said)
    return await controller.beat(said, wait_s=wait)


@post(
    "/commands",
    guards=[needs(Role.OWNER)],
    status_code=HTTP_200_OK,
    tags=["operate"],
    request_max_body_size=COMMAND_MAX,
)
async def command(request: Request[Any, Any, State], state: State, data: JSONBody[CommandRequest]) -> CommandAnswer:
    """An operator's word, or an owner's about their own job; journalled with who and why before anything comes of it.

    With `If-Match` (the entity tag of the target's record) it is done only if the target is still as it was seen.
    """
    return await operate(state.controller, request.state.identity, data, if_match=request.headers.get("if-match", ""))


def _check_source(identity: Identity, source: str) -> None:
    if not source.startswith(SOURCES) or len(source) > TEXT_MAX:
        raise WireError(f"source {source[:TEXT_MAX]!r} must begin with agent:, launcher: or drill:")
    if identity.only and identity.only != source:
        raise RefusedError(f"the token of {identity.name!r} may report only as {identity.only}")


def _own_job(controller: Controller, identity: Identity) -> OwnJob | None:
    """What a launcher that is bound to its job is held to."""
    return OwnJob(controller, identity.only) if identity.only.startswith(LAUNCHER) else None


HANDLERS = [ingest, beat, command]

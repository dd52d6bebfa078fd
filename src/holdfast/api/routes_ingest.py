"""What comes in: events and beats of agents and launchers, commands of operators.

An answer means: it is on disk. A source may send the same batch again; ids make it harmless. `authority` says what
each reporter may say; what it may not is named in `refused` and keeps nothing else of the batch back.
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
from msgspec import structs

from holdfast.api.auth import SCOPED, Role, needs
from holdfast.api.authority import Refusals, Reporter
from holdfast.api.operate import operate
from holdfast.api.stored import check_writable, stored
from holdfast.controller import Controller
from holdfast.controller.state import ShellState
from holdfast.errors import LinkError, RefusedError, WireError
from holdfast.model import events as e
from holdfast.model.answers import CommandAnswer, CommandRequest
from holdfast.model.cluster import JobKey
from holdfast.model.wire import Batch, Beat, BeatAnswer, IngestAnswer, check_version, decode, decode_event

EVENTS_MAX = 1000
BEAT_WAIT_S_MAX = 30.0
REFUSED_SHOWN = 10
TURN_EVENTS = 32
"""Events that are checked before others have their turn."""

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
    controller: Controller = state.controller
    if len(batch.events) > EVENTS_MAX:
        raise WireError(f"{len(batch.events)} events in one batch: send at most {EVENTS_MAX}")
    if controller.busy:
        raise LinkError("the controller has more waiting than it can take: come back later")
    check_writable(controller)
    reporter = await _reporter(request, state, batch.source)
    checked: list[e.AnyEvent] = []
    refused: list[str] = []
    too_early: LinkError | None = None
    for number, raw in enumerate(batch.events):
        if number % TURN_EVENTS == TURN_EVENTS - 1:
            await asyncio.sleep(0)  # a large batch must not hold up the beats of others
        try:
            event = structs.replace(decode_event(raw), source=batch.source, seq=0, received_at=0.0)
            event = await reporter.check_event(event)
        except (WireError, RefusedError) as error:
            # One event that will never be taken must not keep its neighbours from being stored.
            refused.append(str(error))
            continue
        except LinkError as error:
            too_early = error
            break
        checked.append(event)
    if refused:
        _refusals(state).add(controller, batch.source, refused)
    # In parallel: claims about many nodes are answered in the time of one.
    taken = await asyncio.gather(*(_taken(controller, event) for event in checked))
    outcomes = await stored(controller, [event for event in taken if event is not None])
    for outcome in (too_early, *outcomes):
        if isinstance(outcome, LinkError):
            raise outcome
    failed = [str(outcome) for outcome in outcomes if isinstance(outcome, BaseException)]
    if failed:
        _log.warning("events could not be taken", source=batch.source, count=len(failed), first=failed[0])
    return IngestAnswer(
        seq=controller.seq, stored=len(outcomes) - len(failed), refused=[*refused, *failed][:REFUSED_SHOWN]
    )


async def _reporter(request: Request[Any, Any, State], state: State, source: str) -> Reporter:
    """Who reports, once it is known to be somebody.

    Raises:
        WireError, RefusedError, LinkError: as `Reporter` does.
    """
    try:
        reporter = Reporter(state.controller, request.state.identity, source)
        await reporter.check_itself()
    except RefusedError as error:
        _refusals(state).add(state.controller, source, [str(error)])
        raise
    return reporter


def _refusals(state: State) -> Refusals:
    found: Refusals = state.refusals
    return found


async def _taken(controller: Controller, event: e.AnyEvent) -> e.AnyEvent | None:
    """The event as it goes to the engine; None: it does not."""
    if event.at < controller.clock.now() - controller.settings.retain_s:
        # Ids that old are no longer known: taking it in could do again what was done long ago.
        _log.warning("an event is older than the journal's memory", id=event.id, source=event.source)
        return None
    if isinstance(event, e.NodeGone):
        return await controller.claims.confirmed(event)
    return _known(event, controller.shell())


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
    controller: Controller = state.controller
    if not controller.ready.is_set():
        raise LinkError("the controller is not ready yet")
    reporter = await _reporter(request, state, said.source)
    try:
        said = await reporter.check_beat(said)
    except RefusedError as error:
        _refusals(state).add(controller, said.source, [str(error)])
        raise
    return await controller.beat(said, wait_s=wait)


@post(
    "/commands",
    guards=[needs(Role.OWNER)],
    status_code=HTTP_200_OK,
    tags=["operate"],
    request_max_body_size=COMMAND_MAX,
    opt=SCOPED,
)
async def command(request: Request[Any, Any, State], state: State, data: JSONBody[CommandRequest]) -> CommandAnswer:
    """An operator's word, or an owner's about their own job; journalled with who and why before anything comes of it.

    With `If-Match` (the entity tag of the target's record) it is done only if the target is still as it was seen.
    """
    return await operate(state.controller, request.state.identity, data, if_match=request.headers.get("if-match", ""))


HANDLERS = [ingest, beat, command]

"""What comes in: events and beats of agents and launchers, commands of operators.

An answer means: it is on disk. A source may send the same batch again; ids make it harmless. What is done with a batch
or a beat once it is read is in `reports`.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from litestar import Request, post
from litestar.datastructures import State
from litestar.exceptions import HTTPException
from litestar.params import JSONBody, QueryParameter
from litestar.status_codes import HTTP_200_OK, HTTP_408_REQUEST_TIMEOUT

from holdfast.api.auth import SCOPED, Role, needs
from holdfast.api.operate import operate
from holdfast.api.reports import take_batch, take_beat
from holdfast.model.answers import CommandAnswer, CommandRequest
from holdfast.model.wire import Batch, Beat, BeatAnswer, IngestAnswer, check_version, decode

BEAT_WAIT_S_MAX = 30.0
BODY_WAIT_S = 30.0
"""A body that trickles in for longer than this is given up."""
COMMAND_MAX = 64 * 1024
"""Bytes of one command."""


@post("/ingest", guards=[needs(Role.AGENT)], status_code=HTTP_200_OK, tags=["report"])
async def ingest(request: Request[Any, Any, State], state: State) -> IngestAnswer:
    """Take in a batch of events; answers after the commit. Events that can never be taken are named in `refused`."""
    batch = decode(await _body(request), Batch)
    check_version(batch.version)
    return await take_batch(state.controller, request.state.identity, batch, state.refusals)


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


@post("/beat", guards=[needs(Role.AGENT)], status_code=HTTP_200_OK, tags=["report"])
async def beat(
    request: Request[Any, Any, State],
    state: State,
    wait: Annotated[float, QueryParameter(ge=0.0, le=BEAT_WAIT_S_MAX)] = 0.0,
) -> BeatAnswer:
    """Alive, with samples; answers with the orders for this source, as soon as there are some or `wait` is over."""
    said = decode(await _body(request), Beat)
    check_version(said.version)
    return await take_beat(state.controller, request.state.identity, said, state.refusals, wait_s=wait)


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
    seen = request.headers.get("if-match", "")
    return await operate(state.controller, request.state.identity, data, if_match=seen, tokens=state.tokens)


HANDLERS = [ingest, beat, command]

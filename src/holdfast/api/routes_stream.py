"""`/v1/stream`: every event as it is stored, as server-sent events, resumed from a sequence number.

Each message carries its event's number as `id`, so a browser's EventSource resumes by itself (`Last-Event-ID`); a
program gives `after`. A comment every `BEAT_S` seconds keeps proxies from closing a quiet stream and lets the server
notice that a reader has gone. A stream ends by itself when the controller does. Time passes while events are awaited.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from typing import Annotated, Any

from litestar import Request, get
from litestar.datastructures import State
from litestar.params import QueryParameter
from litestar.response import Stream

from holdfast.api.auth import SCOPED, Role, needs
from holdfast.api.limits import LimitGate, client_of
from holdfast.api.routes_state import SEQ_MAX, Name
from holdfast.api.tenants import Scope, scope_of
from holdfast.controller import Controller
from holdfast.model.events import AnyEvent
from holdfast.model.wire import encode, kind_of

BEAT_S = 15.0
PAGE = 500
MEDIA_TYPE = "text/event-stream"


@get("/stream", guards=[needs(Role.VIEWER)], tags=["read"], media_type=MEDIA_TYPE, opt=SCOPED)
async def stream(
    request: Request[Any, Any, State],
    *,
    after: Annotated[
        int, QueryParameter(ge=-1, le=SEQ_MAX, description="Begin behind this event; -1: with what comes next.")
    ] = -1,
    incident: Name = "",
    job: Name = "",
    node: Name = "",
    kind: Name = "",
) -> Stream:
    """Events as they are stored: `id` is the sequence number, `event` the kind, `data` the event as JSON."""
    controller: Controller = request.app.state.controller
    resumed = request.headers.get("last-event-id", "")
    if resumed.isdecimal() and len(resumed) < 20:
        after = int(resumed)
    elif after < 0:
        after = controller.seq
    asked = {"incident": incident, "job": job, "node": node, "kind": kind}
    where = {key: value for key, value in asked.items() if value}
    limits: LimitGate = request.app.state.limits
    client = client_of(request, request.state.identity)
    place = limits.take_stream(client)
    return Stream(
        _messages(controller, after, where, scope_of(request), place),
        media_type=MEDIA_TYPE,
        headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
    )


async def _messages(
    controller: Controller, after: int, where: dict[str, Any], scope: Scope, place: AbstractContextManager[None]
) -> AsyncIterator[bytes]:
    with place:
        yield b"retry: 1000\n\n"
        while not controller.ended:
            found = await controller.events_after(after, limit=PAGE, wait_s=BEAT_S)
            if not found:
                yield b": beat\n\n"
                continue
            last = found[-1].seq
            if where:
                found = await controller.journal.events(after=after, limit=PAGE, **where)
                # A full page may end before what was just stored; one that is not full has seen it all.
                last = found[-1].seq if len(found) == PAGE else max(last, found[-1].seq if found else 0)
            after = last
            found = scope.events(found)
            for event in found:
                yield message(event)
            if not found or found[-1].seq < after:
                # Others' events moved us on: the reader learns from where to resume.
                yield b"id: %d\n: on\n\n" % after


def message(event: AnyEvent) -> bytes:
    """One event as a server-sent event. JSON holds no line ends, so it is one `data` line."""
    return b"id: %d\nevent: %b\ndata: %b\n\n" % (event.seq, kind_of(event).encode(), encode(event))


HANDLERS = [stream]

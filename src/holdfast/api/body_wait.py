"""A request's body must come whole within a time: one that trickles in is answered 408, and its connection ends.

Granian limits the head (`listener.HEADER_WAIT_MS`); the application reads the body, so the limit stands here. Wrapped
around the application by `server.py`. Time passes in the asyncio loop.
"""

from __future__ import annotations

import asyncio

from litestar.exceptions import HTTPException
from litestar.types import ASGIApp, HTTPReceiveMessage, Receive, Scope, Send, WebSocketReceiveMessage

BODY_WAIT_S = 60.0
"""8 MiB in this time are 140 kB a second."""


def within_time(app: ASGIApp, limit_s: float) -> ASGIApp:
    """The application, whose requests get their bodies within `limit_s` seconds."""

    async def bounded(scope: Scope, receive: Receive, send: Send) -> None:
        loop = asyncio.get_running_loop()
        ends, is_whole = loop.time() + limit_s, False

        async def receive_in_time() -> HTTPReceiveMessage | WebSocketReceiveMessage:
            nonlocal is_whole
            if is_whole:  # what comes now is the client's leaving, for which a stream waits as long as it is read
                return await receive()
            try:
                async with asyncio.timeout_at(ends):
                    message = await receive()
            except TimeoutError as error:
                raise HTTPException(
                    detail=f"the body did not come within {limit_s:g} s", status_code=408,
                    headers={"Connection": "close"},
                ) from error  # fmt: skip
            is_whole = not message.get("more_body", False)
            return message

        await app(scope, receive_in_time, send)

    return bounded

"""What a stand-by answers on the API's port: alive at `/livez`, and to everything else that it does not lead.

`wiring/controller.py` opens it until the controller leads and `ApiServer` takes the port. Time passes between two looks
at the certificate.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ssl
from collections.abc import AsyncIterator

from holdfast.api.following import follow
from holdfast.os.doorway import Doorway
from holdfast.os.tls import Stamp, TlsFiles, renew, server_context

HEAD_MAX = 16 * 1024
HEAD_S = 10.0
_ALIVE = b'{"ok":true,"standby":true}'
_ELSE = b'{"type":"about:blank","title":"Service Unavailable","status":503,"detail":"standing by: another leads"}'


@contextlib.asynccontextmanager
async def standing_by(host: str, port: int, tls: TlsFiles | None = None) -> AsyncIterator[None]:
    """Answer inside the block. Port 0 is nobody's to ask: nothing is opened, and neither where the port is taken.

    A certificate that is replaced meanwhile is served from the next connection on, as by the controller that leads.
    Raises ConfigError where the first one cannot be served with.
    """
    if not port:
        yield
        return
    served = tls.stamp() if tls is not None else ()
    context = server_context(tls) if tls is not None else None
    handshake = {"ssl_handshake_timeout": HEAD_S} if context is not None else {}
    try:
        doorway = Doorway()
        answer = functools.partial(_answer, doorway)
        server = await asyncio.start_server(answer, host, port, limit=HEAD_MAX, ssl=context, **handshake)
    except OSError:
        yield
        return
    following = asyncio.create_task(_follow(tls, served, context), name="certificate")
    try:
        yield
    finally:
        following.cancel()
        await asyncio.wait([following])
        server.close()


async def _follow(files: TlsFiles | None, served: Stamp, context: ssl.SSLContext | None) -> None:
    if files is None or context is None:
        return

    async def take() -> None:
        renew(context, files)

    await follow(files, served, take)


async def _answer(doorway: Doorway, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    broken = (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError)
    with doorway.enter(writer), contextlib.suppress(*broken):
        async with asyncio.timeout(HEAD_S):
            head = await reader.readuntil(b"\r\n\r\n")
            alive = head.split(b" ", 2)[1:2] == [b"/livez"]
            status, kind, body = (
                ("200 OK", "application/json", _ALIVE)
                if alive
                else ("503 Service Unavailable", "application/problem+json", _ELSE)
            )
            words = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
            writer.write(f"{words}Retry-After: 2\r\nConnection: close\r\n\r\n".encode() + body)
            await writer.drain()
    writer.close()

"""The port by which the API server asks a lab's kubelets for containers' output (`kubectl logs`): one for all nodes.

`kube_keeper` starts it. Of what a kubelet serves it has `/containerLogs/NAMESPACE/POD/CONTAINER` alone, with
`tailLines` and `limitBytes`; nothing is followed. TLS with the API server's own certificate, which asks for no proof of
who a kubelet is, as by default. No time passes here.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiohttp import web

BYTES_MAX = 16 << 20
END_S = 1.0


def last_lines(data: bytes, lines: int | None, limit: int | None) -> bytes:
    """The last `lines` of a log, of these the first `limit` bytes, as a kubelet has it."""
    if lines is not None:
        kept = data.splitlines(keepends=True)
        data = b"".join(kept[max(0, len(kept) - lines) :])
    return data[:limit] if limit is not None else data


async def serve_logs(
    find: Callable[[str, str, str], Path | None], port: int, *, certificate: Path, key: Path
) -> web.AppRunner:
    """Listen on loopback until the runner's `cleanup`. Raises OSError.

    Args:
        find: the log of a container by namespace, pod and name of the container; None when there is none.
        port: to listen on.
        certificate: what is shown to those who ask.
        key: the certificate's.
    """
    from aiohttp import web  # noqa: PLC0415 - comes with kubernetes-asyncio

    async def answer(request: web.Request) -> web.Response:
        asked = request.match_info
        path = find(asked["namespace"], asked["pod"], asked["container"])
        data = await asyncio.to_thread(_read, path) if path is not None else None
        if data is None:
            raise web.HTTPNotFound(text="no such container on this node\n")
        lines, limit = (_number(request.query.get(name, "")) for name in ("tailLines", "limitBytes"))
        return web.Response(body=last_lines(data, lines, limit), content_type="text/plain")

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    app = web.Application()
    app.router.add_get("/containerLogs/{namespace}/{pod}/{container}", answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=END_S)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, ssl_context=context).start()
    return runner


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


def _read(path: Path) -> bytes | None:
    """The end of a log; None when there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - BYTES_MAX))
            return file.read()
    except OSError:
        return None

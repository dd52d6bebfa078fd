"""The port by which the API server asks a lab's kubelets for containers' output (`kubectl logs`): one for all nodes.

`kube_keeper` starts it. Of what a kubelet serves it has `/containerLogs/NAMESPACE/POD/CONTAINER` alone, with
`tailLines` and `limitBytes`; nothing is followed. TLS with the API server's own certificate, which asks for no proof of
who a kubelet is, as by default. Time: a question that is not asked within `ASK_S` is dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

ASK_S = 10.0
HEAD_MAX = 16 << 10
BYTES_MAX = 16 << 20


def last_lines(data: bytes, lines: int | None, limit: int | None) -> bytes:
    """The last `lines` of a log, of these the first `limit` bytes, as a kubelet has it."""
    if lines is not None:
        kept = data.splitlines(keepends=True)
        data = b"".join(kept[max(0, len(kept) - lines) :])
    return data[:limit] if limit is not None else data


def _number(query: dict[str, list[str]], name: str) -> int | None:
    text = query.get(name, [""])[0]
    return int(text) if text.isdecimal() else None


class LogServer:
    """See the module.

    Args:
        find: the log of a container by namespace, pod and name of the container; None when there is none.
    """

    def __init__(self, find: Callable[[str, str, str], Path | None]) -> None:
        self._find = find
        self._server: asyncio.Server | None = None

    async def start(self, port: int, *, certificate: Path, key: Path) -> None:
        """Listen on loopback. Raises OSError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port, ssl=context, limit=HEAD_MAX)

    async def close(self) -> None:
        """Listen no more."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, TimeoutError, ValueError, asyncio.IncompleteReadError):
            async with asyncio.timeout(ASK_S):
                head = await reader.readuntil(b"\r\n\r\n")
            status, body = await self._answer(head.split(b" ", 2)[1].decode("ascii"))
            words = f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n"
            writer.write(f"{words}Connection: close\r\n\r\n".encode() + body)
            await writer.drain()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    async def _answer(self, target: str) -> tuple[str, bytes]:
        asked = urlsplit(target)
        words = [unquote(word) for word in asked.path.strip("/").split("/")]
        if len(words) != 4 or words[0] != "containerLogs":
            return "404 Not Found", b"not served here\n"
        path = self._find(words[1], words[2], words[3])
        data = await asyncio.to_thread(_read, path) if path is not None else None
        if data is None:
            return "404 Not Found", b"no such container on this node\n"
        query = parse_qs(asked.query)
        return "200 OK", last_lines(data, _number(query, "tailLines"), _number(query, "limitBytes"))


def _read(path: Path) -> bytes | None:
    """The end of a log; None when there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - BYTES_MAX))
            return file.read()
    except OSError:
        return None

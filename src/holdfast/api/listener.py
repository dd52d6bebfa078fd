"""The API's port: Granian's embedded server, over TLS where a certificate is given, renewed when its files change.

`server.py` opens it. Granian reads a certificate once, so a new one is served by a second server that shares the port
(SO_REUSEPORT). Once that listens, the first one takes no more connections: idle ones are closed, requests under way are
answered. The controller beside it notices nothing. Files that cannot be served with change nothing and are told of.
Time passes in the asyncio loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from typing import Any

import psutil
import structlog
from granian.constants import HTTPModes, Interfaces
from granian.http import HTTP1Settings
from granian.server.embed import Server

from holdfast.api.following import follow
from holdfast.errors import LinkError, UsageError
from holdfast.os.tls import TlsFiles, checked

START_S = 10.0
POLL_S = 0.005
BACKLOG = 1024
CONNECTIONS_MAX = 32_768
"""Kept connections: one per agent and launcher. The server's own default, its backlog, would keep all others out."""
HEADER_WAIT_MS = 30_000
"""A request whose head trickles in for longer than this is cut off, and so is a kept connection that is idle for so
long: longer than clients keep theirs (`client.http.KEEP_S`), so that none finds its connection cut as it writes."""

_log = structlog.get_logger("holdfast.api")


class Listener:
    """One port that serves an application.

    Args:
        app: the ASGI application.
        host: address to listen on.
        port: 0 takes a free one.
        tls: the certificate; None: plain HTTP.
    """

    def __init__(self, app: Any, host: str, port: int, tls: TlsFiles | None = None) -> None:
        self._app = app
        self._host, self._port = "127.0.0.1" if host == "localhost" else host, port
        self._tls = tls
        self._held: socket.socket | None = None
        self._serving: list[tuple[Server, asyncio.Task[None]]] = []
        """The newest last; those before it answer what they had begun with."""
        self._watching: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """Where clients of this machine reach it, with the actual port."""
        address = ipaddress.ip_address(self._host)
        if address.is_unspecified:
            address = ipaddress.ip_address("::1" if address.version == 6 else "127.0.0.1")
        host = f"[{address}]" if address.version == 6 else str(address)
        return f"{'https' if self._tls is not None else 'http'}://{host}:{self._port}"

    def reserve(self) -> None:
        """Take the port. Raises UsageError: the address is not one of this machine, or is taken."""
        try:
            ipaddress.ip_address(self._host)
        except ValueError as error:
            raise UsageError(f"cannot listen on {self._host!r}: write an IP address") from error
        self._held = _reserve(self._host, self._port)
        self._port = self._held.getsockname()[1]

    async def open(self) -> None:
        """Serve; returns once it listens.

        Raises:
            ConfigError: the certificate cannot be served with.
            LinkError: it does not listen in time.
        """
        if self._tls is None:
            await self._serve()
            return
        stamp = self._tls.stamp()
        until = await asyncio.to_thread(checked, self._tls)
        await self._serve()
        _log.info(
            "TLS", certificate=str(self._tls.cert), valid_until=until, clients_need_one=self._tls.client_ca is not None
        )
        self._watching = asyncio.create_task(follow(self._tls, stamp, self._renew), name="certificate")

    async def close(self) -> None:
        """Take no more connections, answer what is under way, and give the port back."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
        for server, task in self._serving:
            server.stop()  # type: ignore[no-untyped-call]
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._serving.clear()
        if self._held is not None:
            self._held.close()

    async def _renew(self) -> None:
        """Begin a server with what the files hold now, and have the former one end. Raises LinkError: not in time."""
        self._serving = [*(one for one in self._serving[:-1] if not one[1].done()), self._serving[-1]]
        former = self._serving[-1][0]
        await self._serve()
        former.stop()  # type: ignore[no-untyped-call]

    async def _serve(self) -> None:
        """Begin a server beside those that run, and return when it listens."""
        tls: dict[str, Any] = {}
        if self._tls is not None:
            ca = self._tls.client_ca
            tls = {
                "ssl_cert": self._tls.cert,
                "ssl_key": self._tls.key,
                "ssl_ca": ca,
                "ssl_client_verify": ca is not None,
            }
        server = make_server(self._app, address=self._host, port=self._port, **tls)
        wanted = await asyncio.to_thread(self._listening) + 1
        task: asyncio.Task[None] = asyncio.create_task(server.serve(), name="api")
        try:
            await self._until(wanted, task)
        except BaseException:  # whatever it is, no server is left behind
            server.stop()  # type: ignore[no-untyped-call]
            await asyncio.wait([task])
            raise
        self._serving.append((server, task))

    async def _until(self, wanted: int, task: asyncio.Task[None]) -> None:
        deadline = asyncio.get_running_loop().time() + START_S
        while await asyncio.to_thread(self._listening) < wanted:
            if task.done():
                task.result()
                raise LinkError(f"the API's server ended before it listened on {self.url}")
            if asyncio.get_running_loop().time() > deadline:
                raise LinkError(f"the API does not listen on {self.url}")
            await asyncio.sleep(POLL_S)

    def _listening(self) -> int:
        """Sockets of this process that listen on the port."""
        mine = psutil.Process().net_connections("tcp")
        return sum(one.status == psutil.CONN_LISTEN and one.laddr.port == self._port for one in mine)


def make_server(app: Any, **where: Any) -> Server:
    """A server of the application, which listens once it runs; `where` is as Granian takes it."""
    return Server(
        app,
        interface=Interfaces.ASGI,
        backlog=BACKLOG,
        backpressure=CONNECTIONS_MAX,
        http=HTTPModes.http1,
        websockets=False,
        log_enabled=False,
        http1_settings=HTTP1Settings(header_read_timeout=HEADER_WAIT_MS),
        **where,
    )


def _reserve(host: str, port: int) -> socket.socket:
    """Bind the port and keep it, so that it is surely ours when Granian binds it too.

    Granian shares its port (SO_REUSEPORT), so it would not notice that another controller listens there already;
    a bind that does not share would. A socket that only binds takes no connections.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        if port:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((host, port))
        held = socket.socket(family, socket.SOCK_STREAM)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind((host, port))
    except OSError as error:
        raise UsageError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    return held

"""The controller's Unix socket: users of this machine without a token, known by the kernel's word (SO_PEERCRED).

The HTTP server tells nobody who its peers are. So it listens on a second socket, in a folder that only the controller's
user may enter, and the door passes each connection on to it, bytes as they are, under a name of the door's own. By that
name a request is known to be of the user who knocked. Root and the controller's own user are operators. Everybody else
gets what a munge credential gets: the launcher of a job of theirs, or an owner of their jobs. `server.py` opens it.
Time passes in the asyncio loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import select
import socket
import stat
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import structlog
from litestar.connection import ASGIConnection
from litestar.types import ASGIApp, Receive, Scope, Send
from msgspec import Struct

from holdfast.api.auth import Identity, Role
from holdfast.api.exchange import identity_of, user_of
from holdfast.api.listener import BACKLOG, START_S, make_server
from holdfast.errors import HoldfastError, LinkError, RefusedError
from holdfast.model.wire import SOURCE_HEADER
from holdfast.os.unix_sockets import check_place, socket_address, uid_of

INNER = "inner"
CONNECTIONS_EACH = 256
"""Of one user at once, so that nobody has all descriptors; root and the controller's user have no limit."""
OVERFLOW_UID = 65_534
"""What the kernel says of a user whom our user namespace does not know."""
CHUNK = 65_536
POLL_S = 0.005
PEER = "holdfast.peer"

_log = structlog.get_logger("holdfast.api")


class Peer(Struct, frozen=True):
    """Who is at the other end of one connection."""

    uid: int
    user: str
    """Empty: this machine knows no user of this number."""


def is_operator(uid: int) -> bool:
    """Root and the controller's own user could read the operator's token, too."""
    return uid in {0, os.geteuid()}


class LocalDoor:
    """See the module.

    Args:
        app: the ASGI application.
        path: of the socket; its folder exists.
    """

    def __init__(self, app: ASGIApp, path: Path) -> None:
        self._app, self.path = app, path
        self._peers: dict[str, Peer] = {}
        self._inside: Counter[int] = Counter()
        self._numbers = itertools.count()
        self._folder = ""
        self._opened = contextlib.AsyncExitStack()

    async def open(self) -> None:
        """Listen.

        Raises:
            RefusedError: others could exchange the socket, or something else stands in its place.
            LinkError: it cannot be opened.
        """
        if os.geteuid() == OVERFLOW_UID:
            raise RefusedError(
                f"uid {OVERFLOW_UID} stands for users of other namespaces, too: run the controller as another"
            )
        check_place(self.path)
        async with contextlib.AsyncExitStack() as undo:
            try:
                self._folder = undo.enter_context(_inner(self.path.with_name(INNER)))
                await self._serve_inside(undo)
                with socket_address(self.path) as address:
                    server = await asyncio.start_unix_server(self._admit, address, backlog=BACKLOG, limit=CHUNK)
                undo.callback(self.path.unlink, missing_ok=True)
                undo.callback(server.close)
                self.path.chmod(0o666)
            except OSError as error:
                raise LinkError(f"the socket {self.path} cannot be opened: {error.strerror or error}") from error
            self._opened = undo.pop_all()

    async def close(self) -> None:
        """Take no more connections, answer what is under way, and remove the socket."""
        await self._opened.aclose()

    async def _serve_inside(self, undo: contextlib.AsyncExitStack) -> None:
        server = make_server(self._as_peer)
        # Granian's own option would write the path out, and have it too long.
        server.bind_uds = Path(self._folder) / "http"
        task: asyncio.Task[None] = asyncio.create_task(server.serve(), name="local door")

        async def stop() -> None:
            server.stop()  # type: ignore[no-untyped-call]
            await asyncio.wait([task])

        undo.push_async_callback(stop)
        deadline = asyncio.get_running_loop().time() + START_S
        while True:
            try:
                self._knock(f"{self._folder}/tried").close()
            except (FileNotFoundError, ConnectionRefusedError):
                if task.done() or asyncio.get_running_loop().time() > deadline:
                    raise LinkError(f"the API does not listen behind {self.path}") from None
                await asyncio.sleep(POLL_S)
            else:
                return

    def _knock(self, name: str) -> socket.socket:
        """A connection to the server inside that bears this name there."""
        outside = socket.socket(socket.AF_UNIX)
        try:
            outside.bind(name)
            os.unlink(name)  # noqa: PTH108 - the name stays the socket's
            outside.setblocking(False)
            outside.connect(f"{self._folder}/http")
        except OSError:
            outside.close()
            raise
        return outside

    async def _admit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        uid = uid_of(writer.get_extra_info("socket"))
        name = f"{self._folder}/{next(self._numbers)}"
        self._inside[uid] += 1
        try:
            if self._inside[uid] <= CONNECTIONS_EACH or is_operator(uid):
                self._peers[name] = Peer(uid, await asyncio.to_thread(_name_of, uid))
                await _join(reader, writer, self._knock(name))
        except OSError as error:
            _log.warning("a connection of a user of this machine was lost", uid=uid, why=str(error))
        finally:
            self._peers.pop(name, None)
            self._inside[uid] -= 1
            writer.close()

    async def _as_peer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The application, whose requests say who has knocked; one that came past the door says nobody."""
        if (client := scope.get("client")) is not None:
            peer = self._peers.get(client[0])
            known: dict[str, Any] = {**scope, PEER: peer, "client": (f"uid:{peer.uid}" if peer is not None else "", 0)}
            scope = known  # type: ignore[assignment]
        await self._app(scope, receive, send)


async def local_identity(connection: ASGIConnection[Any, Any, Any, Any]) -> Identity | None:
    """Who asks by the socket without a token; None: somebody by another way.

    Raises:
        RefusedError: a user without a name, or who may not speak as what is asked for.
        LinkError: the scheduler has answered in part, so that the job's user is not known.
    """
    scope: Any = connection.scope
    peer: Peer | None = scope.get(PEER)
    if peer is None or connection.headers.get("authorization"):
        return None
    if is_operator(peer.uid):
        name = peer.user or f"uid:{peer.uid}"  # in a container nobody may have named it
        return Identity(name, Role.OPERATOR, id=f"user:{name}")
    if peer.uid == OVERFLOW_UID:
        raise RefusedError(f"uid {OVERFLOW_UID} stands for users of other namespaces, too: come as another user")
    if not peer.user:
        raise RefusedError(f"the controller's machine knows no user with uid {peer.uid}")
    return await identity_of(connection.app.state.controller, peer.user, connection.headers.get(SOURCE_HEADER, ""))


def _name_of(uid: int) -> str:
    try:
        return user_of(uid) if uid != OVERFLOW_UID else ""
    except HoldfastError:
        return ""


async def _join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, inside: socket.socket) -> None:
    """Pass on what either side says, until one of them ends.

    A client that has closed its own way alone still listens. Told of that, the server inside would drop the request
    that it answers. It does not while more bytes wait, so an empty line goes before: it answers, skips the line
    (RFC 9112, 2.2) and ends the connection.
    """
    inner_reader, inner_writer = await asyncio.open_unix_connection(sock=inside, limit=CHUNK)
    asking, answering = (asyncio.create_task(_pass(*way)) for way in ((reader, inner_writer), (inner_reader, writer)))
    try:
        await asyncio.wait([asking, answering], return_when=asyncio.FIRST_COMPLETED)
        if asking.done() and not _is_gone(writer.get_extra_info("socket")):
            inner_writer.write(b"\r\n")
            inner_writer.write_eof()
            await asyncio.wait([answering])
    finally:
        asking.cancel()
        answering.cancel()
        inner_writer.close()


def _is_gone(peer: socket.socket) -> bool:
    """Has the other end closed both ways?"""
    if peer.fileno() < 0:
        return True
    ends = select.poll()
    ends.register(peer, 0)  # asks for hang-ups and errors alone
    return bool(ends.poll(0))


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while some := await reader.read(CHUNK):
            writer.write(some)
            await writer.drain()


@contextlib.contextmanager
def _inner(folder: Path) -> Iterator[str]:
    """The folder of the server inside, ours alone and empty, by an address that is always short."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir()
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fchmod(descriptor, stat.S_IRWXU)
        for left in os.listdir(descriptor):  # noqa: PTH208 - by its descriptor
            os.unlink(left, dir_fd=descriptor)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)

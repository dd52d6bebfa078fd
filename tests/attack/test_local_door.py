"""A user of this machine at the controller's Unix socket, or in its place: real sockets, and processes of real users.

Root is the controller's own user. Job 7 is mei's; `daemon` and `mail` stand for users of the machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest
from tests.api.engine_house import run
from tests.api.test_local_door import machine

from attack_fixture import STRANGER, Attempt, Stranger, only_root
from holdfast.api import exchange as api_exchange
from holdfast.api import local_door as api_door
from holdfast.api.auth import Identity, Role
from holdfast.client import AsyncClient
from holdfast.errors import LinkError, RefusedError
from holdfast.os import unix_sockets
from holdfast.os.unix_sockets import NAME
from local_socket import ANN, said
from slurm_fixture import short_folder

ACTOR = "A user of the same machine, at the controller's socket"
BEAT = '{"source": "%s", "node": "n1", "cluster": "test", "job": "%s", "generation": 1, "boot_id": "b-n1"}'
_SETRESUID = 117
"""The system call of x86-64: glibc's own function would change all threads of the process."""


@contextlib.contextmanager
def planted(path: Path, uid: int) -> Iterator[None]:
    """A socket of root's at which a process of this user listens and answers every request with an empty list."""
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    path.chmod(0o666)

    def serve() -> None:
        assert ctypes.CDLL(None).syscall(_SETRESUID, uid, uid, 0) == 0
        server.listen()
        ready.append(True)
        with contextlib.suppress(OSError):
            while True:
                peer, _ = server.accept()
                with peer:
                    if peer.recv(65536):
                        peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]")

    ready: list[bool] = []
    thread = Thread(target=serve, daemon=True)
    thread.start()
    while not ready:
        assert thread.is_alive()
    try:
        yield
    finally:
        server.shutdown(socket.SHUT_RDWR)
        server.close()
        thread.join()


def asks(path: Path) -> bool:
    """Does a client of ours take an answer from there?"""

    async def work() -> bool:
        async with AsyncClient(f"unix:{path}") as client:
            return await client.jobs() == []

    try:
        return run(work)
    except RefusedError:
        return False


@pytest.mark.attempt(actor=ACTOR, asset="others' jobs", removed="api.exchange.owns")
def test_a_user_is_no_launcher_of_anothers_job(attempt: Attempt, tmp_path: Path) -> None:
    """Beat as the launcher of another user's job."""
    only_root("becomes another user")
    attempt.without(api_exchange, "owns", lambda _user, _owners: True)

    async def work() -> int:
        async with machine(tmp_path) as (_, path):
            head, body = "Holdfast-Source: launcher:7", BEAT % ("launcher:7", "7")
            return (await asyncio.to_thread(said, ANN, path, "POST /v1/beat", body=body, head=head))[0]

    attempt.judge(succeeded=run(work) == 200)


@pytest.mark.attempt(
    actor=ACTOR,
    asset="nodes",
    removed="api.local_door.is_operator, api.local_door.identity_of",
    each=("a command", "as its agent"),
)
@pytest.mark.parametrize("how", ["a command", "as its agent"])
def test_a_user_is_neither_operator_nor_agent(attempt: Attempt, tmp_path: Path, how: str) -> None:
    """Drain a node by a command, and beat as the agent of a node."""
    only_root("becomes another user")
    if how == "a command":
        attempt.without(api_door, "is_operator", lambda _uid: True)
        what, body, head = "POST /v1/commands", '{"command": "drain", "who": "x", "why": "y", "node": "n1"}', ""
    else:

        async def anybody(_controller: object, user: str, source: str) -> Identity:
            return Identity(user, Role.AGENT, only=source)

        attempt.without(api_door, "identity_of", anybody)
        what, body, head = "POST /v1/beat", BEAT % ("agent:n1", ""), "Holdfast-Source: agent:n1"

    async def work() -> int:
        async with machine(tmp_path) as (_, path):
            return (await asyncio.to_thread(said, ANN, path, what, body=body, head=head))[0]

    attempt.judge(succeeded=run(work) == 200)


@pytest.mark.attempt(actor=ACTOR, asset="nodes", removed="api.local_door.uid_of")
def test_the_kernel_says_who_knocks(attempt: Attempt, tmp_path: Path) -> None:
    """Say to be root, by a header and by an address of root's."""
    only_root("becomes another user")
    attempt.without(api_door, "uid_of", lambda _peer: 0)  # as a door that believes would

    async def work() -> int:
        async with machine(tmp_path) as (_, path):
            head = "X-Forwarded-For: uid:0\r\nHoldfast-Peer: 0"
            return (await asyncio.to_thread(said, ANN, path, "GET /v1/nodes/n1", head=head))[0]

    attempt.judge(succeeded=run(work) == 200)


@pytest.mark.attempt(actor=ACTOR, asset="the controller's descriptors", removed="api.local_door.CONNECTIONS_EACH")
def test_one_user_has_no_more_than_a_share_of_connections(
    attempt: Attempt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hold connection after connection without a byte, to have them all."""
    only_root("becomes another user")
    monkeypatch.setattr(api_door, "CONNECTIONS_EACH", 2)
    attempt.without(api_door, "CONNECTIONS_EACH", 1000)
    uid_of = unix_sockets.uid_of
    monkeypatch.setattr(api_door, "uid_of", lambda peer: uid_of(peer) or ANN)

    async def work() -> bool:
        async with machine(tmp_path) as (_, path), contextlib.AsyncExitStack() as held:
            for _ in range(3):
                reader, writer = await asyncio.open_unix_connection(str(path))
                held.callback(writer.close)
            writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
            with contextlib.suppress(ConnectionError):
                return bool(await reader.read(1))
            return False

    attempt.judge(succeeded=run(work))


@pytest.mark.attempt(
    actor=ACTOR, asset="orders to launchers and agents", removed="os.unix_sockets.check_peer, client.http.check_peer"
)
def test_no_client_speaks_to_another_users_process(attempt: Attempt) -> None:
    """Listen at the controller's socket as another user, whatever the file says."""
    only_root("becomes another user")
    attempt.without(unix_sockets, "check_peer", lambda _peer, _path: None)
    attempt.without(__import__("holdfast.client.http").client.http, "check_peer", lambda _peer, _path: None)
    with short_folder() as folder, planted(folder / NAME, STRANGER):
        if not attempt.is_open:
            with pytest.raises(RefusedError, match=f"a process of another user .uid {STRANGER}. listens"):
                unix_sockets.address_of(folder / NAME)
        attempt.judge(succeeded=asks(folder / NAME))


@pytest.mark.attempt(
    actor=ACTOR,
    asset="orders to launchers and agents",
    removed="os.tls.check_place, client.http.check_peer",
    each=("another user's folder", "a folder that others may write", "a link"),
)
@pytest.mark.parametrize("how", ["another user's folder", "a folder that others may write", "a link"])
def test_no_client_goes_to_a_planted_socket(attempt: Attempt, stranger: Stranger, how: str) -> None:
    """Plant a socket where a client looks: in a folder of one's own, in a folder that others write, behind a link."""
    only_root("becomes another user")
    from holdfast.client import http
    from holdfast.os import tls

    attempt.without(tls, "check_place", lambda _path: 0)
    attempt.without(http, "check_peer", lambda _peer, _path: None)
    with short_folder() as folder, short_folder() as theirs:
        stranger.owns(theirs)
        path = theirs / NAME if how == "another user's folder" else folder / NAME
        if how == "a link":
            path.symlink_to(theirs / NAME)
        elif how == "a folder that others may write":
            folder.chmod(0o777)
        with planted(theirs / NAME if how == "a link" else path, STRANGER):
            attempt.judge(succeeded=asks(path))


@pytest.mark.attempt(actor=ACTOR, asset="the controller's socket", removed="api.local_door.check_place")
def test_a_controller_listens_in_no_folder_of_others(attempt: Attempt, tmp_path: Path, stranger: Stranger) -> None:
    """Have the controller listen where its socket can be exchanged for one's own."""
    only_root("gives a folder away")
    attempt.without(api_door, "check_place", lambda _path: 0)

    async def nothing(*_: object) -> None:
        """No request comes."""

    async def work() -> bool:
        with short_folder() as folder:
            stranger.owns(folder)
            door = api_door.LocalDoor(nothing, folder / NAME)
            try:
                await door.open()
            except (LinkError, RefusedError):
                return False
            await door.close()
            return True

    attempt.judge(succeeded=run(work))


@pytest.mark.parametrize("what", ["a link", "a file"])
def test_what_lies_where_the_socket_goes_is_left_as_it_is(tmp_path: Path, what: str) -> None:
    """A link or a file in the socket's place is named by one sentence, and what it stands for is not touched."""
    kept = tmp_path / "kept"
    kept.write_text("mine")
    path = tmp_path / "place" / NAME
    path.parent.mkdir()
    os.symlink(kept, path) if what == "a link" else path.write_text("mine")

    async def nothing(*_: object) -> None:
        """No request comes."""

    async def work() -> None:
        with pytest.raises(RefusedError, match=f"is {what}, not a controller's socket: name the socket"):
            await api_door.LocalDoor(nothing, path).open()

    run(work)
    assert (kept.read_text(), path.read_text()) == ("mine", "mine")


def test_past_the_door_nobody_is_known(tmp_path: Path) -> None:
    """A connection to the server behind the door has no user; and no other user can come there."""
    only_root("becomes another user")

    async def work() -> None:
        async with machine(tmp_path) as (_, path):
            inside = path.with_name(api_door.INNER) / "http"
            assert (await asyncio.to_thread(said, 0, inside, "GET /v1/jobs"))[0] == 401
            assert (await asyncio.to_thread(said, ANN, inside, "GET /v1/jobs")) == (
                0,
                "HTTP/1.1 000 [Errno 13] Permission denied",
            )

    run(work)

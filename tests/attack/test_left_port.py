"""A user of this machine who listens on a port that a controller has left: no token is sent there.

Attacks: another user's socket at the address of a stale controller.json. The kernel's tables are written by the test.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from pathlib import Path

import pytest
from tests.adapters.journal_cases import run

from attack_fixture import Attempt
from holdfast.client import AsyncClient, Trust
from holdfast.errors import RefusedError
from holdfast.os import listeners, tls
from holdfast.wiring.controller import publish, withdraw

STRANGER = 54321
URL = "http://127.0.0.1:8470"


def row(address: str, uid: int, *, port: int = 8470, state: str = "0A") -> str:
    """A line of /proc/net/tcp as this machine's kernel writes it."""
    packed = socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)
    words = (int.from_bytes(packed[at : at + 4], sys.byteorder) for at in range(0, len(packed), 4))
    place = "".join(f"{word:08X}" for word in words)
    return (
        f"   0: {place}:{port:04X} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000  {uid}        0 1 1\n"
    )


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "tcp"
    monkeypatch.setattr(listeners, "TABLES", (tmp_path / "absent", file))
    file.write_text("head\n")
    return file


class Door:
    """A server that answers every request with an empty list, on connections that it keeps."""

    def __init__(self, heard: list[str]) -> None:
        self.heard = heard
        self.port = 0
        self._open: list[asyncio.StreamWriter] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def open(self, port: int = 0) -> int:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self.port

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.append(writer)
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                self.heard += [
                    line.partition(": ")[2] for line in head.split("\r\n") if line.startswith("Authorization")
                ]
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]")

    async def close(self) -> None:
        self._server.close()
        for writer in self._open:
            writer.close()
        await self._server.wait_closed()


def listening(table: Path, *rows: str) -> None:
    table.write_text("head\n" + "".join(rows))


@pytest.mark.attempt(
    actor="A user of the same machine, in a working folder that others share",
    asset="token",
    removed="os.tls.listener_uids",
)
@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::", "::ffff:127.0.0.1"])
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_token_goes_to_no_socket_of_another_user(attempt: Attempt, table: Path, address: str, host: str):
    """The socket of another user on this machine is refused, and the sentence says what to do."""
    attempt.without(tls, "listener_uids", lambda _host, _port: set())
    listening(table, row(address, STRANGER))
    why = ""
    try:
        Trust().check(f"http://{host}:8470", "hft_x")
    except RefusedError as error:
        why = str(error)
    assert attempt.is_open or f"uid {STRANGER}" in why
    attempt.judge(succeeded=not why)


@pytest.mark.attempt(
    actor="A user of the same machine, in a working folder that others share",
    asset="token",
    removed="os.tls.Trust.check",
)
def test_a_port_that_changes_hands_is_seen_before_the_next_connection(attempt: Attempt, table: Path):
    """Take the port of a controller over whose client lives on."""
    attempt.without(Trust, "check", lambda _trust, _url, _token: None)
    heard: list[str] = []

    async def work() -> None:
        first = Door(heard)
        listening(table, row("127.0.0.1", os.geteuid(), port=await first.open()))
        async with AsyncClient(first.url, "hft_x") as client:
            await client.jobs()
            await first.close()
            listening(table, row("127.0.0.1", STRANGER, port=first.port))
            second = Door(heard)
            await second.open(first.port)
            with contextlib.suppress(RefusedError):
                await client.jobs()
            assert await client.healthy() is attempt.is_open
            await second.close()

    run(work)
    attempt.judge(succeeded=len(heard) > 1)


def test_the_kernel_is_asked_once_for_each_connection(table: Path, monkeypatch: pytest.MonkeyPatch):
    """Requests on a kept connection cost no look at the kernel's table."""
    looks: list[int] = []
    monkeypatch.setattr(tls, "listener_uids", lambda _host, port: looks.append(port) or set())
    heard: list[str] = []

    async def work() -> None:
        door = Door(heard)
        port = await door.open()
        async with AsyncClient(door.url, "hft_x") as client:
            looks.clear()
            for _ in range(5):
                await client.jobs()
        await door.close()
        assert looks == [port]

    run(work)
    assert heard == ["Bearer hft_x"] * 5


@pytest.mark.parametrize(
    "rows",
    [
        (),
        (row("127.0.0.1", 0),),
        (row("127.0.0.1", os.geteuid()), row("127.0.0.2", STRANGER), row("::1", STRANGER)),
        (row("127.0.0.1", 0), row("::", STRANGER)),
        (row("127.0.0.1", STRANGER, port=1),),
        (row("127.0.0.1", STRANGER, state="01"),),
        ("torn\n",),
    ],
)
def test_the_own_controller_is_reached(table: Path, rows: tuple[str, ...]):
    """Root's and our own sockets take tokens, no socket at all too; who sits beside them cannot have us refused."""
    listening(table, *rows)
    Trust().check(URL, "hft_x")


def test_a_site_may_allow_anybody_to_listen(table: Path):
    """`plain_http` is the site's word, and without a token nothing is lost."""
    listening(table, row("127.0.0.1", STRANGER))
    Trust(plain_http=True).check(URL, "hft_x")
    Trust().check(URL, "")


def test_the_kernel_names_the_listener():
    """A real socket is found, with its user."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert listeners.listener_uids("127.0.0.1", port) <= {os.geteuid()}
        if sys.platform == "linux":
            assert listeners.listener_uids("127.0.0.1", port)


def test_an_orderly_end_withdraws_the_address_of_this_controller_alone(tmp_path: Path):
    """What a later controller has written stays."""
    file = tmp_path / "controller.json"
    first = publish(file, {"pid": 1})
    second = publish(file, {"pid": 2})
    withdraw(file, first)
    assert file.read_bytes() == second
    withdraw(file, second)
    assert not file.exists()
    withdraw(file, second)

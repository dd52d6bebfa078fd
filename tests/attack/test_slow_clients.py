"""Slow clients on every port: nothing sent, half a head, half a body, a line kept idle, hundreds at once.

An honest request is answered while all of them are open, and the server ends them at a limit of its own. Ports: the
controller's API with the cockpit, a stand-by's, an agent's figures, a launcher's link, a validation's fleet.
"""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.api.test_tls import lease_of
from tests.api.test_tls import served as served_over_tls
from tests.certificates import Authority
from tests.cockpit.served import TOKENS, run, served

from attack_fixture import Attempt
from holdfast.agent import metrics
from holdfast.agent.metrics import MetricsServer
from holdfast.api import Role, body_wait, listener, standing_by
from holdfast.client import AsyncClient
from holdfast.launch import frames as words
from holdfast.launch import link
from holdfast.launch.link import LeaderPort, OpenNetwork
from holdfast.launch.place import JobPlace
from holdfast.model.cluster import JobKey
from holdfast.model.wire import Beat
from holdfast.os import doorway
from holdfast.os.frames import meet
from holdfast.validate import hands, wire

NEIGHBOUR = "Nobody: a neighbour on the network"
PORT = "a port's answers"
SMALL_S, LONG_S = 0.2, 3600.0
STILL_S = 0.4
"""What is open after this was not ended at a limit of `SMALL_S`."""
Line = tuple[asyncio.StreamReader, asyncio.StreamWriter]
FORM = "POST /login HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-www-form-urlencoded\r\n"
SLOW = {
    "not a byte": b"",
    "half a head": b"GET /healthz HTTP/1.1\r\nHost: x\r\n",
    "half a name": b"GET /healthz HTTP/1.1\r\nHos",
    "half a body": f"{FORM}Content-Length: 100\r\n\r\ntoken=".encode(),
    "half a chunk": f"{FORM}Transfer-Encoding: chunked\r\n\r\n20\r\ntoken=".encode(),
    "chunks without end": f"{FORM}Transfer-Encoding: chunked\r\n\r\n6\r\ntoken=\r\n".encode(),
    "an answered line": b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n",
}


@pytest.fixture(autouse=True)
def descriptors() -> Iterator[None]:
    """Both ends of every line are this process's."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def opened(address: str, count: int, data: bytes) -> list[Line]:
    host, port = address.rsplit(":", 1)
    lines = []
    for _ in range(count):
        lines.append(await asyncio.open_connection(host, int(port)))
        lines[-1][1].write(data)
        await lines[-1][1].drain()
    return lines


async def ended(lines: list[Line], limit_s: float = 200.0, least: int = 0) -> int:
    """How many the server has ended: waits for all, or for `least`, within the limit."""

    async def until_end(reader: asyncio.StreamReader) -> None:
        try:
            while await reader.read(65536):
                pass
        except OSError:
            return

    waiting = {asyncio.create_task(until_end(reader)) for reader, _ in lines}
    over, ends = 0, time.monotonic() + limit_s
    while waiting and over < (least or len(lines)) and time.monotonic() < ends:
        done, waiting = await asyncio.wait(
            waiting, timeout=max(0.0, ends - time.monotonic()), return_when=asyncio.FIRST_COMPLETED
        )
        over += len(done)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    for _, writer in lines:
        writer.transport.abort()
    return over


@pytest.mark.attempt(
    actor=NEIGHBOUR,
    asset=PORT,
    removed="api.listener.HEADER_WAIT_MS, api.body_wait.BODY_WAIT_S",
    each=tuple(SLOW),
)
def test_the_controller_answers_and_ends_slow_clients(attempt: Attempt, tmp_path: Path, monkeypatch) -> None:
    """Hold 100 connections of the controller's port without a whole request."""
    monkeypatch.setattr(listener, "HEADER_WAIT_MS", int(SMALL_S * 1000))
    monkeypatch.setattr(body_wait, "BODY_WAIT_S", SMALL_S)
    attempt.without(listener, "HEADER_WAIT_MS", int(LONG_S * 1000))
    attempt.without(body_wait, "BODY_WAIT_S", LONG_S)

    async def work() -> None:
        async with served(tmp_path, watch=False) as house, AsyncClient(house.url, TOKENS[Role.AGENT]) as agent:
            lines = []
            for data in SLOW.values():
                lines += await opened(house.url.removeprefix("http://"), 100, data)
            assert (await agent.beat(Beat(source="agent:n1", node="n1", at=time.time()))).lease_s > 0
            over = await ended(lines, STILL_S if attempt.is_open else 200.0)
            attempt.judge(succeeded=over == 0)
            assert over in {0, len(lines)}

    run(work)


def test_a_thousand_of_every_kind_keep_nobody_out(tmp_path: Path) -> None:
    """1,000 slow connections are open with the limits as shipped; beats, pages and commands are answered meanwhile."""

    async def work() -> None:
        async with (
            served(tmp_path, watch=False) as house,
            AsyncClient(house.url, TOKENS[Role.AGENT]) as agent,
            house.browser() as http,
        ):
            lines = []
            for data in SLOW.values():
                lines += await opened(house.url.removeprefix("http://"), 143, data)
            assert len(lines) > 1000
            assert (await agent.beat(Beat(source="agent:n1", node="n1", at=time.time()))).lease_s > 0
            assert (await http.get("/")).status_code == 200
            for _, writer in lines:
                writer.transport.abort()

    run(work)


@pytest.mark.soak
def test_a_tls_handshake_that_does_not_come_is_ended(tmp_path: Path) -> None:
    """The server ends it after its own 10 s, which cannot be set; an honest beat is answered meanwhile."""

    async def work() -> None:
        ours = Authority(tmp_path)
        async with served_over_tls(tmp_path, ours.files()) as (_, server):
            address = server.url.removeprefix("https://")
            lines = [*await opened(address, 100, b""), *await opened(address, 100, b"\x16\x03\x01\x02\x00\x01")]
            assert await lease_of(server.url, ours.trust) > 0
            assert await ended(lines) == 200

    run(work)


Honest = Callable[[], Awaitable[object]]


async def asked(address: str, path: str) -> bytes:
    """An honest request's status line."""
    (line,) = await opened(address, 1, f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    try:
        return await line[0].readline()
    finally:
        line[1].close()


@asynccontextmanager
async def stand_by(_folder: Path) -> AsyncIterator[tuple[str, Honest]]:
    (probe,) = [await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)]
    port = probe.sockets[0].getsockname()[1]
    probe.close()
    async with standing_by.standing_by("127.0.0.1", port):
        address = f"127.0.0.1:{port}"
        yield address, lambda: asked(address, "/livez")


@asynccontextmanager
async def agents_figures(_folder: Path) -> AsyncIterator[tuple[str, Honest]]:
    server = MetricsServer(SimpleNamespace(unwell=lambda: "", health=None, heard=True), "127.0.0.1:0")
    address = await server.start()
    try:
        yield address, lambda: asked(address, "/healthz")
    finally:
        await server.close()


@asynccontextmanager
async def launchers_link(folder: Path) -> AsyncIterator[tuple[str, Honest]]:
    place = JobPlace(job=JobKey("c", "7"), job_dir=folder, node="n1", nodes=("n1", "n2"))
    port = LeaderPort(
        place, network=OpenNetwork(), lease_s=10.0, may_grant=lambda: True,
        on_join=lambda _: None, on_report=lambda *_: None, on_lost=lambda *_: None,
    )  # fmt: skip
    await port.open()
    facts = link.read_leader(folder)

    async def honest() -> object:
        line = await asyncio.open_connection(facts.address, facts.port)
        frames = await meet(*line, bytes.fromhex(facts.secret), is_leader=False)
        await frames.send(words.Hello(node="n2", local_ranks=1))
        welcome = await frames.receive(words.Welcome)
        frames.close()
        return welcome

    try:
        yield f"{facts.address}:{facts.port}", honest
    finally:
        await port.close()


@asynccontextmanager
async def validations_fleet(_folder: Path) -> AsyncIterator[tuple[str, Honest]]:
    fleet = hands.Fleet(2, "secret")
    port = await fleet.open("127.0.0.1")

    async def honest() -> object:
        line = await asyncio.open_connection("127.0.0.1", port)
        frames = await wire.introduce(*line, "secret", wire.Hello(node=f"n{time.monotonic_ns()}", rank=0, boot="b"))
        frames.close()
        return frames

    try:
        yield f"127.0.0.1:{port}", honest
    finally:
        await fleet.close()


DOORS = {
    "a stand-by": (stand_by, standing_by, "HEAD_S", "api.standing_by.HEAD_S"),
    "an agent's figures": (agents_figures, metrics, "CLIENT_S", "agent.metrics.CLIENT_S"),
    "a launcher's link": (launchers_link, link, "_HANDSHAKE_S", "launch.link._HANDSHAKE_S"),
    "a validation's fleet": (validations_fleet, wire, "HELLO_S", "validate.wire.HELLO_S"),
}


@pytest.mark.attempt(actor=NEIGHBOUR, asset=PORT, removed="os.doorway.STRANGERS_MAX")
@pytest.mark.parametrize("door", DOORS)
def test_a_thousand_strangers_take_no_process_its_descriptors(attempt: Attempt, tmp_path: Path, door: str) -> None:
    """Open 1,000 connections and say nothing, so that the process has no descriptor left for its own work."""
    attempt.without(doorway, "STRANGERS_MAX", 1_000_000)
    house, count = DOORS[door][0], 200 if attempt.is_open else 1000

    async def work() -> None:
        async with house(tmp_path) as (address, honest):
            lines = await opened(address, count, b"")
            assert await honest()
            least = 1 if attempt.is_open else count - 140
            over = await ended(lines, STILL_S if attempt.is_open else 200.0, least)
            attempt.judge(succeeded=over == 0)

    run(work)


SILENT = {"not a byte": b"", "a word": b"GET /", "a nonce": bytes(16), "half a frame": bytes(20)}


@pytest.mark.attempt(
    actor=NEIGHBOUR, asset=PORT, removed=", ".join(one[3] for one in DOORS.values()), each=tuple(SILENT)
)
@pytest.mark.parametrize("door", DOORS)
def test_other_ports_end_slow_clients(attempt: Attempt, tmp_path: Path, monkeypatch, door: str) -> None:
    """Hold connections of the port without a whole request or introduction."""
    house, module, name, _ = DOORS[door]
    monkeypatch.setattr(module, name, SMALL_S)
    attempt.without(module, name, LONG_S)

    async def work() -> None:
        async with house(tmp_path) as (address, _):
            lines = []
            for data in SILENT.values():
                lines += await opened(address, 20, data)
            over = await ended(lines, STILL_S if attempt.is_open else 200.0)
            attempt.judge(succeeded=over == 0)
            assert over in {0, len(lines)}

    run(work)

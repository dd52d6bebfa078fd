"""The controller's Unix socket: users of this machine without a token, real processes of real users.

Root is here the controller's own user; job 7 is mei's, job 8 `daemon`'s, who stands for a user of the machine.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.api.engine_house import EngineHouse, engine_served, job_view, run, until
from tests.api.test_api import TOKENS

from attack_fixture import only_root
from holdfast.agent.controller_link import ControllerLink
from holdfast.api import Role, listener
from holdfast.api import local_door as api_door
from holdfast.client import AsyncClient
from holdfast.errors import LinkError, RefusedError
from holdfast.launch.uplink import ControllerLine, controller_line
from holdfast.model import events as e
from holdfast.model.cluster import JobKey
from holdfast.model.wire import Beat
from holdfast.os.unix_sockets import NAME, PATH_BYTES_MAX
from local_socket import ANN, BOB, said
from slurm_fixture import short_folder

JOB = JobKey("test", "8")


@asynccontextmanager
async def machine(tmp_path: Path) -> AsyncIterator[tuple[EngineHouse, Path]]:
    """A controller with a socket that every user of the machine may reach."""
    with short_folder() as folder:
        async with engine_served(tmp_path, socket=folder / NAME) as house:
            house.world.set_job(job_view(JOB, ("n2",), user="daemon"))
            await until(lambda: "8" in house.server.app.state.fleet.jobs)
            yield house, folder / NAME


def test_the_controllers_own_user_is_the_operator(tmp_path: Path) -> None:
    """Reads, commands, beats and reports, with no token; in the audit stands the user's name."""

    async def work() -> None:
        async with (
            engine_served(tmp_path, socket=tmp_path / NAME) as house,
            AsyncClient(f"unix:{tmp_path / NAME}") as me,
        ):
            assert [job.key.id for job in await me.jobs()] == ["7"]
            assert not (await me.command(e.Command.DRAIN, who="mei", why="x", node="n1")).refused
            beat = Beat(source="launcher:7", node="n1", cluster="test", job="7", generation=1, boot_id="b-n1")
            assert (await me.beat(beat)).lease_s
            attached = e.LauncherAttached(
                id="la", at=time.time(), source="launcher:7", job=JobKey("test", "7"), restart_count=0, nodes=("n1",)
            )
            assert not (await me.ingest("launcher:7", [attached])).refused
            stored = await house.controller.journal.events(kind="operator_command")
            assert [event.by for event in stored if isinstance(event, e.OperatorCommand)] == ["root user:root"]
            assert await me.healthy()

    only_root("is named root")
    run(work)


def test_a_user_reads_and_commands_their_own_jobs(tmp_path: Path) -> None:
    """As with a token of munge's: the own job, no other one, and nothing of the cluster."""
    only_root("becomes another user")

    async def work() -> None:
        async with machine(tmp_path) as (_, path):
            for uid, seen in ((ANN, {"8"}), (BOB, set())):
                status, text = await asyncio.to_thread(said, uid, path, "GET /v1/jobs")
                assert (status, {number for number in "78" if f'"id":"{number}"' in text}) == (200, seen)
            hold = (
                '{"command": "hold", "who": "x", "why": "y", "job": {"cluster": "test", "id": "%s", "generation": 1}}'
            )
            done = [await asyncio.to_thread(said, ANN, path, "POST /v1/commands", body=hold % job) for job in "87"]
            assert [status for status, _ in done] == [200, 403]

    run(work)


def test_a_launcher_is_let_in_as_the_job_of_its_user(tmp_path: Path) -> None:
    """A beat as `launcher:8` is taken from job 8's user; the source that is asked for is the one that may report."""
    only_root("becomes another user")
    beat = '{"source": "launcher:%s", "node": "n2", "cluster": "test", "job": "%s", "generation": 1, "boot_id": "b"}'

    async def work() -> None:
        async with machine(tmp_path) as (_, path):
            for asked, body, status in (("8", "8", 200), ("8", "7", 403), ("", "8", 403)):
                head = f"Holdfast-Source: launcher:{asked}" if asked else ""
                got, text = await asyncio.to_thread(
                    said, ANN, path, "POST /v1/beat", body=beat % (body, body), head=head
                )
                assert got == status, text

    run(work)


def test_a_token_is_used_where_one_is_shown(tmp_path: Path) -> None:
    """By the socket, too, a token says who asks, and a wrong one is refused, whoever the user is."""

    async def work() -> None:
        async with engine_served(tmp_path, socket=tmp_path / NAME):
            url = f"unix:{tmp_path / NAME}"
            async with AsyncClient(url, TOKENS[Role.VIEWER]) as viewer, AsyncClient(url, "hft_wrong") as wrong:
                assert await viewer.jobs()
                with pytest.raises(RefusedError, match="a viewer's rights; this needs an owner's"):
                    await viewer.command(e.Command.DRAIN, who="mei", why="x", node="n1")
                with pytest.raises(RefusedError, match="this token is unknown here"):
                    await wrong.jobs()

    run(work)


def test_a_path_of_any_length_is_served_and_reached(tmp_path: Path) -> None:
    """Longer than the kernel's 107 bytes, and streams pass through it as they come."""
    folder = tmp_path / ("d" * PATH_BYTES_MAX)
    folder.mkdir()

    async def work() -> None:
        async with (
            engine_served(tmp_path, socket=folder / NAME) as house,
            AsyncClient(f"unix:{folder / NAME}") as me,
            asyncio.timeout(100),
        ):
            stream = me.stream(after=0)
            seen = [await anext(stream) for _ in range(3)]
            assert [event.seq for event in seen] == [1, 2, 3]
            await stream.aclose()
            await house.fault("n3")
            assert await me.incidents()

    run(work)


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/events?after=999999&wait=0.1"])
def test_a_client_that_half_closes_is_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    """The answer ends the connection, also one that comes later than the half-close, and no time-out is waited for.

    A client that has closed both ways leaves nothing behind.
    """
    monkeypatch.setattr(listener, "HEADER_WAIT_MS", 600_000)

    async def work() -> None:
        async with engine_served(tmp_path, socket=tmp_path / NAME) as house, asyncio.timeout(60):
            request = f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
            reader, writer = await asyncio.open_unix_connection(str(tmp_path / NAME))
            writer.write(request)
            writer.write_eof()
            answer = await reader.read()
            assert answer.startswith(b"HTTP/1.1 200 OK")
            assert answer.count(b"HTTP/1.1") == 1
            writer.close()
            reader, writer = await asyncio.open_unix_connection(str(tmp_path / NAME))
            writer.write(request)
            await reader.readuntil(b"\r\n\r\n")
            writer.close()
            await until(lambda: not house.server._door._peers)

    run(work)


def test_a_socket_that_was_left_is_replaced_and_the_own_one_removed(tmp_path: Path) -> None:
    """A killed controller leaves both sockets; the next one listens all the same, and an orderly end removes its own."""
    left = tmp_path / api_door.INNER
    left.mkdir()

    async def work() -> None:
        (left / "http").touch()
        async with engine_served(tmp_path, socket=tmp_path / NAME), AsyncClient(f"unix:{tmp_path / NAME}") as me:
            assert await me.jobs()
            assert left.stat().st_mode & 0o777 == 0o700
        assert not (tmp_path / NAME).exists()
        assert not any(left.iterdir())
        with pytest.raises(LinkError, match="there is no such socket: start the controller"):
            await AsyncClient(f"unix:{tmp_path / NAME}").jobs()

    run(work)


def test_without_a_good_place_the_port_serves_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder that others may write has no socket: the log says so by one sentence, and the API is served."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)

    async def work() -> None:
        async with engine_served(tmp_path, socket=shared / NAME) as house:
            async with AsyncClient(house.server.url, TOKENS[Role.VIEWER]) as viewer:
                assert await viewer.jobs()
            assert not (shared / NAME).exists()

    run(work)
    assert f"chmod go-w {shared}" in capsys.readouterr().out


def test_a_user_whom_the_machine_does_not_know_is_told_so(tmp_path: Path) -> None:
    """A number without a name, and the one that stands for all users of other namespaces, are refused."""
    only_root("becomes another user")

    async def work() -> None:
        async with machine(tmp_path) as (_, path):
            for uid, why in (
                (54321, "knows no user with uid 54321"),
                (api_door.OVERFLOW_UID, "stands for users of other namespaces, too: come as another user"),
            ):
                status, text = await asyncio.to_thread(said, uid, path, "GET /v1/jobs")
                assert (status, why in text) == (403, True)

    run(work)


def test_limits_count_a_user_over_all_connections(tmp_path: Path) -> None:
    """The address of a request by the socket is its user, so that new connections bring no new allowance."""

    async def work() -> None:
        async with engine_served(tmp_path, socket=tmp_path / NAME) as house:
            for _ in range(3):
                async with AsyncClient(f"unix:{tmp_path / NAME}") as me:
                    await me.jobs()
            clients = house.server.app.state.limits._people._levels
            assert [client.rpartition(" ")[2] for client in clients] == [f"uid:{os.geteuid()}"]

    run(work)


def test_launchers_and_agents_of_this_machine_use_the_socket_beside_the_address(tmp_path: Path) -> None:
    """Where a `controller.json` is named and neither a token nor munge; the next controller is reached as the first."""
    file = tmp_path / "controller.json"
    file.write_text('{"url": "http://127.0.0.1:1"}')
    (tmp_path / "agent-token").write_text("hft_x")
    env = {"HOLDFAST_CONTROLLER_FILE": str(file)}
    local, port = f"unix:{tmp_path / NAME}", "http://127.0.0.1:1"

    async def goes(line: ControllerLine | ControllerLink | None) -> str:
        assert line is not None
        client = await (line.client() if isinstance(line, ControllerLine) else line())
        await line.close()
        return client.url

    async def work() -> None:
        line = controller_line(env)
        assert line is not None
        assert await goes(controller_line(env)) == await goes(ControllerLink(file=file)) == port
        for number in "12":
            async with engine_served(tmp_path, socket=tmp_path / NAME):
                client = await line.client()
                assert [job.key.id for job in await client.jobs()] == ["7"], number
                assert await line.client() is client
                assert await goes(controller_line({"HOLDFAST_CONTROLLER": local})) == local
                assert await goes(ControllerLink(file=file, node_dir=tmp_path / "node")) == local
                for more in ({"HOLDFAST_MUNGE": "1"}, {"HOLDFAST_TOKEN_FILE": str(tmp_path / "agent-token")}):
                    assert await goes(controller_line(env | more)) == port
                assert await goes(ControllerLink(file=file, token_file=tmp_path / "agent-token")) == port
        await line.close()

    run(work)


def test_a_controller_whose_user_has_no_name_is_its_own_operator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container runs as a number alone. The one that stands for users of other namespaces gets no socket."""
    monkeypatch.setattr(api_door, "_name_of", lambda _uid: "")

    async def work() -> None:
        async with (
            engine_served(tmp_path, socket=tmp_path / NAME) as house,
            AsyncClient(f"unix:{tmp_path / NAME}") as me,
        ):
            await me.command(e.Command.DRAIN, who="mei", why="x", node="n1")
            (stored,) = await house.controller.journal.events(kind="operator_command")
            assert getattr(stored, "by", "") == f"uid:{os.geteuid()} user:uid:{os.geteuid()}"

    run(work)
    monkeypatch.setattr(os, "geteuid", lambda: api_door.OVERFLOW_UID)
    with pytest.raises(RefusedError, match="stands for users of other namespaces"):
        asyncio.run(api_door.LocalDoor(None, tmp_path / NAME).open())

"""Tokens in exchange for munge credentials, over HTTP to a real controller, by a real munged.

Job 7 of mei runs on n1, whose address is that of the munged. What an attacker gets is in tests/attack/test_munge.py.
"""

from __future__ import annotations

import os
import pwd
import time
from functools import partial
from pathlib import Path

import httpx
import pytest
from tests.api.engine_house import EngineHouse, engine_served, job_view, run, until

from attack_fixture import only_root
from holdfast.adapters.clock import SystemClock
from holdfast.adapters.memory import MemoryOrchestrator
from holdfast.adapters.slurm.client import SlurmOrchestrator
from holdfast.adapters.slurm.settings import SlurmConfig
from holdfast.api.exchange import TOKEN_S, Exchange, ensure_key
from holdfast.client import AsyncClient, Trust
from holdfast.errors import ConfigError, LinkError, NotFoundError, RefusedError, UsageError
from holdfast.model import events as e
from holdfast.model.cluster import JobKey
from holdfast.model.wire import Beat
from holdfast.os import munge
from holdfast.wiring.controller import make_exchange
from munge_fixture import NODE, OTHER_NODE, Munged, node_munged

__all__ = ["node_munged"]

KEY = b"s" * 32
NOBODY = 65534


class Nodes:
    """The scheduler's names."""

    cluster_name = "test"
    addresses = {"n1": NODE, "n2": OTHER_NODE}  # noqa: RUF012 - read only

    def node_address(self, node: str) -> str:
        return self.addresses.get(node, "")


def exchange_of(munged: Munged) -> Exchange:
    return Exchange(partial(munge.decode, socket=munged.socket), Nodes(), KEY)


def me() -> str:
    return pwd.getpwuid(os.geteuid()).pw_name


@pytest.fixture
def trust(node_munged: Munged, monkeypatch: pytest.MonkeyPatch) -> Trust:
    monkeypatch.setenv("HOLDFAST_CLUSTER", "test")
    return Trust(munge=node_munged.socket)


async def own_job(house: EngineHouse) -> JobKey:
    """Job 9, of the user that runs the tests, on n3."""
    key = JobKey("test", "9")
    house.world.set_job(job_view(key, ("n3",), user=me()))
    await until(lambda: "9" in house.server.app.state.fleet.jobs)
    return key


def test_agent_launcher_and_user_log_in_by_munge_alone(tmp_path: Path, node_munged: Munged, trust: Trust) -> None:
    """One client without a token: it reports as the job's launcher, and as the agent of the node where it is root."""

    async def work() -> None:
        async with (
            engine_served(tmp_path, exchange=exchange_of(node_munged)) as house,
            AsyncClient(house.server.url, trust=trust) as client,
        ):
            key = await own_job(house)
            attached = e.LauncherAttached(id="l", at=time.time(), job=key, restart_count=0, nodes=("n3",))
            assert (await client.ingest("launcher:9", [attached])).stored == 1
            said = []
            for job in ("7", "99"):
                with pytest.raises(RefusedError, match=f"no job '{job}' of {me()}") as refused:
                    await client.ingest(f"launcher:{job}", [attached])
                said.append(str(refused.value).replace(job, "ID"))
            assert said[0] == said[1], "the answer tells which ids exist"
            only_root("only root is a node")
            await client.beat(Beat(source="agent:n1", node="n1", boot_id="b-n1"))
            with pytest.raises(RefusedError, match="--origin"):
                await client.beat(Beat(source="agent:n2", node="n2"))
            with pytest.raises(RefusedError, match="no node 'n77'"):
                await client.beat(Beat(source="agent:n77", node="n77"))
            with pytest.raises(RefusedError, match="no token as a person"):
                await client.jobs()

    run(work)


def test_a_user_sees_and_commands_the_own_jobs(tmp_path: Path, node_munged: Munged) -> None:
    """A user's token is an owner's, for the jobs of that user alone."""
    only_root("makes a credential of another user")
    user = pwd.getpwuid(NOBODY).pw_name

    async def work() -> None:
        async with engine_served(tmp_path, exchange=exchange_of(node_munged)) as house:
            house.world.set_job(job_view(JobKey("test", "8"), ("n3",), user=user))
            await until(lambda: "8" in house.server.app.state.fleet.jobs)
            async with httpx.AsyncClient(base_url=house.server.url) as http:
                asked = {"credential": node_munged.make(uid=NOBODY)}
                answer = (await http.post("/v1/token", json=asked)).raise_for_status().json()
            assert (answer["name"], answer["role"], answer["valid_s"]) == (user, "owner", TOKEN_S)
            async with AsyncClient(house.server.url, answer["token"]) as client:
                assert [job.key.id for job in await client.jobs()] == ["8"]
                assert not (await client.command("hold", job=JobKey("test", "8"), why="a look")).refused
                with pytest.raises(RefusedError):
                    await client.command("hold", job=JobKey("test", "7"), why="a look")

    run(work)


def test_one_credential_serves_many_requests_and_a_refused_token_is_renewed(
    tmp_path: Path, node_munged: Munged, trust: Trust, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token is asked for once; a controller with another key, as after a failover, gets a new credential."""
    made: list[bytes] = []
    encode = munge.encode

    async def counted(payload: bytes, socket: str) -> str:
        made.append(payload)
        return await encode(payload, socket)

    monkeypatch.setattr(munge, "encode", counted)

    async def work() -> None:
        exchange = exchange_of(node_munged)
        async with (
            engine_served(tmp_path, exchange=exchange) as house,
            AsyncClient(house.server.url, trust=trust) as client,
        ):
            key = await own_job(house)
            for number in range(4):
                if number == 3:
                    house.server.app.state.exchange = Exchange(exchange._decode, Nodes(), b"z" * 32)
                event = e.LauncherAttached(id=f"l{number}", at=time.time(), job=key, restart_count=0, nodes=("n3",))
                assert (await client.ingest("launcher:9", [event])).stored == 1
            assert len(made) == 2

    run(work)


def test_a_controller_without_munge_says_so(tmp_path: Path, trust: Trust) -> None:
    """The route answers 404, and the sentence names the setting."""

    async def work() -> None:
        async with engine_served(tmp_path) as house, AsyncClient(house.server.url, trust=trust) as client:
            with pytest.raises(NotFoundError, match=r"\[slurm\] munge"):
                await client.jobs()

    run(work)


def test_no_daemon_is_one_sentence(trust: Trust, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without munged both sides say so, and that it may be tried again; without a cluster's name nothing is made."""
    gone = str(tmp_path / "gone")

    async def work() -> None:
        for call in (munge.encode(b"x", gone), munge.decode("MUNGE:AwQFAADF:", gone)):
            with pytest.raises(LinkError, match="munge credential"):
                await call
        monkeypatch.delenv("HOLDFAST_CLUSTER")
        monkeypatch.setenv("SLURM_CONF", gone)
        async with AsyncClient("http://127.0.0.1:9", trust=trust) as client:
            with pytest.raises(LinkError, match="HOLDFAST_CLUSTER"):
                await client.jobs()

    run(work)


def test_the_cluster_is_the_one_of_slurms_own_file(tmp_path: Path) -> None:
    """HOLDFAST_CLUSTER, then Slurm's variable, then ClusterName of slurm.conf."""
    conf = tmp_path / "slurm.conf"
    conf.write_text("# ClusterName=old\n  clustername = tau # here\n")
    of_conf = {"SLURM_CONF": str(conf)}
    assert munge.slurm_cluster(of_conf) == "tau"
    assert munge.slurm_cluster({**of_conf, "SLURM_CLUSTER_NAME": "mu"}) == "mu"
    assert munge.slurm_cluster({**of_conf, "SLURM_CLUSTER_NAME": "mu", "HOLDFAST_CLUSTER": "pi"}) == "pi"
    assert munge.slurm_cluster({"SLURM_CONF": str(tmp_path / "none")}) == ""


def test_only_a_slurm_knows_users_and_nodes_by_munge(tmp_path: Path) -> None:
    """The controller's wiring: nothing without the setting, a sentence for another cluster."""
    world = MemoryOrchestrator(SystemClock())
    assert make_exchange(SlurmConfig(), world, tmp_path) is None
    with pytest.raises(UsageError, match="--cluster slurm:"):
        make_exchange(SlurmConfig(munge=True), world, tmp_path)
    slurm = SlurmOrchestrator(SlurmConfig())
    assert isinstance(make_exchange(SlurmConfig(munge=True), slurm, tmp_path), Exchange)
    assert (slurm.cluster_name, slurm.node_address("n1")) == ("", "")


def test_the_key_stays_with_its_folder(tmp_path: Path) -> None:
    """A controller that starts again accepts what it has signed; the key is nobody else's to read."""
    key = ensure_key(tmp_path)
    assert ensure_key(tmp_path) == key
    file = tmp_path / "exchange-key"
    assert file.stat().st_mode & 0o777 == 0o600
    file.write_bytes(b"short")
    with pytest.raises(ConfigError, match="is no key"):
        ensure_key(tmp_path)

"""Two controller processes race for one journal in PostgreSQL, with clocks ten minutes apart: nothing is done twice.

One cluster, a fault on one node after the other. In the middle of each recovery the active controller is stopped
(SIGSTOP, as a machine that stalls), killed, or cut off from its database; the other takes over. Time is real.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

import holdfast.drill
from chaos.checkers import WorldLog
from cluster_fixture import TestCluster, embedded_cluster
from holdfast.adapters.journal.reading_postgres import PostgresReading
from holdfast.client import AsyncClient
from holdfast.errors import HoldfastError
from holdfast.model import events as e
from holdfast.model import orders as o
from holdfast.model.evidence import Domain, Finding, Place, Remedy, Role
from postgres_fixture import Postgres, running_postgres

SKEWED = Path(__file__).with_name("skewed_controller.py")
POLICY = Path(holdfast.drill.__file__).with_name("policy.toml")
LEASE_S = 3.0
LIMIT_S = 120.0
ROUNDS = ("stop", "kill", "cut", "stop", "kill")


class Replica:
    """One controller process after the other, in one folder, with one wrong clock."""

    def __init__(self, name: str, ahead_s: float, cluster: TestCluster, url: str) -> None:
        self.name = name
        self.folder = cluster.folder.parent / name
        self._url = f"{url}&application_name={name}"
        self._argv = [
            *(sys.executable, str(SKEWED), str(ahead_s), "--dir", str(self.folder), "--listen", "127.0.0.1:0"),
            *("--cluster", f"local:{cluster.folder / 'cluster.sock'}", "--journal", self._url, "--standby"),
            *("--lease-s", str(LEASE_S), "--policy", str(POLICY)),
        ]
        self.folder.mkdir(exist_ok=True)
        self.log = self.folder / "log"
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        self.end()
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self._argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def end(self) -> int | None:
        if self.process is None:
            return None
        self.process.kill()
        return self.process.wait()

    def client(self) -> AsyncClient | None:
        """Of this process, if it leads and answers."""
        file = self.folder / "controller" / "controller.json"
        with contextlib.suppress(OSError, ValueError):
            facts = json.loads(file.read_bytes())
            if self.process is not None and facts["pid"] == self.process.pid and self.process.poll() is None:
                return AsyncClient(facts["url"], (self.folder / "controller" / "token").read_text().strip())
        return None

    def cut(self, server: Postgres) -> None:
        """Its sessions are ended, again and again would be a partition; once is a failover of the database."""
        server.kill_backends(self._url)


class Pair:
    def __init__(self, replicas: tuple[Replica, Replica]) -> None:
        self.replicas = replicas
        self.kept_down: Replica | None = None

    def supervise(self) -> None:
        """As a service's keeper: one that has ended, because it was superseded, is started again."""
        for replica in self.replicas:
            if replica is not self.kept_down and replica.process is not None and replica.process.poll() is not None:
                replica.start()

    async def active(self, *, other_than: int = 0) -> tuple[Replica, int]:
        """The one that leads with a newer epoch than this, and its epoch."""
        deadline = time.monotonic() + LIMIT_S
        while True:
            self.supervise()
            for replica in self.replicas:
                with contextlib.suppress(HoldfastError, TimeoutError):
                    client = replica.client()
                    if client is not None:
                        async with client:
                            health = (await asyncio.wait_for(client.state(), 5)).health
                        if health["ready"] and health["epoch"] > other_than:
                            return replica, health["epoch"]
            assert time.monotonic() < deadline, [one.log.read_text()[-3000:] for one in self.replicas]
            await asyncio.sleep(0.05)


def fault(node: str) -> e.FindingSeen:
    seen = Finding(
        id=f"xid-{node}",
        rule="nvidia.xid.74",
        at=time.time(),
        domain=Domain.HARDWARE,
        role=Role.ROOT,
        remedy=Remedy.REPLACE,
        place=Place(node=node, gpu=3),
    )
    return e.FindingSeen(id=f"seen-{node}", at=time.time(), finding=seen)


async def tell(pair: Pair, node: str, *told: e.AnyEvent) -> None:
    """As an agent does: again and again until it is acknowledged."""
    while True:
        replica, _ = await pair.active()
        with contextlib.suppress(HoldfastError):
            client = replica.client()
            if client is not None:
                async with client:
                    await client.ingest(f"agent:{node}", list(told))
                return
        await asyncio.sleep(0.05)


async def returned(pair: Pair, url: str, node: str) -> None:
    """Be the agent of the node's new machine, which says that it is well, until the node's incident is closed."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        pair.supervise()
        reading = await asyncio.to_thread(PostgresReading, url)
        incidents, orders = await reading.incidents(), await reading.orders(pending_only=True)
        await reading.close()
        if any(one.closed_at and one.nodes == [node] for one in incidents):
            return
        for order in (one.order for one in orders):
            if isinstance(order, o.ValidateNode) and order.node == node:
                well = e.NodeValidated(
                    id=f"well-{order.id}", at=time.time(), node=node, passed=True, instance_id=order.instance_id
                )
                await tell(pair, node, well, e.OrderDone(id=f"done-{order.id}", at=time.time(), order=order.id))
        if time.monotonic() >= deadline:
            raise AssertionError(await said(url, node))
        await asyncio.sleep(0.1)


async def said(url: str, node: str) -> str:
    """What is known of a node that does not come back."""
    reading = await asyncio.to_thread(PostgresReading, url)
    records, orders, events = await reading.nodes(node=node), await reading.orders(), await reading.events()
    await reading.close()
    return "\n".join(map(str, [f"{node} was not returned in {LIMIT_S} s", *records, *orders, *events]))


@pytest.mark.cluster
@pytest.mark.timeout(900)
def test_two_racing_controllers_with_clocks_ten_minutes_apart_do_nothing_twice(tmp_path: Path):
    """Each finding leads to one incident, each node is drained, replaced and returned once, by the scheduler's count."""

    async def work(server: Postgres, url: str) -> None:
        nodes = [f"node{n:02}" for n in range(1, len(ROUNDS) + 1)]
        async with embedded_cluster(tmp_path, nodes=len(ROUNDS) + 1, agents=False) as cluster:
            log = WorldLog(cluster.folder)
            await log.start()
            pair = Pair((Replica("a", 300.0, cluster, url), Replica("b", -300.0, cluster, url)))
            try:
                await play(pair, server, url, nodes)
            finally:
                for replica in pair.replicas:
                    replica.end()
                await log.stop()
            judge_world(log, nodes)
        await judge_journal(url, nodes)

    with running_postgres() as server:
        asyncio.run(work(server, server.schema_url()))


async def play(pair: Pair, server: Postgres, url: str, nodes: list[str]) -> None:
    for number, (how, node) in enumerate(zip(ROUNDS, nodes, strict=True)):
        replica, epoch = await pair.active()
        assert replica.process is not None
        await tell(pair, node, fault(node))
        await asyncio.sleep(0.05 * number)
        if how == "cut":
            replica.cut(server)
        else:
            pair.kept_down = replica
            replica.process.send_signal(signal.SIGSTOP if how == "stop" else signal.SIGKILL)
            heir, _ = await pair.active(other_than=epoch)
            assert heir is not replica
        if how == "stop":
            replica.process.send_signal(signal.SIGCONT)
            # It wakes up in the belief that it leads: the journal tells it otherwise, and it ends.
            assert await asyncio.to_thread(replica.process.wait, LIMIT_S) == 70
            assert "was superseded" in replica.log.read_text() or "another controller has taken over" in (
                replica.log.read_text()
            )
        if how != "cut":
            replica.start()
            pair.kept_down = None
        await returned(pair, url, node)


def judge_world(log: WorldLog, nodes: list[str]) -> None:
    for name in nodes:
        facts = log.nodes[name]
        machines = list(dict.fromkeys(one.instance_id for one in facts if one.instance_id))
        assert len(machines) == 2, f"{name} was replaced {len(machines) - 1} times"
        drained = [one.drained for one in facts]
        edges = Counter(itertools.pairwise(drained))
        assert edges[False, True] <= 1, f"{name} was drained {edges[False, True]} times"
        assert not drained[-1]


async def judge_journal(url: str, nodes: list[str]) -> None:
    reading = PostgresReading(url)
    events = await reading.events(limit=100_000)
    orders = await reading.orders(limit=100_000)
    entries = await reading.entries(limit=100_000)
    await reading.close()
    assert [one.seq for one in events] == list(range(1, len(events) + 1))
    assert Counter(one.id for one in events).most_common(1)[0][1] == 1
    epochs = [one.epoch for one in events if isinstance(one, e.ControllerStarted)]
    assert epochs == sorted(set(epochs))
    assert len(epochs) >= 1 + sum(how != "cut" for how in ROUNDS)
    # A successor that saw a renewal knows the difference, as exactly as its looks were prompt (on a loaded machine they
    # are not); one that saw none knows only that it is behind.
    shifts = [one.ahead_s for one in events if isinstance(one, e.ControllerStarted)][1:]
    assert all(abs(abs(shift) - 600.0) < 120.0 or shift == 0.0 for shift in shifts), shifts
    assert any(shifts), shifts
    given = Counter((type(order), getattr(order, "node", "")) for one in entries for order in one.orders)
    for node in nodes:
        for kind in (o.QuarantineNode, o.ReplaceNode, o.ReturnNode):
            assert given[kind, node] == 1, (kind, node, given[kind, node])
    assert not [one for one in orders if one.status is o.OrderStatus.PENDING and isinstance(one.order, o.NodeOrder)]

"""500 nodes, 5,000 pods and ten faults on a real API server that is killed meanwhile: each fault is dealt with once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast.drill
from holdfast.adapters.kubernetes.api import ApiError, KubeApi
from holdfast.client import AsyncClient
from holdfast.errors import HoldfastError, LinkError
from holdfast.lab.kube_lab import KubeLab
from holdfast.model import events as e
from holdfast.model import orders as o
from holdfast.model.evidence import Domain, Finding, Place, Remedy, Role
from kube_fixture import JOBS, admin, compact, running_lab
from kube_hollow import HollowCluster
from kube_world import batch_job, template

pytestmark = [pytest.mark.cluster, pytest.mark.soak, pytest.mark.timeout(3600)]
NODES, PODS, TRAINING, SIZE = 500, 5000, 10, 40
AWAY_S = 60.0
LIMIT_S = 900.0
POLICY = Path(holdfast.drill.__file__).with_name("policy.toml")
REPAIR = """\
#!{python} -IS
import sys
with open({file!r}, "a") as file:
    file.write("{verb} " + sys.argv[-1] + chr(10))
"""


class Site:
    """The controller's process, and those who repair and check nodes here."""

    def __init__(self, lab: KubeLab, folder: Path) -> None:
        self.folder = folder
        self.repairs = folder / "repairs"
        self.repairs.touch()
        lines = ["[kubernetes]", f"kubeconfig = {json.dumps(str(lab.kubeconfig))}", 'cluster = "scale"']
        for verb in ("reboot", "replace"):
            program = folder / f"{verb}-node"
            program.write_text(REPAIR.format(python=sys.executable, file=str(self.repairs), verb=verb))
            program.chmod(0o755)
            lines.append(f"{verb}_program = {json.dumps([str(program)])}")
        (folder / "holdfast.toml").write_text("\n".join(lines) + "\n")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        (self.folder / "controller" / "controller.json").unlink(missing_ok=True)
        argv = [sys.executable, "-m", "holdfast.cli.main", "controller", "--dir", str(self.folder)]
        argv += ["--config", str(self.folder / "holdfast.toml"), "--policy", str(POLICY)]
        argv += ["--cluster", "kubernetes:", "--listen", "127.0.0.1:0"]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def client(self) -> AsyncClient:
        facts = json.loads((self.folder / "controller" / "controller.json").read_bytes())
        return AsyncClient(facts["url"], (self.folder / "controller" / "token").read_text().strip())

    async def tell(self, source: str, *told: e.AnyEvent) -> None:
        """As an agent does: until it is acknowledged."""
        while True:
            with contextlib.suppress(HoldfastError, OSError, ValueError):
                async with self.client() as client:
                    await client.ingest(source, list(told))
                return
            await asyncio.sleep(0.1)

    async def repair(self, hollow: HollowCluster, api: KubeApi) -> None:
        """Power cycles and new machines: what the programs wrote down is done, each line once."""
        done = 0
        while True:
            lines = self.repairs.read_text().splitlines()
            for line in lines[done:]:
                verb, name = line.split()
                number, turn = int(name.removeprefix("gpu-")), done + 1
                if verb == "replace":
                    await again(lambda name=name: api.delete(f"/api/v1/nodes/{name}"))
                    await again(lambda number=number, turn=turn: hollow.add_node(number, turn))
                await again(lambda number=number, turn=turn: hollow.boot(number, machine=turn, times=turn))
                done += 1
            await asyncio.sleep(0.1)

    async def check(self) -> None:
        """The agents' part: each node that is to be checked is well."""
        while True:
            with contextlib.suppress(HoldfastError, OSError, ValueError):
                async with self.client() as client:
                    for order in (one.order for one in await client.orders(pending_only=True)):
                        if isinstance(order, o.ValidateNode):
                            at = time.time()
                            well = e.NodeValidated(
                                id=f"well-{order.id}",
                                at=at,
                                node=order.node,
                                passed=True,
                                instance_id=order.instance_id,
                            )
                            over = e.OrderDone(id=f"done-{order.id}", at=at, order=order.id)
                            await client.ingest(f"agent:{order.node}", [well, over])
            await asyncio.sleep(0.5)


async def again(work: Callable[[], Awaitable[Any]]) -> None:
    while True:
        try:
            await work()
        except (LinkError, ApiError) as error:
            if isinstance(error, ApiError) and (error.gone or error.conflict):
                return
            await asyncio.sleep(0.2)
        else:
            return


async def until(holds: Callable[[], Awaitable[Any]], what: str, log: Path) -> Any:
    deadline = time.monotonic() + LIMIT_S
    last: object = None
    while True:
        with contextlib.suppress(HoldfastError, ApiError, OSError, ValueError):
            last = await holds()
            if last is True:
                return
        assert time.monotonic() < deadline, f"not within {LIMIT_S} s: {what}: {last}\n{log.read_text()[-4000:]}"
        await asyncio.sleep(0.5)


def fault(node: str, xid: int) -> e.FindingSeen:
    seen = Finding(
        id=f"xid-{node}", rule=f"nvidia.xid.{xid}", at=time.time(), domain=Domain.HARDWARE, role=Role.ROOT,
        remedy=Remedy.REPLACE if xid == 74 else Remedy.REBOOT, place=Place(node=node, gpu=3),
    )  # fmt: skip
    return e.FindingSeen(id=f"seen-{node}", at=time.time(), finding=seen)


async def pods_of(api: KubeApi, name: str) -> list[dict[str, Any]]:
    pods, _ = await api.list_all("/api/v1/namespaces/default/pods", {"labelSelector": f"job-name={name}"})
    return [
        pod for pod in pods if pod["status"].get("phase") == "Running" and not pod["metadata"].get("deletionTimestamp")
    ]


async def job_is(api: KubeApi, name: str, restarts: int, off: str = "") -> Any:
    """True when it runs whole, off this node, restarted so often; else what is so."""
    job = await api.get(f"{JOBS}/{name}")
    count = int((job["metadata"].get("annotations") or {}).get("holdfast.dev/restart-count", "0"))
    live = [pod["spec"]["nodeName"] for pod in await pods_of(api, name)]
    assert count <= restarts, f"{name} was restarted {count} times"
    return (count == restarts and len(live) == SIZE and off not in live) or (name, count, len(live), off in live)


async def node_is_back(api: KubeApi, name: str) -> Any:
    node = await api.get(f"/api/v1/nodes/{name}")
    health = (node["metadata"].get("labels") or {}).get("holdfast.dev/node-health-status")
    return (health == "Schedulable" and not node["spec"].get("unschedulable")) or (name, health)


def test_ten_faults_in_a_large_cluster_whose_api_server_dies_are_each_dealt_with_once(tmp_path: Path) -> None:
    """Six at once; then four while the API server is killed for a minute, etcd forgets, and the controller is killed."""

    async def body(lab: KubeLab) -> None:
        site = Site(lab, tmp_path)
        async with admin(lab) as api:
            hollow = HollowCluster(api, NODES)
            await hollow.fill(PODS - TRAINING * SIZE)
            background = [asyncio.create_task(work) for work in (hollow.keep(), site.repair(hollow, api), site.check())]
            names = [f"train-{number}" for number in range(TRAINING)]
            try:
                for name in names:
                    pod = template(["train"])
                    await api.create(JOBS, batch_job(name, pod, nodes=SIZE, **{"holdfast.dev/auto-resume": "true"}))
                for name in names:
                    await until(lambda name=name: job_is(api, name, 0), f"{name} runs", tmp_path / "log")
                site.start()
                hit = {name: (await pods_of(api, name))[7]["spec"]["nodeName"] for name in names}
                await until(lambda: knows(site), "the controller knows all jobs", tmp_path / "log")

                async def strike(some: list[str]) -> None:
                    told = [(hit[name], 74 if names.index(name) % 2 else 73) for name in some]
                    await asyncio.gather(*(site.tell(f"agent:{node}", fault(node, xid)) for node, xid in told))

                async def judge(some: list[str]) -> None:
                    for name in some:
                        await until(
                            lambda name=name: job_is(api, name, 1, hit[name]), f"{name} again", tmp_path / "log"
                        )
                        await until(lambda name=name: node_is_back(api, hit[name]), f"{name}'s node", tmp_path / "log")

                await strike(names[:6])
                await judge(names[:6])
                await strike(names[6:])
                await asyncio.to_thread(lab.stop, "kube-apiserver")
                await asyncio.to_thread(compact, lab)
                await asyncio.sleep(AWAY_S / 2)
                site.kill()
                site.start()
                await asyncio.sleep(AWAY_S / 2)
                await asyncio.to_thread(lab.run, "kube-apiserver")
                await judge(names[6:])
                for name in names:
                    assert await job_is(api, name, 1, hit[name]) is True
                    made = {uid for uid, about in hollow.pods.items() if about["name"].startswith(f"{name}-")}
                    assert len(made) == 2 * SIZE, f"{name}: {len(made)} pods"
                repaired = Counter(line.split()[1] for line in site.repairs.read_text().splitlines())
                assert repaired == dict.fromkeys(hit.values(), 1)
                async with site.client() as client:
                    incidents = await client.incidents()
                told = Counter(node for one in incidents for node in one.nodes)
                assert {node: told[node] for node in hit.values()} == dict.fromkeys(hit.values(), 1)
                assert not [task for task in background if task.done()]
            finally:
                site.kill()
                for task in background:
                    task.cancel()
                await asyncio.gather(*background, return_exceptions=True)

    with running_lab(nodes=0, agents=False, node_grace_s=86_400) as lab:
        asyncio.run(body(lab))


async def knows(site: Site) -> bool:
    async with site.client() as client:
        return sum(one.view.state == "running" for one in await client.jobs()) >= TRAINING

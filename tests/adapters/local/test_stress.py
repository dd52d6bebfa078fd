"""Random orders and faults on an embedded cluster: it never loses a process, never shares a node, always settles."""

import asyncio
import contextlib
import os
import random
from pathlib import Path

import pytest

from cluster_fixture import TestCluster, embedded_cluster
from holdfast.adapters.local.node_init import process_table
from holdfast.adapters.local.processes import command_of, environment_of
from holdfast.errors import HoldfastError, LinkError
from holdfast.model.cluster import ENDED, JobKey, SchedulerState
from holdfast.model.orders import ReleaseJob, ReplaceNode, RequeueHeld

pytestmark = pytest.mark.cluster

NODES = ("node01", "node02", "node03", "node04")
SCRIPTS = (
    "sleep 1000",
    "sleep 0.1",
    "exit 3",
    "trap '' TERM; setsid sleep 1000 & setsid env -i sleep {nap} & wait",
    "(sleep 0.05; kill -11 $$) & sleep 1000",
)


def nap() -> str:
    """A duration of sleep by which this test's processes are known even with an empty environment."""
    return f"1000.{os.getpid()}"


def wiped() -> list[int]:
    return [pid for pid in process_table() if command_of(pid)[:2] == ["sleep", nap()]]


def jobs_by_node(cluster: TestCluster) -> dict[str, set[tuple[str, str]]]:
    """(job, restart count) of every process that runs on each node now."""
    found: dict[str, set[tuple[str, str]]] = {}
    for pid in cluster.left():
        env = environment_of(pid)
        if "HOLDFAST_JOB_ID" in env:
            attempt = (env["HOLDFAST_JOB_ID"], env["HOLDFAST_RESTART_COUNT"])
            found.setdefault(env["HOLDFAST_NODE"], set()).add(attempt)
    return found


async def step(cluster: TestCluster, dice: random.Random, number: int) -> None:
    """One random deed."""
    o = cluster.orchestrator
    world = await o.observe()
    node = dice.choice(NODES)
    job = dice.choice(world.jobs) if world.jobs else None
    deed = dice.choice(("submit", "submit", "requeue", "release", "release", "cancel", "power", "boot", "replace", "cut",
                        "heal", "stop", "go", "init", "drain", "resume"))  # fmt: skip
    if deed == "submit":
        await o.submit(["bash", "-c", dice.choice(SCRIPTS).replace("{nap}", nap())], nodes=dice.randint(1, 3), lease_s=0.3, stop_grace_s=0.1,
                       bad_exit_wait_s=0.05)  # fmt: skip
    elif deed in {"requeue", "release"} and job is not None:
        key = JobKey(cluster="cluster", id=job.key.id)
        order = (
            RequeueHeld(id=f"o{number}", cause=1, job=key, restart_count=job.restart_count)
            if deed == "requeue"
            else ReleaseJob(id=f"o{number}", cause=1, job=key, epoch=number)
        )
        await o.execute(order)
    elif deed == "cancel" and job is not None:
        await o.cancel(job.key.id)
    elif deed == "power":
        await o.do("power_off", node)
    elif deed == "boot":
        await o.do("heal", node)
        await (o.do("power_on", node) if dice.random() < 0.5 else o.do("reboot", node))
    elif deed == "replace":
        view = next(n for n in world.nodes if n.name == node)
        await o.execute(ReplaceNode(id=f"o{number}", cause=1, node=node, instance_id=view.instance_id))
    elif deed in {"stop", "go"}:
        await o.do("stop_process", node, target="node", resume=deed == "go")
    elif deed == "init":
        await o.do("kill", node, target=dice.choice(("node", "job", "task")))
    elif deed in {"cut", "heal", "resume"}:
        await o.do(deed, node)
    elif deed == "drain":
        await o.do("drain", node, reason="stress")


@pytest.mark.parametrize("seed", [1, 2])
def test_random_orders_and_faults(tmp_path: Path, seed: int) -> None:
    """After every deed no node holds two attempts; when the faults stop, jobs can be ended and every node comes back."""

    async def body() -> None:
        dice = random.Random(seed)
        async with embedded_cluster(
            tmp_path, nodes=3, spares=1, options=("--silent-after-s", "1.0", "--boot-s", "0.05")
        ) as cluster:
            o = cluster.orchestrator
            under_way: set[asyncio.Task] = set()
            for number in range(120):
                task = asyncio.create_task(step(cluster, dice, number))
                under_way.add(task)
                await asyncio.wait([task], timeout=0.05)
                shared = {node: found for node, found in jobs_by_node(cluster).items() if len(found) > 1}
                assert shared == {}, f"seed {seed}, step {number}"
            for node in NODES:
                await o.do("heal", node)
                with contextlib.suppress(HoldfastError):
                    await o.do("stop_process", node, target="node", resume=True)
                await o.do("power_on", node)
                await o.do("resume", node)
            done, pending = await asyncio.wait(under_way, timeout=20)
            assert not pending, f"seed {seed}: an order never came back"
            for task in done:
                error = task.exception()
                assert error is None or (isinstance(error, HoldfastError) and not isinstance(error, LinkError)), repr(
                    error
                )
            for job in (await o.observe()).jobs:
                await o.cancel(job.key.id)
            await cluster.until(lambda w: all(j.state in ENDED for j in w.jobs), f"seed {seed}: all jobs ended")
            await cluster.until(lambda w: all(n.alive and not n.jobs for n in w.nodes), f"seed {seed}: all nodes free")
            last = await o.submit(["true"], nodes=4)
            await cluster.until_job(last.key.id, SchedulerState.COMPLETED)
            assert jobs_by_node(cluster) == {}
            assert wiped() == [], "a process without marks outlived its attempt"
        assert cluster.left() == []
        assert wiped() == []

    asyncio.run(body())

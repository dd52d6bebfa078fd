"""The orchestrators that need no cluster of their own, against the contract suite: memory and the embedded cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from cluster_fixture import TestCluster, embedded_cluster
from contract.orchestrator import CASES, Case, World
from holdfast.adapters.clock import SystemClock
from holdfast.adapters.local.processes import environment_of
from holdfast.adapters.memory.world import MemoryOrchestrator
from holdfast.model.cluster import JobKey, JobView, NodeView, SchedulerState, WorldView
from holdfast.model.records import RUNS


class MemoryWorld:
    """Values in memory, with the few lines of a scheduler that starts what waits."""

    def __init__(self) -> None:
        nodes = [
            NodeView(name=f"node{n:02d}", alive=True, boot_id=f"boot-{n}", instance_id=f"machine-{n}")
            for n in (1, 2, 3)
        ]
        self.memory = MemoryOrchestrator(SystemClock(), nodes=nodes)
        self.orchestrator = self
        self.name = self.memory.name
        self.can = self.memory.can
        self.wait_change = self.memory.wait_change
        self.execute = self.memory.execute
        self.count = 0

    async def observe(self) -> WorldView:
        for job in list(self.memory.jobs.values()):
            busy = {node for other in self.memory.jobs.values() if other.state in RUNS for node in other.nodes}
            free = [n for n, v in self.memory.nodes.items() if n not in busy | set(job.excluded) and not v.drained]
            if job.state is SchedulerState.PENDING and len(free) >= job.want_nodes:
                self.memory.start(job.key, tuple(free[: job.want_nodes]))
        return await self.memory.observe()

    async def submit(self, *, nodes: int = 1, exclude: tuple[str, ...] = ()) -> JobKey:
        self.count += 1
        key = JobKey("test", str(self.count))
        self.memory.set_job(JobView(key=key, state=SchedulerState.PENDING, want_nodes=nodes, excluded=exclude))
        return key

    async def drain_as_admin(self, node: str, reason: str) -> None:
        view = self.memory.nodes[node]
        self.memory.set_node(msgspec.structs.replace(view, drained=True, drain_reason=reason))

    async def processes(self, job: JobKey) -> int:
        return 0

    async def lose_scheduler(self) -> None:
        self.memory.unreadable = "the network is gone"


class LocalWorld:
    """Real processes on an embedded cluster."""

    def __init__(self, cluster: TestCluster) -> None:
        self.cluster = cluster
        self.orchestrator = cluster.orchestrator

    async def submit(self, *, nodes: int = 1, exclude: tuple[str, ...] = ()) -> JobKey:
        job = await self.cluster.orchestrator.submit(["sleep", "1000"], nodes=nodes, exclude=exclude)
        return job.key

    async def drain_as_admin(self, node: str, reason: str) -> None:
        await self.cluster.orchestrator.do("drain", node, reason=reason)

    async def processes(self, job: JobKey) -> int:
        return sum(environment_of(pid).get("HOLDFAST_JOB_ID") == job.id for pid in self.cluster.left())

    async def lose_scheduler(self) -> None:
        self.cluster.running.process.kill()
        self.cluster.running.process.wait()


@asynccontextmanager
async def memory(tmp_path: Path) -> AsyncIterator[World]:
    yield MemoryWorld()


@asynccontextmanager
async def local(tmp_path: Path) -> AsyncIterator[World]:
    async with embedded_cluster(tmp_path, nodes=3) as cluster:
        yield LocalWorld(cluster)


@pytest.mark.parametrize("make_world", [memory, pytest.param(local, marks=pytest.mark.cluster)])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_contract(case: Case, make_world: Callable[[Path], AbstractAsyncContextManager[World]], tmp_path: Path) -> None:
    """See the case's own docstring in `contract/orchestrator.py`."""

    async def body() -> None:
        async with make_world(tmp_path) as world:
            await case(world)

    asyncio.run(body())

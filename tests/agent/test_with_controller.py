"""The embedded cluster with real agents and a real controller: from a kernel-log line to a job on other nodes."""

import asyncio
import json
import time
from pathlib import Path

import pytest

from cluster_fixture import embedded_cluster, job_of, node_of
from holdfast.client import AsyncClient
from holdfast.model.cluster import RecoverySpec, SchedulerState
from holdfast.model.events import AgentAttached, FindingSeen

pytestmark = pytest.mark.cluster

XID_74 = "NVRM: Xid (PCI:0000:b9:00): 74, pid=1, name=x, NVLink: fatal error detected on link 6(0x0, 0x0, 0x10000)"


async def attached(folder: Path, count: int) -> AsyncClient:
    """A client, once this many agents have attached."""
    facts = json.loads((folder / "controller" / "controller.json").read_text())
    client = AsyncClient(facts["url"], (folder / "controller" / "token").read_text().strip())
    deadline = time.monotonic() + 15
    while True:
        page = await client.events(kind="agent_attached")
        if len({event.node for event in page.events if isinstance(event, AgentAttached)}) >= count:
            return client
        assert time.monotonic() < deadline, page
        await asyncio.sleep(0.05)


def test_an_xid_moves_the_job_and_replaces_the_node(tmp_path: Path) -> None:
    """Xid 74: the job runs on the spare within a second, the node is another machine, validated and back in service."""

    async def body() -> None:
        async with embedded_cluster(tmp_path, nodes=2, spares=1, controller=True) as cluster:
            o = cluster.orchestrator
            client = await attached(cluster.folder, 3)
            job = await o.submit(["sleep", "1000"], nodes=2, recovery=RecoverySpec(), drill_ok=True)
            await cluster.until_job(job.key.id, SchedulerState.RUNNING)
            before = node_of(await o.observe(), "node01").instance_id
            begun = time.time()
            await o.do("kmsg", "node01", text=XID_74)
            moved = await cluster.until(
                lambda w: (
                    job_of(w, job.key.id).restart_count == 1 and job_of(w, job.key.id).state is SchedulerState.RUNNING
                )
            )
            assert job_of(moved, job.key.id).nodes == ("node02", "node03")
            (seen,) = [e for e in (await client.events(kind="finding_seen")).events if isinstance(e, FindingSeen)]
            assert seen.received_at - begun < 0.5
            assert job_of(moved, job.key.id).started_at - seen.received_at < 1.0
            node = await cluster.until_node(
                "node01", lambda n: n.instance_id != before and n.alive is True and not n.drained, limit_s=20
            )
            assert node.drain_reason == ""
            await client.close()

    asyncio.run(body())


def test_agents_follow_a_controller_that_was_killed(tmp_path: Path) -> None:
    """After SIGKILL another controller on another port hears what the agent saw meanwhile, once."""

    async def body() -> None:
        async with embedded_cluster(tmp_path, nodes=1, controller=True) as cluster:
            client = await attached(cluster.folder, 1)
            await client.close()
            cluster.kill_controller()
            (cluster.folder / "controller" / "controller.json").unlink()
            await cluster.orchestrator.do("kmsg", "node01", text=XID_74)
            await cluster.start_controller_and_wait()
            client = await attached(cluster.folder, 1)
            deadline = time.monotonic() + 10
            while True:
                found = (await client.events(kind="finding_seen")).events
                if found:
                    break
                assert time.monotonic() < deadline
                await asyncio.sleep(0.02)
            await asyncio.sleep(1.2)  # longer than the reporter's pause: a second delivery would be here by now
            found = (await client.events(kind="finding_seen")).events
            assert len(found) == 1
            await client.close()

    asyncio.run(body())

"""Marks on real nodes and jobs for people who read Slurm: HyperPod's reasons, comments, and partitions put right."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from holdfast.adapters.slurm.client import SlurmOrchestrator
from holdfast.adapters.slurm.settings import SlurmConfig
from holdfast.lab.slurm_lab import SlurmLab
from holdfast.model import orders as o
from holdfast.model.evidence import Remedy
from slurm_world import SlurmWorld, small_lab

pytestmark = pytest.mark.cluster

PARTITIONS = """\
PartitionName=main Nodes=ALL Default=YES
PartitionName=batch Nodes=node01
"""
_ids = itertools.count(1)


@pytest.fixture(scope="module")
def lab() -> Iterator[SlurmLab]:
    with small_lab(2, extra_conf=PARTITIONS) as lab:
        yield lab


def quarantine(repair: Remedy = Remedy.REPLACE, why: str = "Xid 79") -> o.QuarantineNode:
    return o.QuarantineNode(id=f"o{next(_ids)}", cause=1, node="node01", why=why, repair=repair, action_reason=True)


def give_back() -> o.ReturnNode:
    return o.ReturnNode(id=f"o{next(_ids)}", cause=1, node="node01")


def shown(lab: SlurmLab, what: str) -> str:
    return lab.run(["sinfo", "-h", "-p", "main", "-n", "node01", "-O", what]).strip()


def run(lab: SlurmLab, folder: Path, body: Callable[[SlurmWorld], Awaitable[None]]) -> None:
    """With the adapter on the lab, for so long."""

    async def whole() -> None:
        world = SlurmWorld(lab, folder)
        try:
            async with asyncio.timeout(60):
                await body(world)
        finally:
            await world.orchestrator.close()

    asyncio.run(whole())


def test_a_fenced_node_has_hyperpods_reason_and_the_cause_as_comment(lab: SlurmLab, tmp_path: Path) -> None:
    """An administrator's own comment and all partitions are back when it is returned."""

    async def body(world: SlurmWorld) -> None:
        execute = world.orchestrator.execute
        lab.run(["scontrol", "update", "NodeName=node01", "Comment=rack 3"])
        assert await execute(quarantine()) == "set to fail, Action:Replace"
        assert [shown(lab, what) for what in ("StateLong", "Reason", "Comment")] == [
            "fail",
            "Action:Replace",
            "[holdfast] Xid 79",
        ]
        seen = await world.until_node("node01", lambda node: node.drained)
        assert (seen.drain_reason, seen.asked) == ("[holdfast] Xid 79", "")
        assert await execute(quarantine()) == "out of service already"
        lab.run(["scontrol", "update", "PartitionName=batch", "Nodes="])
        assert await execute(give_back()) == "in service, and back in batch"
        assert [shown(lab, what) for what in ("StateLong", "Comment")] == ["idle", "rack 3"]
        assert lab.run(["sinfo", "-h", "-N", "-n", "node01", "-o", "%R"]).split() == ["main", "batch"]

    run(lab, tmp_path, body)


def test_a_partition_that_an_administrator_took_it_from_before_is_not_its_own(lab: SlurmLab, tmp_path: Path) -> None:
    """What counts is where it was when it was fenced; a partition that is gone is left gone."""

    async def body(world: SlurmWorld) -> None:
        lab.run(["scontrol", "update", "PartitionName=batch", "Nodes="])
        lab.run(["scontrol", "create", "PartitionName=brief", "Nodes=node01"])
        await world.orchestrator.execute(quarantine())
        lab.run(["scontrol", "delete", "PartitionName=brief"])
        assert await world.orchestrator.execute(give_back()) == "in service"
        assert lab.run(["sinfo", "-h", "-N", "-n", "node01", "-o", "%R"]).split() == ["main"]

    run(lab, tmp_path, body)


def test_a_marked_node_is_replaced_by_whoever_acts_on_its_reason(lab: SlurmLab, tmp_path: Path) -> None:
    """The order is done when another machine answers, not as soon as the mark is there."""

    async def body(_: SlurmWorld) -> None:
        other = SlurmOrchestrator(SlurmConfig(replace_by_reason=True), conf=lab.facts.conf, folder=tmp_path)
        try:
            await other.execute(quarantine())
            order = o.ReplaceNode(id=f"o{next(_ids)}", cause=1, node="node01")
            replacing = asyncio.create_task(other.execute(order))
            await asyncio.wait({replacing}, timeout=3.0)
            assert not replacing.done()
            await asyncio.to_thread(lab.node, "replace", "node01")
            assert "another machine" in await replacing
            await other.execute(give_back())
        finally:
            await other.close()

    run(lab, tmp_path, body)


def test_a_requeued_job_says_why(lab: SlurmLab, tmp_path: Path) -> None:
    """In its AdminComment, which slurmctld.log shows too. What an administrator wrote there stays."""

    async def body(world: SlurmWorld) -> None:
        for own, wanted in (("", "[holdfast] requeued: Xid 79 on node01"), ("ask mei", "ask mei")):
            key = await world.submit()
            await world.until_job(key, lambda job: job.state == "running")
            if own:
                lab.run(["scontrol", "update", f"JobId={key.id}", f"AdminComment={own}"])
            order = o.RequeueHeld(id=f"o{next(_ids)}", cause=1, job=key, restart_count=0, why="Xid 79 on node01")
            await world.orchestrator.execute(order)
            await world.orchestrator.execute(o.ReleaseJob(id=f"o{next(_ids)}", cause=1, job=key, epoch=1))
            assert lab.job(key.id)["AdminComment"] == wanted
            lab.run(["scancel", key.id])
        assert "setting admin_comment to [holdfast] requeued: Xid 79 on node01" in lab.ctld_log.read_text()

    run(lab, tmp_path, body)

"""Repairs of a real Slurm's nodes that Slurm's own words make hard to see: one upon another, one that takes too long."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.adapters.slurm.looks import Looks
from holdfast.errors import PermanentOrderError
from holdfast.lab.slurm_lab import SlurmLab
from holdfast.model import orders as o
from slurm_keeper import TINY, Kept
from slurm_world import SlurmWorld, replace_program, small_lab

pytestmark = pytest.mark.cluster

REPAIR_S = 30
SWIFT = TINY.replace("[waits]", f"[brake]\nmax_percent = 100\nmax_nodes = 64\n[waits]\nrepair_s = {REPAIR_S}")
RESUME_TIMEOUT_S = 2
ADMIN = "[holdfast] Xid 79"
_ids = itertools.count(1)


@pytest.fixture(scope="module")
def lab() -> Iterator[SlurmLab]:
    with small_lab(1, extra_conf=f"ResumeTimeout={RESUME_TIMEOUT_S}") as lab:
        yield lab


def reboot(node: str, boot_id: str = "") -> o.RebootNode:
    return o.RebootNode(id=f"o{next(_ids)}", cause=1, node=node, boot_id=boot_id, why="Xid 79")


def test_a_reboot_right_after_another_is_seen(lab: SlurmLab, tmp_path: Path) -> None:
    """Slurm's boot times waver by seconds, so that two boots may look like one: the order comes to its end all the same."""

    async def body() -> list[str]:
        world = SlurmWorld(lab, tmp_path)
        try:
            boots = []
            for _ in range(3):
                async with asyncio.timeout(60):
                    await world.orchestrator.execute(reboot("node01"))
                seen = await world.until_node("node01", lambda node: node.alive)
                boots.append(seen.boot_id)
            return boots
        finally:
            await world.orchestrator.close()

    assert len(set(asyncio.run(body()))) == 3


def test_a_boot_that_takes_longer_than_slurm_waits_is_waited_for(lab: SlurmLab, tmp_path: Path) -> None:
    """slurmctld calls it down ("reboot timed out"). Once it answers, it is out of service by our reason, and returns."""

    program = lab.folder / "bin" / "reboot"
    stock = program.read_text()
    # It switches the node off, and does not boot it before we let it.
    program.write_text(
        replace_program(lab).read_text().replace('"replace"', '"crash"').replace("sys.argv[-1]", "'node01'")
    )

    async def body() -> None:
        world = SlurmWorld(lab, tmp_path)
        try:
            await world.orchestrator.execute(
                o.QuarantineNode(id=f"o{next(_ids)}", cause=1, node="node01", why="Xid 79")
            )
            order = asyncio.create_task(world.orchestrator.execute(reboot("node01")))
            await world.until(
                lambda _: "reboot timed out" in lab.run(["scontrol", "show", "node", "node01"]), "given up", 120
            )
            await asyncio.to_thread(lab.start_node, "node01")
            async with asyncio.timeout(60):
                assert await order == "rebooted"
            seen = await world.until_node("node01", lambda node: node.alive)
            assert (seen.drained, seen.drain_reason) == (True, ADMIN)
            await world.orchestrator.execute(o.ReturnNode(id=f"o{next(_ids)}", cause=1, node="node01"))
            await world.until_node("node01", lambda node: node.alive and not node.drained)
        finally:
            await world.orchestrator.close()

    try:
        asyncio.run(body())
    finally:
        program.write_text(stock)


def test_a_new_machine_is_seen_at_once_however_much_a_look_costs(
    lab: SlurmLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where looks are dear the last one is believed while Slurm's states stay; a node that we had replaced is another."""

    async def body() -> None:
        world = SlurmWorld(lab, tmp_path)
        try:
            monkeypatch.setattr(Looks, "cost_s", property(lambda _: 1.0, lambda *_: None), raising=False)
            before = await world.until_node("node01", lambda node: node.alive)
            async with asyncio.timeout(60):
                await world.orchestrator.execute(
                    o.ReplaceNode(id=f"o{next(_ids)}", cause=1, node="node01", instance_id=before.instance_id)
                )
            (after,) = (await world.orchestrator.observe()).nodes
            assert after.instance_id != before.instance_id
        finally:
            await world.orchestrator.close()

    asyncio.run(body())


def test_a_reboot_by_a_dead_slurmd_is_refused_at_once(lab: SlurmLab, tmp_path: Path) -> None:
    """Slurmd would carry out `scontrol reboot`: where it takes no connection the order fails for good, and the ladder's
    next rung begins, before Slurm has noticed anything."""

    async def body() -> None:
        world = SlurmWorld(lab, tmp_path)
        try:
            await world.until_node("node01", lambda node: node.alive)
            await asyncio.to_thread(lab.crash, "node01")
            with pytest.raises(PermanentOrderError, match="node01's slurmd, which would carry out the reboot"):
                async with asyncio.timeout(10):
                    await world.orchestrator.execute(reboot("node01"))
            assert "REBOOT" not in lab.run(["scontrol", "show", "node", "node01"])
        finally:
            await asyncio.to_thread(lab.start_node, "node01")
            await asyncio.to_thread(lab.resume, "node01")
            await world.orchestrator.close()

    asyncio.run(body())


@pytest.mark.soak
def test_a_node_whose_task_could_not_be_killed_is_repaired_and_returned(lab: SlurmLab, tmp_path: Path) -> None:
    """Slurm's own drain, in slurmctld's own words: by policy it becomes ours, and the node is rebooted and returned."""
    policy = SWIFT.replace("[node]", "[node]\nfailed_prolog_is_a_fault = true\nladder = ['reboot']")
    kept = Kept(lab, tmp_path, policy)
    try:
        kept.start()
        before = kept.until(lambda: kept.node("node01").get("view", {}).get("boot_id"), "seen")
        lab.run(["scontrol", "update", "NodeName=node01", "State=DRAIN", "Reason=Kill task failed"])
        kept.until(lambda: kept.node("node01")["state"] != "healthy", "its repair begins")
        kept.until(lambda: kept.node("node01")["state"] == "healthy", "in service", 60)
        assert kept.node("node01")["view"]["boot_id"] != before
        assert lab.node_states()["node01"].startswith("idle")
    finally:
        kept.end()


@pytest.mark.soak
@pytest.mark.parametrize(
    "programs",
    [
        pytest.param("", id="by slurmd"),
        pytest.param('reboot_program = ["sh", "-c", "exec sleep 1000"]\n', id="by a program"),
    ],
)
def test_a_dead_node_is_replaced_within_repair_s(lab: SlurmLab, tmp_path: Path, programs: str) -> None:
    """Slurmd, which would carry out `scontrol reboot`, is dead: that rung is passed over at once. A site's program that
    hangs is ended when the policy's `repair_s` is over. Either way another machine stands in the node's place soon."""
    config = f'[slurm]\nreplace_program = ["{replace_program(lab)}"]\n{programs}'
    kept = Kept(lab, tmp_path, SWIFT if not programs else SWIFT.replace(str(REPAIR_S), "5"), config)
    try:
        kept.start()
        first = kept.until(lambda: kept.node("node01").get("view", {}).get("instance_id"), "seen")
        lab.crash("node01")
        kept.until(lambda: kept.node("node01")["state"] == "repairing", "its repair begins")
        begun = time.monotonic()
        kept.until(lambda: kept.node("node01")["view"].get("instance_id") != first, "another machine", REPAIR_S)
        kept.until(lambda: kept.node("node01")["state"] == "healthy", "in service", REPAIR_S)
        assert time.monotonic() - begun < REPAIR_S
        made = {record["order"]["order"]: record for record in kept.get("orders")}
        assert made["reboot_node"]["status"] == "failed"
        assert ("slurmd" if not programs else "no outcome in time") in made["reboot_node"]["detail"]
        assert made["replace_node"]["status"] == "done"
    finally:
        kept.end()

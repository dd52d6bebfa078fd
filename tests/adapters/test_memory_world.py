"""The world in memory: ensure semantics, counted effects, a script."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.adapters.clock import VirtualClock, run_virtual
from holdfast.adapters.memory import MemoryNotifier, MemoryOrchestrator, MemoryRepair
from holdfast.errors import LinkError, PermanentOrderError, TemporaryOrderError
from holdfast.model import orders as o
from holdfast.model.cluster import JobKey, JobView, NodeView, SchedulerState

KEY = JobKey("test", "7")


def world() -> MemoryOrchestrator:
    job = JobView(key=KEY, state=SchedulerState.RUNNING, nodes=("n1",))
    node = NodeView(name="n1", alive=True, boot_id="b1", instance_id="m1")
    return MemoryOrchestrator(VirtualClock(), jobs=[job], nodes=[node])


ORDERS = [
    o.QuarantineNode(id="quarantine", cause=1, node="n1", why="Xid 74"),
    o.RequeueHeld(id="requeue", cause=1, job=KEY, restart_count=0),
    o.SetExcluded(id="exclude", cause=1, job=KEY, nodes=("n1",)),
    o.ReleaseJob(id="release", cause=1, job=KEY, epoch=2),
    o.RebootNode(id="reboot", cause=1, node="n1", boot_id="b1"),
    o.ReplaceNode(id="replace", cause=1, node="n1", instance_id="m1"),
    o.ReturnNode(id="return", cause=1, node="n1"),
    o.GiveUp(id="give_up", cause=1, job=KEY),
]


def test_each_order_has_its_effect_once_however_often_it_is_given():
    """Every order is given three times in a row; the world changes with the first."""

    async def work() -> None:
        there = world()
        for order in ORDERS:
            assert there.can(order)
            said = [await there.execute(order) for _ in range(3)]
            assert said == ["done", "was so already", "was so already"], order
        assert there.effects == {order.id: 1 for order in ORDERS}
        job = there.jobs[KEY]
        assert (job.state, job.restart_count, job.excluded) == (SchedulerState.CANCELLED, 1, ("n1",))
        assert not there.nodes["n1"].drained

    run_virtual(work())


def test_an_admins_drain_is_not_lifted_and_a_former_machine_not_touched():
    """Ownership and stale orders are refused for good, as real adapters do."""

    async def work() -> None:
        there = world()
        there.set_node(NodeView(name="n1", drained=True, drain_reason="mei: new cables", instance_id="m2"))
        with pytest.raises(PermanentOrderError, match="someone else"):
            await there.execute(o.ReturnNode(id="a", cause=1, node="n1"))
        with pytest.raises(PermanentOrderError, match="another machine"):
            await there.execute(o.QuarantineNode(id="b", cause=1, node="n1", instance_id="m1"))
        with pytest.raises(PermanentOrderError, match="no node"):
            await there.execute(o.ReturnNode(id="c", cause=1, node="n9"))
        with pytest.raises(PermanentOrderError, match="no job"):
            await there.execute(o.GiveUp(id="d", cause=1, job=JobKey("test", "8")))

    run_virtual(work())


def test_the_script_decides_what_fails_waits_and_is_seen():
    """`fail_next`, `gate`, `unreadable` and `wait_change` do what a test needs."""

    async def work() -> None:
        there = world()
        there.fail_next("quarantine_node", TemporaryOrderError("busy"))
        with pytest.raises(TemporaryOrderError):
            await there.execute(ORDERS[0])
        gate = there.gate("quarantine_node")
        task = asyncio.create_task(there.execute(ORDERS[0]))
        await asyncio.sleep(1)
        assert not task.done()
        gate.set()
        assert await task == "done"
        assert await there.wait_change(5)
        assert not await there.wait_change(5)
        there.unreadable = "away"
        with pytest.raises(LinkError, match="away"):
            await there.observe()
        there.unreadable = ""
        assert (await there.observe()).nodes[0].drained

    run_virtual(work())


def test_repairs_and_notifiers_keep_what_they_were_asked():
    """A repair takes its kinds only; a notifier fails when it is told to."""

    async def work() -> None:
        there = world()
        repair = MemoryRepair(there, "reboot_node")
        assert [repair.can(order) for order in ORDERS].count(True) == 1
        await repair.execute(ORDERS[4])
        assert there.nodes["n1"].boot_id == "boot-new-1"
        notifier = MemoryNotifier()
        notifier.failures.append(TemporaryOrderError("down"))
        notice = o.Notify(id="n", cause=1, topic="t")
        with pytest.raises(TemporaryOrderError):
            await notifier.send(notice)
        await notifier.send(notice)
        assert notifier.sent == [notice]

    run_virtual(work())

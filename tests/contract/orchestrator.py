"""What every orchestrator must do, whatever scheduler stands behind it: one suite, run unchanged against each.

An adapter's test gives a `World`: the orchestrator and the few things that a test needs beside the port. `CASES` are
coroutines that take a fresh world with three nodes and no jobs. Waits have deadlines and use the port's own `wait_change`.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

import pytest

from holdfast.errors import LinkError, PermanentOrderError
from holdfast.model import orders as o
from holdfast.model.cluster import JobKey, JobView, NodeView, SchedulerState, WorldView
from holdfast.ports import Orchestrator

S = SchedulerState
LIMIT_S = 15.0
PREFIX = "[holdfast]"


class World(Protocol):
    """A scheduler under test, with three free nodes."""

    orchestrator: Orchestrator

    async def submit(self, *, nodes: int = 1, exclude: tuple[str, ...] = ()) -> JobKey:
        """Queue a job that runs until somebody ends it."""

    async def drain_as_admin(self, node: str, reason: str) -> None:
        """An admin drains a node."""

    async def processes(self, job: JobKey) -> int:
        """How many processes of the job there are now; 0 in a world without any."""

    async def lose_scheduler(self) -> None:
        """From now on the scheduler cannot be reached."""


Case = Callable[[World], Awaitable[None]]
CASES: list[Case] = []
_ids = itertools.count(1)


def case(function: Case) -> Case:
    CASES.append(function)
    return function


def order_id() -> str:
    return f"c{next(_ids)}"


async def until(world: World, holds: Callable[[WorldView], bool], what: str) -> WorldView:
    deadline = time.monotonic() + LIMIT_S
    while True:
        seen = await world.orchestrator.observe()
        if holds(seen):
            return seen
        left = deadline - time.monotonic()
        assert left > 0, f"not within {LIMIT_S} s: {what}\n{seen}"
        await world.orchestrator.wait_change(min(left, 1.0))


def job_in(seen: WorldView, key: JobKey) -> JobView:
    return next(job for job in seen.jobs if job.key == key)


async def job_now(world: World, key: JobKey) -> JobView:
    return job_in(await world.orchestrator.observe(), key)


async def node_now(world: World, name: str) -> NodeView:
    seen = await world.orchestrator.observe()
    return next(node for node in seen.nodes if node.name == name)


async def until_job(world: World, key: JobKey, *states: SchedulerState) -> JobView:
    seen = await until(world, lambda w: job_in(w, key).state in states, f"{key} in {states}")
    return job_in(seen, key)


async def running(world: World, **wishes) -> JobView:
    return await until_job(world, await world.submit(**wishes), S.RUNNING)


def requeue(job: JobView, count: int | None = None) -> o.RequeueHeld:
    restarts = job.restart_count if count is None else count
    return o.RequeueHeld(id=order_id(), cause=1, job=job.key, restart_count=restarts, why="Xid 74")


# --- jobs ---


@case
async def a_job_is_seen_with_its_nodes(world: World) -> None:
    """A running job of two nodes is observed with exactly two, in a complete snapshot of three nodes."""
    job = await running(world, nodes=2)
    seen = await world.orchestrator.observe()
    assert (len(job.nodes), job.restart_count, len(seen.nodes), seen.complete) == (2, 0, 3, True)
    assert set(job.nodes) <= {node.name for node in seen.nodes}


@case
async def requeue_held_ends_the_old_attempt_and_holds(world: World) -> None:
    """When the order returns, nothing of the attempt runs; the job is held with one more restart and no nodes."""
    job = await running(world, nodes=2)
    await world.orchestrator.execute(requeue(job))
    assert await world.processes(job.key) == 0
    held = await job_now(world, job.key)
    assert (held.state, held.restart_count, held.nodes) == (S.HELD, 1, ())


@case
async def requeue_is_not_done_twice(world: World) -> None:
    """The same requeue again, by the same or another id, changes nothing: the restart count tells."""
    job = await running(world)
    order = requeue(job)
    await world.orchestrator.execute(order)
    await world.orchestrator.execute(order)
    assert (await job_now(world, job.key)).restart_count == 1
    await world.orchestrator.execute(o.ReleaseJob(id=order_id(), cause=1, job=job.key, epoch=2))
    await until_job(world, job.key, S.RUNNING)
    await world.orchestrator.execute(requeue(job, count=0))
    again = await job_now(world, job.key)
    assert (again.state, again.restart_count) == (S.RUNNING, 1)


@case
async def an_excluded_node_is_avoided_beside_the_owners_own(world: World) -> None:
    """Exclusions of Holdfast and of the owner both hold at the next start."""
    job = await running(world, exclude=("node03",))
    await world.orchestrator.execute(requeue(job))
    bad = job.nodes[0]
    await world.orchestrator.execute(o.SetExcluded(id=order_id(), cause=1, job=job.key, nodes=(bad,)))
    assert set((await job_now(world, job.key)).excluded) == {bad, "node03"}
    await world.orchestrator.execute(o.ReleaseJob(id=order_id(), cause=1, job=job.key, epoch=2))
    again = await until_job(world, job.key, S.RUNNING)
    assert again.nodes == tuple({"node01", "node02"} - {bad})


@case
async def a_released_job_starts_by_itself_and_a_second_release_is_fine(world: World) -> None:
    """Release lets the job start; released again while it runs, nothing happens."""
    job = await running(world)
    await world.orchestrator.execute(requeue(job))
    for _ in range(2):
        await world.orchestrator.execute(o.ReleaseJob(id=order_id(), cause=1, job=job.key, epoch=2))
        assert (await until_job(world, job.key, S.RUNNING)).restart_count == 1


@case
async def giving_up_ends_the_job_for_good(world: World) -> None:
    """GiveUp cancels a running and a held job; a second one is fine."""
    first = await running(world)
    second = await running(world)
    await world.orchestrator.execute(requeue(second))
    for job in (first, second, first):
        await world.orchestrator.execute(o.GiveUp(id=order_id(), cause=1, job=job.key, why="crash loop"))
        await until_job(world, job.key, S.CANCELLED)
        assert await world.processes(job.key) == 0


# --- nodes ---


def quarantine(node: NodeView, **more) -> o.QuarantineNode:
    return o.QuarantineNode(id=order_id(), cause=1, node=node.name, why="Xid 74", **more)


def give_back(node: NodeView, **more) -> o.ReturnNode:
    return o.ReturnNode(id=order_id(), cause=1, node=node.name, **more)


@case
async def quarantine_keeps_new_work_off_and_lets_running_work_be(world: World) -> None:
    """A quarantined node is drained with our prefix; its job goes on, the next one goes elsewhere; twice is once."""
    job = await running(world)
    node = await node_now(world, job.nodes[0])
    await world.orchestrator.execute(quarantine(node, instance_id=node.instance_id))
    await world.orchestrator.execute(quarantine(node))
    drained = await node_now(world, node.name)
    assert drained.drained is True
    assert drained.drain_reason == f"{PREFIX} Xid 74"
    assert (await job_now(world, job.key)).state == S.RUNNING
    assert (await running(world)).nodes != job.nodes


@case
async def return_lifts_our_own_drain(world: World) -> None:
    """A node that we quarantined takes work again; returning it twice is fine."""
    node = await node_now(world, "node01")
    await world.orchestrator.execute(quarantine(node))
    await world.orchestrator.execute(give_back(node, instance_id=node.instance_id))
    await world.orchestrator.execute(give_back(node))
    returned = await node_now(world, "node01")
    assert (returned.drained, returned.drain_reason) == (False, "")


@case
async def an_admins_drain_is_never_touched(world: World) -> None:
    """Quarantine leaves an admin's reason standing, and we may not lift it."""
    await world.drain_as_admin("node01", "memory swap")
    node = await node_now(world, "node01")
    await world.orchestrator.execute(quarantine(node))
    assert (await node_now(world, "node01")).drain_reason == "memory swap"
    with pytest.raises(PermanentOrderError):
        await world.orchestrator.execute(give_back(node))
    assert (await node_now(world, "node01")).drained is True


@case
async def an_order_for_a_former_machine_is_stale(world: World) -> None:
    """Quarantine and return name the machine; once it is another one they fail for good and change nothing."""
    node = await node_now(world, "node01")
    for order in (quarantine(node, instance_id="i-of-old"), give_back(node, instance_id="i-of-old")):
        with pytest.raises(PermanentOrderError):
            await world.orchestrator.execute(order)
    assert (await node_now(world, "node01")).drained is False


@case
async def a_reboot_changes_the_boot_id_once(world: World) -> None:
    """The same machine answers with another boot id; the same wish again finds it done."""
    node = await node_now(world, "node01")
    order = o.RebootNode(id=order_id(), cause=1, node="node01", boot_id=node.boot_id, instance_id=node.instance_id)
    await world.orchestrator.execute(order)
    rebooted = await node_now(world, "node01")
    assert rebooted.boot_id != node.boot_id
    assert rebooted.instance_id == node.instance_id
    # A scheduler may take a moment to hear of a node that has come back.
    await until(world, lambda w: any(one.name == "node01" and one.alive for one in w.nodes), "node01 answers")
    await world.orchestrator.execute(order)
    again = o.RebootNode(id=order_id(), cause=1, node="node01", boot_id=node.boot_id)
    await world.orchestrator.execute(again)
    assert (await node_now(world, "node01")).boot_id == rebooted.boot_id


@case
async def a_replacement_is_another_machine_and_stays_drained(world: World) -> None:
    """Another instance id under the same name, still drained until it is returned; the same wish again finds it done."""
    node = await node_now(world, "node01")
    await world.orchestrator.execute(quarantine(node))
    order = o.ReplaceNode(id=order_id(), cause=1, node="node01", instance_id=node.instance_id)
    await world.orchestrator.execute(order)
    fresh = await node_now(world, "node01")
    assert fresh.instance_id != node.instance_id
    assert (fresh.boot_id != node.boot_id, fresh.alive, fresh.drained) == (True, True, True)
    await world.orchestrator.execute(order)
    again = o.ReplaceNode(id=order_id(), cause=1, node="node01", instance_id=node.instance_id)
    await world.orchestrator.execute(again)
    assert (await node_now(world, "node01")).instance_id == fresh.instance_id


# --- the port itself ---


@case
async def it_says_what_it_can_do(world: World) -> None:
    """Orders about jobs and nodes are ours; those of launchers and of the engine itself are not, and fail for good."""
    key = JobKey(cluster="any", id="1")
    ours: list[o.AnyOrder] = [
        o.RequeueHeld(id="a", cause=1, job=key, restart_count=0),
        o.SetExcluded(id="b", cause=1, job=key),
        o.ReleaseJob(id="c", cause=1, job=key, epoch=1),
        o.GiveUp(id="d", cause=1, job=key),
        o.QuarantineNode(id="e", cause=1, node="node01"),
        o.ReturnNode(id="f", cause=1, node="node01"),
    ]
    others: list[o.AnyOrder] = [
        o.StopAttempt(id="g", cause=1, job=key, attempt=0),
        o.RestartInPlace(id="h", cause=1, job=key, attempt=1, epoch=2),
        o.StartTimer(id="i", cause=1, timer="t", after_s=1.0),
        o.Notify(id="j", cause=1, topic="t"),
    ]
    assert [world.orchestrator.can(order) for order in ours] == [True] * len(ours)
    assert [world.orchestrator.can(order) for order in others] == [False] * len(others)
    for order in others:
        with pytest.raises(PermanentOrderError):
            await world.orchestrator.execute(order)


@case
async def what_does_not_exist_fails_for_good(world: World) -> None:
    """An unknown job or node is no reason to try again."""
    ghost = JobKey(cluster="any", id="4711")
    for order in (
        o.RequeueHeld(id=order_id(), cause=1, job=ghost, restart_count=0),
        o.QuarantineNode(id=order_id(), cause=1, node="node99", why="?"),
    ):
        with pytest.raises(PermanentOrderError):
            await world.orchestrator.execute(order)


@case
async def a_change_ends_the_wait(world: World) -> None:
    """wait_change returns True soon after something changed, and False when nothing did."""
    await until(world, lambda w: all(node.alive for node in w.nodes), "all nodes up")
    while await world.orchestrator.wait_change(0.3):
        await world.orchestrator.observe()
    begun = time.monotonic()
    await world.submit()
    assert await world.orchestrator.wait_change(LIMIT_S) is True
    assert time.monotonic() - begun < LIMIT_S / 2


@case
async def an_unreachable_scheduler_is_said_to_be(world: World) -> None:
    """observe raises LinkError: blindness must not look like an empty cluster."""
    await world.lose_scheduler()
    with pytest.raises(LinkError):
        await world.orchestrator.observe()

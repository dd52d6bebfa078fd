"""The watch: only differences become events, a missed change is healed, blindness is said, gone needs a whole look."""

from __future__ import annotations

import asyncio

import msgspec
from tests.controller.cases import KEY, House, running, until

from holdfast.adapters.clock import run_virtual
from holdfast.controller import Controller
from holdfast.model.cluster import JobKey, JobView, NodeView, SchedulerState, Unseen

SEEN = ("job_observed", "job_vanished", "node_observed", "node_vanished", "watch_blind")


async def seen(controller: Controller, after: int = 0) -> list[str]:
    found = []
    for one in await controller.journal.events(kind=SEEN, after=after):
        what = getattr(one, "node", None) or getattr(one, "job", "")
        found.append(f"{type(one).__name__} {getattr(what, 'name', what)}".strip())
    return found


def test_the_first_look_tells_all_and_the_next_only_what_changed():
    """An unchanged world gives no events, however often it is looked at."""

    async def work() -> None:
        house = House(watch_s=5.0)
        async with running(house.controller()) as controller:
            await until(lambda: controller.seq >= 5)
            assert len(await seen(controller)) == 4
            await asyncio.sleep(100)
            assert controller.watch.looks > 15
            assert len(await seen(controller)) == 4
            before, began = controller.seq, house.clock.now()
            house.world.set_job(msgspec.structs.replace(house.world.jobs[KEY], state=SchedulerState.FAILED))
            await until(lambda: controller.seq > before)
            assert house.clock.now() - began < 0.2
            [changed] = await controller.journal.events(after=before)
            assert changed.job.state is SchedulerState.FAILED

    run_virtual(work())


def test_two_looks_at_once_tell_a_difference_once():
    """A look that a report asks for may end while another is stored: what a person asked of a node is one command."""

    async def work() -> None:
        house = House(watch=False)
        async with running(house.controller()) as controller:
            await controller.watch.look_once()
            before = controller.seq
            house.world.set_node(msgspec.structs.replace(house.world.nodes["n1"], asked="reboot"))
            await asyncio.gather(controller.watch.look_once(), controller.watch.look_once())
            told = await controller.journal.events(kind=("node_observed", "operator_command"), after=before)
            assert [type(one).__name__ for one in told] == ["NodeObserved", "OperatorCommand"]

    run_virtual(work())


def test_gone_needs_a_complete_look():
    """What is missing from a partial answer is unknown; from a complete one it has vanished."""

    async def work() -> None:
        house = House()
        async with running(house.controller()) as controller:
            await until(lambda: controller.seq >= 5)
            house.world.complete = False
            house.world.remove("n3")
            house.world.remove(KEY)
            await asyncio.sleep(20)
            assert len(await seen(controller)) == 4
            house.world.complete = True
            await until(lambda: controller.seq >= 7)
            assert sorted(await seen(controller, 5)) == ["JobVanished 7", "NodeVanished n3"]

    run_virtual(work())


def test_a_change_during_the_controllers_death_is_seen_by_the_next():
    """The next controller compares with what the journal knows, not with nothing."""

    async def work() -> None:
        house = House()
        async with running(house.controller(), kill=True) as controller:
            await until(lambda: controller.seq >= 5)
        house.world.remove("n2")
        house.world.set_node(NodeView(name="n9"))
        async with running(house.controller()) as controller:
            before = controller.seq
            await asyncio.sleep(10)
            assert sorted(await seen(controller, before)) == ["NodeObserved n9", "NodeVanished n2"]

    run_virtual(work())


def test_a_blind_watch_says_so_once_and_says_when_it_sees_again():
    """A short failure is nothing; a long one is an event, and nothing is taken for gone meanwhile."""

    async def work() -> None:
        house = House(blind_after_s=15.0)
        async with running(house.controller()) as controller:
            await until(lambda: controller.seq >= 5)
            for outage_s in (8, 60):
                house.world.unreadable = "slurmctld does not answer"
                await asyncio.sleep(outage_s)
                house.world.unreadable = ""
                await asyncio.sleep(20)
            blind = await controller.journal.events(kind="watch_blind")
            assert [(one.blind, one.why) for one in blind] == [(True, "slurmctld does not answer"), (False, "")]
            assert len(await seen(controller)) == 6

    run_virtual(work())


def test_a_look_that_hangs_counts_as_blind():
    """An orchestrator that never answers is as unreadable as one that refuses."""

    async def work() -> None:
        house = House(observe_limit_s=10.0, blind_after_s=15.0)
        never = asyncio.Event()

        async def observe() -> None:
            await never.wait()

        house.world.observe = observe
        async with running(house.controller()) as controller:
            await until(lambda: controller.health().blind)
            assert not controller.health().ok

    run_virtual(work())


def test_a_kind_that_cannot_be_read_is_told_and_its_jobs_have_not_vanished():
    """Its jobs are unknown, those of other kinds are gone as always; said after a while, kept over a restart, and lifted."""
    hidden, plain = JobKey("c", "ns.pytorchjob.a"), JobKey("c", "ns.job.b")

    async def work() -> None:
        house = House()
        for key in (hidden, plain):
            house.world.set_job(JobView(key=key, state=SchedulerState.RUNNING))
        async with running(house.controller()) as controller:
            await until(lambda: len(controller.shell().jobs) == 3)
            house.world.unseen = (Unseen("pytorchjob", "403"), Unseen("jobset"))
            house.world.remove(hidden)
            house.world.remove(plain)
            before = controller.seq
            await until(lambda: controller.health().unseen)
            told = await seen(controller, before)
            assert sorted(told) == ["JobVanished ns.job.b", "WatchBlind"]
            assert (controller.health().unseen, controller.health().blind) == (("pytorchjob",), False)
            before = controller.seq
        async with running(house.controller()) as controller:
            await asyncio.sleep(60)
            assert await seen(controller, before) == []
            assert controller.health().unseen == ("pytorchjob",)
            house.world.unseen = ()
            house.world.set_job(JobView(key=hidden, state=SchedulerState.RUNNING))
            await until(lambda: not controller.health().unseen)
            assert await seen(controller, before) == ["WatchBlind"]

    run_virtual(work())

"""A controller killed at any point and started again: nothing lost, nothing done twice, timers in time.

Virtual time makes each kill point exact: the controller dies after so many turns of the loop, without doing anything of
its orderly end, and the next one takes over. The world and its sources go on meanwhile, as they do in production.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import msgspec
import pytest
from tests.controller.cases import KEY, House, finding, until

from holdfast.adapters.clock import run_virtual
from holdfast.adapters.memory import MemoryJournal
from holdfast.controller import Controller
from holdfast.decide.engine import Engine
from holdfast.errors import HoldfastError
from holdfast.model import events as e
from holdfast.model.cluster import NodeView, SchedulerState
from holdfast.model.evidence import Domain, Finding, Place, Remedy, Role
from holdfast.model.policy import Policy, PolicySet, Waits
from holdfast.model.records import JobState, NodeState


class Keeper:
    """Runs one controller after another over the same store; what is submitted is sent again until it is stored."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.now: Controller | None = None
        self.kills = 0
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self.now = self.house.controller("keeper")
        self._task = asyncio.create_task(self.now.run())

    async def kill(self) -> None:
        self.kills += 1
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self.start()

    async def end(self) -> None:
        await self.now.ready.wait()
        self.now.stop()
        await asyncio.wait_for(self._task, 60)

    async def submit(self, event: e.AnyEvent) -> None:
        while True:
            try:
                await asyncio.wait_for(asyncio.shield(self.now.submit(event)), 5)
            except (HoldfastError, TimeoutError):
                await asyncio.sleep(0.05)
            else:
                return


async def after_turns(count: int) -> None:
    """Let the loop turn so many times, with time standing still as long as anything is ready."""
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.parametrize("turns", range(0, 120, 3))
def test_killed_after_so_many_turns_each_order_has_its_effect_once(turns: int):
    """Before the store, between store and execution, between effect and outcome: all of them are among these points."""

    async def work() -> None:
        house = House(watch=False)
        keeper = Keeper(house)
        await keeper.start()
        await keeper.now.ready.wait()
        rules = ["order:quarantine_node", "order:replace_node", "order:requeue_held", "timer:t:5", "order:notify"]
        sources = asyncio.gather(
            *(keeper.submit(finding(rule, f"e{n}", node=f"n{n + 1}")) for n, rule in enumerate(rules))
        )
        began = house.clock.now()
        await after_turns(turns)
        await keeper.kill()
        await sources
        await until(lambda: not house.engines[-1].state.pending)
        await asyncio.sleep(10)
        await keeper.end()
        handled = Counter(house.handled)
        assert {handled[f"FindingSeen e{n}"] for n in range(len(rules))} == {1}
        assert set(house.world.effects.values()) == {1}
        assert len(house.world.effects) == 3
        assert house.world.jobs[KEY].restart_count == 1
        assert 1 <= len(house.notifier.sent) <= 2
        rows = house.store.rows
        assert [row.seq for row in rows] == list(range(1, len(rows) + 1))
        [fired] = [row for row in rows if row.kind == "timer_fired"]
        assert 4.9 < fired.received_at - began < 6

    run_virtual(work())


def test_killed_between_the_store_and_its_answer():
    """The commit happened, the controller never learned of it: the next one carries the order out."""

    async def work() -> None:
        house = House(watch=False)
        never = asyncio.Event()

        class Cut(MemoryJournal):
            async def append(self, entries) -> None:
                await super().append(entries)
                if any(isinstance(entry.event, e.FindingSeen) for entry in entries):
                    await never.wait()

        first = house.controller("keeper", journal=Cut(house.store))
        task = asyncio.create_task(first.run())
        await first.ready.wait()
        first.submit(finding("order:quarantine_node", "a"))
        await asyncio.sleep(1)
        assert house.world.asked == []
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        keeper = Keeper(house)
        await keeper.start()
        await keeper.kill()
        await until(lambda: house.world.nodes["n1"].drained)
        await keeper.end()
        assert list(house.world.effects.values()) == [1]

    run_virtual(work())


def test_killed_between_the_effect_and_its_outcome():
    """The world has changed, nobody stored that: the next controller asks again, changes nothing, and stores it."""

    async def work() -> None:
        house = House(watch=False)
        execute, never = house.world.execute, asyncio.Event()

        async def and_hang(order) -> str:
            await execute(order)
            await never.wait()
            return ""

        house.world.execute = and_hang
        keeper = Keeper(house)
        await keeper.start()
        await keeper.submit(finding("order:replace_node", "a"))
        await until(lambda: house.world.effects)
        house.world.execute = execute
        await keeper.kill()
        await until(lambda: house.engines[-1].state.handled and not house.engines[-1].state.pending)
        await keeper.end()
        assert [len(house.world.asked), *house.world.effects.values()] == [2, 1]
        assert house.world.nodes["n1"].instance_id == "machine-new-1"

    run_virtual(work())


# --- the real engine ---


class Site(House):
    """Three nodes and a spare; a little scheduler and a little launcher, whose lives do not depend on a controller."""

    def __init__(self) -> None:
        super().__init__(watch_s=1.0, snapshot_every=7)
        spare = NodeView(name="n4", group="gpu", alive=True, boot_id="boot-n4", instance_id="machine-n4")
        self.world.nodes["n4"] = spare
        self.keeper = Keeper(self)
        self.real: list[Engine] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def engine(self, state: bytes | None) -> Engine:
        policies = PolicySet(site=Policy(enabled_by_default=True, waits=Waits(settle_s=0.1)))
        self.real.append(Engine(policies) if state is None else Engine.restore(state, policies))
        return self.real[-1]

    async def say(self, kind: type[e.Event], event_id: str, **fields: object) -> None:
        await self.keeper.submit(kind(id=event_id, at=self.clock.now(), source="launcher:7", job=KEY, **fields))

    async def scheduler(self) -> None:
        """Starts what may start; ends the launcher of what was requeued."""
        running = self.launch(0)
        while True:
            await asyncio.sleep(0.1)
            job = self.world.jobs[KEY]
            if job.state is SchedulerState.HELD and running is not None:
                running.cancel()
                running = None
                self.spawn(self.leave(job.restart_count - 1))
            free = [n.name for n in self.world.nodes.values() if not n.drained and n.name not in job.excluded]
            if job.state is SchedulerState.PENDING and len(free) >= 3:
                self.world.start(KEY, tuple(sorted(free)[:3]))
                running = self.launch(job.restart_count)
            on_it = set(self.world.jobs[KEY].nodes)
            for node in list(self.world.nodes.values()):
                jobs = ("7",) if node.name in on_it else ()
                if node.jobs != jobs:
                    self.world.set_node(msgspec.structs.replace(node, jobs=jobs))

    def spawn(self, work) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def leave(self, attempt: int) -> None:
        await self.say(e.AttemptEnded, f"ended{attempt}", attempt=attempt, stopped=True, last_step=120)
        await self.say(e.LauncherLapsed, f"left{attempt}", left=True, exit_code=85)

    def launch(self, attempt: int) -> asyncio.Task[None]:
        return self.spawn(self.launcher(attempt))

    async def launcher(self, attempt: int) -> None:
        nodes = self.world.jobs[KEY].nodes
        await self.say(e.LauncherAttached, f"l{attempt}", restart_count=attempt, nodes=nodes, ranks=3, lease_s=1e6)
        await self.say(e.AttemptStarted, f"s{attempt}", attempt=attempt, epoch=attempt, restart_count=attempt,
                       nodes=nodes, ranks=3)  # fmt: skip
        await asyncio.sleep(1)
        await self.say(e.FirstStepDone, f"f{attempt}", attempt=attempt, step=101 + 50 * attempt, resumed_from=100)
        await asyncio.sleep(1)
        await self.say(e.CheckpointSaved, f"c{attempt}", attempt=attempt, step=200 + attempt, durable=True)

    def xid(self) -> e.FindingSeen:
        seen = Finding(
            id="xid", rule="nvidia.xid.74", at=self.clock.now(), domain=Domain.HARDWARE, role=Role.ROOT,
            remedy=Remedy.REPLACE, place=Place(node="n2", gpu=3), job=KEY, attempt=0, fingerprint="xid74",
        )  # fmt: skip
        return e.FindingSeen(id="xid", at=self.clock.now(), source="agent:n2", finding=seen)

    def recovered(self) -> bool:
        engine = self.real[-1].state
        job, node = engine.jobs.get("test/7#1"), engine.nodes.get("n2")
        return (
            job is not None
            and node is not None
            and (job.state, node.state) == (JobState.WATCHING, NodeState.HEALTHY)
            and self.world.jobs[KEY].restart_count == 1
            and not engine.incidents
            and not [one for one in self.real[-1].pending_orders() if type(one.order).__name__ != "StartTimer"]
        )


async def recover(seed: int | None) -> Site:
    """Xid 74 on n2 while the job runs, and (with a seed) kills at random turns until the job is back."""
    site = Site()
    await site.keeper.start()
    scheduler = asyncio.create_task(site.scheduler())
    await asyncio.sleep(5)
    finding_task = asyncio.create_task(site.keeper.submit(site.xid()))
    rng = random.Random(seed)
    deadline = site.clock.now() + 600
    while not site.recovered():
        assert site.clock.now() < deadline, "the job did not come back"
        if seed is None or site.keeper.kills >= 12:
            await asyncio.sleep(0.1)
            continue
        if rng.random() < 0.5:
            await after_turns(rng.randrange(1, 60))
        else:
            await asyncio.sleep(rng.uniform(0.0, 1.5))
        await site.keeper.kill()
    await finding_task
    scheduler.cancel()
    await site.keeper.end()
    return site


@pytest.mark.parametrize("seed", [None, *range(20)])
def test_xid_74_is_recovered_from_whatever_happens_to_the_controller(seed: int | None):
    """The node is fenced, replaced, validated and returned, the job restarted once without it, by any number of
    controllers; every order that changed the world did so once, and the journal replays to the same state."""

    async def work() -> None:
        site = await recover(seed)
        assert site.world.jobs[KEY].nodes == ("n1", "n3", "n4")
        assert site.world.nodes["n2"].instance_id == "machine-new-1"
        assert not site.world.nodes["n2"].drained
        assert set(site.world.effects.values()) == {1}
        journal = MemoryJournal(site.store)
        [incident] = await journal.incidents()
        assert incident.outcome == "recovered"
        _, seq, _ = await journal.load()
        assert seq == await journal.last_seq()
        again = Engine(PolicySet(site=Policy(enabled_by_default=True, waits=Waits(settle_s=0.1))))
        for event in await journal.events(limit=10**6):
            again.handle(event)
        assert again.snapshot() == site.real[-1].snapshot()

    run_virtual(work())

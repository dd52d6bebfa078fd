"""What a simulated launcher does about cuts is decided by the launcher's own cores, with their own times."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.adapters.clock import VirtualClock, run_virtual
from holdfast.launch.core.shutdown import LeaseLost, ShutdownReport, Superseded
from holdfast.launch.options import LEASE_S
from holdfast.sim.cut import Followers, keep_own_lease
from holdfast.sim.options import SimOptions
from holdfast.sim.world import World

FAULT = "switch-1"


class Led:
    """A launcher of three nodes, the last a spare, whose attempt 0 runs."""

    def __init__(self) -> None:
        self.world = World(SimOptions(nodes=3), VirtualClock())
        self.nodes = list(self.world.nodes.values())
        self.job: Any = SimpleNamespace(epoch=1)
        self.attempt: Any = SimpleNamespace(number=0, is_over=False)
        self.epoch = 1
        self.is_leaving = False
        self.told: list[tuple[str, str, float]] = []
        self.taken: list[tuple[ShutdownReport, float]] = []
        self._tasks: list[asyncio.Task[Any]] = []

    @property
    def leader(self) -> Any:
        return self.nodes[0]

    @property
    def used(self) -> frozenset[str]:
        return frozenset(node.name for node in self.nodes[:2])

    def run(self, work: Coroutine[Any, Any, Any]) -> None:
        self._tasks.append(asyncio.ensure_future(work))

    def tell_node(self, kind: type, node: str, **_: Any) -> None:
        self.told.append((kind.__name__, node, self.world.clock.monotonic()))

    async def take(self, report: ShutdownReport) -> bool:
        self.taken.append((report, self.world.clock.monotonic()))
        return False


def test_ranks_of_a_follower_that_is_cut_off_die_with_their_lease_and_it_is_heard_again():
    """Silence is told after the lease, the loss a margin later, and the end of the silence when the way is whole."""

    async def work() -> None:
        led = Led()
        world, node = led.world, led.nodes[1]
        followers = Followers(led, world, 3)
        world.cut(node, FAULT)
        began = world.clock.monotonic()
        followers.lost(node)
        await asyncio.sleep(0)
        await followers.until_empty(led.used)
        assert LEASE_S <= world.clock.monotonic() - began <= LEASE_S + 0.3
        await world.clock.sleep(20.0)
        (silent, gone) = led.told
        assert silent[:2] == ("NodeSilent", node.name)
        assert gone[:2] == ("NodeGone", node.name)
        assert began + LEASE_S < silent[2] < gone[2] <= began + LEASE_S + 0.7
        world.heal(node, FAULT)
        await world.clock.sleep(5.0)
        assert led.told[2][:2] == ("NodeHeard", node.name)

    run_virtual(work())


def test_a_cut_that_ends_within_the_lease_costs_nothing():
    """Nothing is told, and no rank dies."""

    async def work() -> None:
        led = Led()
        world, node = led.world, led.nodes[1]
        followers = Followers(led, world, 3)
        world.cut(node, FAULT)
        followers.lost(node)
        await world.clock.sleep(LEASE_S - 0.5)
        world.heal(node, FAULT)
        await world.clock.sleep(10.0)
        assert led.told == []

    run_virtual(work())


def test_a_spare_that_is_cut_off_is_not_told_of():
    """The attempt does not use it."""

    async def work() -> None:
        led = Led()
        followers = Followers(led, led.world, 3)
        led.world.cut(led.nodes[2], FAULT)
        followers.lost(led.nodes[2])
        await led.world.clock.sleep(30.0)
        assert led.told == []

    run_virtual(work())


@pytest.mark.parametrize(("cut_s", "epoch", "what"), [(10.0, 1, LeaseLost), (1.0, 9, Superseded), (1.0, 1, None)])
def test_a_leader_that_is_cut_off_loses_its_lease_or_its_job(cut_s: float, epoch: int, what: type | None):
    """Three seconds without a way to its folder end its ranks; a newer epoch there ends it; else it goes on."""

    async def work() -> None:
        led = Led()
        world = led.world
        world.cut(led.leader, FAULT)
        led.job.epoch = epoch
        began = world.clock.monotonic()
        led.run(keep_own_lease(led, world))
        await world.clock.sleep(cut_s)
        world.heal(led.leader, FAULT)
        await world.clock.sleep(5.0)
        reports = [(type(report), at - began) for report, at in led.taken]
        assert [kind for kind, _ in reports] == ([] if what is None else [what] * len(reports))
        if what is LeaseLost:
            assert 3.0 <= reports[0][1] <= 3.5
        assert (what is None) == (reports == [])

    run_virtual(work())

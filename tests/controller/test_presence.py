"""Presence: beats become the few transitions worth an event; silence is never death, and never blamed on others."""

from __future__ import annotations

import asyncio

from tests.controller.cases import KEY, House, running, until

from holdfast.adapters.clock import run_virtual
from holdfast.controller import Controller
from holdfast.model import events as e
from holdfast.model.wire import Beat, SamplePoint

KINDS = ("agent_attached", "node_silent", "node_heard", "launcher_lapsed")
BEAT = Beat(source="agent:n1", node="n1", boot_id="b1", instance_id="m1")
LAUNCHER = Beat(source="launcher:7", node="n1", cluster="test", job="7")


async def said(controller: Controller, after: int = 0) -> list[str]:
    return [type(one).__name__ for one in await controller.journal.events(kind=KINDS, after=after)]


async def beats(controller: Controller, beat: Beat, seconds: float, every_s: float = 10.0) -> None:
    for _ in range(int(seconds / every_s)):
        await controller.beat(beat)
        await asyncio.sleep(every_s)


def test_an_agent_attaches_once_and_again_after_a_boot():
    """Beats are not events: an hour of them is one AgentAttached; another boot id is another."""

    async def work() -> None:
        house = House(watch=False)
        async with running(house.controller()) as controller:
            await asyncio.gather(controller.beat(BEAT), controller.beat(BEAT))
            await beats(controller, BEAT, 3600)
            await controller.beat(Beat(source="agent:n1", node="n1", boot_id="b2", instance_id="m1"))
            await asyncio.sleep(1)
            attached = await controller.journal.events(kind="agent_attached")
            assert [one.boot_id for one in attached] == ["b1", "b2"]
            assert controller.seq == 3

    run_virtual(work())


def test_clocks_of_sources_that_beat_no_more_are_forgotten(monkeypatch):
    """A launcher's source is new with each job: over a year of jobs, what is remembered of clocks stays bounded."""
    monkeypatch.setattr("holdfast.model.clocks.KEPT", 2)

    async def work() -> None:
        house = House(watch=False)
        async with running(house.controller()) as controller:
            for job in ("1", "2", "1", "3"):
                at = controller.clock.now() + 5.0
                await controller.beat(Beat(source=f"launcher:{job}", node="n1", cluster="test", job=job, at=at))
            known = [controller.presence.clocks.ahead_s(f"launcher:{job}") for job in ("1", "2", "3")]
            assert known == [5.0, None, 5.0]

    run_virtual(work())


def test_silence_is_said_once_and_its_end_too():
    """Three missed beats are NodeSilent, the next beat NodeHeard; a launcher's beat counts for its node."""

    async def work() -> None:
        house = House(watch=False)
        async with running(house.controller()) as controller:
            await beats(controller, BEAT, 60)
            await asyncio.sleep(300)
            [silent] = await controller.journal.events(kind="node_silent")
            assert 30 <= silent.for_s <= 31
            await controller.beat(LAUNCHER)
            await asyncio.sleep(5)
            assert await said(controller) == ["AgentAttached", "NodeSilent", "NodeHeard"]
            await beats(controller, LAUNCHER, 100, 1.0)
            assert len(await said(controller)) == 3

    run_virtual(work())


def test_a_launcher_lapses_at_its_leases_end():
    """Renewed by beats, a launcher stays; without them it lapses soon after its lease, once, and must attach anew."""

    async def work() -> None:
        house = House(watch=False)
        async with running(house.controller()) as controller:
            await controller.submit(e.LauncherAttached(id="l", at=1.0, job=KEY, restart_count=0, lease_s=5.0))
            await beats(controller, LAUNCHER, 60, 1.0)
            assert await said(controller) == []
            stopped = house.clock.now()
            await asyncio.sleep(60)
            [lapsed] = await controller.journal.events(kind="launcher_lapsed")
            assert 4 <= lapsed.at - stopped <= 7
            assert not (await controller.beat(LAUNCHER)).attached

    run_virtual(work())


def test_a_launcher_that_attached_by_event_has_its_whole_lease():
    """Attaching counts as the first beat."""

    async def work() -> None:
        house = House(watch=False)
        async with running(house.controller()) as controller:
            await asyncio.sleep(1000)
            await controller.submit(e.LauncherAttached(id="l", at=1.0, job=KEY, restart_count=0, lease_s=5.0))
            await asyncio.sleep(4)
            assert await said(controller) == []

    run_virtual(work())


def test_an_agent_that_attached_by_event_and_never_beats_is_silent():
    """Also where nobody else was listened for."""

    async def work() -> None:
        house = House(watch=False)
        async with running(house.controller()) as controller:
            await asyncio.sleep(1000)
            await controller.submit(e.AgentAttached(id="a", at=1.0, node="n1", boot_id="b1", instance_id="m1"))
            await asyncio.sleep(29)
            assert await said(controller) == ["AgentAttached"]
            await asyncio.sleep(2)
            assert await said(controller) == ["AgentAttached", "NodeSilent"]

    run_virtual(work())


def test_after_a_restart_everybody_has_a_full_interval():
    """The next controller knows who was attached and silent, and gives each its time anew."""

    async def work() -> None:
        house = House(watch=False)
        async with running(house.controller(), kill=True) as controller:
            await controller.beat(BEAT)
            await controller.beat(Beat(source="agent:n2", node="n2", boot_id="b"))
            await beats(controller, BEAT, 40)
            await controller.submit(e.LauncherAttached(id="l", at=1.0, job=KEY, restart_count=0, lease_s=5.0))
            await asyncio.sleep(1)
            assert controller.shell().silent == ["n2"]
        await asyncio.sleep(3600)
        async with running(house.controller()) as controller:
            after = controller.seq
            await asyncio.sleep(4)
            assert await said(controller, after) == []
            assert (await controller.beat(LAUNCHER)).attached
            await asyncio.sleep(35)
            assert await said(controller, after) == ["LauncherLapsed", "NodeSilent"]

    run_virtual(work())


def test_a_controller_that_did_not_run_blames_nobody():
    """When the controller itself was stopped for minutes, nobody was silent."""

    async def work() -> None:
        house = House(watch=False)
        async with running(house.controller(lease_s=1000.0)) as controller:
            await controller.beat(BEAT)
            await controller.submit(e.LauncherAttached(id="l", at=1.0, job=KEY, restart_count=0, lease_s=5.0))
            await asyncio.sleep(2)
            # What SIGSTOP does: time goes on and nothing of the loop runs.
            asyncio.get_running_loop()._jumping.elapsed_s += 500
            await asyncio.sleep(2)
            assert await said(controller) == ["AgentAttached"]
            await asyncio.sleep(5)
            assert await said(controller) == ["AgentAttached", "LauncherLapsed"]

    run_virtual(work())


def test_samples_are_folded_into_the_series_store_and_bounded():
    """Samples are written in batches beside the journal's history; a flood drops the oldest and harms nothing."""

    async def work() -> None:
        house = House(watch=False, samples_max=100)
        async with running(house.controller()) as controller:
            points = [SamplePoint("step", "job:7(0)/rank:0", float(n), float(n)) for n in range(500)]
            await controller.beat(Beat(source="agent:n1", node="n1", boot_id="b", samples=points))
            await asyncio.sleep(3)
            found = await controller.journal.samples("step")
            assert [one.value for one in found] == [float(n) for n in range(400, 500)]
            house.store.full = True
            await controller.beat(Beat(source="agent:n1", node="n1", boot_id="b", samples=points[:1]))
            await asyncio.sleep(3)
            house.store.full = False
            await until(lambda: controller.health().ok)
            assert len(await controller.journal.samples("step")) == 100

    run_virtual(work())


def test_who_is_vouched_for_needs_no_beats_and_falls_silent_when_let_go():
    """A held node is heard for a day without a beat; let go, it has a whole interval, and then it is silent."""

    async def work() -> None:
        house = House(watch=False)
        async with running(house.controller()) as controller:
            await controller.beat(BEAT)
            controller.presence.hold("node:n1")
            await asyncio.sleep(86400)
            assert await said(controller) == ["AgentAttached"]
            controller.presence.let_go("node:n1")
            controller.presence.let_go("node:n1")
            await asyncio.sleep(29)
            assert await said(controller) == ["AgentAttached"]
            await asyncio.sleep(5)
            assert await said(controller) == ["AgentAttached", "NodeSilent"]
            await controller.beat(BEAT)
            controller.presence.hold("node:n1")
            await asyncio.sleep(3600)
            assert await said(controller) == ["AgentAttached", "NodeSilent", "NodeHeard"]

    run_virtual(work())


def test_beside_held_nodes_the_others_still_fall_silent():
    """One node is vouched for, another beats for itself and stops."""

    async def work() -> None:
        house = House(watch=False)
        async with running(house.controller()) as controller:
            await controller.beat(BEAT)
            controller.presence.hold("node:n1")
            await asyncio.sleep(3600)
            await beats(controller, Beat(source="agent:n2", node="n2", boot_id="b", instance_id="m2"), 100)
            await asyncio.sleep(60)
            [silent] = await controller.journal.events(kind="node_silent")
            assert silent.node == "n2"

    run_virtual(work())


def test_a_silence_that_is_stored_after_its_end_is_taken_back():
    """The disk was full when the silence was noticed; by the time it was stored, the node was vouched for again."""

    async def work() -> None:
        house = House(watch=False)
        async with running(house.controller()) as controller:
            await controller.beat(BEAT)
            house.store.full = True
            await asyncio.sleep(40)
            await controller.beat(BEAT)
            controller.presence.hold("node:n1")
            house.store.full = False
            await until(lambda: controller.health().ok)
            await asyncio.sleep(5)
            assert await said(controller) == ["AgentAttached", "NodeSilent", "NodeHeard"]
            await asyncio.sleep(86400)
            assert await said(controller) == ["AgentAttached", "NodeSilent", "NodeHeard"]

    run_virtual(work())

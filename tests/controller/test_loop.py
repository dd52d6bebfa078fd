"""The controller's loop: journal first, once each, in order, through restarts, fencing and a full disk."""

from __future__ import annotations

import asyncio

import pytest
from tests.controller.cases import House, ToyEngine, finding, running, until

from holdfast.adapters.clock import run_virtual
from holdfast.adapters.memory import MemoryJournal
from holdfast.errors import EngineError, FencedError, JournalBusyError, LinkError, WireError
from holdfast.model import events as e
from holdfast.model.orders import OrderStatus


def test_an_event_is_on_disk_before_submit_answers_and_a_duplicate_is_stored_once():
    """`submit` resolves with the seq after the commit; the same id again resolves and changes nothing."""

    async def work() -> None:
        house = House()
        async with running(house.controller()) as controller:
            seqs = await asyncio.gather(*(controller.submit(finding("x", "a")) for _ in range(3)))
            assert [one.id for one in await controller.journal.events(kind="finding_seen")] == ["a"]
            assert await controller.submit(finding("x", "a")) >= seqs[0]
            later = await controller.submit(finding("x", "b"))
            assert later > seqs[0]
            assert [one for one in house.handled if "Finding" in one] == ["FindingSeen a", "FindingSeen b"]

    run_virtual(work())


def test_a_duplicate_is_known_after_a_restart_too():
    """Ids are looked up in the journal when memory does not know them."""

    async def work() -> None:
        house = House(recent=2)
        async with running(house.controller()) as controller:
            for name in "abcd":
                await controller.submit(finding("x", name))
        async with running(house.controller()) as controller:
            before = controller.seq
            await controller.submit(finding("x", "a"))
            assert controller.seq == before

    run_virtual(work())


def test_an_order_is_stored_with_its_event_carried_out_and_its_outcome_stored():
    """Event and order are on disk before the world changes; the outcome comes back as an event."""

    async def work() -> None:
        house = House()
        gate = house.world.gate("quarantine_node")
        async with running(house.controller()) as controller:
            await controller.submit(finding("order:quarantine_node", "a"))
            record = (await controller.journal.orders())[0]
            assert record.status is OrderStatus.PENDING
            assert not house.world.nodes["n1"].drained
            gate.set()
            await until(lambda: not house.engines[-1].state.pending)
            assert house.world.nodes["n1"].drain_reason == "[holdfast] Xid 74"
            assert (await controller.journal.orders())[0].status is OrderStatus.DONE

    run_virtual(work())


def test_replay_gives_the_same_state():
    """A controller that was killed without a snapshot comes back, event by event, to the same bytes."""

    async def work() -> None:
        house = House(snapshot_every=10_000)
        async with running(house.controller(), kill=True) as controller:
            await controller.submit(finding("timer:t:50", "t"))
            await controller.submit(finding("order:quarantine_node", "a"))
            await until(lambda: not house.engines[-1].state.pending)
            await asyncio.sleep(1)
            engine, shell = house.engines[-1].snapshot(), controller.shell()
        async with running(house.controller(), kill=True) as controller:
            assert house.engines[-1].state.handled[:-1] == ToyEngine(engine).state.handled
            before = controller.shell()
            assert (before.timers, before.nodes, before.jobs) == (shell.timers, shell.nodes, shell.jobs)

    run_virtual(work())


def test_an_orderly_end_leaves_a_snapshot_and_no_lease():
    """After `stop` nothing has to be replayed and another holder gets in at once."""

    async def work() -> None:
        house = House()
        async with running(house.controller("one")) as controller:
            await controller.submit(finding("x", "a"))
            last = controller.seq
        assert house.store.snapshots[-1][0] == last
        async with running(house.controller("two")) as controller:
            assert controller.epoch == 2
            assert "FindingSeen a" in house.handled

    run_virtual(work())


def test_snapshots_are_taken_every_so_many_events():
    """A long run leaves snapshots on its way, so that a killed controller replays little."""

    async def work() -> None:
        house = House(snapshot_every=10, batch_max=4)
        async with running(house.controller(), kill=True) as controller:
            await asyncio.gather(*(controller.submit(finding("x", f"e{n}")) for n in range(35)))
        assert house.store.snapshots[-1][0] >= 30
        async with running(house.controller()):
            assert len([one for one in house.handled if "FindingSeen" in one]) == 35

    run_virtual(work())


def test_one_active_controller():
    """While one lives another is refused; when it is killed, its lease must end first."""

    async def work() -> None:
        house = House()
        async with running(house.controller("one"), kill=True):
            await asyncio.sleep(100)
            with pytest.raises(JournalBusyError, match="'one'"):
                await house.controller("two").run()
        with pytest.raises(JournalBusyError):
            await house.controller("two").run()
        await asyncio.sleep(16)
        async with running(house.controller("two")) as controller:
            assert controller.epoch == 2

    run_virtual(work())


def test_a_superseded_controller_stops_at_once_and_acts_no_more():
    """When another took over, the former ends with FencedError, executors included, and nothing of it is stored."""

    async def work() -> None:
        house = House()
        gate = house.world.gate("quarantine_node")
        old = house.controller("same")
        task = asyncio.create_task(old.run())
        await old.ready.wait()
        await old.submit(finding("order:quarantine_node", "a"))
        await until(lambda: len(house.world.asked) == 1)
        async with running(house.controller("same")) as new:
            refused = old.submit(finding("x", "late"))
            with pytest.raises(FencedError, match="superseded"):
                await task
            with pytest.raises(LinkError):
                await refused
            gate.set()
            await until(lambda: not house.engines[-1].state.pending)
            assert [one.id for one in await new.journal.events(kind="finding_seen")] == ["a"]
        assert house.world.effects == {"o" + str(event_seq(house, "a")): 1}
        with pytest.raises(LinkError):
            await old.submit(finding("x", "later"))

    run_virtual(work())


def test_a_controller_that_is_cancelled_while_it_ends_leaves_nothing_running():
    """When `run` is cancelled in the moment in which it ends by itself, its tasks and executors end all the same."""

    async def work() -> None:
        house = House()
        gate = house.world.gate("quarantine_node")
        old = house.controller("same")
        before = asyncio.all_tasks()
        task = asyncio.create_task(old.run())
        await old.ready.wait()
        await old.submit(finding("order:quarantine_node", "a"))
        await until(lambda: len(house.world.asked) == 1)
        old.claims.close = task.cancel  # type: ignore[method-assign,assignment] # it is called between the two
        await MemoryJournal(house.store).acquire("same", lease_s=15.0, now=house.clock.now())
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: asyncio.all_tasks() == before)
        gate.set()
        assert not house.world.nodes["n1"].drained

    run_virtual(work())


def event_seq(house: House, event_id: str) -> int:
    return next(row.seq for row in house.store.rows if row.id == event_id)


def test_nothing_is_begun_while_the_lease_is_in_doubt():
    """A controller that cannot renew begins no order after its lease, and goes on when it can."""

    async def work() -> None:
        house = House()
        controller = house.controller(lease_s=9.0)
        async with running(controller):
            house.store.full = True
            await asyncio.sleep(12)
            assert not controller.may_act()
            house.store.full = False
            await until(controller.may_act)

    run_virtual(work())


def test_a_full_disk_stops_deeds_loses_nothing_and_heals():
    """While the journal refuses, submitters wait, nothing is begun, health says why; afterwards all is stored once."""

    async def work() -> None:
        house = House(watch=False)
        async with running(house.controller()) as controller:
            house.store.full = True
            stored = [
                controller.submit(finding("order:quarantine_node", "a")),
                controller.submit(finding("x", "b")),
                controller.submit(finding("x", "a")),
            ]
            await asyncio.sleep(5)
            assert not any(one.done() for one in stored)
            assert "disk is full" in controller.health().failing
            assert not controller.health().ok
            assert house.world.asked == []
            house.store.full = False
            await asyncio.gather(*stored)
            await until(lambda: not house.engines[-1].state.pending)
            assert controller.health().ok
        assert list(house.world.effects.values()) == [1]
        assert len([row for row in house.store.rows if row.kind == "finding_seen"]) == 2

    run_virtual(work())


def test_stopped_on_a_full_disk_no_snapshot_of_unstored_events_is_left():
    """An end while the journal refuses leaves the last stored state; the unstored event is the source's to send again."""

    async def work() -> None:
        house = House(watch=False)
        controller = house.controller()
        task = asyncio.create_task(controller.run())
        await controller.ready.wait()
        house.store.full = True
        lost = controller.submit(finding("x", "a"))
        await asyncio.sleep(2)
        controller.stop()
        await task
        with pytest.raises(LinkError):
            await lost
        house.store.full = False
        async with running(house.controller()) as controller:
            await controller.submit(finding("x", "a"))
            assert [one for one in house.handled if "FindingSeen" in one] == ["FindingSeen a"]

    run_virtual(work())


def test_an_event_that_the_engine_refuses_is_not_stored_and_harms_no_other():
    """The refusal goes to the submitter; the half-done change is undone by a replay; the batch's others are stored."""

    async def work() -> None:
        house = House(watch=False)
        async with running(house.controller()) as controller:
            first = controller.submit(finding("order:quarantine_node", "a"))
            bad = controller.submit(finding("refuse", "b"))
            last = controller.submit(finding("x", "c"))
            await asyncio.gather(first, last)
            with pytest.raises(EngineError, match="no such line"):
                await bad
            await until(lambda: not house.engines[-1].state.pending)
            assert house.handled[:3] == ["ControllerStarted started:1", "FindingSeen a", "FindingSeen c"]
            assert "half done" not in house.handled
            assert [one.seq for one in await controller.events_after(0)] == list(range(1, controller.seq + 1))

    run_virtual(work())


def test_an_event_that_cannot_be_written_is_refused_before_it_is_handled():
    """Text that is not Unicode reaches neither the engine nor the disk."""

    async def work() -> None:
        house = House(watch=False)
        async with running(house.controller()) as controller:
            with pytest.raises(WireError, match="JSON"):
                await controller.submit(finding("\ud800", "a"))
            assert house.handled == ["ControllerStarted started:1"]

    run_virtual(work())


def test_timers_fire_once_are_replaced_and_cancelled():
    """A timer of the same name replaces the former; a cancelled one never reaches the engine."""

    async def work() -> None:
        house = House(watch=False)
        async with running(house.controller()) as controller:
            began = house.clock.now()
            await controller.submit(finding("timer:t:10", "a"))
            await controller.submit(finding("timer:u:5", "b"))
            await asyncio.sleep(3)
            await controller.submit(finding("timer:t:10", "c"))
            await controller.submit(finding("cancel:u:", "d"))
            await asyncio.sleep(30)
            fired = await controller.journal.events(kind="timer_fired")
            assert [(one.timer, round(one.at - began)) for one in fired] == [("t", 13)]

    run_virtual(work())


def test_a_timer_that_was_replaced_on_its_way_is_dropped():
    """A TimerFired that waits behind the event that cancels or restarts its timer is not handled."""

    async def work() -> None:
        house = House(watch=False)
        async with running(house.controller()) as controller:
            await controller.submit(finding("timer:t:10", "a"))
            order = (await controller.journal.entries())[-1].orders[0]
            again = controller.submit(finding("timer:t:10", "b"))
            stale = controller.submit(e.TimerFired(id=f"timer:{order.id}", at=1.0, timer="t"))
            await asyncio.gather(again, stale)
            assert await controller.journal.events(kind="timer_fired") == []
            await asyncio.sleep(11)
            assert len(await controller.journal.events(kind="timer_fired")) == 1

    run_virtual(work())


@pytest.mark.parametrize("kill", [True, False])
def test_timers_survive_a_restart(kill: bool):
    """What was due meanwhile fires at once after a restart, what is not yet due fires in its time, each once."""

    async def work() -> None:
        house = House(watch=False)
        async with running(house.controller(), kill=kill) as controller:
            began = house.clock.now()
            await controller.submit(finding("timer:soon:10", "a"))
            await controller.submit(finding("timer:late:100", "b"))
        await asyncio.sleep(30)
        async with running(house.controller(), kill=kill) as controller:
            await asyncio.sleep(200)
        async with running(house.controller()) as controller:
            fired = await controller.journal.events(kind="timer_fired")
            assert [(one.timer, round(one.at - began)) for one in fired] == [("soon", 30), ("late", 100)]

    run_virtual(work())


def test_a_long_poll_wakes_with_the_commit_and_ends_with_its_time():
    """A reader that waits gets the event as soon as it is on disk; with none, an empty answer after its wait."""

    async def work() -> None:
        house = House(watch=False, recent=5)
        async with running(house.controller()) as controller:
            poll = asyncio.create_task(controller.events_after(controller.seq, wait_s=30))
            await asyncio.sleep(1)
            await controller.submit(finding("x", "a"))
            began = house.clock.monotonic()
            assert [one.id for one in await poll] == ["a"]
            assert house.clock.monotonic() - began < 0.1
            assert await controller.events_after(controller.seq, wait_s=7) == []
            assert 6.9 < house.clock.monotonic() - began < 7.2
            await asyncio.gather(*(controller.submit(finding("x", f"m{n}")) for n in range(20)))
            seqs = [one.seq for one in await controller.events_after(0)]
            assert seqs == list(range(1, controller.seq + 1))
            assert [one.seq for one in await controller.events_after(controller.seq - 3, limit=2)] == seqs[-3:-1]

    run_virtual(work())


def test_a_reader_sees_every_event_in_order_until_the_end():
    """`events_after` first gives what is stored, then what comes, and its wait ends with the controller."""

    async def work() -> None:
        house = House(watch=False)
        controller = house.controller()
        seen: list[int] = []

        async def follow() -> None:
            while not controller.ended:
                seen.extend(one.seq for one in await controller.events_after(max(seen, default=0), wait_s=3600.0))

        async with running(controller):
            await controller.submit(finding("x", "a"))
            follower = asyncio.create_task(follow())
            await asyncio.sleep(1)
            await asyncio.gather(*(controller.submit(finding("x", f"e{n}")) for n in range(9)))
            await asyncio.sleep(1)
        await asyncio.wait_for(follower, 10)
        assert seen == list(range(1, 12))

    run_virtual(work())


def test_old_history_is_dropped_in_time():
    """Retention runs by itself and keeps what a restart needs."""

    async def work() -> None:
        house = House(watch=False, retain_s=1000.0, retain_every_s=100.0, snapshot_every=5)
        async with running(house.controller()) as controller:
            await asyncio.gather(*(controller.submit(finding("x", f"e{n}")) for n in range(20)))
            await asyncio.sleep(1200)
            assert len(house.store.rows) < 20
            await controller.submit(finding("x", "new"))
            last = controller.seq
        async with running(house.controller()) as controller:
            assert controller.seq == last + 1

    run_virtual(work())

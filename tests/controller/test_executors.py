"""Carrying out orders: one at a time per job and node, retried, limited, withdrawn, handed out by mail."""

from __future__ import annotations

import asyncio

import pytest
from tests.controller.cases import House, finding, running, until

from holdfast.adapters.clock import VirtualClock, run_virtual
from holdfast.adapters.memory import MemoryOrchestrator, MemoryRepair
from holdfast.controller import Controller, Settings
from holdfast.controller.acts import within
from holdfast.controller.executors import Executors
from holdfast.controller.mailbox import Mailboxes
from holdfast.controller.state import ShellState
from holdfast.errors import LinkError, PermanentOrderError, TemporaryOrderError
from holdfast.model import events as e
from holdfast.model.cluster import NodeView
from holdfast.model.orders import AnyOrder, QuarantineNode
from holdfast.model.wire import Beat


async def outcomes(controller: Controller) -> list[e.AnyEvent]:
    return await controller.journal.events(kind=("order_done", "order_failed", "node_validated"))


def test_orders_for_one_node_wait_for_each_other_and_others_do_not():
    """While one order holds node n1, a second for n1 waits, and one for n2 is done."""

    async def work() -> None:
        house = House(watch=False)
        gate = house.world.gate("replace_node")
        async with running(house.controller()) as controller:
            await controller.submit(finding("order:replace_node", "a", node="n1"))
            await controller.submit(finding("order:quarantine_node", "b", node="n1"))
            await controller.submit(finding("order:quarantine_node", "c", node="n2"))
            await until(lambda: house.world.nodes["n2"].drained)
            await asyncio.sleep(5)
            assert not house.world.nodes["n1"].drained
            gate.set()
            await until(lambda: not house.engines[-1].state.pending)
            assert house.world.nodes["n1"].drained
            assert [order.node for order in house.world.asked] == ["n1", "n2", "n1"]

    run_virtual(work())


def test_what_is_temporary_is_tried_again_with_growing_pauses():
    """Temporary errors and a lost link cost time, not the order."""

    async def work() -> None:
        house = House(watch=False)
        errors = [TemporaryOrderError("busy"), LinkError("no route"), TemporaryOrderError("busy", retry_after_s=7)]
        house.world.fail_next("quarantine_node", *errors)
        async with running(house.controller()) as controller:
            began = house.clock.now()
            await controller.submit(finding("order:quarantine_node", "a"))
            await until(lambda: not house.engines[-1].state.pending)
            [done] = await outcomes(controller)
            assert isinstance(done, e.OrderDone)
            # 1 s is a temporary error's own default, then 0.4 s of growing pause, then the 7 s that were asked for.
            assert 8.3 < done.at - began < 8.6

    run_virtual(work())


def test_what_stays_temporary_fails_at_its_limit_as_not_permanent():
    """An order that is tried until its limit fails with the last reason, and may be given again."""

    async def work() -> None:
        house = House(watch=False, order_limit_s=60.0)
        house.world.fail_next("quarantine_node", *[TemporaryOrderError("slurmctld is busy")] * 100)
        async with running(house.controller()) as controller:
            began = house.clock.now()
            await controller.submit(finding("order:quarantine_node", "a"))
            await until(lambda: not house.engines[-1].state.pending, 100)
            [failed] = await outcomes(controller)
            assert isinstance(failed, e.OrderFailed)
            assert not failed.permanent
            assert "slurmctld is busy" in failed.why
            assert failed.at - began <= 60

    run_virtual(work())


def test_an_order_that_hangs_is_ended_at_its_limit():
    """A port that never returns does not hold its node for ever."""

    async def work() -> None:
        house = House(watch=False, order_limit_s=60.0)
        house.world.gate("quarantine_node")
        async with running(house.controller()) as controller:
            await controller.submit(finding("order:quarantine_node", "a"))
            await until(lambda: not house.engines[-1].state.pending, 100)
            [failed] = await outcomes(controller)
            assert "not done within 60 s" in failed.why
            assert not house.world.nodes["n1"].drained

    run_virtual(work())


def test_what_is_permanent_fails_at_once():
    """A permanent refusal is not tried twice; so is an adapter's own bug."""

    async def work() -> None:
        house = House(watch=False)
        house.world.fail_next("quarantine_node", PermanentOrderError("no permission"), KeyError("bug"))
        async with running(house.controller()) as controller:
            for name in "ab":
                await controller.submit(finding("order:quarantine_node", name))
                await until(lambda: not house.engines[-1].state.pending)
            failed = await outcomes(controller)
            assert [(one.permanent, one.why) for one in failed] == [
                (True, "no permission"),
                (True, "internal error: KeyError('bug')"),
            ]
            assert len(house.world.asked) == 2

    run_virtual(work())


def test_a_withdrawn_order_is_dropped_or_interrupted():
    """What waits is never begun, what runs is cancelled, and neither gets an outcome."""

    async def work() -> None:
        house = House(watch=False)
        gate = house.world.gate("quarantine_node")
        async with running(house.controller()) as controller:
            await controller.submit(finding("order:quarantine_node", "a"))
            await controller.submit(finding("order:quarantine_node", "b"))
            await until(lambda: len(house.world.asked) == 1)
            await controller.submit(finding("withdraw", "w"))
            gate.set()
            await asyncio.sleep(5)
            assert len(house.world.asked) == 1
            assert not house.world.nodes["n1"].drained
            assert await outcomes(controller) == []
            await controller.submit(finding("order:quarantine_node", "c"))
            await until(lambda: house.world.nodes["n1"].drained)

    run_virtual(work())


def test_an_order_that_the_engine_calls_failed_is_ended_and_the_next_begins():
    """A repair without an outcome in time is over: the next repair of the node must not wait for the adapter's limit."""

    async def work() -> None:
        house = House(watch=False)
        house.world.gate("replace_node")
        async with running(house.controller()) as controller:
            await controller.submit(finding("order:replace_node", "a"))
            await until(lambda: len(house.world.asked) == 1)
            await controller.submit(finding("late", "b"))
            await controller.submit(finding("order:quarantine_node", "c"))
            await until(lambda: house.world.nodes["n1"].drained, 5)
            assert [type(one).__name__ for one in await outcomes(controller)] == ["OrderDone"]

    run_virtual(work())


def test_a_repair_is_asked_before_the_orchestrator():
    """A configured repair takes the orders that it can; the rest stays with the orchestrator."""

    async def work() -> None:
        house = House(watch=False)
        repair = MemoryRepair(house.world, "replace_node")
        controller = Controller(
            house.controller().journal, house.engine, house.world, [repair], [], house.clock, holder="one",
            settings=house.settings,
        )  # fmt: skip
        async with running(controller):
            await controller.submit(finding("order:replace_node", "a"))
            await controller.submit(finding("order:quarantine_node", "b", node="n2"))
            await until(lambda: not house.engines[-1].state.pending)
            assert [type(order).__name__ for order in repair.asked] == ["ReplaceNode"]
            assert house.world.nodes["n1"].instance_id == "machine-new-1"

    run_virtual(work())


def test_a_repair_that_the_site_has_no_way_for_says_where_to_name_one(monkeypatch: pytest.MonkeyPatch):
    """Slurm without a program that replaces: the node is handed to a person, who reads what is missing."""

    async def work() -> None:
        house = House(watch=False)
        monkeypatch.setattr(house.world, "can", lambda _order: False)
        async with running(house.controller()) as controller:
            await controller.submit(finding("order:replace_node", "a"))
            await until(lambda: not house.engines[-1].state.pending)
            [failed] = await outcomes(controller)
            assert "nothing here can carry out replace_node: name a program for it under [repair]" in failed.why

    run_virtual(work())


def test_an_order_that_nobody_can_do_fails_with_that_reason():
    """No adapter and no mailbox: the engine hears it at once."""

    async def work() -> None:
        house = House(watch=False)
        async with running(house.controller()) as controller:
            await controller.submit(finding("order:escalate", "a"))
            await until(lambda: not house.engines[-1].state.pending)
            [failed] = await outcomes(controller)
            assert (failed.permanent, failed.why) == (True, "nothing here can carry out escalate")

    run_virtual(work())


def test_notices_reach_every_notifier_once_though_one_fails():
    """A failing notifier is tried again; the one that was told already is not told twice."""

    async def work() -> None:
        from holdfast.adapters.memory import MemoryNotifier

        house = House(watch=False)
        good, bad = MemoryNotifier(), MemoryNotifier()
        bad.failures.extend([TemporaryOrderError("mail server is down")] * 3)
        controller = Controller(
            house.controller().journal, house.engine, house.world, [], [good, bad], house.clock, holder="one",
            settings=house.settings,
        )  # fmt: skip
        async with running(controller):
            await controller.submit(finding("order:notify", "a"))
            await until(lambda: not house.engines[-1].state.pending)
            assert (len(good.sent), len(bad.sent)) == (1, 1)

    run_virtual(work())


@pytest.mark.parametrize(("error", "passed"), [(None, True), (PermanentOrderError("only 7 of 8 GPUs"), False)])
def test_a_validation_by_an_adapter_has_its_own_outcome(error: PermanentOrderError | None, passed: bool):
    """`ValidateNode` gives `NodeValidated` with the machine's identity; checks that say no are no failed order."""

    async def work() -> None:
        house = House()
        if error is not None:
            house.world.fail_next("validate_node", error)
        async with running(house.controller()) as controller:
            await until(lambda: controller.shell().nodes)
            await controller.submit(finding("order:validate_node", "a"))
            await until(lambda: not house.engines[-1].state.pending)
            validated, done = await outcomes(controller)
            assert (validated.passed, validated.instance_id, validated.boot_id) == (passed, "machine-n1", "boot-n1")
            assert isinstance(done, e.OrderDone)

    run_virtual(work())


def test_checks_that_could_not_be_run_are_no_outcome_of_the_checks():
    """A link that is down until the order's limit says nothing about the node: the order fails, for now."""

    async def work() -> None:
        house = House(watch=False, repair_limit_s=60.0)
        house.world.fail_next("validate_node", *[LinkError("no route")] * 100)
        async with running(house.controller()) as controller:
            await controller.submit(finding("order:validate_node", "a"))
            await until(lambda: not house.engines[-1].state.pending, 100)
            [failed] = await outcomes(controller)
            assert isinstance(failed, e.OrderFailed)
            assert not failed.permanent

    run_virtual(work())


def test_mail_is_handed_out_until_its_outcome_and_has_a_limit():
    """An order for a launcher fails as temporary when nobody answers in time, and is not handed out afterwards."""

    async def work() -> None:
        house = House(watch=False)
        async with running(house.controller()) as controller:
            beat = Beat(source="launcher:7", cluster="test", job="7")
            await controller.submit(finding("order:capture_stacks", "a"))
            assert len((await controller.beat(beat, wait_s=1)).requests) == 1
            assert len((await controller.beat(beat)).requests) == 1
            await until(lambda: not house.engines[-1].state.pending)
            [failed] = await outcomes(controller)
            assert (failed.permanent, "no outcome from launcher" in failed.why) == (False, True)
            assert (await controller.beat(beat)).requests == []

    run_virtual(work())


def test_a_waiting_beat_is_answered_when_an_order_comes():
    """A beat may wait for orders; it returns with one at once, or without any at the end of its wait."""

    async def work() -> None:
        house = House(watch=False)
        house.world.refused = frozenset({"validate_node"})
        async with running(house.controller()) as controller:
            beat = Beat(source="agent:n1", node="n1", boot_id="b")
            began = house.clock.monotonic()
            assert (await controller.beat(beat, wait_s=10)).requests == []
            assert 9.9 < house.clock.monotonic() - began < 10.1
            waiting = asyncio.create_task(controller.beat(beat, wait_s=10))
            await asyncio.sleep(2)
            await controller.submit(finding("order:validate_node", "a"))
            [order] = (await waiting).requests
            assert house.clock.monotonic() - began < 12.5
            await controller.submit(e.OrderDone(id="d", at=1.0, order=order.id))
            await until(lambda: not house.engines[-1].state.pending)
            assert (await controller.beat(beat)).requests == []

    run_virtual(work())


def test_an_order_asked_for_again_while_its_failure_is_being_stored_is_not_lost():
    """Found by simulation (seed 324): failure and retry timer came in two batches with nothing between them."""

    async def work() -> None:
        clock = VirtualClock()
        world = MemoryOrchestrator(clock, nodes=[NodeView(name="n1")])
        world.fail_next("quarantine_node", TemporaryOrderError("busy", retry_after_s=1000.0))
        order = QuarantineNode(id="c1.1", cause=1, node="n1")
        said: list[e.AnyEvent] = []

        async def outcome(event: e.AnyEvent) -> int:
            said.append(event)
            if isinstance(event, e.OrderFailed):
                executors.settle(order.id)
                executors.dispatch(order)
            return len(said)

        executors = Executors(
            orchestrator=world,
            repairs=[],
            notifiers=[],
            mailboxes=Mailboxes(),
            clock=clock,
            settings=Settings(),
            outcome=outcome,
            may_act=lambda: True,
            storing=lambda: 0,
            state=ShellState,
        )
        executors.dispatch(order)
        await until(lambda: len(said) == 2)
        assert isinstance(said[1], e.OrderDone)
        assert world.nodes["n1"].drained
        await until(lambda: executors.waiting == 0)

    run_virtual(work())


def test_an_order_that_is_seen_done_is_not_tried_again():
    """Found by seed 63493: a command said that it had failed but had not; its retry undid what a person did since."""

    async def work() -> None:
        house = House(watch=False)
        lie = TemporaryOrderError("the command's answer was lost", retry_after_s=5)
        house.world.fail_next("quarantine_node", lie)
        async with running(house.controller()) as controller:
            await controller.submit(finding("order:quarantine_node", "a"))
            await until(lambda: house.world.asked != [])
            [order] = house.world.asked
            await controller.submit(e.OrderDone(id="seen", at=1.0, order=order.id, detail="it is seen drained"))
            await asyncio.sleep(60)
            assert house.world.asked == [order], "the order was carried out again after its end was stored"
            assert [event.id for event in await outcomes(controller)] == ["seen"]

    run_virtual(work())


@pytest.mark.parametrize(
    ("settled_after_s", "batch"),
    [
        pytest.param(0.2, 0, id="during the try"),
        pytest.param(0.7, 0, id="before the next try"),
        pytest.param(5.0, 7, id="by what a slow disk is still storing"),
    ],
)
def test_an_order_that_ended_while_it_ran_is_not_tried_again(settled_after_s: float, batch: int):
    """Found by seed 63493: a release that was seen to have worked was tried again and undid a person's hold."""

    async def work() -> None:
        clock = VirtualClock()
        tries: list[float] = []

        class Liar(MemoryOrchestrator):
            async def execute(self, order: AnyOrder) -> str:
                tries.append(clock.now())
                await clock.sleep(0.5)
                raise TemporaryOrderError("timed out")

        said: list[e.AnyEvent] = []

        async def outcome(event: e.AnyEvent) -> int:
            said.append(event)
            return len(said)

        executors = Executors(
            orchestrator=Liar(clock),
            repairs=[],
            notifiers=[],
            mailboxes=Mailboxes(),
            clock=clock,
            settings=Settings(),
            outcome=outcome,
            may_act=lambda: True,
            storing=lambda: 0 if executors.acts.settled else batch,
            state=ShellState,
        )
        executors.dispatch(QuarantineNode(id="c1.1", cause=1, node="n1"))
        await clock.sleep(settled_after_s)
        executors.settle("c1.1")
        await until(lambda: executors.waiting == 0)
        assert len(tries) == 1
        assert said == []

    run_virtual(work())


def test_within_ends_late_work_and_passes_a_cancel_on():
    """`within` raises TimeoutError only for lateness; a cancel from outside stays a cancel, and both end the work."""

    async def work() -> None:
        clock = VirtualClock()
        ended: list[str] = []

        async def slow() -> int:
            try:
                await asyncio.sleep(10)
            finally:
                ended.append("slow")
            return 1

        with pytest.raises(TimeoutError):
            await within(clock, 5, slow())
        assert await within(clock, 50, slow()) == 1
        task = asyncio.create_task(within(clock, 5, slow()))
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended == ["slow"] * 3

    run_virtual(work())

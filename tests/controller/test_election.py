"""Who leads: judged by what was seen and one's own monotonic clock. A holder that cannot renew stops acting before."""

from __future__ import annotations

import asyncio
import random
from contextlib import asynccontextmanager

import pytest
from tests.controller.cases import House, finding, running, until

from holdfast.adapters.clock import VirtualClock, run_virtual
from holdfast.adapters.memory import MemoryJournal
from holdfast.controller import Controller
from holdfast.controller.election import LOOKS, MARGIN, NEVER_HELD, Elector, Leading, keep, until_free
from holdfast.errors import FencedError, JournalBusyError, JournalError
from holdfast.model import events as e
from holdfast.ports import LeaseRow

LEASE_S = 15.0


class SkewedClock(VirtualClock):
    """A machine whose wall clock is wrong by so much, and whose monotonic one began at another time."""

    def __init__(self, ahead_s: float) -> None:
        super().__init__()
        self._ahead_s = ahead_s

    def now(self) -> float:
        return super().now() + self._ahead_s

    def monotonic(self) -> float:
        return super().monotonic() + 1000.0 * self._ahead_s


def row(expires: float, *, holder: str = "a", epoch: int = 1) -> LeaseRow:
    return LeaseRow(holder, epoch, expires, LEASE_S)


# --- the pure part ---


def test_a_lease_is_free_when_nobody_has_it_or_it_is_ones_own():
    """Never held, given back, or under the own name: at once."""
    elector = Elector("b", lease_s=LEASE_S)
    assert [elector.see(one, 0.0).wait_s for one in (None, row(0.0, holder=""), row(9.0, holder="b"))] == [0, 0, 0]


def test_a_row_that_does_not_change_is_free_after_its_time_and_a_margin():
    """Each change begins the wait anew; its times are never compared with any clock."""
    elector = Elector("b", lease_s=LEASE_S)
    patience = LEASE_S * (1 + MARGIN)
    assert elector.see(row(-1e9), 0.0).wait_s == patience
    assert elector.see(row(-1e9), 10.0).wait_s == patience - 10.0
    standing = elector.see(row(1e9), 12.0)
    assert (standing.wait_s, standing.is_alive) == (patience, True)
    assert elector.see(row(1e9), 12.0 + patience - 0.1).wait_s == pytest.approx(0.1)
    assert elector.see(row(1e9), 12.0 + patience).wait_s == 0.0
    assert elector.see(row(1e9, epoch=2), 12.0 + patience).wait_s == patience


def test_a_holder_with_a_longer_lease_is_waited_for_longer():
    """A standby that was started with a shorter lease must not take over while the holder may act."""
    elector = Elector("b", lease_s=1.0)
    assert elector.see(row(0.0), 0.0).wait_s == LEASE_S * (1 + MARGIN)


@pytest.mark.parametrize("seed", range(200))
def test_no_standby_is_free_to_lead_while_the_holder_may_act(seed: int):
    """Renewals late, lost on the way there or back; looks at any time; clocks wrong by minutes, and a bit too fast."""
    rng = random.Random(seed)
    holder, standby = Leading(LEASE_S), Elector("b", lease_s=LEASE_S)
    skew, rate = rng.uniform(-300, 300), rng.uniform(0.999, 1.001)
    stored, at, next_renewal, left_to_live = row(LEASE_S), 0.0, 5.0, rng.uniform(0, 120)
    holder.renewed(0.0)
    answers: list[tuple[float, float]] = []
    while True:
        at += rng.uniform(0.0, 2.0)
        if at >= next_renewal and at < left_to_live:
            reaches = at + rng.choice((0.0, 0.1, 3.0, 20.0))
            next_renewal = reaches + rng.choice((5.0, 5.0, 9.0))
            if rng.random() < 0.8:
                stored = row(reaches + LEASE_S)
                if rng.random() < 0.8:
                    answers.append((reaches + rng.choice((0.0, 1.0, 10.0)), at))
        for came, asked in [one for one in answers if one[0] <= at]:
            holder.renewed(asked)
            answers.remove((came, asked))
        if standby.see(stored, at * rate + skew, now=at + skew).wait_s == 0.0:
            assert not holder.may_act(at)
            break
        assert at < 1000.0


def test_clocks_are_compared_by_renewals_that_were_seen():
    """The difference is known after one renewal; before, only that a renewal was not in the future; seconds are noise."""
    elector = Elector("b", lease_s=LEASE_S)
    elector.see(row(1000.0 + LEASE_S), 0.0, now=1400.0)
    assert elector.ahead_s == 0.0
    elector.see(row(1005.0 + LEASE_S), 5.0, now=1306.0)
    assert elector.ahead_s == 301.0
    fresh = Elector("b", lease_s=LEASE_S)
    fresh.see(row(1000.0 + LEASE_S), 0.0, now=700.0)
    assert fresh.ahead_s == -300.0
    fresh.see(row(1005.0 + LEASE_S), 5.0, now=1006.5)
    assert fresh.ahead_s == 0.0


class SlowStore:
    """Takes five seconds for each renewal, and has been fenced at the third."""

    def __init__(self, clock: VirtualClock, leading: Leading) -> None:
        self._clock, self._leading = clock, leading
        self.left_s: list[float] = []
        """How long the holder may still act, as each renewal begins."""

    async def renew(self, *, now: float) -> None:
        self.left_s.append(self._leading.until - self._clock.monotonic())
        if len(self.left_s) == 3:
            raise FencedError("another leads")
        await self._clock.sleep(5.0)


def test_a_renewal_counts_from_when_it_was_asked_for():
    """The way to the store and back is never time to act in: a standby may have begun to wait before the answer came."""

    async def work() -> None:
        clock = VirtualClock()
        leading = Leading(30.0)
        leading.renewed(clock.monotonic())
        store = SlowStore(clock, leading)
        await keep(store, leading, clock)
        assert store.left_s == pytest.approx([20.0, 15.0, 15.0])

    run_virtual(work())


# --- controllers ---


def candidate(house: House, name: str, clock: VirtualClock) -> Controller:
    house.clock = clock
    return house.controller(holder=name, journal=MemoryJournal(house.store), lease_s=LEASE_S)


async def stand_by(controller: Controller, elector: Elector, *, patient: bool = True) -> LeaseRow | None:
    return await until_free(
        controller.journal,
        elector,
        controller.clock,
        stopped_within=controller.stopped_within,
        patient=patient,
    )


@asynccontextmanager
async def leading(controller: Controller, seen: LeaseRow, ahead_s: float = 0.0):
    task = asyncio.create_task(controller.run(seen=seen, ahead_s=ahead_s))
    try:
        await controller.ready.wait()
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("ahead_s", [300.0, -300.0])
def test_clocks_that_differ_by_five_minutes_do_not_matter(ahead_s: float):
    """The standby waits while the first lives, whatever its clock says, and leads a lease and a margin after its death."""

    async def work() -> None:
        house = House()
        loop = asyncio.get_running_loop()
        first = candidate(house, "first", SkewedClock(0.0))
        second = candidate(house, "second", SkewedClock(ahead_s))
        elector = Elector("second", lease_s=LEASE_S)
        async with leading(first, NEVER_HELD):
            waiting = asyncio.create_task(stand_by(second, elector))
            await asyncio.sleep(600.0)
            assert not waiting.done()
            assert first.may_act()
        died = loop.time()
        seen = await waiting
        assert seen is not None
        # Its last renewal was at most a third of a lease before its death.
        assert LEASE_S * (1 + MARGIN - 1 / 3) - 0.1 <= loop.time() - died <= LEASE_S * (1 + MARGIN + 1 / LOOKS)
        async with leading(second, seen, elector.ahead_s):
            assert second.epoch == 2
            with pytest.raises(FencedError):
                await first.journal.renew(now=0.0)

    run_virtual(work())


def test_a_lease_that_was_given_back_is_found_at_once():
    """An orderly end: the standby leads an eighth of a lease later."""

    async def work() -> None:
        house = House()
        first = candidate(house, "first", VirtualClock())
        second = candidate(house, "second", VirtualClock())
        async with running(first):
            waiting = asyncio.create_task(stand_by(second, Elector("second", lease_s=LEASE_S)))
            await asyncio.sleep(60.0)
        ended = asyncio.get_running_loop().time()
        seen = await waiting
        assert seen is not None
        assert seen.holder == ""
        assert asyncio.get_running_loop().time() - ended <= LEASE_S / LOOKS

    run_virtual(work())


def test_of_two_standbys_one_gets_the_lease():
    """Both find it free; the row has changed for the second one, which goes on waiting."""

    async def work() -> None:
        house = House()
        store = MemoryJournal(house.store)
        await store.acquire("dead", lease_s=LEASE_S, now=0.0)
        journals = [MemoryJournal(house.store) for _ in range(2)]
        seen = [
            await until_free(
                journal, Elector(name, lease_s=LEASE_S), house.clock, stopped_within=never(house.clock), patient=True
            )
            for name, journal in zip("bc", journals, strict=True)
        ]
        assert seen[0] == seen[1] == await store.lease()
        assert await journals[0].acquire("b", lease_s=LEASE_S, now=-1e6, seen=seen[0]) == 2
        with pytest.raises(JournalBusyError, match="'b'"):
            await journals[1].acquire("c", lease_s=LEASE_S, now=1e6, seen=seen[1])

    run_virtual(work())


def never(clock: VirtualClock):
    async def stopped_within(seconds: float) -> bool:
        await clock.sleep(seconds)
        return False

    return stopped_within


def test_without_standby_a_holder_that_lives_is_named():
    """One renewal is enough to know; a dead one is waited for."""

    async def work() -> None:
        house = House()
        first = candidate(house, "first", VirtualClock())
        second = candidate(house, "second", SkewedClock(400.0))
        async with leading(first, NEVER_HELD):
            with pytest.raises(JournalBusyError, match="'first' is the active controller"):
                await stand_by(second, Elector("second", lease_s=LEASE_S), patient=False)
            assert asyncio.get_running_loop().time() < LEASE_S
        assert await stand_by(second, Elector("second", lease_s=LEASE_S), patient=False) is not None

    run_virtual(work())


def test_a_store_that_cannot_be_read_is_waited_for_by_a_standby_only():
    """And a stop ends the waiting."""

    class Gone:
        async def lease(self) -> LeaseRow | None:
            raise JournalError("connection refused")

    async def work() -> None:
        house = House()
        controller = candidate(house, "b", VirtualClock())
        elector = Elector("b", lease_s=LEASE_S)
        with pytest.raises(JournalError, match="refused"):
            await until_free(Gone(), elector, controller.clock, stopped_within=controller.stopped_within, patient=False)
        waiting = asyncio.create_task(
            until_free(Gone(), elector, controller.clock, stopped_within=controller.stopped_within, patient=True)
        )
        await asyncio.sleep(100.0)
        controller.stop()
        assert await waiting is None

    run_virtual(work())


def test_what_runs_when_the_lease_ends_is_cut_off_and_begun_again():
    """A renewal that fails past the deadline: nothing of ours goes on; once the lease is renewed the order is done."""

    async def work() -> None:
        house = House()
        gate = house.world.gate("quarantine_node")
        async with running(house.controller(lease_s=LEASE_S)) as controller:
            await controller.submit(finding("order:quarantine_node"))
            await until(lambda: len(house.world.asked) == 1)
            (act,) = controller._consequences.executors.acts.running
            house.store.full = True
            lapses = asyncio.get_running_loop().time() + LEASE_S
            await until(act.done)
            assert not controller.may_act()
            assert asyncio.get_running_loop().time() <= lapses + 0.1
            gate.set()
            await asyncio.sleep(60.0)
            assert house.world.effects == {}
            house.store.full = False
            await until(lambda: house.world.nodes["n1"].drained)
            assert list(house.world.effects.values()) == [1]
            assert len(house.world.asked) == 2

    run_virtual(work())


@pytest.mark.parametrize("ahead_s", [600.0, -600.0])
def test_a_timer_of_the_controller_before_is_due_at_the_same_moment(ahead_s: float):
    """With clocks ten minutes apart it comes neither ten minutes late nor before its time, and a replay knows why."""

    async def work() -> None:
        house = House()
        loop = asyncio.get_running_loop()
        first = candidate(house, "first", SkewedClock(-ahead_s / 2))
        second = candidate(house, "second", SkewedClock(ahead_s / 2))
        elector = Elector("second", lease_s=LEASE_S)
        async with leading(first, NEVER_HELD):
            waiting = asyncio.create_task(stand_by(second, elector))
            await asyncio.sleep(20.0)
            begun = loop.time()
            await first.submit(finding("timer:t:60"))
        seen = await waiting
        assert seen is not None
        assert elector.ahead_s == pytest.approx(ahead_s, abs=2.5)
        async with leading(second, seen, elector.ahead_s):
            while not any(isinstance(one, e.TimerFired) for one in await second.events_after(0)):
                await asyncio.sleep(0.1)
            assert loop.time() - begun == pytest.approx(60.0, abs=3.0)
            shell = second.shell().timers
        third = candidate(house, "third", SkewedClock(ahead_s / 2))
        await third.journal.acquire("third", lease_s=LEASE_S, now=0.0, seen=await third.journal.lease())
        await third._intake.replay()
        assert third.shell().timers == shell

    run_virtual(work())

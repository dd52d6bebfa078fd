"""A job's month, written by the real engine from events at chosen times: for tests that work figures out from events."""

from __future__ import annotations

import msgspec
from tests.decide.play import Play

from holdfast.adapters.memory import MemoryJournal, MemoryStore
from holdfast.model import events as e
from holdfast.ports import Entry, Touched

DAY_S = 86400.0
NOW = 1_790_000_000.0
SINCE = NOW - 30 * DAY_S
"""Four whole weeks and two days."""
STEP_S = 10.0
FAULTS = ((1, 40.0, 3.0, 100.0), (4, 30.0, 1.0, 60.0), (23, 20.0, 2.0, 200.0))
"""Day of the span, then seconds: until somebody saw it, until the ranks had ended, until the next first step."""


class Recorded(Play):
    """A play whose events are also what a controller would have written into its journal."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[Entry] = []

    def send(self, event: e.AnyEvent) -> list:
        orders = super().send(event)
        touched = msgspec.msgpack.encode(self.engine.touched())  # records live on: what is written is a copy
        self.entries.append(Entry(event, orders, msgspec.msgpack.decode(touched, type=Touched)))
        return orders


def history() -> Recorded:
    """A job that began a day before the span, failed as in `FAULTS`, and runs on."""
    play = Recorded()
    play.now = SINCE - DAY_S
    play.running()
    for number, (day, detect_s, stop_s, again_s) in enumerate(FAULTS):
        fault = SINCE + day * DAY_S
        play.now = fault - 5.0
        play.step(number, 1000 * (number + 1))
        play.now = fault + detect_s
        play.crash(number, seen_at=fault)
        play.now += stop_s
        play.restart_in_place(number + 1)
        play.now += again_s
        play.first_step(number + 1, 1000 * (number + 1) - 49, resumed_from=1000 * (number + 1) - 50)
        play.now += 600.0
        play.checkpoint(number + 1, 1000 * (number + 1) + 10)
    return play


class Clock:
    """Stands still at the span's end."""

    def now(self) -> float:
        return NOW


class Desk:
    """What of a controller the figures are made from."""

    def __init__(self, play: Recorded) -> None:
        self.clock = Clock()
        self.journal = MemoryJournal(MemoryStore())
        self._play = play

    async def write(self) -> None:
        await self.journal.acquire("test", lease_s=60.0, now=NOW)
        await self.journal.append(self._play.entries)

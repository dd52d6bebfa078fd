"""The journal of a simulated controller: the memory journal on a disk that fills up, is slow, or is written in halves.

`control.py` makes one per controller over one shared `Disk`. The canonical form is hashed as it is written, so that a
run whose old events are dropped has a digest of all of them.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterator, Sequence

from holdfast.adapters.memory.journal import MemoryJournal, MemoryStore
from holdfast.model.wire import decode_event, decode_orders
from holdfast.ports import Clock, Entry, Touched


class Disk(MemoryStore):
    """What outlives a controller."""

    def __init__(self) -> None:
        super().__init__()
        self.digest = hashlib.sha256()
        self.written = 0
        self.events = 0
        self.orders = 0
        self.slow_s = 0.0
        """Each transaction takes this long."""
        self.torn: Callable[[], bool] | None = None
        """Set: the next transaction is cut in the middle. Returns whether it was stored; the writer is killed."""

    def lines(self, first: int = 0) -> Iterator[bytes]:
        """The canonical journal, as far as it is kept, from the `first` row on."""
        return (
            b'{"seq":%d,"event":%b,"orders":%b}\n' % (row.seq, row.payload, row.orders) for row in self.rows[first:]
        )

    def entries(self) -> Iterator[Entry]:
        """Every event that is kept, with its orders."""
        return (Entry(decode_event(row.payload), decode_orders(row.orders), Touched()) for row in self.rows)


class SimJournal(MemoryJournal):
    """See the module."""

    def __init__(self, disk: Disk, clock: Clock, *, lean: bool) -> None:
        super().__init__(disk)
        self.disk = disk
        self.gate: asyncio.Event | None = None
        """Set: whoever holds this journal does not run (a stopped machine) until the event is set."""
        self._clock = clock
        self._lean = lean

    async def append(self, entries: Sequence[Entry]) -> None:
        """See `ports.Journal.append`."""
        await self._pass()
        if self.disk.slow_s > 0.0:
            await self._clock.sleep(self.disk.slow_s)
        torn, self.disk.torn = self.disk.torn, None
        if torn is not None and not torn():
            await asyncio.Event().wait()  # the writer is killed here, and nothing was stored
        if self._lean:
            # Only what figures are made of: jobs on thousands of nodes are large, and nobody looks at them meanwhile.
            entries = [Entry(one.event, one.orders, Touched(incidents=one.touched.incidents)) for one in entries]
        await super().append(entries)
        disk = self.disk
        for line in disk.lines(len(disk.rows) - len(entries)):
            disk.digest.update(line)
            disk.written += len(line)
        disk.events += len(entries)
        disk.orders += sum(len(entry.orders) for entry in entries)
        if torn is not None:
            await asyncio.Event().wait()  # it was stored, and nobody was told

    async def renew(self, *, now: float) -> None:
        """See `ports.Journal.renew`."""
        await self._pass()
        await super().renew(now=now)

    async def snapshot(self, state: bytes, seq: int) -> None:
        """See `ports.Journal.snapshot`."""
        await self._pass()
        self._check_disk()
        await super().snapshot(state, seq)
        if self._lean:
            # Nothing behind the older snapshot is ever read again; the digest covers it.
            oldest = self.disk.snapshots[0][0]
            self.disk.rows = [row for row in self.disk.rows if row.seq > oldest]

    async def seen(self, event_ids: Sequence[str]) -> set[str]:
        """See `ports.Journal.seen`."""
        await self._pass()
        return await super().seen(event_ids)

    async def _pass(self) -> None:
        if self.gate is not None:
            await self.gate.wait()

"""Events on their way to the disk: taken in, judged by the engine, stored in one transaction, then told.

`loop.py` runs it as the one task that decides. Duplicates are dropped, the rest is numbered and judged, and all of it
is appended at once (group commit: what arrives during the flush is the next batch). Only what is on disk is told. When
the disk refuses, the batch is kept and tried again. An event's `received_at` is stamped here, by the clock port.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import structlog
from msgspec import structs

from holdfast.controller.figures import Figures
from holdfast.controller.patience import Patience
from holdfast.controller.recent import Recent
from holdfast.controller.settings import Settings
from holdfast.controller.state import EngineFactory, ShellState, pack, unpack
from holdfast.decide.engine import Engine
from holdfast.errors import FencedError, HoldfastError, LinkError, WireError
from holdfast.model import events as e
from holdfast.model.wire import encode, kind_of
from holdfast.ports import Clock, Entry, Journal

_log = structlog.get_logger("holdfast.controller")

TURN_EVENTS = 16
"""Events that are judged before others have their turn in the loop."""

Arrival = tuple[e.AnyEvent, asyncio.Future[int]]
"""An event, and what its source waits for."""


class Intake:
    """The engine with its journal. `committed` is called with each batch that is on disk."""

    def __init__(
        self,
        journal: Journal,
        clock: Clock,
        settings: Settings,
        make_engine: EngineFactory,
        committed: Callable[[Sequence[Entry]], object],
    ) -> None:
        self._journal = journal
        self._clock = clock
        self._settings = settings
        self._make_engine = make_engine
        self._committed = committed
        self._engine: Engine | None = None
        self._arrived: asyncio.Queue[Arrival] = asyncio.Queue()
        self._snapshot_seq = 0
        self.shell = ShellState()
        self.figures = Figures()
        self.recent = Recent(journal, clock, settings.recent)
        self.patience = Patience(clock, settings.journal_retry_max_s)
        self.deciding = False
        """A batch is on its way to the disk: the engine is ahead of the journal."""

    @property
    def engine(self) -> Engine:
        """The engine, once the journal is replayed."""
        if self._engine is None:
            raise HoldfastError("the controller does not run yet")
        return self._engine

    @property
    def seq(self) -> int:
        """Sequence number of the newest event on disk."""
        return self.recent.seq

    @property
    def storing(self) -> int:
        """The seq that a batch on its way to the disk begins with; 0: there is none."""
        return self.seq + 1 if self.deciding else 0

    @property
    def waiting(self) -> int:
        """Events that have arrived and are not being stored yet."""
        return self._arrived.qsize()

    def submit(self, event: e.AnyEvent) -> asyncio.Future[int]:
        """Take an event in, see `Controller.submit`."""
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        if self.recent.closed:
            future.set_exception(LinkError("this controller has ended"))
        elif event.id in self.recent:
            self.figures.duplicates += 1
            future.set_result(self.seq)
        else:
            self._arrived.put_nowait((event, future))
        return future

    def close(self) -> None:
        """Refuse what has arrived and whatever else comes."""
        self.recent.close()
        while not self._arrived.empty():
            _, future = self._arrived.get_nowait()
            _fail(future, LinkError("this controller has ended"))

    async def leave_snapshot(self) -> None:
        """Let the next controller replay nothing."""
        if self.seq > self._snapshot_seq:
            await self._journal.snapshot(pack(self.engine, self.shell), self.seq)

    async def replay(self) -> None:
        """Build the engine's and the shell's state from the newest snapshot and the events behind it."""
        self.recent.clear()
        state, seq, events = await self._journal.load()
        if state is None:
            engine, shell = self._make_engine(None), ShellState()
        else:
            snapshot = unpack(state)
            engine, shell = self._make_engine(snapshot.engine), snapshot.shell
        self._snapshot_seq = seq
        for event in events:
            shell.fold(event, engine.handle(event))
            self.recent.add(event)
            seq = event.seq
        self._engine, self.shell, self.recent.seq = engine, shell, max(seq, await self._journal.last_seq())

    async def run(self) -> None:
        """Judge and store what arrives, for ever.

        Raises:
            FencedError: another controller has taken over.
        """
        while True:
            batch = [await self._arrived.get()]
            while len(batch) < self._settings.batch_max and not self._arrived.empty():
                batch.append(self._arrived.get_nowait())
            self.deciding = True
            try:
                await self._process(batch)
                self.deciding = False
            except (FencedError, asyncio.CancelledError):
                for _, future in batch:
                    _fail(future, LinkError("this controller has ended before the event was stored"))
                raise

    async def _process(self, batch: list[Arrival]) -> None:
        """One group commit: drop duplicates, judge, store, then let it have consequences."""
        ids = [event.id for event, _ in batch if event.id not in self.recent]
        stored = await self.patience.insist(lambda: self._journal.seen(ids))
        entries: list[Entry] = []
        futures: list[asyncio.Future[int]] = []
        fresh: set[str] = set()
        for number, (event, future) in enumerate(batch):
            if number % TURN_EVENTS == TURN_EVENTS - 1:
                await asyncio.sleep(0)  # beats have their turn: a storm's batch takes longer than they may wait
            if event.id in stored or event.id in fresh or event.id in self.recent or self.shell.is_stale(event):
                self.figures.duplicates += 1
            else:
                try:
                    entry = self._judge(event, self.seq + len(entries) + 1)
                except WireError as error:
                    _fail(future, error)
                    continue
                except Exception as error:  # noqa: BLE001
                    # Whatever the engine raises, the event must not be stored: each replay would break on it again.
                    _log.exception("the engine refused an event", kind=kind_of(event), id=event.id)
                    self.figures.refused += 1
                    _fail(future, error)
                    await self._commit(entries, futures)
                    entries, futures = [], []
                    await self.patience.insist(self.replay)
                    continue
                fresh.add(event.id)
                entries.append(entry)
            futures.append(future)
        await self._commit(entries, futures)

    def _judge(self, event: e.AnyEvent, seq: int) -> Entry:
        stamped = structs.replace(event, seq=seq, received_at=self._clock.now())
        encode(stamped)
        engine = self.engine
        orders = engine.handle(stamped)
        self.shell.fold(stamped, orders)
        return Entry(stamped, orders, engine.touched())

    async def _commit(self, entries: list[Entry], futures: list[asyncio.Future[int]]) -> None:
        if entries:
            started = self._clock.monotonic()
            await self.patience.insist(lambda: self._journal.append(entries))
            self.figures.committed(entries, self._clock.monotonic() - started)
            self.recent.seq = entries[-1].event.seq
            for entry in entries:
                self.recent.add(entry.event)
        for future in futures:
            if not future.done():
                future.set_result(self.seq)
        if entries:
            self.recent.ring()
            self._committed(entries)
            if self.seq - self._snapshot_seq >= self._settings.snapshot_every:
                state, seq = pack(self.engine, self.shell), self.seq
                await self.patience.insist(lambda: self._journal.snapshot(state, seq))
                self._snapshot_seq = seq


def _fail(future: asyncio.Future[int], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
        # Sources that do not wait for the answer must not leave a warning of an unread exception behind.
        future.exception()

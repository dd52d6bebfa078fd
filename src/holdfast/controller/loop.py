"""The controller: takes events in, stores them with what the engine makes of them, then has the orders carried out.

`cli/` runs it for a cluster, the launcher for its allocation. One asyncio task decides: it takes what has arrived,
drops duplicates, numbers the rest, lets the engine judge, and appends all of it in one transaction (group commit: what
arrives during the flush is the next batch). Only what is on disk has consequences. When the disk refuses, the batch is
kept and tried again and nothing is begun meanwhile. A newer epoch in the journal ends this controller at once.
Time comes from the clock port; an event's `received_at` is stamped here.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, TypeVar

import structlog
from msgspec import structs

from holdfast import __version__
from holdfast.controller.claims import Claims
from holdfast.controller.doubts import Doubts
from holdfast.controller.election import Leading
from holdfast.controller.executors import Executors, within
from holdfast.controller.figures import Figures
from holdfast.controller.mailbox import Mailboxes
from holdfast.controller.presence import Presence
from holdfast.controller.settings import Settings
from holdfast.controller.state import EngineFactory, EngineLike, ShellState, pack, unpack
from holdfast.controller.timers import Timers
from holdfast.controller.watch import Watch
from holdfast.errors import FencedError, HoldfastError, JournalError, LinkError, WireError
from holdfast.model import events as e
from holdfast.model import orders as o
from holdfast.model.answers import Health
from holdfast.model.cluster import NodeView
from holdfast.model.wire import Beat, BeatAnswer, encode, kind_of
from holdfast.ports import Clock, Entry, Journal, LeaseRow, Notifier, Orchestrator, Repair, Witness

R = TypeVar("R")
_log = structlog.get_logger("holdfast.controller")

RETRY_FIRST_S = 0.05
SAY_AGAIN_S = 30.0
UNWANTED = frozenset({o.OrderStatus.WITHDRAWN, o.OrderStatus.REJECTED, o.OrderStatus.EXPIRED})
SETTLED = frozenset({o.OrderStatus.DONE, o.OrderStatus.FAILED})


class Controller:
    """See the module. `run` does everything; the other methods may be called while it runs.

    Args:
        journal: opened by the caller, who also closes it.
        engine_factory: makes the engine, anew or from a snapshot's bytes.
        orchestrator: looks at the world and carries out most orders.
        repairs: asked before the orchestrator, in this order.
        notifiers: each is told every notice.
        clock: where time comes from.
        holder: name in the lease; the same name takes its own lease over at once.
        scope: `cluster` or `allocation`, as the engine's.
        lease_s: another controller may take over so long after this one was last heard.
        settings: numbers of the shell.
        witness: asked about nodes whose launchers or agents are quiet; None: they are given their time.
    """

    def __init__(
        self,
        journal: Journal,
        engine_factory: EngineFactory,
        orchestrator: Orchestrator,
        repairs: Sequence[Repair],
        notifiers: Sequence[Notifier],
        clock: Clock,
        *,
        holder: str,
        scope: str = "cluster",
        lease_s: float = 15.0,
        settings: Settings | None = None,
        witness: Witness | None = None,
    ) -> None:
        self.journal = journal
        self.clock = clock
        self.holder, self.scope, self.lease_s = holder, scope, lease_s
        self.settings = settings = settings if settings is not None else Settings()
        self.epoch = 0
        self.seq = 0
        """Sequence number of the newest event on disk."""
        self.failing = ""
        """Why the journal cannot be written now; empty: it can."""
        self.figures = Figures()
        self.ready = asyncio.Event()
        """Set once the journal is replayed and pending orders are carried on."""
        self.listeners: list[Callable[[Sequence[Entry]], object]] = []
        """Told of every batch once it is on disk. The records in it live on: who keeps something copies it at once."""
        self._engine_factory = engine_factory
        self._engine: EngineLike | None = None
        self._shell = ShellState()
        self._arrived: deque[tuple[e.AnyEvent, asyncio.Future[int]]] = deque()
        self._bell = asyncio.Event()
        self._news = asyncio.Event()
        self._recent: deque[e.AnyEvent] = deque(maxlen=settings.recent)
        self._ids: OrderedDict[str, None] = OrderedDict()
        self._stop = asyncio.Event()
        self._ended = False
        self._deciding = False
        """A batch is on its way to the disk: the engine is ahead of the journal."""
        self._leading = Leading(lease_s)
        self._lapse: Callable[[], None] = lambda: None
        """Forgets the alarm for the moment at which the lease ends unless it is renewed."""
        self._snapshot_seq = 0
        self._warned_at: dict[str, float] = {}
        mailboxes = Mailboxes()
        self.presence = Presence(clock, settings, mailboxes, state=self.shell, submit=self.submit)
        self._doubts = Doubts(clock, settings, witness, self.presence, state=self.shell) if witness else None
        self.watch = Watch(orchestrator, clock, settings, state=self.shell, submit=self.submit)
        self.claims = Claims(
            clock, watch=self.watch, witness=witness, presence=self.presence, state=self.shell, submit=self.submit
        )
        self._timers = Timers(clock, self.submit)
        self._executors = Executors(
            orchestrator=orchestrator,
            repairs=repairs,
            notifiers=notifiers,
            mailboxes=mailboxes,
            clock=clock,
            settings=settings,
            outcome=self._outcome,
            may_act=self.may_act,
            node_now=self.node_now,
        )

    # --- what others call ---

    def submit(self, event: e.AnyEvent) -> asyncio.Future[int]:
        """Take an event in. The future gives, once it is on disk, the seq up to which everything is.

        A duplicate (same id) resolves as soon as the first is on disk. It fails with WireError when the event cannot be
        written, with EngineError when the engine refuses it, with LinkError when this controller ends first.
        """
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        if self._ended:
            future.set_exception(LinkError("this controller has ended"))
        elif event.id in self._ids:
            self.figures.duplicates += 1
            future.set_result(self.seq)
        else:
            self._arrived.append((event, future))
            self._bell.set()
        return future

    async def beat(self, beat: Beat, *, wait_s: float = 0.0) -> BeatAnswer:
        """Take in that a launcher or agent is alive; answers with the orders for it. See `Presence.beat`."""
        return await self.presence.beat(beat, wait_s=wait_s)

    async def events_after(self, after: int, *, limit: int = 1000, wait_s: float = 0.0) -> list[e.AnyEvent]:
        """Events on disk with seq > after, oldest first; when there are none, waits up to `wait_s` for some."""
        deadline = self.clock.monotonic() + wait_s
        while self.seq <= after:
            left_s = deadline - self.clock.monotonic()
            if left_s <= 0 or self._ended:
                return []
            try:
                await within(self.clock, left_s, self._news.wait())
            except TimeoutError:
                return []
        if self._recent and self._recent[0].seq <= after + 1:
            # Sequence numbers in memory have no holes, so the place is known without a search.
            start = after + 1 - self._recent[0].seq
            return [self._recent[index] for index in range(start, min(start + limit, len(self._recent)))]
        return await self.journal.events(after=after, limit=limit)

    async def subscribe(self, after: int) -> AsyncIterator[e.AnyEvent]:
        """Events on disk with seq > after, and then each new one, until the controller ends."""
        while not self._ended:
            for event in await self.events_after(after, wait_s=3600.0):
                after = event.seq
                yield event

    def shell(self) -> ShellState:
        """What the shell remembers; to be read only."""
        return self._shell

    def node_now(self, name: str) -> NodeView | None:
        """The node as it was last seen."""
        return self._shell.nodes.get(name)

    def may_act(self) -> bool:
        """Is the lease surely ours, and can outcomes be stored?"""
        return not self.failing and self._leading.may_act(self.clock.monotonic())

    @property
    def ended(self) -> bool:
        """It will take no more events."""
        return self._ended

    @property
    def busy(self) -> bool:
        """So much waits that sources should come back later."""
        return len(self._arrived) >= self.settings.queue_max

    def health(self) -> Health:
        """How the controller is, for `/healthz` and metrics."""
        return Health(
            ok=self.ready.is_set() and not self._ended and not self.failing and not self._shell.blind,
            ready=self.ready.is_set(),
            seq=self.seq,
            epoch=self.epoch,
            queue=len(self._arrived),
            orders=self._executors.waiting,
            failing=self.failing,
            blind=self._shell.blind,
            looked_at=self.watch.looked_at,
            unseen=tuple(self._shell.unseen),
        )

    def stop(self) -> None:
        """Ask `run` for an orderly end."""
        self._stop.set()

    async def stopped_within(self, seconds: float) -> bool:
        """Wait so long for `stop`; True when it was asked for. A standby waits like this for the lease."""
        try:
            await within(self.clock, seconds, self._stop.wait())
        except TimeoutError:
            return False
        return True

    # --- life ---

    async def run(self, *, seen: LeaseRow | None = None, ahead_s: float = 0.0) -> None:
        """Take the lease, replay, carry on until `stop`, then snapshot and give the lease back.

        Args:
            seen: the lease as `election.until_free` found it; None: it is judged by its time, on one machine's clock.
            ahead_s: how far our clock is ahead of that of the controller before.

        Raises:
            JournalBusyError: another controller is active.
            FencedError: another took over; nothing was begun after that was known.
            JournalError, WireError: the journal cannot be read.
        """
        await self._take_over(seen)
        tasks = [
            asyncio.create_task(self._decide(), name="decide"),
            asyncio.create_task(self._keep_lease(), name="lease"),
        ]
        try:
            await self._carry_on(tasks, ahead_s)
            tasks += [
                asyncio.create_task(self.presence.run(), name="presence"),
                asyncio.create_task(self._keep_house(), name="house"),
            ]
            if self._doubts is not None:
                tasks.append(asyncio.create_task(self._doubts.run(), name="doubts"))
            if self.settings.watch:
                tasks.append(asyncio.create_task(self.watch.run(), name="watch"))
            self.ready.set()
            await self._until_stopped(tasks)
            await self._end_orderly(tasks)
        finally:
            await self._end(tasks)

    async def _until_stopped(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        """Return after `stop`; raise what ended a task that must not end."""
        stopping = asyncio.create_task(self._stop.wait(), name="stopping")
        try:
            await asyncio.wait([stopping, *tasks], return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
        for task in tasks:
            if task.done():
                task.result()

    async def _take_over(self, seen: LeaseRow | None) -> None:
        before = self.clock.monotonic()
        self.epoch = await self.journal.acquire(self.holder, lease_s=self.lease_s, now=self.clock.now(), seen=seen)
        self._renewed(before)
        self.presence.epoch = self.watch.epoch = self._executors.epoch = self.epoch
        await self._replay()
        _log.info("controller has the lease", holder=self.holder, epoch=self.epoch, seq=self.seq)

    async def _replay(self) -> None:
        """Build the engine's and the shell's state from the newest snapshot and the events behind it."""
        self._recent.clear()
        self._ids.clear()
        state, seq, events = await self.journal.load()
        if state is None:
            engine, shell = self._engine_factory(None), ShellState()
        else:
            snapshot = unpack(state)
            engine, shell = self._engine_factory(snapshot.engine), snapshot.shell
        self._snapshot_seq = seq
        for event in events:
            shell.fold(event, engine.handle(event))
            self._remember(event)
            seq = event.seq
        self._engine, self._shell, self.seq = engine, shell, max(seq, await self.journal.last_seq())

    async def _carry_on(self, tasks: Sequence[asyncio.Task[None]], ahead_s: float) -> None:
        """Say that we are here, then carry out again what has no outcome, and wait for what was waited for."""
        pending = [record.order for record in self._the_engine().pending_orders()]
        waiting = dict(self._shell.timers)
        started = e.ControllerStarted(
            id=f"started:{self.epoch}",
            at=self.clock.now(),
            source="controller",
            epoch=self.epoch,
            scope=self.scope,
            version=__version__,
            ahead_s=ahead_s,
        )
        waiting_for: list[asyncio.Future[Any]] = [self.submit(started), *tasks]
        await asyncio.wait(waiting_for, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                task.result()
        still = {record.order.id for record in self._the_engine().pending_orders()}
        for order in pending:
            if order.id in still and not isinstance(order, o.StartTimer | o.CancelTimer):
                self._executors.dispatch(order)
        for name, timer in self._shell.timers.items():
            if name in waiting and waiting[name].order == timer.order:
                self._timers.start(name, timer)

    async def _end_orderly(self, tasks: list[asyncio.Task[None]]) -> None:
        """Finish what has arrived, then leave a snapshot, so that the next controller replays nothing."""
        await self._executors.kill()
        self._timers.clear()
        while (self._arrived or self._deciding) and not self.failing:
            await self.clock.sleep(0.01)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # While the journal refuses, the engine is ahead of it: such a state must not become a snapshot.
        if not self.failing and not self._deciding:
            await self._flush_samples()
            if self.seq > self._snapshot_seq:
                await self.journal.snapshot(pack(self._the_engine(), self._shell), self.seq)
            await self.journal.release()
        _log.info("controller has ended", epoch=self.epoch, seq=self.seq)

    async def _end(self, tasks: list[asyncio.Task[None]]) -> None:
        self._ended = True
        self.ready.clear()
        self._lapse()
        self._timers.clear()
        self.claims.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, self._executors.kill(), return_exceptions=True)
        self._ring()
        while self._arrived:
            _, future = self._arrived.popleft()
            _fail(future, LinkError("this controller has ended"))

    # --- deciding ---

    def _the_engine(self) -> EngineLike:
        if self._engine is None:
            raise HoldfastError("the controller does not run yet")
        return self._engine

    async def _outcome(self, event: e.AnyEvent) -> int:
        return await self.submit(event)

    async def _decide(self) -> None:
        while True:
            await self._bell.wait()
            self._bell.clear()
            while self._arrived:
                size = min(len(self._arrived), self.settings.batch_max)
                batch = [self._arrived.popleft() for _ in range(size)]
                self._deciding = True
                try:
                    await self._process(batch)
                    self._deciding = False
                except (FencedError, asyncio.CancelledError):
                    for _, future in batch:
                        _fail(future, LinkError("this controller has ended before the event was stored"))
                    raise

    async def _process(self, batch: list[tuple[e.AnyEvent, asyncio.Future[int]]]) -> None:
        """One group commit: drop duplicates, judge, store, then let it have consequences."""
        ids = [event.id for event, _ in batch if event.id not in self._ids]
        stored = await self._insist(lambda: self.journal.seen(ids))
        entries: list[Entry] = []
        futures: list[asyncio.Future[int]] = []
        fresh: set[str] = set()
        for event, future in batch:
            if event.id in stored or event.id in fresh or event.id in self._ids or self._shell.is_stale(event):
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
                    await self._insist(self._replay)
                    continue
                fresh.add(event.id)
                entries.append(entry)
            futures.append(future)
        await self._commit(entries, futures)

    def _judge(self, event: e.AnyEvent, seq: int) -> Entry:
        stamped = structs.replace(event, seq=seq, received_at=self.clock.now())
        encode(stamped)
        engine = self._the_engine()
        orders = engine.handle(stamped)
        self._shell.fold(stamped, orders)
        return Entry(stamped, orders, engine.touched())

    async def _commit(self, entries: list[Entry], futures: list[asyncio.Future[int]]) -> None:
        if entries:
            started = self.clock.monotonic()
            await self._insist(lambda: self.journal.append(entries))
            self.figures.committed(entries, self.clock.monotonic() - started)
            self.seq = entries[-1].event.seq
            for entry in entries:
                self._remember(entry.event)
        for future in futures:
            if not future.done():
                future.set_result(self.seq)
        if entries:
            self._ring()
            self._tell_listeners(entries)
            for entry in entries:
                self._consequences(entry)
            if self.seq - self._snapshot_seq >= self.settings.snapshot_every:
                state, seq = pack(self._the_engine(), self._shell), self.seq
                await self._insist(lambda: self.journal.snapshot(state, seq))
                self._snapshot_seq = seq

    def _tell_listeners(self, entries: Sequence[Entry]) -> None:
        for listener in tuple(self.listeners):
            try:
                listener(entries)
            except Exception:  # noqa: BLE001
                # A page that cannot be drawn must not keep orders from being carried out.
                _log.exception("a listener broke")

    def _consequences(self, entry: Entry) -> None:
        event = entry.event
        told = event.order if isinstance(event, e.OrderDone | e.OrderFailed) else ""
        if told:
            self._executors.settle(told)
        elif isinstance(event, e.LauncherAttached):
            self.presence.attached(event)
        for record in entry.touched.orders:
            if record.status in UNWANTED or (record.status is o.OrderStatus.FAILED and record.order.id != told):
                # Without an outcome of its own it is out of time: what follows it must not wait for its adapter.
                self._executors.withdraw(record.order.id)
            elif record.status in SETTLED:
                self._executors.settle(record.order.id)
        for order in entry.orders:
            if isinstance(order, o.StartTimer):
                waiting = self._shell.timers.get(order.timer)
                if waiting is not None and waiting.order == order.id:
                    self._timers.start(order.timer, waiting)
            elif isinstance(order, o.CancelTimer):
                if order.timer not in self._shell.timers:
                    self._timers.cancel(order.timer)
            else:
                self._executors.dispatch(order)

    def _remember(self, event: e.AnyEvent) -> None:
        self._recent.append(event)
        self._ids[event.id] = None
        if len(self._ids) > self.settings.recent:
            self._ids.popitem(last=False)

    def _ring(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def _insist(self, work: Callable[[], Awaitable[R]]) -> R:
        """Do what the journal must do, again and again while the disk refuses; nothing is begun meanwhile."""
        pause_s, said_at = RETRY_FIRST_S, -SAY_AGAIN_S
        while True:
            try:
                result = await work()
            except FencedError:
                raise
            except JournalError as error:
                self.failing = str(error)
                if self.clock.monotonic() - said_at >= SAY_AGAIN_S:
                    said_at = self.clock.monotonic()
                    _log.error("the journal refuses: nothing new is begun until it takes events again", why=str(error))
                await self.clock.sleep(pause_s)
                pause_s = min(pause_s * 2, self.settings.journal_retry_max_s)
                continue
            if self.failing:
                _log.info("the journal takes events again")
                self.failing = ""
            return result

    # --- keeping the lease and the house ---

    async def _keep_lease(self) -> None:
        while True:
            await self.clock.sleep(self.lease_s / 3)
            before = self.clock.monotonic()
            try:
                await self.journal.renew(now=self.clock.now())
            except FencedError:
                _log.error("another controller has taken over: this one stops", epoch=self.epoch)
                raise
            except JournalError as error:
                self._warn_seldom("the lease could not be renewed", error)
                await self.clock.sleep(min(0.5, self.lease_s / 10))
                continue
            self._renewed(before)

    def _renewed(self, asked_at: float) -> None:
        """Ours until a lease's time after it was asked for. What runs then may be another's to do: it is cut off."""
        self._leading.renewed(asked_at)
        self._lapse()
        self._lapse = self.clock.call_later(self._leading.until - self.clock.monotonic(), self._lapsed)

    def _lapsed(self) -> None:
        self._leading.lapse(self.clock.monotonic())
        self._executors.interrupt()

    async def _keep_house(self) -> None:
        """Write samples once a second, drop old history now and then."""
        retained_at = self.clock.monotonic()
        while True:
            await self.clock.sleep(self.settings.samples_s)
            await self._flush_samples()
            if self.clock.monotonic() - retained_at >= self.settings.retain_every_s:
                retained_at = self.clock.monotonic()
                try:
                    dropped = await self.journal.retain(self.clock.now() - self.settings.retain_s)
                except FencedError:
                    raise
                except JournalError as error:
                    _log.warning("old events could not be dropped", why=str(error))
                else:
                    _log.info("old events dropped", count=dropped)

    async def _flush_samples(self) -> None:
        samples = list(self.presence.samples)
        self.presence.samples.clear()
        try:
            await self.journal.add_samples(samples)
        except JournalError as error:
            # Plots have a gap; recovery does not depend on them.
            self._warn_seldom("samples could not be written", error)

    def _warn_seldom(self, what: str, error: JournalError) -> None:
        now = self.clock.monotonic()
        if now - self._warned_at.get(what, -SAY_AGAIN_S) >= SAY_AGAIN_S:
            self._warned_at[what] = now
            _log.warning(what, why=str(error))


def _fail(future: asyncio.Future[int], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)
        # Sources that do not wait for the answer must not leave a warning of an unread exception behind.
        future.exception()

"""The controller: takes events in, stores them with what the engine makes of them, then has the orders carried out.

`cli/` runs it for a cluster, the launcher for its allocation. It puts the parts together and gives them their tasks:
`intake.py` judges and stores, `consequences.py` has the orders carried out, `lease.py` keeps the lead. Only what is on
disk has consequences. A newer epoch in the journal ends this controller at once. Time comes from the clock port.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import structlog

from holdfast import __version__
from holdfast.controller.acts import within
from holdfast.controller.claims import Claims
from holdfast.controller.consequences import Consequences, Timers
from holdfast.controller.doubts import Doubts
from holdfast.controller.executors import Executors
from holdfast.controller.figures import Figures
from holdfast.controller.housekeeping import Housekeeping
from holdfast.controller.intake import Intake
from holdfast.controller.lease import Lease
from holdfast.controller.mailbox import Mailboxes
from holdfast.controller.presence import Presence
from holdfast.controller.settings import Settings
from holdfast.controller.state import EngineFactory, ShellState
from holdfast.controller.watch import Watch
from holdfast.model import events as e
from holdfast.model.answers import Health
from holdfast.model.wire import Beat, BeatAnswer
from holdfast.ports import Clock, Entry, Journal, LeaseRow, Notifier, Orchestrator, Repair, Witness

_log = structlog.get_logger("holdfast.controller")


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
        self.scope = scope
        self.settings = settings = settings if settings is not None else Settings()
        self.ready = asyncio.Event()
        """Set once the journal is replayed and pending orders are carried on."""
        self.listeners: list[Callable[[Sequence[Entry]], object]] = []
        """Told of every batch once it is on disk. The records in it live on: who keeps something copies it at once."""
        self._stop = asyncio.Event()
        self._intake = Intake(journal, clock, settings, engine_factory, self._committed)
        mailboxes = Mailboxes()
        self.presence = Presence(clock, settings, mailboxes, state=self.shell, submit=self.submit)
        self.watch = Watch(orchestrator, clock, settings, state=self.shell, submit=self.submit)
        self.claims = Claims(
            clock, watch=self.watch, witness=witness, presence=self.presence, state=self.shell, submit=self.submit
        )
        executors = Executors(
            orchestrator=orchestrator,
            repairs=repairs,
            notifiers=notifiers,
            mailboxes=mailboxes,
            clock=clock,
            settings=settings,
            outcome=self.submit,
            may_act=self.may_act,
            storing=lambda: self._intake.storing,
            state=self.shell,
        )
        self._consequences = Consequences(executors, Timers(clock, self.submit), self.presence, self.shell)
        patience = self._intake.patience
        self._lease = Lease(journal, clock, patience, executors.acts.interrupt, holder=holder, lease_s=lease_s)
        self._house = Housekeeping(journal, clock, settings, self.presence, patience)
        self._rounds = {"presence": self.presence.run, "house": self._house.run}
        """What runs once the controller is ready, by the task's name."""
        if witness is not None:
            self._rounds["doubts"] = Doubts(clock, settings, witness, self.presence, state=self.shell).run
        if settings.watch:
            self._rounds["watch"] = self.watch.run

    # --- what others call ---

    def submit(self, event: e.AnyEvent) -> asyncio.Future[int]:
        """Take an event in. The future gives, once it is on disk, the seq up to which everything is.

        A duplicate (same id) resolves as soon as the first is on disk. It fails with WireError when the event cannot be
        written, with EngineError when the engine refuses it, with LinkError when this controller ends first.
        """
        return self._intake.submit(event)

    async def beat(self, beat: Beat, *, wait_s: float = 0.0) -> BeatAnswer:
        """Take in that a launcher or agent is alive; answers with the orders for it. See `Presence.beat`."""
        return await self.presence.beat(beat, wait_s=wait_s)

    async def events_after(self, after: int, *, limit: int = 1000, wait_s: float = 0.0) -> list[e.AnyEvent]:
        """Events on disk with seq > after, oldest first; when there are none, waits up to `wait_s` for some."""
        return await self._intake.recent.after(after, limit=limit, wait_s=wait_s)

    def shell(self) -> ShellState:
        """What the shell remembers; to be read only."""
        return self._intake.shell

    def may_act(self) -> bool:
        """Is the lease surely ours, and can outcomes be stored?"""
        return not self.failing and self._lease.may_act()

    @property
    def ended(self) -> bool:
        """It will take no more events."""
        return self._intake.recent.closed

    @property
    def seq(self) -> int:
        """Sequence number of the newest event on disk."""
        return self._intake.seq

    @property
    def epoch(self) -> int:
        """Number of our lease; 0: it was not taken yet."""
        return self._lease.epoch

    @property
    def holder(self) -> str:
        """Our name in the lease."""
        return self._lease.holder

    @property
    def lease_s(self) -> float:
        """Another controller may take over so long after this one was last heard."""
        return self._lease.lease_s

    @property
    def failing(self) -> str:
        """Why the journal cannot be written now; empty: it can."""
        return self._intake.patience.failing

    @property
    def refuses(self) -> asyncio.Event:
        """Set while the journal cannot be written."""
        return self._intake.patience.refuses

    @property
    def figures(self) -> Figures:
        """Counts since the start."""
        return self._intake.figures

    @property
    def busy(self) -> bool:
        """So much waits that sources should come back later."""
        return self._intake.waiting >= self.settings.queue_max

    def health(self) -> Health:
        """How the controller is, for `/healthz` and metrics."""
        shell = self.shell()
        return Health(
            ok=self.ready.is_set() and not self.ended and not self.failing and not shell.blind,
            ready=self.ready.is_set(),
            seq=self.seq,
            epoch=self.epoch,
            queue=self._intake.waiting,
            orders=self._consequences.executors.waiting,
            failing=self.failing,
            blind=shell.blind,
            looked_at=self.watch.looked_at,
            unseen=tuple(shell.unseen),
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
            asyncio.create_task(self._intake.run(), name="decide"),
            asyncio.create_task(self._lease.keep(), name="lease"),
        ]
        try:
            await self._carry_on(tasks, ahead_s)
            tasks += [asyncio.create_task(run(), name=name) for name, run in self._rounds.items()]
            self.ready.set()
            await _until_done(asyncio.create_task(self._stop.wait(), name="stopping"), tasks)
            await self._end_orderly(tasks)
        finally:
            self._intake.close()
            self.ready.clear()
            self._lease.close()
            self.claims.close()
            await asyncio.shield(asyncio.gather(_cancel(tasks), self._consequences.stop()))

    async def _take_over(self, seen: LeaseRow | None) -> None:
        epoch = await self._lease.take(seen)
        self.presence.announcer.epoch = self.watch.epoch = epoch
        self._consequences.executors.outcomes.epoch = epoch
        await self._intake.replay()
        _log.info("controller has the lease", holder=self.holder, epoch=self.epoch, seq=self.seq)

    async def _carry_on(self, tasks: Sequence[asyncio.Task[None]], ahead_s: float) -> None:
        """Say that we are here, then carry out again what has no outcome, and wait for what was waited for."""
        pending = [record.order for record in self._intake.engine.pending_orders()]
        waiting = dict(self.shell().timers)
        started = e.ControllerStarted(
            id=f"started:{self.epoch}",
            at=self.clock.now(),
            source="controller",
            epoch=self.epoch,
            scope=self.scope,
            version=__version__,
            ahead_s=ahead_s,
        )
        await _until_done(self.submit(started), tasks)
        still = frozenset(record.order.id for record in self._intake.engine.pending_orders())
        self._consequences.carry_on(pending, waiting, still)

    async def _end_orderly(self, tasks: list[asyncio.Task[None]]) -> None:
        """Finish what has arrived, then leave a snapshot, so that the next controller replays nothing."""
        await self._consequences.stop()
        while (self._intake.waiting or self._intake.deciding) and not self.failing:
            await self.clock.sleep(0.01)
        await _cancel(tasks)
        # While the journal refuses, the engine is ahead of it: such a state must not become a snapshot.
        if not self.failing and not self._intake.deciding:
            await self._house.flush_samples()
            await self._intake.leave_snapshot()
            await self._lease.give_back()
        _log.info("controller has ended", epoch=self.epoch, seq=self.seq)

    # --- after a commit ---

    def _committed(self, entries: Sequence[Entry]) -> None:
        for listener in tuple(self.listeners):
            try:
                listener(entries)
            except Exception:  # noqa: BLE001
                # A page that cannot be drawn must not keep orders from being carried out.
                _log.exception("a listener broke")
        for entry in entries:
            self._consequences.follow(entry)


async def _until_done(awaited: asyncio.Future[Any], tasks: Sequence[asyncio.Task[None]]) -> None:
    """Return once it is done; raise what ended a task that must not end."""
    try:
        await asyncio.wait([awaited, *tasks], return_when=asyncio.FIRST_COMPLETED)
    finally:
        awaited.cancel()
    for task in tasks:
        if task.done():
            task.result()


async def _cancel(tasks: Sequence[asyncio.Task[None]]) -> None:
    """End them. It is shielded: cancelled together with `run` before it has begun, it would leave them running."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

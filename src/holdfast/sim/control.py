"""Holdfast itself inside the simulation: the real controller over a simulated disk, killed, restarted and doubled.

`run.py` makes one. Events of the world come through `deliver`, which goes on until a controller has stored them, as
agents and launchers do. Time is virtual; nothing here waits for real.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol, cast

from holdfast.controller import Controller, Settings
from holdfast.controller.state import unpack
from holdfast.decide.engine import Engine
from holdfast.decide.invariants import check
from holdfast.errors import FencedError, HoldfastError, JournalBusyError, JournalError, LinkError
from holdfast.model import events as e
from holdfast.model import orders as o
from holdfast.model.policy import PolicySet
from holdfast.model.wire import Beat, kind_of
from holdfast.ports import Clock, Orchestrator, Repair
from holdfast.sim.store import Disk, SimJournal
from holdfast.sim.world import Node, World

RESEND_S = 2.0
DAY_S = 86400.0


class Watched:
    """An engine under observation: what it refuses is written down, its invariants are checked after every event."""

    def __init__(self, engine: Engine, refused: Callable[[e.AnyEvent, Exception], None], *, checked: bool) -> None:
        self._engine = engine
        self._refused = refused
        self._checked = checked

    def handle(self, event: e.AnyEvent) -> list[o.AnyOrder]:
        """See `Engine.handle`."""
        try:
            orders = self._engine.handle(event)
            if self._checked:
                check(self._engine.state, self._engine.index)
        except Exception as error:
            # Whatever it is, it is a bug of the engine, and the controller goes on in its own way.
            self._refused(event, error)
            raise
        return orders

    def __getattr__(self, name: str) -> object:
        return getattr(self._engine, name)


class Notices:
    """A `ports.Notifier` that writes down what people are told."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def send(self, notice: o.Notify) -> None:
        """See `ports.Notifier`."""
        self._world.say("notice", who="controller", order=notice.id, node=notice.node, detail=notice.title)
        self._world.effects[notice.id] += 1
        self._world.on_notice(notice)


class Attached(Protocol):
    """A launcher, as far as its beats go."""

    def vouch(self) -> None:
        """Say whether it can be heard now."""

    def handed_over(self) -> None:
        """The controller has its `Escalated`."""


class ControlPlane:
    """See the module."""

    def __init__(
        self,
        world: World,
        clock: Clock,
        policies: PolicySet,
        presets: Mapping[str, str],
        engine: type[Engine],
        orchestrator: Orchestrator,
        repair: Repair,
    ) -> None:
        self.world = world
        self.disk = Disk()
        self.refused: list[str] = []
        self.active: Controller | None = None
        self.policies, self.presets, self.engine = policies, presets, engine
        self._clock = clock
        self._orchestrator = orchestrator
        self._repair = repair
        self._unheard: dict[str, e.AnyEvent] = {}
        """Events that no controller has stored yet, in order of delivery."""
        self._lives: list[asyncio.Task[None]] = []
        self._journal: SimJournal | None = None
        self._closed = False
        self._speaking: set[asyncio.Task[None]] = set()
        self.change = asyncio.Event()
        """Set, and replaced, when a controller can be found or a node can be heard, or cannot any more."""
        self.launchers: dict[str, Attached] = {}
        """Those that run now, by their job's key."""
        world.on_heard = self._heard

    # --- lives of controllers ---

    def make_engine(self, scope: str, state: bytes | None) -> Engine:
        """The engine under test, watched."""
        made = (
            self.engine(self.policies, scope=scope, presets=self.presets)
            if state is None
            else self.engine.restore(state, self.policies, presets=self.presets)
        )
        return cast("Engine", Watched(made, self._refuse, checked=self.world.options.check))

    def _refuse(self, event: e.AnyEvent, error: Exception) -> None:
        text = f"{kind_of(event)} {event.id}: {error!r}"
        self.refused.append(text)
        self.world.say("refused", detail=text[:500])

    def settings(self, *, watch: bool = True) -> Settings:
        """The shell's numbers: what is polled in production sleeps here until something changes."""
        options = self.world.options
        return Settings(
            watch=watch,
            watch_s=DAY_S,
            watch_pause_s=options.watch_pause_s,
            tick_s=options.tick_s,
            silent_after_s=options.silent_s,
            samples_s=DAY_S,
            retain_s=2 * DAY_S if not options.keep_journal else 3650 * DAY_S,
            retain_every_s=DAY_S,
            recent=20_000 if options.keep_journal else 1_000,
            # A launcher begins with each allocation, and would replay the job's whole life each time.
            snapshot_every=options.snapshot_every if watch else min(200, options.snapshot_every),
        )

    def controller(
        self, disk: Disk, scope: str, orchestrator: Orchestrator, *, holder: str, lease_s: float
    ) -> tuple[SimJournal, Controller]:
        """A controller over this disk, not yet running, and its journal."""
        is_cluster = scope == "cluster"
        journal = SimJournal(disk, self._clock, lean=not self.world.options.keep_journal)
        return journal, Controller(
            journal,
            lambda state: self.make_engine(scope, state),
            orchestrator,
            [self._repair] if is_cluster else [],
            [Notices(self.world)] if is_cluster else [],
            self._clock,
            holder=holder,
            scope=scope,
            lease_s=lease_s,
            settings=self.settings(watch=is_cluster),
        )

    def start(self, holder: str = "controller") -> None:
        """Start a controller, which waits for the lease if another is active."""
        self._lives.append(asyncio.ensure_future(self._live(holder)))

    async def _live(self, holder: str) -> None:
        while not self._closed:
            journal, controller = self.controller(
                self.disk, "cluster", self._orchestrator, holder=holder, lease_s=self.world.options.lease_s
            )
            ready = asyncio.ensure_future(self._greet(controller, journal))
            try:
                await controller.run()
            except (JournalBusyError, JournalError) as error:
                if isinstance(error, FencedError):
                    self.world.say("controller_fenced", who=holder, detail=str(controller.epoch))
                    return
                await self._clock.sleep(5.0)
            finally:
                ready.cancel()
                if self.active is controller:
                    self.active = None

    async def _greet(self, controller: Controller, journal: SimJournal) -> None:
        """Once it is ready, it is the one that agents and launchers find."""
        await controller.ready.wait()
        self.active, self._journal = controller, journal
        self._changed()
        self.world.say("controller_started", who=controller.holder, detail=str(controller.epoch))
        for node in self.world.nodes.values():
            if node.heard:
                await self._speak(node, controller)
        for event in list(self._unheard.values()):
            self._submit(event)
        for launcher in list(self.launchers.values()):
            launcher.vouch()

    def kill(self, fault: str = "") -> None:
        """The active controller is killed, and started again a little later."""
        lives, self._lives = self._lives, []
        self.world.say("controller_killed", fault=fault, who="fault")
        self.world.counts["kills"] += 1
        for life in lives:
            life.cancel()
        self.active = None
        self.world.later(self.world.options.restart_s, self._start_again)

    def _start_again(self) -> None:
        if not self._closed and not any(not life.done() for life in self._lives):
            self.start()

    def second(self, fault: str) -> None:
        """The active controller's machine stands still; another takes over when the lease ends; the first wakes up."""
        journal = self._journal
        if journal is None or self.active is None or journal.gate is not None:
            return
        journal.gate = asyncio.Event()
        name = f"standby-{fault}"
        self.start(name)
        wakes_s = self.world.options.lease_s * 2 + 10.0
        self.world.later(wakes_s, journal.gate.set)

    def tear(self, fault: str, *, stored: bool) -> None:
        """The next transaction is cut: the writer is killed there."""

        def torn() -> bool:
            self.world.later(0.0, lambda: self.kill(fault))
            return stored

        self.disk.torn = torn

    def ensure(self) -> None:
        """In the calm a controller must run."""
        self.disk.full, self.disk.slow_s, self.disk.torn = False, 0.0, None
        self._start_again()

    async def close(self) -> None:
        """The end of the simulation: nothing is handed over."""
        self._closed = True
        for life in self._lives:
            life.cancel()
        await asyncio.gather(*self._lives, return_exceptions=True)

    async def state(self) -> bytes:
        """The engine's state after all events on the disk: replayed from the newest snapshot."""
        engine = self.make_engine("cluster", None)
        journal = SimJournal(self.disk, self._clock, lean=True)
        found, _, events = await journal.load()
        if found is not None:
            engine = self.make_engine("cluster", unpack(found).engine)
        for event in events:
            engine.handle(event)
        return engine.snapshot()

    # --- what reaches it ---

    def deliver(self, event: e.AnyEvent) -> None:
        """Have it stored, by this controller or a later one."""
        self._unheard[event.id] = event
        self._submit(event)

    def _submit(self, event: e.AnyEvent) -> None:
        controller = self.active
        if controller is None or event.id not in self._unheard:
            return  # the next controller is told
        if isinstance(event, e.NodeGone) and self.world.nodes[event.node].reachable:
            del self._unheard[event.id]  # the scheduler's side does not confirm it: see `controller.claims`
            return
        controller.submit(event).add_done_callback(lambda done: self._stored(event, done))

    def _stored(self, event: e.AnyEvent, done: asyncio.Future[int]) -> None:
        if done.cancelled():
            return
        error = done.exception()
        if isinstance(error, LinkError):
            self.world.later(RESEND_S, lambda: self._submit(event))
            return
        self._unheard.pop(event.id, None)
        launcher = self.launchers.get(str(event.job)) if isinstance(event, e.Escalated) else None
        if launcher is not None:
            launcher.handed_over()

    # --- beats, folded ---

    def _changed(self) -> None:
        self.change.set()
        self.change = asyncio.Event()

    def _heard(self, node: Node) -> None:
        self._changed()
        controller = self.active
        if controller is None:
            return
        if node.heard:
            task = asyncio.ensure_future(self._speak(node, controller))
            self._speaking.add(task)
            task.add_done_callback(self._speaking.discard)
        else:
            controller.presence.let_go(f"node:{node.name}")
        launcher = self.launchers.get(node.job)
        if launcher is not None:
            launcher.vouch()

    async def _speak(self, node: Node, controller: Controller) -> None:
        """Its agent beats; from now on it is vouched for until it cannot be heard."""
        beat = Beat(source=f"agent:{node.name}", node=node.name, boot_id=node.boot, instance_id=node.machine)
        try:
            await controller.beat(beat)
        except HoldfastError:
            return
        if node.heard and self.active is controller:
            controller.presence.hold(f"node:{node.name}")

"""Leases between the launchers of one simulated job, from a cut on: the real cores, in virtual time.

While a node can be reached its beats are answered in time, and nothing of that is played. When it, or the leader, is
cut off, the follower's core, the leader's `Presence` and its own lease run until the way is whole again.
"""

from __future__ import annotations

from collections.abc import Collection, Coroutine
from typing import Any, Protocol

from holdfast.launch.core.asks import KillRanks
from holdfast.launch.core.follower import Asked, FollowerCore, Held, Ticked, Welcomed
from holdfast.launch.core.lease import (
    EpochRead,
    LeaderLease,
    LeaseChecked,
    LeaseLooked,
    LoseLease,
    ReadEpoch,
    YieldJob,
)
from holdfast.launch.core.presence import (
    CheckSpare,
    Connected,
    FollowersLooked,
    Heard,
    Presence,
    SpareChecked,
    TellHeard,
    TellSilent,
)
from holdfast.launch.core.shutdown import LeaseLost, ShutdownReport, Superseded
from holdfast.launch.frames import Grant
from holdfast.launch.options import LEASE_S
from holdfast.model import events as e
from holdfast.sim.scheduler import Job
from holdfast.sim.training import Attempt
from holdfast.sim.world import Node, World

TICK_S = 0.1
SLOW_TICK_S = 2.0
"""Once ranks are dead and the loss is told, only the way back is waited for."""
RESET_S = 0.5
"""From a node's end to the reset of its connections."""
WAIT_S = 600.0
"""For followers that do not come, and for a leader that does not come back, as by default in `RunOptions`."""


class Led(Protocol):
    """The launcher, as far as its leases need it."""

    job: Job
    attempt: Attempt | None

    @property
    def leader(self) -> Node:
        """The node that it runs on."""

    @property
    def used(self) -> frozenset[str]:
        """Nodes of the newest attempt."""

    @property
    def is_leaving(self) -> bool:
        """It has left, or is about to."""

    @property
    def epoch(self) -> int:
        """The newest that it has raised."""

    def run(self, work: Coroutine[Any, Any, Any]) -> None:
        """Start something that nobody waits for."""

    def tell_node(self, kind: type[e.NodeSilent | e.NodeHeard | e.NodeGone], node: str, **fields: Any) -> None:
        """Say something of a node."""

    async def take(self, report: ShutdownReport) -> bool:
        """Have the core of leaving decide."""


class Followers:
    """The followers of one launcher: whose ranks may live, who is silent, who is lost."""

    def __init__(self, led: Led, world: World, nodes: int) -> None:
        self.lease_s = LEASE_S
        self._led = led
        self._world = world
        self._nodes = nodes
        self._presence = Presence(LEASE_S)
        self._alive: set[str] = set()
        """Nodes that are cut off and whose ranks their own lease has not ended yet."""
        self._gone: set[str] = set()
        self._watched: set[str] = set()
        self._known: set[str] = set()
        """Nodes that have been watched."""

    def _is_cut(self, node: Node) -> bool:
        return not node.reachable or not self._led.leader.reachable

    def lost(self, node: Node) -> None:
        """Nothing passes any more between the leader and this node, or it has stopped."""
        if not node.up:
            self._world.later(RESET_S, lambda: self._reset(node))
        elif node.name not in self._watched:
            self._watched.add(node.name)
            self._known.add(node.name)
            self._led.run(self._watch(node))

    def _reset(self, node: Node) -> None:
        self._alive.discard(node.name)
        self._gone.add(node.name)
        self._led.tell_node(e.NodeGone, node.name, evidence="connection reset by peer")

    async def until_empty(self, names: Collection[str]) -> None:
        """Wait until no ranks are left on nodes that cannot be told to end them."""
        while self._alive & set(names):
            await self._world.clock.sleep(TICK_S)

    async def _watch(self, node: Node) -> None:
        clock, name, presence = self._world.clock, node.name, self._presence
        now = clock.monotonic()
        core = FollowerCore(name, nodes=self._nodes, lease_s=LEASE_S, wait_s=WAIT_S, now=now)
        core.handle(Welcomed(LEASE_S))
        beat = core.next_beat(now).beat
        core.handle(Asked(Grant(beat=beat, lease_s=LEASE_S)))
        presence.handle(Connected(name, now))
        presence.handle(Heard(node=name, now=now, beat=beat, may_grant=True))
        self._alive |= {name} & self._led.used
        while self._is_cut(node) and node.up and not self._led.is_leaving:
            is_told = name in self._gone or name not in self._led.used
            await clock.sleep(SLOW_TICK_S if is_told and name not in self._alive else TICK_S)
            now, attempt = clock.monotonic(), self._led.attempt
            held = Held(attempt.number, is_ending=name not in self._alive) if attempt is not None else None
            if any(isinstance(ask, KillRanks) for ask in core.handle(Ticked(now, held))):
                self._alive.discard(name)
            self._look(now)
            if presence.is_lapsed(name, now) and name in self._led.used - self._gone:
                self._gone.add(name)
                evidence = "it has not answered, and neither does its scheduler's daemon"
                self._led.tell_node(e.NodeGone, name, evidence=evidence)
        self._watched.discard(name)
        self._alive.discard(name)
        self._gone.discard(name)
        if node.up and not self._led.is_leaving:
            presence.handle(Heard(node=name, now=clock.monotonic()))
            self._look(clock.monotonic())

    def _look(self, now: float) -> None:
        led, presence = self._led, self._presence
        for name in self._known - self._watched:
            presence.handle(Heard(node=name, now=now))  # it is not cut off: its beats come, and are not played
        looked = FollowersLooked(now=now, used=led.used, gone=frozenset(self._gone), can_ask=True)
        for ask in presence.handle(looked):
            match ask:
                case TellSilent():
                    led.tell_node(e.NodeSilent, ask.node, for_s=ask.for_s)
                case TellHeard():
                    led.tell_node(e.NodeHeard, ask.node)
                case CheckSpare():
                    self._gone.add(ask.node)
                    presence.handle(SpareChecked(ask.node))
                case _:
                    pass


async def keep_own_lease(led: Led, world: World) -> None:
    """The leader's own lease from the moment on at which the leader is cut off, until it is proven anew or lost."""
    clock = world.clock
    lease = LeaderLease(LEASE_S, clock.monotonic())
    is_cut = True
    while is_cut and led.leader.up and not led.is_leaving:
        await clock.sleep(lease.pause_s)
        now, is_cut = clock.monotonic(), not led.leader.reachable
        attempt = led.attempt
        asks = lease.handle(LeaseLooked(now=now, is_cut=is_cut, is_reading=False))
        if any(isinstance(ask, ReadEpoch) for ask in asks):
            read = EpochRead(now=now, since=now, is_cut=is_cut, found=led.job.epoch, own=led.epoch, has_begun=True)
            for ask in lease.handle(read):
                if isinstance(ask, YieldJob):
                    number = attempt.number if attempt is not None else -1
                    await led.take(Superseded(epoch=ask.epoch, own=led.epoch, attempt=number))
                    return
        is_held = attempt is not None and not attempt.is_over
        checked = LeaseChecked(now=now, is_cut=is_cut, is_reading=False, is_held=is_held)
        if any(isinstance(ask, LoseLease) for ask in lease.handle(checked)) and attempt is not None:
            await led.take(LeaseLost(attempt.number))

"""The leader's nodes behind the connections of their launchers: who is silent, who is lost, and what becomes of them.

A connection that a node's kernel has ended proves that its launcher is gone, and its ranks with it. On Slurm a node
whose slurmd does not answer either is dead, and leaves the job before the scheduler ends that for its sake.
"""

from __future__ import annotations

import asyncio
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Protocol

from holdfast.launch.core.fence import Fence
from holdfast.launch.core.presence import CheckSpare, FollowersLooked, SpareChecked, TellHeard, TellSilent
from holdfast.launch.crew import Crew
from holdfast.launch.ground import Background
from holdfast.launch.launcher_events import LauncherEvents
from holdfast.launch.observer import Observer
from holdfast.launch.output import Voice
from holdfast.model.events import NodeHeard, NodeSilent
from holdfast.model.evidence import Domain
from holdfast.model.records import JobRecord

if TYPE_CHECKING:
    from holdfast.launch.slurm_nodes import SlurmNodes

_SPARE_AGAIN_S = 5.0


class Nodes(Protocol):
    """How the nodes of an allocation are followed: behind launchers, or as those of a Slurm step (`step_nodes`)."""

    @property
    def gone(self) -> AbstractSet[str]:
        """Nodes that are proven not to run."""

    @property
    def has_let_go(self) -> bool:
        """A lost node has left the job."""

    def resumed(self, record: JobRecord | None, fence: Fence) -> None:
        """The leader goes on with the numbers that its record and its folder hold."""

    async def begun(self) -> None:
        """The first attempt has been started, or this launcher leaves without it."""

    def attempt_started(self, *, in_place: bool) -> None:
        """An order to start an attempt has been carried out."""

    def check_save(self, attempt: int) -> None:
        """Raise PermanentOrderError when its ranks cannot be asked to save and stop."""

    def on_lost(self, node: str, evidence: str, domain: Domain) -> None:
        """A follower's connection was ended by the other side. `domain`: what that speaks of."""

    def look(self, at: float, mono: float) -> None:
        """Time has passed; asked ten times a second."""


class LauncherNodes:
    """Nodes that launchers of ours run on.

    Args:
        crew: of the leader.
        events: takes what is seen.
        observer: knows the newest attempt.
        voice: for people.
        background: runs what asks the scheduler.
        scheduler: Slurm's word about a silent node; None where there is none to ask.
    """

    def __init__(
        self,
        crew: Crew,
        events: LauncherEvents,
        observer: Observer,
        *,
        voice: Voice,
        background: Background,
        scheduler: SlurmNodes | None,
    ) -> None:
        self.gone: set[str] = set()
        self._crew = crew
        self._events = events
        self._observer = observer
        self._voice = voice
        self._background = background
        self._scheduler = scheduler

    @property
    def has_let_go(self) -> bool:
        """See `Nodes`. Whoever started the launchers may still wait for its own."""
        return self._scheduler is not None and self._scheduler.has_let_go

    def resumed(self, record: JobRecord | None, fence: Fence) -> None:
        """See `Nodes`. This job's launchers alone use its numbers."""

    async def begun(self) -> None:
        """See `Nodes`. The scheduler is asked early where its daemons listen."""
        if self._scheduler is not None:
            await self._scheduler.learn()
            if warning := self._scheduler.warning:
                self._voice.say(warning)

    def attempt_started(self, *, in_place: bool) -> None:
        """See `Nodes`. Lost nodes leave the job once it goes on without them."""
        del in_place
        self._let_lost_go()

    def _let_lost_go(self) -> None:
        if self._scheduler is not None:
            self._background.run(self._tell_let_go(self._scheduler))

    async def _tell_let_go(self, scheduler: SlurmNodes) -> None:
        if said := await scheduler.let_go(self.gone):
            self._voice.say(said)

    def check_save(self, attempt: int) -> None:
        """See `Nodes`. Every launcher passes the wish on."""

    def on_lost(self, node: str, evidence: str, domain: Domain = Domain.HARDWARE) -> None:
        """See `Nodes`. Its launcher is gone, and its ranks died with it."""
        self.gone.add(node)
        self._events.node_gone(node, evidence, domain)
        self._crew.lost(node)

    def look(self, at: float, mono: float) -> None:
        """See `Nodes`."""
        port = self._crew.port
        if port is None:
            return
        used, scheduler = frozenset(self._crew.used), self._scheduler
        looked = FollowersLooked(now=mono, used=used, gone=frozenset(self.gone), can_ask=scheduler is not None)
        for ask in port.presence.handle(looked):
            match ask:
                case TellSilent():
                    if scheduler is not None:
                        scheduler.look_ahead(ask.node)
                    self._events.submit(self._events.event(NodeSilent, at=at, node=ask.node, for_s=ask.for_s))
                case TellHeard():
                    self._events.submit(self._events.event(NodeHeard, at=at, node=ask.node))
                case CheckSpare() if scheduler is not None:
                    self._background.run(self._check_spare(ask.node, scheduler))
                case _:
                    pass
        for node in self._crew.look_at_leases(mono):
            self._background.run(self._lease_over(node, at))

    async def _check_spare(self, node: str, scheduler: SlurmNodes) -> None:
        """A node that the attempt does not use is silent: when it is dead, it leaves the job."""
        if await scheduler.is_dead(node) and node not in self._crew.used:
            self._voice.say(f"{node}, which the job does not use now, is lost: neither it nor its slurmd answers")
            self.gone.add(node)
            self._let_lost_go()
        await asyncio.sleep(_SPARE_AGAIN_S)
        if self._crew.port is not None:
            self._crew.port.presence.handle(SpareChecked(node))

    async def _lease_over(self, node: str, at: float) -> None:
        if self._scheduler is not None and await self._scheduler.is_dead(node):
            self.on_lost(node, "it has not answered, and neither does its scheduler's daemon")
        else:
            why = f"{node} has not answered, and its attempt lease has run out: its ranks are killed"
            self._observer.lease_over(node, why, at)

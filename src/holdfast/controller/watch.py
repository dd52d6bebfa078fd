"""The watch over the orchestrator: look, compare with what was seen last, and say what is different.

One task of the controller. Level-based: a missed change is healed by the next look. A look that fails says nothing
about jobs and nodes; when looks fail for long, `WatchBlind` says that we do not see. A kind of job that alone cannot be
read is told in the same way. Only a complete snapshot can show that something is gone, and only of kinds that can be
read. Time passes between looks, by the clock port.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

import structlog

from holdfast.controller.acts import within
from holdfast.controller.settings import Settings
from holdfast.controller.state import ShellState, key_text
from holdfast.errors import LinkError
from holdfast.model import events as e
from holdfast.model.cluster import NodeView, WorldView, job_kind
from holdfast.ports import Clock, Orchestrator

_log = structlog.get_logger("holdfast.controller")

E = TypeVar("E", bound=e.AnyEvent)
RETRY_FIRST_S = 0.2
AGAIN_S = 0.5
"""Between the begins of two looks that somebody asked for by `look_again`."""


class Watch:
    """See the module. `submit` returns an awaitable that ends when the event is stored and folded into `state()`."""

    def __init__(
        self,
        orchestrator: Orchestrator,
        clock: Clock,
        settings: Settings,
        *,
        state: Callable[[], ShellState],
        submit: Callable[[e.AnyEvent], Awaitable[int]],
    ) -> None:
        self._orchestrator = orchestrator
        self._name = orchestrator.name
        self._clock = clock
        self._settings = settings
        self._state = state
        self._submit = submit
        self._counter = 0
        self._unseen_since: dict[str, float] = {}
        """Kind of job -> since when (monotonic) it cannot be read."""
        self.epoch = 0
        self.looks = 0
        self.looked_at = 0.0
        """Clock's `now` of the last look that saw something; 0.0: none yet."""
        self._again: asyncio.Task[bool] | None = None
        """The next look that was asked for, as long as it has not begun: all who ask until then share it."""
        self._again_at = float("-inf")
        self._taking = asyncio.Lock()
        """Differences are those to what is stored, so one snapshot is taken in after the other."""
        self.tried = asyncio.Event()
        """Set once a look has ended in any way that lets the watch go on: seen, refused, or not answered."""

    async def run(self) -> None:
        """Look for ever."""
        blind_since = self._clock.monotonic()
        retry_s = RETRY_FIRST_S
        while True:
            try:
                world = await within(self._clock, self._settings.observe_limit_s, self._orchestrator.observe())
            except (LinkError, TimeoutError) as error:
                self.tried.set()
                why = str(error) or f"no answer within {self._settings.observe_limit_s:g} s"
                if self._clock.monotonic() - blind_since >= self._settings.blind_after_s and not self._state().blind:
                    _log.warning("the orchestrator cannot be read", why=why)
                    await self._submit(self._event(e.WatchBlind, blind=True, why=why))
                await self._clock.sleep(retry_s)
                retry_s = min(retry_s * 2, self._settings.watch_s)
                continue
            retry_s = RETRY_FIRST_S
            await self.take(world)
            blind_since = self._clock.monotonic()
            await self._clock.sleep(self._settings.watch_pause_s)
            await self._wait_change()

    async def look_once(self) -> None:
        """Look now, beside the rhythm of `run`, and return when what is different is stored.

        Raises:
            LinkError: the orchestrator cannot be read.
        """
        await self.take(await within(self._clock, self._settings.observe_limit_s, self._orchestrator.observe()))

    async def look_again(self) -> bool:
        """Return when a look that began after this call is stored; whether it saw the whole cluster.

        Raises:
            LinkError: the orchestrator cannot be read.
        """
        if self._again is None:
            self._again = asyncio.create_task(self._look_soon(), name="look again")
            # All who asked may have gone by the time it fails.
            self._again.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(self._again)

    async def _look_soon(self) -> bool:
        try:
            await self._clock.sleep(max(0.0, self._again_at + AGAIN_S - self._clock.monotonic()))
        finally:
            self._again = None
        self._again_at = self._clock.monotonic()
        try:
            world = await within(self._clock, self._settings.observe_limit_s, self._orchestrator.observe())
        except TimeoutError:
            raise LinkError(f"the scheduler gave no answer within {self._settings.observe_limit_s:g} s") from None
        await self.take(world)
        return world.complete

    async def _wait_change(self) -> None:
        try:
            await self._orchestrator.wait_change(self._settings.watch_s)
        except LinkError:
            # The next look says whether it can be read; without this pause a refused wait would spin.
            await self._clock.sleep(RETRY_FIRST_S)

    async def take(self, world: WorldView) -> None:
        """Submit what is different, and return when it is stored."""
        async with self._taking:
            await self._take(world)

    async def _take(self, world: WorldView) -> None:
        self.looks += 1
        self.looked_at = self._clock.now()
        self.tried.set()
        stored = [self._submit(event) for event in (*self._differences(world), *self._sight(world))]
        if self._state().blind:
            stored.append(self._submit(self._event(e.WatchBlind, blind=False)))
        for done in await asyncio.gather(*stored, return_exceptions=True):
            if isinstance(done, BaseException):
                # It is not in `state()`, so the next look finds the same difference and tries again.
                _log.error("a difference could not be taken in", why=str(done))

    def _differences(self, world: WorldView) -> Iterator[e.AnyEvent]:
        state = self._state()
        for node in world.nodes:
            known = state.nodes.get(node.name)
            # Most of a large cluster is the very value that was told before, when its adapter keeps them.
            if known is not node and known != node:
                yield self._event(e.NodeObserved, world.at, node=node)
                if node.asked and (known is None or known.asked != node.asked):
                    yield self._ask_of_person(node, world.at)
        for job in world.jobs:
            seen = state.jobs.get(key_text(job.key))
            if seen is not job and seen != job:
                yield self._event(e.JobObserved, world.at, job=job)
        if not world.complete:
            return
        jobs, nodes = {key_text(job.key) for job in world.jobs}, {node.name for node in world.nodes}
        hidden = {one.kind for one in world.unseen}
        for text, job in state.jobs.items():
            if text not in jobs and job_kind(job.key) not in hidden:
                yield self._event(e.JobVanished, world.at, job=job.key)
        for name in state.nodes:
            if name not in nodes:
                yield self._event(e.NodeVanished, world.at, node=name)

    def _sight(self, world: WorldView) -> Iterator[e.AnyEvent]:
        """Kinds of jobs that have not been readable for a while, and those that are again."""
        state, now = self._state(), self._clock.monotonic()
        hidden = {one.kind: one.why for one in world.unseen}
        known = {job_kind(job.key) for job in state.jobs.values()}
        self._unseen_since = {kind: self._unseen_since.get(kind, now) for kind in hidden}
        for kind, why in hidden.items():
            expected = bool(why) or kind in known
            if expected and kind not in state.unseen and now - self._unseen_since[kind] >= self._settings.blind_after_s:
                said = why or "the scheduler does not serve this kind any more"
                _log.warning("one kind cannot be read", kind=kind, why=said)
                yield self._event(e.WatchBlind, blind=True, kind=kind, why=said)
        for kind in state.unseen:
            if kind not in hidden:
                yield self._event(e.WatchBlind, blind=False, kind=kind)

    def _ask_of_person(self, node: NodeView, at: float) -> e.OperatorCommand:
        """A person wrote the wish for a repair onto the node itself: that is an operator's command like any other."""
        return self._event(
            e.OperatorCommand,
            at,
            command=e.Command(node.asked),
            who=f"a person, by the node's {'reason' if node.drain_reason else 'label'}",
            why=node.drain_reason,
            node=node.name,
        )

    def _event(self, kind: Callable[..., E], at: float | None = None, /, **fields: Any) -> E:
        """What the watch says of itself, or of the world as it was at that time."""
        self._counter += 1
        name = f"watch:{self.epoch}.{self._counter}"
        return kind(id=name, at=self._clock.now() if at is None else at, source=self._name, **fields)

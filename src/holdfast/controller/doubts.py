"""Who has gone quiet is asked about elsewhere: a machine that nobody reaches any more is gone, and its launcher too.

A launcher dies with the node that it leads from. Its lease, and the time that a silence may last, are made for a line
that is broken; here the scheduler's side is asked as soon as a beat or two are missing (`ports.Witness`), and only what
it proves is said. Runs beside `presence.py`, whose knowledge of who was heard it uses; time is the clock port's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import structlog
from msgspec import Struct

from holdfast.controller.presence import Presence
from holdfast.controller.settings import Settings
from holdfast.controller.state import ShellState
from holdfast.errors import LinkError, OrderError
from holdfast.model import events as e
from holdfast.model.cluster import SchedulerState
from holdfast.ports import Clock, Witness

_log = structlog.get_logger("holdfast.controller")

AGAIN_FIRST_S, AGAIN_MAX_S = 2.0, 60.0
"""Pauses between questions about one name that stays quiet; a loss that could not be stored is said again then."""


class _Doubt(Struct):
    """A name that is quiet."""

    node: str
    quiet_since: float
    """When it was heard last; monotonic. Another value means that it was heard meanwhile."""
    again_at: float = 0.0
    pause_s: float = AGAIN_FIRST_S
    task: asyncio.Task[None] | None = None


class Doubts:
    """See the module."""

    def __init__(
        self,
        clock: Clock,
        settings: Settings,
        witness: Witness,
        presence: Presence,
        *,
        state: Callable[[], ShellState],
    ) -> None:
        self._clock = clock
        self._settings = settings
        self._witness = witness
        self._presence = presence
        self._state = state
        self._doubts: dict[str, _Doubt] = {}

    async def run(self) -> None:
        """Look for the quiet ones for ever."""
        try:
            while True:
                await self._clock.sleep(self._settings.doubt_tick_s)
                self._look(self._clock.monotonic())
        finally:
            for doubt in self._doubts.values():
                if doubt.task is not None:
                    doubt.task.cancel()

    def _look(self, now: float) -> None:
        quiet = {name: (node, since) for name, node, since in self._quiet(now)}
        for name in [name for name in self._doubts if name not in quiet]:
            if (task := self._doubts.pop(name).task) is not None:
                task.cancel()
        for name, (node, since) in quiet.items():
            doubt = self._doubts.get(name)
            if doubt is None or doubt.quiet_since != since:
                doubt = self._doubts[name] = _Doubt(node, since)
            if doubt.task is None and now >= doubt.again_at:
                doubt.task = asyncio.create_task(self._ask(name, doubt), name=f"doubt {name}")

    def _quiet(self, now: float) -> Iterator[tuple[str, str, float]]:
        """(name, node, when last heard) of launchers that miss beats, and of silent nodes on which a job runs."""
        state = self._state()
        for text in state.launchers:
            name = f"launcher:{text}"
            node, since = self._presence.node_of(name), self._presence.heard_at(name)
            if node and now - since > self._settings.doubt_after_s:
                yield name, node, since
        if state.silent:
            busy = {node for job in state.jobs.values() if job.state is SchedulerState.RUNNING for node in job.nodes}
            for node in state.silent:
                if node in busy:
                    yield f"node:{node}", node, self._presence.heard_at(f"node:{node}")

    async def _ask(self, name: str, doubt: _Doubt) -> None:
        try:
            why = await self._witness.why_gone(doubt.node)
        except (LinkError, OrderError) as error:
            _log.debug("nobody could be asked about a quiet node", node=doubt.node, why=str(error))
            why = ""
        doubt.task = None
        if self._doubts.get(name) is not doubt:
            return
        if self._presence.heard_at(name) != doubt.quiet_since:
            return  # it was heard while we asked
        doubt.again_at = self._clock.monotonic() + doubt.pause_s
        doubt.pause_s = min(AGAIN_MAX_S, doubt.pause_s * 2)
        if why:
            self._say(name, doubt.node, why)

    def _say(self, name: str, node: str, why: str) -> None:
        """The launchers on the node first: the node's jobs are then the controller's to bring back."""
        state = self._state()
        for text, lease in list(state.launchers.items()):
            if self._presence.node_of(f"launcher:{text}") == node:
                self._presence.say_lapsed(text, lease)
        _log.warning("a node is gone", node=node, why=why, noticed_by=name)
        self._presence.announcer.say(f"gone:{node}", e.NodeGone, node=node, evidence=why)

"""Who is there: beats of agents and launchers, folded into the few transitions that are worth an event.

The API hands beats in; one task looks for silence. A node that was never heard is not silent, a silent node is not gone
(that needs evidence), and when the controller itself was stopped or starved, nobody is blamed for it. Time is the
clock port's `monotonic`; after a restart everybody has a full interval to be heard again.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable

import structlog

from holdfast.controller.acts import within
from holdfast.controller.announcer import Announcer
from holdfast.controller.mailbox import Mailboxes, agent_address, launcher_address
from holdfast.controller.settings import Settings
from holdfast.controller.state import Lease, ShellState, key_text
from holdfast.model import events as e
from holdfast.model.clocks import Offsets
from holdfast.model.cluster import JobKey
from holdfast.model.orders import AnyOrder
from holdfast.model.wire import Beat, BeatAnswer
from holdfast.ports import Clock, Sample

_log = structlog.get_logger("holdfast.controller")

DEAF_FACTOR = 4
"""A tick this many times late means that we were not listening."""


class Presence:
    """See the module. `submit` gives a future that ends when the event is stored and folded into `state()`."""

    def __init__(
        self,
        clock: Clock,
        settings: Settings,
        mailboxes: Mailboxes,
        *,
        state: Callable[[], ShellState],
        submit: Callable[[e.AnyEvent], asyncio.Future[int]],
    ) -> None:
        self._clock = clock
        self._settings = settings
        self._mailboxes = mailboxes
        self._state = state
        self.announcer = Announcer(clock, submit, self._settled)
        self._heard: dict[str, float] = {}
        self._node_of: dict[str, str] = {}
        """Launcher -> the node that it beats from."""
        self.clocks = Offsets()
        """How far the clocks of agents and launchers are ahead of ours."""
        self._held: set[str] = set()
        self._since = 0.0
        self._look_at = 0.0
        """Nobody can become silent before this time, so nobody is looked at; infinite: all are held or silent."""
        self._wake = asyncio.Event()
        self.beats = 0
        self.samples: deque[Sample] = deque(maxlen=settings.samples_max)
        """Waiting to be written to the series store; the oldest are dropped when it is full."""

    async def beat(self, beat: Beat, *, wait_s: float = 0.0) -> BeatAnswer:
        """Take one beat in and answer with what waits for its sender; with `wait_s`, wait so long for something."""
        self.beats += 1
        if beat.at:
            self.clocks.note(beat.source, beat.at - self._clock.now(), self._clock.monotonic())
        now = self._clock.monotonic()
        state = self._state()
        lease_s, attached, address = self._settings.beat_lease_s, True, ""
        if beat.node:
            self._hear(f"node:{beat.node}", now, self._settings.silent_after_s)
            if beat.node in state.silent:
                self._say_heard(beat.node)
        if beat.job:
            key = state.known_as(JobKey(beat.cluster, beat.job, beat.generation))
            lease = state.launchers.get(key_text(key))
            attached, address = lease is not None, launcher_address(key)
            lease_s = lease.lease_s if lease is not None else lease_s
            self._hear(address, now, lease_s)
            self._node_of[address] = beat.node
        elif beat.node:
            address = agent_address(beat.node)
            self._agent(beat, state)
        self._keep(beat)
        requests = self._mailboxes.look(address)
        if not requests and wait_s > 0.0:
            requests = await self._wait(address, wait_s)
        return BeatAnswer(lease_s=lease_s, requests=requests, attached=attached)

    async def _wait(self, address: str, wait_s: float) -> list[AnyOrder]:
        deadline = self._clock.monotonic() + wait_s
        while not (found := self._mailboxes.look(address)):
            left_s = deadline - self._clock.monotonic()
            if left_s <= 0:
                break
            try:
                await within(self._clock, left_s, self._mailboxes.news().wait())
            except TimeoutError:
                break
        return found

    def _agent(self, beat: Beat, state: ShellState) -> None:
        if not beat.boot_id or state.agents.get(beat.node) == (beat.boot_id, beat.instance_id):
            return
        self.announcer.say(
            f"agent:{beat.node}:{beat.boot_id}:{beat.instance_id}",
            e.AgentAttached,
            source=beat.source,
            node=beat.node,
            boot_id=beat.boot_id,
            instance_id=beat.instance_id,
            drill_ok=beat.drill_ok,
        )

    def _keep(self, beat: Beat) -> None:
        shift_s = self.clocks.shift_s(beat.source)
        for point in beat.samples:
            value = math.nan if point.value is None else point.value
            self.samples.append(Sample(point.series, point.subject, point.at - shift_s, value))

    def hold(self, name: str) -> None:
        """Count `node:NAME` or `launcher:KEY` as heard until `let_go`: whoever carries its beats folds them for us.

        A simulation says this way that a node goes on beating; so may a relay that speaks for many agents.
        """
        self._held.add(name)

    def let_go(self, name: str) -> None:
        """It is not vouched for any more: it was heard now for the last time, and beats for itself or falls silent."""
        if name in self._held:
            self._held.discard(name)
            self._heard[name] = self._clock.monotonic()
            self._look_by(0.0)

    def node_of(self, name: str) -> str:
        """The node that `launcher:KEY` beats from; empty: not known yet."""
        return self._node_of.get(name, "")

    def heard_at(self, name: str) -> float:
        """When `node:NAME` or `launcher:KEY` was last heard, monotonic; now for one that is vouched for.

        For one that was not heard yet it is when this controller began.
        """
        return self._clock.monotonic() if name in self._held else self._heard.get(name, self._since)

    def _hear(self, name: str, now: float, limit_s: float) -> None:
        self._heard[name] = now
        if name not in self._held:
            self._look_by(now + limit_s)

    def _look_by(self, at: float) -> None:
        if at < self._look_at:
            self._look_at = at
            self._wake.set()

    async def run(self) -> None:
        """Look for silence for ever."""
        last = self._since = self._clock.monotonic()
        while True:
            if self._look_at == math.inf:
                self._wake.clear()
                await self._wake.wait()
                last = self._clock.monotonic()
            await self._clock.sleep(self._settings.tick_s)
            now = self._clock.monotonic()
            if now - last > DEAF_FACTOR * self._settings.tick_s:
                # We were stopped or starved: nobody could be heard, so nobody was silent.
                _log.warning("the controller was not running", for_s=round(now - last, 1))
                self._heard = {name: at + (now - last) for name, at in self._heard.items()}
                self._since += now - last
                self._look_at = 0.0
            last = now
            if now >= self._look_at:
                self._look_at = self._find_silence(now)

    def _find_silence(self, now: float) -> float:
        """Say who is silent. Returns the earliest time at which somebody else can be.

        A look costs as much as there are agents; since a beat can only move that time on, there need be no look before.
        """
        state = self._state()
        silent = set(state.silent)
        earliest = math.inf
        for node in state.agents:
            name = f"node:{node}"
            if node in silent or name in self._held:
                if node in silent and name in self._held:
                    # Its silence was stored late (the disk was full), and it was heard, and vouched for, before that.
                    self._say_heard(node)
                continue
            quiet_s = now - self.heard_at(name)
            if quiet_s <= self._settings.silent_after_s:
                earliest = min(earliest, now - quiet_s + self._settings.silent_after_s)
            else:
                earliest = 0.0
                self.announcer.say(f"silent:{node}", e.NodeSilent, node=node, for_s=round(quiet_s, 1))
        for text, lease in state.launchers.items():
            if f"launcher:{text}" in self._held:
                continue
            quiet_s = now - self.heard_at(f"launcher:{text}")
            limit_s = lease.lease_s + self._settings.lease_margin_s
            if quiet_s <= limit_s:
                earliest = min(earliest, now - quiet_s + limit_s)
            else:
                earliest = 0.0
                self.say_lapsed(text, lease)
        return earliest

    def say_lapsed(self, text: str, lease: Lease) -> None:
        """The launcher of this key is not there any more."""
        self.announcer.say(f"lapsed:{text}", e.LauncherLapsed, job=lease.job, restart_count=lease.restart_count)

    def attached(self, event: e.LauncherAttached | e.AgentAttached) -> None:
        """By an event. A launcher's counts as a beat, or it would lapse at the next tick; an agent's beats are due."""
        now = self._clock.monotonic()
        if isinstance(event, e.LauncherAttached):
            self._hear(f"launcher:{key_text(event.job)}", now, event.lease_s)
        elif f"node:{event.node}" not in self._held:
            self._look_by(now + self._settings.silent_after_s)

    def _say_heard(self, node: str) -> None:
        self.announcer.say(f"heard:{node}", e.NodeHeard, node=node)

    def _settled(self, what: str) -> None:
        del what  # stored late, perhaps: whoever is listened for may be another than at the last look
        self._look_by(0.0)

"""What the shell itself remembers between restarts, folded from the same events and orders as the engine's state.

Timers that wait, the world as last seen, who is attached and who is silent. It is a pure fold: replaying the journal
gives it again, and a snapshot holds it beside the engine's bytes. Called by `loop.py`; times are those of the events.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec
from msgspec import Struct, field

from holdfast.decide.engine import Engine
from holdfast.errors import WireError
from holdfast.model import events as e
from holdfast.model import orders as o
from holdfast.model.cluster import JobKey, JobView, NodeView

EngineFactory = Callable[[bytes | None], Engine]
"""Makes the engine: anew (None), or from what `snapshot` gave. Raises WireError when that cannot be read."""


class Waiting(Struct, frozen=True):
    """A timer that waits."""

    order: str
    """Id of the StartTimer, which makes the TimerFired event's id unique."""
    due: float
    """Controller's Unix seconds."""
    after_s: float = math.inf
    """How long it waits in all."""

    def left_s(self, now: float) -> float:
        """Seconds until it is due. A clock that was set back between two controllers makes no wait longer."""
        return max(0.0, min(self.due - now, self.after_s))

    @property
    def event_id(self) -> str:
        """Id of the event that this timer will become."""
        return e.fired_id(self.order)


class Lease(Struct, frozen=True):
    """A launcher that is attached."""

    job: JobKey
    lease_s: float
    restart_count: int | None = None


LEFT_KEPT_S = 3600.0
"""What a spool or a tailer still holds about a job that has left its node comes within this time."""


class ShellState(Struct):
    """See the module. Dictionaries keep their order of insertion, so equal history gives equal bytes."""

    timers: dict[str, Waiting] = field(default_factory=dict)
    jobs: dict[str, JobView] = field(default_factory=dict)
    nodes: dict[str, NodeView] = field(default_factory=dict)
    agents: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Node -> boot id and instance id that its agent attached with."""
    silent: list[str] = field(default_factory=list)
    launchers: dict[str, Lease] = field(default_factory=dict)
    blind: bool = False
    unseen: list[str] = field(default_factory=list)
    """Kinds of jobs that cannot be read."""
    left: dict[str, dict[str, float]] = field(default_factory=dict)
    """Job -> nodes that it was on before, each with the controller's time at which it was seen to have left."""

    def has_job(self, key: JobKey) -> bool:
        """Does the scheduler have this job, or had it until lately?"""
        text = key_text(self.known_as(key))
        return text in self.jobs or text in self.left

    def nodes_of(self, key: JobKey, *, left_after: float = 0.0) -> set[str]:
        """Nodes on which the scheduler has placed this job: those of now, and those that it left after that time."""
        text = key_text(self.known_as(key))
        now = self.jobs[text].nodes if text in self.jobs else ()
        return {*now, *(node for node, at in self.left.get(text, {}).items() if at >= left_after)}

    def left_at(self, key: JobKey, node: str) -> float | None:
        """When the job was seen to have left the node; None while it is there, or when it never was."""
        text = key_text(self.known_as(key))
        if text in self.jobs and node in self.jobs[text].nodes:
            return None
        return self.left.get(text, {}).get(node)

    def known_as(self, key: JobKey) -> JobKey:
        """The key under which the scheduler's adapter knows the job.

        A launcher or agent on Slurm cannot know how often an id was used before and says generation 1: it means the
        job that runs now.
        """
        if key.generation != 1 or key_text(key) in self.jobs:
            return key
        same = [job.key for job in self.jobs.values() if (job.key.cluster, job.key.id) == (key.cluster, key.id)]
        return max(same, key=lambda known: known.generation, default=key)

    def is_stale(self, event: e.AnyEvent) -> bool:
        """A timer that was cancelled or started anew while its event was on the way must not be handled."""
        if not isinstance(event, e.TimerFired):
            return False
        waiting = self.timers.get(event.timer)
        return waiting is None or waiting.event_id != event.id

    def fold(self, event: e.AnyEvent, orders: Sequence[o.AnyOrder]) -> None:
        """Take in one event and the orders it led to."""
        if isinstance(event, e.TimerFired):
            self.timers.pop(event.timer, None)
        elif isinstance(event, e.WatchBlind) and event.kind:
            self.unseen = sorted({*self.unseen, event.kind} - ({event.kind} if not event.blind else set()))
        elif isinstance(event, e.WatchBlind):
            self.blind = event.blind
        elif isinstance(event, e.ControllerStarted) and event.ahead_s:
            # What was due by the clock of the controller before is due at the same moment by this one's.
            for name, timer in self.timers.items():
                self.timers[name] = Waiting(timer.order, timer.due + event.ahead_s, timer.after_s)
        else:
            self._fold_event(event)
        for order in orders:
            if isinstance(order, o.StartTimer):
                self.timers[order.timer] = Waiting(order.id, event.received_at + order.after_s, order.after_s)
            elif isinstance(order, o.CancelTimer):
                self.timers.pop(order.timer, None)

    def _fold_event(self, event: e.AnyEvent) -> None:
        match event:
            case e.JobObserved():
                self._leaves(event.job.key, event.job.nodes, event.received_at)
                self.jobs[key_text(event.job.key)] = event.job
            case e.JobVanished():
                self._leaves(event.job, (), event.received_at)
                self.jobs.pop(key_text(event.job), None)
                self._forget_left(event.received_at - LEFT_KEPT_S)
            case e.NodeObserved():
                self.nodes[event.node.name] = event.node
            case e.NodeVanished():
                self.nodes.pop(event.node, None)
                self.agents.pop(event.node, None)
                self._heard(event.node)
            case e.AgentAttached():
                self.agents[event.node] = (event.boot_id, event.instance_id)
                self._heard(event.node)
            case e.NodeSilent():
                if event.node not in self.silent:
                    self.silent.append(event.node)
            case e.NodeHeard():
                self._heard(event.node)
            case e.LauncherAttached():
                self.launchers[key_text(event.job)] = Lease(event.job, event.lease_s, event.restart_count)
            case e.LauncherLapsed() if not self._has_successor(event):
                self.launchers.pop(key_text(event.job), None)
            case _:
                pass

    def _leaves(self, key: JobKey, nodes: Sequence[str], now: float) -> None:
        """The job is on these nodes from now on."""
        text = key_text(key)
        known = self.jobs.get(text)
        if known is None or known.nodes == nodes:
            return
        left = {node: now for node in known.nodes if node not in nodes}
        if left:
            self.left[text] = self.left.get(text, {}) | left

    def _forget_left(self, before: float) -> None:
        """Of jobs that the scheduler has no more, long after they were there."""
        for text in [text for text in self.left if text not in self.jobs]:
            if max(self.left[text].values()) < before:
                del self.left[text]

    def _heard(self, node: str) -> None:
        if node in self.silent:
            self.silent.remove(node)

    def _has_successor(self, event: e.LauncherLapsed) -> bool:
        """Is the launcher of a later start attached already? Then this is the late good-bye of the one before."""
        lease = self.launchers.get(key_text(event.job))
        if lease is None or lease.restart_count is None or event.restart_count is None:
            return False
        return event.restart_count < lease.restart_count


class Snapshot(Struct):
    """What the journal keeps as the controller's state."""

    version: int
    shell: ShellState
    engine: bytes


SNAPSHOT_VERSION = 1


def pack(engine: Engine, shell: ShellState) -> bytes:
    """Bytes of a snapshot."""
    return msgspec.msgpack.encode(Snapshot(SNAPSHOT_VERSION, shell, engine.snapshot()))


def unpack(state: bytes) -> Snapshot:
    """Read a snapshot.

    Raises:
        WireError: not a snapshot, or of a form that this version does not know.
    """
    try:
        found = msgspec.msgpack.decode(state, type=Snapshot)
    except msgspec.DecodeError as error:
        raise WireError(f"the journal's snapshot cannot be read: {error}") from error
    if found.version > SNAPSHOT_VERSION:
        raise WireError(
            f"the journal's snapshot has form {found.version}, this version reads {SNAPSHOT_VERSION}: update"
        )
    return found


def key_text(key: JobKey) -> str:
    """The whole key as text."""
    return f"{key.cluster}/{key.id}#{key.generation}"

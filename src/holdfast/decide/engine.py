"""The engine: one event in, the orders it leads to out. The way into `decide/` for controller, launcher and simulation.

`Engine.handle` is synchronous and deterministic: equal policies and equal events give equal orders and equal snapshots.
Its caller stores the event, the orders and the touched records in one transaction before any order is carried out.
Each event costs the same however many jobs and nodes there are. How time passes: an event brings it (`received_at`,
else `at`); waiting is a `StartTimer` order that comes back as `TimerFired`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from holdfast.decide import findings, incidents, jobs, nodes, operators, recovery, restart
from holdfast.decide.records import ALLOCATION, CLUSTER, TIMER_SLACK_S, Turn
from holdfast.decide.state import SNAPSHOT_VERSION, Drill, Index, State, from_bytes, to_bytes
from holdfast.errors import ConfigError, EngineError
from holdfast.model import events as e
from holdfast.model import orders as o
from holdfast.model.events import AnyEvent
from holdfast.model.evidence import Severity
from holdfast.model.orders import AnyOrder, OrderStatus
from holdfast.model.policy import PolicySet
from holdfast.model.policy_toml import parse_policy
from holdfast.model.records import IncidentRecord, OrderRecord, Touched, slug


class Engine:
    """Judgement over one cluster (scope `cluster`) or inside one allocation (scope `allocation`)."""

    def __init__(
        self,
        policies: PolicySet,
        *,
        scope: str = CLUSTER,
        presets: Mapping[str, str] | None = None,
        state: State | None = None,
    ) -> None:
        """Start with these policies.

        Args:
            policies: what holds until a `PolicyLoaded` event says otherwise.
            scope: `cluster` for the controller, `allocation` for a launcher.
            presets: texts of the presets that a loaded policy may build on, by name.
            state: what `restore` read; a new engine starts empty.
        """
        if scope not in {CLUSTER, ALLOCATION}:
            raise EngineError(f"no scope {scope!r}: cluster or allocation")
        self._presets = dict(presets or {})
        self.state = state if state is not None else State(version=SNAPSHOT_VERSION, scope=scope)
        self.policies = policies
        if self.state.policy_toml:
            self.policies = parse_policy(self.state.policy_toml, self.state.policy_file, self._presets)
        self.index = Index(self.state)
        self._last: Turn | None = None

    # --- events ---

    def handle(self, event: AnyEvent) -> list[AnyOrder]:
        """Take one event; return the orders it leads to, in the order in which they should begin.

        An event whose `seq` is not above the newest one handled is a replay and leads to nothing; an event without
        `seq` (0) is numbered here.

        Raises:
            InvalidTransition: a bug: the error carries the record's story.
        """
        state = self.state
        if 0 < event.seq <= state.seq:
            # A replay of what was handled already: a snapshot is newer than the events it was made from.
            self._last = None
            return []
        state.seq = event.seq or state.seq + 1
        state.now = max(state.now, event.received_at or event.at)
        turn = self._last = Turn(state, self.index, self.policies, event)
        handler = _HANDLERS.get(type(event))
        if handler is None:
            raise EngineError(f"no handler for {type(event).__name__}")
        handler(self, turn, event)
        if turn.cleaned:
            restart.readmit(turn, turn.cleaned)
        if turn.closing:
            incidents.close_done(turn)
        return turn.outgoing.orders

    def touched(self) -> Touched:
        """Records that the last event changed. They are live: write them before the next event is handled."""
        return self._last.changes.touched() if self._last is not None else Touched()

    # --- memory ---

    def snapshot(self) -> bytes:
        """The whole state; equal histories give equal bytes."""
        return to_bytes(self.state)

    @classmethod
    def restore(cls, data: bytes, policies: PolicySet, *, presets: Mapping[str, str] | None = None) -> Engine:
        """The engine as it was when the snapshot was taken.

        Raises:
            VersionError: the snapshot was written by a newer version.
            WireError: the bytes are not a snapshot.
        """
        state = from_bytes(data)
        return cls(policies, scope=state.scope, presets=presets, state=state)

    @property
    def scope(self) -> str:
        """`cluster` or `allocation`."""
        return self.state.scope

    @property
    def seq(self) -> int:
        """Sequence number of the newest event handled."""
        return self.state.seq

    def pending_orders(self) -> list[OrderRecord]:
        """Orders without an outcome, oldest first, and timers that still wait.

        A timer's record has its due time (Unix seconds) in `expires_at`. Proposed orders are not among them.
        """
        pending = [record for record in self.state.orders.values() if record.status is OrderStatus.PENDING]
        waiting = [
            OrderRecord(timer.order, OrderStatus.PENDING, timer.due_at - timer.order.after_s, expires_at=timer.due_at)
            for timer in self.state.timers.values()
        ]
        return sorted(pending, key=lambda record: (record.order.cause, record.issued_at)) + waiting

    def proposed_orders(self) -> list[OrderRecord]:
        """Orders that wait for a person."""
        return [record for record in self.state.orders.values() if record.status is OrderStatus.PROPOSED]

    def open_incidents(self) -> list[IncidentRecord]:
        """Incidents that are not closed, oldest first."""
        return sorted(self.state.incidents.values(), key=lambda incident: (incident.opened_at, incident.id))

    # --- events about the engine itself ---

    def _policy_loaded(self, turn: Turn, event: e.PolicyLoaded) -> None:
        try:
            made = parse_policy(event.toml, event.file, self._presets)
        except ConfigError as error:
            turn.notify("policy", Severity.ERROR, "A policy was refused; the former one holds", str(error))
            return
        self.policies = turn.policies = made
        self.state.policy_toml = event.toml
        self.state.policy_file = event.file


def _node_observed(engine: Engine, turn: Turn, event: e.NodeObserved) -> None:
    del engine
    gone, failed_check = nodes.observed(turn, event.node)
    if gone:
        findings.node_gone(turn, event.node.name, gone)
    if failed_check:
        findings.failed_check(turn, event.node.name, failed_check)


def _watch_blind(engine: Engine, turn: Turn, event: e.WatchBlind) -> None:
    del engine
    if event.kind:
        _kind_blind(turn, event)
        return
    if turn.state.blind == event.blind:
        return
    turn.state.blind = event.blind
    if event.blind:
        title, text = "The scheduler cannot be read", f"{event.why}. What is not seen is unknown, not well."
        turn.notify("watch", Severity.ERROR, title, text)
    else:
        turn.notify("watch", Severity.INFO, "The scheduler can be read again", event.why)


def _kind_blind(turn: Turn, event: e.WatchBlind) -> None:
    if (event.kind in turn.state.unseen) == event.blind:
        return
    topic = f"watch:{event.kind}"
    if event.blind:
        turn.state.unseen.append(event.kind)
        text = f"{event.why}. Jobs of this kind are unknown, not ended; all others are recovered as always."
        turn.notify(topic, Severity.ERROR, f"Jobs of the kind {event.kind} cannot be read", text)
    else:
        turn.state.unseen.remove(event.kind)
        turn.notify(topic, Severity.INFO, f"Jobs of the kind {event.kind} are known again", event.why)


def _first_step(engine: Engine, turn: Turn, event: e.FirstStepDone) -> None:
    del engine
    job = turn.job(event.job)
    if job is None or job.attempt is None or job.attempt.number != event.attempt:
        return
    restart.first_step(turn, job, event.step, event.resumed_from, event.at)
    restart.step_done(turn, job, event.attempt, event.step)
    recovery.moves_again(turn, job, event.step)


def _checkpoint(engine: Engine, turn: Turn, event: e.CheckpointSaved) -> None:
    del engine
    job = turn.job(event.job)
    if job is not None and event.durable:
        restart.checkpoint_saved(turn, job, event.attempt, event.step)


def _step(engine: Engine, turn: Turn, event: e.StepReached) -> None:
    del engine
    job = turn.job(event.job)
    if job is None:
        return
    further = job.attempt is not None and event.step > (job.attempt.last_step or 0)
    restart.step_done(turn, job, event.attempt, event.step)
    if further and job.attempt is not None and job.attempt.number == event.attempt:
        recovery.moves_again(turn, job, event.step)


def _stacks(engine: Engine, turn: Turn, event: e.StacksCaptured) -> None:
    del engine
    job = turn.job(event.job)
    if job is not None:
        turn.orders.complete(job.about, "stacks are in", o.CaptureStacks)
        recovery.stacks(turn, job, event)


def _order_done(engine: Engine, turn: Turn, event: e.OrderDone) -> None:
    del engine
    known = turn.state.orders.get(event.order)
    if known is None or known.status is not OrderStatus.PENDING or isinstance(known.order, o.ValidateNode):
        return  # that checks were run is no outcome: NodeValidated is
    record = turn.orders.settle(event.order, OrderStatus.DONE, event.detail)
    if record is None:
        return
    order = record.order
    if isinstance(order, o.JobOrder):
        job = turn.job(order.job)
        if job is not None:
            recovery.order_done(turn, job, order)
    elif isinstance(order, o.NodeOrder):
        node = turn.state.nodes.get(order.node)
        if node is not None:
            nodes.order_done(turn, node, order)


def _order_failed(engine: Engine, turn: Turn, event: e.OrderFailed) -> None:
    del engine
    record = turn.state.orders.get(event.order)
    if record is None or record.status is not OrderStatus.PENDING:
        return
    order = record.order
    if not event.permanent:
        # It stays pending and is tried again: the same id, so that it has its effect once.
        record.detail = event.why[:500]
        turn.changes.add(record)
        turn.timers.start(f"order:{order.id}", turn.policies.site.waits.order_s, order.incident)
        return
    turn.orders.settle(order.id, OrderStatus.FAILED, event.why)
    if isinstance(order, o.JobOrder):
        job = turn.job(order.job)
        if job is not None:
            recovery.order_failed(turn, job, order, event.why)
            if isinstance(order, o.CaptureStacks | o.SaveAndStop):
                recovery.timer(turn, job)
    elif isinstance(order, o.NodeOrder):
        node = turn.state.nodes.get(order.node)
        if node is not None:
            nodes.order_failed(turn, node, order, event.why)


def _timer(engine: Engine, turn: Turn, event: e.TimerFired) -> None:
    del engine
    waiting = turn.state.timers.get(event.timer)
    if waiting is None:
        return
    early = waiting.due_at - turn.now
    if early > TIMER_SLACK_S and event.id != e.fired_id(waiting.order.id):
        # A firing of the timer that this one has replaced: wait for the rest. The timer's own firing counts even when
        # it seems early: the clock was set back, or that of a controller that has taken over is behind, and time stands
        # still here until it has caught up.
        turn.timers.start(event.timer, early, waiting.order.incident)
        return
    del turn.state.timers[event.timer]
    kind, _, name = event.timer.partition(":")
    handler = _TIMERS.get(kind)
    if handler is not None:
        handler(turn, name)


def _job_timer(turn: Turn, name: str) -> None:
    job = turn.state.jobs.get(name)
    if job is not None:
        recovery.timer(turn, job)


def _lapse_timer(turn: Turn, name: str) -> None:
    job = turn.state.jobs.get(name)
    if job is not None:
        jobs.lapse_timer(turn, job)


def _node_timer(turn: Turn, name: str) -> None:
    node = turn.state.nodes.get(name)
    if node is not None:
        nodes.timer(turn, node)


def _settle_timer(turn: Turn, name: str) -> None:
    incident = turn.state.incidents.get(name)
    if incident is not None:
        recovery.settled(turn, incident)


_UNDONE_BY_PEOPLE = (o.JobOrder, o.QuarantineNode, o.ReturnNode, o.RetireNode)
"""Commands to a scheduler: while it cannot be read, a person may have undone what they were ordered for."""


def _order_timer(turn: Turn, name: str) -> None:
    record = turn.state.orders.get(name)
    if record is None or record.status is not OrderStatus.PENDING:
        return
    if turn.state.blind and isinstance(record.order, _UNDONE_BY_PEOPLE):  # it is looked at first
        turn.timers.start(f"order:{name}", turn.policies.site.waits.order_s, record.order.incident)
    else:
        turn.outgoing.orders.append(record.order)


_TIMERS: dict[str, Callable[[Turn, str], None]] = {
    "job": _job_timer,
    "lapse": _lapse_timer,
    "node": _node_timer,
    "silent": findings.silence_over,
    "settle": _settle_timer,
    "brake": nodes.brake_timer,
    "propose": operators.lapsed,
    "order": _order_timer,
}


def _controller_started(engine: Engine, turn: Turn, event: e.ControllerStarted) -> None:
    del engine
    turn.state.epoch = max(turn.state.epoch, event.epoch)
    if turn.in_allocation:
        # A new launcher: the ranks of the former one are gone, and with them what it was ordered to do to them.
        for record in list(turn.state.orders.values()):
            if record.status is OrderStatus.PENDING and isinstance(record.order, o.JobOrder):
                turn.orders.settle(record.order.id, OrderStatus.WITHDRAWN, "a new launcher begins")


def _drill_fired(engine: Engine, turn: Turn, event: e.DrillFired) -> None:
    del engine
    job = slug(event.job) if event.job is not None else ""
    incidents.drill_fired(turn, Drill(event.drill, event.at, job, event.node))


def _drill_run(engine: Engine, turn: Turn, event: e.DrillRun) -> None:
    """Nothing of this cluster was touched."""
    del engine, turn, event


def _without_engine(function: Callable[[Turn, Any], object]) -> Callable[[Engine, Turn, Any], None]:
    def handler(engine: Engine, turn: Turn, event: Any) -> None:
        del engine
        function(turn, event)

    return handler


_HANDLERS: dict[type[Any], Callable[[Engine, Turn, Any], None]] = {
    e.JobObserved: _without_engine(jobs.observed),
    e.JobVanished: _without_engine(jobs.vanished),
    e.NodeObserved: _node_observed,
    e.NodeVanished: _without_engine(nodes.vanished),
    e.WatchBlind: _watch_blind,
    e.LauncherAttached: _without_engine(jobs.attached),
    e.LauncherLapsed: _without_engine(jobs.lapsed),
    e.AttemptStarted: _without_engine(jobs.attempt_started),
    e.AttemptEnded: _without_engine(jobs.attempt_ended),
    e.FirstStepDone: _first_step,
    e.CheckpointSaved: _checkpoint,
    e.StepReached: _step,
    e.StacksCaptured: _stacks,
    e.Escalated: _without_engine(jobs.escalated),
    e.FindingSeen: _without_engine(findings.seen),
    e.FindingCleared: _without_engine(nodes.cleared),
    e.AgentAttached: _without_engine(nodes.agent_attached),
    e.NodeSilent: _without_engine(nodes.silent),
    e.NodeHeard: _without_engine(nodes.node_heard),
    e.NodeGone: _without_engine(findings.told_gone),
    e.NodeValidated: _without_engine(nodes.validated),
    e.OperatorCommand: _without_engine(operators.command),
    e.PolicyLoaded: Engine._policy_loaded,  # noqa: SLF001 - the engine's own table
    e.OrderDone: _order_done,
    e.OrderFailed: _order_failed,
    e.TimerFired: _timer,
    e.ControllerStarted: _controller_started,
    e.DrillFired: _drill_fired,
    e.DrillRun: _drill_run,
}

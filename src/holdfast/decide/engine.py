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
from holdfast.decide.records import incident as incident_record
from holdfast.decide.records.set_back import SLACK_S, set_back
from holdfast.decide.records.turn import ALLOCATION, CLUSTER, TIMER_SLACK_S, Turn
from holdfast.decide.state import SNAPSHOT_VERSION, Drill, Index, State, from_bytes, to_bytes
from holdfast.errors import ConfigError, EngineError
from holdfast.model import events as e
from holdfast.model import orders as o
from holdfast.model.cluster import NODE_KIND
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
        if 0.0 < event.received_at < state.now - SLACK_S:
            set_back(state, event.received_at)
        state.now = max(state.now, event.received_at or event.at)
        turn = self._last = Turn(state, self.index, self.policies, event)
        handler = self._policy_loaded if isinstance(event, e.PolicyLoaded) else _HANDLERS.get(type(event))
        if handler is None:
            raise EngineError(f"no handler for {type(event).__name__}")
        handler(turn, event)
        if turn.cleaned:
            restart.readmit(turn, turn.cleaned)
        if turn.unfenced:
            restart.keep_queued_off(turn, turn.unfenced)
        if turn.closing:
            incident_record.close_done(turn)
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

    def _policy_loaded(self, turn: Turn, event: Any) -> None:
        try:
            made = parse_policy(event.toml, event.file, self._presets)
        except ConfigError as error:
            turn.notify("policy", Severity.ERROR, "A policy was refused; the former one holds", str(error))
            return
        self.policies = turn.policies = made
        self.state.policy_toml = event.toml
        self.state.policy_file = event.file


def _node_observed(turn: Turn, event: e.NodeObserved) -> None:
    gone, failed_check = nodes.observed(turn, event.node)
    if gone:
        findings.node_gone(turn, event.node.name, gone)
    if failed_check:
        findings.failed_check(turn, event.node.name, failed_check)


def _watch_blind(turn: Turn, event: e.WatchBlind) -> None:
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
    what = f"Jobs of the kind {event.kind}"
    lost, found = f"{what} cannot be read", f"{what} are known again"
    text = f"{event.why}. Jobs of this kind are unknown, not ended; all others are recovered as always."
    if event.kind == NODE_KIND:
        lost, found = "The scheduler does not reach its nodes", "The scheduler reaches its nodes again"
        text = f"{event.why}. They are unknown, not lost: none is fenced or left for that."
    if event.blind:
        turn.state.unseen.append(event.kind)
        turn.notify(topic, Severity.ERROR, lost, text)
    else:
        turn.state.unseen.remove(event.kind)
        turn.notify(topic, Severity.INFO, found, event.why)


def _first_step(turn: Turn, event: e.FirstStepDone) -> None:
    job = turn.job(event.job)
    if job is None or job.attempt is None or job.attempt.number != event.attempt:
        return
    restart.first_step(turn, job, event)
    restart.step_done(turn, job, event.attempt, event.step)
    recovery.moves_again(turn, job, event.step)


def _checkpoint(turn: Turn, event: e.CheckpointSaved) -> None:
    job = turn.job(event.job)
    if job is not None and event.durable:
        restart.checkpoint_saved(turn, job, event.attempt, event.step)


def _step(turn: Turn, event: e.StepReached) -> None:
    job = turn.job(event.job)
    if job is None:
        return
    further = job.attempt is not None and event.step > (job.attempt.last_step or 0)
    restart.step_done(turn, job, event.attempt, event.step)
    if further and job.attempt is not None and job.attempt.number == event.attempt:
        recovery.moves_again(turn, job, event.step)


def _stacks(turn: Turn, event: e.StacksCaptured) -> None:
    job = turn.job(event.job)
    if job is not None:
        turn.orders.complete(job.about, "stacks are in", o.CaptureStacks)
        recovery.stacks(turn, job, event)


def _order_done(turn: Turn, event: e.OrderDone) -> None:
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


def _order_failed(turn: Turn, event: e.OrderFailed) -> None:
    record = turn.state.orders.get(event.order)
    if record is None or record.status is not OrderStatus.PENDING:
        return
    order = record.order
    if not event.permanent:
        turn.orders.retry(record, event.why, turn.policies.site.waits.order_s)
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


def _timer(turn: Turn, event: e.TimerFired) -> None:
    waiting = turn.state.timers.get(event.timer)
    if waiting is None:
        return
    early = waiting.due_at - turn.now
    if early > TIMER_SLACK_S and event.id != e.fired_id(waiting.order.id):
        # A firing of the timer that this one has replaced: wait for the rest. The timer's own firing counts even when
        # it seems early: the clock was set back a little, or that of a controller that has taken over is behind, and
        # time stands still here until it has caught up.
        turn.timers.start(event.timer, early, waiting.order.incident)
        return
    del turn.state.timers[event.timer]
    kind, _, name = event.timer.partition(":")
    handler = _TIMERS.get(kind)
    if handler is not None:
        handler(turn, name)


def _about(kind: str, look: Callable[[Turn, Any], None]) -> Callable[[Turn, str], None]:
    """Look at the record that the timer names, if it is there still."""

    def fired(turn: Turn, name: str) -> None:
        record = getattr(turn.state, kind).get(name)
        if record is not None:
            look(turn, record)

    return fired


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
    "job": _about("jobs", recovery.timer),
    "lapse": _about("jobs", jobs.lapse_timer),
    "node": _about("nodes", nodes.timer),
    "silent": findings.silence_over,
    "settle": _about("incidents", recovery.settled),
    "brake": nodes.brake_timer,
    "propose": operators.lapsed,
    "order": _order_timer,
}


def _controller_started(turn: Turn, event: e.ControllerStarted) -> None:
    turn.state.epoch = max(turn.state.epoch, event.epoch)
    if turn.in_allocation:
        # A new launcher: the ranks of the former one are gone, and with them what it was ordered to do to them.
        for record in list(turn.state.orders.values()):
            if record.status is OrderStatus.PENDING and isinstance(record.order, o.JobOrder):
                turn.orders.settle(record.order.id, OrderStatus.WITHDRAWN, "a new launcher begins")


def _drill_fired(turn: Turn, event: e.DrillFired) -> None:
    job = slug(event.job) if event.job is not None else ""
    incidents.drill_fired(turn, Drill(event.drill, event.at, job, event.node))


def _drill_run(turn: Turn, event: e.DrillRun) -> None:
    """Nothing of this cluster was touched."""
    del turn, event


_HANDLERS: dict[type[Any], Callable[[Turn, Any], object]] = {
    e.JobObserved: jobs.observed,
    e.JobVanished: jobs.vanished,
    e.NodeObserved: _node_observed,
    e.NodeVanished: nodes.vanished,
    e.WatchBlind: _watch_blind,
    e.LauncherAttached: jobs.attached,
    e.LauncherLapsed: jobs.lapsed,
    e.AttemptStarted: jobs.attempt_started,
    e.AttemptEnded: jobs.attempt_ended,
    e.FirstStepDone: _first_step,
    e.CheckpointSaved: _checkpoint,
    e.StepReached: _step,
    e.StacksCaptured: _stacks,
    e.Escalated: jobs.escalated,
    e.FindingSeen: findings.seen,
    e.FindingCleared: nodes.cleared,
    e.AgentAttached: nodes.agent_attached,
    e.NodeSilent: nodes.silent,
    e.NodeHeard: nodes.node_heard,
    e.NodeGone: findings.told_gone,
    e.NodeValidated: nodes.validated,
    e.OperatorCommand: operators.command,
    e.OrderDone: _order_done,
    e.OrderFailed: _order_failed,
    e.TimerFired: _timer,
    e.ControllerStarted: _controller_started,
    e.DrillFired: _drill_fired,
    e.DrillRun: _drill_run,
}

"""One turn of the engine: the event in hand, the orders that come of it, and every change of a record.

`engine.handle` makes a Turn for each event and hands it to the flows. A Turn asks modes before it orders, moves records
by the tables, stamps marks and tells stories. It holds what goes out (`Outgoing`), the timers, the open orders and the
changed records. The time is the event's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from holdfast.decide import ladder, machine
from holdfast.decide.state import Index, State, Waiting, subject
from holdfast.model import events as e
from holdfast.model import orders as o
from holdfast.model import story
from holdfast.model.cluster import JobKey, JobView, job_kind
from holdfast.model.events import AnyEvent
from holdfast.model.evidence import Diagnosis, Evidence, Finding, Remedy, Role, Severity
from holdfast.model.orders import AnyOrder, OrderStatus
from holdfast.model.policy import Brake, Mode, Policy, PolicySet
from holdfast.model.records import (
    AttemptRecord,
    Authority,
    BrakeRecord,
    Broke,
    IncidentRecord,
    JobRecord,
    JobState,
    JobTrigger,
    Mark,
    NodeRecord,
    NodeState,
    NodeTrigger,
    OrderRecord,
    Touched,
    slug,
)

ALLOCATION = "allocation"
CLUSTER = "cluster"
_JOB_PHASES = (
    Mark.DETECTED,
    Mark.DIAGNOSED,
    Mark.STOPPED,
    Mark.REQUEUED,
    Mark.RELEASED,
    Mark.PLACED,
    Mark.STARTED,
    Mark.FIRST_STEP,
    Mark.PROVEN,
)
_AGAIN = frozenset(_JOB_PHASES[2:])
"""Marks that a recurrence within the same incident stamps anew."""
TIMER_SLACK_S = 0.05
"""A timer that fires this much early counts as due: clocks and event loops round differently."""
O = TypeVar("O", bound=o.Order)  # noqa: E741 - O for order
ATTEMPTS_MAX = 64
NODES_KEPT = 3
"""So many attempts of a large job name their nodes; with all of them its record, written with every event, was 1 MB."""
NODES_SMALL = 64
ROUNDING_S = 0.01
"""Looked at this much after the window has moved on, so that rounding does not make it look a moment too early."""
STEPS_KEPT = 24
"""Durable checkpoints remembered per job: a poisoned one is stepped over to an older one."""


class Changes:
    """Records that the event changed, each once, in the order in which they changed first."""

    __slots__ = ("_brakes", "_incidents", "_jobs", "_nodes", "_orders")

    def __init__(self) -> None:
        self._jobs: dict[str, JobRecord] = {}
        self._nodes: dict[str, NodeRecord] = {}
        self._incidents: dict[str, IncidentRecord] = {}
        self._orders: dict[str, OrderRecord] = {}
        self._brakes: dict[str, BrakeRecord] = {}

    def add(self, record: JobRecord | NodeRecord | IncidentRecord | OrderRecord | BrakeRecord) -> None:
        """Have the record projected."""
        if isinstance(record, JobRecord):
            self._jobs[slug(record.key)] = record
        elif isinstance(record, NodeRecord):
            self._nodes[record.name] = record
        elif isinstance(record, IncidentRecord):
            self._incidents[record.id] = record
        elif isinstance(record, OrderRecord):
            self._orders[record.order.id] = record
        else:
            self._brakes[record.group] = record

    def touched(self) -> Touched:
        """List the records by kind."""
        return Touched(
            jobs=list(self._jobs.values()),
            nodes=list(self._nodes.values()),
            incidents=list(self._incidents.values()),
            orders=list(self._orders.values()),
            brakes=list(self._brakes.values()),
        )


class Outgoing:
    """Orders that the event leads to, in the order in which they begin.

    Ids are made of the event's sequence number, so a replay gives the same ids.
    """

    __slots__ = ("_count", "_prefix", "_seq", "orders")

    def __init__(self, state: State) -> None:
        self.orders: list[AnyOrder] = []
        self._seq = state.seq
        self._count = 0
        self._prefix = "a" if state.scope == ALLOCATION else "c"

    def new_id(self) -> str:
        """Make an id that a replay gives again."""
        self._count += 1
        return f"{self._prefix}{self._seq}.{self._count}"

    def make(self, kind: type[O], **fields: Any) -> O:
        """Make an order with its id and cause; it is not sent."""
        return kind(id=self.new_id(), cause=self._seq, **fields)


class Timers:
    """Timers that wait, by name."""

    __slots__ = ("outgoing", "state")

    def __init__(self, state: State, outgoing: Outgoing) -> None:
        self.state = state
        self.outgoing = outgoing

    def start(self, name: str, after_s: float, incident: str = "") -> None:
        """Have `TimerFired` sent; a timer of the same name is replaced."""
        order = self.outgoing.make(o.StartTimer, timer=name, after_s=after_s, incident=incident)
        self.state.timers[name] = Waiting(order, self.state.now + after_s)
        self.outgoing.orders.append(order)

    def cancel(self, name: str) -> None:
        """Forget a timer, if it waits."""
        waiting = self.state.timers.pop(name, None)
        if waiting is not None:
            self.outgoing.orders.append(self.outgoing.make(o.CancelTimer, timer=name, incident=waiting.order.incident))


class OpenOrders:
    """Orders without an outcome: pending and proposed ones."""

    __slots__ = ("_changes", "_index", "_outgoing", "_state", "_timers")

    def __init__(self, state: State, index: Index, outgoing: Outgoing, timers: Timers, changes: Changes) -> None:
        self._state = state
        self._index = index
        self._outgoing = outgoing
        self._timers = timers
        self._changes = changes

    def issue(self, order: AnyOrder) -> None:
        """Order it now."""
        self._add(OrderRecord(order, OrderStatus.PENDING, self._state.now))
        self._outgoing.orders.append(order)

    def propose(self, order: AnyOrder, wait_s: float) -> None:
        """Keep the order for a person to approve; it lapses after `wait_s`."""
        now = self._state.now
        self._add(OrderRecord(order, OrderStatus.PROPOSED, now, expires_at=now + wait_s))
        self._timers.start(f"propose:{order.id}", wait_s, incident=order.incident)

    def _add(self, record: OrderRecord) -> None:
        self._state.orders[record.order.id] = record
        self._index.orders_of.setdefault(subject(record), set()).add(record.order.id)
        self._changes.add(record)

    def settle(self, order_id: str, status: OrderStatus, detail: str = "") -> OrderRecord | None:
        """End an order; None when it is not open (unknown, or ended before)."""
        record = self._state.orders.pop(order_id, None)
        if record is None:
            return None
        about = subject(record)
        ids = self._index.orders_of.get(about)
        if ids is not None:
            ids.discard(order_id)
            if not ids:
                del self._index.orders_of[about]
        if record.status is OrderStatus.PROPOSED:
            self._timers.cancel(f"propose:{order_id}")
        self._timers.cancel(f"order:{order_id}")
        record.status = status
        record.ended_at = self._state.now
        record.detail = detail[:500]
        self._changes.add(record)
        return record

    def about(self, about: str, *kinds: type[o.Order]) -> list[OrderRecord]:
        """List orders about a job (slug) or node (`node:NAME`), oldest first; notices only when asked for."""
        ids = self._index.orders_of.get(about)
        if not ids:
            return []
        found = [self._state.orders[i] for i in ids]
        if kinds:
            found = [record for record in found if isinstance(record.order, kinds)]
        else:
            found = [record for record in found if not isinstance(record.order, o.Notify)]
        return sorted(found, key=lambda record: (record.order.cause, record.order.id))

    def under_way(self, about: str, *kinds: type[o.Order]) -> bool:
        """Is one of these ordered, and not merely proposed?"""
        return any(record.status is OrderStatus.PENDING for record in self.about(about, *kinds))

    def withdraw(self, about: str, why: str, *kinds: type[o.Order], but: str = "") -> None:
        """Take back open orders (all but notices, or only those kinds), except the one with this id."""
        for record in self.about(about, *kinds):
            if record.order.id != but:
                self.settle(record.order.id, OrderStatus.WITHDRAWN, why)

    def complete(self, about: str, detail: str, *kinds: type[o.Order]) -> None:
        """Settle pending orders as done; proposed ones have become pointless."""
        for record in self.about(about, *kinds):
            done = record.status is OrderStatus.PENDING
            self.settle(record.order.id, OrderStatus.DONE if done else OrderStatus.WITHDRAWN, detail)


class Turn:
    """One event, what the engine remembers, and what follows from the event."""

    __slots__ = (
        "changes",
        "cleaned",
        "closing",
        "event",
        "index",
        "now",
        "orders",
        "outgoing",
        "policies",
        "state",
        "timers",
    )

    def __init__(self, state: State, index: Index, policies: PolicySet, event: AnyEvent) -> None:
        self.state = state
        self.index = index
        self.policies = policies
        self.event = event
        self.now = state.now
        self.changes = Changes()
        self.outgoing = Outgoing(state)
        self.timers = Timers(state, self.outgoing)
        self.orders = OpenOrders(state, index, self.outgoing, self.timers, self.changes)
        self.closing: dict[str, IncidentRecord] = {}
        """Incidents of which a side was settled in this turn."""
        self.cleaned: list[str] = []
        """Nodes that came to count as clean in this turn."""

    # --- facts ---

    @property
    def in_allocation(self) -> bool:
        """Is this the launcher's engine?"""
        return self.state.scope == ALLOCATION

    def leads(self, job: JobRecord) -> bool:
        """Does this engine decide on what happens inside the job's allocation?"""
        return (job.authority is Authority.LAUNCHER) == self.in_allocation

    def blind_to(self, job: JobRecord) -> bool:
        """Is what happens to the job not seen now: the scheduler, or jobs of its kind, cannot be read?"""
        return self.state.blind or job_kind(job.key) in self.state.unseen

    def job(self, key: JobKey) -> JobRecord | None:
        """The job's record, if it is known."""
        return self.state.jobs.get(slug(key))

    def policy_of(self, job: JobRecord) -> Policy:
        """The policy that holds for the job."""
        recovery = job.view.recovery
        return self.policies.for_job(job.view.partition, recovery.policy if recovery is not None else "")

    def policy_for(self, node: NodeRecord) -> Policy:
        """The policy that holds for the node."""
        return self.policies.for_group(node.view.group)

    def mode(self, policy: Policy, group: str, rung: Remedy, incident: str = "") -> Mode:
        """How far to go with this rung; what a person approved for the incident is acted on."""
        if rung in self.state.approved.get(incident, ()):
            return Mode.ACT
        return ladder.mode_of(policy, self.state.modes, group, rung)

    def place(self, job: JobRecord) -> machine.JobPlace:
        """The row of the table in which the job stands."""
        if job.state is not JobState.DIAGNOSING:
            return machine.JobPlace(job.state)
        asked = any(record.status is OrderStatus.PROPOSED for record in self.orders.about(job.about))
        return machine.place_of(job.state, asked=asked, lives=job.alive and not job.in_queue)

    def wait_s(self, job: JobRecord) -> float:
        """How long the state of the job lasts before it is looked at."""
        waits, row = self.policy_of(job).waits, machine.JOBS[self.place(job)]
        return row.wait_s(waits) if row.wait_s is not None else waits.order_s

    def can(self, record: JobRecord | NodeRecord, trigger: JobTrigger | NodeTrigger) -> bool:
        """The table has a move for this trigger from where the record stands."""
        if isinstance(record, JobRecord):
            return trigger in machine.JOBS[self.place(record)].exits
        return trigger in machine.NODE[record.phase]

    # --- records ---

    def tell(self, record: JobRecord | NodeRecord | IncidentRecord, sentence: str) -> None:
        """Add a sentence to its story."""
        story.tell(record.story, self.now, sentence)
        self.changes.add(record)

    def tell_all(self, incident: IncidentRecord | None, record: JobRecord | NodeRecord, sentence: str) -> None:
        """The same sentence for a record and for the incident it belongs to, which names the subject."""
        self.tell(record, sentence)
        if incident is not None:
            name = record.name if isinstance(record, NodeRecord) else f"Job {record.name}"
            self.tell(incident, f"{name}: {sentence}")

    def move_job(self, job: JobRecord, trigger: JobTrigger) -> None:
        """Move by the table; `since` is when the state that is shown began."""
        place = machine.move(machine.JOB, self.place(job), trigger, story=tuple(job.story[-8:]))
        shown = machine.JOBS[place].shown
        if shown is not job.state:
            job.state, job.since = shown, self.now
        self.changes.add(job)

    def claim(self, job: JobRecord, what: machine.Claim, who: str = "") -> None:
        """Change who leads the job and what keeps it in the queue, by the table; `who`: whose hold begins."""
        rights = machine.AUTHORITY[what]
        if rights.leader is not None:
            job.authority = rights.leader
        if rights.in_queue is not None:
            job.in_queue = rights.in_queue
        if rights.held is not None:
            job.held_by = who if rights.held else ""

    def move_node(self, node: NodeRecord, trigger: NodeTrigger) -> None:
        """Move by the table; under `unknown` the hidden state moves until the node is heard again."""
        story_so_far = tuple(node.story[-8:])
        if trigger is NodeTrigger.SILENT:
            node.before_unknown = node.state
        if node.state is NodeState.UNKNOWN and not trigger.startswith("heard_"):
            node.before_unknown = machine.move(machine.NODE, node.before_unknown, trigger, story=story_so_far)
        else:
            node.state = machine.move(machine.NODE, node.state, trigger, story=story_so_far)
        node.since = self.now
        self.changes.add(node)

    def stamp(self, incident: IncidentRecord, mark: Mark, at: float | None = None) -> None:
        """Set a point of the timeline, once, or anew when the job's recovery has begun once more.

        `at` is the time on the seeing machine; it is kept between the phase before and now, so that skewed clocks
        never turn a timeline round.
        """
        if mark in incident.marks and mark not in _AGAIN:
            return
        when = self.now if at is None or at <= 0 else min(at, self.now)
        if mark in _JOB_PHASES:
            for earlier in _JOB_PHASES[: _JOB_PHASES.index(mark)]:
                when = max(when, incident.marks.get(earlier, when))
        incident.marks[mark] = when
        self.changes.add(incident)

    def finding(self, rule: str, about: str, summary: str, evidence: Evidence, **fields: Any) -> Finding:
        """Make a finding of what this event shows; `about` keeps its id apart from others of the rule."""
        fields.setdefault("id", f"{rule}:{about}:{self.state.seq}")
        fields.setdefault("fingerprint", rule)
        return Finding(rule=rule, at=self.event.at, role=Role.ROOT, summary=summary, evidence=(evidence,), **fields)

    # --- orders and people ---

    def order(
        self,
        kind: type[O],
        about: JobRecord | NodeRecord,
        incident: str = "",
        remedy: Remedy = Remedy.NONE,
        why: str = "",
        **fields: Any,
    ) -> O:
        """Make an order about a job, or about the machine of a node for the node's incident; it is not sent."""
        if isinstance(about, NodeRecord):
            incident = incident or about.incident
            fields |= {"node": about.name, "instance_id": about.instance_id}
        else:
            fields["job"] = about.key
        return self.outgoing.make(kind, incident=incident, remedy=remedy, why=why, **fields)

    def ask(self, order: AnyOrder, policy: Policy, group: str) -> OrderStatus:
        """Order, propose or merely record it, as the mode of its rung says."""
        mode = self.mode(policy, group, order.remedy, order.incident)
        if mode is Mode.ACT:
            self.orders.issue(order)
            return OrderStatus.PENDING
        if mode is Mode.OBSERVE:
            self.changes.add(OrderRecord(order, OrderStatus.OBSERVED, self.now, ended_at=self.now))
            self.would(order)
            return OrderStatus.OBSERVED
        self.propose(order, policy)
        return OrderStatus.PROPOSED

    def would(self, order: AnyOrder) -> None:
        """Write down and tell, once for each incident, what mode `observe` keeps from being done."""
        incident = self.state.incidents.get(order.incident)
        if incident is None:
            return
        key, node = getattr(order, "job", None), getattr(order, "node", "")
        job = self.job(key) if key is not None else None
        sentence = f"{job.name if job is not None else node} would have been {ladder.WOULD[order.remedy]}"
        if sentence in incident.would:
            return
        incident.would.append(sentence)
        self.tell(incident, f"{sentence} (observe).")
        planned = getattr(order, "repair", Remedy.NONE)
        after = f" Once it is drained it would have been {ladder.WOULD[planned]}." if planned is not Remedy.NONE else ""
        why = f"{order.why.rstrip('.')}. " if order.why else ""
        text = f"{why}Policy says observe, so nothing is done.{after}"
        self.notify(incident.id, Severity.WARNING, sentence, text, job=key, node=node)

    def propose(self, order: AnyOrder, policy: Policy) -> None:
        """Have a person decide, until it lapses."""
        self.orders.propose(order, policy.waits.propose_s)
        self.notify(
            order.incident,
            Severity.WARNING,
            f"Approve {order.id}?",
            f"{describe(order)}. It lapses in {story.seconds(policy.waits.propose_s)}.",
            job=getattr(order, "job", None),
            node=getattr(order, "node", ""),
        )

    def notify(
        self,
        topic: str,
        severity: Severity,
        title: str,
        text: str,
        *,
        job: JobKey | None = None,
        node: str = "",
    ) -> None:
        """Tell people."""
        self.orders.issue(
            self.outgoing.make(
                o.Notify, topic=topic, incident=topic, severity=severity, title=title, text=text, job=job, node=node
            )
        )


def describe(order: AnyOrder) -> str:
    """What an order would do, for a person: `Quarantine node07: Xid 74`."""
    kind = str(order.__struct_config__.tag).replace("_", " ")
    target = getattr(order, "node", "") or str(getattr(order, "job", "") or "")
    return f"{kind[0].upper()}{kind[1:]} {target}{': ' + order.why if order.why else ''}".strip()


def create_job(turn: Turn, view: JobView) -> JobRecord:
    """A job is seen for the first time."""
    job = JobRecord(key=view.key, view=view, since=turn.now)
    name = slug(view.key)
    turn.state.jobs[name] = job
    turn.index.by_id.setdefault(view.key.id, set()).add(name)
    turn.index.occupied(name, None, view)
    if turn.in_allocation:
        turn.claim(job, machine.Claim.ATTACHED)
    turn.changes.add(job)
    warn_of_job(turn, job, ())
    return job


def warn_of_job(turn: Turn, job: JobRecord, known: tuple[str, ...]) -> None:
    """Its owner meant something that is not understood: said once, or nobody learns of it before it is needed."""
    for words in job.view.warnings:
        if words not in known:
            turn.tell(job, f"{words[0].upper()}{words[1:]}.")
            title = f"{job.name}: asked for something that is not understood"
            turn.notify(job.about, Severity.WARNING, title, f"{words}.", job=job.key)


def add_attempt(turn: Turn, job: JobRecord, attempt: AttemptRecord) -> None:
    """Begin a new attempt; the list of attempts stays bounded."""
    job.attempts.append(attempt)
    if len(job.attempts) > ATTEMPTS_MAX:
        del job.attempts[0]
    for old in job.attempts[:-NODES_KEPT]:
        if len(old.nodes) > NODES_SMALL:
            old.nodes = ()  # its AttemptStarted holds them
    turn.changes.add(job)


def end_with_its_run(turn: Turn, job: JobRecord) -> None:
    """The run of its newest attempt is over, and the attempt with it, although nobody told of its end."""
    attempt = job.attempt
    if attempt is not None and not attempt.ended_at:
        attempt.ended_at, attempt.stopped = turn.now, True


def attempt_of(event: e.AttemptStarted) -> AttemptRecord:
    """The attempt as its start tells of it."""
    return AttemptRecord(
        number=event.attempt,
        epoch=event.epoch,
        restart_count=event.restart_count,
        in_place=event.in_place,
        nodes=event.nodes,
        ranks=event.ranks,
        standby=event.standby,
        log_dir=event.log_dir,
        started_at=event.at,
    )


def brake_limit(brake: Brake, record: BrakeRecord) -> int:
    """How many nodes of the group may be quarantined inside the window: the smaller of both limits, at least one."""
    share = int(record.nodes * brake.max_percent / 100.0)
    return max(1 if brake.max_nodes > 0 and brake.max_percent > 0 else 0, min(brake.max_nodes, share))


def prune_brake(brake: Brake, record: BrakeRecord, now: float) -> None:
    """Forget quarantines that have left the window."""
    start = now - brake.window_s
    if record.recent and record.recent[0] <= start:
        record.recent = [at for at in record.recent if at > start]


def brake_allows(brake: Brake, record: BrakeRecord, now: float) -> bool:
    """May one more node be quarantined now?"""
    prune_brake(brake, record, now)
    return not record.tripped_at and len(record.recent) < brake_limit(brake, record)


def brake_took(record: BrakeRecord, now: float) -> None:
    """One node was quarantined."""
    record.recent.append(now)


def brake_hold_back(record: BrakeRecord, node: str, now: float) -> bool:
    """Trip the brake (again) for this node. True when it was not tripped before."""
    if node not in record.waiting:
        record.waiting.append(node)
    first = not record.tripped_at
    if first:
        record.tripped_at = now
    return first


def reopen_brake(brake: Brake, record: BrakeRecord, now: float) -> list[str]:
    """The calm spell is over: which waiting nodes may be quarantined now. It closes when none is left waiting."""
    prune_brake(brake, record, now)
    room = max(0, brake_limit(brake, record) - len(record.recent))
    freed, record.waiting = record.waiting[:room], record.waiting[room:]
    if not record.waiting:
        record.tripped_at = 0.0
    return freed


def next_brake_look(brake: Brake, record: BrakeRecord, now: float) -> float:
    """Seconds until it is worth trying again."""
    if not record.waiting or len(record.recent) < brake_limit(brake, record) or not record.recent:
        return brake.calm_s
    return max(brake.calm_s, record.recent[0] + brake.window_s - now + ROUNDING_S)


def reset_brake_record(record: BrakeRecord) -> list[str]:
    """By hand: the window starts anew. Returns the nodes that waited."""
    freed = record.waiting
    record.waiting = []
    record.recent = []
    record.tripped_at = 0.0
    return freed


def charge(
    job: JobRecord,
    remedy: Remedy,
    diagnosis: Diagnosis | None,
    broke: Broke,
    nodes: Iterable[str] = (),
    *,
    attempt: AttemptRecord | None = None,
) -> None:
    """Count one restart of `attempt`, which broke there; `nodes`: to which it is charged as well."""
    if attempt is not None:
        job.charged = (attempt.restart_count, attempt.number)
    if remedy is Remedy.RESTART_IN_PLACE:
        job.in_place += 1
    else:
        job.requeues += 1
    if diagnosis is not None:
        name = ladder.fingerprint_of(diagnosis)
        job.spent[name] = ladder.times_answered(job, diagnosis, broke) + 1
        job.broke[name] = broke
    for node in nodes:
        job.spent[ladder.NODE_KEY + node] = job.spent.get(ladder.NODE_KEY + node, 0) + 1


def refund(job: JobRecord, diagnosis: Diagnosis | None, nodes: Iterable[str] = ()) -> None:
    """A restart in place that was charged never came about: what its attempt did counts as before."""
    job.in_place = max(0, job.in_place - 1)
    job.charged = (job.charged[0], job.charged[1] - 1)
    names = [ladder.NODE_KEY + node for node in nodes]
    if diagnosis is not None:
        names.append(ladder.fingerprint_of(diagnosis))
    for name in names:
        left = job.spent.get(name, 0) - 1
        if left > 0:
            job.spent[name] = left
        else:
            job.spent.pop(name, None)


def reset_budgets(job: JobRecord) -> bool:
    """Progress was made: forget all counts. True when there was something to forget."""
    had = bool(job.in_place or job.requeues or job.spent)
    job.in_place = 0
    job.requeues = 0
    job.rung = 0
    if job.spent:
        job.spent, job.broke = {}, {}
    return had


def brake_of(turn: Turn, group: str) -> BrakeRecord:
    """The brake of a group, made when it is first asked for."""
    record = turn.state.brakes.get(group)
    if record is None:
        record = turn.state.brakes[group] = BrakeRecord(group=group)
    return record


def count_nodes(turn: Turn, group: str, step: int) -> None:
    """Count a node of a group in or out."""
    record = brake_of(turn, group)
    record.nodes += step
    turn.changes.add(record)


def to_pass(job: JobRecord) -> int:
    """The step that a durable checkpoint must pass to be progress.

    It is the furthest durable step. When an attempt resumes before it (newer checkpoints are damaged, gone or
    mistrusted), the steps in between are lost, and progress counts from where that attempt resumed. A job that falls
    back to the same step once more, or behind it, must pass what it had regained: otherwise a crash that comes back at
    the same step would have new budgets each time.
    """
    return job.durable_step if job.fell_to is None else job.regained


def resumed_at(turn: Turn, job: JobRecord, step: int) -> None:
    """The current attempt goes on from this step: the job has fallen back when more had been durable."""
    lost = to_pass(job)
    if step < lost and (job.fell_to is None or step > job.fell_to):
        job.fell_to = job.regained = step
        job.durable_steps = [saved for saved in job.durable_steps if saved <= step]
        turn.tell(job, f"It fell back from step {lost} to step {step}: progress counts from there.")
    elif job.fell_to is not None:
        job.regained = max(job.regained, step)


def keep_durable(job: JobRecord, step: int, *, counts: bool) -> None:
    """Remember a durable step; `counts`: it is of an attempt since the job fell back."""
    if step > job.durable_step:
        job.durable_step = step
        if counts:
            job.fell_to = None
    if counts:
        job.regained = max(job.regained, step)
    if step not in job.durable_steps:
        job.durable_steps = sorted([*job.durable_steps, step])[-STEPS_KEPT:]

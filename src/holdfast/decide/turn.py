"""One turn of the engine: the event in hand, the state it meets, the orders and touched records that come of it.

`engine.handle` makes a Turn for each event and hands it to the flows (`jobs`, `recovery`, `nodes`, `repair`,
`operators`). A Turn issues orders (asking modes first), moves records by the tables, keeps timers, stamps marks and
tells stories. Ids are made of the event's sequence number, so a replay gives the same ids. The time is the event's.
"""

from __future__ import annotations

from typing import Any, TypeVar

from holdfast.decide import modes
from holdfast.decide import transitions as t
from holdfast.decide.state import Index, State, Waiting, subject
from holdfast.model import orders as o
from holdfast.model import story
from holdfast.model.cluster import JobKey, job_kind
from holdfast.model.events import AnyEvent
from holdfast.model.evidence import Remedy, Severity
from holdfast.model.orders import AnyOrder, OrderStatus
from holdfast.model.policy import Mode, Policy, PolicySet
from holdfast.model.records import (
    Authority,
    BrakeRecord,
    IncidentRecord,
    JobRecord,
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


class Turn:
    """See the module's docstring."""

    __slots__ = (
        "_count",
        "_prefix",
        "brakes",
        "cleaned",
        "closing",
        "event",
        "incidents",
        "index",
        "jobs",
        "nodes",
        "now",
        "orders",
        "policies",
        "records",
        "seq",
        "state",
    )

    def __init__(self, state: State, index: Index, policies: PolicySet, event: AnyEvent) -> None:
        self.state = state
        self.index = index
        self.policies = policies
        self.event = event
        self.seq = state.seq
        self.now = state.now
        self.orders: list[AnyOrder] = []
        self.jobs: dict[str, JobRecord] = {}
        self.nodes: dict[str, NodeRecord] = {}
        self.incidents: dict[str, IncidentRecord] = {}
        self.records: dict[str, OrderRecord] = {}
        self.brakes: dict[str, BrakeRecord] = {}
        self.closing: dict[str, IncidentRecord] = {}
        """Incidents of which a side was settled in this turn."""
        self.cleaned: list[str] = []
        """Nodes that came to count as clean in this turn."""
        self._count = 0
        self._prefix = "a" if state.scope == ALLOCATION else "c"

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
        return modes.mode_of(policy, self.state.modes, group, rung)

    def new_id(self) -> str:
        """An id that a replay gives again."""
        self._count += 1
        return f"{self._prefix}{self.seq}.{self._count}"

    # --- records ---

    def touch(self, record: JobRecord | NodeRecord | IncidentRecord) -> None:
        """It has changed: have it projected."""
        if isinstance(record, JobRecord):
            self.jobs[slug(record.key)] = record
        elif isinstance(record, NodeRecord):
            self.nodes[record.name] = record
        else:
            self.incidents[record.id] = record

    def tell(self, record: JobRecord | NodeRecord | IncidentRecord, sentence: str) -> None:
        """Add a sentence to its story."""
        story.tell(record.story, self.now, sentence)
        self.touch(record)

    def tell_all(self, incident: IncidentRecord | None, record: JobRecord | NodeRecord, sentence: str) -> None:
        """The same sentence for a record and for the incident it belongs to, which names the subject."""
        self.tell(record, sentence)
        if incident is not None:
            name = record.name if isinstance(record, NodeRecord) else f"Job {record.name}"
            self.tell(incident, f"{name}: {sentence}")

    def move_job(self, job: JobRecord, trigger: JobTrigger) -> None:
        """Move by the table."""
        job.state = t.move(t.JOB, job.state, trigger, story=tuple(job.story[-8:]))
        job.since = self.now
        self.touch(job)

    def move_node(self, node: NodeRecord, trigger: NodeTrigger) -> None:
        """Move by the table; under `unknown` the hidden state moves."""
        if node.state is NodeState.UNKNOWN:
            node.before_unknown = t.move(t.NODE, node.before_unknown, trigger, story=tuple(node.story[-8:]))
        else:
            node.state = t.move(t.NODE, node.state, trigger, story=tuple(node.story[-8:]))
        node.since = self.now
        self.touch(node)

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
        self.touch(incident)

    # --- orders ---

    def make(self, kind: type[O], **fields: Any) -> O:
        """An order with its id and cause."""
        return kind(id=self.new_id(), cause=self.seq, **fields)

    def issue(self, order: AnyOrder) -> AnyOrder:
        """Order it now."""
        record = OrderRecord(order, OrderStatus.PENDING, self.now)
        self.state.orders[order.id] = record
        self.index.orders_of.setdefault(subject(record), set()).add(order.id)
        self.records[order.id] = record
        self.orders.append(order)
        return order

    def ask(self, order: AnyOrder, policy: Policy, group: str) -> OrderStatus:
        """Order, propose or merely record it, as the mode of its rung says."""
        mode = self.mode(policy, group, order.remedy, order.incident)
        if mode is Mode.ACT:
            self.issue(order)
            return OrderStatus.PENDING
        if mode is Mode.OBSERVE:
            self.records[order.id] = OrderRecord(order, OrderStatus.OBSERVED, self.now, ended_at=self.now)
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
        sentence = f"{job.name if job is not None else node} would have been {modes.WOULD[order.remedy]}"
        if sentence in incident.would:
            return
        incident.would.append(sentence)
        self.tell(incident, f"{sentence} (observe).")
        planned = getattr(order, "repair", Remedy.NONE)
        after = f" Once it is drained it would have been {modes.WOULD[planned]}." if planned is not Remedy.NONE else ""
        why = f"{order.why.rstrip('.')}. " if order.why else ""
        text = f"{why}Policy says observe, so nothing is done.{after}"
        self.notify(incident.id, Severity.WARNING, sentence, text, job=key, node=node)

    def propose(self, order: AnyOrder, policy: Policy) -> None:
        """Have a person decide, until it lapses."""
        record = OrderRecord(order, OrderStatus.PROPOSED, self.now, expires_at=self.now + policy.waits.propose_s)
        self.state.orders[order.id] = record
        self.index.orders_of.setdefault(subject(record), set()).add(order.id)
        self.records[order.id] = record
        self.start_timer(f"propose:{order.id}", policy.waits.propose_s, incident=order.incident)
        self.notify(
            order.incident,
            Severity.WARNING,
            f"Approve {order.id}?",
            f"{describe(order)}. It lapses in {story.seconds(policy.waits.propose_s)}.",
            job=getattr(order, "job", None),
            node=getattr(order, "node", ""),
        )

    def settle(self, order_id: str, status: OrderStatus, detail: str = "") -> OrderRecord | None:
        """An order's end; None when it is not open (unknown, or ended before)."""
        record = self.state.orders.pop(order_id, None)
        if record is None:
            return None
        about = subject(record)
        ids = self.index.orders_of.get(about)
        if ids is not None:
            ids.discard(order_id)
            if not ids:
                del self.index.orders_of[about]
        if record.status is OrderStatus.PROPOSED:
            self.cancel_timer(f"propose:{order_id}")
        self.cancel_timer(f"order:{order_id}")
        record.status = status
        record.ended_at = self.now
        record.detail = detail[:500]
        self.records[order_id] = record
        return record

    def open_orders(self, about: str, *kinds: type[o.Order]) -> list[OrderRecord]:
        """Pending and proposed orders about a job (slug) or node (`node:NAME`), oldest first; notices are no deeds."""
        ids = self.index.orders_of.get(about)
        if not ids:
            return []
        found = [self.state.orders[i] for i in ids]
        if kinds:
            found = [record for record in found if isinstance(record.order, kinds)]
        else:
            found = [record for record in found if not isinstance(record.order, o.Notify)]
        return sorted(found, key=lambda record: (record.order.cause, record.order.id))

    def under_way(self, about: str, *kinds: type[o.Order]) -> bool:
        """Is one of these ordered, and not merely proposed?"""
        return any(record.status is OrderStatus.PENDING for record in self.open_orders(about, *kinds))

    def withdraw(self, about: str, why: str, *kinds: type[o.Order]) -> None:
        """Take back open orders (all but notices, or only those kinds)."""
        for record in self.open_orders(about, *kinds):
            self.settle(record.order.id, OrderStatus.WITHDRAWN, why)

    def complete(self, about: str, detail: str, *kinds: type[o.Order]) -> None:
        """What these pending orders asked for is there; proposed ones have become pointless."""
        for record in self.open_orders(about, *kinds):
            done = record.status is OrderStatus.PENDING
            self.settle(record.order.id, OrderStatus.DONE if done else OrderStatus.WITHDRAWN, detail)

    # --- timers ---

    def start_timer(self, name: str, after_s: float, incident: str = "") -> None:
        """Have `TimerFired` sent; a timer of the same name is replaced."""
        order = self.make(o.StartTimer, timer=name, after_s=after_s, incident=incident)
        self.state.timers[name] = Waiting(order, self.now + after_s)
        self.orders.append(order)

    def cancel_timer(self, name: str) -> None:
        """Forget a timer, if it waits."""
        waiting = self.state.timers.pop(name, None)
        if waiting is not None:
            self.orders.append(self.make(o.CancelTimer, timer=name, incident=waiting.order.incident))

    # --- people ---

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
        self.issue(
            self.make(
                o.Notify, topic=topic, incident=topic, severity=severity, title=title, text=text, job=job, node=node
            )
        )

    def touched(self) -> Touched:
        """What this turn changed."""
        return Touched(
            jobs=list(self.jobs.values()),
            nodes=list(self.nodes.values()),
            incidents=list(self.incidents.values()),
            orders=list(self.records.values()),
            brakes=list(self.brakes.values()),
        )


def describe(order: AnyOrder) -> str:
    """What an order would do, for a person: `Quarantine node07: Xid 74`."""
    kind = str(order.__struct_config__.tag).replace("_", " ")
    target = getattr(order, "node", "") or str(getattr(order, "job", "") or "")
    return f"{kind[0].upper()}{kind[1:]} {target}{': ' + order.why if order.why else ''}".strip()

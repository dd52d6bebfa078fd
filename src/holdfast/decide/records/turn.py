"""One turn of the engine: the event in hand, the orders that come of it, and the records that it changes.

`engine.handle` makes a Turn for each event and hands it to the flows. A Turn asks modes before it orders, moves records
by the tables, stamps marks and tells stories. It holds what goes out (`Outgoing`), the timers, the open orders and the
changed records. The time is the event's.
"""

from __future__ import annotations

from typing import Any, TypeVar

from holdfast.decide import ladder, machine
from holdfast.decide.state import Index, State, Waiting, subject
from holdfast.model import orders as o
from holdfast.model import story
from holdfast.model.cluster import JobKey, job_kind
from holdfast.model.events import AnyEvent
from holdfast.model.evidence import Evidence, Finding, Remedy, Role, Severity
from holdfast.model.orders import AnyOrder, OrderStatus
from holdfast.model.policy import Mode, Policy, PolicySet, Trust
from holdfast.model.records import (
    JOB_MARKS,
    Approval,
    Authority,
    BrakeRecord,
    IncidentRecord,
    JobRecord,
    JobState,
    JobTrigger,
    Mark,
    NodeRecord,
    NodeState,
    NodeTrigger,
    Observed,
    OrderRecord,
    Touched,
    slug,
)

ALLOCATION = "allocation"
CLUSTER = "cluster"
_AGAIN = frozenset(JOB_MARKS[JOB_MARKS.index(Mark.STOPPED) :])
"""Marks that a recurrence within the same incident stamps anew."""
TIMER_SLACK_S = 0.05
"""A timer that fires this much early counts as due: clocks and event loops round differently."""
AnyRecord = JobRecord | NodeRecord | IncidentRecord | OrderRecord | BrakeRecord
O = TypeVar("O", bound=o.Order)  # noqa: E741 - O for order


class Changes:
    """Records that the event changed, each once, in the order in which they changed first."""

    __slots__ = ("_records",)

    def __init__(self) -> None:
        self._records: dict[int, AnyRecord] = {}

    def add(self, record: AnyRecord) -> None:
        """Have the record projected."""
        self._records[id(record)] = record

    def touched(self) -> Touched:
        """List the records by kind."""
        records = self._records.values()
        return Touched(
            jobs=[record for record in records if isinstance(record, JobRecord)],
            nodes=[record for record in records if isinstance(record, NodeRecord)],
            incidents=[record for record in records if isinstance(record, IncidentRecord)],
            orders=[record for record in records if isinstance(record, OrderRecord)],
            brakes=[record for record in records if isinstance(record, BrakeRecord)],
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

    def propose(self, order: AnyOrder, wait_s: float, *, approvals: int = 1, waits_for: str = "") -> None:
        """Keep the order for so many people to approve; it lapses after `wait_s`. `waits_for`: see the record."""
        now = self._state.now
        self._add(
            OrderRecord(
                order,
                OrderStatus.PROPOSED,
                now,
                expires_at=now + wait_s,
                waits_for=waits_for,
                approvals_needed=approvals,
            )
        )
        self._timers.start(f"propose:{order.id}", wait_s, incident=order.incident)

    def _add(self, record: OrderRecord) -> None:
        self._state.orders[record.order.id] = record
        self._index.orders_of.setdefault(subject(record.order), set()).add(record.order.id)
        self._changes.add(record)

    def approve(self, record: OrderRecord, who: str) -> None:
        """Order what was proposed; what it remedies needs no further approval for its incident."""
        self._timers.cancel(f"propose:{record.order.id}")
        waited_for_brake = record.is_approved and not record.expires_at
        record.status, record.issued_at, record.expires_at = OrderStatus.PENDING, self._state.now, 0.0
        record.detail = f"approved by {who}"
        if record.order.incident:
            self._state.approved.setdefault(record.order.incident, []).append(record.order.remedy)
        self._let_go(record)
        record.waits_for = "" if waited_for_brake else record.waits_for
        self._changes.add(record)
        self._outgoing.orders.append(record.order)

    def agree(self, record: OrderRecord, approvals: list[Approval]) -> None:
        """These people have approved it so far."""
        record.approvals = approvals
        self._changes.add(record)

    def wait_on(self, record: OrderRecord, waits_for: str, wait_s: float = 0.0) -> None:
        """Keep it proposed because of this; it lapses after `wait_s`, and never when that is 0."""
        self._timers.cancel(f"propose:{record.order.id}")
        record.waits_for, record.expires_at = waits_for, self._state.now + wait_s if wait_s else 0.0
        if wait_s:
            self._timers.start(f"propose:{record.order.id}", wait_s, incident=record.order.incident)
        self._changes.add(record)

    def retry(self, record: OrderRecord, why: str, after_s: float) -> None:
        """Try it again later, with the same id, so that it has its effect once."""
        record.detail = why[:500]
        self._changes.add(record)
        self._timers.start(f"order:{record.order.id}", after_s, record.order.incident)

    def settle(self, order_id: str, status: OrderStatus, detail: str = "") -> OrderRecord | None:
        """End an order; None when it is not open (unknown, or ended before)."""
        record = self._state.orders.pop(order_id, None)
        if record is None:
            return None
        about = subject(record.order)
        ids = self._index.orders_of.get(about)
        if ids is not None:
            ids.discard(order_id)
            if not ids:
                del self._index.orders_of[about]
        if record.status is OrderStatus.PROPOSED:
            self._timers.cancel(f"propose:{order_id}")
            self._let_go(record)
        self._timers.cancel(f"order:{order_id}")
        record.status = status
        record.ended_at = self._state.now
        record.detail = detail[:500]
        self._changes.add(record)
        return record

    def _let_go(self, record: OrderRecord) -> None:
        """No reporter's brake holds it any more."""
        for brake in self._state.brakes.values() if record.waits_for else ():
            for rested in brake.reporters.values():
                if record.order.id in rested.held:
                    rested.held.remove(record.order.id)
                    self._changes.add(brake)

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
        "unfenced",
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
        self.unfenced: list[str] = []
        """Nodes that the scheduler may still give out, as it shows in this turn, although they count as bad."""

    # --- facts ---

    @property
    def said_at(self) -> float:
        """When the event was, by the clock of whoever tells of it; never later than now."""
        return min(self.event.at or self.now, self.now)

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

    def trust_in(self, group: str) -> Trust:
        """What may rest on one reporter's word in this group: the site's say, whatever policy a job asks for."""
        return self.policies.for_group(group).trust

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
        self.changes.add(job)

    def move_node(self, node: NodeRecord, trigger: NodeTrigger) -> None:
        """Move by the table; under `unknown` the hidden state moves until the node is heard again."""
        story_so_far = tuple(node.story[-8:])
        if trigger is NodeTrigger.SILENT:
            node.before_unknown = node.state
        if node.state is NodeState.UNKNOWN and not trigger.startswith("heard_"):
            node.before_unknown = machine.move(machine.NODE, node.before_unknown, trigger, story=story_so_far)
        else:
            node.state = machine.move(machine.NODE, node.state, trigger, story=story_so_far)
        if node.phase is not NodeState.SUSPECT and node.name in self.state.fence_failed:
            self.state.fence_failed.remove(node.name)
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
        if mark in JOB_MARKS:
            for earlier in JOB_MARKS[: JOB_MARKS.index(mark)]:
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
        self.propose(order, policy, group)
        return OrderStatus.PROPOSED

    def would(self, order: AnyOrder) -> None:
        """Write down and tell, once for each incident, what mode `observe` keeps from being done."""
        incident = self.state.incidents.get(order.incident)
        if incident is None:
            return
        key, node = getattr(order, "job", None), getattr(order, "node", "")
        job = self.job(key) if key is not None else None
        if (what := Observed(subject(order), order.remedy)) in incident.observed:
            return
        sentence = f"{job.name if job is not None else node} would have been {ladder.WOULD[order.remedy]}"
        incident.observed.append(what)
        incident.would.append(sentence)
        self.tell(incident, f"{sentence} (observe).")
        planned = getattr(order, "repair", Remedy.NONE)
        after = f" Once it is drained it would have been {ladder.WOULD[planned]}." if planned is not Remedy.NONE else ""
        why = f"{order.why.rstrip('.')}. " if order.why else ""
        text = f"{why}Policy says observe, so nothing is done.{after}"
        self.notify(incident.id, Severity.WARNING, sentence, text, job=key, node=node)

    def propose(self, order: AnyOrder, policy: Policy, group: str, *, wait_s: float = 0.0, waits_for: str = "") -> None:
        """Have people decide, until it lapses: after `wait_s` where that is longer than policy's time for it."""
        wait_s = max(policy.waits.propose_s, wait_s)
        needed = self.trust_in(group).approvals
        self.orders.propose(order, wait_s, approvals=needed, waits_for=waits_for)
        because = f" It waits: {waits_for}." if waits_for else ""
        people = f" It takes {needed} different people." if needed > 1 else ""
        self.notify(
            order.incident,
            Severity.WARNING,
            f"Approve {order.id}?",
            f"{describe(order)}.{because}{people} It lapses in {story.seconds(wait_s)}.",
            job=getattr(order, "job", None),
            node=getattr(order, "node", ""),
            asks=True,
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
        asks: bool = False,
    ) -> None:
        """Tell people; `asks`: one of them must act."""
        about = {"job": job, "node": node, "asks": asks}
        self.orders.issue(
            self.outgoing.make(
                o.Notify, topic=topic, incident=topic, severity=severity, title=title, text=text, **about
            )
        )


def describe(order: AnyOrder) -> str:
    """What an order would do, for a person: `Quarantine node07: Xid 74`."""
    kind = str(order.__struct_config__.tag).replace("_", " ")
    target = getattr(order, "node", "") or str(getattr(order, "job", "") or "")
    return f"{kind[0].upper()}{kind[1:]} {target}{': ' + order.why if order.why else ''}".strip()

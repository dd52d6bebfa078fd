"""What another policy would have done with a recorded history: the real engine, given the recorded events once more.

`cli/simulate_replay.py` calls `replay` with a journal's entries. Everything that was seen (findings, views, launchers'
words, people's words) is handed over as it was. What answers an order is not: an order that the recorded engine gave
too gets the outcome that it had; one that it did not give is assumed to work after as long as orders of its kind took
in this history, because nothing can tell what the world would have done. Lines that rest on such a guess say so.
How time passes: by the recorded events; the engine's own timers fire in between, when they are due.
"""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any, Protocol

from msgspec import Struct, structs

from holdfast.decide.engine import Engine
from holdfast.model import events as e
from holdfast.model import orders as o
from holdfast.model.orders import AnyOrder, OrderStatus
from holdfast.model.policy import PolicySet
from holdfast.model.records import IncidentRecord, OrderRecord
from holdfast.model.wire import kind_of
from holdfast.ports import Entry
from holdfast.report.gather import Records

ALL = 10**9
OWN = (o.StartTimer, o.CancelTimer, o.Notify)
"""Orders that do nothing to the world."""
PAIR_S = 600.0
"""The same order given by both within this time is the same deed."""
LATE_S = 0.5
"""A timer of the same name that fired in the recorded history is waited for so long: clocks and loops have their own
order of things, and the same policy must give the same account."""
ASSUMED = "assumed"
"""Source of events that nobody has recorded."""
USUAL_S = 1.0
"""How long an order takes of which this history has no example."""

_BY_ID = frozenset({"settle", "order", "propose"})
"""Kinds of timers that are named after an incident or an order."""

Key = tuple[str, str]


class Told(Struct, kw_only=True):
    """What one engine did in this history."""

    incidents: list[IncidentRecord]
    orders: list[OrderRecord]
    assumed: frozenset[str] = frozenset()
    """Orders that came after a guessed outcome in their incident."""


class Replayed(Struct, kw_only=True):
    """What the engine makes of a recorded history under another policy."""

    told: Told
    events: int
    first_at: float
    last_at: float
    complete: bool
    """False: the journal has dropped its oldest events, so the engine began without knowing what was before."""


class Recorded(Records, Protocol):
    """A journal read directly, which also holds what each event led to."""

    async def entries(self, *, after: int = 0) -> list[Entry]:
        """See `ports.Journal.entries`."""


async def recorded_in(journal: Recorded) -> tuple[list[Entry], Told]:
    """Everything that a journal holds: its events with their orders, oldest first, and what the engine did then."""
    entries: list[Entry] = []
    while page := await journal.entries(after=entries[-1].event.seq if entries else 0):
        entries += page
    return entries, Told(incidents=await journal.incidents(limit=ALL), orders=await journal.orders(limit=ALL))


def key_of(order: AnyOrder) -> Key:
    """What an order does, and to whom: the same for the same deed of two engines."""
    about = getattr(order, "node", "") or str(getattr(order, "job", ""))
    return kind_of(order), about


def replay(
    entries: Sequence[Entry],
    policies: PolicySet,
    *,
    recorded: Iterable[OrderRecord] = (),
    scope: str = "",
    presets: Mapping[str, str] | None = None,
) -> Replayed:
    """Hand recorded entries to an engine with these policies.

    Args:
        entries: the journal's events with the orders that they led to, oldest first.
        policies: the other policy.
        recorded: the journal's orders; people's answers to proposals are found by them.
        scope: whose journal it is; empty: as it says itself.
        presets: texts of presets, as for the engine.

    Raises:
        EngineError: the engine cannot take a recorded event (a bug).
    """
    shadow = _Shadow(Engine(policies, scope=scope or scope_of(entries), presets=presets), _usual(entries))
    shadow.proposals = {record.order.id: key_of(record.order) for record in recorded}
    for entry in entries:
        shadow.take(entry)
    first = entries[0].event if entries else None
    return Replayed(
        told=Told(
            incidents=list(shadow.incidents.values()),
            orders=list(shadow.records.values()),
            assumed=frozenset(shadow.assumed),
        ),
        events=len(entries),
        first_at=_time(first) if first is not None else 0.0,
        last_at=_time(entries[-1].event) if entries else 0.0,
        complete=first is None or first.seq == 1,
    )


def scope_of(entries: Iterable[Entry]) -> str:
    """`cluster` or `allocation`: whose journal this is."""
    starts = (entry.event.scope for entry in entries if isinstance(entry.event, e.ControllerStarted))
    return next(starts, "cluster")


def _time(event: e.AnyEvent) -> float:
    return event.received_at or event.at


def _usual(entries: Sequence[Entry]) -> dict[str, float]:
    """Kind of order -> median seconds from order to outcome in this history."""
    given: dict[str, tuple[str, float]] = {}
    took: defaultdict[str, list[float]] = defaultdict(list)
    for entry in entries:
        now = _time(entry.event)
        for order in entry.orders:
            given.setdefault(order.id, (kind_of(order), now))
        if isinstance(entry.event, e.OrderDone) and entry.event.order in given:
            kind, at = given[entry.event.order]
            took[kind].append(now - at)
    return {kind: median(values) for kind, values in took.items()}


class _Shadow:
    """The engine under the new policy, and what is known of its orders."""

    def __init__(self, engine: Engine, usual: dict[str, float]) -> None:
        self.engine = engine
        self.records: dict[str, OrderRecord] = {}
        self.incidents: dict[str, IncidentRecord] = {}
        self.assumed: set[str] = set()
        self.proposals: dict[str, Key] = {}
        """Recorded orders, by id."""
        self._guessed: set[str] = set()
        """Incidents of which an outcome had to be guessed."""
        self._usual = usual
        self._seq = 0
        self._counter = itertools.count()
        self._now = 0.0
        self._timers: dict[str, float] = {}
        self._due: list[tuple[float, int, e.AnyEvent, str]] = []
        """Outcomes that are to come: time, number, event, own order."""
        self._open: defaultdict[Key, deque[tuple[str, float]]] = defaultdict(deque)
        """Own orders that the recorded engine has not given yet."""
        self._recorded: defaultdict[Key, deque[tuple[str, float]]] = defaultdict(deque)
        """Recorded orders that the own engine has not given yet."""
        self._own: dict[str, str] = {}
        """Recorded order -> own order."""
        self._outcomes: dict[str, tuple[e.OrderDone | e.OrderFailed, float]] = {}
        """Recorded order -> its outcome and how long it took."""
        self._given_at: dict[str, float] = {}
        """Recorded order -> when it was given."""
        self._machines: dict[tuple[str, str], str] = {}
        """Node and its recorded machine -> the one that is assumed to have taken its place."""
        self._issued: set[str] = set()
        """Own orders. Both engines name orders alike, so the two are never looked up in one table."""

    def take(self, entry: Entry) -> None:
        """One recorded event, and the orders that it led to then."""
        now = _time(entry.event)
        self._go_on_until(now)
        event = self._translated(entry.event, now)
        if event is not None:
            self._handle(event, now)
        for order in entry.orders:
            if not isinstance(order, OWN) and order.id not in self._given_at:
                self._given_at[order.id] = now
                self._pair(order, now)

    # --- time ---

    def _go_on_until(self, now: float) -> None:
        """Timers and outcomes that are due before the next recorded event."""
        while True:
            timer = min(self._timers, key=lambda name: (self._timers[name], name), default="")
            timer_at = self._timers.get(timer, now)
            outcome_at = self._due[0][0] if self._due else now + 1.0
            ripe = bool(timer) and timer_at + LATE_S <= now
            if not ripe and outcome_at > now:
                return
            if not ripe or outcome_at <= timer_at:
                at, _, event, own = heapq.heappop(self._due)
                if own in self.records:
                    self._guessed.add(self.records[own].order.incident)
                self._handle(event, max(at, self._now))
            else:
                del self._timers[timer]
                self._handle(e.TimerFired(id="", at=timer_at, timer=timer), max(timer_at, self._now))

    def _handle(self, event: e.AnyEvent, now: float) -> None:
        if isinstance(event, e.AgentAttached) and event.source == ASSUMED and event.instance_id:
            before = self.engine.state.nodes.get(event.node)
            if before is not None:
                self._machines[event.node, before.instance_id] = event.instance_id
        self._seq += 1
        self._now = max(self._now, now)
        fields: dict[str, Any] = {"seq": self._seq, "received_at": self._now}
        orders = self.engine.handle(structs.replace(event, **fields))
        touched = self.engine.touched()
        for incident in touched.incidents:
            self.incidents[incident.id] = incident
        for record in touched.orders:
            if not isinstance(record.order, OWN) and record.order.id not in self.records:
                self.records[record.order.id] = record
                if record.order.incident in self._guessed:
                    self.assumed.add(record.order.id)
        for order in orders:
            if isinstance(order, o.StartTimer):
                self._timers[order.timer] = self._now + order.after_s
            elif isinstance(order, o.CancelTimer):
                self._timers.pop(order.timer, None)
            elif not isinstance(order, o.Notify) and order.id not in self._issued:
                self._issued.add(order.id)
                self._issue(order)

    # --- orders ---

    def _issue(self, order: AnyOrder) -> None:
        """An order of the own engine: find its like among the recorded ones, else guess its outcome."""
        key = key_of(order)
        waiting = self._recorded[key]
        while waiting and self._now - waiting[0][1] > PAIR_S:
            waiting.popleft()
        if waiting:
            recorded, _ = waiting.popleft()
            self._own[recorded] = order.id
            known = self._outcomes.get(recorded)
            if known is not None:
                self._later(known[1], structs.replace(known[0], order=order.id), "")
            return
        self._open[key].append((order.id, self._now))
        for event in _imagined(order, self._seq):
            self._later(self._usual.get(key[0], USUAL_S), event, order.id)

    def _pair(self, recorded: AnyOrder, now: float) -> None:
        """A recorded order: find its like among the own ones that wait."""
        key = key_of(recorded)
        waiting = self._open[key]
        while waiting:
            own, at = waiting.popleft()
            record = self.records.get(own)
            if now - at <= PAIR_S and record is not None and record.status is OrderStatus.PENDING:
                self._own[recorded.id] = own
                self._due = [one for one in self._due if one[3] != own]
                heapq.heapify(self._due)
                return
        self._recorded[key].append((recorded.id, now))

    def _later(self, after_s: float, event: e.AnyEvent, own: str) -> None:
        heapq.heappush(self._due, (self._now + after_s, next(self._counter), event, own))

    # --- events ---

    def _translated(self, event: e.AnyEvent, now: float) -> e.AnyEvent | None:
        """The recorded event as the own engine must see it; None: it is an answer to what the other engine did."""
        match event:
            case e.OrderDone() | e.OrderFailed():
                self._outcomes[event.order] = (event, now - self._given_at.get(event.order, now))
                own = self._own.get(event.order)
                return structs.replace(event, order=own) if own is not None else None
            case e.TimerFired():
                timer = self._timer_like(event.timer, now)
                return structs.replace(event, timer=timer) if timer else None
            case e.PolicyLoaded():
                return None
            case e.OperatorCommand() if event.order:
                proposed = self._proposed(self.proposals.get(event.order))
                return structs.replace(event, order=proposed) if proposed else None
            case e.NodeObserved():
                machine = self._machines.get((event.node.name, event.node.instance_id))
                view = structs.replace(event.node, instance_id=machine, boot_id=machine) if machine else event.node
                return structs.replace(event, node=view)
            case _:
                return event

    def _timer_like(self, name: str, now: float) -> str:
        """The own timer that is due by now and waits for the same; ids in names differ between engines."""
        kind = name.partition(":")[0]
        like = [name] if kind not in _BY_ID else [own for own in self._timers if own.partition(":")[0] == kind]
        ripe = [own for own in like if self._timers.get(own, now + 1.0) <= now]
        found = min(ripe, key=lambda own: (self._timers[own], own), default="")
        self._timers.pop(found, None)
        return found

    def _proposed(self, key: Key | None) -> str:
        """The own proposal of the same deed; empty: there is none."""
        found = (record.order for record in self.engine.proposed_orders())
        return next((order.id for order in found if key_of(order) == key), "")


def _imagined(order: AnyOrder, seq: int) -> list[e.AnyEvent]:
    """What would come of an order if it worked."""
    base: dict[str, Any] = {"id": f"assumed:{order.id}", "at": 0.0, "source": ASSUMED}
    done = e.OrderDone(**base, order=order.id, detail="assumed")
    match order:
        case o.StopAttempt():
            stopped = e.AttemptEnded(**base, job=order.job, attempt=order.attempt, signal=9, stopped=True)
            return [stopped, done]
        case o.ValidateNode():
            passed = e.NodeValidated(**base, node=order.node, passed=True, instance_id=order.instance_id)
            return [passed, done]
        case o.RebootNode():
            return [e.AgentAttached(**base, node=order.node, boot_id=f"assumed-boot-{seq}"), done]
        case o.ReplaceNode():
            machine = f"assumed-machine-{seq}"
            return [e.AgentAttached(**base, node=order.node, boot_id=machine, instance_id=machine), done]
        case _:
            return [done]

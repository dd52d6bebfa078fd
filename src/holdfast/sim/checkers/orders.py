"""Orders: each has one cause and one effect, and in the end each has an outcome."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from holdfast.model import events as e
from holdfast.model import orders as o
from holdfast.model.cluster import JobKey
from holdfast.model.orders import AnyOrder, OrderStatus
from holdfast.model.wire import kind_of
from holdfast.sim.history import PERSON, Held, History, OrderTook, Resumed, RunBegan, Step

OWN = (o.StartTimer, o.CancelTimer, o.Notify)
"""Orders that do nothing to the world."""
_AGAINST_NODES = (o.QuarantineNode, o.ResetGpu, o.RebootNode, o.ReplaceNode, o.RetireNode)
_UNSEEN_S = 6.0
"""A command takes 5 s, and the look that it was decided on may be a second old."""
_AGAINST_JOBS = (o.RequeueHeld, o.GiveUp, o.StopAttempt, o.RestartInPlace, o.SaveAndStop)


def first_given(history: History) -> dict[str, tuple[AnyOrder, e.AnyEvent]]:
    """Order id -> the order and the event that led to it; orders that only concern the engine itself are left out."""
    found: dict[str, tuple[AnyOrder, e.AnyEvent]] = {}
    for step in history.steps:
        for order in step.orders:
            if not isinstance(order, OWN):
                found.setdefault(order.id, (order, step.event))
    return found


def is_refused(step: Step) -> bool:
    """Was a person's command answered with a refusal (a notice on its own topic), or a requeue with nothing?"""
    event = step.event
    if not isinstance(event, e.OperatorCommand):
        return False
    topic = f"command:{event.id}"
    refused = any(isinstance(order, o.Notify) and order.topic == topic for order in step.orders)
    return refused or (event.command is e.Command.REQUEUE and not step.orders)


# --- once -------------------------------------------------------------------------------------------------------------


def no_order_twice(history: History) -> Iterator[str]:
    """One order id, one order, one outcome, one effect; and no job is requeued twice for one run of it."""
    yield from _given_once(history)
    yield from _one_outcome(history)
    yield from _one_effect(history)
    yield from _requeued_once(history)


def _given_once(history: History) -> Iterator[str]:
    known: dict[str, AnyOrder] = {}
    over: set[str] = set()
    for step in history.steps:
        event = step.event
        for order in step.orders:
            before = known.setdefault(order.id, order)
            if before != order:
                yield f"event {event.seq} gives {kind_of(order)} the id {order.id} of another order"
            elif order.id in over:
                yield f"event {event.seq} gives {kind_of(order)} {order.id} again after its outcome"
        if isinstance(event, e.OrderDone) or (isinstance(event, e.OrderFailed) and event.permanent):
            over.add(event.order)


def _one_outcome(history: History) -> Iterator[str]:
    given = {order.id for step in history.steps for order in step.orders}
    done: Counter[str] = Counter()
    failed: set[str] = set()
    for step in history.steps:
        event = step.event
        if isinstance(event, e.OrderDone):
            done[event.order] += 1
            if event.order not in given:
                yield f"order {event.order} is done (event {event.seq}), and nobody gave it"
        elif isinstance(event, e.OrderFailed) and event.permanent:
            failed.add(event.order)
    for name, number in done.items():
        if number > 1:
            yield f"order {name} was done {number} times"
        if name in failed:
            yield f"order {name} has failed and is done"


def _one_effect(history: History) -> Iterator[str]:
    """An order changes the world once.

    What sets something (a job's excluded nodes) may set it anew after an older order's command, withdrawn and hung for
    minutes, has set it otherwise: that is no second effect, but the first one kept. What one call does in one moment (a
    node is drained and handed to a person) is one effect. A release or a drain whose answer was lost is tried again,
    which undoes what a person did meanwhile and nobody can know yet: no scheduler says whose hold it is, or who lifted
    a drain.
    """
    times: Counter[str] = Counter()
    newest: dict[JobKey, str] = {}
    took_at: dict[str, float] = {}
    undone_at: dict[JobKey | str | None, float] = {}
    for deed in history.deeds:
        if isinstance(deed, Held):
            undone_at[deed.job] = deed.at
        elif isinstance(deed, Resumed) and deed.by.startswith(PERSON):
            undone_at[deed.node] = deed.at
        if not isinstance(deed, OrderTook) or took_at.get(deed.order) == deed.at:
            continue
        before, took_at[deed.order] = took_at.get(deed.order), deed.at
        undone = undone_at.get({"release_job": deed.job, "quarantine_node": deed.node}.get(deed.kind))
        if undone is not None and before is not None and before < undone and deed.at - undone <= _UNSEEN_S:
            continue
        if deed.kind == "set_excluded" and deed.job is not None:
            if newest.get(deed.job) != deed.order:
                times[deed.order] = 0
            newest[deed.job] = deed.order
        times[deed.order] += 1
    for name, number in times.items():
        if number > 1:
            yield f"order {name} had its effect {number} times"


def _requeued_once(history: History) -> Iterator[str]:
    """Between two requeues of a job it was released or ran; otherwise one fault was answered twice."""
    open_since: dict[JobKey, str] = {}
    for deed in history.deeds:
        if isinstance(deed, RunBegan):
            open_since.pop(deed.job, None)
        elif isinstance(deed, OrderTook) and deed.job is not None:
            if deed.kind == "release_job":
                open_since.pop(deed.job, None)
            elif deed.kind == "requeue_held":
                before = open_since.get(deed.job)
                if before is not None:
                    yield f"job {deed.job} was requeued by {before} and, without having run, again by {deed.order}"
                open_since[deed.job] = deed.order


# --- because ----------------------------------------------------------------------------------------------------------


def every_order_has_a_cause(history: History) -> Iterator[str]:
    """Each order names the event that led to it, rests on evidence that is stored, and came before its effect."""
    seen: set[str] = set()
    spoken: set[str] = set()
    """Nodes against which something was said."""
    approved: set[str] = set()
    """Proposals that people approved; a brake may hold them back for a while."""
    incidents = {incident.id: incident for incident in history.incidents}
    for step in history.steps:
        spoken |= _spoken_of(step.event)
        if isinstance(step.event, e.OperatorCommand) and step.event.command is e.Command.APPROVE:
            approved.add(step.event.order)
        for order in step.orders:
            if order.id in seen:
                continue
            seen.add(order.id)
            if order.cause != step.event.seq and order.id not in approved:
                yield f"{kind_of(order)} {order.id} names event {order.cause} as its cause, not event {step.event.seq}"
            if isinstance(order, OWN):
                continue
            incident = incidents.get(order.incident)
            if order.incident and incident is None:
                yield f"{kind_of(order)} {order.id} belongs to {order.incident}, which is no incident"
            if isinstance(order, _AGAINST_NODES) and order.node not in spoken:
                yield f"{kind_of(order)} {order.id} is against {order.node}, of which nobody said anything"
            asked = isinstance(step.event, e.OperatorCommand | e.LauncherLapsed)  # a person, or the job's own launcher
            if isinstance(order, _AGAINST_JOBS) and not asked:
                if incident is None or order.job not in incident.jobs:
                    yield f"{kind_of(order)} {order.id} is against job {order.job}, and no incident is about it"
                elif not incident.findings:
                    yield f"{kind_of(order)} {order.id}: {incident.id} has no evidence"
    yield from _effects_have_orders(history)


def _spoken_of(event: e.AnyEvent) -> set[str]:
    """Nodes about which this event says something that may count against them."""
    match event:
        case e.FindingSeen():
            return {event.finding.place.node} - {""}
        case e.NodeGone() | e.NodeSilent():
            return {event.node}
        case e.NodeObserved() if event.node.alive is False or event.node.drained:
            return {event.node.name}
        case e.OperatorCommand() if event.node:
            return {event.node}
        case e.Escalated():
            named = event.diagnosis.nodes if event.diagnosis is not None else ()
            return {*event.exclude_nodes, *named}
        case _:
            return set()


def _effects_have_orders(history: History) -> Iterator[str]:
    given = first_given(history)
    for deed in history.deeds:
        if not isinstance(deed, OrderTook) or deed.order.startswith("a"):
            continue  # orders of a launcher's own engine (a...) stand in the launcher's journal
        if deed.order not in given:
            yield f"{deed.kind} {deed.order} had an effect at {deed.at:.3f}, and the journal does not know of it"


def orders_end(history: History) -> Iterator[str]:
    """When nothing goes wrong any more, every order gets an outcome and every proposal an answer."""
    for record in history.orders:
        if record.status in {OrderStatus.PENDING, OrderStatus.PROPOSED} and not isinstance(record.order, OWN):
            word = record.detail or "no word of it"
            yield f"{kind_of(record.order)} {record.order.id} is still {record.status}: {word}"

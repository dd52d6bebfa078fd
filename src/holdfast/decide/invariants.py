"""What must always hold of the engine's state. Checked after every event in tests and simulation.

The judge does not reuse the code it judges: it reads records only, and computes the indexes anew. No time passes here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from holdfast.decide.state import Index, State
from holdfast.errors import InvariantViolated
from holdfast.model import orders as o
from holdfast.model.evidence import Remedy
from holdfast.model.orders import OrderStatus
from holdfast.model.records import JobRecord, JobState, NodeRecord, NodeState, OrderRecord, slug
from holdfast.model.story import STORY_LINES_MAX

_OVER = frozenset({JobState.COMPLETED, JobState.GIVEN_UP, JobState.CANCELLED})
_IN_REPAIR = frozenset({NodeState.QUARANTINED, NodeState.REPAIRING, NodeState.VALIDATING})
_ONE_AT_A_TIME = (
    o.CaptureStacks,
    o.StopAttempt,
    o.RestartInPlace,
    o.SaveAndStop,
    o.RequeueHeld,
    o.SetExcluded,
    o.ReleaseJob,
    o.GiveUp,
    o.QuarantineNode,
    o.ReturnNode,
    o.ResetGpu,
    o.RebootNode,
    o.ReplaceNode,
    o.ValidateNode,
)
_OPEN = frozenset({OrderStatus.PENDING, OrderStatus.PROPOSED})
_OF_TIMERS = (o.StartTimer, o.CancelTimer)
_PARTINGS = (o.GiveUp, o.Escalate)
_LAUNCHERS = (o.StopAttempt, o.RestartInPlace, o.Escalate)
_CONTROLLERS = (o.NodeOrder, o.RequeueHeld, o.SetExcluded, o.ReleaseJob, o.GiveUp)


def check(state: State, index: Index | None = None) -> None:
    """Raise InvariantViolated, with the story, at the first thing that does not hold."""
    for name, job in state.jobs.items():
        for complaint in _job(state, name, job):
            raise InvariantViolated(f"job {name} ({job.state}): {complaint}", story=tuple(job.story[-10:]))
    for node in state.nodes.values():
        rests = node.state is NodeState.HEALTHY and not node.incident and not node.drained_by_us
        if rests and len(node.story) <= STORY_LINES_MAX:
            continue  # most nodes, most of the time: nothing below is about them
        for complaint in _node(state, node):
            raise InvariantViolated(f"node {node.name} ({node.state}): {complaint}", story=tuple(node.story[-10:]))
    for complaint in (
        *_incidents(state),
        *_orders(state),
        *_timers(state),
        *_brakes(state),
        *_fences(state),
        *_index(state, index),
    ):
        raise InvariantViolated(complaint)


def _job(state: State, name: str, job: JobRecord) -> Iterator[str]:
    yield from _job_numbers(name, job)
    yield from _job_incident(state, name, job)
    if not _something_comes(state, name, job):
        yield "nothing will ever move it on: no order, no timer, no person is waited for"


def _job_numbers(name: str, job: JobRecord) -> Iterator[str]:
    if name != job.about:
        yield "it is kept under another name"
    numbers = [attempt.number for attempt in job.attempts]
    if numbers != sorted(set(numbers)):
        yield f"attempt numbers do not grow: {numbers}"
    if any(attempt.epoch > job.epoch for attempt in job.attempts):
        yield f"an attempt has a later epoch than the job's {job.epoch}"
    if min(job.in_place, job.requeues, *job.spent.values(), 0) < 0:
        yield "a budget is below zero"
    if len(job.story) > STORY_LINES_MAX:
        yield "its story is not bounded"


def _job_incident(state: State, name: str, job: JobRecord) -> Iterator[str]:
    if job.state in _OVER:
        if job.incident:
            yield f"it is over, yet governed by {job.incident}"
        if any(job.key in incident.jobs_open for incident in state.incidents.values()):
            yield "it is over, yet an incident waits for it"
        if f"job:{name}" in state.timers:
            yield "it is over, yet its timer waits"
    elif job.state is not JobState.WATCHING:
        if job.incident not in state.incidents:
            yield f"it is in recovery, yet its incident {job.incident!r} is not open"
        elif job.key not in state.incidents[job.incident].jobs_open:
            yield f"{job.incident} governs it, yet does not wait for it"
    if job.state is JobState.WATCHING and not job.incident:
        waiting = [incident.id for incident in state.incidents.values() if job.key in incident.jobs_open]
        if waiting:
            yield f"{waiting} wait for it, yet it is only watched"
    if job.incident and job.incident not in state.incidents:
        yield f"its incident {job.incident} is not open"


def _something_comes(state: State, name: str, job: JobRecord) -> bool:
    """A job in recovery waits for an order's outcome, a timer or a person; otherwise it would wait for ever."""
    if job.state in _OVER or (job.state is JobState.WATCHING and not job.incident):
        return True
    if f"job:{name}" in state.timers or f"settle:{job.incident}" in state.timers:
        return True
    if job.state is JobState.HELD and job.held_by:
        return True  # a hold keeps it in the queue; it stops nothing that runs
    if state.scope == "allocation" and job.state is JobState.HELD:
        return True  # it has left its allocation; the scheduler or the controller decides
    return any(isinstance(record.order, o.JobOrder) and record.order.job == job.key for record in state.orders.values())


def _node(state: State, node: NodeRecord) -> Iterator[str]:
    if len(node.story) > STORY_LINES_MAX:
        yield "its story is not bounded"
    shown = node.before_unknown if node.state is NodeState.UNKNOWN else node.state
    if shown is NodeState.HEALTHY and (node.drained_by_us or node.incident):
        yield f"it is healthy, yet drained by us ({node.drained_by_us}) or in incident {node.incident!r}"
    if node.state is NodeState.UNKNOWN and not node.silent:
        yield "it is unknown without being silent"
    if shown is NodeState.UNKNOWN:
        yield "unknown lies over unknown"
    if node.incident:
        incident = state.incidents.get(node.incident)
        if incident is None:
            yield f"its incident {node.incident} is not open"
        elif node.name not in incident.nodes_open:
            yield f"{node.incident} governs it, yet does not wait for it"
    if shown is NodeState.SUSPECT and node.incident and not _fence_comes(state, node):
        yield "nothing will ever move it on: no order, brake, domain or drain of others is waited for"
    if shown in _IN_REPAIR and not (node.about in state.timers or _is_ordered(state, node)):
        yield "nothing will ever move it on: neither order nor timer"


def _fence_comes(state: State, node: NodeRecord) -> bool:
    """A suspect waits for its failure domain, a brake, an order, or for people who keep it out of work."""
    incident = state.incidents.get(node.incident)
    left_to_people = incident is not None and incident.is_observed(node.about, Remedy.QUARANTINE)
    drained_by_others = node.view.drained and not node.drained_by_us
    if node.about in state.timers or left_to_people or drained_by_others:
        return True
    return any(node.name in brake.waiting for brake in state.brakes.values()) or _is_ordered(state, node)


def _is_ordered(state: State, node: NodeRecord) -> bool:
    orders = (record.order for record in state.orders.values())
    return any(isinstance(order, o.NodeOrder) and order.node == node.name for order in orders)


def _incidents(state: State) -> Iterator[str]:
    for name, incident in state.incidents.items():
        if incident.id != name or incident.closed_at:
            yield f"incident {name} is kept although it is closed, or under another name"
        if not incident.jobs_open and not incident.nodes_open:
            yield f"incident {name} is open, yet waits for nothing"
        jobs_open = list(map(slug, incident.jobs_open))
        if jobs_open and not set(jobs_open) <= set(map(slug, incident.jobs)):
            yield f"incident {name} waits for a job that it does not concern"
        if set(incident.nodes_open) - set(incident.nodes):
            yield f"incident {name} waits for a node that it does not concern"
        lost = [job for job in jobs_open if job not in state.jobs]
        lost += [node for node in incident.nodes_open if node not in state.nodes]
        if lost:
            yield f"incident {name} waits for {lost}, which nobody knows"
        if len(incident.story) > STORY_LINES_MAX:
            yield f"incident {name}: its story is not bounded"


def _fences(state: State) -> Iterator[str]:
    for name in state.fence_failed:
        if name not in state.nodes or state.nodes[name].phase is not NodeState.SUSPECT:
            yield f"node {name}: it counts as not fenced, and is not suspect"


def _braked(state: State, record: OrderRecord) -> bool:
    node = getattr(record.order, "node", "")
    return record.is_approved and any(node in brake.waiting for brake in state.brakes.values())


def _orders(state: State) -> Iterator[str]:
    counts: Counter[tuple[type, str]] = Counter()
    for name, record in state.orders.items():
        order = record.order
        if order.id != name or record.status not in _OPEN:
            yield f"order {name} is kept although it is {record.status}"
        if isinstance(order, _OF_TIMERS):
            yield f"order {name} is a timer and must not be kept as an order"
        if isinstance(order, _CONTROLLERS if state.scope == "allocation" else _LAUNCHERS):
            yield f"order {name} ({type(order).__name__}) is not for an engine of scope {state.scope}"
        if (
            record.status is OrderStatus.PROPOSED
            and f"propose:{name}" not in state.timers
            and not _braked(state, record)
        ):
            yield f"proposal {name} never lapses, and waits for no brake"
        job = getattr(order, "job", None)
        about = slug(job) if job is not None else getattr(order, "node", "")
        if isinstance(order, _ONE_AT_A_TIME):
            counts[type(order), about] += 1
        if isinstance(order, o.JobOrder) and not isinstance(order, _PARTINGS):
            known = state.jobs.get(about)
            if known is None or known.state in _OVER:
                yield f"order {name} ({type(order).__name__}) is about a job that is over"
    for (kind, about), number in counts.items():
        if number > 1:
            yield f"{number} orders {kind.__name__} are open for {about}"


def _timers(state: State) -> Iterator[str]:
    tables: dict[str, Mapping[str, object]] = {
        "job": state.jobs,
        "lapse": state.jobs,
        "node": state.nodes,
        "silent": state.nodes,
        "settle": state.incidents,
        "propose": state.orders,
        "order": state.orders,
        "brake": state.brakes,
    }
    for name in state.timers:
        kind, _, about = name.partition(":")
        known = tables.get(kind)
        if known is None or about not in known:
            yield f"timer {name} waits for something that nobody knows"


def _brakes(state: State) -> Iterator[str]:
    sizes = Counter(node.view.group for node in state.nodes.values())
    for group, brake in state.brakes.items():
        if brake.nodes != sizes.get(group, 0):
            yield f"brake {group!r} counts {brake.nodes} nodes, there are {sizes.get(group, 0)}"
        if len(set(brake.waiting)) != len(brake.waiting):
            yield f"brake {group!r} holds a node back twice: {brake.waiting}"
        for name in brake.waiting:
            node = state.nodes.get(name)
            if node is None or NodeState.SUSPECT not in {node.state, node.before_unknown}:
                yield f"brake {group!r} holds back {name}, which is not suspect"
        if brake.waiting and f"brake:{group}" not in state.timers:
            yield f"brake {group!r} holds nodes back for ever"


def _index(state: State, index: Index | None) -> Iterator[str]:
    if index is None:
        return
    fresh = Index(state)
    for part in ("jobs_on", "incidents_of", "by_id", "orders_of"):
        if getattr(fresh, part) != getattr(index, part):
            yield f"index {part} is not what the records say: {getattr(index, part)} != {getattr(fresh, part)}"

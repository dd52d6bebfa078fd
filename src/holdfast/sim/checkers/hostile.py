"""Does a hostile reporter change anything beyond what is its own? A twin of the journal without its lies must say no.

An agent has its node and the jobs that were ever on it, a launcher its job and the nodes that the job was ever on, a
user the jobs that they submitted. What was never together with any of that is compared with the twin: a fresh engine
that is given all events but the lies must give the same orders for it, in the same order, and come to the same records.
What shared a node, a job or an incident with the liar's own waits for it, as do jobs that were kept off its nodes, and
what failed together behind one switch is judged together: from those nothing may be taken, and nothing of them ended,
because of lies alone. So it is with a node whose quarantine waits because those of the liar's own count to the brake of
its group, and with jobs that were kept off a node which was quarantined at another time because of the liar's. What a
lie may cost its own is bounded by the other judges.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
from msgspec import structs

from holdfast.model import events as e
from holdfast.model import orders as o
from holdfast.model.cluster import JobKey
from holdfast.model.events import AnyEvent
from holdfast.model.evidence import EvidenceKind, Finding
from holdfast.model.orders import AnyOrder
from holdfast.model.wire import encode, kind_of
from holdfast.sim.checkers.journal import Replay, Replayed, as_stored, job_name
from holdfast.sim.history import BeatTaken, History, Lied, RunBegan

REPORTERS = ("agent", "launcher", "drill", "operator")
"""First words of the sources of events that do not come from the controller or its scheduler."""
SHOWN = 300
_TOLD_APART = frozenset({"id", "cause", "incident", "why", "title", "text", "topic", "story", "since"})
"""Fields that tell of numbers and words, which a lie in the journal may shift."""


_HARM = (
    o.QuarantineNode,
    o.ResetGpu,
    o.RebootNode,
    o.ReplaceNode,
    o.RetireNode,
    o.RequeueHeld,
    o.GiveUp,
    o.StopAttempt,
    o.SaveAndStop,
    o.RestartInPlace,
)
"""Orders that take something from a node or a job."""
_NODES = ("nodes", "excluded", "excluded_asked")


class Own:
    """What is the liar's own, by what truly happened."""

    def __init__(self, history: History, source: str) -> None:
        kind, _, name = source.partition(":")
        runs = [deed for deed in history.deeds if isinstance(deed, RunBegan)]
        self.kind = kind
        self.nodes: set[str] = {name} if kind == "agent" else set()
        self.jobs: set[JobKey] = set()
        match kind:
            case "agent":
                self.jobs = {run.job for run in runs if name in run.nodes}
            case "launcher":
                self.jobs = {job.key for job in history.jobs if job.key.id == name}
                self.nodes = {node for run in runs if run.job.id == name for node in run.nodes}
            case "operator":
                self.jobs = {job.key for job in history.jobs if job.view.user == name}
        self.job_ids = {job.id for job in self.jobs} | ({name} if kind == "launcher" else set())
        self.shared_nodes = {node for run in runs if run.job in self.jobs for node in run.nodes} - self.nodes
        self.shared_nodes |= {
            node for one in history.incidents if len(one.nodes) > 1 for node in one.nodes
        } - self.nodes
        self.shared_jobs = {run.job for run in runs if self.nodes & {*run.nodes}} - self.jobs

    def has(self, about: Any) -> bool:
        """Is an order or a record about something of the liar's?"""
        job, node = getattr(about, "job", None), getattr(about, "node", "")
        return job in self.jobs or node in self.nodes

    def shares(self, about: Any) -> bool:
        """Is it about something of the liar's, or about what was ever together with it?"""
        job, node = getattr(about, "job", None), getattr(about, "node", "")
        return self.has(about) or job in self.shared_jobs or node in self.shared_nodes


def liar_of(history: History) -> str:
    """Source of the hostile reporter; empty: nobody lied."""
    return next((deed.source for deed in history.deeds if isinstance(deed, Lied)), "")


def is_lie(history: History, event: AnyEvent) -> bool:
    """Is it an event of a reporter that no honest one sent? That an agent has attached its beats tell."""
    source = event.source.partition(":")[0]
    return source in REPORTERS and history.told.get(event.id) != event.source and not isinstance(event, e.AgentAttached)


def lies_change_nothing_of_others(history: History, replay: Replay) -> Iterator[str]:
    """Say where the twin without lies differs, in all that is not the liar's own."""
    source = liar_of(history)
    if not source:
        return
    own = Own(history, source)
    events = [step.event for step in history.steps]
    honest = [event for event in events if not is_lie(history, event)]
    yield from _under_other_names(history, source)
    yield from _beats(history, own, source)
    yield from _unknown_nodes(history, honest)
    yield from _of_others(history, own, source)
    yield from _harm(history, own, source)
    if len(honest) < len(events):
        yield from _differences(replay(events, as_stored), replay(honest, _Renamed(history)), own, source)


class _Renamed:
    """Tells the twin of outcomes under the ids of its own orders: what a lie did shifts the numbers inside an event."""

    def __init__(self, history: History) -> None:
        given = [order for step in history.steps for order in step.orders]
        self._made = _named([*given, *(record.order for record in history.orders)])
        self._twin: dict[str, AnyOrder] = {}
        """What that is -> the order of the twin."""
        self._read = 0

    def __call__(self, event: AnyEvent, orders: Sequence[Sequence[AnyOrder]]) -> AnyEvent:
        """The event as the twin would have been told of it."""
        for made in orders[self._read :]:
            names = _named(made)
            for order in made:
                self._twin.setdefault(names[order.id], order)
        self._read = len(orders)
        if isinstance(event, e.TimerFired):
            began = self._of_twin(event.id.removeprefix(e.fired_id("")))
            if isinstance(began, o.StartTimer):
                return structs.replace(event, id=e.fired_id(began.id), timer=began.timer)
        elif isinstance(event, e.OrderDone | e.OrderFailed | e.OperatorCommand) and event.order:
            known = self._of_twin(event.order)
            return structs.replace(event, order=known.id if known is not None else f"untold:{event.order}")
        return event

    def _of_twin(self, made: str) -> AnyOrder | None:
        return self._twin.get(self._made.get(made, ""))


def _named(orders: Sequence[AnyOrder]) -> dict[str, str]:
    """Id of each order -> the event that made it, its kind and subject, and which of these it is."""
    found: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for order in orders:
        if order.id in found:
            continue
        job = getattr(order, "job", None)
        about = job_name(job) if job is not None else getattr(order, "node", "") or _timer_kind(order)
        what = f"{order.cause} {kind_of(order)} {about}"
        counts[what] += 1
        found[order.id] = f"{what} {counts[what]}"
    return found


def _timer_kind(order: AnyOrder) -> str:
    """The timer's name, without the id of an order or an incident, which is another one in the twin."""
    timer = getattr(order, "timer", "")
    kind = timer.partition(":")[0]
    return kind if kind in {"order", "propose", "settle"} else timer


def about_the_liar(history: History) -> Callable[[str], bool]:
    """Tell whether a complaint's text names something of the liar's: what it says of its own may be untrue."""
    source = liar_of(history)
    if not source:
        return lambda _: False
    own = Own(history, source)
    names = {*own.nodes, *(str(job) for job in own.jobs), *(job_name(job) for job in own.jobs)}
    names |= {one.id for one in history.incidents if own.nodes & {*one.nodes} or own.jobs & {*one.jobs}}
    names |= {record.order.id for record in history.orders if own.has(record.order)}
    return lambda text: any(word.strip(",.:;()'") in names for word in text.split())


def _under_other_names(history: History, source: str) -> Iterator[str]:
    """An id that others will use silences what they say under it."""
    for step in history.steps:
        event = step.event
        if not is_lie(history, event) or isinstance(event, e.OperatorCommand):
            continue
        ids = [event.id, event.finding.id] if isinstance(event, e.FindingSeen) else [event.id]
        for one in ids:
            if not one.startswith((f"{source}/", f"{source}:")):
                yield f"event {event.seq} ({kind_of(event)}) of {source} bears the id {one!r}, which is not its own"


def _of_others(history: History, own: Own, source: str) -> Iterator[str]:
    """A lie that was stored is of the liar's own; log lines may name any node of their job, which they do not move."""
    orders = {record.order.id: record.order for record in history.orders}
    for step in history.steps:
        event = step.event
        if not is_lie(history, event):
            continue
        said: Any = (
            event.finding if isinstance(event, e.FindingSeen) else orders.get(getattr(event, "order", ""), event)
        )
        job, node = getattr(said, "job", None), getattr(said, "node", "")
        if isinstance(said, Finding):
            is_line = all(piece.kind is EvidenceKind.LOG for piece in said.evidence)
            node = "" if is_line and job is not None else said.place.node
        job, node = getattr(job, "key", job), getattr(node, "name", node)
        if (job is not None and job.id not in own.job_ids) or (node and job is None and node not in own.nodes):
            yield f"event {event.seq} ({kind_of(event)}) of {source} is of job {job}, node {node!r}"


def _beats(history: History, own: Own, source: str) -> Iterator[str]:
    for deed in history.deeds:
        if isinstance(deed, BeatTaken) and (
            (deed.node and deed.node not in own.nodes) or (deed.job_id and deed.job_id not in own.job_ids)
        ):
            yield f"{source} has beaten for node {deed.node!r}, job {deed.job_id!r}"


def _unknown_nodes(history: History, honest: list[AnyEvent]) -> Iterator[str]:
    known = {event.node.name for event in honest if isinstance(event, e.NodeObserved)}
    for step in history.steps:
        for order in step.orders:
            if isinstance(order, o.SetExcluded) and (unknown := sorted(set(order.nodes) - known)):
                yield f"{order.id} keeps job {order.job} off {unknown[0]!r}, which the scheduler does not know"


def _harm(history: History, own: Own, source: str) -> Iterator[str]:
    """What is taken from others or ended in the very turn of a lie, or in an incident of which lies alone tell."""
    lies = [step.event for step in history.steps if is_lie(history, step.event)]
    seqs = {lie.seq for lie in lies}
    told = {lie.finding.id for lie in lies if isinstance(lie, e.FindingSeen)}
    by_lies = {one.id for one in history.incidents if one.findings and {found.id for found in one.findings} <= told}
    for step in history.steps:
        for order in step.orders:
            if isinstance(order, _HARM) and not own.has(order) and (order.cause in seqs or order.incident in by_lies):
                yield f"because of {source} {kind_of(order)} is ordered: {_shown([str(order)])}"


def _differences(made: Replayed, twin: Replayed, own: Own, source: str) -> Iterator[str]:
    moved = _fenced_otherwise(made, twin, own) if own.nodes & {*_fenced(made), *_fenced(twin)} else set()
    own.shared_nodes |= moved | _together(twin) - own.nodes
    for orders in (*made.orders, *twin.orders):
        kept_off = [one for one in orders if isinstance(one, o.SetExcluded) and (own.nodes | moved) & {*one.nodes}]
        own.shared_jobs |= {one.job for one in kept_off}
    given, without = _orders(made, own), _orders(twin, own)
    for about in sorted(given.keys() | without.keys()):
        left, right = given.get(about, []), without.get(about, [])
        if left != right:
            pairs = enumerate(zip(left, right, strict=False))
            place = next((number for number, (one, other) in pairs if one != other), min(len(left), len(right)))
            yield (
                f"because of {source} {about} gets {_shown(left[place:])} in place of {_shown(right[place:])} "
                f"as its order {place + 1}"
            )
    before, after = _records(twin, own), _records(made, own)
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            yield f"because of {source} {name} is {_differing(after.get(name), before.get(name))}"


def _together(twin: Replayed) -> set[str]:
    """Nodes that share an incident in the twin."""
    records = [msgspec.json.decode(written) for name, written in twin.records.items() if name.startswith("incident:")]
    return {node for fields in records if len(fields.get("nodes", ())) > 1 for node in fields["nodes"]}


def _fenced_otherwise(made: Replayed, twin: Replayed, own: Own) -> set[str]:
    """Nodes that are quarantined at another event in the twin: any where a brake has tripped in either, else shared."""
    every = [one for replayed in (made, twin) for orders in replayed.orders for one in orders]
    is_braked = any(isinstance(one, o.Notify) and one.topic.startswith("brake:") for one in every)
    left, right = _fenced(made), _fenced(twin)
    found = {node for node in left.keys() | right.keys() if left.get(node) != right.get(node)}
    return found if is_braked else found & own.shared_nodes


def _fenced(replayed: Replayed) -> dict[str, list[int]]:
    """Node -> the events at which its quarantine was ordered."""
    found: dict[str, list[int]] = {}
    for orders in replayed.orders:
        for order in orders:
            if isinstance(order, o.QuarantineNode):
                found.setdefault(order.node, []).append(order.cause)
    return found


def _orders(replayed: Replayed, own: Own) -> dict[str, list[str]]:
    """Subject that is not the liar's -> its orders, without what numbers them."""
    found: dict[str, list[str]] = {}
    for orders in replayed.orders:
        for order in orders:
            if isinstance(order, o.StartTimer | o.CancelTimer | o.Notify) or own.shares(order):
                continue
            job, node = getattr(order, "job", None), getattr(order, "node", "")
            fields = _plain(msgspec.json.decode(encode(order)), own)
            if isinstance(order, o.SetExcluded) and not fields.get("nodes"):
                continue
            found.setdefault(job_name(job) if job is not None else node, []).append(f"{kind_of(order)} {fields}")
    return found


def _plain(fields: dict[str, Any], own: Own) -> dict[str, Any]:
    """Fields that are not told apart, without the liar's own nodes in lists of nodes."""
    return {
        name: [one for one in value if one not in own.nodes] if name in _NODES and isinstance(value, list) else value
        for name, value in fields.items()
        if name not in _TOLD_APART and not (name in _NODES and set(value or ()) <= own.nodes)
    }


def _records(replayed: Replayed, own: Own) -> dict[str, Any]:
    """Records of all that is not the liar's; incidents are told by when they were opened, and for whom."""
    jobs, mine = own.jobs | own.shared_jobs, own.nodes | own.shared_nodes
    names = {f"job:{job_name(job)}" for job in jobs} | {f"node:{node}" for node in mine}
    keys = [msgspec.json.decode(encode(job)) for job in jobs]
    found: dict[str, Any] = {}
    for name, written in replayed.records.items():
        fields = msgspec.json.decode(written)
        if name in names or any(job in keys for job in fields.get("jobs", ())):
            continue
        if name.startswith("incident:"):
            nodes = fields.get("nodes", ()) or [one.get("place", {}).get("node") for one in fields["findings"]]
            if mine & set(nodes):
                continue
            about = ", ".join([*(job["id"] for job in fields.get("jobs", ())), *map(str, nodes)])
            told = {one: fields.get(one) for one in ("closed_at", "outcome", "remedies")}
            found[f"the incident of {about} opened at {fields['opened_at']}"] = told
        else:
            found[name] = _plain(fields, own)
    return found


def _differing(left: Any, right: Any) -> str:
    if left is None or right is None:
        return "there" if right is None else "not there"
    names = [name for name in left.keys() | right.keys() if left.get(name) != right.get(name)]
    return ", ".join(f"{name} {left.get(name)} in place of {right.get(name)}" for name in sorted(names))[:SHOWN]


def _shown(orders: list[str]) -> str:
    return orders[0][:SHOWN] if orders else "nothing"

"""Where jobs are restarted: never on a node that the journal says is bad, at the moment of the order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeGuard

from holdfast.model import events as e
from holdfast.model import orders as o
from holdfast.model.events import Command
from holdfast.model.evidence import Domain, EvidenceKind, Finding, Remedy, Role
from holdfast.model.orders import OrderStatus
from holdfast.model.policy import Mode
from holdfast.sim.history import PERSON, History, Resumed, RunBegan

_STARTS = (o.ReleaseJob, o.RestartInPlace)
_LOST = "node.lost"
_LEFT_TO_PEOPLE = frozenset(OrderStatus) - {OrderStatus.PENDING, OrderStatus.DONE}
"""A node whose quarantine has come to this is in service by a person's word, or for want of one."""
_Clearing = e.FindingCleared | e.NodeValidated | e.OperatorCommand | e.NodeVanished


class _Suspicion:
    """Which nodes are known bad by the journal, and since which event."""

    def __init__(self, *, fences: bool) -> None:
        self._fences = fences
        """Are bad nodes fenced? Where that is left to people, one that is heard again counts as returned."""
        self.bad: dict[str, tuple[int, str]] = {}
        self._clean_at: dict[str, float] = {}
        self.cleaned: dict[str, list[float]] = {}
        """Node -> when it came to count as clean."""
        self._machine: dict[str, str] = {}
        self._drained: dict[str, bool] = {}
        self._alive: dict[str, bool | None] = {}
        """Node -> what the scheduler says."""
        self._vanished: set[str] = set()
        """Nodes that the scheduler does not know now: it gives none of them out, and can exclude none."""

    def take(self, event: e.AnyEvent, orders: tuple[o.AnyOrder, ...]) -> None:
        """Fold one step."""
        match event:
            case e.FindingSeen() if _condemns(event.finding):
                place, seen_at = event.finding.place.node, event.finding.at
                if seen_at >= self._clean_at.get(place, 0.0):
                    self.bad.setdefault(place, (event.seq, event.finding.rule))
            case e.NodeGone():
                self.bad.setdefault(event.node, (event.seq, _LOST))
            case e.NodeObserved():
                self._observed(event)
            case e.AgentAttached() | e.NodeHeard():
                if isinstance(event, e.AgentAttached):
                    self._shows(event.node, event.instance_id, event)
                self._speaks(event.node, event)
                if not self._fences:
                    self._clean(event.node, event)
            case e.TimerFired() if self._alive.get(event.timer.removeprefix("node:")):
                # Looked at again a while after its loss was told: the scheduler went on saying that it runs.
                self._speaks(event.timer.removeprefix("node:"), event)
            case _ if _clears(event, self.bad):
                self._clean(event.node, event)
        for order in orders:
            if isinstance(order, o.ReturnNode):
                self._clean(order.node, event)

    def in_reach(self) -> dict[str, tuple[int, str]]:
        """Bad nodes that the scheduler might give out: it knows them, and does not itself call them down."""
        away = {node for node, since in self.bad.items() if since[1] == _LOST and self._alive.get(node) is False}
        return {node: since for node, since in self.bad.items() if node not in self._vanished | away}

    def _observed(self, event: e.NodeObserved) -> None:
        view = event.node
        self._vanished.discard(view.name)
        was_drained = self._drained.get(view.name, False)
        self._drained[view.name] = view.drained
        self._alive[view.name] = view.alive
        self._shows(view.name, view.instance_id, event)
        if view.alive is False:
            self.bad.setdefault(view.name, (event.seq, _LOST))
        known = self.bad.get(view.name)
        lost_and_found = known is not None and view.alive is True and known[1] == _LOST
        taken_back = was_drained and not view.drained  # what is told later of the time before is stale, too
        if lost_and_found or taken_back:
            self._clean(view.name, event)

    def _shows(self, node: str, machine: str, event: e.AnyEvent) -> None:
        if machine and self._machine.get(node, machine) != machine:
            self._clean(node, event)
        if machine:
            self._machine[node] = machine

    def _speaks(self, node: str, event: e.AnyEvent) -> None:
        """Who speaks runs: it is not lost any more, whatever else is known of it."""
        if self.bad.get(node, (0, ""))[1] == _LOST:
            self._clean(node, event)

    def _clean(self, node: str, event: e.AnyEvent) -> None:
        if isinstance(event, e.NodeVanished):
            self._vanished.add(node)
        self.bad.pop(node, None)
        self._clean_at[node] = max(self._clean_at.get(node, 0.0), event.received_at)
        self.cleaned.setdefault(node, []).append(event.received_at)


def _clears(event: e.AnyEvent, bad: dict[str, tuple[int, str]]) -> TypeGuard[_Clearing]:
    """Is this a word that its node is well?"""
    match event:
        case e.FindingCleared():
            return bad.get(event.node, (0, ""))[1] == event.rule
        case e.NodeValidated():
            return event.passed
        case e.OperatorCommand():
            return bool(event.node) and event.command in {Command.RETURN, Command.CONFIRM_HEALTHY}
        case _:
            return isinstance(event, e.NodeVanished)


def _condemns(finding: Finding) -> bool:
    """Does it say of a node, by itself, that no job may go on there? What a rank prints does not."""
    if finding.role is not Role.ROOT or not finding.place.node or finding.predicts:
        return False
    if finding.domain is not Domain.HARDWARE or finding.remedy in {Remedy.QUARANTINE, Remedy.NOTIFY}:
        return False
    if finding.job is None and finding.place.rank is None:
        return True
    return any(piece.kind is not EvidenceKind.LOG for piece in finding.evidence)


def not_onto_a_bad_node(history: History) -> Iterator[str]:
    """When we let a job start, none of its nodes was known bad at the moment of the order, and still when it began.

    A bad node that is drained is out of reach, and need not be excluded. When a person lifts its drain, and nobody has
    seen that yet when the scheduler gives it out, it is the person who let the job run there.
    """
    known = _Suspicion(fences=history.policies.site.mode_for(Remedy.QUARANTINE) is Mode.ACT)
    lifted: dict[str, list[float]] = {}
    for deed in history.deeds:
        if isinstance(deed, Resumed) and deed.by.startswith(PERSON):
            lifted.setdefault(deed.node, []).append(deed.at)
    refused = {
        record.order.node
        for record in history.orders
        if isinstance(record.order, o.QuarantineNode) and record.status in _LEFT_TO_PEOPLE
    }
    told_at = {step.event.seq: step.event.received_at for step in history.steps}
    at_order: dict[str, dict[str, tuple[int, str]]] = {}
    ordered_at: dict[str, float] = {}
    for step in history.steps:
        known.take(step.event, step.orders)
        for order in step.orders:
            if isinstance(order, _STARTS) and order.id not in at_order:
                at_order[order.id] = known.in_reach()
                ordered_at[order.id] = step.event.received_at
    for deed in history.deeds:
        if not isinstance(deed, RunBegan) or deed.by not in at_order:
            continue
        for node in deed.nodes:
            seen = at_order[deed.by].get(node)
            healed = any(ordered_at[deed.by] <= at <= deed.at for at in known.cleaned.get(node, ()))
            if seen is not None:
                healed |= any(told_at[seen[0]] <= at <= deed.at for at in lifted.get(node, ()))
            if seen is not None and not healed and node not in refused:
                yield (f"{deed.by} let job {deed.job} run on {node}, known bad since event {seen[0]} ({seen[1]})")

"""Judges of trust: no node falls on a job's word alone, reporters keep to their bounds, nobody approves alone.

The judges read `[trust]` of the policy and the journal. They forget what was said of a node when we have returned it,
and at no other time, so they may take evidence for newer than the engine does, and never for older. A complaint names
no node and no job: a liar is excused for what becomes of its own, and the engine is not excused for believing it.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.model import events as e
from holdfast.model import orders as o
from holdfast.model.cluster import JobKey, SchedulerState
from holdfast.model.events import Command
from holdfast.model.evidence import EvidenceKind, Finding
from holdfast.sim.checkers.orders import is_refused
from holdfast.sim.history import History, Step

OTHERS = "others"
"""Stands for all who are no reporters: the scheduler, silence, checks."""
SLACK_S = 0.05
_JOBS, _AGENTS = "launcher:", "agent:"


class _Words:
    """Who has spoken against which node since we have returned it."""

    def __init__(self) -> None:
        self.against: dict[str, set[str]] = {}
        self._returns: dict[str, str] = {}

    def take(self, step: Step) -> None:
        """Fold one event and its orders in."""
        event = step.event
        match event:
            case e.FindingSeen():
                self._add(event.finding.place.node, _teller(event))
                if event.finding.job is not None:  # what a diagnosis makes of it is its job's word
                    self._add(event.finding.place.node, f"{_JOBS}{event.finding.job.id}")
            case e.Escalated() if event.diagnosis is not None:
                for node in event.diagnosis.nodes:
                    self._add(node, f"{_JOBS}{event.job.id}")
            case e.NodeObserved() if event.node.alive is False or event.node.failed_check:
                self._add(event.node.name, OTHERS)
            case e.NodeGone() | e.NodeSilent():
                self._add(event.node, OTHERS)
            case e.NodeValidated() if not event.passed:
                self._add(event.node, OTHERS)
            case e.OperatorCommand() if event.node:
                self._add(event.node, OTHERS)
            case e.OrderDone() if event.order in self._returns:
                self.against.pop(self._returns.pop(event.order), None)
            case _:
                pass
        self._returns |= {one.id: one.node for one in step.orders if isinstance(one, o.ReturnNode)}

    def _add(self, node: str, who: str) -> None:
        self.against.setdefault(node, set()).add(who)

    def only_jobs(self, node: str) -> bool:
        """Has nobody but jobs spoken against it?"""
        found = self.against.get(node, set())
        return bool(found) and all(one.startswith(_JOBS) for one in found)

    def only_one(self, node: str) -> str:
        """The one reporter that has; empty: there are more, or none."""
        found = self.against.get(node, set())
        only = next(iter(found)) if len(found) == 1 else OTHERS
        return "" if only == OTHERS else only


def _teller(event: e.FindingSeen) -> str:
    finding, source = event.finding, event.source.partition("#")[0]
    if finding.job is not None and _is_printed(finding):
        return f"{_JOBS}{finding.job.id}"
    return source if source.startswith((_JOBS, _AGENTS)) else OTHERS


def _is_printed(finding: Finding) -> bool:
    """Is it made of lines of a job's output?"""
    lines = bool(finding.evidence) and all(piece.kind is EvidenceKind.LOG for piece in finding.evidence)
    return lines and (finding.job is not None or finding.place.rank is not None)


def _ordered(step: Step) -> Iterator[o.AnyOrder]:
    """What the event itself led to, no person having asked for it."""
    if not isinstance(step.event, e.OperatorCommand):
        yield from (order for order in step.orders if order.cause == step.event.seq)


def two_witnesses_are_heard(history: History) -> Iterator[str]:
    """With `two_witnesses` no node is quarantined that only jobs have spoken against."""
    words = _Words()
    for step in history.steps if history.policies.site.trust.two_witnesses else ():
        if isinstance(step.event, e.PolicyLoaded):
            return  # another policy holds from here on, which this history does not tell
        words.take(step)
        for order in _ordered(step):
            if isinstance(order, o.QuarantineNode) and words.only_jobs(order.node):
                who = ", ".join(sorted(words.against[order.node]))
                yield f"event {step.event.seq} quarantines a node on the word of {who} alone"


class _Jobs:
    """Which jobs run an attempt, as far as the journal tells."""

    def __init__(self) -> None:
        self._started: dict[JobKey, int] = {}
        self.alive: dict[JobKey, str] = {}
        """Job -> its partition."""

    def take(self, event: e.AnyEvent) -> None:
        """Fold one event in."""
        match event:
            case e.JobObserved():
                view = event.job
                anew = view.restart_count > self._started.get(view.key, -1)
                if view.state is not SchedulerState.RUNNING:
                    self.alive.pop(view.key, None)
                elif anew:
                    self.alive[view.key] = view.partition
                self._started[view.key] = max(view.restart_count, self._started.get(view.key, -1))
            case e.AttemptEnded() | e.JobVanished():
                self.alive.pop(event.job, None)
            case _:
                pass


def reporters_are_braked(history: History) -> Iterator[str]:
    """On one reporter's word no more nodes and no more running jobs of others are lost in a window than policy says."""
    rules = history.policies.site.trust
    if not (rules.reporter_nodes or rules.reporter_requeues):
        return
    words, jobs, where = _Words(), _Jobs(), dict[str, str]()
    nodes: dict[tuple[str, str], dict[str, float]] = {}
    requeues: dict[tuple[str, str], list[float]] = {}
    now = 0.0
    for step in history.steps:
        event = step.event
        now = max(now, event.received_at or event.at)
        if isinstance(event, e.PolicyLoaded):
            return
        if isinstance(event, e.NodeObserved):
            where[event.node.name] = event.node.group
        if isinstance(event, e.OperatorCommand) and event.command is Command.RESET_BRAKE:
            nodes.clear()
            requeues.clear()
        words.take(step)
        start = now - rules.reporter_window_s + SLACK_S
        for order in _ordered(step):
            if isinstance(order, o.QuarantineNode) and rules.reporter_nodes and (who := words.only_one(order.node)):
                lost = nodes.setdefault((where.get(order.node, ""), who), {})
                lost[order.node] = now
                recent = sum(at > start for at in lost.values())
                if recent > rules.reporter_nodes:
                    yield f"event {event.seq} quarantines number {recent} in a window on the word of {who} alone"
            elif isinstance(order, o.RequeueHeld | o.SaveAndStop) and rules.reporter_requeues:
                who = _forces(event, words, order.job)
                if who and order.job in jobs.alive:
                    ended = requeues.setdefault((jobs.alive[order.job], who), [])
                    ended.append(now)
                    recent = sum(at > start for at in ended)
                    if recent > rules.reporter_requeues:
                        yield f"event {event.seq} requeues number {recent} in a window on the word of {who} alone"
        jobs.take(event)


def _forces(event: e.AnyEvent, words: _Words, job: JobKey) -> str:
    """The one reporter whose finding ends another's job."""
    if not isinstance(event, e.FindingSeen):
        return ""
    who = _teller(event)
    told = words.against.get(event.finding.place.node, set())
    return "" if who in {OTHERS, f"{_JOBS}{job.id}"} or len(told) > 1 else who


def approvals_are_counted(history: History) -> Iterator[str]:
    """What is proposed is given when as many people have approved it as policy asks for, each by their own token.

    An order is given by the event that made it, unless people were asked first.
    """
    needed = history.policies.site.trust.approvals
    given: set[str] = set()
    approved: dict[str, list[str]] = {}
    """Order -> name and id of the token of each person who approves it."""
    for step in history.steps if needed > 1 else ():
        event = step.event
        if isinstance(event, e.PolicyLoaded):
            return
        if isinstance(event, e.OperatorCommand) and event.order:
            people = [by for by in approved.get(event.order, ()) if by not in event.void]
            others = [by for by in people if not _is_one(by, event.by)]
            if event.command is Command.WITHDRAW:
                people = others
            elif event.command is Command.APPROVE and len(others) == len(people) and not is_refused(step):
                people.append(event.by)
            approved[event.order] = people
        for order in step.orders:
            count = len(approved.get(order.id, ()))
            if order.id not in given and order.cause != event.seq and count < needed:
                yield f"event {event.seq} gives a proposed order with {count} of {needed} approvals"
            given.add(order.id)


def _is_one(by: str, other: str) -> bool:
    """Are these tokens of one person? Those of one name are, whatever its case, and each is its own."""
    (name, _, token), (second, _, second_token) = by.partition(" "), other.partition(" ")
    return name.casefold() == second.casefold() or (bool(token) and token == second_token)

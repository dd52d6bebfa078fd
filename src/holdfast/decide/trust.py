"""Tells whose word an act rests on, and what one reporter alone may bring about.

A *reporter* is the agent of a node or the launcher of a job. Lines of a job's output are its launcher's word, whoever
read them. What the scheduler shows, what a check says and what a person says is no reporter's word, and a node's agent
is believed about its own node. `nodes.py` and `restart.py` ask here. Where `[trust]` has its defaults nothing is
noted, so nothing is held back. The time is the event's.
"""

from __future__ import annotations

from holdfast.decide.records import node as node_record
from holdfast.decide.records.turn import Turn
from holdfast.model import events as e
from holdfast.model import orders as o
from holdfast.model import story
from holdfast.model.evidence import Finding
from holdfast.model.orders import AnyOrder
from holdfast.model.records import JobRecord, NodeRecord

CONTROLLER, CHECKS, PERSON = "controller", "checks", "person"
"""Witnesses that are no reporters."""
_AGENT, _LAUNCHER = "agent:", "launcher:"


def launcher_of(job: JobRecord) -> str:
    """The job as a reporter."""
    return f"{_LAUNCHER}{job.key.id}"


def reporter_of(turn: Turn, finding: Finding) -> str:
    """Who stands behind the event's finding; empty: no reporter does.

    A loss that a launcher claims is none: the controller hands it on with what confirms it (`controller/claims.py`).
    """
    if not isinstance(turn.event, e.FindingSeen):
        return ""
    if finding.job is not None and finding.is_rank_log:
        return f"{_LAUNCHER}{finding.job.id}"
    source = turn.event.source
    if source.startswith(_LAUNCHER):
        return source.partition("#")[0]
    return source if source.startswith(_AGENT) else ""


def note(turn: Turn, node: NodeRecord, finding: Finding, job: JobRecord | None) -> None:
    """Remember who holds this against the node: the job whose diagnosis names it, else whoever the event is from."""
    if turn.trust_in(node.view.group).is_on:
        reporter = launcher_of(job) if job is not None else reporter_of(turn, finding)
        node_record.accused_by(node, finding.rule, reporter or CONTROLLER)


def checks_failed(turn: Turn, node: NodeRecord) -> None:
    """The node has failed checks of its own: a second kind of evidence."""
    for rule in node.findings[:1] if turn.trust_in(node.view.group).is_on else ():
        node_record.accused_by(node, rule, CHECKS)


def sole_reporter(node: NodeRecord) -> str:
    """The one reporter on whose word alone the node is accused; empty: more stand behind it, or none was noted."""
    found = node_record.witnesses(node)
    only = next(iter(found)) if len(found) == 1 else ""
    return only if only.startswith((_AGENT, _LAUNCHER)) else ""


def _is_one_kind(node: NodeRecord) -> bool:
    """Do only jobs speak against it, or only agents of other nodes?"""
    found = node_record.witnesses(node)
    if not found or f"{_AGENT}{node.name}" in found:
        return False
    return all(one.startswith(_LAUNCHER) for one in found) or all(one.startswith(_AGENT) for one in found)


def holds_node(turn: Turn, node: NodeRecord) -> str:
    """Why the node is not quarantined on what is known of it; empty: it may be."""
    group = node.view.group
    rules = turn.trust_in(group)
    if rules.two_witnesses and _is_one_kind(node):
        found = sorted(node_record.witnesses(node))
        return f"only {story.listed(found)} {'speaks' if len(found) == 1 else 'speak'} against it"
    reporter = sole_reporter(node)
    if reporter and rules.reporter_nodes:
        rested = node_record.rested_on(turn, group, reporter, rules.reporter_window_s).nodes
        if node.name not in rested and len(rested) >= rules.reporter_nodes:
            return f"{reporter} alone speaks against it, and against {len(rested)} that were quarantined lately"
    return ""


def count_node(turn: Turn, node: NodeRecord) -> None:
    """Its quarantine is ordered: it counts against the one reporter on whose word that rests."""
    reporter, group = sole_reporter(node), node.view.group
    if reporter and turn.trust_in(group).is_on:
        node_record.rest_node(turn, group, reporter, node.name)


def approved_by_person(node: NodeRecord) -> None:
    """What is done to the node rests on a person's word from here on."""
    if node.witnesses:
        node_record.accused_by(node, "operator.approved", PERSON)


def forced_by(turn: Turn, job: JobRecord, order: AnyOrder) -> str:
    """The one reporter, not the job's own, on whose word the order ends a running attempt; empty: there is none."""
    event, group = turn.event, job.view.partition
    ends = isinstance(order, o.RequeueHeld | o.SaveAndStop) and job.alive and not turn.in_allocation
    if not ends or not isinstance(event, e.FindingSeen) or not turn.trust_in(group).reporter_requeues:
        return ""
    reporter = reporter_of(turn, event.finding)
    node = turn.state.nodes.get(event.finding.place.node)
    if reporter == launcher_of(job) or (node is not None and len(node_record.witnesses(node)) > 1):
        return ""
    return reporter


def holds_requeue(turn: Turn, job: JobRecord, order: AnyOrder, reporter: str) -> str:
    """Why a requeue that this reporter forces waits for a person; empty: it may be ordered."""
    group = job.view.partition
    if not reporter or order.remedy in turn.state.approved.get(order.incident, ()):
        return ""
    rules = turn.trust_in(group)
    rested = node_record.rested_on(turn, group, reporter, rules.reporter_window_s).requeues
    if len(rested) < rules.reporter_requeues:
        return ""
    return f"{reporter} alone asks for it, and {len(rested)} requeues lately rest on its word"

"""Failure domains: many nodes behind one switch, rack or power feed that are lost together are one fault, the domain's.

`findings.py` calls `judge` when a loss has joined an incident by its domain; `nodes.py` asks `holds` before it fences
a node, `repair.py` before it repairs one. Such nodes are not at fault: they are neither fenced nor repaired one by
one, use up no brake, and count as well again when they are back. Who stays away when most others are back, or for
longer than `AWAY_S`, is dealt with by itself. Nothing is kept here: the incident's diagnosis says that it is a
domain's, and of which. No time passes here.
"""

from __future__ import annotations

from holdfast.decide import remedies
from holdfast.decide.turn import Turn
from holdfast.model.evidence import Diagnosis, Domain, Finding, Severity
from holdfast.model.policy import Trouble
from holdfast.model.records import IncidentRecord, Mark, NodeRecord

NODES_MIN = 3
"""Fewer losses are a coincidence, or one job's doing."""
SHARE = 0.1
"""And at least so much of the domain: three of a row's 500 nodes say nothing about the row."""
SHARED = frozenset({Trouble.NODE_LOST, Trouble.NETWORK, Trouble.PLATFORM})
"""Troubles that a rack or switch gives to all of its nodes; for others the rule must be the same, too."""
LOST = "node.lost"
AWAY_S = 8 * 3600.0
"""A night without power is waited for. After it each node is a case of its own; the brake slows what is many."""


def keys(node: NodeRecord, finding: Finding) -> list[str]:
    """The failure domains by which this fault is merged with others: the node's switch, for losses its parent too."""
    path = node.view.topology
    if not path:
        return []
    trouble = remedies.trouble_of(finding)
    if trouble not in SHARED:
        return [f"{path}|{finding.rule}"]
    parent = path.rpartition("/")[0]
    return [f"{path}|{trouble}", *([f"{parent}|{trouble}"] if parent else [])]


def path_of(incident: IncidentRecord | None) -> str:
    """The domain that the incident is about; empty when it is about nodes or jobs."""
    diagnosis = incident.diagnosis if incident is not None else None
    if diagnosis is None or diagnosis.cause != remedies.DOMAIN_LOST:
        return ""
    return diagnosis.fingerprint.partition("|")[2]


def _is_below(node: NodeRecord, path: str) -> bool:
    return node.view.topology == path or node.view.topology.startswith(f"{path}/")


def is_lost(node: NodeRecord) -> bool:
    """Is its loss all that is held against it?"""
    return bool(node.findings) and all(rule.startswith(LOST) for rule in node.findings)


def _members(turn: Turn, incident: IncidentRecord, path: str) -> list[NodeRecord]:
    known = (turn.state.nodes.get(name) for name in incident.nodes)
    return [node for node in known if node is not None and _is_below(node, path)]


def _away(incident: IncidentRecord, members: list[NodeRecord]) -> list[NodeRecord]:
    return [node for node in members if node.incident == incident.id and is_lost(node)]


def judge(turn: Turn, incident: IncidentRecord, node: NodeRecord, finding: Finding) -> bool:
    """Does this loss make the incident one of a whole domain? True when it has just become that.

    The narrowest domain that holds the losses is named; the incident's diagnosis is that from then on.
    """
    place = node.view.topology
    if not place or not finding.rule.startswith(LOST) or path_of(incident):
        return False
    for path in (place, place.rpartition("/")[0]):
        lost = [known for known in _members(turn, incident, path) if known is node or is_lost(known)] if path else []
        if node not in lost and path:
            lost.append(node)
        if len(lost) < NODES_MIN:
            continue
        all_nodes = sum(1 for known in turn.state.nodes.values() if _is_below(known, path))
        if len(lost) >= SHARE * all_nodes:
            _declare(turn, incident, path, lost, all_nodes)
            return True
    return False


def _declare(turn: Turn, incident: IncidentRecord, path: str, lost: list[NodeRecord], all_nodes: int) -> None:
    summary = f"{path} has failed: {len(lost)} of its {all_nodes} nodes were lost together"
    incident.diagnosis = Diagnosis(
        cause=remedies.DOMAIN_LOST,
        domain=Domain.NETWORK,
        summary=summary,
        confidence=0.9,
        nodes=tuple(node.name for node in lost),
        restart_helps=True,
        fingerprint=f"{remedies.DOMAIN_LOST}|{path}",
        story=f"{summary}. What they share is at fault, not they: they are not fenced one by one, and count as well "
        "again when they are back. Look at the switch, the rack or its power.",
    )
    turn.stamp(incident, Mark.DIAGNOSED)
    turn.tell(incident, f"Diagnosis: {summary}.")
    turn.notify(incident.id, Severity.ERROR, f"{path} has failed", incident.diagnosis.story)
    turn.touch(incident)


def holds(turn: Turn, node: NodeRecord, incident: IncidentRecord | None) -> bool:
    """Is the node away because of its domain, which is not back yet?"""
    path = path_of(incident)
    if incident is None or not path or not _is_below(node, path) or not is_lost(node):
        return False
    if turn.now - incident.opened_at > AWAY_S:
        return False
    members = _members(turn, incident, path)
    away = {known.name for known in _away(incident, members)} | {node.name}
    return 2 * len(away) > len(members)  # with half of them back it is the rest that has a trouble of its own

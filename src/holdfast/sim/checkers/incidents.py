"""Incidents: each names the true cause in its story, and each closes."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.model import events as e
from holdfast.model.records import IncidentRecord
from holdfast.sim.history import Faulted, History, NodeMended

NEAR_S = 900.0
"""Faults of one node or job that are closer than this may rightly be taken for one another."""
_DOMAIN = "node.lost.domain"
_GROUPS = frozenset({"switch", "rack", "power"})
EARLY_S = 60.0
"""Clocks of nodes go wrong by so much at most."""


def incidents_close(history: History) -> Iterator[str]:
    """When nothing goes wrong any more, every incident ends, unless it waits for a person's hold or for nodes."""
    held = {job.key for job in history.jobs if job.held_by} | history.starved()
    for incident in history.incidents:
        if incident.closed_at or (incident.jobs_open and set(incident.jobs_open) <= held and not incident.nodes_open):
            continue
        waits = [str(key) for key in incident.jobs_open] + incident.nodes_open
        last = incident.story[-1] if incident.story else "no story"
        yield f"incident {incident.id} is still open, waiting for {', '.join(waits) or 'nothing'} ({last})"


def stories_name_the_cause(history: History) -> Iterator[str]:
    """A fault that stood alone and was seen is what its incident's diagnosis names, and the story says so."""
    faults = [deed for deed in history.deeds if isinstance(deed, Faulted)]
    seen = {
        step.event.finding.id: step.event.finding for step in history.steps if isinstance(step.event, e.FindingSeen)
    }
    for fault in faults:
        if not fault.rules or not _alone(fault, faults):
            continue
        for incident in _of(fault, history.incidents):
            rules = {finding.rule for finding in incident.findings if finding.id in seen}
            diagnosis = incident.diagnosis
            if not rules & set(fault.rules) or diagnosis is None:
                continue
            if diagnosis.cause == _DOMAIN and _domain_failed(incident, faults):
                continue  # what it began with was swallowed by the loss of all that stands around it
            if _is_told_late(diagnosis.cause, incident, fault, history):
                continue
            if fault.job is None and _ended_a_job(diagnosis.cause, incident, fault, faults):
                continue
            if diagnosis.cause not in fault.rules:
                yield (
                    f"incident {incident.id} names {diagnosis.cause}; it was {fault.fault} ({', '.join(fault.rules)})"
                )
            elif not _told(incident):
                yield f"the story of incident {incident.id} does not tell its cause {diagnosis.cause}"


def _alone(fault: Faulted, faults: list[Faulted]) -> bool:
    """No other fault is near enough in time to be meant."""
    return not any(other.fault != fault.fault and abs(other.at - fault.at) <= NEAR_S for other in faults)


def _is_told_late(cause: str, incident: IncidentRecord, fault: Faulted, history: History) -> bool:
    """Is its cause an older fault of the same machine, which nobody has mended and whose word came late?"""
    for older in history.deeds:
        if isinstance(older, Faulted) and older.node == fault.node and older.at < fault.at and cause in older.rules:
            mends = [deed.at for deed in history.deeds if isinstance(deed, NodeMended) and deed.node == fault.node]
            if not any(older.at <= at <= incident.opened_at for at in mends):
                return True
    return False


def _ended_a_job(cause: str, incident: IncidentRecord, fault: Faulted, faults: list[Faulted]) -> bool:
    """Is its cause a later fault of the same machine, which ended a job while this one's incident was open?"""
    return any(
        later.node == fault.node and later.job in incident.jobs and cause in later.rules
        for later in faults
        if fault.at < later.at <= (incident.closed_at or float("inf"))
    )


def _domain_failed(incident: IncidentRecord, faults: list[Faulted]) -> bool:
    """Did a switch, rack or power feed fail while it was open?"""
    until = incident.closed_at or float("inf")
    return any(fault.kind in _GROUPS and incident.opened_at - NEAR_S <= fault.at <= until for fault in faults)


def _of(fault: Faulted, incidents: list[IncidentRecord]) -> Iterator[IncidentRecord]:
    """Incidents that this fault may have opened."""
    for incident in incidents:
        near = -EARLY_S <= incident.opened_at - fault.at <= NEAR_S
        here = fault.node in incident.nodes or any(f.place.node == fault.node for f in incident.findings if fault.node)
        mine = fault.job is not None and fault.job in incident.jobs
        if near and (here or mine):
            yield incident


def _told(incident: IncidentRecord) -> bool:
    diagnosis = incident.diagnosis
    words = (diagnosis.summary or diagnosis.cause).rstrip(". ") if diagnosis is not None else ""
    return any(words in line for line in incident.story)

"""What happens to the record of an incident, and which jobs and nodes it waits for. Marks are `Turn.stamp`.

Imported by the flows as `incident_record`. The time is the event's.
"""

from __future__ import annotations

from holdfast.decide.records.turn import Turn
from holdfast.decide.state import Drill
from holdfast.model import story
from holdfast.model.evidence import Diagnosis, Finding, Remedy, Role
from holdfast.model.records import AttemptRecord, IncidentRecord, JobRecord, Mark, NodeRecord

FINDINGS_MAX = 48
"""Findings kept per incident: with 10,000 ranks the rest says nothing new."""
RECOVERED = "recovered"
GIVEN_UP = "given_up"
CANCELLED = "cancelled"
OBSERVED = "observed"
_WORTH = (OBSERVED, CANCELLED, RECOVERED, GIVEN_UP)
"""Of the outcomes of several jobs the last of these is the one that people must know of."""


def create(turn: Turn, finding: Finding) -> IncidentRecord:
    """A new trouble, told of by this finding. Should nothing attach itself, it is closed at the end of the turn."""
    incident = IncidentRecord(id=f"i{turn.outgoing.new_id()}", opened_at=turn.now, source=turn.event.source)
    turn.state.incidents[incident.id] = turn.closing[incident.id] = incident
    incident.marks[Mark.DETECTED] = turn.now
    incident.said_at = incident.marks[Mark.FAULT] = min(finding.at or turn.now, turn.now)
    turn.changes.add(incident)
    return incident


def keep(turn: Turn, incident: IncidentRecord, finding: Finding) -> bool:
    """Add evidence, bounded: roots push out what is less telling. False when it is known, or is not kept."""
    found = incident.findings
    if any(known.id == finding.id for known in found):
        return False
    turn.changes.add(incident)
    if len(found) >= FINDINGS_MAX:
        incident.findings_dropped += 1
        if finding.role is not Role.ROOT:
            return False
        lesser = [i for i, f in enumerate(found) if f.role is not Role.ROOT]
        if not lesser:
            return False
        del found[next((i for i in lesser if found[i].role is Role.CONTEXT), lesser[0])]
    found.append(finding)
    return True


def dated(incident: IncidentRecord, said: float, began: float) -> None:
    """Its evidence was first reported at `said`, and the fault is as old as `began` at least."""
    incident.said_at = said
    incident.marks[Mark.FAULT] = min(incident.marks.get(Mark.FAULT, began), began)


def is_drill(turn: Turn, incident: IncidentRecord, drill: Drill) -> None:
    """A drill injected its fault, and knows the true time."""
    incident.drill = drill.id
    incident.said_at = incident.marks[Mark.FAULT] = drill.at
    turn.state.drills.remove(drill)
    turn.tell(incident, f"This is drill {drill.id}.")


def diagnosed(turn: Turn, incident: IncidentRecord, diagnosis: Diagnosis) -> None:
    """This is its cause, as far as anybody knows."""
    incident.diagnosis = diagnosis
    turn.changes.add(incident)


def tried(turn: Turn, incident: IncidentRecord, rung: Remedy) -> None:
    """A rung was taken."""
    incident.remedies.append(rung)
    turn.changes.add(incident)


# --- the sides that it waits for --------------------------------------------------------------------------------------


def waits_for_job(turn: Turn, incident: IncidentRecord, job: JobRecord) -> None:
    """The trouble concerns this job; the attempt that runs when the first job joins is the one that it breaks."""
    if job.key not in incident.jobs:
        incident.jobs.append(job.key)
    incident.jobs_open.append(job.key)
    incident.jobs_done = False
    turn.index.incidents_of.setdefault(job.about, set()).add(incident.id)
    attempt = job.attempt
    if attempt is not None and incident.attempt_before is None:
        incident.attempt_before, incident.step_before = attempt.number, attempt.reached
    turn.changes.add(incident)


def waits_for_node(turn: Turn, incident: IncidentRecord, node: NodeRecord) -> bool:
    """The trouble concerns this node. False when the node has one that it is waited for in already."""
    if node.name in incident.nodes_open:
        return False
    if node.name not in incident.nodes:
        incident.nodes.append(node.name)
        turn.changes.add(incident)
    if node.incident in turn.state.incidents:
        return False
    incident.nodes_open.append(node.name)
    incident.nodes_done = False
    node.incident = incident.id
    turn.index.incidents_of.setdefault(node.about, set()).add(incident.id)
    turn.changes.add(incident)
    turn.changes.add(node)
    return True


def job_settled(turn: Turn, incident: IncidentRecord, job: JobRecord, outcome: str, why: str) -> None:
    """This job's side of it is through, and governs the job no longer; so does no wish of a person about it."""
    incident.jobs_open.remove(job.key)
    _side_done(turn, incident, job.about)
    comes_to(incident, outcome)
    turn.tell(incident, f"Job {job.name}: {why}")
    if job.incident == incident.id:
        turn.state.approved.pop(job.about, None)
        job.incident = ""
        turn.changes.add(job)


def node_settled(turn: Turn, incident: IncidentRecord, node: NodeRecord, why: str) -> None:
    """This node's side of it is through, and governs the node no longer; so does no repair that a person asked for."""
    turn.state.approved.pop(node.about, None)
    if node.incident == incident.id:
        node.incident = ""
        turn.changes.add(node)
    if node.name in incident.nodes_open:
        incident.nodes_open.remove(node.name)
        _side_done(turn, incident, node.about)
        turn.tell(incident, f"{node.name}: {why}")


def _side_done(turn: Turn, incident: IncidentRecord, about: str) -> None:
    turn.closing[incident.id] = incident
    ids = turn.index.incidents_of.get(about)
    if ids is not None:
        ids.discard(incident.id)
        if not ids:
            del turn.index.incidents_of[about]


def comes_to(incident: IncidentRecord, outcome: str) -> None:
    """It ends like this, unless something that people must rather know has come of it."""
    incident.outcome = max(incident.outcome or outcome, outcome, key=_WORTH.index)


def close_done(turn: Turn) -> None:
    """Close what has no open side; at a turn's end, since one side may be settled before another is opened."""
    for incident in turn.closing.values():
        incident.jobs_done, incident.nodes_done = not incident.jobs_open, not incident.nodes_open
        turn.changes.add(incident)
        if incident.jobs_done and incident.nodes_done and incident.id in turn.state.incidents:
            _close(turn, incident)


def _close(turn: Turn, incident: IncidentRecord) -> None:
    if not incident.outcome:
        returned = RECOVERED if Mark.NODE_RETURNED in incident.marks else OBSERVED
        incident.outcome = GIVEN_UP if Remedy.RETIRE in incident.remedies else returned
    incident.closed_at = turn.now
    turn.stamp(incident, Mark.CLOSED)
    turn.timers.cancel(f"settle:{incident.id}")
    turn.state.approved.pop(incident.id, None)
    del turn.state.incidents[incident.id]
    lost = incident.lost_steps
    steps = f" {lost} steps had to be done again." if lost else ""
    took = story.seconds(turn.now - incident.marks.get(Mark.FAULT, incident.opened_at))
    turn.tell(incident, f"Closed after {took}: {incident.outcome.replace('_', ' ')}.{steps}")


# --- the attempts before and after ------------------------------------------------------------------------------------


def stepped(turn: Turn, job: JobRecord, attempt: AttemptRecord, step: int) -> None:
    """How far the attempt had come that it broke; words of that may come late."""
    incident = turn.state.incidents.get(attempt.incident)
    if incident is None or incident.attempt_before != attempt.number:
        return
    if not incident.is_observed(job.about) and step > (incident.step_before or -1):
        incident.step_before = step
        turn.changes.add(incident)


def goes_on(turn: Turn, incident: IncidentRecord, mark: Mark, job: JobRecord, at: float | None = None) -> None:
    """The job goes on with its newest attempt, as the mark says; at its first step that has told from where."""
    turn.stamp(incident, mark, at)
    attempt = job.attempt
    if attempt is not None and (mark is not Mark.PROVEN or incident.attempt_after is None):
        incident.attempt_after = attempt.number
    if attempt is not None and mark is Mark.FIRST_STEP:
        incident.step_resumed = attempt.resumed_from

"""Incidents as traces: one root, a span for each phase, findings as moments, and ids that do not depend on who asks."""

from __future__ import annotations

from holdfast.model.cluster import JobKey
from holdfast.model.evidence import Diagnosis, Domain, Finding, Place, Role
from holdfast.model.records import IncidentRecord, Mark
from holdfast.report.spans import spans
from holdfast.report.timeline import timeline

MARKS = {
    Mark.FAULT: 100.0, Mark.DETECTED: 101.0, Mark.ISOLATED: 102.0, Mark.REQUEUED: 104.0, Mark.STARTED: 110.0,
    Mark.FIRST_STEP: 112.0, Mark.PROVEN: 120.0, Mark.NODE_REPAIRED: 150.0, Mark.NODE_RETURNED: 160.0,
}  # fmt: skip


def incident(**changes: object) -> IncidentRecord:
    found = Finding(id="f", rule="nvidia.xid.74", at=100.5, place=Place(node="n1", gpu=3), role=Role.ROOT, summary="x")
    said = Diagnosis(cause="nvidia.xid.74", domain=Domain.HARDWARE, confidence=0.9, summary="NVLink is down")
    values = {
        "id": "i1", "opened_at": 101.0, "jobs": [JobKey("c", "7")], "nodes": ["n1"], "findings": [found],
        "diagnosis": said, "marks": dict(MARKS), "closed_at": 160.0, "outcome": "recovered", "drill": "xid74",
    }  # fmt: skip
    return IncidentRecord(**(values | changes))


def test_the_phases_are_the_timelines_and_the_nodes_follow():
    """Children lie side by side from the fault to the proof, then the node's own; all in one trace, under the root."""
    made = spans(incident(), "c")
    root, children = made[0], made[1:]
    assert (root.name, root.start, root.end, root.parent_id) == ("incident nvidia.xid.74", 100.0, 160.0, 0)
    names = [phase.name for phase in timeline(incident()).phases]
    assert [one.name for one in children] == [*names, "repair node", "return node"]
    assert [one.start for one in children[: len(names)]] == [100.0, *(one.end for one in children[: len(names) - 1])]
    assert (children[-1].start, children[-1].end) == (150.0, 160.0)
    assert {one.parent_id for one in children} == {root.span_id}
    assert (
        {one.trace_id for one in made} == {spans(incident(), "c")[0].trace_id} != {spans(incident(), "d")[0].trace_id}
    )
    assert len({one.span_id for one in made}) == len(made)


def test_what_is_known_of_the_incident_is_on_the_root():
    """Cause, outcome, job, node and drill as attributes, findings as moments; a job that was given up is an error."""
    root = spans(incident(), "c")[0]
    assert root.attributes["holdfast.drill"] == "xid74"
    assert root.attributes["holdfast.jobs"] == ("7",)
    assert [(one.name, one.at) for one in root.moments] == [("nvidia.xid.74", 100.5)]
    assert root.failed == ""
    assert spans(incident(outcome="given_up"))[0].failed == "given up"


def test_an_open_incident_is_no_trace_and_one_without_marks_has_no_phases():
    """What is not over is not sent; little is known: only the root."""
    assert spans(incident(closed_at=0.0)) == []
    assert [one.name for one in spans(incident(marks={}, diagnosis=None))] == ["incident unknown"]

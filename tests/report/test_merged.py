"""One timeline out of events of machines whose clocks differ, others like an incident, and CSV."""

from __future__ import annotations

import csv
import io

import pytest
from tests.report.test_forms import report

from holdfast.controller.fleet import incident_line
from holdfast.model import events as e
from holdfast.model.cluster import JobKey, NodeView
from holdfast.model.evidence import Diagnosis, Evidence, EvidenceKind, Finding, Place, Remedy, Role, Severity
from holdfast.model.orders import Notify, OrderStatus, QuarantineNode
from holdfast.model.records import IncidentRecord, Mark, OrderRecord
from holdfast.report.csv_form import HEADINGS, render_csv
from holdfast.report.merged import clock_offsets, merged, narrowed
from holdfast.report.similar import similar
from holdfast.report.timeline import node_phases

KEY = JobKey("lab", "7")


def ended(seq: int, at: float, received: float, source: str) -> e.AttemptEnded:
    return e.AttemptEnded(
        id=f"e{seq}", at=at, received_at=received, seq=seq, source=source, job=KEY, attempt=0, exit_code=1
    )


def incident(**fields: object) -> IncidentRecord:
    return IncidentRecord(id="i-1", opened_at=1000.0, jobs=[KEY], closed_at=1100.0, **fields)  # type: ignore[arg-type]


def test_a_clock_that_is_off_is_set_right() -> None:
    """A node that is 60 s behind, and one that is 60 s ahead: their lines stand where they belong, marked as shifted."""
    events = [
        ended(1, 940.02, 1000.05, "agent:behind"),
        ended(2, 1001.0, 1001.02, "launcher:7"),
        ended(3, 1061.98, 1002.0, "agent:ahead"),
    ]
    lines = merged(incident(), events)
    assert [line.source for line in lines] == ["agent:behind", "launcher:7", "agent:ahead"]
    assert [round(line.shifted_s) for line in lines] == [60, 0, -60]


def test_a_message_that_only_came_late_is_not_shifted() -> None:
    """An agent's spool is sent an hour later: its other messages show that its clock is right."""
    events = [
        ended(1, 1000.0, 1000.02, "agent:a"),
        ended(2, 1010.0, 4600.0, "agent:a"),
        ended(3, 1020.0, 4600.0, "agent:a"),
    ]
    assert clock_offsets(events) == {}
    assert [line.at for line in merged(incident(), events)] == [1000.0, 1010.0, 1020.0]


def test_only_what_concerns_the_incident_is_shown() -> None:
    """Another job's event, and one of its own a minute before, stay out."""
    other = e.AttemptEnded(
        id="x", at=1001.0, received_at=1001.0, seq=9, source="launcher:8", job=JobKey("lab", "8"), attempt=0
    )
    lines = merged(incident(), [other, ended(1, 900.0, 900.0, "launcher:7"), ended(2, 1001.0, 1001.0, "launcher:7")])
    assert [line.seq for line in lines] == [2]


def test_each_line_says_whose_word_it_is() -> None:
    """Kernel, application, scheduler, person: by the evidence, each piece of it in a line; narrowed by any of them."""
    seen = Finding(
        id="f", rule="nvidia.xid.74", at=1001.0, place=Place(node="n1"), evidence=(
            Evidence(EvidenceKind.LOG, "NVRM: Xid 74", file="kmsg", line=7),
            Evidence(EvidenceKind.LOG, "NCCL WARN", file="slurm-7.out", line=3),
            Evidence(EvidenceKind.COUNTER, "3 of 4 links"),
        ),
    )  # fmt: skip
    base = {"at": 1001.0, "received_at": 1001.0}
    events = [
        e.FindingSeen(id="a", **base, seq=1, source="agent:n1", finding=seen),
        e.OperatorCommand(id="b", **base, seq=2, source="api", command=e.Command.REQUEUE, job=KEY, who="kim"),
        ended(3, 1001.0, 1001.0, "slurm"),
    ]
    lines = merged(incident(nodes=["n1"], findings=[seen]), events)
    assert [(line.origin, line.seq) for line in lines] == [
        ("kernel", 1), ("application", 1), ("agent", 1), ("person", 2), ("scheduler", 3)
    ]  # fmt: skip
    assert lines[1].text == "slurm-7.out:3: NCCL WARN"
    assert [line.seq for line in narrowed(lines, "kernel, person")] == [1, 2]
    assert narrowed(lines, "") == lines


def with_cause(name: str, cause: str, fingerprint: str, at: float) -> IncidentRecord:
    finding = Finding(id=name, rule=cause, at=at, role=Role.ROOT, fingerprint=fingerprint, place=Place(node=name))
    return IncidentRecord(
        id=name, opened_at=at, findings=[finding], diagnosis=Diagnosis(cause=cause), outcome="recovered",
        marks={Mark.FAULT: at, Mark.FIRST_STEP: at + 4},
    )  # fmt: skip


def test_others_like_it_are_found_by_fingerprint_then_by_cause() -> None:
    """Same fingerprint on another node first, then the same cause; itself and strangers never."""
    own = with_cause("i-9", "exit.signal.11", "segv in loader", 900.0)
    others = [
        own,
        with_cause("i-1", "exit.signal.11", "segv in loader", 100.0),
        with_cause("i-2", "exit.signal.11", "segv elsewhere", 200.0),
        with_cause("i-3", "torch.cuda.oom", "oom", 300.0),
    ]
    got = similar(incident_line(own), map(incident_line, others))
    assert [(one.incident, one.is_same_fingerprint, one.recovered_s) for one in got] == [
        ("i-1", True, 4.0),
        ("i-2", False, 4.0),
    ]


def test_csv_has_a_row_for_each_incident_and_no_formula() -> None:
    """The header names each mark; words from outside cannot become a spreadsheet's formula."""
    data = report()
    data.incidents[0].drill = "=cmd()"
    rows = list(csv.reader(io.StringIO(render_csv(data))))
    assert tuple(rows[0]) == HEADINGS
    assert len(rows) == 2
    row = dict(zip(rows[0], rows[1], strict=True))
    assert (row["cause"], row["lost_steps"], row["drill"]) == ("exit.signal.11", "11", "'=cmd()")
    assert float(row["detected_at"]) - float(row["fault_at"]) > 0


def test_csv_of_the_fleet_names_its_sections() -> None:
    """Each row begins with the section it belongs to."""
    rows = list(csv.reader(io.StringIO(render_csv(report(), "fleet"))))
    assert {row[0] for row in rows} >= {"section", "fleet"}


def test_what_was_ordered_and_what_the_scheduler_saw_stand_between_the_lines() -> None:
    """The controller's orders with their outcomes; a look that shows nothing new is not shown; messages to people neither."""
    base = {"source": "slurm"}
    drained = NodeView(name="n1", drained=True, drain_reason="[holdfast] Xid 79", state_text="DRAINING")
    seen = [
        e.NodeObserved(id=f"o{seq}", seq=seq, at=1000.5 + seq, received_at=1000.5 + seq, node=view, **base)  # type: ignore[arg-type]
        for seq, view in enumerate([drained, drained, NodeView(name="n1", state_text="IDLE")], start=1)
    ]
    orders = [
        OrderRecord(QuarantineNode(id="c1.1", cause=1, node="n1", why="Xid 79"), OrderStatus.DONE, 1001.0, 1001.2, detail="drained"),
        OrderRecord(Notify(id="c1.2", cause=1, topic="t", severity=Severity.INFO, title="t", text="t"), OrderStatus.DONE, 1001.0),
    ]  # fmt: skip
    lines = merged(incident(nodes=["n1"]), seen, orders)
    assert [(line.origin, line.kind, line.place, line.text) for line in lines] == [
        ("controller", "order", "n1", "quarantine node: Xid 79"),
        ("controller", "outcome", "n1", "quarantine node done: drained"),
        ("scheduler", "node_observed", "n1", "DRAINING, drained, [holdfast] Xid 79"),
        ("scheduler", "node_observed", "n1", "IDLE"),
    ]


def test_a_nodes_own_phases_add_up_to_its_return() -> None:
    """Detect, isolate, drain, the repair, validate; a job that stopped after the repair drained nothing."""
    marks = {
        Mark.FAULT: 10.0, Mark.DETECTED: 10.5, Mark.ISOLATED: 11.0, Mark.STOPPED: 12.0, Mark.PROVEN: 99.0,
        Mark.NODE_REPAIRED: 20.0, Mark.NODE_RETURNED: 23.0,
    }  # fmt: skip
    one = incident(marks=marks, remedies=[Remedy.QUARANTINE, Remedy.REQUEUE, Remedy.REPLACE])
    assert [(p.name, p.seconds) for p in node_phases(one)] == [
        ("detect", 0.5), ("isolate", 0.5), ("drain", 1.0), ("replace", 8.0), ("validate", 3.0)
    ]  # fmt: skip
    one.marks[Mark.STOPPED] = 21.0
    assert [p.name for p in node_phases(one)] == ["detect", "isolate", "replace", "validate"]
    assert sum(p.seconds for p in node_phases(one)) == 13.0
    one.marks[Mark.STOPPED] = 50.0
    assert sum(p.percent for p in node_phases(one)) == pytest.approx(100.0)
    del one.marks[Mark.NODE_REPAIRED]
    assert node_phases(one) == ()

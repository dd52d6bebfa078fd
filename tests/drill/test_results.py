"""What a run is written down as: stable JSON and JUnit XML."""

import json
from xml.etree import ElementTree as ET

from holdfast.drill.results import DrillResult, DrillRun, render_json, render_junit, run_form, skipped
from holdfast.drill.scenario import find
from holdfast.drill.verdict import Check, Fired
from holdfast.model.evidence import Diagnosis
from holdfast.model.records import IncidentRecord, Mark

GOOD = Check(name="cause", passed=True, expected="exit.signal.9", actual="exit.signal.9")
BAD = Check(name="lost steps", passed=False, expected="at most 3", actual="17 \x1b[31m<&>")


def result(*checks):
    incident = IncidentRecord(
        id="i1",
        opened_at=100.1,
        closed_at=104.0,
        outcome="recovered",
        diagnosis=Diagnosis(cause="exit.signal.9", ranks=(3,), nodes=("node02",)),
        marks={Mark.FAULT: 100.0, Mark.DETECTED: 100.25, Mark.STARTED: 101.0, Mark.PROVEN: 104.0},
        step_before=47,
        step_resumed=30,
    )
    fired = Fired(at=100.0, node="node02", rank=3, step=47)
    return DrillResult(name="kill9", kind="kill9", checks=list(checks), fired=fired, incident=incident, seconds=9.0)


def test_json_has_the_documented_form():
    """`passed`, and per drill the incident's phases in seconds and the lost steps."""
    run = DrillRun(seed=1, workload="counter", drills=[result(GOOD), skipped(find("nan_loss"), "needs torch")])
    form = json.loads(render_json(run))
    assert form["version"] == 1
    assert form["passed"] is True
    drill, left_out = form["drills"]
    assert drill["phases"] == {"detect": 0.25, "start": 0.75, "prove": 3.0}
    assert drill["offsets"]["proven"] == 4.0
    assert (drill["detect_s"], drill["recover_s"], drill["lost_steps"]) == (0.25, 4.0, 17)
    assert drill["target"] == {"rank": 3, "node": "node02", "step": 47}
    assert drill["suspects"] == {"nodes": ["node02"], "ranks": [3]}
    assert (left_out["skipped"], left_out["passed"], left_out["reason"]) == (True, False, "needs torch")


def test_a_run_passes_when_every_tried_drill_has():
    """Skipped ones do not count, and a run of nothing has not passed."""
    left_out = skipped(find("nan_loss"), "needs torch")
    assert DrillRun(seed=1, drills=[result(GOOD), left_out]).passed
    assert not DrillRun(seed=1, drills=[result(GOOD), result(GOOD, BAD)]).passed
    assert not DrillRun(seed=1, drills=[result()]).passed
    assert not DrillRun(seed=1, drills=[left_out]).passed
    assert not run_form(DrillRun(seed=1))["passed"]


def test_junit_is_xml_that_names_what_failed():
    """Control characters of log text do not break it."""
    run = DrillRun(seed=1, seconds=18.0, drills=[result(GOOD, BAD), result(GOOD), skipped(find("good"), "why not")])
    suite = ET.fromstring(render_junit(run)).find("testsuite")
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("3", "1", "1")
    failed, passed, left_out = suite.findall("testcase")
    assert "at most 3" in failed.find("failure").get("message")
    assert "?[31m<&>" in failed.find("failure").text
    assert passed.find("failure") is None
    assert left_out.find("skipped").get("message") == "why not"

"""The verdict: each expectation is checked against the truth of what was hit."""

import pytest

from holdfast.drill.scenario import read_scenario
from holdfast.drill.verdict import Check, Fired, Seen, drill_incident, judge
from holdfast.model.cluster import JobKey
from holdfast.model.evidence import Diagnosis, Domain, Remedy
from holdfast.model.orders import CaptureStacks, Notify, OrderStatus, QuarantineNode, RestartInPlace, StartTimer
from holdfast.model.records import IncidentRecord, JobState, Mark, OrderRecord

JOB = JobKey("c", "7")
FAULT = 1000.0


def scenario(expect, kind="kill9"):
    return read_scenario(f'name = "x"\nkind = "{kind}"\n[expect]\n{expect}\n')


def incident(**changes):
    fields = {
        "id": "i1",
        "opened_at": FAULT + 0.1,
        "jobs": [JOB],
        "diagnosis": Diagnosis(cause="exit.signal.9", domain=Domain.UNKNOWN, nodes=("node02",), ranks=(3, 1)),
        "remedies": [Remedy.RESTART_IN_PLACE],
        "marks": {Mark.FAULT: FAULT, Mark.DETECTED: FAULT + 0.2, Mark.PROVEN: FAULT + 12.0},
        "step_before": 47,
        "step_resumed": 40,
    }
    return IncidentRecord(**{**fields, **changes})


def seen(found=None, **changes):
    fields = {"fired": Fired(at=FAULT, node="node02", rank=3), "incidents": [found] if found else []}
    return Seen(**{**fields, **changes})


def order(what, status=OrderStatus.DONE):
    return OrderRecord(order=what, status=status, issued_at=FAULT + 1)


def verdicts(text, found, **changes):
    kind = changes.pop("kind", "kill9")
    return {check.name: check.passed for check in judge(scenario(text, kind), seen(found, **changes), found)}


@pytest.mark.parametrize(
    ("expect", "name", "passed"),
    [
        ('causes = ["exit.signal.9"]', "cause", True),
        ('causes = ["nvidia.*", "exit.*"]', "cause", True),
        ('causes = ["exit.signal.11"]', "cause", False),
        ('causes = ["exit.signal"]', "cause", False),
        ('domains = ["hardware", "unknown"]', "domain", True),
        ('domains = ["hardware"]', "domain", False),
        ('suspect = "rank"', "suspect", True),
        ('suspect = "node"', "suspect", True),
        ('suspect = "none"', "suspect", False),
        ('remedies = ["requeue", "restart_in_place"]', "remedy", True),
        ('remedies = ["requeue"]', "remedy", False),
        ("detect_s_max = 0.5", "detected in time", True),
        ("detect_s_max = 0.1", "detected in time", False),
        ("recover_s_max = 12.0", "recovered in time", True),
        ("recover_s_max = 11.9", "recovered in time", False),
        ("lost_steps_max = 7", "lost steps", True),
        ("lost_steps_max = 6", "lost steps", False),
    ],
)
def test_each_expectation_is_checked(expect, name, passed):
    """One line of the scenario, one check."""
    assert verdicts(expect, incident()) == {name: passed}


def test_step_times_widen_the_detection_limit():
    """Three step times plus two seconds, as hangs are promised."""
    late = incident(marks={Mark.FAULT: FAULT, Mark.DETECTED: FAULT + 4.9})
    text = "detect_s_max = 2.0\ndetect_steps_max = 3.0"
    assert verdicts(text, late, step_s=1.0) == {"detected in time": True}
    assert verdicts(text, late, step_s=0.5) == {"detected in time": False}


def test_nothing_seen_fails_everything_that_was_expected():
    """No incident: neither cause nor suspect nor recovery."""
    text = (
        'causes = ["*"]\ndomains = ["unknown"]\nsuspect = "rank"\nremedies = ["requeue"]\ndetect_s_max = 9.0\n'
        "recover_s_max = 9.0\nlost_steps_max = 9"
    )
    assert set(verdicts(text, None).values()) == {False}
    assert len(verdicts(text, None)) == 7


def test_the_wrong_suspect_is_no_suspect():
    """The first rank named must be the one that was hit."""
    wrong = incident(diagnosis=Diagnosis(cause="hang.step", ranks=(1, 3)))
    assert verdicts('suspect = "rank"', wrong) == {"suspect": False}


def test_must_not_act_lets_notices_and_looks_pass_and_nothing_else():
    """A look-alike line may be noticed; a restart or a fence fails the drill. What was only recorded is no deed."""
    harmless = [
        order(Notify(id="1", cause=1, topic="t")),
        order(StartTimer(id="2", cause=1, timer="t", after_s=1)),
        order(CaptureStacks(id="3", cause=1, job=JOB, attempt=0)),
        order(QuarantineNode(id="4", cause=1, node="n"), OrderStatus.OBSERVED),
    ]
    text = "must_not_act = true"
    good = {"does not act": True, "attempt goes on": True}
    assert verdicts(text, None, orders=harmless, kind="good") == good
    deed = order(RestartInPlace(id="5", cause=1, job=JOB, attempt=1, epoch=2), OrderStatus.PENDING)
    assert verdicts(text, None, orders=[*harmless, deed], kind="good") == good | {"does not act": False}
    assert verdicts(text, None, attempts_after=1, kind="good") == good | {"attempt goes on": False}


def test_remedies_of_orders_count_beside_those_of_the_incident():
    """The node's rungs (quarantine) stand in orders."""
    fence = order(QuarantineNode(id="1", cause=1, incident="i1", remedy=Remedy.QUARANTINE, node="node02"))
    assert verdicts('remedies = ["quarantine"]', incident(), orders=[fence]) == {"remedy": True}
    observed = order(fence.order, OrderStatus.OBSERVED)
    assert verdicts('remedies = ["quarantine"]', incident(), orders=[observed]) == {"remedy": False}


def test_completion_loss_and_the_nodes_return_are_checked():
    """Equal to the last bit, completed, and back in service."""
    text = "job_completes = true\nloss_matches = true\nnode_returns = true\nattempt_goes_on = true"
    good = verdicts(text, incident(), job_state=JobState.COMPLETED, loss_difference=0.0, node_healthy=True)
    assert good == {"job completes": True, "loss": True, "node returns": True, "attempt goes on": True}
    bad = verdicts(text, incident(), loss_difference=1e-9, attempts_after=1)
    assert set(bad.values()) == {False}


@pytest.mark.parametrize(("difference", "passed"), [(None, True), (0.0, True), (0.25, False), (float("inf"), False)])
def test_a_run_that_is_left_alone_needs_no_reference(difference, passed):
    """It did no step twice: where the undisturbed run's losses cannot be computed, it is that run. A fault's run is not."""
    alone = verdicts("must_not_act = true\nloss_matches = true", None, kind="good", loss_difference=difference)
    assert alone["loss"] is passed
    broken = verdicts("loss_matches = true", incident(), loss_difference=difference)
    assert broken == {"loss": passed and difference is not None}


def test_a_fault_that_could_not_be_injected_fails_with_the_reason():
    """The reason stands in the check, and nothing else is judged."""
    (check,) = judge(scenario('causes = ["*"]'), Seen(fired=None, problem="no torch module"), None)
    assert check == Check(name="carried out", passed=False, expected="the fault is injected", actual="no torch module")


def test_the_drills_own_incident_is_found_among_others():
    """By its mark, else by an expected cause, else the first."""
    what = scenario('causes = ["exit.*"]')
    other = incident(id="a", diagnosis=Diagnosis(cause="hang.step"))
    mine = incident(id="b")
    assert drill_incident([other, mine], "d", what) is mine
    assert drill_incident([mine, incident(id="c", drill="d")], "d", what).id == "c"
    assert drill_incident([other], "d", what) is other
    assert drill_incident([], "d", what) is None

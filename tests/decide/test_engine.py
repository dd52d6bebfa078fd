"""The three walks of the design, from fault to closed incident, as lists of orders."""

from __future__ import annotations

import pytest
from tests.decide.play import KEY, kinds, match

from holdfast.model import events as e
from holdfast.model import orders as o
from holdfast.model.cluster import SchedulerState
from holdfast.model.evidence import Remedy
from holdfast.model.records import Authority, JobState, Mark, NodeState

S = SchedulerState


def test_a_killed_rank_is_restarted_in_place(inside):
    """The launcher stops the attempt, waits for the evidence to settle, and restarts with the next number and epoch."""
    orders = inside.crash()
    assert kinds(orders) == ["StopAttempt"]
    assert match(
        next(x for x in orders if isinstance(x, o.StopAttempt)),
        o.StopAttempt,
        job=KEY,
        attempt=0,
        incident=inside.incident.id,
    )
    assert inside.state is JobState.STOPPING
    assert kinds(inside.ended(0, last_step=130)) == []
    assert inside.state is JobState.DIAGNOSING
    orders = inside.settle()
    assert kinds(orders) == ["RestartInPlace"]
    assert match(inside.open(o.RestartInPlace), o.RestartInPlace, attempt=1, epoch=2, exclude_nodes=())
    assert inside.state is JobState.IN_PLACE
    assert inside.incident.diagnosis.cause == "exit.signal.11"
    assert inside.incident.diagnosis.ranks == (5,)
    inside.start(1, in_place=1, epoch=2)
    assert inside.state is JobState.PROVING
    inside.first_step(1, 101, resumed_from=100)
    assert inside.state is JobState.PROVING
    orders = inside.checkpoint(1, 140)
    assert inside.state is JobState.WATCHING
    (incident,) = inside.closed
    assert incident.outcome == "recovered"
    assert incident.lost_steps == 30
    assert [mark for mark in Mark if mark in incident.marks] == [
        Mark.FAULT, Mark.DETECTED, Mark.DIAGNOSED, Mark.STOPPED, Mark.REQUEUED, Mark.STARTED, Mark.FIRST_STEP, Mark.PROVEN, Mark.CLOSED,
    ]  # fmt: skip
    times = [incident.marks[mark] for mark in Mark if mark in incident.marks and mark is not Mark.DIAGNOSED]
    assert times == sorted(times)


def test_the_controller_makes_the_same_moves_and_orders_nothing(play):
    """What the launcher decides the controller's engine only follows: same states, no orders to launchers or nodes."""
    assert kinds(play.crash()) == []
    assert play.state is JobState.STOPPING
    assert kinds(play.ended(0)) == []
    assert kinds(play.settle()) == []
    assert play.state is JobState.IN_PLACE
    assert kinds(play.start(1, in_place=1)) == []
    assert play.state is JobState.PROVING
    play.first_step(1, 101, resumed_from=100)
    play.checkpoint(1, 140)
    assert play.state is JobState.WATCHING
    assert play.closed[0].outcome == "recovered"


def test_xid_74_takes_the_node_away_and_brings_the_job_back_without_it(play):
    """Quarantine and held requeue at once, exclusion before release, replacement, validation, return: one incident."""
    orders = play.xid("n2")
    assert kinds(orders) == ["QuarantineNode", "RequeueHeld"]
    assert match(play.open(o.QuarantineNode), o.QuarantineNode, node="n2", instance_id="machine-n2")
    assert match(play.open(o.RequeueHeld), o.RequeueHeld, job=KEY, restart_count=0)
    assert (play.ns("n2"), play.state) == (NodeState.QUARANTINED, JobState.STOPPING)
    incident = play.incident
    play.done(o.QuarantineNode)
    assert play.ns("n2") is NodeState.DRAINING
    assert Mark.ISOLATED in incident.marks
    play.done(o.RequeueHeld)
    assert play.j.authority is Authority.CONTROLLER
    play.job(state=S.HELD, restart_count=1, nodes=())
    assert play.ns("n2") is NodeState.REPAIRING
    assert match(play.open(o.ReplaceNode), o.ReplaceNode, node="n2", instance_id="machine-n2")
    play.ended(0, last_step=150)
    assert kinds(play.settle()) == ["SetExcluded"]
    assert match(play.open(o.SetExcluded), o.SetExcluded, nodes=("n2",))
    assert play.state is JobState.HELD
    assert kinds(play.done(o.SetExcluded)) == ["ReleaseJob"]
    assert match(play.open(o.ReleaseJob), o.ReleaseJob, epoch=2)
    play.done(o.ReleaseJob)
    assert play.state is JobState.RELEASED
    play.job(state=S.PENDING, reason="Resources", lacks_nodes=True)
    assert play.state is JobState.WAITING_FOR_NODES
    play.job(state=S.RUNNING, nodes=("n1", "n3", "n4", "n5"), reason="")
    assert play.state is JobState.RESTARTING
    play.attach(restart_count=1, nodes=("n1", "n3", "n4", "n5"))
    assert play.j.authority is Authority.LAUNCHER
    play.start(1, restart_count=1, epoch=2, nodes=("n1", "n3", "n4", "n5"))
    play.first_step(1, 101, resumed_from=100)
    play.checkpoint(1, 200)
    assert play.state is JobState.WATCHING
    assert not incident.closed_at
    play.done(o.ReplaceNode)
    assert play.ns("n2") is NodeState.REPAIRING
    play.node("n2", instance_id="machine-new", boot_id="b2", drained=True, drain_reason="[holdfast] Xid 74")
    assert play.ns("n2") is NodeState.VALIDATING
    assert match(play.open(o.ValidateNode), o.ValidateNode, instance_id="machine-new")
    play.do(e.NodeValidated, node="n2", passed=True, instance_id="machine-new")
    play.done(o.ReturnNode)
    assert play.ns("n2") is NodeState.HEALTHY
    assert play.closed == [incident]
    assert incident.outcome == "recovered"
    assert incident.remedies == [Remedy.QUARANTINE, Remedy.REQUEUE, Remedy.REPLACE]
    assert incident.lost_steps == 50


def test_a_hang_is_looked_at_before_it_is_ended(inside):
    """Stacks first; the odd rank is named; then the attempt is stopped and restarted in place."""
    orders = inside.hang()
    assert kinds(orders) == ["CaptureStacks"]
    assert inside.state is JobState.DIAGNOSING
    groups = (
        e.StackGroup(ranks=(0, 1, 2, 4, 5, 6, 7), frames=("all_reduce (x.py:1)",)),
        e.StackGroup(ranks=(3,), frames=("sleep (y.py:2)",)),
    )
    orders = inside.do(e.StacksCaptured, job=KEY, attempt=0, groups=groups, odd_ranks=(3,))
    assert kinds(orders) == ["StopAttempt"]
    assert inside.incident.diagnosis.ranks == (3,)
    assert inside.incident.diagnosis.nodes == ("n2",)
    orders = inside.ended(0)
    assert kinds(orders) == ["RestartInPlace"]
    assert inside.open(o.RestartInPlace).exclude_nodes == ()
    inside.start(1, in_place=1)
    inside.first_step(1, 101, resumed_from=100)
    inside.checkpoint(1, 120)
    assert inside.closed[0].outcome == "recovered"


def test_a_wait_is_as_old_as_it_says(inside):
    """The fault is where the wait began; what is judged by its order goes by when it was reported. The odd rank of the
    stacks explains the wait and is dated just before the report, behind an Xid that came in the middle of the wait."""
    inside.now += 3600.0
    inside.hang(captures={"stuck_s": "30.000"})
    said = inside.incident.findings[0].at
    assert inside.incident.marks[Mark.FAULT] == said - 30.0
    assert inside.incident.marks[Mark.DETECTED] == inside.now
    assert inside.incident.said_at == said
    inside.finding(
        "nccl.timeout",
        job=KEY,
        attempt=0,
        source="launcher:7",
        seen_at=said - 1.0,
        captures={"timeout_ms": "60000", "elapsed_ms": "60052"},
    )
    assert inside.incident.marks[Mark.FAULT] == pytest.approx(said - 1.0 - 60.052)
    assert inside.incident.said_at == said - 1.0
    inside.do(e.StacksCaptured, job=KEY, attempt=0, groups=(), odd_ranks=(3,))
    odd = next(found for found in inside.incident.findings if found.rule == "hang.rank")
    assert odd.at == pytest.approx(said - 1.001)


@pytest.mark.parametrize("told", ["1e9", "-5", ""])
def test_what_is_no_number_of_seconds_dates_nothing(inside, told):
    """A capture comes from a line of text."""
    inside.hang(captures={"stuck_s": told})
    assert inside.incident.marks[Mark.FAULT] == inside.incident.said_at


def test_nothing_waited_before_its_attempt_began(inside):
    """A wait that says more is a misprint, or counts from a start before."""
    inside.hang(captures={"stuck_s": "999999999999"})
    assert inside.incident.marks[Mark.FAULT] == inside.j.attempt.started_at < inside.incident.said_at


def test_a_time_limit_is_no_wait(inside):
    """A batch system says how long the job ran, not for how long it stood."""
    inside.finding("launching.time_limit", job=KEY, attempt=0, source="launcher:7", captures={"elapsed_s": "86437"})
    assert inside.incident.marks[Mark.FAULT] == inside.incident.said_at


def test_a_wait_that_is_told_late_is_as_old_as_it_says(inside):
    """Its launcher could not reach us for minutes."""
    inside.now += 3600.0
    inside.hang(captures={"stuck_s": "30.000"}, seen_at=inside.now - 300.0)
    assert inside.incident.marks[Mark.FAULT] == inside.incident.said_at - 30.0 == inside.now - inside.step_s - 330.0


def test_a_drills_fault_is_when_it_was_fired(inside):
    """The drill knows better than whoever found it."""
    inside.do(e.DrillFired, drill="d1", kind="hang_step", job=KEY, node="n1")
    fired = inside.now
    inside.hang(captures={"stuck_s": "30.000"})
    assert inside.incident.marks[Mark.FAULT] == fired


def test_a_hang_without_stacks_goes_on_after_its_limit(inside):
    """Stacks that never come delay the restart by `stacks_s`, no longer."""
    inside.hang()
    assert kinds(inside.fire("job:")) == ["StopAttempt"]

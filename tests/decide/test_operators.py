"""What people say: commands on nodes and jobs, and that their word wins."""

from __future__ import annotations

import pytest
from tests.decide.play import KEY, NODES, Play, kinds

from holdfast.model import events as e
from holdfast.model import orders as o
from holdfast.model.cluster import JobKey, SchedulerState
from holdfast.model.evidence import Domain, Finding, Place, Remedy, Role, Severity
from holdfast.model.orders import OrderStatus
from holdfast.model.policy import Mode
from holdfast.model.records import JobState, NodeState

S = SchedulerState
C = e.Command


@pytest.fixture
def idle():
    return Play().nodes()


def refused(play: Play) -> list[str]:
    return [title for title in play.notices() if title.startswith("Refused")]


# --- nodes ------------------------------------------------------------------------------------------------------------


def test_drain_keeps_the_node_until_somebody_returns_it(idle):
    """No repair, no check: the person knows why."""
    orders = idle.say(C.DRAIN, node="n2", why="firmware")
    assert kinds(orders) == ["QuarantineNode"]
    assert idle.open(o.QuarantineNode).why == "mei: firmware"
    idle.done(o.QuarantineNode)
    assert idle.ns() is NodeState.DRAINING
    assert kinds(idle.node("n2", drained=True, drain_reason="[holdfast] mei")) == []
    assert idle.engine.open_incidents() == []
    assert kinds(idle.say(C.RETURN, node="n2")) == ["ReturnNode"]
    assert idle.ns() is NodeState.HEALTHY


def test_drain_twice_is_one_drain(idle):
    """It says so in the node's story."""
    idle.say(C.DRAIN, node="n2")
    assert kinds(idle.say(C.DRAIN, node="n2")) == []
    assert "already" in idle.n().story[-1]


def test_return_refused_for_somebody_elses_drain(idle):
    """Only a drain that we set is lifted."""
    idle.node("n2", drained=True, drain_reason="memory test")
    assert kinds(idle.say(C.RETURN, node="n2")) == []
    assert refused(idle) == ["Refused: return n2"]


def test_drain_refused_where_somebody_else_has_drained(idle):
    """Their reason would be lost."""
    idle.node("n2", drained=True, drain_reason="memory test")
    assert kinds(idle.say(C.DRAIN, node="n2")) == []
    assert refused(idle) == ["Refused: drain n2"]


@pytest.mark.parametrize(("command", "kind"), [(C.REBOOT, o.RebootNode), (C.REPLACE, o.ReplaceNode)])
def test_repair_by_word(idle, command, kind):
    """Fenced, drained, repaired as asked, validated, returned; brake and mode are not asked."""
    idle.say(C.SET_MODE, value="observe")
    assert kinds(idle.say(command, node="n2", why="noise")) == ["QuarantineNode"]
    idle.done(o.QuarantineNode)
    order = idle.open(kind)
    assert order.node == "n2"
    idle.done(kind)
    idle.node("n2", boot_id="b9", instance_id="i9" if kind is o.ReplaceNode else "machine-n2")
    idle.do(e.NodeValidated, node="n2", passed=True)
    idle.done(o.ReturnNode)
    assert idle.ns() is NodeState.HEALTHY
    assert idle.closed[0].diagnosis.cause == f"operator.{command}"
    assert idle.closed[0].outcome == "recovered"


def test_repair_by_word_approves_that_nodes_repair_alone(idle):
    """Two nodes share an incident: where people decide, the same repair of the other one waits for them."""
    idle.nodes(topology="row1/rack3")
    idle.say(C.SET_MODE, value="advise", remedy="reboot")
    for name in ("n2", "n3"):
        idle.do(e.NodeGone, node=name, evidence="connection reset")
    assert idle.incident.nodes_open == ["n2", "n3"]
    idle.say(C.REBOOT, node="n2")
    for name in ("n2", "n3"):
        idle.done(o.QuarantineNode, node=name)
    found = {r.order.node: r.status for r in idle.engine.state.orders.values() if isinstance(r.order, o.RebootNode)}
    assert found == {"n2": OrderStatus.PENDING, "n3": OrderStatus.PROPOSED}


def test_repair_by_word_that_cannot_begin_approves_no_later_one(idle):
    """Its quarantine failed, and the node was left to people: the next fault of the node is another matter."""
    idle.say(C.SET_MODE, value="advise", remedy="reboot")
    idle.say(C.REBOOT, node="n2")
    idle.fail(o.QuarantineNode, "no such node")
    idle.xid("n2", number=73)
    idle.done(o.QuarantineNode)
    (record,) = [r for r in idle.engine.state.orders.values() if isinstance(r.order, o.RebootNode)]
    assert record.status is OrderStatus.PROPOSED


@pytest.mark.parametrize("rule", ["operator.frobnicate", "operator.", "operator.evacuate"])
def test_a_report_under_a_rule_of_people_from_an_older_journal_is_repaired_like_any_other(idle, rule):
    """Agents could report so once. No person has named a repair, so the policy's ladder does."""
    finding = Finding(
        id="f9",
        rule=rule,
        at=1.0,
        domain=Domain.HARDWARE,
        severity=Severity.FATAL,
        place=Place(node="n2"),
        role=Role.ROOT,
    )
    idle.do(e.FindingSeen, finding=finding, source="agent:n2")
    idle.done(o.QuarantineNode)
    assert idle.open(o.RebootNode).node == "n2"


def test_repair_by_word_waits_for_the_jobs():
    """Nobody is thrown off by it."""
    play = Play().running()
    play.say(C.REBOOT, node="n2")
    assert kinds(play.done(o.QuarantineNode)) == []
    assert play.state is JobState.WATCHING
    assert kinds(play.job(state=S.COMPLETED, nodes=())) == ["RebootNode"]


def test_repair_by_word_during_repair_is_refused(idle):
    """One thing after the other."""
    idle.xid("n2")
    idle.done(o.QuarantineNode)
    assert kinds(idle.say(C.REBOOT, node="n2")) == []
    assert refused(idle) == ["Refused: reboot n2"]


def test_a_person_may_choose_another_repair_while_it_drains():
    """The node drains for a replacement; mei wants a reboot."""
    play = Play().plain(recovery=None)
    play.xid("n2")
    play.done(o.QuarantineNode)
    play.say(C.REBOOT, node="n2")
    assert kinds(play.job(state=S.COMPLETED, nodes=())) == ["RebootNode"]


def test_a_retired_node_can_be_repaired_by_word(idle):
    """The person has mended what kept it out."""
    idle.xid("n2")
    idle.done(o.QuarantineNode)
    idle.fail(o.ReplaceNode)
    assert idle.ns() is NodeState.RETIRED
    assert kinds(idle.say(C.REPLACE, node="n2")) == ["ReplaceNode"]
    assert idle.ns() is NodeState.REPAIRING


def test_confirm_healthy_ends_suspicion_and_its_plans(idle):
    """A person vouches: proposals and orders end, our drain is lifted."""
    idle.xid("n2")
    idle.done(o.QuarantineNode)
    orders = idle.say(C.CONFIRM_HEALTHY, node="n2", why="false alarm")
    assert kinds(orders) == ["ReturnNode"]
    assert idle.ns() is NodeState.HEALTHY
    assert idle.opened(o.ReplaceNode) == []
    assert idle.engine.open_incidents() == []


def test_a_fresh_fault_after_a_word_of_health_is_fenced_again(idle):
    """The return that is still under way must not undo the new quarantine."""
    idle.xid("n2")
    idle.done(o.QuarantineNode)
    idle.say(C.CONFIRM_HEALTHY, node="n2")
    returning = idle.open(o.ReturnNode).id
    idle.now += 60.0
    assert kinds(idle.xid("n2", 79)) == ["QuarantineNode"]
    idle.do(e.OrderDone, order=returning)
    assert idle.ns() is NodeState.QUARANTINED


def test_evacuate_a_node():
    """Its jobs save, stop and go elsewhere; the node is drained."""
    play = Play().running()
    orders = play.say(C.EVACUATE, node="n2")
    assert kinds(orders) == ["QuarantineNode", "SaveAndStop"]
    assert play.state is JobState.EVACUATING
    assert play.j.excluded == ("n2",)
    play.ended(0, exit_code=85, signal=None)
    play.do(e.Escalated, job=KEY, attempt=0, why="saved")
    assert play.opened(o.RequeueHeld)
    play.through_queue()
    play.checkpoint(1, 200)
    assert play.state is JobState.WATCHING


def test_evacuate_a_node_without_jobs_is_refused(idle):
    """Drain is the word for that."""
    assert kinds(idle.say(C.EVACUATE, node="n2")) == []
    assert refused(idle) == ["Refused: evacuate n2"]


# --- jobs -------------------------------------------------------------------------------------------------------------


def test_requeue_by_word():
    """Stopped, held, released; no budget is charged; the incident's cause is the person's word."""
    play = Play().running()
    assert kinds(play.say(C.REQUEUE, job=KEY, why="new data")) == ["RequeueHeld"]
    play.through_queue(nodes=("n1", "n2", "n3", "n4"))
    assert play.j.requeues == 0
    play.checkpoint(1, 200)
    assert play.closed[0].diagnosis.cause == "operator.requeue"
    assert play.closed[0].outcome == "recovered"


def test_requeue_by_word_where_mode_only_observes():
    """A person's word needs no approval."""
    play = Play().running()
    play.say(C.SET_MODE, value="observe")
    assert kinds(play.say(C.REQUEUE, job=KEY)) == ["RequeueHeld"]


def test_requeue_by_word_during_a_restart_in_place():
    """The person does not wait for the launcher."""
    play = Play().running()
    play.crash()
    assert kinds(play.say(C.REQUEUE, job=KEY)) == ["RequeueHeld"]
    assert len(play.engine.open_incidents()) == 1


def test_requeue_of_what_is_in_the_queue_is_refused():
    """It is where it should be."""
    play = Play().running()
    play.xid("n2")
    play.done(o.RequeueHeld)
    assert kinds(play.say(C.REQUEUE, job=KEY)) == []
    assert refused(play)


def test_hold_keeps_it_in_the_queue_until_released():
    """Held by mei: excluded and diagnosed, but not released before she says so."""
    play = Play().running()
    play.xid("n2")
    play.say(C.HOLD, job=KEY, why="let me look")
    play.done(o.RequeueHeld)
    play.job(state=S.HELD, restart_count=1, nodes=())
    assert kinds(play.settle()) == []
    assert play.state is JobState.HELD
    assert kinds(play.say(C.RELEASE, job=KEY)) == ["SetExcluded"]
    assert kinds(play.done(o.SetExcluded)) == ["ReleaseJob"]


def test_hold_between_exclusion_and_release():
    """Said in time."""
    play = Play().running()
    play.xid("n2")
    play.done(o.RequeueHeld)
    play.settle()
    play.say(C.HOLD, job=KEY)
    assert play.opened(o.SetExcluded) == []
    assert kinds(play.say(C.RELEASE, job=KEY)) == ["SetExcluded"]


def test_hold_after_the_release_takes_it_back():
    """Still pending: held again, by the order that ensures it."""
    play = Play().running()
    play.until_release()
    play.done(o.ReleaseJob)
    play.job(state=S.PENDING)
    (order,) = [x for x in play.say(C.HOLD, job=KEY) if isinstance(x, o.RequeueHeld)]
    assert order.restart_count == 0
    play.done(o.RequeueHeld)
    play.job(state=S.HELD)
    assert play.state is JobState.HELD
    assert play.j.held_by == "mei"


def test_a_hold_of_what_is_queued_already_costs_no_retry():
    """No attempt has ended since the last restart that was counted: the person's wish is not a failure."""
    play = Play().running()
    play.until_release()
    play.done(o.ReleaseJob)
    play.job(state=S.PENDING)
    play.say(C.HOLD, job=KEY)
    play.done(o.RequeueHeld)
    assert play.state is JobState.HELD
    assert play.j.requeues == 1


def next_requeue(play: Play) -> list[OrderStatus]:
    """The job is let go, and its start never comes: what becomes of the requeue that Holdfast wants then."""
    play.job(state=S.HELD, restart_count=1, nodes=())
    if any(name.startswith("settle:") for name in play.engine.state.timers):
        play.settle()
    for kind in (o.SetExcluded, o.ReleaseJob):
        if play.opened(kind):
            play.done(kind)
    play.job(state=S.RUNNING, restart_count=1, nodes=NODES)
    play.fire(f"job:{KEY.cluster}")
    return [r.status for r in play.engine.state.orders.values() if isinstance(r.order, o.RequeueHeld)]


def test_requeue_by_word_approves_that_requeue_alone():
    """Where people decide, the next one of the same recovery waits for them."""
    play = Play().running()
    play.say(C.SET_MODE, value="advise")
    assert kinds(play.say(C.REQUEUE, job=KEY)) == ["RequeueHeld"]
    play.done(o.RequeueHeld)
    assert next_requeue(play) == [OrderStatus.PROPOSED]


def test_requeue_by_word_in_a_recovery_approves_that_requeue_alone():
    """Also where the incident was open already, and names more than this job."""
    play = Play().running()
    play.say(C.SET_MODE, value="advise")
    play.crash()
    assert kinds(play.say(C.REQUEUE, job=KEY)) == ["RequeueHeld"]
    play.done(o.RequeueHeld)
    assert next_requeue(play) == [OrderStatus.PROPOSED]


def test_evacuation_by_word_approves_its_own_requeue_alone():
    """The job saves, stops and is requeued, as was asked for. What comes after waits for people."""
    play = Play().running()
    play.say(C.SET_MODE, value="advise")
    assert kinds(play.say(C.EVACUATE, job=KEY)) == ["SaveAndStop"]
    play.ended(0, exit_code=85, signal=None)
    assert kinds(play.do(e.LauncherLapsed, job=KEY, left=True, exit_code=85)) == ["RequeueHeld"]
    play.done(o.RequeueHeld)
    assert next_requeue(play) == [OrderStatus.PROPOSED]


def test_requeue_by_word_of_a_start_that_hangs():
    """It has its nodes and does not come up: the person need not wait for the time limit."""
    play = Play().running()
    play.until_release()
    play.done(o.ReleaseJob)
    play.job(state=S.RUNNING, restart_count=1, nodes=NODES)
    assert play.state is JobState.RESTARTING
    assert kinds(play.say(C.REQUEUE, job=KEY)) == ["RequeueHeld"]


def test_requeue_of_what_is_released_is_refused_and_takes_nothing_back():
    """It stands in the queue, and its exclusions are being lifted."""
    play = Play().running()
    play.until_release()
    play.done(o.ReleaseJob)
    play.job(state=S.PENDING)
    before = set(play.engine.state.orders)
    assert kinds(play.say(C.REQUEUE, job=KEY)) == []
    assert refused(play)
    assert before <= set(play.engine.state.orders)


def test_a_hold_of_what_is_queued_approves_no_requeue_of_ours():
    """One person held it; where people decide, the next requeue waits for them (here it was let go, and never began)."""
    play = Play().running()
    play.until_release()
    play.done(o.ReleaseJob)
    play.job(state=S.PENDING)
    play.say(C.SET_MODE, value="advise")
    play.say(C.HOLD, job=KEY)
    play.done(o.RequeueHeld)
    play.job(state=S.HELD)
    play.say(C.RELEASE, job=KEY)
    for kind in (o.SetExcluded, o.ReleaseJob):
        if play.opened(kind):
            play.done(kind)
    play.job(state=S.RUNNING, restart_count=1, nodes=NODES)
    play.fire(f"job:{KEY.cluster}")
    asked = [r for r in play.engine.state.orders.values() if isinstance(r.order, o.RequeueHeld)]
    assert [record.status for record in asked] == [OrderStatus.PROPOSED]


@pytest.mark.parametrize("first", ["launcher", "scheduler"])
def test_a_hold_in_the_queue_ends_when_the_job_is_seen_to_run_whoever_says_so_first(first):
    """Somebody let it go in the scheduler, and it started between two looks."""
    play = Play().running()
    play.until_release()
    play.done(o.ReleaseJob)
    play.job(state=S.PENDING)
    play.job(state=S.HELD)
    assert play.j.held_by == "a person"
    if first == "launcher":
        play.attach(restart_count=1)
    play.job(state=S.RUNNING, nodes=NODES)
    assert play.state is JobState.RESTARTING
    assert not play.j.held_by


def test_a_hold_outlives_a_start_that_it_did_not_keep_back():
    """The scheduler had requeued and started the job before anybody held it: what runs is not stopped, nor let go."""
    play = Play().running()
    play.xid("n2")
    play.say(C.HOLD, job=KEY)
    play.done(o.RequeueHeld)
    play.settle()
    assert play.state is JobState.HELD
    play.job(state=S.RUNNING, restart_count=1)
    assert play.state is JobState.RESTARTING
    assert play.j.held_by == "mei"


def test_release_of_what_nobody_holds_is_refused():
    """Nothing to release."""
    play = Play().running()
    assert kinds(play.say(C.RELEASE, job=KEY)) == []
    assert refused(play) == ["Refused: release 7"]


def test_give_up_by_word():
    """Stopped for good, with who and why."""
    play = Play().running()
    orders = play.say(C.GIVE_UP, job=KEY, why="wrong config")
    assert kinds(orders) == ["GiveUp"]
    assert "wrong config" in play.open(o.GiveUp).why
    (told,) = [one for one in orders if isinstance(one, o.Notify) and one.title.endswith("was given up")]
    assert told.text == "mei asked for it: wrong config.", "said once"
    assert play.state is JobState.GIVEN_UP
    assert play.closed[0].outcome == "given_up"


def test_evacuate_a_job_by_word():
    """Save and stop, with a limit; then through the queue."""
    play = Play().running()
    assert kinds(play.say(C.EVACUATE, job=KEY)) == ["SaveAndStop"]
    play.fire("job:")
    assert play.state is JobState.STOPPING
    assert play.opened(o.RequeueHeld)
    assert play.opened(o.SaveAndStop) == []


def test_evacuate_a_job_without_a_launcher_requeues_it():
    """Nothing could have it saved."""
    play = Play().plain()
    assert kinds(play.say(C.EVACUATE, job=KEY)) == ["RequeueHeld"]


def test_evacuate_a_job_in_recovery_is_refused():
    """There is nothing to save."""
    play = Play().running()
    play.xid("n2")
    play.done(o.RequeueHeld)
    assert kinds(play.say(C.EVACUATE, job=KEY)) == []
    assert refused(play)


@pytest.mark.parametrize(
    "fields",
    [
        {"command": C.DRAIN, "node": "nobody"},
        {"command": C.REQUEUE, "job": JobKey("c", "99")},
        {"command": C.REQUEUE, "node": "n1"},
        {"command": C.DRAIN, "job": KEY},
        {"command": C.DRAIN},
        {"command": C.APPROVE, "order": "c1.1"},
        {"command": C.REJECT},
    ],
)
def test_what_makes_no_sense_is_refused_with_a_reason(fields):
    """And changes nothing."""
    play = Play().running()
    fields = dict(fields)
    assert kinds(play.say(fields.pop("command"), **fields)) == []
    assert len(refused(play)) == 1


@pytest.mark.parametrize("command", [C.REQUEUE, C.HOLD, C.GIVE_UP, C.EVACUATE])
def test_commands_on_a_job_that_is_over_are_refused(command):
    """It is too late."""
    play = Play().running()
    play.job(state=S.COMPLETED)
    assert kinds(play.say(command, job=KEY)) == []
    assert refused(play)


def test_every_word_is_in_the_story():
    """Who, what, why."""
    play = Play().running()
    play.say(C.DRAIN, node="n2", why="firmware")
    assert any("mei says: drain. firmware" in line for line in play.n().story)
    assert Remedy.QUARANTINE not in play.j.spent


def test_a_requeue_that_a_person_asked_for_never_ends_in_giving_up(play):
    """Found by simulation (seed 5242): nodes were lost meanwhile, and the budget was used up."""
    play.j.requeues = 99
    play.say(e.Command.REQUEUE, job=KEY)
    play.xid("n2")
    play.done(o.RequeueHeld)
    play.job(state=SchedulerState.HELD, restart_count=1, nodes=())
    if any(timer.startswith("settle:") for timer in play.engine.state.timers):
        play.settle()
    assert play.state is JobState.HELD
    assert play.opened(o.SetExcluded)


@pytest.mark.parametrize(("command", "kind"), [(C.REBOOT, o.RebootNode), (C.REPLACE, o.ReplaceNode)])
@pytest.mark.parametrize("launched", [True, False])
def test_a_repair_asked_for_by_a_label_moves_the_job_at_once(command, kind, launched):
    """It saves first where it can; the node's repair begins as soon as it is empty, and the mark says which one."""
    play = Play().running() if launched else Play().plain()
    play.node("n2", asked=str(command), moves_jobs=True)
    moved = "SaveAndStop" if launched else "RequeueHeld"
    assert kinds(play.say(command, node="n2", who="a person")) == ["QuarantineNode", moved]
    assert play.open(o.QuarantineNode).repair is (Remedy.REBOOT if command is C.REBOOT else Remedy.REPLACE)
    assert "n2" in play.j.excluded
    play.done(o.QuarantineNode)
    assert play.opened(kind) == []
    if launched:
        play.ended(0, exit_code=85, signal=None)
        play.do(e.Escalated, job=KEY, attempt=0, why="saved")
    play.done(o.RequeueHeld)
    play.job(state=S.HELD, restart_count=1, nodes=())
    assert play.open(kind).node == "n2"


def test_a_repair_by_label_of_a_node_that_drains_already_moves_its_job():
    """It waited for the job to end; the person does not."""
    play = Play().plain()
    play.say(C.REPLACE, node="n2")
    assert kinds(play.done(o.QuarantineNode)) == []
    play.node("n2", drained=True, drain_reason="[holdfast] mei", asked="replace", moves_jobs=True)
    assert "RequeueHeld" in kinds(play.say(C.REPLACE, node="n2", who="a person"))


def test_a_hold_does_not_end_the_proof_of_a_job_that_runs():
    """Found by seed 32176: a trouble that was left alone while the job was held left nothing to end its proof."""
    play = Play(modes={Remedy.REQUEUE: Mode.ADVISE}).running()
    play.xid("n2")
    play.say(C.APPROVE, order=play.open(o.RequeueHeld).id)
    play.through_queue()
    play.say(C.HOLD, job=KEY)
    play.xid("n3", number=95)
    play.say(C.REJECT, order=play.open(o.RequeueHeld).id)
    assert play.state is JobState.PROVING
    play.say(C.RELEASE, job=KEY)
    play.fire("job:")

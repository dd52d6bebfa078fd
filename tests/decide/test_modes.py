"""Observe, advise, act: per rung, per group, and at run time."""

from __future__ import annotations

import msgspec
import pytest
from tests.decide.play import KEY, NODES, Play, kinds

from holdfast.decide.engine import Engine
from holdfast.decide.ladder import mode_of, set_mode
from holdfast.model import events as e
from holdfast.model import orders as o
from holdfast.model.cluster import RecoverySpec, SchedulerState
from holdfast.model.evidence import Remedy
from holdfast.model.orders import OrderStatus
from holdfast.model.policy import Brake, Limits, Mode, Policy, Trouble
from holdfast.model.records import JobState, NodeState

S = SchedulerState
R = Remedy


@pytest.mark.parametrize(
    ("overrides", "group", "rung", "mode"),
    [
        ({}, "gpu", R.REBOOT, Mode.ADVISE),
        ({}, "gpu", R.REQUEUE, Mode.ACT),
        ({"": {"": Mode.OBSERVE}}, "gpu", R.REBOOT, Mode.OBSERVE),
        ({"": {"reboot": Mode.ACT}}, "gpu", R.REBOOT, Mode.ACT),
        ({"": {"reboot": Mode.ACT}, "gpu": {"": Mode.OBSERVE}}, "gpu", R.REBOOT, Mode.OBSERVE),
        ({"gpu": {"": Mode.OBSERVE, "reboot": Mode.ACT}}, "gpu", R.REBOOT, Mode.ACT),
        ({"gpu": {"": Mode.OBSERVE}}, "cpu", R.REQUEUE, Mode.ACT),
        ({"gpu": {"": Mode.OBSERVE}}, "", R.REQUEUE, Mode.ACT),
    ],
)
def test_the_most_particular_word_holds(overrides, group, rung, mode):
    """Group and rung, group, rung, all; then the policy's rung, then its general mode."""
    policy = Policy(mode=Mode.ACT, modes={R.REBOOT: Mode.ADVISE})
    assert mode_of(policy, overrides, group, rung) is mode


def test_a_general_word_replaces_those_about_rungs():
    """`everything in gpu: observe` after `reboot in gpu: act`."""
    overrides: dict = {}
    set_mode(overrides, "gpu", "reboot", Mode.ACT)
    set_mode(overrides, "gpu", "", Mode.OBSERVE)
    assert overrides == {"gpu": {"": Mode.OBSERVE}}
    set_mode(overrides, "gpu", "reboot", Mode.ADVISE)
    assert overrides == {"gpu": {"": Mode.OBSERVE, "reboot": Mode.ADVISE}}


# --- observe ----------------------------------------------------------------------------------------------------------


def test_observe_records_and_waits_for_nothing():
    """The orders stand as observed; the job goes on as before; nothing is carried out."""
    play = Play(mode=Mode.OBSERVE).running()
    assert kinds(play.xid("n2")) == []
    observed = [record for record in play.engine.touched().orders if record.status is OrderStatus.OBSERVED]
    assert [type(record.order) for record in observed] == [o.QuarantineNode, o.RequeueHeld]
    assert (play.ns(), play.state) == (NodeState.SUSPECT, JobState.WATCHING)
    assert play.engine.pending_orders() == [
        r for r in play.engine.pending_orders() if isinstance(r.order, o.Notify | o.StartTimer)
    ]


def test_observed_incidents_take_in_the_fan_out():
    """64 ranks complain: one incident, and no second one as long as the attempt lasts."""
    play = Play(scope="allocation", mode=Mode.OBSERVE).running()
    for rank in range(8):
        play.crash(rank=rank, fingerprint=f"x:{rank}")
    assert len(play.engine.open_incidents()) == 1
    assert len(play.incident.findings) == 8


def test_an_observed_incident_closes_when_the_job_was_restarted_without_us():
    """outcome `observed`."""
    play = Play(scope="allocation", mode=Mode.OBSERVE).running()
    play.crash()
    play.start(1, in_place=1)
    assert play.closed[0].outcome == "observed"
    assert play.state is JobState.WATCHING


def test_an_observed_incident_stays_open_while_the_job_stands_at_its_fault():
    """Quiet alone ends nothing: it is looked at again, and closed once the job has come further by itself."""
    play = Play(scope="allocation", mode=Mode.OBSERVE).running()
    play.crash()
    play.fire("job:")
    assert play.incident.would == ["7(0) would have been restarted in place"]
    play.step(0, 101)
    play.fire("job:")
    assert play.closed[0].outcome == "observed"


def would(play: Play) -> list[str]:
    return [title for title in play.notices() if "would have been" in title]


def changes(play: Play) -> list[str]:
    """Everything ordered so far that changes the world."""
    return kinds(play.all)


def test_observe_diagnoses_tells_and_keeps_the_incident_of_a_running_job():
    """Xid 79: the cause is named at once, people learn what would have been done, and the matter stays open."""
    play = Play(mode=Mode.OBSERVE).running()
    play.xid("n2", 79)
    assert changes(play) == []
    assert play.incident.diagnosis.cause == "nvidia.xid.79"
    assert would(play) == ["n2 would have been quarantined", "7(0) would have been requeued"]
    assert play.incident.would == would(play)
    assert any("Xid 79" in title for title in play.notices())
    play.fire("job:")
    assert (play.incident.jobs_open, play.incident.nodes_open) == ([KEY], ["n2"])
    play.checkpoint(0, 200)
    assert (play.incident.jobs_open, play.incident.nodes_open) == ([], ["n2"])
    assert changes(play) == []


def test_observe_names_the_repair_that_would_have_followed():
    """On the notice of the quarantine."""
    play = Play(mode=Mode.OBSERVE).nodes()
    orders = play.xid("n2", 74)
    (notice,) = [order for order in orders if isinstance(order, o.Notify) and "would have" in order.title]
    assert "it would have been replaced" in notice.text


@pytest.mark.parametrize(
    "end",
    [
        lambda play: play.node("n2", instance_id="other"),
        lambda play: play.node("n2", boot_id="other"),
        lambda play: play.say(e.Command.CONFIRM_HEALTHY, node="n2"),
        lambda play: play.do(e.FindingCleared, rule="nvidia.xid.79", node="n2"),
        lambda play: (play.node("n2", drained=True, drain_reason="mei looks"), play.node("n2", drained=False)),
        lambda play: play.do(e.NodeVanished, node="n2"),
    ],
)
def test_an_idle_nodes_observed_fault_is_open_until_it_is_repaired_or_cleared(end):
    """Not closed after 0.0 s: it is diagnosed, told, and waits for people."""
    play = Play(mode=Mode.OBSERVE).nodes()
    play.xid("n2", 79)
    assert play.incident.diagnosis.cause == "nvidia.xid.79"
    assert play.ns() is NodeState.SUSPECT
    end(play)
    assert play.engine.open_incidents() == []
    assert [incident.would for incident in play.closed] == [["n2 would have been quarantined"]]
    assert changes(play) == []


def test_a_job_that_nobody_wants_recovered_does_not_wait_for_what_observe_kept_from_its_node():
    """What was observed of another says nothing of it: its side ends when it was quiet for a while."""
    play = Play(mode=Mode.OBSERVE).running()
    play.job(recovery=RecoverySpec(enabled=False))
    play.xid("n2", 79)
    assert [(one.about, one.remedy) for one in play.incident.observed] == [("node:n2", R.QUARANTINE)]
    play.fire("job:")
    assert (play.incident.jobs_open, play.incident.nodes_open) == ([], ["n2"])


def test_what_an_older_version_observed_is_still_left_to_people():
    """Its snapshot has the sentences alone."""
    play = Play(mode=Mode.OBSERVE).nodes()
    play.xid("n2", 79)
    raw = msgspec.msgpack.decode(play.engine.snapshot())
    for incident in raw["incidents"].values():
        del incident["observed"]
    play.engine = Engine.restore(msgspec.msgpack.encode(raw), play.policies)
    play.node("n2", drained=True, drain_reason="mei looks")
    play.node("n2", drained=False)
    assert play.engine.open_incidents() == []
    assert play.ns() is NodeState.HEALTHY


def test_a_lost_node_that_runs_again_ends_its_observed_incident():
    """Nobody rebooted it; the scheduler says that it answers."""
    play = Play(mode=Mode.OBSERVE).nodes()
    play.node("n2", alive=False)
    assert play.incident.nodes_open == ["n2"]
    play.node("n2", alive=True)
    assert play.engine.open_incidents() == []


def test_what_would_be_done_again_is_told_once_and_written_down_each_time():
    """64 ranks complain; each order that would have been given is in the journal."""
    play = Play(mode=Mode.OBSERVE).running()
    play.xid("n2", 79)
    play.xid("n2", 95)
    assert [r.status for r in play.engine.touched().orders if isinstance(r.order, o.QuarantineNode)] == ["observed"]
    assert len(would(play)) == 2


@pytest.mark.parametrize("scope", ["cluster", "allocation"])
@pytest.mark.parametrize("fault", ["crash", "hang", "end"])
def test_observe_orders_nothing_against_a_job(scope, fault):
    """Whatever happens to it, in the controller and in the launcher. What is over leaves with its own code."""
    play = Play(scope=scope, mode=Mode.OBSERVE).running()
    if fault == "hang":
        play.hang()
    elif fault == "crash":
        play.crash()
    else:
        play.ended(0, signal=11, stopped=False)
        if any(timer.startswith("settle:") for timer in play.engine.state.timers):
            play.settle()
    if scope == "cluster" and fault == "end":
        play.job(state=S.FAILED, signal=11)
    left = ["Escalate"] if (scope, fault) == ("allocation", "end") else []
    assert changes(play) == left
    record = (play.closed or play.engine.open_incidents())[0]
    assert record.diagnosis is not None
    assert len(record.would) == 1


def test_an_observed_hang_ends_when_the_job_moves_again():
    """It was slow."""
    play = Play(scope="allocation", mode=Mode.OBSERVE).running()
    play.step(0, 110)
    play.hang()
    assert changes(play) == []
    play.step(0, 111)
    assert play.closed[0].outcome == "observed"


def test_a_drain_of_ours_that_is_found_is_left_alone_in_observe():
    """Checks and a return would change the node."""
    play = Play(mode=Mode.OBSERVE)
    play.node("n2", drained=True, drain_reason="[holdfast] of yesterday")
    assert changes(play) == []


def test_observe_inside_an_allocation_leaves_with_the_commands_own_code():
    """The launcher restarts nothing: it hands on what the attempt ended with."""
    play = Play(scope="allocation", mode=Mode.OBSERVE).running()
    assert kinds(play.crash()) == []
    assert kinds(play.ended(0, signal=11, stopped=False)) == ["Escalate"]
    assert play.open(o.Escalate).exit_code == 128 + 11


def test_observe_for_one_rung_only():
    """Quarantine is only recorded, the requeue is done, and excludes the node all the same."""
    play = Play(modes={R.QUARANTINE: Mode.OBSERVE}).running()
    assert kinds(play.xid("n2")) == ["RequeueHeld"]
    assert play.ns() is NodeState.SUSPECT
    play.done(o.RequeueHeld)
    play.job(state=S.HELD, restart_count=1, nodes=())
    play.settle()
    assert play.open(o.SetExcluded).nodes == ("n2",)


# --- advise -----------------------------------------------------------------------------------------------------------


def advised(**fields) -> Play:
    return Play(mode=Mode.ADVISE, **fields).running()


def proposal(play: Play, kind: type):
    (record,) = [record for record in play.engine.proposed_orders() if isinstance(record.order, kind)]
    return record


def test_advise_asks_and_waits():
    """Nothing is carried out before a person's word; people are told what is asked."""
    play = advised()
    assert kinds(play.xid("n2")) == []
    assert play.state is JobState.DIAGNOSING
    assert proposal(play, o.RequeueHeld).expires_at > play.now
    assert sum(title.startswith("Approve ") for title in play.notices()) == 2


def test_approval_carries_it_out_and_covers_the_rest_of_the_rung():
    """Approving the requeue covers exclusion and release; the quarantine is asked for on its own."""
    play = advised()
    play.xid("n2")
    orders = play.say(e.Command.APPROVE, order=proposal(play, o.RequeueHeld).order.id)
    assert kinds(orders) == ["RequeueHeld"]
    assert play.state is JobState.STOPPING
    play.done(o.RequeueHeld)
    play.job(state=S.HELD, restart_count=1, nodes=())
    assert kinds(play.settle()) == ["SetExcluded"]
    assert kinds(play.done(o.SetExcluded)) == ["ReleaseJob"]
    assert play.ns() is NodeState.SUSPECT
    assert kinds(play.say(e.Command.APPROVE, order=proposal(play, o.QuarantineNode).order.id)) == ["QuarantineNode"]
    assert play.ns() is NodeState.QUARANTINED


def test_a_queued_job_is_kept_off_a_node_whose_quarantine_waits_for_a_person():
    """Nothing drains that node before they answer, so the scheduler would start the job there."""
    play = Play().running()
    play.node("n9")
    play.until_release("n2")
    play.done(o.ReleaseJob)
    play.say(e.Command.SET_MODE, value="advise", remedy="quarantine")
    assert kinds(play.xid("n9")) == ["SetExcluded"]
    assert play.open(o.SetExcluded).nodes == ("n2", "n9")


def test_approved_quarantine_then_asks_for_the_repair():
    """Each rung is asked for."""
    play = Play(mode=Mode.ADVISE).nodes()
    play.xid("n2")
    play.say(e.Command.APPROVE, order=proposal(play, o.QuarantineNode).order.id)
    assert kinds(play.done(o.QuarantineNode)) == []
    assert play.ns() is NodeState.DRAINING
    assert kinds(play.say(e.Command.APPROVE, order=proposal(play, o.ReplaceNode).order.id)) == ["ReplaceNode"]
    assert play.ns() is NodeState.REPAIRING


def test_an_approval_that_came_too_late_is_refused():
    """The proposal is checked against what is: the job has been requeued by somebody else."""
    play = advised()
    play.xid("n2")
    order = proposal(play, o.RequeueHeld).order.id
    play.job(state=S.PENDING, restart_count=1, nodes=())
    assert kinds(play.say(e.Command.APPROVE, order=order)) == []
    assert any(title.startswith("Refused: approve") for title in play.notices())


def test_an_approval_for_a_swapped_machine_is_withdrawn():
    """It was about the machine that is gone."""
    play = advised()
    play.xid("n2")
    order = proposal(play, o.QuarantineNode).order.id
    play.node("n2", instance_id="x", boot_id="x")
    assert kinds(play.say(e.Command.APPROVE, order=order)) == []


def test_rejection_leaves_everything_as_it_is():
    """The job is watched on, and the incident is settled as observed."""
    play = advised()
    play.xid("n2")
    for record in play.engine.proposed_orders():
        play.say(e.Command.REJECT, order=record.order.id, why="I look at it")
    assert play.state is JobState.WATCHING
    assert play.engine.proposed_orders() == []
    assert (
        play.n("n2").story[-1].endswith("nothing is done about it: rejected by mei: I look at it; it stays as it is.")
    )


def test_an_overtaken_proposal_leaves_the_node_to_people_while_its_return_is_under_way():
    """A person vouched for it, it is proposed for quarantine anew, and that is rejected (as seed 184706828 had it overtaken).

    The return that hangs is no plan for the node: without this it stayed suspect for ever once the return was done.
    """
    play = Play(modes={R.QUARANTINE: Mode.ADVISE}, brake=Brake(max_nodes=1, max_percent=100.0)).nodes()
    play.xid("n2")
    play.say(e.Command.APPROVE, order=proposal(play, o.QuarantineNode).order.id)
    play.done(o.QuarantineNode)
    play.say(e.Command.CONFIRM_HEALTHY, node="n2")
    play.xid("n2", number=95)
    play.say(e.Command.APPROVE, order=proposal(play, o.QuarantineNode).order.id)
    assert len(play.opened(o.QuarantineNode)) == 1  # the brake refuses, and the proposal goes on waiting
    play.say(e.Command.REJECT, order=proposal(play, o.QuarantineNode).order.id, why="not now")
    assert play.opened(o.QuarantineNode) == []
    assert not play.n().incident
    play.done(o.ReturnNode)
    assert play.ns() is NodeState.SUSPECT


def test_a_proposal_lapses():
    """Nobody decided: the order is expired, the job goes on as it is."""
    play = advised()
    play.xid("n2")
    while play.engine.proposed_orders():
        play.fire("propose:")
    assert play.state is JobState.WATCHING
    assert [record.status for record in play.engine.touched().orders if not isinstance(record.order, o.Notify)] == [
        OrderStatus.EXPIRED
    ]


def test_nothing_is_proposed_twice():
    """More evidence for the same deed asks nobody again."""
    play = advised()
    play.xid("n2")
    play.xid("n2", 79)
    play.crash()
    assert len(play.engine.proposed_orders()) == 2


def test_advise_in_an_allocation_stops_nothing_by_itself():
    """A broken attempt is only ended, and restarted, with a person's word."""
    play = Play(scope="allocation", mode=Mode.ADVISE).running()
    assert kinds(play.crash()) == []
    order = proposal(play, o.StopAttempt).order.id
    assert kinds(play.say(e.Command.APPROVE, order=order)) == ["StopAttempt"]
    play.ended(0)
    assert kinds(play.settle()) == ["RestartInPlace"]


def test_an_attempt_that_ends_while_a_person_thinks():
    """The stop has become pointless; the restart is asked for instead."""
    play = Play(scope="allocation", mode=Mode.ADVISE).running()
    play.crash()
    play.ended(0)
    if any(timer.startswith("settle:") for timer in play.engine.state.timers):
        play.settle()
    assert proposal(play, o.RestartInPlace).order.attempt == 1


# --- at run time ------------------------------------------------------------------------------------------------------


def twice_in_trouble() -> Play:
    """Handed over by its launcher, a requeue proposed; then two nodes of it fail one after the other."""
    play = Play(mode=Mode.ADVISE).running()
    play.do(e.Escalated, job=KEY, attempt=0, why="no rung", source="launcher:7")
    play.xid("n2")
    play.say(e.Command.APPROVE, order=play.open(o.QuarantineNode).id)
    play.xid("n3")
    assert len(play.engine.open_incidents()) == 2
    return play


def test_a_second_trouble_does_not_void_the_requeue_that_was_proposed():
    """It would do the same; the nodes of both troubles are left."""
    play = twice_in_trouble()
    play.say(e.Command.APPROVE, order=play.open(o.RequeueHeld).id)
    assert play.state is JobState.STOPPING
    assert set(play.j.excluded) == {"n2", "n3"}


def test_an_attempt_that_is_over_is_not_left_to_prove_itself():
    """Found by seed 3009 of the long convergence test: rejected, left alone, it waited for ever for a proof."""
    play = twice_in_trouble()
    play.say(e.Command.REJECT, order=play.open(o.RequeueHeld).id)
    assert play.state is JobState.WATCHING
    play.fire("job:")
    play.fire("job:")
    assert [incident.jobs_open for incident in play.engine.open_incidents()] == [[], []]


def test_set_mode_at_run_time():
    """One rung of one group; the next fault follows it."""
    play = Play().running()
    play.say(e.Command.SET_MODE, group="gpu", remedy="quarantine", value="observe")
    assert kinds(play.xid("n2")) == ["RequeueHeld"]
    assert "Mode of quarantine in gpu: observe" in play.notices()


@pytest.mark.parametrize(("value", "remedy"), [("acting", ""), ("act", "rebot"), ("", "")])
def test_a_mode_or_rung_that_does_not_exist_is_refused(value, remedy):
    """And changes nothing."""
    play = Play().running()
    play.say(e.Command.SET_MODE, value=value, remedy=remedy)
    assert play.engine.state.modes == {}
    assert any(title.startswith("Refused: set mode") for title in play.notices())


def test_modes_survive_a_restart_of_the_engine():
    """They are part of the state."""
    play = Play().running()
    play.say(e.Command.SET_MODE, value="observe")
    play.engine = play.engine.restore(play.engine.snapshot(), play.policies)
    assert kinds(play.xid("n2")) == []
    assert KEY.id == "7"


def test_an_evacuation_may_be_approved_while_the_scheduler_shows_the_job_as_queued():
    """The scheduler's view says that nothing runs, the launcher has not reported an end: the job saves and stops."""
    ladder = (R.QUARANTINE, R.EVACUATE, R.REQUEUE, R.STOP)
    play = Play(ladders={Trouble.HARDWARE: ladder}, modes={R.EVACUATE: Mode.ADVISE}).running()
    play.xid("n2")
    order = proposal(play, o.SaveAndStop).order.id
    play.job(state=S.HELD)
    play.say(e.Command.APPROVE, order=order)
    assert play.state is JobState.EVACUATING


def test_an_end_that_was_proposed_is_taken_back_when_the_requeue_is_approved():
    """Found by seed 32133: while the end was still proposed the requeue was ordered anew each minute."""
    play = Play(mode=Mode.ADVISE, limits=Limits(max_requeues=0, max_in_place=0)).plain()
    play.crash()
    assert play.opened(o.GiveUp)
    play.xid("n3")
    play.say(e.Command.APPROVE, order=play.open(o.RequeueHeld).id)
    assert play.opened(o.GiveUp) == []
    play.done(o.RequeueHeld)
    assert play.state is JobState.DIAGNOSING


def test_an_end_that_is_approved_is_not_taken_back_by_the_jobs_own_end():
    """Found by seed 184709922: a controller that was killed before it had ended the job forgot that it was to."""
    play = Play(mode=Mode.ADVISE, limits=Limits(max_requeues=0, max_in_place=0)).plain()
    play.crash()
    order = play.open(o.GiveUp)
    play.say(e.Command.APPROVE, order=order.id)
    assert play.state is JobState.GIVEN_UP
    assert play.engine.state.orders[order.id].status is OrderStatus.PENDING


def test_a_restart_in_place_that_waits_is_asked_for_anew_when_a_further_node_must_be_left():
    """The launcher lost one node and asks; then it loses another. What a person approves leaves out both."""
    play = Play(scope="allocation", mode=Mode.ADVISE).running(nodes=NODES[:2], allocation=NODES)
    play.say(e.Command.SET_MODE, value="act")
    play.do(e.NodeGone, node="n1", evidence="connection reset")
    play.say(e.Command.SET_MODE, value="advise")
    play.ended(0)
    play.settle()
    (first,) = play.opened(o.RestartInPlace)
    assert first.exclude_nodes == ("n1",)
    play.do(e.NodeGone, node="n2", evidence="connection reset")
    (second,) = play.opened(o.RestartInPlace)
    assert second.exclude_nodes == ("n1", "n2")
    assert kinds(play.say(e.Command.APPROVE, order=first.id)) == []
    assert kinds(play.say(e.Command.APPROVE, order=second.id)) == ["RestartInPlace"]

"""The quarantine brake: its arithmetic, and that it stops new quarantines only."""

from __future__ import annotations

import pytest
from tests.decide.play import KEY, Play, kinds

from holdfast.decide.records import node as node_record
from holdfast.model import events as e
from holdfast.model import orders as o
from holdfast.model.cluster import SchedulerState
from holdfast.model.evidence import Remedy
from holdfast.model.policy import Brake, Mode
from holdfast.model.records import BrakeRecord, JobState, NodeState

S = SchedulerState
RULES = Brake(max_nodes=2, max_percent=100.0, window_s=3600.0, calm_s=600.0)


def many(count: int = 10, rules: Brake = RULES, **fields) -> Play:
    play = Play(brake=rules)
    play.nodes(*[f"n{i}" for i in range(1, count + 1)], **fields)
    return play


@pytest.mark.parametrize(
    ("nodes", "max_nodes", "percent", "limit"),
    [
        (100, 4, 25.0, 4),
        (8, 4, 25.0, 2),
        (2, 4, 25.0, 1),
        (1, 4, 25.0, 1),
        (1000, 50, 1.0, 10),
        (10, 0, 50.0, 0),
        (10, 5, 0.0, 0),
    ],
)
def test_the_smaller_limit_holds_and_one_is_always_allowed(nodes, max_nodes, percent, limit):
    """Except where policy says zero."""
    assert (
        node_record.brake_limit(Brake(max_nodes=max_nodes, max_percent=percent), BrakeRecord("g", nodes=nodes)) == limit
    )


def test_quarantines_leave_the_window():
    """Two at t=0: nothing more before t=3600."""
    record = BrakeRecord("g", nodes=10)
    for name in ("n1", "n2"):
        assert node_record.brake_allows(RULES, record, name, 0.0)
        node_record.brake_took(record, name, 0.0)
    assert not node_record.brake_allows(RULES, record, "n3", 3599.0)
    assert node_record.brake_allows(RULES, record, "n3", 3600.0)


def test_a_place_is_taken_since_the_latest_quarantine_of_its_node():
    """Within any window no more nodes are quarantined than the limit."""
    record = BrakeRecord("g", nodes=10)
    for name, at in (("n1", 0.0), ("n2", 100.0), ("n1", 3000.0)):
        node_record.brake_took(record, name, at)
    assert not node_record.brake_allows(RULES, record, "n3", 3650.0)
    assert node_record.brake_allows(RULES, record, "n3", 3700.0)


def test_what_an_older_version_counted_is_of_a_node_each():
    """Its records tell no names."""
    record = BrakeRecord("g", nodes=10, recent=[1.0, 2.0])
    assert not node_record.brake_allows(RULES, record, "n1", 10.0)
    node_record.brake_took(record, "n1", 3601.5)
    assert node_record.brake_allows(RULES, record, "n1", 3601.6)
    assert record.quarantined == {"?0": 1, "n1": 1}


def fenced_and_returned(play: Play, name: str) -> None:
    """Its agent complains, it is fenced, and a person returns it."""
    assert kinds(play.xid(name)) == ["QuarantineNode"]
    play.done(o.QuarantineNode, node=name)
    play.say(e.Command.RETURN, node=name)
    play.done(o.ReturnNode, node=name)


def test_a_node_that_is_quarantined_again_takes_one_place():
    """Its agent flaps, or lies: the group's other nodes are still fenced, and people are told the number of nodes."""
    play = many(rules=Brake(max_nodes=3, max_percent=100.0))
    for _ in range(2):
        fenced_and_returned(play, "n1")
    for name in ("n2", "n3"):
        assert kinds(play.xid(name)) == ["QuarantineNode"]
    assert kinds(play.xid("n4")) == []
    (text,) = [x.text for x in play.all if isinstance(x, o.Notify) and "brake tripped" in x.title]
    assert text.startswith("3 of 10 nodes were quarantined")
    assert kinds(play.xid("n1")) == ["QuarantineNode"]  # it has its place, also when all are taken


def test_a_node_is_quarantined_as_often_as_its_group_has_places():
    """An agent that lies of its own node ends it so often in the window, and holds back no other node."""
    play = many()
    for _ in range(2):
        fenced_and_returned(play, "n1")
    assert kinds(play.xid("n1")) == []
    assert play.ns("n1") is NodeState.SUSPECT
    brake = play.engine.state.brakes["gpu"]
    assert (brake.waiting, brake.tripped_at) == (["n1"], 0.0)
    assert play.notices().count("n1 is not quarantined again") == 1
    assert kinds(play.xid("n2")) == ["QuarantineNode"]
    repeated(play, "n1", until=play.now + 700.0)
    assert play.notices().count("n1 is not quarantined again") == 1
    play.now += 3600.0
    assert kinds(play.fire("brake:")) == ["QuarantineNode"]
    assert brake.waiting == []


def test_a_node_that_goes_on_complaining_keeps_no_other_waiting():
    """Only a node that is new to the brake begins its calm spell anew."""
    play = many()
    for name in ("n1", "n2", "n3", "n4"):
        play.xid(name)
    due = play.engine.state.timers["brake:gpu"].due_at
    repeated(play, "n3", until=play.now + 1200.0)
    assert play.engine.state.timers["brake:gpu"].due_at == due


def test_the_third_node_is_held_back():
    """Two are quarantined, the third stays suspect, people are told once."""
    play = many()
    assert kinds(play.xid("n1")) == ["QuarantineNode"]
    assert kinds(play.xid("n2")) == ["QuarantineNode"]
    assert kinds(play.xid("n3")) == []
    assert kinds(play.xid("n4")) == []
    assert play.ns("n3") is NodeState.SUSPECT
    assert play.engine.state.brakes["gpu"].waiting == ["n3", "n4"]
    assert play.notices().count("Quarantine brake tripped for gpu") == 1
    (told,) = [one for one in play.all if isinstance(one, o.Notify) and "brake tripped" in one.title]
    assert "closes by itself, in 60 min at the earliest" in told.text, (
        "its window of an hour is full, so calm is not enough"
    )


def test_a_tripped_brake_does_not_stop_repairs_returns_and_restarts():
    """A breaker that also blocks recovery leaves healthy nodes cordoned."""
    play = many(5)
    play.job(nodes=("n3",))
    play.xid("n1")
    play.xid("n2")
    orders = play.xid("n3")
    assert kinds(orders) == ["RequeueHeld"]
    assert play.j.excluded == ("n3",)
    play.done(o.QuarantineNode, node="n1")
    assert play.opened(o.ReplaceNode)
    play.done(o.ReplaceNode)
    play.node("n1", instance_id="x", boot_id="x")
    play.do(e.NodeValidated, node="n1", passed=True)
    play.done(o.ReturnNode)
    assert play.ns("n1") is NodeState.HEALTHY
    play.done(o.RequeueHeld)
    play.job(state=S.HELD, restart_count=1, nodes=())
    play.settle()
    # n2 is held back by the brake, so nothing but this keeps the job off it.
    assert play.open(o.SetExcluded).nodes == ("n2", "n3")
    play.done(o.SetExcluded)
    assert play.state is JobState.RELEASED


def queued(play: Play) -> Play:
    """Its job is released and not started yet, when the brake has no place left."""
    play.job(nodes=("n1", "n2"))
    play.until_release("n1")
    play.done(o.ReleaseJob)
    assert kinds(play.xid("n2")) == ["QuarantineNode"]
    return play


def test_a_queued_job_is_kept_off_a_node_that_the_brake_holds_back_later():
    """The scheduler would start it there, since nothing drains that node."""
    play = queued(many())
    assert kinds(play.xid("n3")) == ["SetExcluded"]
    assert play.open(o.SetExcluded).nodes == ("n1", "n3")
    assert kinds(play.xid("n4")) == []  # what is under way is waited for
    assert kinds(play.done(o.SetExcluded)) == ["SetExcluded"]
    assert play.open(o.SetExcluded).nodes == ("n1", "n3", "n4")


def test_a_queued_job_is_left_alone_where_policy_says_observe_by_now():
    """Its restart was ordered before; nothing is ordered any more."""
    play = queued(many())
    play.say(e.Command.SET_MODE, value="observe", remedy="requeue")
    assert kinds(play.xid("n3")) == []


def test_it_closes_by_itself_after_a_calm_spell():
    """And those who waited are quarantined as far as the window allows."""
    play = many()
    for name in ("n1", "n2", "n3", "n4"):
        play.xid(name)
    play.now += 3600.0
    assert kinds(play.fire("brake:")) == ["QuarantineNode", "QuarantineNode"]
    assert (play.ns("n3"), play.ns("n4")) == (NodeState.QUARANTINED, NodeState.QUARANTINED)
    assert play.engine.state.brakes["gpu"].tripped_at == 0.0


def test_the_calm_spell_begins_anew_with_each_wish():
    """The timer is replaced."""
    play = many()
    for name in ("n1", "n2", "n3"):
        play.xid(name)
    due = play.engine.state.timers["brake:gpu"].due_at
    play.now += 100.0
    play.xid("n4")
    assert play.engine.state.timers["brake:gpu"].due_at >= due


def test_it_stays_tripped_while_the_window_is_full():
    """Calm, but the limit is used up: it is looked at again when the window allows."""
    play = many(rules=Brake(max_nodes=1, max_percent=100.0, window_s=3600.0, calm_s=10.0))
    play.xid("n1")
    play.xid("n2")
    waiting = play.engine.state.timers["brake:gpu"]
    assert waiting.due_at == pytest.approx(play.now + 3600.0, abs=1.0)
    assert kinds(play.fire("brake:")) == ["QuarantineNode"]


def test_by_hand():
    """RESET_BRAKE: the window starts anew, those who waited are tried again."""
    play = many()
    for name in ("n1", "n2", "n3", "n4", "n5"):
        play.xid(name)
    assert kinds(play.say(e.Command.RESET_BRAKE, group="gpu")) == ["QuarantineNode", "QuarantineNode"]
    assert play.engine.state.brakes["gpu"].waiting == ["n5"]


def test_a_brake_nobody_knows_is_refused():
    """A typo is told."""
    play = many(2)
    play.say(e.Command.RESET_BRAKE, group="gpus")
    assert "Refused: reset brake gpus" in play.notices()


def test_a_node_whose_fault_is_gone_waits_no_longer():
    """Cleared while held back: healthy; the last one to leave closes the brake."""
    play = many()
    for name in ("n1", "n2", "n3"):
        play.xid(name)
    play.do(e.FindingCleared, node="n3", rule="nvidia.xid.74")
    assert play.ns("n3") is NodeState.HEALTHY
    assert play.engine.state.brakes["gpu"].waiting == []
    assert play.engine.state.brakes["gpu"].tripped_at == 0.0


def test_a_boot_clears_no_node_that_the_brake_holds_back_where_another_rung_is_observed():
    """Found by seed 246619699: its own fence is not left to people, so what a boot repairs is not for it to tell."""
    play = Play(brake=Brake(max_nodes=0), modes={Remedy.REQUEUE: Mode.OBSERVE}).running()
    play.xid("n2", 95)
    assert play.incident.would == ["7(0) would have been requeued"]
    play.node("n2", boot_id="other")
    assert play.ns("n2") is NodeState.SUSPECT
    assert play.engine.state.brakes["gpu"].waiting == ["n2"]


def test_groups_have_their_own_brakes():
    """The other partition is not concerned."""
    play = many(3)
    play.nodes("c1", "c2", group="cpu")
    for name in ("n1", "n2", "n3"):
        play.xid(name)
    assert kinds(play.xid("c1")) == ["QuarantineNode"]


def test_one_switch_under_many_nodes_is_one_incident_not_many_drains():
    """40 nodes lost behind one switch: one incident; once it is clear what failed nobody is fenced, no brake trips."""
    play = Play(brake=Brake(max_nodes=4, max_percent=50.0))
    play.nodes(*[f"n{i}" for i in range(40)], topology="row1/rack3/switch7")
    for i in range(40):
        play.do(e.NodeGone, node=f"n{i}", evidence="connection reset")
    assert len(play.engine.open_incidents()) == 1
    assert len(play.opened(o.QuarantineNode)) == 3
    assert len(play.incident.nodes) == 40
    assert "Quarantine brake tripped for gpu" not in play.notices()


def test_observe_uses_up_no_brake():
    """What is only recorded does not count."""
    play = many()
    play.say(e.Command.SET_MODE, value="observe")
    for i in range(1, 6):
        play.xid(f"n{i}")
    assert play.engine.state.brakes["gpu"].recent == []


def test_approval_asks_the_brake():
    """A person approves the third quarantine of the hour: it waits for the brake, and says so."""
    play = many()
    play.xid("n1")
    play.xid("n2")
    play.say(e.Command.SET_MODE, value="advise")
    play.xid("n3")
    (record,) = play.engine.proposed_orders()
    assert kinds(play.say(e.Command.APPROVE, order=record.order.id)) == []
    assert (record.is_approved, "brake" in record.waits_for) == (True, True)


def test_a_persons_drain_asks_no_brake():
    """Brakes are for the engine."""
    play = many()
    for i in range(1, 6):
        assert kinds(play.say(e.Command.DRAIN, node=f"n{i}")) == ["QuarantineNode"]
    assert KEY.id == "7"


def repeated(play: Play, name: str, *, until: float) -> None:
    """The same fault on this node once a minute: it is held back, so it goes on running and complaining."""
    while play.now < until:
        play.xid(name, at=play.now + 60.0)


def test_one_node_that_goes_on_complaining_does_not_take_a_later_one_in():
    """The brake is tripped by n3, which repeats its fault for eight minutes. n4's first one then is a case of its own."""
    play = many()
    for name in ("n1", "n2", "n3"):
        play.xid(name)
    repeated(play, "n3", until=play.now + 480.0)
    assert play.engine.state.brakes["gpu"].tripped_at
    play.xid("n4")
    assert play.engine.state.nodes["n4"].incident != play.engine.state.nodes["n3"].incident


def lost_to_the_brake() -> Play:
    """A job on n1; the scheduler loses all nodes, one of which the brake lets be fenced; the job is queued again."""
    play = many(4, Brake(max_nodes=1, max_percent=100.0))
    play.job(nodes=("n1",))
    for name in ("n1", "n2", "n3", "n4"):
        play.node(name, alive=False)
    play.done(o.QuarantineNode)
    play.done(o.RequeueHeld)
    play.job(state=S.HELD, restart_count=1, nodes=())
    play.settle()
    play.done(o.SetExcluded)
    play.done(o.ReleaseJob)
    play.job(state=S.PENDING, excluded=("n1", "n2", "n3", "n4"))
    assert set(play.j.excluded) == {"n1", "n2", "n3", "n4"}
    return play


def test_a_lost_node_that_the_brake_holds_back_is_well_when_it_runs_on():
    """Seen alive with its old boot, it was never gone: a queued job may use it again, and nobody fences it later."""
    play = lost_to_the_brake()
    for name in ("n2", "n3", "n4"):
        play.node(name, alive=True)
    assert [play.ns(name) for name in ("n2", "n3", "n4")] == [NodeState.HEALTHY] * 3
    assert play.j.excluded == ("n1",)
    assert [order.nodes for order in play.opened(o.SetExcluded)] == [("n1",)]
    assert play.engine.state.brakes["gpu"].waiting == []


def test_a_lost_node_that_the_brake_holds_back_stays_suspect_when_it_has_booted_anew():
    """It had ended, and why is not known."""
    play = lost_to_the_brake()
    play.node("n2", alive=True, boot_id="boot-2")
    assert play.ns("n2") is NodeState.SUSPECT
    assert "n2" in play.j.excluded

"""A switch, a rack or a power feed fails under its nodes: one fault, judged as one, nobody fenced one by one."""

from __future__ import annotations

import pytest
from tests.decide.play import KEY, Play

from holdfast.decide.engine import Engine
from holdfast.decide.incidents import AWAY_S
from holdfast.model import events as e
from holdfast.model import orders as o
from holdfast.model.policy import Brake
from holdfast.model.records import NodeState

SWITCH = "row1/rack3/switch7"


def behind_a_switch(count: int = 16, **brake: float) -> Play:
    play = Play(brake=Brake(**brake) if brake else Brake(max_nodes=4, max_percent=50.0))
    play.nodes(*[f"n{i}" for i in range(count)], topology=SWITCH)
    play.nodes(*[f"m{i}" for i in range(16)], topology="row1/rack4/switch8")
    return play


def lose(play: Play, *names: str) -> None:
    for name in names:
        play.do(e.NodeGone, node=name, evidence="connection reset")
        play.node(name, alive=False)


def sixteen() -> list[str]:
    return [f"n{i}" for i in range(16)]


def test_a_switch_that_fails_is_named_and_its_nodes_are_left_alone():
    """Two are fenced before it is clear; from the third on nobody is, the brake is untouched, people are told once."""
    play = behind_a_switch()
    lose(play, *sixteen())
    (incident,) = play.engine.open_incidents()
    assert incident.diagnosis.cause == "node.lost.domain"
    assert incident.diagnosis.summary == f"{SWITCH} has failed: 3 of its 16 nodes were lost together"
    assert sorted(incident.nodes) == sorted(sixteen())
    assert [order.node for order in play.all if isinstance(order, o.QuarantineNode)] == ["n0", "n1"]
    assert play.notices().count(f"{SWITCH} has failed") == 1
    assert not any("brake" in notice for notice in play.notices())
    assert play.engine.state.brakes["gpu"].tripped_at == 0.0


def test_those_that_were_fenced_first_are_not_repaired_while_it_is_away():
    """Their drains are done, yet nobody reboots them for the switch's fault; when they are back they are checked."""
    play = behind_a_switch()
    lose(play, *sixteen())
    for order in list(play.opened(o.QuarantineNode)):
        play.do(e.OrderDone, order=order.id)
    assert play.opened(o.ResetGpu) == play.opened(o.RebootNode) == play.opened(o.ReplaceNode) == []
    play.node("n0", alive=False)
    play.node("n0", alive=True, drained=True, drain_reason="[holdfast] lost")
    assert [order.node for order in play.opened(o.ValidateNode)] == ["n0"]


@pytest.mark.parametrize("word", ["scheduler", "boot", "heard"])
def test_nodes_count_as_well_again_when_they_are_back(word: str):
    """By the scheduler's word, by another boot (power), or by an agent that is heard again; the incident closes."""
    play = behind_a_switch()
    names = sixteen()
    if word == "heard":
        for name in names:
            play.do(e.NodeSilent, node=name, for_s=40.0)
    lose(play, *names)
    for order in list(play.opened(o.QuarantineNode)):
        play.do(e.OrderDone, order=order.id)
    for name in names:
        if word == "scheduler":
            play.node(name, alive=False)
            play.node(name, alive=True)
        elif word == "boot":
            play.do(e.AgentAttached, node=name, boot_id=f"second-{name}", instance_id=f"machine-{name}")
        else:
            play.node(name, alive=None)  # the scheduler no longer says that it is dead
            play.do(e.NodeHeard, node=name)
    assert {play.ns(name) for name in names[2:]} == {NodeState.HEALTHY}
    for order in list(play.opened(o.ValidateNode)):
        play.do(e.NodeValidated, node=order.node, passed=True, instance_id=f"machine-{order.node}")
    for order in list(play.opened(o.ReturnNode)):
        play.do(e.OrderDone, order=order.id)
    assert {play.ns(name) for name in names} == {NodeState.HEALTHY}
    assert play.engine.open_incidents() == []
    assert play.closed[-1].outcome == "recovered"


def test_who_boots_while_the_scheduler_cannot_reach_it_stays_lost():
    """Power came back behind a rack that is cut off (seed 8159): a new boot alone lets no job start there."""
    play = behind_a_switch()
    lose(play, *sixteen())
    play.node("n9", alive=False, boot_id="second-n9")
    assert play.n("n9").boot_id == "second-n9"
    assert play.n("n9").gone
    assert play.ns("n9") is NodeState.SUSPECT
    play.node("n9", alive=None)
    assert play.ns("n9") is NodeState.SUSPECT
    play.node("n9", alive=True)
    assert not play.n("n9").gone
    assert play.ns("n9") is NodeState.HEALTHY


def test_who_boots_out_of_the_schedulers_reach_is_back_by_its_agents_word():
    """A scheduler with boot ids of its own goes on calling it down; the agent that speaks after that boot runs."""
    play = behind_a_switch()
    lose(play, *sixteen())
    play.node("n9", alive=False, boot_id="slurm:2")
    assert play.ns("n9") is NodeState.SUSPECT
    play.do(e.AgentAttached, node="n9", boot_id="second-n9", instance_id="machine-n9")
    assert play.ns("n9") is NodeState.HEALTHY


def test_who_stays_away_when_the_others_are_back_is_fenced_by_itself():
    """Power came back, one machine did not: after the wait it is a lost node like any other."""
    play = behind_a_switch()
    lose(play, *sixteen())
    for i in range(15):
        play.do(e.AgentAttached, node=f"n{i}", boot_id=f"second-{i}", instance_id=f"machine-n{i}")
    assert "n15" not in {order.node for order in play.opened(o.QuarantineNode)}
    play.fire("node:n15")
    assert "n15" in {order.node for order in play.opened(o.QuarantineNode)}


def test_while_all_are_away_they_are_looked_at_again_and_nothing_is_ordered():
    """A night without power is no reason to fence a row."""
    play = behind_a_switch()
    lose(play, *sixteen())
    before = len(play.opened(o.QuarantineNode))
    for _ in range(5):
        play.fire("node:n9")
    assert len(play.opened(o.QuarantineNode)) == before
    assert play.ns("n9") is NodeState.SUSPECT


def test_two_losses_are_two_losses():
    """Below three nothing is said of the switch, and both are fenced."""
    play = behind_a_switch()
    lose(play, "n0", "n1")
    assert {order.node for order in play.opened(o.QuarantineNode)} == {"n0", "n1"}
    assert play.engine.open_incidents()[0].diagnosis.cause == "node.lost"


def test_three_of_many_say_nothing_about_a_large_domain():
    """Three of 40 behind one switch in two minutes are not yet a tenth of it; the fourth is."""
    play = behind_a_switch(40, max_nodes=10, max_percent=90.0)
    lose(play, "n0", "n1", "n2")
    assert play.engine.open_incidents()[0].diagnosis.cause == "node.lost"
    lose(play, "n3")
    assert play.engine.open_incidents()[0].diagnosis.cause == "node.lost.domain"


def test_a_rack_of_two_switches_is_named_as_a_rack():
    """Losses spread over both: the narrowest domain that holds them is the rack."""
    play = Play(brake=Brake(max_nodes=8, max_percent=90.0))
    play.nodes("a1", "a2", "a3", topology="row1/rack3/switch7")
    play.nodes("b1", "b2", "b3", topology="row1/rack3/switch8")
    lose(play, "a1", "b1", "a2")
    assert play.engine.open_incidents()[0].diagnosis.summary.startswith("row1/rack3 has failed: 3 of its 6")


def test_losses_that_come_one_by_one_over_the_day_are_not_one_fault():
    """Beyond the correlation window each is its own incident, fenced as ever."""
    play = behind_a_switch(16, max_nodes=16, max_percent=100.0)
    for i in range(4):
        lose(play, f"n{i}")
        play.now += 600.0
    assert len(play.engine.open_incidents()) == 4
    assert len(play.opened(o.QuarantineNode)) == 4


def test_a_fault_of_its_own_is_held_against_a_node_all_the_same():
    """A node behind the dead switch whose GPU had fallen off the bus is fenced for that."""
    play = behind_a_switch()
    lose(play, "n0", "n1", "n2")
    lose(play, "n5")
    play.xid("n5", 79)
    assert "n5" in {order.node for order in play.opened(o.QuarantineNode)}


def test_other_switches_and_nodes_without_a_place_are_not_drawn_in():
    """Another rack's node that is lost at the same time is a loss of its own."""
    play = behind_a_switch()
    play.node("x", topology="")
    lose(play, "n0", "n1", "n2", "m4", "x")
    assert {"m4", "x"} <= {order.node for order in play.opened(o.QuarantineNode)}


def test_the_jobs_on_them_move_away_as_for_any_loss():
    """The job is requeued once, away from the dead switch, by the ladder for lost nodes."""
    play = Play(brake=Brake(max_nodes=4, max_percent=50.0))
    play.nodes("n1", "n2", "n3", "n4", topology=SWITCH)
    play.nodes("m1", "m2", "m3", "m4", topology="row1/rack4/switch8")
    play.running(nodes=("n1", "n2", "n3", "n4"))
    lose(play, "n1", "n2", "n3", "n4")
    assert play.incident.diagnosis.cause == "node.lost.domain"
    assert [order.job for order in play.all if isinstance(order, o.RequeueHeld)] == [KEY]
    play.ended(0)
    play.through_queue(nodes=("m1", "m2", "m3", "m4"))
    assert play.j.excluded == ("n1", "n2", "n3", "n4")


def test_a_restarted_controller_goes_on_holding():
    """The judgement is in the incident: a snapshot keeps it."""
    play = behind_a_switch()
    lose(play, *sixteen()[:6])
    play.engine = Engine.restore(play.engine.snapshot(), play.engine.policies, presets={})
    lose(play, "n9")
    assert "n9" not in {order.node for order in play.opened(o.QuarantineNode)}


def test_a_domain_that_never_comes_back_is_not_waited_for_for_ever():
    """After a night each is a lost node like any other, as fast as the brake lets."""
    play = behind_a_switch()
    lose(play, *sixteen())
    before = {order.node for order in play.opened(o.QuarantineNode)}
    play.now += AWAY_S + 1
    play.fire("node:n9")
    assert {order.node for order in play.opened(o.QuarantineNode)} - before == {"n9"}


def test_what_a_returned_node_tells_late_still_counts():
    """Cut off with its switch while a GPU failed: it is back, nobody repaired it, so the Xid from before fences it."""
    play = behind_a_switch()
    at = play.now
    lose(play, *sixteen())
    play.now += 120.0
    play.node("n9", alive=True)
    play.do(e.NodeHeard, node="n9")
    assert play.ns("n9") is NodeState.HEALTHY
    play.xid("n9", seen_at=at)
    assert "n9" in {order.node for order in play.opened(o.QuarantineNode)}

"""A fenced node's way back: ladder, hints, validation, flapping, lemons, retirement."""

from __future__ import annotations

import pytest
from tests.decide.play import Play, kinds, match

from holdfast.decide.ladder import repair_rungs
from holdfast.model import events as e
from holdfast.model import orders as o
from holdfast.model.cluster import SchedulerState
from holdfast.model.evidence import Remedy
from holdfast.model.policy import NodeRules, Waits
from holdfast.model.records import JobState, Mark, NodeState

S = SchedulerState
R = Remedy


def fenced(play: Play, name: str = "n2", number: int = 74, **fields) -> list[o.AnyOrder]:
    play.xid(name, number, **fields)
    return play.done(o.QuarantineNode)


def repaired(play: Play, kind: type = o.ReplaceNode, name: str = "n2") -> list[o.AnyOrder]:
    """The repair is done, and the node shows it."""
    orders = play.done(kind)
    count = play.count
    if kind is o.ReplaceNode:
        orders += play.node(name, instance_id=f"machine-{count}", boot_id=f"boot-{count}")
    elif kind is o.RebootNode:
        orders += play.node(name, boot_id=f"boot-{count}")
    return orders


def returned(play: Play, name: str = "n2") -> None:
    play.do(e.NodeValidated, node=name, passed=True)
    if any(timer == f"node:{name}" for timer in play.engine.state.timers):
        play.fire(f"node:{name}")
    play.done(o.ReturnNode)


@pytest.fixture
def idle():
    return Play().nodes()


@pytest.mark.parametrize(("number", "kind"), [(73, o.RebootNode), (74, o.ReplaceNode)])
def test_the_hint_names_the_first_rung(idle, number, kind):
    """73 reboots, 74 replaces."""
    (order,) = [x for x in fenced(idle, number=number) if isinstance(x, o.NodeOrder)]
    assert isinstance(order, kind)
    assert order.node == "n2"
    assert order.instance_id == "machine-n2"


@pytest.mark.parametrize(
    ("rules", "facts", "rungs"),
    [
        ({}, {}, [R.REBOOT, R.REPLACE, R.RETIRE]),
        ({}, {"gpu": "3"}, [R.RESET_GPU, R.REBOOT, R.REPLACE, R.RETIRE]),
        ({}, {"gpu": "3", "lost": True}, [R.REBOOT, R.REPLACE, R.RETIRE]),
        ({}, {"hint": R.REPLACE}, [R.REPLACE, R.RETIRE]),
        ({"follow_hint": False}, {"hint": R.REPLACE}, [R.REBOOT, R.REPLACE, R.RETIRE]),
        ({}, {"hint": R.QUARANTINE}, [R.REBOOT, R.REPLACE, R.RETIRE]),
        ({}, {"always_replace": True, "gpu": "3", "hint": R.REBOOT}, [R.REPLACE, R.RETIRE]),
        ({}, {"lemon": True}, [R.RETIRE]),
        ({"ladder": (R.REBOOT,)}, {}, [R.REBOOT, R.RETIRE]),
    ],
)
def test_rungs(rules, facts, rungs):
    """The ladder after hints, policy and what is possible; a person is always last."""
    base = {"always_replace": False, "lemon": False, "hint": R.NONE, "gpu": "", "lost": False}
    assert repair_rungs(NodeRules(**rules), **{**base, **facts}) == rungs


def test_repair_only_when_drained():
    """A job without recovery goes on; the repair begins when it has left."""
    play = Play().plain(recovery=None)
    assert kinds(fenced(play)) == []
    assert play.ns() is NodeState.DRAINING
    assert kinds(play.node("n2", jobs=("7",))) == []
    orders = play.job(state=S.COMPLETED, nodes=())
    assert kinds(orders) == ["ReplaceNode"]


def test_a_job_only_the_scheduler_knows_keeps_the_node_busy():
    """Processes of a job that we have not been told of count as well."""
    play = Play().nodes()
    play.node("n2", jobs=("99",))
    assert kinds(fenced(play)) == []
    assert kinds(play.node("n2", jobs=())) == ["ReplaceNode"]


def test_policy_may_repair_at_once():
    """`repair_when_drained = false`: the job on it is lost anyway."""
    play = Play(node=NodeRules(repair_when_drained=False)).plain(recovery=None)
    assert kinds(fenced(play)) == ["ReplaceNode"]


def test_each_failed_repair_leads_to_the_next(idle):
    """Reset fails, reboot fails, replace fails: a person."""
    assert kinds(fenced(idle, number=1, remedy=Remedy.RESET_GPU)) == ["ResetGpu"]
    assert idle.open(o.ResetGpu).gpu == "3"
    assert kinds(idle.fail(o.ResetGpu)) == ["RebootNode"]
    assert kinds(idle.fail(o.RebootNode)) == ["ReplaceNode"]
    assert kinds(idle.fail(o.ReplaceNode)) == ["RetireNode"]
    assert idle.ns() is NodeState.RETIRED
    assert "n2 needs a person" in idle.notices()
    why = "Xid 1; no repair is left to try after reset gpu, reboot and replace (repair by replace failed: no)"
    assert idle.open(o.RetireNode).why == why
    assert [one.text for one in idle.all if isinstance(one, o.Notify) and one.asks] == [f"n2: {why}"]
    assert idle.closed[0].outcome == "given_up"
    assert idle.closed[0].remedies == [R.QUARANTINE, R.RESET_GPU, R.REBOOT, R.REPLACE, R.RETIRE]


@pytest.mark.parametrize(
    ("rules", "why"),
    [
        ({"ladder": (Remedy.RETIRE,)}, "the ladder of its policy has no repair for this"),
        ({"lemon_offences": 1}, "it was quarantined once, so no further repair is tried"),
    ],
)
def test_a_node_for_which_no_repair_is_possible_is_retired_with_its_fault(rules, why):
    """The scheduler's reason and the notice say what it has and why nothing is tried."""
    play = Play(node=NodeRules(**rules)).nodes()
    assert kinds(fenced(play)) == ["RetireNode"]
    assert play.open(o.RetireNode).why == f"Xid 74; {why}"


def test_failed_checks_lead_to_the_next_rung(idle):
    """Rebooted, but it fails its checks: replaced."""
    fenced(idle, number=73)
    assert kinds(repaired(idle, o.RebootNode)) == ["ValidateNode"]
    orders = idle.do(e.NodeValidated, node="n2", passed=False, detail="GPU 3 not found")
    assert kinds(orders) == ["ReplaceNode"]
    assert idle.ns() is NodeState.REPAIRING
    repaired(idle)
    returned(idle)
    assert idle.ns() is NodeState.HEALTHY


def test_a_repair_without_an_outcome_leads_to_the_next_rung(idle):
    """`repair_s`."""
    fenced(idle, number=73)
    assert kinds(idle.fire("node:")) == ["ReplaceNode"]
    assert idle.opened(o.RebootNode) == []


def test_the_repairs_word_is_checked_against_the_nodes_identity(idle):
    """Done, but the node shows the old machine: wait for it, then go on by the word."""
    fenced(idle)
    assert kinds(idle.done(o.ReplaceNode)) == []
    assert idle.ns() is NodeState.REPAIRING
    assert kinds(idle.fire("node:")) == ["ValidateNode"]


def test_nodes_without_identities_are_believed():
    """A scheduler that knows no boot ids."""
    play = Play()
    play.nodes(boot_id="", instance_id="")
    fenced(play, number=73)
    assert kinds(play.done(o.RebootNode)) == ["ValidateNode"]


def test_an_agent_shows_the_new_identity_too(idle):
    """AgentAttached after the boot does as well as the scheduler's view."""
    fenced(idle, number=73)
    idle.done(o.RebootNode)
    assert kinds(idle.do(e.AgentAttached, node="n2", boot_id="b2")) == ["ValidateNode"]


def test_no_validation_when_policy_asks_for_none():
    """Repaired, returned."""
    play = Play(node=NodeRules(validate=False)).nodes()
    fenced(play)
    assert kinds(repaired(play)) == ["ReturnNode"]


def test_checks_that_cannot_run_say_nothing_about_the_node(idle):
    """Neither repaired further nor returned: a person."""
    fenced(idle)
    repaired(idle)
    assert kinds(idle.fail(o.ValidateNode, "no agent")) == ["RetireNode"]
    assert idle.ns() is NodeState.RETIRED


def test_checks_that_hang_do_not_return_the_node():
    """A hung health check must not lead to a return; the node stays out of service."""
    play = Play(waits=Waits(validate_s=10.0)).nodes()
    fenced(play)
    repaired(play)
    assert kinds(play.fire("node:")) == ["RetireNode"]
    assert kinds(play.do(e.NodeValidated, node="n2", passed=True)) == []
    assert play.ns() is NodeState.RETIRED


def test_that_checks_were_run_is_no_outcome(idle):
    """OrderDone of ValidateNode says nothing; NodeValidated does."""
    fenced(idle)
    repaired(idle)
    idle.done(o.ValidateNode)
    assert idle.ns() is NodeState.VALIDATING
    assert kinds(idle.do(e.NodeValidated, node="n2", passed=True)) == ["ReturnNode"]


def test_a_fault_during_the_checks_is_the_next_rung(idle):
    """It failed again before it was returned."""
    fenced(idle, number=73)
    repaired(idle, o.RebootNode)
    assert kinds(idle.xid("n2", 79)) == ["ReplaceNode"]


def test_a_flapping_node_is_held_back_longer_each_time():
    """Came back, failed again: 300 s, then 600 s."""
    play = Play(node=NodeRules(lemon_offences=99)).nodes()
    holds = []
    for _ in range(3):
        fenced(play, number=73)
        repaired(play, o.RebootNode)
        play.do(e.NodeValidated, node="n2", passed=True)
        waiting = play.engine.state.timers.get("node:n2")
        holds.append(waiting.order.after_s if waiting and not play.opened(o.ReturnNode) else 0.0)
        if holds[-1]:
            play.fire("node:")
        play.done(o.ReturnNode)
    assert holds == [0.0, 300.0, 600.0]


def test_a_drain_that_is_not_ours_is_not_lifted(idle):
    """It passed its checks, and whoever drained it says when it takes work: no order to return it."""
    fenced(idle)
    idle.node("n2", drained=True, drain_reason="[holdfast] Xid 74")
    repaired(idle)
    idle.n("n2").drained_by_us = False
    orders = idle.do(e.NodeValidated, node="n2", passed=True, instance_id=idle.n("n2").instance_id)
    assert kinds(orders) == []
    assert idle.ns() is NodeState.HEALTHY


def test_a_lemon_is_retired():
    """Three quarantines within 28 days: no further repair, a person looks at it."""
    play = Play().nodes()
    for _ in range(2):
        fenced(play, number=73)
        repaired(play, o.RebootNode)
        returned(play)
    assert kinds(fenced(play, number=73)) == ["RetireNode"]
    assert "quarantined 3 times" in play.n().story[-1] or "3 times" in " ".join(play.n().story)


def test_offences_are_forgotten_after_the_window():
    """28 days later it begins anew."""
    play = Play().nodes()
    for _ in range(4):
        assert kinds(fenced(play, number=73)) == ["RebootNode"]
        repaired(play, o.RebootNode)
        returned(play)
        play.now += 20 * 86400.0


def test_another_machine_has_no_offences():
    """The lemon was the machine, not the name."""
    play = Play().nodes()
    for _ in range(4):
        assert kinds(fenced(play)) == ["ReplaceNode"]
        repaired(play)
        returned(play)
    assert play.n().offences == []


def test_always_replace_never_reboots():
    """HyperPod on Slurm."""
    play = Play(always_replace=True).nodes()
    assert kinds(fenced(play, number=73)) == ["ReplaceNode"]


def test_job_and_node_side_close_one_incident(play):
    """The incident waits for both; its marks tell of both."""
    fenced(play)
    play.through_queue()
    play.first_step(1, 101, resumed_from=100)
    play.checkpoint(1, 200)
    assert play.state is JobState.WATCHING
    assert play.incident.jobs_done
    assert not play.incident.nodes_done
    repaired(play)
    returned(play)
    (incident,) = play.closed
    for mark in (Mark.ISOLATED, Mark.PROVEN, Mark.NODE_REPAIRED, Mark.NODE_RETURNED, Mark.CLOSED):
        assert mark in incident.marks


def test_the_node_may_be_ready_before_the_job(play):
    """The other way round."""
    fenced(play)
    play.done(o.RequeueHeld)
    play.job(state=S.HELD, restart_count=1, nodes=())
    repaired(play)
    returned(play)
    assert play.incident.nodes_done
    assert not play.incident.jobs_done
    assert play.engine.open_incidents()


def test_retirement_order_names_the_machine(idle):
    """So that it is never done to its successor."""
    fenced(idle)
    idle.fail(o.ReplaceNode)
    assert match(idle.open(o.RetireNode), o.RetireNode, node="n2", instance_id="machine-n2", remedy=R.RETIRE)


@pytest.mark.parametrize("number", [0, 5])
def test_a_gpu_named_by_its_number_is_reset_first(number):
    """Also GPU 0: found by simulation, where an eighth of the nodes was rebooted for what a reset mends."""
    play = Play().nodes("n2")
    fenced(play, number=95, remedy=Remedy.RESET_GPU, gpu=number)
    assert play.open(o.ResetGpu).gpu == str(number)


@pytest.mark.parametrize("said", ["k8s:lab://i-1", "i-1", ""])
def test_checks_of_a_machine_that_has_two_names_let_the_node_back(said):
    """The scheduler's own id has a prefix, the agent's none: whoever ran the checks, they were about this machine."""
    play = Play().nodes(instance_id="k8s:lab://i-0", boot_id="k8s:b0")
    play.do(e.AgentAttached, node="n2", boot_id="b0", instance_id="i-0")
    fenced(play, number=73)
    play.done(o.RebootNode)
    play.node("n2", boot_id="k8s:b1", instance_id="k8s:lab://i-1")
    play.do(e.AgentAttached, node="n2", boot_id="b1", instance_id="i-1")
    assert play.ns() is NodeState.VALIDATING
    for other in ("k8s:lab://i-0", "i-0"):
        play.do(e.NodeValidated, node="n2", passed=True, instance_id=other)
        assert play.ns() is NodeState.VALIDATING, "the machine that was here before"
        assert play.opened(o.ReturnNode) == []
    play.do(e.NodeValidated, node="n2", passed=True, instance_id=said)
    assert play.open(o.ReturnNode).node == "n2"


def test_many_nodes_of_one_incident_that_need_a_person_are_told_by_doubling():
    """A bad rule of a whole switch retires sixteen: the first four are told, then the eighth and the sixteenth."""
    play = Play(node=NodeRules(ladder=(Remedy.RETIRE,)))
    play.nodes(*[f"n{i}" for i in range(1, 17)], topology="row/switch")
    for i in range(1, 17):
        play.xid(f"n{i}")
    for i in range(1, 17):
        play.done(o.QuarantineNode, node=f"n{i}")
        assert play.ns(f"n{i}") is NodeState.RETIRED
    asked = [order.title for order in play.all if isinstance(order, o.Notify) and order.asks]
    assert asked[0] == "n1 needs a person"
    assert asked[-1] == "n16 needs a person (16 nodes by now)"
    assert len(asked) == 6

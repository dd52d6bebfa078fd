"""Nodes: suspicion, ownership, silence, loss, machines that are swapped."""

from __future__ import annotations

import pytest
from tests.decide.play import KEY, NODES, Play, kinds

from holdfast.model import events as e
from holdfast.model import orders as o
from holdfast.model.cluster import SchedulerState
from holdfast.model.evidence import Domain, EvidenceKind, Remedy, Severity
from holdfast.model.policy import Brake, Mode, Waits
from holdfast.model.records import JobState, Mark, NodeState

S = SchedulerState


@pytest.fixture
def idle():
    """Four nodes, no job."""
    return Play().nodes()


def drained(play: Play, name: str = "n2", **fields) -> Play:
    """Quarantined and drained by us."""
    play.xid(name, **fields)
    play.done(o.QuarantineNode)
    return play


# --- ownership --------------------------------------------------------------------------------------------------------


def test_an_admins_drain_is_never_touched(idle):
    """The node takes no work already; it is suspect, and left to whoever drained it."""
    idle.node("n2", drained=True, drain_reason="mei: memory test")
    assert kinds(idle.xid("n2")) == []
    assert idle.ns() is NodeState.SUSPECT
    assert idle.closed[0].outcome == "observed"
    assert Mark.ISOLATED in idle.closed[0].marks


def test_an_admin_who_resumes_our_drain_ends_our_order(idle):
    """Their word wins: open orders are withdrawn, the node is healthy, the incident is settled."""
    drained(idle)
    idle.node("n2", drained=True, drain_reason="[holdfast] Xid 74")
    assert idle.opened(o.ReplaceNode)
    idle.node("n2", drained=False, drain_reason="")
    assert idle.ns() is NodeState.HEALTHY
    assert idle.opened(o.ReplaceNode) == []
    assert idle.engine.open_incidents() == []


def test_an_admin_who_reboots_a_retired_node_and_resumes_it_takes_it_back(idle):
    """Found by seed 1102960467: both are seen in one look. Its next fault has it fenced again."""
    drained(idle)
    idle.fail(o.ReplaceNode)
    assert idle.ns() is NodeState.RETIRED
    idle.node("n2", drained=True, drain_reason="[holdfast] Xid 74")
    idle.node("n2", drained=False, drain_reason="", boot_id="other")
    assert idle.ns() is NodeState.HEALTHY
    assert kinds(idle.xid("n2", 95)) == ["QuarantineNode"]


def test_an_admin_who_resumes_our_drain_before_its_outcome_is_told_ends_the_order_too(idle):
    """Found by seed 12951: the command hung, its effect was seen and lifted by a person, and its retry drained anew."""
    idle.xid("n2")
    idle.node("n2", drained=True, drain_reason="[holdfast] Xid 74")
    idle.fail(o.QuarantineNode, "not done within 120 s", permanent=False)
    idle.node("n2", drained=False, drain_reason="")
    assert idle.ns() is NodeState.HEALTHY
    assert idle.opened(o.QuarantineNode) == []
    assert idle.engine.open_incidents() == []


def test_an_admin_who_returns_a_node_while_our_drain_is_under_way_ends_our_order(idle):
    """Had our command been quicker, it would be our drain that they lift: their word must not hang on that."""
    idle.xid("n2")
    idle.fail(o.QuarantineNode, "not done within 120 s", permanent=False)
    idle.node("n2", drained=True, drain_reason="mei: memory test")
    idle.node("n2", drained=False, drain_reason="")
    assert idle.ns() is NodeState.HEALTHY
    assert idle.opened(o.QuarantineNode) == []
    assert idle.engine.open_incidents() == []


@pytest.mark.parametrize("reason", ["NHC: check_hw_gpu: 7 of 8 GPUs", "[holdfast check] GPU memory"])
def test_a_health_checker_that_lifts_its_own_drain_does_not_end_our_order(idle, reason):
    """Its checks pass again, which says nothing of the Xid. It would never have lifted a drain of ours."""
    idle.xid("n2")
    idle.fail(o.QuarantineNode, "not done within 120 s", permanent=False)
    idle.node("n2", drained=True, drain_reason=reason)
    idle.node("n2", drained=False, drain_reason="")
    assert idle.ns() is NodeState.QUARANTINED
    assert idle.opened(o.QuarantineNode)


CHECKER = "NHC: check_hw_gpu: 7 of 8 GPUs"


def test_a_health_checker_that_drained_the_node_first_does_not_clear_it(idle):
    """Its drain is left alone while it lasts. When it lifts that, the Xid stands, and the node is fenced."""
    idle.node("n2", drained=True, drain_reason=CHECKER)
    assert kinds(idle.xid("n2")) == []
    assert idle.ns() is NodeState.SUSPECT
    assert kinds(idle.node("n2", drained=False, drain_reason="")) == ["QuarantineNode"]
    assert idle.incident.nodes_open == ["n2"]
    idle.done(o.QuarantineNode)
    assert idle.opened(o.ReplaceNode)


def test_a_person_who_takes_over_a_health_checkers_drain_keeps_the_node(idle):
    """Then it is left to them, as with any drain of theirs, and they clear it."""
    idle.node("n2", drained=True, drain_reason=CHECKER)
    idle.xid("n2")
    assert kinds(idle.node("n2", drain_reason="mei: memory test")) == []
    assert idle.engine.open_incidents() == []
    idle.node("n2", drained=False, drain_reason="")
    assert idle.ns() is NodeState.HEALTHY


def test_a_health_checker_that_is_quicker_than_our_order_does_not_take_the_node_over(idle):
    """Our order finds the node drained and leaves it so. The node is fenced when that drain is lifted."""
    idle.xid("n2")
    idle.node("n2", drained=True, drain_reason=CHECKER)
    idle.done(o.QuarantineNode)
    assert idle.ns() is NodeState.SUSPECT
    assert kinds(idle.node("n2", drained=False, drain_reason="")) == ["QuarantineNode"]


def test_a_health_checkers_lift_clears_nothing_where_policy_observes():
    """What would be done is written down when the node takes work again; a person clears it."""
    play = Play(mode="observe").nodes()
    play.xid("n2")
    play.node("n2", drained=True, drain_reason=CHECKER)
    play.node("n2", drained=False, drain_reason="")
    assert play.ns() is NodeState.SUSPECT
    assert play.incident.nodes_open == ["n2"]


def test_a_replaced_machine_that_its_scheduler_has_back_is_checked(idle):
    """Its scheduler names no other machine, and no agent is heard: it was down, and is there again."""
    drained(idle)
    idle.done(o.ReplaceNode)
    assert idle.ns() is NodeState.REPAIRING
    idle.node("n2", alive=False)
    assert kinds(idle.node("n2", alive=True)) == ["ValidateNode"]


def test_a_node_that_comes_back_before_its_replacement_is_done_is_not_the_new_one(idle):
    """The order is still under way: what is seen is the old machine."""
    drained(idle)
    idle.node("n2", alive=False)
    assert kinds(idle.node("n2", alive=True)) == []
    assert idle.ns() is NodeState.REPAIRING


def test_our_own_return_seen_late_does_not_end_the_next_quarantine(idle):
    """Its outcome was told before the scheduler showed it: what is lifted is our former drain, by us."""
    drained(idle, number=1, remedy=Remedy.RESET_GPU)
    idle.node("n2", drained=True, drain_reason="[holdfast] Xid 1")
    idle.done(o.ResetGpu)
    idle.do(e.NodeValidated, node="n2", passed=True)
    idle.done(o.ReturnNode)
    idle.xid("n2")
    idle.node("n2", drained=False, drain_reason="")
    assert idle.ns() is NodeState.QUARANTINED
    assert idle.opened(o.QuarantineNode)


def test_a_return_that_is_stale_leaves_no_node_out_for_good(idle):
    """The adapter sees that the machine was swapped before the engine does: the new one is checked, then returned."""
    drained(idle)
    idle.node("n2", drained=True, drain_reason="[holdfast] Xid 74")
    idle.node("n2", instance_id="machine-new", boot_id="boot-new")
    idle.done(o.ReplaceNode)
    idle.do(e.NodeValidated, node="n2", passed=True, instance_id="machine-new")
    idle.fail(o.ReturnNode, "n2 is another machine now")
    idle.node("n2", instance_id="machine-newer", boot_id="boot-newer")
    assert idle.ns() is NodeState.VALIDATING
    idle.do(e.NodeValidated, node="n2", passed=True, instance_id="machine-newer")
    assert idle.open(o.ReturnNode).instance_id == "machine-newer"
    idle.done(o.ReturnNode)
    assert idle.ns() is NodeState.HEALTHY


def test_our_own_return_seen_before_its_outcome_is_not_an_admins_word(idle):
    """A controller that was killed between the effect and its outcome sees the node resumed first: our order did it."""
    drained(idle)
    idle.node("n2", drained=True, drain_reason="[holdfast] Xid 74")
    idle.node("n2", instance_id="machine-new", boot_id="boot-new")
    idle.done(o.ReplaceNode)
    idle.do(e.NodeValidated, node="n2", passed=True, instance_id="machine-new")
    idle.node("n2", drained=False, drain_reason="")
    assert len(idle.opened(o.ReturnNode)) == 1
    idle.done(o.ReturnNode)
    assert idle.ns() is NodeState.HEALTHY
    assert idle.closed[0].outcome == "recovered"
    assert not any("person" in line for line in idle.n().story)


def test_a_view_from_before_the_drain_is_not_an_admins_word(idle):
    """Only a change from drained to not drained is."""
    drained(idle)
    idle.node("n2", gpus=8)
    assert idle.ns() is NodeState.REPAIRING


def test_an_admin_who_takes_over_our_drain_keeps_the_node(idle):
    """Another reason in place of ours: it is theirs from now on, and never returned by us."""
    drained(idle)
    idle.node("n2", drained=True, drain_reason="[holdfast] Xid 74")
    idle.node("n2", drained=True, drain_reason="mei: I look at it")
    assert idle.ns() is NodeState.HEALTHY
    assert not idle.n().drained_by_us
    assert idle.opened(o.ReplaceNode) == []
    assert idle.opened(o.ReturnNode) == []


@pytest.mark.parametrize("seen_first", [True, False])
def test_an_admin_who_drains_it_while_our_drain_is_under_way_keeps_the_node(idle, seen_first):
    """Our command finds it drained and leaves it so: the drain is theirs, and nothing is repaired."""
    idle.xid("n2")
    if seen_first:
        idle.node("n2", drained=True, drain_reason="mine now (ada)")
        orders = idle.done(o.QuarantineNode)
    else:
        idle.done(o.QuarantineNode)
        orders = idle.node("n2", drained=True, drain_reason="mine now (ada)")
    assert "RebootNode" not in kinds(orders)
    assert "ReplaceNode" not in kinds(orders)
    assert idle.ns("n2") is NodeState.HEALTHY
    assert not idle.n("n2").drained_by_us
    assert idle.engine.open_incidents() == []


def test_our_old_drain_found_at_start_is_checked_and_lifted():
    """A drain of ours that nobody remembers would stay for ever."""
    play = Play()
    orders = play.node("n1", drained=True, drain_reason="[holdfast] Xid 74")
    assert kinds(orders) == ["ValidateNode"]
    assert kinds(play.do(e.NodeValidated, node="n1", passed=True)) == ["ReturnNode"]
    play.done(o.ReturnNode)
    assert play.ns("n1") is NodeState.HEALTHY


def test_our_old_drain_found_where_policy_observes_is_told_and_left():
    """Nothing is touched there, and people are told who lifts the drain: nobody else will."""
    play = Play(modes={Remedy.QUARANTINE: Mode.OBSERVE})
    orders = play.node("n2", drained=True, drain_reason="[holdfast] Xid 74")
    assert kinds(orders) == []
    assert play.ns() is NodeState.HEALTHY
    assert "whoever wants it back returns it" in play.n().story[-1]
    assert play.notices() == ["n2 is drained by us, and left"]


def test_an_admins_drain_found_at_start_is_left_alone():
    """Not ours."""
    play = Play()
    assert kinds(play.node("n1", drained=True, drain_reason="broken fan")) == []
    assert play.ns("n1") is NodeState.HEALTHY


def test_return_refused_because_it_is_not_our_drain(idle):
    """The adapter finds that somebody else drained it meanwhile: left to them."""
    drained(idle)
    idle.done(o.ReplaceNode)
    idle.node("n2", instance_id="x", boot_id="x")
    idle.do(e.NodeValidated, node="n2", passed=True)
    idle.fail(o.ReturnNode, "drained by someone else")
    assert idle.ns() is NodeState.HEALTHY
    assert idle.engine.open_incidents() == []


# --- machines that are swapped ----------------------------------------------------------------------------------------


def test_a_swapped_machine_clears_a_stale_reason(idle):
    """The drained machine was replaced by somebody else: the new one is checked and returned."""
    idle.plain()
    drained(idle)
    assert idle.ns() is NodeState.DRAINING
    orders = idle.node("n2", instance_id="other", boot_id="other")
    assert kinds(orders) == ["ValidateNode"]
    assert idle.n().offences == []
    idle.do(e.NodeValidated, node="n2", passed=True)
    idle.done(o.ReturnNode)
    assert idle.ns() is NodeState.HEALTHY


def test_a_swapped_machine_is_not_suspect(idle):
    """Suspicion was against the old one."""
    idle.policies.site  # noqa: B018
    idle.say(e.Command.SET_MODE, value="advise", group="gpu")
    idle.xid("n2")
    assert idle.ns() is NodeState.SUSPECT
    idle.node("n2", instance_id="other", boot_id="other")
    assert idle.ns() is NodeState.HEALTHY
    assert idle.engine.proposed_orders() == []


def test_a_machine_swapped_after_its_drain_was_seen_and_before_its_outcome_is_told_is_checked(idle):
    """Nothing else would move it on: the order about the old machine is withdrawn. Found by seed 5094 of the storms."""
    idle.xid("n2")
    idle.node("n2", drained=True, drain_reason="[holdfast] Xid 74")
    idle.node("n2", instance_id="x", boot_id="x")
    assert idle.ns() is NodeState.VALIDATING
    assert idle.opened(o.QuarantineNode) == []
    idle.do(e.NodeValidated, node="n2", passed=True, instance_id="x")
    idle.done(o.ReturnNode)
    assert idle.ns() is NodeState.HEALTHY
    assert idle.engine.open_incidents() == []


def test_a_machine_swapped_during_its_checks_is_checked_anew(idle):
    """The order names the machine it is for."""
    drained(idle)
    idle.done(o.ReplaceNode)
    idle.node("n2", instance_id="x", boot_id="x")
    assert idle.open(o.ValidateNode).instance_id == "x"
    idle.node("n2", instance_id="y", boot_id="y")
    assert idle.open(o.ValidateNode).instance_id == "y"


def test_a_swapped_retired_node_comes_back_by_the_checks(idle):
    """A person put another machine in its place."""
    drained(idle)
    idle.fail(o.ReplaceNode, "no capacity")
    assert idle.ns() is NodeState.RETIRED
    assert kinds(idle.node("n2", instance_id="x", boot_id="x")) == ["ValidateNode"]


def test_a_drain_of_a_person_that_comes_with_the_new_machine_is_theirs(idle):
    """Of one look: the machine was swapped, and somebody drained it for a reason of their own. No checks lift that."""
    drained(idle)
    idle.fail(o.ReplaceNode, "no capacity")
    assert kinds(idle.node("n2", instance_id="x", boot_id="x", drained=True, drain_reason="mine now")) == []
    assert idle.ns() is NodeState.HEALTHY
    assert not idle.n("n2").drained_by_us


def test_outcomes_of_orders_about_a_former_machine_change_nothing(idle):
    """The fence was for the old machine."""
    idle.xid("n2")
    order = idle.open(o.QuarantineNode).id
    idle.node("n2", instance_id="x", boot_id="x")
    idle.do(e.OrderDone, order=order)
    assert idle.ns() is NodeState.HEALTHY


# --- silence and loss -------------------------------------------------------------------------------------------------


def test_silence_is_unknown_never_gone(play):
    """Nothing is ordered; the state is back as it was when the node is heard."""
    assert kinds(play.do(e.NodeSilent, node="n2", for_s=30.0)) == []
    assert play.ns() is NodeState.UNKNOWN
    play.do(e.NodeHeard, node="n2")
    assert play.ns() is NodeState.HEALTHY


def test_long_silence_with_a_living_launcher_only_tells(play):
    """The agent may have died; the job's launcher is attached, so the node runs."""
    play.do(e.NodeSilent, node="n2", for_s=30.0)
    assert kinds(play.fire("silent:")) == []
    assert "n2 is silent" in play.notices()
    assert play.state is JobState.WATCHING


def test_long_silence_and_an_ended_lease_are_a_loss(play):
    """Neither agent nor launcher, and the lease has run out: restarted elsewhere."""
    play.do(e.NodeSilent, node="n2", for_s=30.0)
    play.do(e.LauncherLapsed, job=KEY)
    assert kinds(play.fire("silent:")) == ["QuarantineNode", "RequeueHeld"]
    assert play.n().gone
    assert play.incident.findings[0].rule == "node.lost"


def test_a_blind_watcher_declares_nobody_dead(play):
    """While the scheduler cannot be read, silence is not judged; afterwards it is."""
    play.do(e.NodeSilent, node="n2", for_s=30.0)
    play.do(e.LauncherLapsed, job=KEY)
    play.do(e.WatchBlind, blind=True, why="slurmctld does not answer")
    assert "The scheduler cannot be read" in play.notices()
    assert kinds(play.fire("silent:")) == []
    assert kinds(play.fire("lapse:")) == []
    play.do(e.WatchBlind, blind=False)
    assert kinds(play.fire("silent:")) == ["QuarantineNode", "RequeueHeld"]


def test_node_gone_is_evidence(play):
    """Connection reset, the scheduler's or the provider's word: quarantine and requeue elsewhere."""
    orders = play.do(e.NodeGone, node="n2", evidence="connection reset", source="agent:n1")
    assert kinds(orders) == ["QuarantineNode", "RequeueHeld"]
    assert play.j.excluded == ("n2",)


def test_a_node_lost_twice_is_one_loss(play):
    """The launcher's follower, the scheduler and the provider all say so."""
    play.do(e.NodeGone, node="n2", evidence="connection reset")
    assert kinds(play.do(e.NodeGone, node="n2", evidence="provider")) == []
    assert kinds(play.node("n2", alive=False)) == []
    assert len(play.engine.open_incidents()) == 1


def test_the_schedulers_word_of_a_dead_node_is_evidence(play):
    """alive=False in a view."""
    assert kinds(play.node("n2", alive=False, state_text="DOWN*")) == ["QuarantineNode", "RequeueHeld"]


def test_a_node_dead_when_first_seen_is_history():
    """It was down before we looked."""
    play = Play()
    assert kinds(play.node("n1", alive=False)) == []
    assert play.n("n1").gone


def test_a_lost_node_is_repaired_without_waiting_for_its_jobs(play):
    """Nobody runs on a node that does not run: reboot at once, no GPU reset."""
    play.do(e.NodeGone, node="n2", evidence="connection reset")
    assert kinds(play.done(o.QuarantineNode)) == ["RebootNode"]
    assert play.ns() is NodeState.REPAIRING


def test_silence_during_repair_does_not_lose_its_place(play):
    """A rebooting node is silent; its repair goes on under the unknown."""
    play.do(e.NodeGone, node="n2", evidence="connection reset")
    play.done(o.QuarantineNode)
    play.do(e.NodeSilent, node="n2", for_s=30.0)
    assert play.ns() is NodeState.UNKNOWN
    assert play.n().before_unknown is NodeState.REPAIRING
    play.do(e.AgentAttached, node="n2", boot_id="b2")
    assert play.ns() is NodeState.REPAIRING
    assert kinds(play.done(o.RebootNode)) == ["ValidateNode"]


def test_a_reboot_during_its_quarantine_is_no_admins_word(play):
    """Another boot id: whatever the drain shows now is the boot's doing."""
    play.plain()
    drained(play)
    play.node("n2", drained=True, drain_reason="[holdfast] x")
    play.node("n2", drained=False, drain_reason="", boot_id="b9")
    assert play.ns() is NodeState.DRAINING


def test_an_old_drain_of_ours_is_found_also_when_the_agent_spoke_before_the_scheduler_showed_the_node(idle):
    """Found by seed 30058: the node came back to the cluster, counted as healthy, and stayed drained for ever."""
    idle.do(e.AgentAttached, node="n9", boot_id="b", instance_id="m")
    orders = idle.node("n9", drained=True, drain_reason="[holdfast] Xid 74", boot_id="b", instance_id="m")
    assert kinds(orders) == ["ValidateNode"]
    assert idle.ns("n9") is NodeState.VALIDATING
    assert idle.node("n9", drained=True, drain_reason="[holdfast] Xid 74", boot_id="b", instance_id="m") == []


# --- clearing ---------------------------------------------------------------------------------------------------------


def test_a_cleared_condition_clears_suspicion(idle):
    """Waiting for approval when the fault goes away: healthy, and the proposal is withdrawn."""
    idle.say(e.Command.SET_MODE, value="advise")
    idle.xid("n2")
    idle.do(e.FindingCleared, node="n2", rule="nvidia.xid.74")
    assert idle.ns() is NodeState.HEALTHY
    assert idle.engine.proposed_orders() == []
    assert idle.engine.open_incidents() == []


def test_a_fault_from_after_the_clearing_is_news_however_late_both_are_heard(idle):
    """The node was cut off: link down, link up, Xid. It was well when the link came up, not when that was heard."""
    clear_at = idle.now + 10
    idle.finding("check.fabric_port_down", node="n2", domain=Domain.NETWORK, remedy=Remedy.QUARANTINE)
    idle.fail(o.QuarantineNode, "no permission")
    idle.do(e.FindingCleared, node="n2", rule="check.fabric_port_down", at=idle.now + 300, seen_at=clear_at)
    assert idle.ns() is NodeState.HEALTHY
    assert kinds(idle.xid("n2", seen_at=clear_at + 50)) == ["QuarantineNode"]


def test_a_node_that_came_back_to_the_cluster_suspect_and_drained_by_us_is_returned(idle):
    """It vanished while we had it drained, and its fault ended after it was known again (seed 184710285)."""
    drained(idle)
    idle.do(e.NodeVanished, node="n2")
    idle.finding("check.fabric_port_down", node="n2", domain=Domain.NETWORK, remedy=Remedy.QUARANTINE)
    idle.fail(o.QuarantineNode, "no node n2")
    idle.node("n2", alive=True, drained=True, drain_reason="[holdfast] Xid 74", group="gpu")
    assert kinds(idle.do(e.FindingCleared, node="n2", rule="check.fabric_port_down")) == ["ValidateNode"]
    assert idle.n().drained_by_us


def test_clearing_one_rule_leaves_the_others(idle):
    """A node-wide cancel would kill a fresh quarantine."""
    idle.plain()
    drained(idle)
    idle.finding("check.disk", node="n2", domain=Domain.HARDWARE, remedy=Remedy.QUARANTINE, kind=EvidenceKind.CHECK)
    idle.do(e.FindingCleared, node="n2", rule="check.disk")
    assert idle.ns() is NodeState.DRAINING
    assert idle.n().findings == ["nvidia.xid.74"]


def test_a_node_does_not_stay_cordoned_after_its_fault_is_gone(idle):
    """Cleared while draining: no repair, only the checks, then back."""
    idle.plain(recovery=None)
    idle.finding("check.disk", node="n2", domain=Domain.HARDWARE, remedy=Remedy.QUARANTINE, kind=EvidenceKind.CHECK)
    idle.done(o.QuarantineNode)
    idle.do(e.FindingCleared, node="n2", rule="check.disk")
    assert idle.ns() is NodeState.DRAINING
    orders = idle.job(state=S.COMPLETED, nodes=())
    assert kinds(orders) == ["ValidateNode"]


def test_a_hint_of_plain_quarantine_drains_and_lets_the_job_run(play):
    """A failed check that asks for no more: running work goes on."""
    orders = play.finding(
        "check.disk", node="n2", domain=Domain.HARDWARE, remedy=Remedy.QUARANTINE, kind=EvidenceKind.CHECK
    )
    assert kinds(orders) == ["QuarantineNode"]
    assert play.state is JobState.WATCHING


def test_quarantine_that_fails_is_told(idle):
    """The node may take new work although it is suspect: people must know."""
    idle.xid("n2")
    idle.fail(o.QuarantineNode, "no permission")
    assert idle.ns() is NodeState.SUSPECT
    assert "n2 could not be quarantined" in idle.notices()


def fail_to_fence(play: Play, name: str) -> None:
    play.finding("check.disk", node=name, domain=Domain.HARDWARE, remedy=Remedy.QUARANTINE, kind=EvidenceKind.CHECK)
    order = play.open(o.QuarantineNode, node=name).id
    play.do(e.OrderFailed, order=order, why="no permission", permanent=True)


def test_a_job_is_not_released_onto_a_node_that_could_not_be_quarantined(play):
    """No incident is open for that node, yet it is known bad, and the scheduler would give it out."""
    play.node("n9")
    fail_to_fence(play, "n9")
    assert play.n("n9").incident == ""
    play.until_release("n2")
    (asked,) = [order for order in play.all if isinstance(order, o.SetExcluded)]
    assert asked.nodes == ("n2", "n9")


def test_a_job_that_is_queued_already_is_kept_off_a_node_that_could_not_be_quarantined(play):
    """Until it counts as well again."""
    play.node("n9")
    play.until_release("n2")
    play.done(o.ReleaseJob)
    fail_to_fence(play, "n9")
    assert play.open(o.SetExcluded).nodes == ("n2", "n9")
    play.job(state=S.PENDING, excluded=("n2", "n9"))
    play.done(o.SetExcluded)
    play.do(e.FindingCleared, node="n9", rule="check.disk")
    assert play.engine.state.fence_failed == []
    assert play.open(o.SetExcluded).nodes == ("n2",)


def test_quarantine_that_fails_for_now_is_tried_again(idle):
    """The same order, the same id, after a while."""
    idle.xid("n2")
    order = idle.open(o.QuarantineNode)
    idle.fail(o.QuarantineNode, "time-out", permanent=False)
    assert idle.ns() is NodeState.QUARANTINED
    assert idle.fire("order:") == [order]


def test_a_quarantine_that_is_seen_and_said_to_have_failed_is_a_fence(idle):
    """The command worked and its answer said that it had not: our drain stands, and is in our care."""
    idle.xid("n2")
    idle.node("n2", drained=True, drain_reason="[holdfast] Xid 74")
    idle.fail(o.QuarantineNode, "Access/permission denied")
    assert idle.ns() is NodeState.REPAIRING
    assert "n2 could not be quarantined" not in idle.notices()


def test_a_retry_waits_until_the_scheduler_can_be_read_again(idle):
    """A person may have returned the node meanwhile: what is not seen is not undone."""
    idle.xid("n2")
    order = idle.open(o.QuarantineNode)
    idle.fail(o.QuarantineNode, "time-out", permanent=False)
    idle.do(e.WatchBlind, blind=True, why="no answer")
    assert kinds(idle.fire("order:")) == []
    idle.do(e.WatchBlind, blind=False, why="")
    assert order in idle.fire("order:")


def test_what_needs_no_scheduler_is_tried_again_while_the_scheduler_cannot_be_read(idle):
    """A reset goes by mail to the node's agent, a notice to people."""
    drained(idle, number=1, remedy=Remedy.RESET_GPU)
    idle.node("n2", drained=True, drain_reason="[holdfast] Xid 1")
    idle.fail(o.ResetGpu, "time-out", permanent=False)
    order = idle.open(o.ResetGpu)
    idle.do(e.WatchBlind, blind=True, why="no answer")
    assert order in idle.fire("order:")


def test_a_quarantine_that_takes_effect_after_a_person_vouched_for_the_node_is_lifted(idle):
    """The command hung, the person spoke, and then it took effect: nobody else would ever lift our drain."""
    idle.xid("n2")
    idle.fail(o.QuarantineNode, "not done within 120 s", permanent=False)
    idle.say(e.Command.CONFIRM_HEALTHY, node="n2")
    if idle.opened(o.ReturnNode):
        idle.done(o.ReturnNode)
    assert idle.ns() is NodeState.HEALTHY
    idle.node("n2", drained=True, drain_reason="[holdfast] Xid 74")
    assert idle.ns() is NodeState.VALIDATING
    idle.done(o.ValidateNode)
    idle.do(e.NodeValidated, node="n2", passed=True)
    assert idle.open(o.ReturnNode)


# --- other ------------------------------------------------------------------------------------------------------------


def test_a_node_that_leaves_the_cluster_settles_its_incident(idle):
    """On Kubernetes a replaced node has another name: the old one vanishes."""
    drained(idle)
    idle.do(e.NodeVanished, node="n2")
    assert "n2" not in idle.engine.state.nodes
    assert idle.closed[0].marks[Mark.NODE_REPAIRED]


def test_an_agent_may_speak_of_a_node_before_the_scheduler():
    """Its finding is acted on all the same."""
    play = Play()
    play.do(e.AgentAttached, node="n9", boot_id="b", instance_id="m", drill_ok=True)
    assert play.n("n9").drill_ok
    assert kinds(play.xid("n9")) == ["QuarantineNode"]


def test_a_nodes_incident_without_a_job_is_diagnosed(idle):
    """What the node says is all there is."""
    idle.xid("n2")
    assert idle.incident.diagnosis.cause == "nvidia.xid.74"
    assert idle.incident.diagnosis.nodes == ("n2",)


def test_two_jobs_on_the_node_are_both_brought_away():
    """One incident, two requeues."""
    play = Play().plain()
    other = KEY.__class__("c", "8")
    play.job(other, nodes=("n2",))
    orders = play.xid("n2")
    assert kinds(orders) == ["QuarantineNode", "RequeueHeld", "RequeueHeld"]
    assert len(play.incident.jobs) == 2


def test_hardware_fault_of_a_node_the_job_is_not_on_leaves_the_job_alone():
    """Only jobs on the node are concerned."""
    play = Play().nodes(*NODES, "n9")
    play.job()
    assert kinds(play.xid("n9")) == ["QuarantineNode"]
    assert play.state is JobState.WATCHING


def test_a_quarantined_drain_that_takes_long_is_told():
    """`drain_s`."""
    play = Play(waits=Waits(drain_s=100.0)).plain(recovery=None)
    drained(play)
    play.fire("node:")
    assert "n2 still does not drain" in play.notices()


def test_a_suspect_that_a_person_had_drained_and_takes_back_is_healthy(bare):
    """Found by simulation (seed 26): it was left to them, and stayed suspect in service for ever."""
    bare.nodes("n1")
    bare.node("n1", drained=True, drain_reason="memory test")
    bare.xid("n1")
    assert bare.ns("n1") is NodeState.SUSPECT
    bare.node("n1", drained=False, drain_reason="")
    assert bare.ns("n1") is NodeState.HEALTHY


def test_a_dead_node_that_a_person_takes_back_is_lost_anew(bare):
    """Found by simulation (seed 5068): their drain is lifted, the machine does not run, and nobody looked again."""
    bare.nodes("n1")
    bare.node("n1", drained=True, drain_reason="memory test")
    bare.node("n1", alive=False)
    assert not bare.opened(o.QuarantineNode)
    bare.node("n1", drained=False, drain_reason="")
    assert bare.open(o.QuarantineNode).node == "n1"


def test_a_dead_node_that_a_person_vouches_for_has_a_minute_to_come_back(bare):
    """Found by simulation (seed 204): their word clears it; when the scheduler goes on seeing it dead, it is."""
    bare.nodes("n1", "n2", "n3")
    bare.node("n1", alive=False)
    bare.say(e.Command.RETURN, node="n1")
    assert bare.ns("n1") is NodeState.HEALTHY
    bare.fire("silent:")
    assert bare.ns("n1") is NodeState.QUARANTINED


def test_a_node_that_comes_back_after_a_persons_word_stays_healthy(bare):
    """The scheduler agrees in time."""
    bare.nodes("n1", "n2", "n3")
    bare.node("n1", alive=False)
    bare.say(e.Command.RETURN, node="n1")
    bare.node("n1", alive=True, boot_id="boot-2")
    bare.fire("silent:")
    assert bare.ns("n1") is NodeState.HEALTHY


def test_a_node_that_died_between_its_checks_and_its_return_is_seen_to():
    """Found by seed 12053: nobody took note of its death while it was validated, and it was returned dead for good."""
    play = Play().nodes()
    play.xid("n2")
    play.done(o.QuarantineNode)
    play.done(o.ReplaceNode)
    play.node("n2", drained=True, drain_reason="[holdfast] x", instance_id="other", boot_id="other")
    play.do(e.NodeValidated, node="n2", passed=True, instance_id="other")
    play.node("n2", alive=False)
    play.done(o.ReturnNode)
    play.node("n2", drained=False, drain_reason="")
    play.fire("silent:n2")
    assert play.opened(o.QuarantineNode)


def test_a_node_is_unheard_until_its_agent_speaks(idle):
    """The scheduler calls it well, and nothing is decided otherwise; people see that no agent speaks for it."""
    node = idle.n()
    assert (node.state, node.heard, node.shown) == (NodeState.HEALTHY, False, "unheard")
    idle.do(e.AgentAttached, node="n2", boot_id="b-n2", instance_id="m-n2")
    assert (node.state, node.heard, node.shown) == (NodeState.HEALTHY, True, "healthy")


@pytest.mark.parametrize(("rule", "domain"), [("kernel.mlx5.health", Domain.NETWORK), ("kernel.nvme", Domain.STORAGE)])
def test_a_broken_card_or_disk_stays_the_cause_when_a_gpu_fails_later(rule, domain):
    """Found by seed 51000098: the brake held the idle node back, and the card's failure was said to follow from the Xid."""
    play = Play(brake=Brake(max_nodes=0)).nodes()
    play.finding(rule, node="n2", domain=domain, severity=Severity.FATAL, remedy=Remedy.REPLACE)
    play.now += 1100.0
    play.xid("n2", 79, severity=Severity.FATAL)
    assert play.incident.diagnosis.cause == rule


def test_a_broken_part_stays_the_cause_whatever_fails_on_an_idle_node_later():
    """Found by seed 7200093: where policy observes, its incident stays open; a port's failure explains no older Xid."""
    play = Play(mode="observe").nodes()
    play.xid("n2", 95)
    play.now += 4000.0
    play.finding("check.fabric_port_down", node="n2", domain=Domain.NETWORK, remedy=Remedy.QUARANTINE)
    assert play.incident.diagnosis.cause == "nvidia.xid.95"

"""`[trust]`: two kinds of evidence against a node, brakes per reporter, approvals by several people.

What is protected: nobody loses a node or a running job because one reporter says so, where policy wants that; and an
approval counts by the token that it came with, never by the name that was typed.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.decide.play import KEY, Play, S, kinds

from holdfast.model import events as e
from holdfast.model import orders as o
from holdfast.model.cluster import JobKey
from holdfast.model.evidence import Domain, EvidenceKind, Remedy
from holdfast.model.orders import OrderStatus
from holdfast.model.policy import Mode, Trust
from holdfast.model.records import BrakeRecord, JobState, NodeState, OrderRecord

LAUNCHER = "launcher:7"
OTHER = JobKey("c", "8")
C = e.Command


def running(mode: str = "act", **rules: Any) -> Play:
    """Job 7 runs on n1..n4, and `[trust]` has these rules."""
    return Play(trust=Trust(**rules), mode=Mode(mode)).running()


def blame(play: Play, node: str = "n2", **fields: Any) -> list[o.AnyOrder]:
    """The launcher of job 7 says that a GPU of the node is broken."""
    base: dict[str, Any] = {
        "domain": Domain.HARDWARE,
        "remedy": Remedy.REPLACE,
        "kind": EvidenceKind.TELEMETRY,
        "job": KEY,
        "attempt": play.attempt.number if play.j.attempt is not None else None,
        "source": LAUNCHER,
    }
    return play.finding("gpu.broken", node=node, **{**base, **fields})


def proposed(play: Play, kind: type = o.QuarantineNode) -> OrderRecord:
    (found,) = [record for record in play.engine.proposed_orders() if isinstance(record.order, kind)]
    return found


def approve(play: Play, record: OrderRecord, by: str = "mei a1", command: C = C.APPROVE) -> list[o.AnyOrder]:
    return play.say(command, who="whoever", by=by, order=record.order.id)


# --- two kinds of evidence --------------------------------------------------------------------------------------------


def test_by_default_a_launchers_word_quarantines_its_node():
    """Nothing is noted, and nothing waits."""
    play = running()
    assert "QuarantineNode" in kinds(blame(play))
    assert play.n().witnesses == {}
    assert play.engine.state.brakes["gpu"].reporters == {}


def test_with_two_witnesses_a_launchers_word_moves_its_job_alone():
    """The job is requeued off the node, which stays suspect; the record and a notice say what it waits for."""
    play = running(two_witnesses=True)
    orders = blame(play)
    assert kinds(orders) == ["RequeueHeld"]
    assert play.ns() is NodeState.SUSPECT
    assert proposed(play).waits_for == "only launcher:7 speaks against it"
    assert any(
        "it waits for its own agent, the scheduler, a check of it, or a person" in line for line in play.n().story
    )
    assert any("only launcher:7 speaks against it" in one.text for one in orders if isinstance(one, o.Notify))
    assert play.engine.state.brakes["gpu"].recent == []


@pytest.mark.parametrize("kind", [EvidenceKind.LOG, EvidenceKind.CHECK])
def test_a_nodes_agent_suffices_about_itself(kind):
    """Its kernel's record, a device check."""
    play = running(two_witnesses=True)
    assert "QuarantineNode" in kinds(play.xid("n2", kind=kind))


def test_the_schedulers_own_check_suffices():
    """A prolog that failed."""
    play = running(two_witnesses=True)
    play.node("n2", alive=False, state_text="DOWN")
    assert play.ns() is NodeState.QUARANTINED


def test_a_launchers_claim_of_a_loss_has_its_second_kind_already():
    """The controller asks the scheduler's side before the engine hears of it (`controller/claims.py`)."""
    play = running(two_witnesses=True, reporter_nodes=1)
    for name in ("n2", "n3"):
        play.do(e.NodeGone, node=name, evidence="reset; the scheduler says so too (DOWN)", source=LAUNCHER)
        assert play.ns(name) is NodeState.QUARANTINED
    assert play.engine.state.brakes["gpu"].reporters == {}


def test_the_agents_word_is_the_second_kind():
    """What waited is ordered at once, and the proposal is taken back."""
    play = running(two_witnesses=True)
    blame(play)
    waited = proposed(play)
    assert "QuarantineNode" in kinds(play.xid("n2"))
    assert waited.status is OrderStatus.WITHDRAWN
    assert play.ns() is NodeState.QUARANTINED


def test_a_second_launcher_is_no_second_kind():
    """One user may run many jobs."""
    play = running(two_witnesses=True)
    blame(play)
    blame(play, source="launcher:8", job=OTHER, attempt=None)
    assert play.ns() is NodeState.SUSPECT
    assert len(play.opened(o.QuarantineNode)) == 1


@pytest.mark.parametrize(
    ("rules", "state"), [({}, NodeState.QUARANTINED), ({"two_witnesses": True}, NodeState.SUSPECT)]
)
def test_a_line_of_a_jobs_output_is_its_launchers_word(rules, state):
    """Also where the node's agent read it: the diagnosis names the node, and that rests on what a rank printed."""
    play = running(**rules)
    blame(play, kind=EvidenceKind.LOG, source="agent:n2", rank=2)
    play.ended(0, signal=6, stopped=False)
    play.settle()
    assert play.ns() is state
    assert play.j.excluded == ("n2",)


def free(play: Play) -> None:
    """Job 7 has left its nodes."""
    play.done(o.RequeueHeld)
    play.job(state="held", restart_count=1, nodes=())


def test_a_node_that_waits_is_checked_once_nothing_runs_there():
    """Not while its job is there still."""
    play = running(two_witnesses=True)
    blame(play)
    assert play.opened(o.ValidateNode) == []
    free(play)
    assert play.open(o.ValidateNode).node == "n2"


def test_a_queued_job_is_kept_off_a_node_that_waits_for_further_evidence():
    """As a job that is released later would be, and until the node counts as well."""
    play = running(two_witnesses=True)
    play.node("n9")
    play.until_release("n2")
    play.done(o.ReleaseJob)
    play.job(OTHER, nodes=("n9",))
    assert "SetExcluded" in kinds(blame(play, "n9", job=OTHER, source="launcher:8"))
    assert play.open(o.SetExcluded).nodes == ("n2", "n9")
    play.job(state=S.PENDING, excluded=("n2", "n9"))
    play.done(o.SetExcluded)
    play.do(e.FindingCleared, node="n9", rule="gpu.broken")
    assert play.open(o.SetExcluded).nodes == ("n2",)


def test_failed_checks_are_the_second_kind():
    """The quarantine is ordered, and says so."""
    play = running(two_witnesses=True)
    blame(play)
    free(play)
    assert "QuarantineNode" in kinds(play.do(e.NodeValidated, node="n2", passed=False, detail="DBE", source="agent:n2"))
    assert play.open(o.QuarantineNode).why == "it failed its checks: DBE"
    assert play.n().witnesses["gpu.broken"] == [LAUNCHER, "checks"]


def test_passed_checks_clear_the_node():
    """Nothing is left of the claim, and the job may use the node again."""
    play = running(two_witnesses=True)
    blame(play)
    free(play)
    play.do(e.NodeValidated, node="n2", passed=True, source="agent:n2")
    assert play.ns() is NodeState.HEALTHY
    assert play.opened(o.QuarantineNode) == []
    assert play.n().witnesses == {}


def test_a_person_may_approve_it():
    """One node at a time: the approval of one lets no other of the same incident go."""
    play = running(two_witnesses=True)
    blame(play)
    blame(play, "n3")
    (first, second) = play.engine.proposed_orders()
    assert kinds(approve(play, first)) == ["QuarantineNode"]
    assert play.ns("n2") is NodeState.QUARANTINED
    assert play.ns("n3") is NodeState.SUSPECT
    assert second.status is OrderStatus.PROPOSED


def test_a_proposal_that_lapses_ends_its_checks_too():
    """The node is left to people, and nothing waits for ever."""
    play = running(two_witnesses=True)
    blame(play)
    free(play)
    play.fire("propose:")
    assert play.opened(o.QuarantineNode) == play.opened(o.ValidateNode) == []
    assert play.ns() is NodeState.SUSPECT


def test_another_job_on_the_node_is_not_moved_by_a_claim():
    """It goes on running there."""
    play = running(two_witnesses=True)
    play.job(OTHER, nodes=("n2",))
    blame(play)
    assert [order.job for order in play.opened(o.RequeueHeld)] == [KEY]


def test_observe_records_it_as_ever():
    """Nothing waits where nothing would be done."""
    play = running("observe", two_witnesses=True)
    blame(play)
    assert play.engine.proposed_orders() == []
    assert "n2 would have been quarantined" in play.incident.would


def test_a_named_policy_does_not_lower_it():
    """Its owner asks for a policy by name; whose word suffices stays the site's say."""
    play = running(two_witnesses=True, approvals=2)
    assert play.engine.policies.site.trust == play.policies.for_group("gpu").trust
    blame(play)
    assert proposed(play).approvals_needed == 2


# --- brakes per reporter ----------------------------------------------------------------------------------------------


def test_a_reporters_second_node_waits_for_a_person():
    """The brake shows what rests on the reporter's word, and which order it holds."""
    play = running(reporter_nodes=1)
    blame(play, "n2")
    blame(play, "n3")
    assert (play.ns("n2"), play.ns("n3")) == (NodeState.QUARANTINED, NodeState.SUSPECT)
    rested = play.engine.state.brakes["gpu"].reporters[LAUNCHER]
    assert (list(rested.nodes), rested.held) == (["n2"], [proposed(play).order.id])
    approve(play, proposed(play))
    assert play.ns("n3") is NodeState.QUARANTINED
    assert (list(rested.nodes), rested.held) == (["n2"], [])


def test_the_same_node_again_is_no_further_one():
    """Distinct nodes count."""
    play = running(reporter_nodes=1)
    for _ in range(2):
        play.do(e.NodeHeard, node="n2")
        blame(play, "n2", attempt=None)
        assert play.ns("n2") is NodeState.QUARANTINED
        play.say(C.CONFIRM_HEALTHY, node="n2")
    assert list(play.engine.state.brakes["gpu"].reporters[LAUNCHER].nodes) == ["n2"]


def test_a_reporters_nodes_leave_the_window():
    """Another one is quarantined then."""
    play = running(reporter_nodes=1, reporter_window_s=100.0)
    blame(play, "n2")
    play.now += 101.0
    blame(play, "n3")
    assert play.ns("n3") is NodeState.QUARANTINED


def test_a_reporters_window_passes_after_the_clock_was_set_back():
    """What rests on its word is of no later than now."""
    play = running(reporter_nodes=1, reporter_window_s=100.0)
    blame(play, "n2")
    play.now -= 500.0
    play.node("n5")
    play.now += 101.0
    blame(play, "n3")
    assert play.ns("n3") is NodeState.QUARANTINED


def test_reporters_do_not_share_a_brake():
    """Two launchers, two nodes."""
    play = running(reporter_nodes=1)
    blame(play, "n2")
    blame(play, "n3", source="launcher:8", job=None, attempt=None)
    assert play.ns("n3") is NodeState.QUARANTINED


def test_a_reporters_second_requeue_waits_for_a_person():
    """An agent has one running job requeued; the next one goes on until somebody approves."""
    play = Play(trust=Trust(reporter_requeues=1)).nodes()
    for key in (KEY, OTHER):
        play.job(key, nodes=("n2",))
    play.xid("n2")
    (waiting,) = play.engine.proposed_orders()
    assert isinstance(waiting.order, o.RequeueHeld)
    assert waiting.waits_for == "agent:n2 alone asks for it, and 1 requeues lately rest on its word"
    assert len(play.opened(o.RequeueHeld)) == 2
    rested = play.engine.state.brakes["gpu"].reporters["agent:n2"]
    assert (len(rested.requeues), rested.held) == (1, [waiting.order.id])
    assert kinds(approve(play, waiting)) == ["RequeueHeld"]
    assert (len(rested.requeues), rested.held) == (1, [])


def test_a_launchers_own_job_is_not_counted():
    """It may end it in any way."""
    play = running(reporter_requeues=1)
    blame(play)
    assert play.state is JobState.STOPPING
    assert play.engine.state.brakes["gpu"].reporters[LAUNCHER].requeues == []


def test_reset_by_hand_frees_reporters_too():
    """The window begins anew."""
    play = running(reporter_nodes=1)
    blame(play, "n2")
    play.say(C.RESET_BRAKE, group="gpu")
    blame(play, "n3")
    assert play.ns("n3") is NodeState.QUARANTINED


# --- approvals by several people --------------------------------------------------------------------------------------


def advised() -> Play:
    """Whatever is done takes two people, and a quarantine of n2 is proposed."""
    play = Play(mode=Mode.ADVISE, trust=Trust(approvals=2)).nodes()
    play.xid("n2")
    return play


def test_two_people_approve():
    """The first one's approval is told; the second one's has it done."""
    play = advised()
    record = proposed(play)
    assert kinds(approve(play, record)) == []
    assert (record.status, len(record.approvals)) == (OrderStatus.PROPOSED, 1)
    assert any("It takes 1 more" in line for line in play.n().story)
    assert kinds(approve(play, record, "ken b2")) == ["QuarantineNode"]
    assert [known.by for known in record.approvals] == ["mei a1", "ken b2"]


@pytest.mark.parametrize("again", ["mei a1", "mei c3", "kai a1", "Mei d4"])
def test_one_person_counts_once(again):
    """The same token, another token of the same name, in another case too, another name for the same token: refused, with the reason."""
    play = advised()
    approve(play, proposed(play))
    assert kinds(approve(play, proposed(play), again)) == []
    assert len(proposed(play).approvals) == 1
    assert any("it takes 2 people" in one.text for one in play.all if isinstance(one, o.Notify))


def test_a_typed_name_is_nobody():
    """The controller's own token takes any `who`; without any token nobody can be told apart."""
    for by in ("local f0", ""):
        play = advised()
        record = proposed(play)
        for who in ("mei", "ken"):
            play.say(C.APPROVE, who=who, by=by, order=record.order.id)
        assert record.status is OrderStatus.PROPOSED


def test_an_approval_is_withdrawn():
    """By who gave it, and by nobody else; then two are needed again."""
    play = advised()
    record = proposed(play)
    approve(play, record)
    approve(play, record, "ken b2", C.WITHDRAW)
    assert len(record.approvals) == 1
    approve(play, record, "mei a1", C.WITHDRAW)
    assert record.approvals == []
    assert any("withdrew their approval" in line for line in play.n().story)
    assert kinds(approve(play, record, "ken b2")) == []
    assert kinds(approve(play, record, "mei a1")) == ["QuarantineNode"]


def test_an_approval_whose_token_was_revoked_counts_no_more():
    """The command that follows says whose; two that hold are needed."""
    play = advised()
    record = proposed(play)
    approve(play, record)
    assert kinds(play.say(C.APPROVE, by="ken b2", order=record.order.id, void=("mei a1",))) == []
    assert [known.by for known in record.approvals] == ["ken b2"]
    assert any("counts no more" in line for line in play.n().story)
    assert kinds(approve(play, record, "kai e5")) == ["QuarantineNode"]


def braked(needed: int = 2) -> tuple[Play, OrderRecord]:
    """The quarantine of n2 is approved by as many people as it takes, while the brake of its group is full."""
    play = Play(mode=Mode.ADVISE, trust=Trust(approvals=needed)).nodes()
    play.xid("n2")
    record = proposed(play)
    brake = play.engine.state.brakes.setdefault("gpu", BrakeRecord("gpu", nodes=4))
    brake.tripped_at = play.now
    for by in ("mei a1", "ken b2")[:needed]:
        assert kinds(approve(play, record, by)) == []
    return play, record


@pytest.mark.parametrize("needed", [1, 2])
@pytest.mark.parametrize("lets", ["timer", "reset"])
def test_a_full_brake_keeps_every_approval(needed, lets):
    """The order says that it waits for the brake, does not lapse, and is given once the brake lets it, without a word more."""
    play, record = braked(needed)
    assert (record.status, len(record.approvals), record.expires_at) == (OrderStatus.PROPOSED, needed, 0.0)
    assert record.waits_for == "the brake of its group holds it back until that closes"
    assert not [name for name in play.engine.state.timers if name.startswith("propose:")]
    given = play.fire("brake:") if lets == "timer" else play.say(C.RESET_BRAKE, group="gpu")
    assert kinds(given) == ["QuarantineNode"]
    assert (record.status, record.waits_for) == (OrderStatus.PENDING, "")
    assert play.ns("n2") is NodeState.QUARANTINED


def test_what_is_approved_needs_no_further_approval():
    """One that comes while the brake holds it is refused by a sentence that says what it waits for."""
    play, record = braked()
    approve(play, record, "kai e5")
    assert len(record.approvals) == 2
    assert any("it is approved, and the brake" in one.text for one in play.all if isinstance(one, o.Notify))


def test_an_approval_withdrawn_at_the_brake_has_the_order_wait_for_people():
    """It lapses again, and the brake that opens gives nothing."""
    play, record = braked()
    approve(play, record, "ken b2", C.WITHDRAW)
    assert (len(record.approvals), record.waits_for, record.expires_at > play.now) == (1, "", True)
    assert kinds(play.say(C.RESET_BRAKE, group="gpu")) == []
    assert kinds(approve(play, record, "ken b2")) == ["QuarantineNode"]


def test_a_rejection_at_the_brake_is_the_last_word():
    """The brake that opens proposes it no second time."""
    play, record = braked()
    approve(play, record, "kai e5", C.REJECT)
    assert record.status is OrderStatus.REJECTED
    assert kinds(play.say(C.RESET_BRAKE, group="gpu")) == []


def test_a_node_that_joins_another_group_leaves_the_brake_with_its_approvals():
    """The new group's brake lets it: the order is given as it was approved, and none waits for a brake that knows it no more."""
    play, record = braked()
    assert kinds(play.node("n2", group="cpu")) == ["QuarantineNode"]
    assert record.status is OrderStatus.PENDING


def test_a_lost_domain_takes_no_approved_order_from_the_brake():
    """Three nodes of its switch are lost after people approved its quarantine: the order still waits, and is given."""
    play = Play(mode=Mode.ADVISE).nodes(*[f"n{i}" for i in range(8)], topology="row1/rack2/switch7")
    play.do(e.NodeGone, node="n2", evidence="connection reset")
    play.node("n2", alive=False)
    record = proposed(play)
    play.engine.state.brakes["gpu"].tripped_at = play.now
    approve(play, record, "mei a1")
    for name in ("n3", "n4", "n5"):
        play.do(e.NodeGone, node=name, evidence="connection reset")
        play.node(name, alive=False)
    assert (record.status, record.is_approved) == (OrderStatus.PROPOSED, True)
    assert record.order.id in [one.id for one in play.say(C.RESET_BRAKE, group="gpu")]


def test_tokens_that_hold_no_more_take_their_approvals_along():
    """A withdrawal that names them, as the API sends it when the book changes, counts them out and says why."""
    play = advised()
    record = proposed(play)
    approve(play, record)
    play.say(C.WITHDRAW, who="token book", by="token book", order=record.order.id, void=("mei a1",))
    assert record.approvals == []
    assert any("counts no more" in line for line in play.n().story)


def test_one_person_rejects():
    """A no needs no second one."""
    play = advised()
    record = proposed(play)
    approve(play, record)
    approve(play, record, "ken b2", C.REJECT)
    assert record.status is OrderStatus.REJECTED


def test_the_second_approval_is_judged_by_what_is_then():
    """The machine was swapped between the two."""
    play = advised()
    record = proposed(play)
    approve(play, record)
    play.node("n2", instance_id="another", boot_id="another")
    assert kinds(approve(play, record, "ken b2")) == []
    assert record.status is OrderStatus.WITHDRAWN


def test_a_snapshot_keeps_approvals_and_witnesses():
    """A controller that starts again goes on from there."""
    play = running(two_witnesses=True, approvals=2)
    blame(play)
    approve(play, proposed(play))
    twin = play.engine.restore(play.engine.snapshot(), play.policies)
    assert twin.state.nodes["n2"].witnesses == {"gpu.broken": [LAUNCHER]}
    assert [record.approvals for record in twin.proposed_orders()] == [proposed(play).approvals]

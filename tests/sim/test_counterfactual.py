"""A recorded history under another policy: the same policy changes nothing, another one shows where it would differ."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace
from tests.decide.play import KEY, Play

from holdfast.model import events as e
from holdfast.model import orders as o
from holdfast.model.cluster import SchedulerState
from holdfast.model.policy import Brake, Limits, Mode, NodeRules, Policy, PolicySet
from holdfast.model.records import OrderRecord
from holdfast.ports import Entry, Touched
from holdfast.sim.counterfactual import Replayed, Told, replay, scope_of
from holdfast.sim.side_by_side import Case, compare, form, totals

WIDE = Brake(max_nodes=100, max_percent=100.0)


class Recorded(Play):
    """A play whose events and orders are kept as a journal keeps them."""

    def __init__(self, **fields: Any) -> None:
        self.entries: list[Entry] = []
        self.kept: dict[str, OrderRecord] = {}
        super().__init__(**fields)

    def send(self, event: e.AnyEvent) -> list[o.AnyOrder]:
        orders = super().send(event)
        self.entries.append(Entry(event, list(orders), Touched()))
        for record in self.engine.touched().orders:
            self.kept.setdefault(record.order.id, record)
        return orders

    def told(self) -> Told:
        incidents = {one.id: one for one in (*self.closed, *self.engine.open_incidents())}
        return Told(incidents=list(incidents.values()), orders=list(self.kept.values()))

    def under(self, **policy: Any) -> Replayed:
        """The same history under another policy."""
        policy.setdefault("brake", WIDE)
        return replay(self.entries, PolicySet(site=Policy(**policy)), recorded=self.kept.values())

    def cases(self, **policy: Any) -> list[Case]:
        return compare(self.told(), self.under(**policy).told)


def xid_73() -> Recorded:
    """A node that needs a reboot: fenced, job requeued elsewhere, rebooted, checked, returned; both sides close."""
    play = Recorded()
    play.running()
    play.nodes("n5")
    play.xid("n2", 73)
    play.done(o.QuarantineNode)
    play.node("n2", drained=True, drain_reason="[holdfast] Xid 73")
    play.through_queue()
    play.now += 100.0
    play.done(o.RebootNode)
    play.node("n2", boot_id="boot-2")
    play.do(e.NodeValidated, node="n2", passed=True)
    play.done(o.ReturnNode)
    play.node("n2", drained=False, drain_reason="")
    play.first_step(1, 101, 100)
    play.checkpoint(1, 200)
    assert not play.engine.open_incidents()
    return play


def test_the_same_policy_would_have_done_the_same():
    """Every order on both sides, nothing assumed, the same cause and outcome."""
    play = xid_73()
    (case,) = play.cases()
    assert not case.differs
    assert not any(line.assumed for line in case.lines)
    assert [line.then.split(" n2")[0] for line in case.lines if "n2" in line.then][:1] == ["quarantine node"]
    assert (case.cause_then, case.outcome_then) == ("nvidia.xid.73", "recovered")
    assert (case.cause_now, case.outcome_now) == ("nvidia.xid.73", "recovered")


def test_always_replace_would_have_replaced():
    """The reboot stands on the left, the replacement beside it; what rests on its outcome says so."""
    play = xid_73()
    (case,) = play.cases(always_replace=True)
    assert case.differs
    odd = [(line.then, line.now, line.assumed) for line in case.lines if line.then != line.now]
    assert odd == [("reboot node n2", "replace node n2", False)]
    checks = [line for line in case.lines if line.now == "validate node n2"]
    assert checks
    assert checks[0].assumed


def test_observe_would_have_done_nothing():
    """What it would only have noted is marked, and counted."""
    play = xid_73()
    made = play.under(mode=Mode.OBSERVE)
    (case,) = compare(play.told(), made.told)
    assert case.outcome_now in {"observed", "open", "recovered"}
    noted = [line.now for line in case.lines if line.now]
    assert "quarantine node n2 (observed)" in noted
    assert not [text for text in noted if not text.endswith("(observed)")]


def test_advise_would_have_asked():
    """Nobody decided then, so the proposal lapses."""
    (case,) = xid_73().cases(mode=Mode.ADVISE)
    assert any(line.now.startswith("quarantine node n2 (") for line in case.lines)


def test_a_smaller_budget_would_have_handed_over():
    """With no restart in place allowed the launcher would have left its allocation."""
    play = Recorded(scope="allocation").running()
    play.crash()
    play.restart_in_place(1)
    assert scope_of(play.entries) == "cluster"  # no controller has said otherwise
    told = replay(
        play.entries, PolicySet(site=Policy(limits=Limits(max_in_place=0), brake=WIDE)), scope="allocation"
    ).told
    (case,) = compare(play.told(), told)
    assert [(line.then, line.now) for line in case.lines if line.then != line.now] == [
        ("restart in place 7", "escalate 7"),
    ]


def test_a_brake_would_have_held_back():
    """The second quarantine within the hour is on the left only."""
    play = Recorded()
    play.running()
    play.xid("n2", 74)
    play.now += 200.0
    play.xid("n3", 74)
    cases = play.cases(brake=Brake(max_nodes=1))
    odd = [line.then for case in cases for line in case.lines if line.then and not line.now]
    assert "quarantine node n3" in odd
    assert "quarantine node n2" not in odd


def test_a_persons_approval_goes_to_the_same_proposal():
    """Approved then, approved now: the order's own id is another one."""
    play = Recorded(mode=Mode.ADVISE)
    play.running()
    play.xid("n2", 74)
    play.say(e.Command.APPROVE, order=play.open(o.QuarantineNode).id)
    play.done(o.QuarantineNode)
    (case,) = play.cases(mode=Mode.ADVISE)
    assert not case.differs


def test_a_node_that_is_never_validated_is_returned_at_once():
    """A step that the new policy leaves out is on the left only."""
    (case,) = xid_73().cases(node=NodeRules(validate=False))
    assert [line.then for line in case.lines if not line.now] == ["validate node n2"]


def test_a_journal_that_lost_its_beginning_says_so():
    """The engine then knows less than the recorded one did."""
    play = xid_73()
    made = replay(play.entries[5:], PolicySet())
    assert not made.complete
    assert play.under().complete


def test_no_history_is_no_difference():
    """An empty journal."""
    made = replay([], PolicySet())
    assert compare(Told(incidents=[], orders=[]), made.told) == []
    assert (made.events, made.complete) == (0, True)


def test_the_json_form_counts_and_shows_both_sides():
    """Counts of all orders, and each incident's lines with nulls where a side did nothing."""
    play = xid_73()
    made = play.under(always_replace=True)
    shown = form(compare(play.told(), made.told), play.told(), made.told, policy="new.toml")
    assert shown["policy"] == "new.toml"
    assert shown["orders"]["then"]["reboot_node"] == 1
    assert "reboot_node" not in shown["orders"]["now"]
    (incident,) = shown["incidents"]
    assert incident["differs"]
    assert {"after_s", "then", "now", "why", "assumed"} == set(incident["orders"][0])
    assert totals(made.told) == shown["orders"]["now"]


def test_a_job_that_is_seen_again_later_is_the_same_case():
    """Two troubles of the same job stay apart when minutes lie between them."""
    play = xid_73()
    play.now += 5000.0
    play.job(KEY, state=SchedulerState.FAILED, exit_code=1, restart_count=1)
    play.fire("settle:")
    cases = play.cases()
    assert len(cases) == 2
    assert not any(case.differs for case in cases)


def test_the_recorded_entries_are_not_changed():
    """The same history can be asked many times."""
    play = xid_73()
    before = [replace(entry.event) for entry in play.entries]
    play.under(always_replace=True)
    assert [entry.event for entry in play.entries] == before

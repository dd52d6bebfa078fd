"""A hostile agent, launcher or user changes nothing beyond its own, and each check that is taken away is seen."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from holdfast.model import events as e
from holdfast.model import orders as o
from holdfast.model.cluster import JobKey
from holdfast.model.orders import OrderStatus
from holdfast.model.records import IncidentRecord, OrderRecord
from holdfast.sim.checkers.hostile import about_the_liar, lies_change_nothing_of_others
from holdfast.sim.checkers.journal import Replayed, Told
from holdfast.sim.faults import plan
from holdfast.sim.fuzz import Trial
from holdfast.sim.history import BeatTaken, Lied, RunBegan
from holdfast.sim.options import EDITION_5, draw
from sim.histories import Tale, order
from sim.hostile_mutants import OPENED, caught_by, complaints

FOUND_BY = {
    "an agent reports findings of other nodes": 1,
    "a launcher ends attempts of other jobs": 6,
    "a launcher names nodes that are not its job's": 2,
    "a beat is anybody's": 1,
    "a job is any user's": 4,
}
"""A seed from `EDITION_5` on that saw it, tried first; `make soak` looks for all of them."""


def test_seeds_before_the_fifth_edition_know_no_liar():
    """They draw what they always drew; of the later ones half have one, in each of the three roles."""
    assert not any(draw(seed).hostiles for seed in (0, 10_000, 20_000, 30_000, 390_001_138, EDITION_5 - 1))
    lying = [seed for seed in range(EDITION_5, EDITION_5 + 100) if draw(seed).hostiles]
    assert 30 < len(lying) < 70
    assert all(len({job.user for job in draw(seed).jobs}) == len(draw(seed).jobs) for seed in lying)
    assert any(fault.id == "hostile-s1" for fault in plan(draw(lying[0])))
    assert "hostile-s1" in Trial(seed=lying[0], only=()).options().drop


@functools.cache
def clean(seed: int) -> bool:
    """With all checks nobody complains."""
    return complaints(seed) == []


@pytest.mark.parametrize("name", sorted(FOUND_BY))
def test_a_check_that_is_taken_away_is_seen(name):
    """By a seed that is clean with the check."""
    found = caught_by(name, [EDITION_5 + FOUND_BY[name], *range(EDITION_5, EDITION_5 + 60)])
    assert found >= 0
    assert clean(found)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", sorted(OPENED))
def test_a_check_that_is_taken_away_is_seen_within_300_seeds(name):
    """The first 300 of the edition, each check among them."""
    assert caught_by(name, range(EDITION_5, EDITION_5 + 300)) >= 0


# --- the judge itself -------------------------------------------------------------------------------------------------

JOB, OTHER = JobKey("c", "7"), JobKey("c", "8")


def tale(source: str, *events: e.AnyEvent) -> Tale:
    """A run in which job 7 runs on n1 and n2, job 8 on n3, and somebody lies."""
    told = Tale()
    for name in ("n1", "n2", "n3"):
        told.node(name)
    told.deed(RunBegan, job=JOB, epoch=1, nodes=("n1", "n2"))
    told.deed(RunBegan, job=OTHER, epoch=1, nodes=("n3",))
    told.deed(Lied, source=source)
    for event in events:
        told.event(type(event), **{name: getattr(event, name) for name in event.__struct_fields__[5:]}, source=source)
    return told


def said(told: Tale, made: dict[str, bytes], twin: dict[str, bytes]) -> list[str]:
    """What the judge says when these records come of the journal, and of its twin without lies."""
    whole = len(told.history.steps)
    return list(
        lies_change_nothing_of_others(
            told.history, lambda events, _: Replayed([], made if len(events) == whole else twin)
        )
    )


def test_a_record_of_another_job_that_a_lie_has_changed_is_told():
    """And one of the liar's own job is not."""
    told = tale("agent:n1", e.StepReached(id="x", at=0.0, job=JOB, attempt=0, step=1))
    told.history.steps[-1] = replace(
        told.history.steps[-1], event=replace(told.history.steps[-1].event, id="agent:n1/lie-1")
    )
    lasts, ends = b'{"state":"watching"}', b'{"state":"held"}'
    assert said(told, {"job:c/7#1": ends}, {"job:c/7#1": lasts}) == []
    assert said(told, {"node:n2": ends}, {"node:n2": ends}) == []
    (complaint,) = said(told, {"job:c/8#1": ends}, {"job:c/8#1": lasts})
    assert complaint == "because of agent:n1 job:c/8#1 is state held in place of watching"


def lied() -> Tale:
    """One lie of the agent of n1, and an honest event after it."""
    told = tale("agent:n1", *[e.StepReached(id="x", at=0.0, job=JOB, attempt=0, step=step) for step in (1, 2)])
    lie, honest = told.history.steps[-2:]
    told.history.steps[-2] = replace(lie, event=replace(lie.event, id="agent:n1/lie-1"))
    told.history.told[honest.event.id] = "agent:n1"
    return told


@pytest.mark.parametrize(("topic", "together"), [("brake:gpu", False), ("other", True), ("other", False)])
def test_what_the_liars_quarantine_moves_is_no_other_complaint(topic, together):
    """By the brake of the group, or by an approval for the incident that n3 joins: n3 and who leaves it come later."""
    told = lied()
    if together:
        told.history.incidents.append(IncidentRecord(id="i1", opened_at=0.0, nodes=["n1", "n3"]))
    fence = order(o.QuarantineNode, "c1", why="Xid 74")
    left = order(o.SetExcluded, "c2", nodes=("n3",))
    note = o.Notify(id="c3", cause=5, incident="", topic=topic, title="tripped", text="")
    made = [replace(fence, cause=4), note], [replace(left, job=OTHER, nodes=())]
    twin = [replace(fence, cause=5, node="n3"), replace(left, job=OTHER)]
    whole = len(told.history.steps)
    judge = lies_change_nothing_of_others(
        told.history,
        lambda events, _: Replayed([*made] if len(events) == whole else [twin], {}),
    )
    about = [text.split()[3] for text in judge]
    assert about == ([] if topic == "brake:gpu" or together else ["c/8#1", "n3"])


def test_what_failed_together_in_the_twin_alone_is_judged_together():
    """A lie moved one of them into an incident of its own: nothing was taken from it by that."""
    one = b'{"opened_at":1,"findings":[],"nodes":["n3"]}'
    both = b'{"opened_at":0,"findings":[],"nodes":["n3","n4"]}'
    made, twin = {"incident:ia": one}, {"incident:ib": both}
    assert said(lied(), made, twin) == []
    assert said(lied(), made, {}) == ["because of agent:n1 the incident of n3 opened at 1 is there"]


def test_the_twin_hears_of_outcomes_under_the_ids_of_its_own_orders():
    """A lie that opened an incident before shifts the numbers inside the honest event; what the twin lacks is left out."""
    told = lied()
    ours = {name: order(o.QuarantineNode, name, why="x") for name in ("c5.1", "c5.2", "c4.1")}
    settle = o.StartTimer(id="c5.3", cause=5, incident="ic4.1", timer="settle:ic4.1", after_s=1.0)
    told.history.steps[-1] = replace(told.history.steps[-1], orders=(replace(ours["c5.1"], cause=5), settle))
    told.history.steps[-2] = replace(told.history.steps[-2], orders=(replace(ours["c4.1"], cause=4),))
    told.event(e.OrderDone, order="c5.1")
    told.event(e.OrderDone, order="c4.1")
    fired = told.event(e.TimerFired, timer="settle:ic4.1")
    told.history.steps[-1] = replace(told.history.steps[-1], event=replace(fired, id=e.fired_id("c5.3")))
    heard: list[e.AnyEvent] = []

    def replay(events: Sequence[e.AnyEvent], told_of: Told) -> Replayed:
        """The twin opens the incident itself, and so begins to count at 2."""
        other = replace(settle, id="c5.4", incident="ic5.1", timer="settle:ic5.1")
        orders = [[replace(ours["c5.2"], cause=5), other] if event.seq == 5 else [] for event in events]
        heard[:] = [told_of(event, orders[:number]) for number, event in enumerate(events)]
        return Replayed(orders, {})

    assert list(lies_change_nothing_of_others(told.history, replay)) == []
    done, untold, timer = heard[-3:]
    assert isinstance(done, e.OrderDone)
    assert isinstance(untold, e.OrderDone)
    assert isinstance(timer, e.TimerFired)
    assert (done.order, untold.order) == ("c5.2", "untold:c4.1")
    assert (timer.id, timer.timer) == ("timer:c5.4", "settle:ic5.1")


def test_the_twin_hears_of_a_proposal_under_its_own_id():
    """No step gives what is proposed: it stands in the order records."""
    told = lied()
    ours = replace(order(o.QuarantineNode, "c5.1", why="x"), cause=5)
    told.history.orders.append(OrderRecord(ours, OrderStatus.PROPOSED, told.now))
    told.event(e.OperatorCommand, command=e.Command.APPROVE, who="ada", order="c5.1")
    heard: list[e.AnyEvent] = []

    def replay(events: Sequence[e.AnyEvent], told_of: Told) -> Replayed:
        proposed = [[replace(ours, id="c5.2")] if event.seq == 5 else [] for event in events]
        heard[:] = [told_of(event, proposed[:number]) for number, event in enumerate(events)]
        return Replayed([[] for _ in events], {})

    assert list(lies_change_nothing_of_others(told.history, replay)) == []
    approval = heard[-1]
    assert isinstance(approval, e.OperatorCommand)
    assert approval.order == "c5.2"


def test_an_id_that_is_not_the_liars_is_told():
    """It would silence who uses it next."""
    told = tale("agent:n1", e.StepReached(id="x", at=0.0, job=JOB, attempt=0, step=1))
    assert said(told, {}, {}) == ["event 4 (step_reached) of agent:n1 bears the id 'e4', which is not its own"]


def test_a_beat_for_another_is_told():
    """A launcher may beat from all nodes of its job, and for its job alone."""
    told = tale("launcher:7")
    told.history.jobs.clear()
    for node, job in (("n1", ""), ("n3", ""), ("", "8")):
        told.deed(BeatTaken, node=node, job_id=job)
    assert said(told, {}, {}) == [
        "launcher:7 has beaten for node 'n3', job ''",
        "launcher:7 has beaten for node '', job '8'",
    ]


def test_what_the_liar_says_of_its_own_is_excused_and_nothing_else():
    """A complaint that names the liar's node or job is its own affair."""
    excused = about_the_liar(tale("agent:n1").history)
    assert [excused(text) for text in ("node n1 is repairing", "job 7 is held", "node n2 is repairing")] == [
        True,
        True,
        False,
    ]
    assert not about_the_liar(Tale().history)("node n1 is repairing")

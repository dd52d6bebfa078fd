"""The judge itself: each thing that must hold is seen when it does not."""

from __future__ import annotations

import pytest

from holdfast.decide import invariants
from holdfast.errors import InvariantViolated
from holdfast.model import events as e
from holdfast.model import orders as o
from holdfast.model.orders import OrderStatus
from holdfast.model.records import AttemptRecord, JobState, NodeState, OrderRecord


def broken(play, spoil) -> str:
    """What the judge says after the state was spoiled."""
    spoil(play)
    with pytest.raises(InvariantViolated) as caught:
        invariants.check(play.engine.state, play.engine.index)
    return str(caught.value)


def _timer_gone(play):
    play.engine.state.timers.clear()
    for name, record in list(play.engine.state.orders.items()):
        if isinstance(record.order, o.JobOrder):
            del play.engine.state.orders[name]


SPOILS = {
    "governed by": lambda p: setattr(p.j, "state", JobState.COMPLETED),
    "is not open": lambda p: setattr(p.j, "incident", "i-none"),
    "attempt numbers": lambda p: p.j.attempts.append(AttemptRecord(number=0)),
    "later epoch": lambda p: setattr(p.attempt, "epoch", 99),
    "below zero": lambda p: setattr(p.j, "in_place", -1),
    "not bounded": lambda p: p.j.story.extend(["x"] * 300),
    "nothing will ever move it on": _timer_gone,
    "it is healthy": lambda p: setattr(p.n("n2"), "state", NodeState.HEALTHY),
    "unknown without being silent": lambda p: setattr(p.n("n1"), "state", NodeState.UNKNOWN),
    "waits for nothing": lambda p: (p.incident.jobs_open.clear(), p.incident.nodes_open.clear(), setattr(p.n("n2"), "incident", ""), setattr(p.j, "incident", ""), setattr(p.j, "state", JobState.WATCHING)),
    "does not concern": lambda p: p.incident.nodes_open.append("n4"),
    "kept although it is closed": lambda p: setattr(p.incident, "closed_at", 1.0),
    "or under another name": lambda p: setattr(p.incident, "id", "i-other"),
    "kept although it is done": lambda p: setattr(next(iter(p.engine.state.orders.values())), "status", OrderStatus.DONE),
    "counts": lambda p: setattr(p.engine.state.brakes["gpu"], "nodes", 9),
    "not suspect": lambda p: p.engine.state.brakes["gpu"].waiting.append("n4"),
    "nobody knows": lambda p: p.engine.state.timers.setdefault("job:nobody", next(iter(p.engine.state.timers.values()))),
    "index": lambda p: p.engine.index.jobs_on.setdefault("n9", set()).add("x"),
}  # fmt: skip


@pytest.mark.parametrize("words", SPOILS)
def test_what_does_not_hold_is_seen(play, words):
    """With the story of the record, where it has one."""
    play.xid("n2")
    play.done(o.QuarantineNode)
    assert words in broken(play, SPOILS[words])


def test_a_quarantine_without_its_order_is_seen(bare):
    """Its outcome is all that could move the node on."""
    bare.nodes()
    bare.xid("n2")
    complaint = broken(bare, lambda p: p.engine.state.orders.pop(p.open(o.QuarantineNode).id))
    assert "node n2 (quarantined): nothing will ever move it on" in complaint


def test_two_orders_of_a_kind_for_one_subject(play):
    """One deed at a time."""
    play.xid("n2")
    first = play.open(o.RequeueHeld)
    twin = o.RequeueHeld(id="c9.9", cause=9, job=first.job, restart_count=0)
    play.engine.state.orders["c9.9"] = OrderRecord(twin, OrderStatus.PENDING, 0.0)
    assert "2 orders RequeueHeld" in broken(play, lambda p: None)


def test_orders_for_the_other_engine(play, inside):
    """A controller stops no ranks, a launcher orders no nodes about."""
    stop = o.StopAttempt(id="c9.9", cause=9, job=play.j.key, attempt=0)
    play.engine.state.orders["c9.9"] = OrderRecord(stop, OrderStatus.PENDING, 0.0)
    assert "not for an engine of scope cluster" in broken(play, lambda p: None)
    fence = o.QuarantineNode(id="a9.9", cause=9, node="n1")
    inside.engine.state.orders["a9.9"] = OrderRecord(fence, OrderStatus.PENDING, 0.0)
    assert "not for an engine of scope allocation" in broken(inside, lambda p: None)


@pytest.mark.parametrize("kind", [o.RequeueHeld, o.SetExcluded, o.ReleaseJob, o.GiveUp])
def test_a_launcher_gives_the_scheduler_no_orders(inside, kind):
    """Only the controller requeues, excludes, releases and gives up."""
    needed = {o.RequeueHeld: {"restart_count": 0}, o.ReleaseJob: {"epoch": 1}}.get(kind, {})
    order = kind(id="a9.9", cause=9, job=inside.j.key, **needed)
    inside.engine.state.orders["a9.9"] = OrderRecord(order, OrderStatus.PENDING, 0.0)
    assert "not for an engine of scope allocation" in broken(inside, lambda p: None)


def test_a_sound_state_passes(play):
    """Nothing is said of it."""
    play.xid("n2")
    play.do(e.NodeSilent, node="n3", for_s=1.0)
    invariants.check(play.engine.state, play.engine.index)

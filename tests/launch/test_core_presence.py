"""What the leader does about its followers' beats and silence: grants, tells, asks after spares, takes ranks for dead."""

from __future__ import annotations

from typing import Any

from holdfast.launch.core.presence import (
    CheckSpare,
    Connected,
    FollowersLooked,
    Heard,
    Presence,
    SendGrant,
    SpareChecked,
    TellHeard,
    TellSilent,
)
from holdfast.launch.frames import Grant


def two() -> Presence:
    """Nodes n2 and n3 connected at 100 s; leases last 3 s."""
    core = Presence(3.0)
    for node in ("n2", "n3"):
        assert core.handle(Connected(node, 100.0)) == []
    return core


def looked(now: float, *used: str, **changed: Any) -> FollowersLooked:
    """The attempt runs on these nodes."""
    return FollowersLooked(now=now, used=frozenset(used), **({"gone": frozenset(), "can_ask": True} | changed))


def test_a_beat_is_granted_only_while_the_leader_holds_its_own_lease():
    """Other reports say that a node lives and grant nothing."""
    core = two()
    granted = core.handle(Heard(node="n2", now=101.0, beat=7, may_grant=True))
    assert granted == [SendGrant("n2", Grant(beat=7, lease_s=3.0))]
    assert core.handle(Heard(node="n3", now=101.0, beat=8)) == []
    assert core.handle(Heard(node="n3", now=101.0, may_grant=True)) == []
    assert (core.has_grant("n2"), core.has_grant("n3")) == (True, False)


def test_ranks_are_dying_before_and_dead_after_the_end_of_their_lease():
    """A lease granted at 101 s ends at 104 s."""
    core = two()
    core.handle(Heard(node="n2", now=101.0, beat=1, may_grant=True))
    assert [core.is_lapsing("n2", now) for now in (103.7, 103.8)] == [False, True]
    assert [core.is_lapsed("n2", now) for now in (104.5, 104.6)] == [False, True]
    assert not core.is_lapsing("n3", 200.0)
    assert core.is_lapsed("n3", 100.0)


def test_a_connection_does_not_take_a_lease_back():
    """A follower that comes back holds what it was granted."""
    core = two()
    core.handle(Heard(node="n2", now=101.0, beat=1, may_grant=True))
    core.handle(Connected("n2", 102.0))
    assert not core.is_lapsed("n2", 104.5)


def test_silence_and_its_end_are_told_once():
    """Of nodes that the attempt uses."""
    core = two()
    core.handle(Heard(node="n3", now=102.0))
    assert core.handle(looked(103.0, "n2", "n3")) == []
    assert core.handle(looked(103.24, "n2", "n3")) == [TellSilent("n2", 3.2)]
    assert core.handle(looked(103.3, "n2", "n3")) == []
    core.handle(Heard(node="n2", now=103.4))
    assert core.handle(looked(103.5, "n2", "n3")) == [TellHeard("n2")]
    assert core.handle(looked(103.6, "n2", "n3")) == []


def test_a_silent_spare_is_asked_after_until_it_is_gone():
    """Not before an attempt runs, and not without a scheduler to ask."""
    core = two()
    core.handle(Heard(node="n2", now=103.0))
    assert core.handle(looked(104.0)) == []
    assert core.handle(looked(104.0, "n2", can_ask=False)) == []
    assert core.handle(looked(104.0, "n2")) == [CheckSpare("n3")]
    assert core.handle(looked(104.1, "n2")) == []
    core.handle(SpareChecked("n3"))
    assert core.handle(looked(104.2, "n2", gone=frozenset({"n3"}))) == []
    assert core.handle(looked(104.3, "n2")) == [CheckSpare("n3")]

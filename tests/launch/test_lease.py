"""The attempt lease."""

from __future__ import annotations

from holdfast.launch.lease import Lease
from holdfast.launch.link import beat_pause_s
from holdfast.launch.options import LEASE_S


def test_it_counts_from_when_the_answered_beat_was_sent():
    """The answer may be late; the right that it gives is not longer for it."""
    lease = Lease(3.0, now=100.0)
    beat = lease.next_beat(101.0)
    lease.answered(beat, 3.0)
    assert lease.left_s(103.5) == 0.5
    assert not lease.is_over(103.9)
    assert lease.is_over(104.0)


def test_repeated_old_and_unknown_answers_change_nothing():
    """Only the first answer to a beat of ours counts."""
    lease = Lease(3.0, now=0.0)
    first, second = lease.next_beat(1.0), lease.next_beat(2.0)
    lease.answered(second, 3.0)
    assert lease.left_s(0.0) == 5.0
    lease.answered(first, 60.0)
    lease.answered(second, 60.0)
    lease.answered(99, 60.0)
    assert lease.left_s(0.0) == 5.0


def test_proof_of_an_earlier_moment_does_not_shorten_it():
    """Renewals only ever lengthen."""
    lease = Lease(3.0, now=10.0)
    lease.renew(9.0)
    assert lease.left_s(10.0) == 3.0
    lease.renew(12.0)
    assert lease.left_s(10.0) == 5.0


def test_what_the_default_lease_forgives_is_two_seconds_of_silence():
    """The lease less a beat's pause: as much as 3 s with a beat a second forgave. A large job's leader hears fewer."""
    assert LEASE_S - beat_pause_s(LEASE_S, nodes=2) == 2.0
    assert [beat_pause_s(LEASE_S, nodes) for nodes in (1, 200, 500, 5000)] == [0.25, 0.25, 0.5, 0.75]
    assert beat_pause_s(10.0, nodes=2) == 1.0

"""The attempt lease."""

from __future__ import annotations

from holdfast.launch.lease import Lease


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

"""The attempt lease."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from holdfast.launch.core.lease import Lease, beat_pause_s
from holdfast.launch.core.presence import Heard, Presence
from holdfast.launch.crew import Crew
from holdfast.launch.environment import AttemptSpec
from holdfast.launch.frames import RanksStarted
from holdfast.launch.options import LEASE_S
from holdfast.launch.place import JobPlace
from holdfast.model.cluster import JobKey


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


def test_a_follower_is_taken_for_dying_before_it_is_taken_for_dead(tmp_path: Path):
    """Its lease runs out by its own clock first: what ends elsewhere just then ends of that. Dead it is a margin later."""
    place = JobPlace(job=JobKey("test", "1"), job_dir=tmp_path, node="a", nodes=("a", "b", "c"))
    presence = Presence(3.0)
    presence.handle(Heard(node="b", now=97.0, beat=1, may_grant=True))
    port = SimpleNamespace(presence=presence, followers={})
    crew = Crew(place, cast("Any", None), on_report=lambda *_: None, on_all_gone=lambda _: None)
    crew.port = cast("Any", port)
    nodes = ("a", "b", "c")
    crew.spec = AttemptSpec(
        attempt=0, epoch=1, nodes=nodes, local_ranks=(1, 1, 1), master_addr="127.0.0.1", master_port=1
    )
    for node in nodes:
        crew.hear(node, RanksStarted(attempt=0))
    assert crew.leases_run_out(99.0) == []  # never the leader's own node, nor one that was granted nothing yet
    assert crew.leases_run_out(99.9) == ["b"] == crew.leases_run_out(100.2)
    assert crew.look_at_leases(100.2) == []
    assert crew.look_at_leases(100.6) == ["b"]
    assert crew.leases_run_out(100.6) == []

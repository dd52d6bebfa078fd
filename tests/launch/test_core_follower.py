"""The follower's decisions: a lease that is not renewed kills, a leader that is away is left, signals are passed on."""

from __future__ import annotations

import signal

from holdfast.errors import EXIT_UNAVAILABLE
from holdfast.launch.core.asks import Finish, KillRanks, Say
from holdfast.launch.core.follower import (
    Asked,
    CarryOut,
    Disconnected,
    Dismissed,
    FollowerCore,
    Held,
    Signalled,
    SignalRanks,
    Tell,
    Ticked,
    Welcomed,
)
from holdfast.launch.frames import EndAsked, EndRanks, Grant, Leave, PassSignal

RUNNING = Held(attempt=4, is_ending=False)
NOT_RENEWED = "n2 could not renew its attempt lease of 3 s"


def follower() -> FollowerCore:
    """Connected at 100 s, with a lease to 103 s and 30 s of patience."""
    core = FollowerCore("n2", nodes=2, lease_s=3.0, wait_s=30.0, now=100.0)
    assert core.handle(Welcomed(3.0)) == []
    return core


def test_ranks_are_killed_when_the_lease_has_run_out_and_not_before():
    """The leader is still connected: its silence is what counts."""
    core = follower()
    assert core.handle(Ticked(102.9, RUNNING)) == []
    assert core.handle(Ticked(103.0, RUNNING)) == [Say(f"{NOT_RENEWED}: killing its ranks"), KillRanks(4, NOT_RENEWED)]
    assert core.handle(Ticked(103.1, Held(attempt=4, is_ending=True))) == []
    assert core.handle(Ticked(103.1, None)) == []


def test_a_grant_renews_from_when_the_beat_was_sent():
    """However late the answer comes, and only for a beat of ours."""
    core = follower()
    beat = core.next_beat(102.0)
    assert core.handle(Asked(Grant(beat=beat.beat + 7, lease_s=60.0))) == []
    assert core.handle(Asked(Grant(beat=beat.beat, lease_s=3.0))) == []
    assert core.handle(Ticked(104.9, RUNNING)) == []
    assert KillRanks(4, NOT_RENEWED) in core.handle(Ticked(105.0, RUNNING))


def test_a_leader_that_stays_away_is_left():
    """Said once; patience counts from the first break, and again from zero after a new connection."""
    core = follower()
    assert core.handle(Disconnected(110.0, "reset")) == [Say("the leader's connection is broken: reset", is_note=True)]
    assert core.handle(Disconnected(130.0, "reset")) == []
    assert core.handle(Ticked(114.9, None)) == []
    assert core.handle(Ticked(139.0, None)) == [Say("n2 waits for the leader of this job, for up to 30 s")]
    assert core.handle(Ticked(139.5, None)) == []
    core.handle(Welcomed(3.0))
    assert core.handle(Ticked(141.0, None)) == []
    core.handle(Disconnected(150.0, "closed"))
    left = Finish(EXIT_UNAVAILABLE, "the leader of this job has not answered for 30 s")
    assert core.handle(Ticked(180.5, None)) == [left]
    assert core.handle(Ticked(180.6, None)) == []
    assert core.finished == left


def test_a_leader_that_never_welcomes_is_left():
    """A port that takes the hello and does not answer is no leader."""
    core = FollowerCore("n2", nodes=2, lease_s=3.0, wait_s=30.0, now=100.0)
    assert [type(ask) for ask in core.handle(Ticked(130.5, None))] == [Finish]


def test_asks_of_the_leader_are_carried_out_and_leave_ends():
    """The first exit code counts."""
    core = follower()
    assert core.handle(Asked(EndRanks(attempt=4))) == [CarryOut(EndRanks(attempt=4))]
    assert core.handle(Asked(Leave(exit_code=85, why="saved"))) == [Finish(85, "saved")]
    assert core.handle(Asked(Leave(exit_code=1, why="late"))) == []
    assert not core.is_unled


def test_a_signal_reaches_ranks_and_leader_and_a_second_one_ends():
    """While the leader is connected it decides; a second signal is for somebody in a hurry."""
    core = follower()
    first = Signalled(signum=signal.SIGTERM, is_connected=True, has_attempt=True)
    assert core.handle(first) == [Tell(EndAsked(signum=15)), SignalRanks(15)]
    assert core.handle(first) == [Finish(143, "ended on request")]
    assert not core.is_unled


def test_a_signal_without_a_leader_ends_at_once():
    """Nobody leads, which may mean that its machine is gone."""
    core = follower()
    asks = core.handle(Signalled(signum=signal.SIGTERM, is_connected=False, has_attempt=True))
    assert asks == [Tell(EndAsked(signum=15)), SignalRanks(15), Finish(143, "ended on request")]
    assert core.is_unled


def test_told_to_end_it_does_not_outwait_its_lease():
    """The leader has passed the end on and is silent since."""
    core = follower()
    end = PassSignal(signum=15, is_end=True)
    assert core.handle(Asked(end)) == [CarryOut(end)]
    assert core.handle(Ticked(102.0, RUNNING)) == []
    asks = core.handle(Ticked(103.0, RUNNING))
    assert asks[1:] == [KillRanks(4, NOT_RENEWED), Finish(143, "ended on request")]
    assert core.is_unled


def test_a_watcher_that_the_scheduler_ends_is_unled_only_without_a_lease():
    """Its tasks hear from the scheduler themselves."""
    early, late = follower(), follower()
    assert early.handle(Dismissed(102.0)) == late.handle(Dismissed(104.0)) == [Finish(0)]
    assert (early.is_unled, late.is_unled) == (False, True)

"""When the leader leaves and with which exit code, as lists of asks: no process is started here."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from holdfast.errors import EXIT_DO_NOT_REQUEUE, EXIT_RESTART_ME, EXIT_UNAVAILABLE
from holdfast.launch.core.asks import Finish, KillRanks, Say
from holdfast.launch.core.shutdown import (
    AttemptOver,
    AwaitDecision,
    Ended,
    EndRanks,
    ExpectStop,
    FinishLater,
    FolderRefused,
    Handed,
    Hurry,
    Interrupted,
    LeaseLost,
    PassEnd,
    RankFell,
    Settled,
    Shutdown,
    Signalled,
    Stored,
    Superseded,
)
from holdfast.launch.process import Exit

SAVED = "the job saved its state and asks to be started again"


def leader(**changed: Any) -> Shutdown:
    """One that recovers."""
    facts = {"recovers": True, "observes": False, "is_command": False, "stop_grace_s": 30.0}
    return Shutdown(**(facts | changed))


def ended(how: Exit, **changed: Any) -> Ended:
    """An attempt that nobody asked to stop."""
    return Ended(exit=how, **({"is_good": False, "cause": "rank 3 died", "stop_asked": False} | changed))


KILLED = Exit(signal=9)


@pytest.mark.parametrize(
    ("core", "how", "asks"),
    [
        (leader(), ended(Exit(code=0), is_good=True), [Finish(0)]),
        (leader(), ended(Exit(code=EXIT_RESTART_ME)), [Finish(EXIT_RESTART_ME, SAVED)]),
        (leader(recovers=False), ended(KILLED), [Finish(137, "rank 3 died")]),
        (leader(), ended(KILLED), [AwaitDecision()]),
        (leader(), ended(KILLED, stop_asked=True), []),
        (leader(observes=True), ended(KILLED, stop_asked=True), [AwaitDecision()]),
    ],
)
def test_an_end_leads_out_or_waits_for_the_engine(core: Shutdown, how: Ended, asks: list[object]):
    """A stop that the engine ordered is followed by its next order."""
    assert core.handle(AttemptOver(how, Stored.TAKEN)) == asks


def test_an_end_that_the_engine_cannot_judge_leaves_with_the_commands_own_code():
    """A defect of judgement keeps nothing back; a controller that has ended ends the launcher by itself."""
    assert leader().handle(AttemptOver(ended(Exit(code=3)), Stored.REFUSED)) == [Finish(3, "rank 3 died")]
    assert leader().handle(AttemptOver(ended(Exit(code=3)), Stored.LOST)) == []
    assert leader().handle(AttemptOver(ended(Exit(code=0), is_good=True), Stored.LOST)) == [Finish(0)]
    assert leader().handle(Settled(ended(KILLED))) == [Finish(137, "rank 3 died")]


def test_told_to_end_it_passes_the_signal_on_and_kills_after_the_grace():
    """Told again it waits for nothing; a follower's second word changes nothing."""
    core = leader()
    told = Signalled(signum=signal.SIGTERM, attempt=2, has_ranks=True)
    assert core.handle(told) == [ExpectStop(), PassEnd(15), EndRanks(2, after_s=30.0)]
    assert core.handle(Signalled(signum=15, attempt=2, has_ranks=True, is_ours=False)) == []
    assert core.handle(told) == [Hurry(), EndRanks(2)]
    assert core.is_stopped(stop_asked=True)
    over = AttemptOver(ended(Exit(), stop_asked=True), Stored.TAKEN)
    assert core.handle(over) == [Finish(143, "ended on request")]


def test_told_to_end_without_ranks_it_leaves_at_once():
    """Nothing runs that could be told."""
    asks = leader().handle(Signalled(signum=signal.SIGINT, attempt=-1, has_ranks=False))
    assert asks == [Finish(130, "ended on request")]


def test_an_interrupt_that_srun_has_seen_is_an_end_on_request():
    """The step ends by itself, with its own exit code."""
    core = leader()
    assert core.handle(Interrupted(2)) == [ExpectStop()]
    assert core.handle(Interrupted(15)) == []
    over = AttemptOver(ended(Exit(code=1), stop_asked=True), Stored.TAKEN)
    assert core.handle(over) == [Finish(1, "ended on request")]


def test_without_recovery_ranks_do_not_wait_for_one_that_is_dead():
    """A command that is only observed looks after its own."""
    stop = [ExpectStop(), EndRanks(0, grace_s=30.0)]
    assert leader().handle(RankFell(0)) == []
    assert leader(recovers=False).handle(RankFell(0)) == stop
    assert leader(recovers=False, is_command=True).handle(RankFell(0)) == stop
    assert leader(observes=True).handle(RankFell(0)) == stop
    assert leader(observes=True, is_command=True).handle(RankFell(0)) == []


def test_a_stop_is_a_stop_for_the_engine_only_where_it_recovers():
    """Elsewhere every end of an attempt is judged."""
    assert leader().is_stopped(stop_asked=True)
    assert not leader().is_stopped(stop_asked=False)
    assert not leader(observes=True).is_stopped(stop_asked=True)
    assert not leader(recovers=False).is_stopped(stop_asked=True)


def test_a_lost_lease_kills_this_nodes_ranks_once_an_attempt():
    """The followers' die of their own."""
    core = leader()
    say, kill = core.handle(LeaseLost(1))
    why = "this launcher can reach neither the controller nor the job's folder"
    assert say == Say(f"{why}: its attempt lease has run out, killing the ranks")
    assert kill == KillRanks(1, why)
    assert core.handle(LeaseLost(1)) == []
    assert len(core.handle(LeaseLost(2))) == 2


def test_another_launchers_epoch_ends_this_one():
    """Ranks first, then the exit that asks for nothing but a new start."""
    assert leader().handle(Superseded(epoch=9, own=7, attempt=3)) == [
        Say("epoch 9 has been started elsewhere, ours is 7: leaving"),
        ExpectStop(),
        KillRanks(3),
        Finish(EXIT_UNAVAILABLE, "another launcher has taken this job over"),
    ]


def test_handed_over_it_waits_for_the_controller_to_end_it():
    """Nobody to hand it to, or given up for good: it leaves itself."""
    finish = Finish(85, "no node left")
    assert leader().handle(Handed(code=85, why="no node left", is_told=True)) == [FinishLater(300.0, finish)]
    assert leader().handle(Handed(code=85, why="no node left", is_told=False)) == [finish]
    for_good = Handed(code=EXIT_DO_NOT_REQUEUE, why="x", is_told=True)
    assert leader().handle(for_good) == [Finish(EXIT_DO_NOT_REQUEUE, "x")]


def test_a_folder_that_refuses_is_waited_for_only_so_long():
    """Two seconds after the last rank; nothing of the fault can be decided any more."""

    def refused(for_s: float) -> FolderRefused:
        return FolderRefused(ended=ended(KILLED), for_s=for_s, error="the folder is full")

    assert leader().handle(refused(1.9)) == []
    why = "rank 3 died, and the folder is full"
    assert leader().handle(refused(2.0)) == [Finish(EXIT_DO_NOT_REQUEUE, why)]
    assert leader(observes=True).handle(refused(2.0)) == [Finish(137, why)]
    assert leader(recovers=False).handle(refused(2.0)) == [Finish(137, "rank 3 died")]

"""No attempt starts unfenced: every step to its ranks, and every step at which it is stopped."""

from __future__ import annotations

import pytest

from holdfast.launch.core.fence import (
    EpochRaised,
    EpochTaken,
    Fence,
    FenceAsk,
    LaidOut,
    LayOut,
    PinCheckpoint,
    Pinned,
    RaiseEpoch,
    RenewLease,
    Resumed,
    StartOrdered,
    StartRanks,
)
from holdfast.launch.core.lease import YieldJob


def begun() -> Fence:
    """Attempt 3 runs with epoch 5."""
    core = Fence()
    core.handle(Resumed(epoch=5, record_epoch=5, record_attempt=3))
    return core


def test_an_attempt_starts_behind_its_epoch():
    """Laid out, fenced, its checkpoint pinned, and only then started."""
    core = begun()
    ordered = core.handle(StartOrdered(attempt=4, epoch=6, in_place=True))
    assert ordered == [LayOut(attempt=4, epoch=6, in_place=1)]
    assert core.handle(LaidOut(4, 6)) == [RaiseEpoch(6)]
    assert core.handle(EpochRaised(100.0)) == [RenewLease(100.0), PinCheckpoint()]
    assert core.handle(Pinned(is_leaving=False)) == [StartRanks()]


@pytest.mark.parametrize("found", [6, 7])
def test_an_epoch_that_somebody_else_has_taken_stops_it(found):
    """The very one that we wanted, or a later one: the job is theirs, and the lease is not renewed by that."""
    core = begun()
    core.handle(StartOrdered(attempt=4, epoch=6, in_place=True))
    core.handle(LaidOut(4, 6))
    assert core.handle(EpochTaken(found)) == [YieldJob(found)]


def test_told_to_end_before_its_ranks_it_does_not_start():
    """The epoch is spent all the same."""
    core = begun()
    core.handle(StartOrdered(attempt=4, epoch=6, in_place=True))
    core.handle(LaidOut(4, 6))
    core.handle(EpochRaised(100.0))
    assert core.handle(Pinned(is_leaving=True)) == []
    assert (core.attempt, core.epoch) == (4, 6)


def test_an_order_for_an_attempt_that_was_started_does_nothing():
    """Orders may come twice."""
    core = begun()
    assert core.handle(StartOrdered(attempt=3, epoch=9, in_place=True)) == []
    assert (core.attempt, core.epoch, core.in_place) == (3, 5, 0)


def test_an_epoch_is_never_used_again():
    """Whatever the order says; one that could not be laid out has spent nothing."""
    core = begun()
    lay_out: list[FenceAsk] = [LayOut(attempt=4, epoch=6, in_place=0)]
    assert core.handle(StartOrdered(attempt=4, epoch=2, in_place=False)) == lay_out
    assert core.handle(StartOrdered(attempt=4, epoch=2, in_place=False)) == lay_out


@pytest.mark.parametrize(
    ("resumed", "attempt", "epoch"),
    [
        (Resumed(epoch=0), -1, 0),
        (Resumed(epoch=5, record_epoch=5, record_attempt=3, folder_attempt=8), 3, 5),
        (Resumed(epoch=4, record_epoch=5, record_attempt=3), 3, 5),
        (Resumed(epoch=6, record_epoch=5, record_attempt=3, folder_attempt=4), 4, 6),
        (Resumed(epoch=6, record_epoch=5, record_attempt=3, folder_attempt=2), 3, 6),
        (Resumed(epoch=6, folder_attempt=4), 4, 6),
        (Resumed(epoch=6, record_epoch=6, record_attempt=None), -1, 6),
    ],
)
def test_numbers_go_on_where_they_were_left(resumed: Resumed, attempt: int, epoch: int):
    """A folder that is ahead of the journal tells of an attempt that the journal does not know."""
    core = Fence()
    assert core.handle(resumed) == []
    assert (core.attempt, core.epoch) == (attempt, epoch)
    core.reserve(7)
    assert core.attempt == max(attempt, 7)

"""The leader's own lease: renewed by its epoch in the job's folder, lost when that cannot be read, yielded to a newer."""

from __future__ import annotations

from typing import Any

from holdfast.launch.core.lease import (
    AwaitEpoch,
    EpochRead,
    EpochUnread,
    LeaderLease,
    LeaseChecked,
    LeaseLooked,
    LoseLease,
    ReadEpoch,
    YieldJob,
)


def looked(now: float, *, is_cut: bool = False, is_reading: bool = False) -> LeaseLooked:
    """The driver has come round."""
    return LeaseLooked(now=now, is_cut=is_cut, is_reading=is_reading)


def checked(now: float, **changed: Any) -> LeaseChecked:
    """Everything read is told; ranks of ours run."""
    return LeaseChecked(now=now, **({"is_cut": False, "is_reading": False, "is_held": True} | changed))


def read(now: float, found: int, *, is_cut: bool = False, has_begun: bool = True) -> EpochRead:
    """The folder's answer after a tenth of a second; epoch 5 is ours."""
    return EpochRead(now=now, since=now - 0.1, is_cut=is_cut, found=found, own=5, has_begun=has_begun)


def test_its_own_epoch_renews_the_lease_from_when_the_reading_began():
    """A lease is at least 3 s long for the folder's sake."""
    core = LeaderLease(1.0, 100.0)
    assert core.handle(looked(100.2)) == [ReadEpoch()]
    assert core.handle(read(102.0, 5)) == []
    assert core.handle(checked(104.8)) == []
    assert core.handle(checked(104.9)) == [LoseLease()]
    assert core.handle(checked(104.9, is_held=False)) == []


def test_a_newer_epoch_yields_the_job_once_it_has_begun():
    """Before the first attempt a newer epoch only says that another launcher was here."""
    core = LeaderLease(3.0, 100.0)
    assert core.handle(read(101.0, 6)) == [YieldJob(6)]
    assert core.handle(read(101.0, 6, has_begun=False)) == []


def test_a_node_that_is_cut_off_neither_reads_nor_renews():
    """What its folder says may be old; nothing may start on it."""
    core = LeaderLease(3.0, 100.0)
    assert core.handle(looked(100.2, is_cut=True)) == []
    assert core.handle(read(102.0, 6, is_cut=True)) == []
    assert core.handle(checked(103.0, is_cut=True)) == [LoseLease()]
    assert not core.is_sure(101.0, is_cut=True)
    assert core.is_sure(101.0, is_cut=False)
    assert not core.is_sure(103.0, is_cut=False)


def test_after_a_standstill_the_folder_decides_before_the_clock():
    """A paused machine could not renew: the reading that is under way is waited for."""
    core = LeaderLease(3.0, 100.0)
    assert core.handle(looked(100.2)) == [ReadEpoch()]
    assert core.handle(looked(160.0, is_reading=True)) == [AwaitEpoch(1.0)]
    assert core.handle(read(160.1, 5)) == []
    assert core.handle(checked(160.1)) == []
    assert core.handle(looked(220.0)) == [ReadEpoch(), AwaitEpoch(1.0)]
    assert core.handle(looked(300.0, is_cut=True)) == []


def test_why_the_folder_cannot_be_read_is_kept_until_it_can():
    """A refusal has its reason; one that hangs has none but the time."""
    core = LeaderLease(3.0, 100.0)
    core.handle(EpochUnread("Stale file handle"))
    assert core.unread == "Stale file handle"
    core.handle(read(101.0, 5))
    assert core.unread == ""
    core.handle(looked(161.5, is_reading=True))
    core.handle(checked(161.5, is_reading=True))
    assert core.unread == "no answer for 60 s"

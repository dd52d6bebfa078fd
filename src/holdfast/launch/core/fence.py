"""When an attempt may start: its epoch is raised first, and every step before the ranks may still stop it.

Driven by `advance`, one step after the other: each ask but `RenewLease` and `StartRanks` is answered by the
report that is named there, or by an error, which ends the start. Numbers that were given away are never used again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from msgspec import Struct

from holdfast.launch.core.lease import YieldJob


class Resumed(Struct, frozen=True, kw_only=True):
    """This launcher begins. Numbers of the journal's record are None without one; `folder_attempt` has logs."""

    epoch: int
    """In the job's folder."""
    record_epoch: int | None = None
    record_attempt: int | None = None
    folder_attempt: int = -1


class StartOrdered(Struct, frozen=True, kw_only=True):
    """Start this attempt, in place of the one before when `in_place`."""

    attempt: int
    epoch: int
    in_place: bool


class LaidOut(Struct, frozen=True):
    """The ranks of `LayOut` have their places."""

    attempt: int
    epoch: int


class EpochRaised(Struct, frozen=True):
    """The job's folder holds our epoch now; the raise began at `since`."""

    since: float


class EpochTaken(Struct, frozen=True):
    """Another launcher has started the job with the epoch that we wanted, or with a later one."""

    found: int


class Pinned(Struct, frozen=True):
    """The checkpoint to start from is known. `is_leaving`: told to end meanwhile."""

    is_leaving: bool


FenceReport = Resumed | StartOrdered | LaidOut | EpochRaised | EpochTaken | Pinned


class LayOut(Struct, frozen=True, kw_only=True):
    """Give the ranks of this attempt their places, then say `LaidOut`. `in_place`: restarts in place in a row."""

    attempt: int
    epoch: int
    in_place: int


class RaiseEpoch(Struct, frozen=True):
    """Write the epoch so that it survives a crash, then say `EpochRaised`: attempts before it can save nothing more.

    It is ours alone; where another launcher has it, say `EpochTaken`.
    """

    epoch: int


class RenewLease(Struct, frozen=True):
    """The raise has proven that the job was ours at this time."""

    since: float


class PinCheckpoint(Struct, frozen=True):
    """Find the checkpoint to start from, then say `Pinned`."""


class StartRanks(Struct, frozen=True):
    """Start the ranks as they were laid out."""


FenceAsk = LayOut | RaiseEpoch | RenewLease | PinCheckpoint | StartRanks | YieldJob


class Fence:
    """Numbers attempts and epochs, and lets no attempt start unfenced."""

    def __init__(self) -> None:
        self.attempt = -1
        """The newest attempt, -1 before the first."""
        self.epoch = 0
        self.in_place = 0
        """Restarts in place since the ranks were last started from outside."""

    def handle(self, report: FenceReport) -> list[FenceAsk]:
        """What is to be done next, in order; nothing more when the attempt must not start."""
        match report:
            case Resumed():
                self._resume(report)
            case StartOrdered() if report.attempt > self.attempt:
                self.in_place = self.in_place + 1 if report.in_place else 0
                epoch = max(report.epoch, self.epoch + 1)
                return [LayOut(attempt=report.attempt, epoch=epoch, in_place=self.in_place)]
            case LaidOut():
                self.attempt, self.epoch = report.attempt, report.epoch
                return [RaiseEpoch(report.epoch)]
            case EpochTaken():
                # Our own lease looks only now and then; an attempt that is fenced before it starts must not start.
                return [YieldJob(report.found)]
            case EpochRaised():
                return [RenewLease(report.since), PinCheckpoint()]
            case Pinned() if not report.is_leaving:
                return [StartRanks()]
        return []

    def _resume(self, report: Resumed) -> None:
        self.epoch = report.epoch
        self.attempt = report.record_attempt if report.record_attempt is not None else -1
        if report.record_epoch is None or report.epoch > report.record_epoch:
            # A launcher that was killed may have started an attempt that its journal does not know.
            self.attempt = max(self.attempt, report.folder_attempt)
        else:
            self.epoch = report.record_epoch

    def reserve(self, attempt: int) -> None:
        """Use no attempt's number up to this one: another step of the job has."""
        self.attempt = max(self.attempt, attempt)


async def advance(
    fence: Fence, report: FenceReport, carry_out: Callable[[FenceAsk], Awaitable[FenceReport | None]]
) -> None:
    """Take the steps to an attempt's ranks, one after the other; `carry_out` gives the report that an ask wants."""
    for ask in fence.handle(report):
        if (answer := await carry_out(ask)) is not None:
            await advance(fence, answer, carry_out)

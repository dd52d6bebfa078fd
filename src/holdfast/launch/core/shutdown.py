"""When the leader leaves its allocation, with which exit code, and what it ends before.

Driven by `launch.leaving`. An attempt's end may need a decision of the engine; what needs none is decided here: ends
on request, good ends, exit code 85, runs without recovery, another launcher's epoch, a lease or a folder that is lost.
"""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

from holdfast.errors import EXIT_DO_NOT_REQUEUE, EXIT_RESTART_ME, EXIT_UNAVAILABLE
from holdfast.launch.core.asks import Finish, KillRanks, Say
from holdfast.launch.process import Exit

HANDED_OVER_S = 300.0
"""After an escalation the controller requeues or cancels the job, which ends this launcher; it does not wait longer."""
GIVE_UP_S = 2.0
"""Nothing runs any more, and for so long nothing could be stored: the launcher leaves."""
_ENDED = "ended on request"
_UNREACHABLE = "this launcher can reach neither the controller nor the job's folder"


class Ended(Struct, frozen=True, kw_only=True):
    """How an attempt has ended, as far as is known."""

    exit: Exit
    is_good: bool
    cause: str
    stop_asked: bool


class Stored(Enum):
    """What has become of the event that told the attempt's end."""

    TAKEN = "taken"
    REFUSED = "refused"
    """The engine could not judge it; the command's own exit code must not be kept back for that."""
    LOST = "lost"
    """The controller has ended, which ends this launcher."""


class Signalled(Struct, frozen=True, kw_only=True):
    """The job is being ended from outside: by a signal here, or by one that a follower was told by."""

    signum: int
    attempt: int
    has_ranks: bool
    is_ours: bool = True
    """The signal reached this launcher itself."""


class Interrupted(Struct, frozen=True):
    """The ranks have been ended from outside by somebody else's signal, which is no fault."""

    signum: int


class RankFell(Struct, frozen=True):
    """A rank, or the command, has ended while others run."""

    attempt: int


class AttemptOver(Struct, frozen=True):
    """No process of the attempt is left, and the engine was told."""

    ended: Ended
    stored: Stored


class FolderRefused(Struct, frozen=True, kw_only=True):
    """No ranks run, and the job's folder has refused to be used for `for_s` seconds."""

    ended: Ended
    for_s: float
    error: str


class Settled(Struct, frozen=True):
    """The engine will do nothing more about the end of the newest attempt."""

    ended: Ended


class LeaseLost(Struct, frozen=True):
    """The leader's own lease has run out while this attempt runs."""

    attempt: int


class Superseded(Struct, frozen=True, kw_only=True):
    """A newer epoch than ours stands in the job's folder."""

    epoch: int
    own: int
    attempt: int


class Handed(Struct, frozen=True, kw_only=True):
    """The engine has no remedy left inside the allocation; `is_told`: the cluster's controller knows."""

    code: int
    why: str
    is_told: bool


LossReport = LeaseLost | Superseded
"""Answered with `KillRanks`, which is waited for."""
OwnReport = Signalled | Interrupted | RankFell | AttemptOver | FolderRefused | Settled | Handed
"""Of our own job, which nobody takes from us."""
ShutdownReport = OwnReport | LossReport


class ExpectStop(Struct, frozen=True):
    """What ranks do from here on is no fault: their end is asked for."""


class PassEnd(Struct, frozen=True):
    """Send the signal that ends the job to all ranks of all nodes."""

    signum: int


class EndRanks(Struct, frozen=True):
    """End the attempt on all nodes, in the background."""

    attempt: int
    after_s: float = 0.0
    grace_s: float = 0.0


class Hurry(Struct, frozen=True):
    """Wait for nothing any more: told a second time to end."""


class AwaitDecision(Struct, frozen=True):
    """Wait for the engine, and say `Settled` when it does nothing about the end."""


class FinishLater(Struct, frozen=True):
    """Leave with this exit code after a while, if nothing else has ended this launcher."""

    after_s: float
    finish: Finish


ShutdownAsk = Say | KillRanks | Finish | ExpectStop | PassEnd | EndRanks | Hurry | AwaitDecision | FinishLater


class Shutdown:
    """Decides when and how the leader leaves.

    Args:
        recovers: restarts are wanted; without, this is a plain launcher.
        observes: the policy only watches, so that the job ends as it would by itself.
        is_command: a command runs, which takes care of its own ranks.
        stop_grace_s: between the signal that ends the job and the kill.
    """

    def __init__(self, *, recovers: bool, observes: bool, is_command: bool, stop_grace_s: float) -> None:
        self.ending = 0
        """The signal by which the job is being ended from outside, 0 when it is not."""
        self.recovers = recovers
        self.observes = observes
        self._is_command = is_command
        self._stop_grace_s = stop_grace_s
        self._lease_told = -1

    def is_stopped(self, *, stop_asked: bool) -> bool:
        """Whether the attempt ended because it was asked to, for the engine: without recovery it judges every end."""
        return stop_asked and ((self.recovers and not self.observes) or bool(self.ending))

    def handle(self, report: ShutdownReport) -> list[ShutdownAsk]:
        """What is to be done about this, in order."""
        match report:
            case Signalled():
                return self._signalled(report)
            case Interrupted():
                return self._interrupted(report)
            case RankFell():
                return self._rank_fell(report)
            case AttemptOver():
                return self._attempt_over(report)
            case FolderRefused():
                return self._folder_refused(report)
            case Settled():
                return [Finish(report.ended.exit.shell_code, report.ended.cause)]
            case LeaseLost():
                return self._lease_lost(report)
            case Superseded():
                line = f"epoch {report.epoch} has been started elsewhere, ours is {report.own}: leaving"
                taken = Finish(EXIT_UNAVAILABLE, "another launcher has taken this job over")
                return [Say(line), ExpectStop(), KillRanks(report.attempt), taken]
            case Handed():
                finish = Finish(report.code, report.why)
                waits = report.is_told and report.code != EXIT_DO_NOT_REQUEUE
                return [FinishLater(HANDED_OVER_S, finish) if waits else finish]

    def _signalled(self, report: Signalled) -> list[ShutdownAsk]:
        if self.ending:
            return [Hurry(), EndRanks(report.attempt)] if report.is_ours else []
        self.ending = report.signum
        if not report.has_ranks:
            return [Finish(128 + report.signum, _ENDED)]
        return [ExpectStop(), PassEnd(report.signum), EndRanks(report.attempt, after_s=self._stop_grace_s)]

    def _interrupted(self, report: Interrupted) -> list[ShutdownAsk]:
        if self.ending:
            return []
        self.ending = report.signum
        return [ExpectStop()]

    def _rank_fell(self, report: RankFell) -> list[ShutdownAsk]:
        """Of a command's ranks the command takes care; ours must not wait for one that is dead."""
        if self.recovers and (not self.observes or self._is_command):
            return []
        return [ExpectStop(), EndRanks(report.attempt, grace_s=self._stop_grace_s)]

    def _attempt_over(self, report: AttemptOver) -> list[ShutdownAsk]:
        ended = report.ended
        if report.stored is Stored.REFUSED:
            return [Finish(ended.exit.shell_code, ended.cause)]
        if (finish := self._without_decision(ended)) is not None:
            return [finish]
        waits = report.stored is Stored.TAKEN and (self.observes or not ended.stop_asked)
        return [AwaitDecision()] if waits else []

    def _without_decision(self, ended: Ended) -> Finish | None:
        """The exit for an end that needs no decision of the engine."""
        code = ended.exit.shell_code
        if self.ending:
            return Finish(code if ended.exit != Exit() else 128 + self.ending, _ENDED)
        if ended.is_good:
            return Finish(0)
        if ended.exit.code == EXIT_RESTART_ME:
            return Finish(EXIT_RESTART_ME, "the job saved its state and asks to be started again")
        return None if self.recovers else Finish(code, ended.cause)

    def _folder_refused(self, report: FolderRefused) -> list[ShutdownAsk]:
        """Nothing can be decided while the folder refuses."""
        ended = report.ended
        if report.for_s < GIVE_UP_S:
            return []
        if (finish := self._without_decision(ended)) is not None:
            return [finish]
        code = ended.exit.shell_code if self.observes else EXIT_DO_NOT_REQUEUE
        return [Finish(code, f"{ended.cause}, and {report.error}")]

    def _lease_lost(self, report: LeaseLost) -> list[ShutdownAsk]:
        """Only this node's ranks are killed here: the followers' die because nothing is granted any more."""
        if self._lease_told == report.attempt:
            return []
        self._lease_told = report.attempt
        line = f"{_UNREACHABLE}: its attempt lease has run out, killing the ranks"
        return [Say(line), KillRanks(report.attempt, _UNREACHABLE)]

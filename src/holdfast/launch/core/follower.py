"""What a launcher that does not lead does: carries out its leader's asks, and lets its ranks outlive no lease.

Driven by `launch.follower` in real time. The lease ends by this node's own clock, so that the leader may take the ranks
for dead without hearing of it. Times are this node's monotonic seconds, in each report.
"""

from __future__ import annotations

from msgspec import Struct

from holdfast.errors import EXIT_UNAVAILABLE
from holdfast.launch.core.asks import Finish, KillRanks, Say
from holdfast.launch.core.lease import Lease, beat_pause_s
from holdfast.launch.frames import AnyAsk, AnyReport, Beat, EndAsked, Grant, Leave, PassSignal

TELL_S = 5.0
"""Who waits longer than this says for whom."""
_ENDED = "ended on request"


class Held(Struct, frozen=True):
    """The newest attempt on this node. `is_ending`: its ranks are being ended, or are gone."""

    attempt: int
    is_ending: bool


class Welcomed(Struct, frozen=True):
    """The leader has taken our connection, and says how long its leases last."""

    lease_s: float


class Disconnected(Struct, frozen=True):
    """The connection to the leader has ended."""

    now: float
    why: str


class Asked(Struct, frozen=True):
    """The leader asks for something."""

    ask: AnyAsk


class Signalled(Struct, frozen=True, kw_only=True):
    """This launcher was told by a signal to end the job."""

    signum: int
    is_connected: bool
    has_attempt: bool


class Dismissed(Struct, frozen=True):
    """The scheduler ends this process, which only watches: the tasks themselves hear of that from the scheduler."""

    now: float


class Ticked(Struct, frozen=True):
    """Time has passed; what runs here now."""

    now: float
    held: Held | None


FollowerInput = Welcomed | Disconnected | Asked | Signalled | Dismissed | Ticked


class CarryOut(Struct, frozen=True):
    """Have this node's runner do what the leader asks."""

    ask: AnyAsk


class SignalRanks(Struct, frozen=True):
    """Send a signal to all ranks here."""

    signum: int


class Tell(Struct, frozen=True):
    """Send a report to the leader."""

    report: AnyReport


FollowerAsk = CarryOut | KillRanks | SignalRanks | Tell | Finish | Say


class FollowerCore:
    """Decides for one follower.

    Args:
        node: this node's name.
        nodes: how many nodes the job has.
        lease_s: length of the lease until the leader says otherwise.
        wait_s: seconds without a leader after which the follower leaves.
        now: when it begins.
    """

    def __init__(self, node: str, *, nodes: int, lease_s: float, wait_s: float, now: float) -> None:
        self.is_unled = False
        """Told to end while nobody leads: the leader may have gone with its machine."""
        self.finished: Finish | None = None
        self._node = node
        self._nodes = nodes
        self._wait_s = wait_s
        self._lease = Lease(lease_s, now)
        self._away_since: float | None = now
        self._is_told = False
        self._ending = 0

    @property
    def pause_s(self) -> float:
        """Seconds until the next beat."""
        return beat_pause_s(self._lease.lease_s, self._nodes)

    def next_beat(self, now: float) -> Beat:
        """The beat that is sent now; its answer renews the lease from now."""
        return Beat(beat=self._lease.next_beat(now))

    def handle(self, report: FollowerInput) -> list[FollowerAsk]:
        """What is to be done about this, in order."""
        match report:
            case Welcomed():
                self._away_since, self._is_told = None, False
                self._lease.lease_s = report.lease_s
                return []
            case Disconnected():
                return self._disconnected(report)
            case Asked():
                return self._asked(report.ask)
            case Signalled():
                return self._signalled(report)
            case Dismissed():
                self.is_unled = self._lease.is_over(report.now)
                return self._finish(0)
            case Ticked():
                return self._ticked(report)

    def _finish(self, code: int, why: str = "") -> list[FollowerAsk]:
        if self.finished is not None:
            return []
        self.finished = Finish(code, why)
        return [self.finished]

    def _disconnected(self, report: Disconnected) -> list[FollowerAsk]:
        if self._away_since is not None:
            return []
        self._away_since = report.now
        return [Say(f"the leader's connection is broken: {report.why}", is_note=True)]

    def _asked(self, ask: AnyAsk) -> list[FollowerAsk]:
        match ask:
            case Grant():
                self._lease.answered(ask.beat, ask.lease_s)
                return []
            case Leave():
                return self._finish(ask.exit_code, ask.why)
            case PassSignal() if ask.is_end:
                self._ending = ask.signum
        return [CarryOut(ask)]

    def _signalled(self, report: Signalled) -> list[FollowerAsk]:
        """Our ranks get the first signal at once, and the leader hears of it; a second one ends us."""
        signum = report.signum
        if self._ending:
            return self._finish(128 + signum, _ENDED) if report.has_attempt else []
        self._ending = signum
        asks: list[FollowerAsk] = [Tell(EndAsked(signum=signum)), SignalRanks(signum)]
        if not report.is_connected:
            self.is_unled = True
            asks += self._finish(128 + signum, _ENDED)
        return asks

    def _ticked(self, report: Ticked) -> list[FollowerAsk]:
        asks: list[FollowerAsk] = []
        is_over, held = self._lease.is_over(report.now), report.held
        if is_over and held is not None and not held.is_ending:
            why = f"{self._node} could not renew its attempt lease of {self._lease.lease_s:g} s"
            asks += [Say(f"{why}: killing its ranks"), KillRanks(held.attempt, why)]
        if is_over and self._ending:
            # Whoever waits for this job's end need not wait for a leader to tell us.
            self.is_unled = True
            asks += self._finish(128 + self._ending, _ENDED)
        away_s = report.now - self._away_since if self._away_since is not None else 0.0
        if away_s > self._wait_s:
            asks += self._finish(EXIT_UNAVAILABLE, f"the leader of this job has not answered for {self._wait_s:g} s")
        elif away_s > TELL_S and not self._is_told:
            self._is_told = True
            asks.append(Say(f"{self._node} waits for the leader of this job, for up to {self._wait_s:g} s"))
        return asks

"""The attempt lease: the right of a launcher to have ranks running. Time is the holder's monotonic seconds.

A follower's lease is renewed by the leader's answer to a beat and counts from when that beat was sent, so that the
leader, who counts from when it answered, always sees it end later. The leader's own is renewed by the controller's
answer, or by reading its own epoch in the job's folder. Whoever takes the job over writes a newer epoch before it
starts anything, so that the own epoch there proves that nobody has. Whoever cannot renew kills its ranks at once.
"""

from __future__ import annotations

from msgspec import Struct

LEASE_MARGIN_S = 0.5
"""Between the end of a follower's lease and the moment its ranks are taken for dead: one tick and a SIGKILL."""
ATTACH_LEASE_S = 10.0
"""What a leader tells the controller of its own lease."""
LEASE_AHEAD_S = 0.25
"""A follower's lease begins when it sends its beat, the leader's count of it when that is read."""
_BEATS_PER_LEASE = 9
"""What a lease forgives is its length less the pause between two beats: a short one wants them often."""
_BEATS_PER_S_MAX = 1000
"""That a leader is asked to answer, of all its followers together."""
_LEAST_S = 3.0
"""A folder on a network file system may stand still for longer than a connection between two launchers does."""
_LOOK_S = 0.2
_ASLEEP_S = 0.5
"""The driver was away for longer than it asked by this much: stopped, starved, or the machine was paused."""
_HUNG_S = 60.0
"""A network file system may take so long to come back from its server's restart."""
_AWAIT_S = 1.0


def beat_pause_s(lease_s: float, nodes: int) -> float:
    """Seconds between two beats of one follower: a ninth of the lease; with many nodes up to a third of it."""
    return min(1.0, lease_s / 3, max(lease_s / _BEATS_PER_LEASE, nodes / _BEATS_PER_S_MAX))


class Lease:
    """Runs out unless it is renewed. Times are the holder's monotonic seconds."""

    def __init__(self, lease_s: float, now: float) -> None:
        self.lease_s = lease_s
        self._until = now + lease_s
        self._sent: dict[int, float] = {}
        self._number = 0

    def next_beat(self, now: float) -> int:
        """Number of a beat that is sent now."""
        self._number += 1
        self._sent[self._number] = now
        # Beats that were never answered are forgotten with the first answer to a later one; silence is bounded here.
        if len(self._sent) > 64:
            self._sent.pop(next(iter(self._sent)))
        return self._number

    def answered(self, beat: int, lease_s: float) -> None:
        """The other side has answered this beat. An unknown or repeated answer changes nothing."""
        sent = self._sent.pop(beat, None)
        if sent is None:
            return
        for older in [number for number in self._sent if number < beat]:
            del self._sent[older]
        self.lease_s = lease_s
        self._until = max(self._until, sent + lease_s)

    def renew(self, since: float) -> None:
        """Proven still to hold as of `since`."""
        self._until = max(self._until, since + self.lease_s)

    def left_s(self, now: float) -> float:
        """Seconds until it runs out; negative when it has."""
        return self._until - now

    def is_over(self, now: float) -> bool:
        """It has run out."""
        return now >= self._until


# --- the leader's own ---


class LeaseLooked(Struct, frozen=True, kw_only=True):
    """The driver looks, `pause_s` after the last time. `is_reading`: a reading of the epoch has not ended."""

    now: float
    is_cut: bool
    is_reading: bool


class EpochRead(Struct, frozen=True, kw_only=True):
    """The job's folder has answered a reading that began at `since`; `own` is the newest epoch that we have raised."""

    now: float
    since: float
    is_cut: bool
    found: int
    own: int
    has_begun: bool


class EpochUnread(Struct, frozen=True):
    """The job's folder refused the reading."""

    why: str


class LeaseChecked(Struct, frozen=True, kw_only=True):
    """All that was read is told. `is_held`: ranks of ours need the lease."""

    now: float
    is_cut: bool
    is_reading: bool
    is_held: bool


LeaseReport = LeaseLooked | EpochRead | EpochUnread | LeaseChecked


class ReadEpoch(Struct, frozen=True):
    """Begin to read the epoch in the job's folder, without waiting for it."""


class AwaitEpoch(Struct, frozen=True):
    """Wait for the reading before anything else, at most this long."""

    limit_s: float


class LoseLease(Struct, frozen=True):
    """The lease has run out: kill this node's ranks. The followers' die because nothing is granted."""


class YieldJob(Struct, frozen=True):
    """Another launcher has raised a newer epoch: end the ranks here and leave."""

    epoch: int


LeaseAsk = ReadEpoch | AwaitEpoch | LoseLease | YieldJob


class LeaderLease:
    """Renews the leader's own lease by its epoch in the job's folder.

    Args:
        lease_s: seconds that an unrenewed lease lasts, at least 3.
        now: when it begins.
    """

    def __init__(self, lease_s: float, now: float) -> None:
        self.lease = Lease(max(lease_s, _LEAST_S), now)
        self.pause_s = min(_LOOK_S, self.lease.lease_s / 4)
        self.unread = ""
        """Why the folder could not be read the last time; empty: it could."""
        self._looked = self._read_at = now

    def is_sure(self, now: float, *, is_cut: bool) -> bool:
        """Whether an attempt may start: the lease holds, and this node can be reached."""
        return not self.lease.is_over(now) and not is_cut

    def handle(self, report: LeaseReport) -> list[LeaseAsk]:
        """What is to be done about this, in order."""
        match report:
            case LeaseLooked():
                return self._look(report)
            case EpochRead():
                return self._take(report)
            case EpochUnread():
                self.unread = report.why
            case LeaseChecked():
                return self._check(report)
        return []

    def _look(self, report: LeaseLooked) -> list[LeaseAsk]:
        was_asleep = report.now - self._looked > 2 * self.pause_s + _ASLEEP_S
        self._looked = report.now
        begins = not report.is_reading and not report.is_cut
        asks: list[LeaseAsk] = [ReadEpoch()] if begins else []
        # Nothing could be renewed while this process stood still: the newest word of the folder decides.
        if was_asleep and (begins or report.is_reading):
            asks.append(AwaitEpoch(_AWAIT_S))
        return asks

    def _take(self, report: EpochRead) -> list[LeaseAsk]:
        self._read_at, self.unread = report.now, ""
        if report.is_cut:
            return []
        if report.found > report.own and report.has_begun:
            return [YieldJob(report.found)]
        self.lease.renew(report.since)
        return []

    def _check(self, report: LeaseChecked) -> list[LeaseAsk]:
        if report.is_reading and self._looked - self._read_at > _HUNG_S and not report.is_cut:
            self.unread = f"no answer for {_HUNG_S:g} s"
        return [LoseLease()] if self.lease.is_over(report.now) and report.is_held else []

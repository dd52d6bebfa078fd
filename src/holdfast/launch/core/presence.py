"""What the leader knows of its followers: when each was last heard, until when it may run ranks, and who is silent.

Driven by `launch.link.LeaderPort`, which hears them, and by `launch.launcher_nodes` ten times a second. Silence is not
an end: a node counts as empty by its own word, by a proven end of its launcher, or by the end of the lease granted to
it. Times are the leader's monotonic seconds.
"""

from __future__ import annotations

from msgspec import Struct

from holdfast.launch.core.lease import LEASE_AHEAD_S, LEASE_MARGIN_S
from holdfast.launch.frames import Grant


class Connected(Struct, frozen=True):
    """A follower has (again) connected."""

    node: str
    now: float


class Heard(Struct, frozen=True, kw_only=True):
    """A follower has said something; `beat` is the number of its beat when it was one."""

    node: str
    now: float
    beat: int | None = None
    may_grant: bool = False
    """The leader's own lease holds."""


class FollowersLooked(Struct, frozen=True, kw_only=True):
    """Time has passed. `used`: nodes of the newest attempt; `gone`: nodes that are proven not to run."""

    now: float
    used: frozenset[str]
    gone: frozenset[str]
    can_ask: bool
    """The scheduler can be asked whether a node is dead."""


class SpareChecked(Struct, frozen=True):
    """The scheduler's word about a spare node has been acted on; a silent one is asked after again."""

    node: str


PresenceReport = Connected | Heard | FollowersLooked | SpareChecked


class SendGrant(Struct, frozen=True):
    """Answer a follower's beat."""

    node: str
    grant: Grant


class TellSilent(Struct, frozen=True):
    """A node of the attempt has not been heard for a lease's time: submit `NodeSilent`, and look ahead for evidence."""

    node: str
    for_s: float


class TellHeard(Struct, frozen=True):
    """A silent node is heard again: submit `NodeHeard`."""

    node: str


class CheckSpare(Struct, frozen=True):
    """A node that the attempt does not use is silent: ask the scheduler whether it is dead, then say `SpareChecked`."""

    node: str


PresenceAsk = SendGrant | TellSilent | TellHeard | CheckSpare


class Presence:
    """Counts grants and silence of all followers. `lease_s` is what a beat is answered with."""

    def __init__(self, lease_s: float) -> None:
        self.lease_s = lease_s
        self._heard_at: dict[str, float] = {}
        """Kept when the connection is gone."""
        self._granted_until: dict[str, float] = {}
        self._silent: set[str] = set()
        self._checking: set[str] = set()

    def handle(self, report: PresenceReport) -> list[PresenceAsk]:
        """What is to be done about this, in order."""
        match report:
            case Connected():
                self._heard_at[report.node] = report.now
                self._granted_until.setdefault(report.node, 0.0)
                return []
            case Heard():
                return self._heard(report)
            case FollowersLooked():
                return [ask for node in self._heard_at if (ask := self._look_at(node, report)) is not None]
            case SpareChecked():
                self._checking.discard(report.node)
                return []

    def _heard(self, report: Heard) -> list[PresenceAsk]:
        self._heard_at[report.node] = report.now
        if report.beat is None or not report.may_grant:
            return []
        self._granted_until[report.node] = report.now + self.lease_s
        return [SendGrant(report.node, Grant(beat=report.beat, lease_s=self.lease_s))]

    def _look_at(self, node: str, report: FollowersLooked) -> PresenceAsk | None:
        quiet_s = self.quiet_s(node, report.now)
        if quiet_s > self.lease_s and node in report.used and node not in self._silent:
            self._silent.add(node)
            return TellSilent(node, round(quiet_s, 1))
        if quiet_s < self.lease_s and node in self._silent:
            self._silent.discard(node)
            return TellHeard(node)
        is_spare = bool(report.used) and node not in report.used | report.gone | self._checking
        if quiet_s > self.lease_s and report.can_ask and is_spare:
            self._checking.add(node)
            return CheckSpare(node)
        return None

    # --- what is known ---

    def quiet_s(self, node: str, now: float) -> float:
        """Seconds since the node was heard; 0 when it never was."""
        return now - self._heard_at.get(node, now)

    def is_heard_within(self, node: str, seconds: float, now: float) -> bool:
        """Whether the node was heard so lately."""
        return self._heard_at.get(node, 0.0) >= now - seconds

    def has_grant(self, node: str) -> bool:
        """Whether a lease was ever granted to the node."""
        return bool(self._granted_until.get(node))

    def has_connected(self, node: str) -> bool:
        """Whether the node has ever connected."""
        return node in self._granted_until

    def is_lapsed(self, node: str, now: float) -> bool:
        """Whether the node's ranks are dead by the end of its lease; without a grant it has no right to any."""
        return now > self._granted_until.get(node, 0.0) + LEASE_MARGIN_S

    def is_lapsing(self, node: str, now: float) -> bool:
        """Whether the node must be killing its ranks by its own clock, which runs ahead of ours."""
        return self.has_grant(node) and now > self._granted_until[node] - LEASE_AHEAD_S

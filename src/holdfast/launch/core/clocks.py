"""Times that followers tell, on the leader's clock.

A node's clock may be hours off. What its launcher saw, and when, goes into the leader's record of the attempt, where
steps and downtime are counted and the first fault is the cause. Fed by `launch.link.LeaderPort`. Pure: times come in.
"""

from __future__ import annotations

from msgspec import structs

from holdfast.launch.frames import AnyReport, Beat, LineSeen, RankEnded, SlotsSeen, Spotted

CLOCK_OFF_S = 5.0
"""A clock that is off by less is taken for right: what a beat took on its way looks the same."""


class FollowerClocks:
    """How far each follower's clock is ahead of the leader's, by its beats."""

    def __init__(self) -> None:
        self._ahead: dict[str, float] = {}

    def connected(self, node: str) -> None:
        """Another process may tell the time there now."""
        self._ahead.pop(node, None)

    def heard(self, node: str, beat: Beat, now: float) -> None:
        """A beat. Its way makes a clock look behind, and a cut long behind: the beat that was fastest tells most."""
        if beat.at:
            self._ahead[node] = max(self._ahead.get(node, float("-inf")), beat.at - now)

    def on_ours(self, node: str, report: AnyReport) -> AnyReport:
        """The report with its times by the leader's clock."""
        ahead_s = self._ahead.get(node, 0.0)
        if abs(ahead_s) < CLOCK_OFF_S:
            return report
        match report:
            case SlotsSeen() | LineSeen() | RankEnded():
                return structs.replace(report, at=report.at - ahead_s)
            case Spotted():
                findings = tuple(structs.replace(one, at=one.at - ahead_s) for one in report.findings)
                return structs.replace(report, findings=findings)
            case _:
                return report

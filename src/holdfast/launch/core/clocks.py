"""Times that followers tell, on the leader's clock.

A node's clock may be hours off. What its launcher saw, and when, goes into the leader's record of the attempt, where
steps and downtime are counted and the first fault is the cause. Fed by `launch.link.LeaderPort`. Pure: times come in.
"""

from __future__ import annotations

from msgspec import structs

from holdfast.launch.frames import AnyReport, Beat, LineSeen, RankEnded, SlotsSeen, Spotted
from holdfast.model.clocks import Offsets


class FollowerClocks:
    """How far each follower's clock is ahead of the leader's, by its beats."""

    def __init__(self) -> None:
        self._offsets = Offsets()

    def connected(self, node: str) -> None:
        """Another process may tell the time there now."""
        self._offsets.forget(node)

    def heard(self, node: str, beat: Beat, now: float) -> None:
        """A beat."""
        if beat.at:
            self._offsets.note(node, beat.at - now, now)

    def on_ours(self, node: str, report: AnyReport) -> AnyReport:
        """The report with its times by the leader's clock."""
        shift_s = self._offsets.shift_s(node)
        if not shift_s:
            return report
        match report:
            case SlotsSeen() | LineSeen() | RankEnded():
                return structs.replace(report, at=report.at - shift_s)
            case Spotted():
                findings = tuple(structs.replace(one, at=one.at - shift_s) for one in report.findings)
                return structs.replace(report, findings=findings)
            case _:
                return report

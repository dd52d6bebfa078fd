"""The attempt lease: the right of a launcher to have ranks running. Pure; time comes in.

A follower's lease is renewed by the leader's answer to a beat and counts from when that beat was sent, so that the
leader, who counts from when it answered, always sees it end later. The leader's own is renewed by the controller's
answer, or by reading its own epoch in the job's folder. Whoever cannot renew kills its ranks at once.
"""

from __future__ import annotations


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

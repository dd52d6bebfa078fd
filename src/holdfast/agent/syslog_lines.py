"""Of a file that syslog writes, the lines that the kernel wrote lately.

Called by the parser for files such as /var/log/messages. Such a file outlives a boot, holds what every program said,
and is read again from its first line when it is not the one that was read before: a line of last week must not have a
node replaced today. Both forms of time are read: `Nov 25 07:12:01`, which names neither year nor zone, and that of ISO.
A time without a zone is the machine's local time. No clock is read here, and after `time.tzset()` no file.
"""

from __future__ import annotations

import contextlib
import re
from datetime import datetime

from msgspec import Struct

HISTORY_S = 600.0
"""A line whose own time is longer ago than this is history, unless it came while no agent read the file."""
AHEAD_S = 86400.0
"""A stamp that lies further ahead is of an earlier year, or of a clock that was wrong."""
STAMP_S = 1.0
"""A stamp without fractions is up to so much earlier than the line."""
CARRY_MAX = 1 << 16
"""A line that is longer is not the kernel's."""
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_KERNEL = re.compile(
    rb"""(?:<\d{1,3}>)?(?:
      (?P<iso>\d{4}-\d\d-\d\d[T\ ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?)
    | (?P<month>[A-Z][a-z]{2})\ {1,2}(?P<day>\d{1,2})\ (?P<time>\d\d:\d\d:\d\d)(?:\.\d{1,9})?
    )\ \S{1,255}\ kernel:\ """,
    re.VERBOSE,
)


def written_at(line: bytes, now: float) -> float | None:
    """When the kernel's line was written, Unix seconds; None when it is not the kernel's, or has no such time.

    Args:
        line: as it stands in the file.
        now: Unix seconds; of the times that a stamp without year or zone may mean, the nearest to it is taken, of those
            that are not to come.
    """
    found = _KERNEL.match(line)
    if found is None:
        return None
    if found["iso"]:
        texts = [found["iso"].decode().replace(",", ".")]
    elif (month := found["month"].decode()) in _MONTHS:
        day = f"{_MONTHS.index(month) + 1:02d}-{int(found['day']):02d}T{found['time'].decode()}"
        year = datetime.fromtimestamp(now).astimezone().year
        texts = [f"{one:04d}-{day}" for one in (year - 1, year, year + 1)]
    else:
        return None
    times: list[float] = []
    for text in texts:
        with contextlib.suppress(ValueError, OverflowError, OSError):  # 29 February of another year, a 61st second
            read = datetime.fromisoformat(text)
            times += [read.timestamp(), read.replace(fold=1).timestamp()]
    return min((one for one in times if one <= now + AHEAD_S), key=lambda one: abs(one - now), default=None)


class Reading(Struct, frozen=True, kw_only=True):
    """Since when an agent has read a file of syslog. Unix seconds."""

    started: float
    """When this agent began."""
    away_since: float | None = None
    """Until when an agent had read it before; None: none ever did."""
    booted_at: float = 0.0
    """When the node was booted: what it said before that has ended with the boot."""


class KernelLines:
    """Takes a file's bytes as they come; gives those of fresh lines of the kernel.

    Args:
        reading: tells what is news.
        is_endless: the file's bytes begin within a line that is too long.

    Attributes:
        is_endless: the line that has begun is too long, and its end is no line of its own.
    """

    def __init__(self, reading: Reading, *, is_endless: bool = False) -> None:
        self._reading = reading
        self._carry = b""
        self.is_endless = is_endless

    @property
    def pending(self) -> int:
        """Bytes at the end of what came that are no whole line yet."""
        return len(self._carry)

    def sieve(self, data: bytes, now: float) -> bytes:
        """The whole lines of all that came so far; all others are blanked, so that places in the file stay right."""
        *lines, self._carry = (self._carry + data).split(b"\n")
        out = []
        for line in lines:
            is_kept = not self.is_endless and self.is_fresh(line, now)
            self.is_endless = False
            out.append((line if is_kept else b" " * len(line)) + b"\n")
        if len(self._carry) > CARRY_MAX:
            out.append(b" " * (len(self._carry) - 1) + b"\n")
            self._carry, self.is_endless = b"", True
        return b"".join(out)

    def is_fresh(self, line: bytes, now: float) -> bool:
        """Is it the kernel's, and news?"""
        at, reading = written_at(line, now), self._reading
        if at is None or at < reading.booted_at - STAMP_S:
            return False
        if at >= now - HISTORY_S:
            return True
        return reading.away_since is not None and reading.away_since <= at <= reading.started

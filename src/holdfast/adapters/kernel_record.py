"""One record of `/dev/kmsg`: its number, time, text, and whether the kernel wrote it. Standard library only.

The agent's reader of the device and the process that looks for Xids both read records by this. Format: the kernel's
Documentation/ABI/testing/dev-kmsg. No time passes here.
"""

from __future__ import annotations

from typing import NamedTuple

DIGITS_MAX = 20
"""Of the kernel's 64-bit numbers."""


class Record(NamedTuple):
    """One message of the kernel log."""

    sequence: int
    seconds: float
    """Since boot."""
    text: bytes
    facility: int = 0
    """Who wrote it: 0 is the kernel itself, and no program can say that it were."""


def parse_record(raw: bytes) -> Record | None:
    """`6,1234,5678901,-;text`, with continuation lines that begin with a space. None when it is none of that."""
    head, mark, rest = raw.partition(b";")
    fields = head.split(b",")[:3]
    if not mark or len(fields) < 3 or not all(field.isdigit() and len(field) <= DIGITS_MAX for field in fields):
        return None
    priority, sequence, microseconds = map(int, fields)
    return Record(sequence, microseconds / 1e6, rest.partition(b"\n")[0], priority >> 3)

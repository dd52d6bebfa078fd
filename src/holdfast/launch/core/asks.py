"""Asks that more than one core makes of its driver."""

from __future__ import annotations

from msgspec import Struct


class Finish(Struct, frozen=True):
    """Leave with this exit code."""

    code: int
    why: str = ""


class KillRanks(Struct, frozen=True):
    """Kill all ranks of this attempt on this node at once, report `why`, and wait until they are gone."""

    attempt: int
    why: str = ""


class Say(Struct, frozen=True):
    """Print a line for people; `is_note`: only into the log."""

    text: str
    is_note: bool = False

"""Has this happened before, and what helped? Incidents with the same fingerprint. Pure.

Called by `holdfast incident` and by reports. Fingerprints leave out rank, node, address and time, so that the same
trouble on another machine is found; incidents whose cause agrees but whose fingerprints do not come after them.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from holdfast.controller.fleet import IncidentLine

SHOWN_MAX = 10


class Similar(Struct, frozen=True):
    """An earlier incident like this one."""

    incident: str
    opened_at: float
    is_same_fingerprint: bool
    """False: only the cause agrees."""
    remedies: tuple[str, ...]
    outcome: str
    recovered_s: float | None
    """From the fault to the first new step."""


def similar(own: IncidentLine, others: Iterable[IncidentLine]) -> list[Similar]:
    """Others like this one, same fingerprints first, newest first within each."""
    found = []
    for other in others:
        same = bool(own.fingerprints & other.fingerprints)
        if other.id != own.id and (same or (own.cause not in {"", "unknown"} and other.cause == own.cause)):
            outcome = other.outcome or "open"
            found.append(Similar(other.id, other.opened_at, same, other.remedies, outcome, other.recover_s))
    return sorted(found, key=lambda one: (not one.is_same_fingerprint, -one.opened_at))[:SHOWN_MAX]

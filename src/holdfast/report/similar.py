"""Has this happened before, and what helped? Incidents with the same fingerprint. Pure.

Called by `holdfast incident` and by reports. Fingerprints leave out rank, node, address and time, so that the same
trouble on another machine is found; incidents whose cause agrees but whose fingerprints do not come after them.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from holdfast.model.records import IncidentRecord, Mark
from holdfast.report.timeline import span


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


def similar(incident: IncidentRecord, others: Sequence[IncidentRecord], *, limit: int = 10) -> list[Similar]:
    """Others like this one, same fingerprints first, newest first within each."""
    own = incident.fingerprints
    cause = incident.diagnosis.cause if incident.diagnosis else ""
    found = []
    for other in others:
        if other.id == incident.id:
            continue
        same = bool(own & other.fingerprints)
        if same or (cause not in {"", "unknown"} and other.diagnosis is not None and other.diagnosis.cause == cause):
            found.append(
                Similar(
                    other.id,
                    other.opened_at,
                    same,
                    tuple(remedy.value for remedy in other.remedies),
                    other.outcome or "open",
                    span(other, Mark.FAULT, Mark.FIRST_STEP),
                )
            )
    return sorted(found, key=lambda one: (not one.is_same_fingerprint, -one.opened_at))[:limit]

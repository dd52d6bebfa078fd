"""A closed incident as the spans of one trace: its whole from the fault on, each phase of the timeline, each finding.

Pure. The ids come from the incident's own, so that the same incident is the same trace whoever makes it. Called by
`holdfast controller` when traces are wanted; times are Unix seconds, those of the incident's marks.
"""

from __future__ import annotations

import hashlib
from itertools import pairwise

from msgspec import Struct

from holdfast.model.records import IncidentRecord, Mark
from holdfast.report.figures import cause_of
from holdfast.report.timeline import NODE_ORDER, PHASE_NAMES, timeline

FINDINGS_MAX = 50
TEXT_MAX = 500
NODE_PHASES = {Mark.NODE_REPAIRED: "repair node", Mark.NODE_RETURNED: "return node"}

Value = str | int | float | bool | tuple[str, ...]


class Moment(Struct, frozen=True):
    """Something inside a span that has no length."""

    name: str
    at: float
    attributes: dict[str, Value]


class Span(Struct, frozen=True):
    """One span. A root has no parent."""

    name: str
    trace_id: int
    """128 bits, never 0."""
    span_id: int
    """64 bits, never 0."""
    parent_id: int
    start: float
    end: float
    attributes: dict[str, Value]
    moments: tuple[Moment, ...] = ()
    failed: str = ""
    """Why it did not end well; empty: it did."""


def spans(incident: IncidentRecord, cluster: str = "") -> list[Span]:
    """The root first, then the job's phases in order of time, then the node's. Empty while the incident is open."""
    if not incident.closed_at:
        return []
    marks = incident.marks
    start = min(marks.get(Mark.FAULT, marks.get(Mark.DETECTED, incident.opened_at)), incident.closed_at)
    trace_id = _number(16, cluster, incident.id)
    root = _number(8, cluster, incident.id)
    made = [
        Span(
            f"incident {cause_of(incident)}", trace_id, root, 0, start, max(start, incident.closed_at),
            _attributes(incident, cluster), _findings(incident),
            "given up" if incident.outcome == "given_up" else "",
        )
    ]  # fmt: skip

    def child(name: str, mark: Mark, began: float, ended: float) -> None:
        span_id = _number(8, cluster, incident.id, mark.value)
        made.append(Span(name, trace_id, span_id, root, began, ended, {"holdfast.phase": name}))

    for phase in timeline(incident).phases:
        child(PHASE_NAMES[phase.mark], phase.mark, phase.at - phase.seconds, phase.at)
    reached = [(marks[mark], mark) for mark in NODE_ORDER if mark in marks]
    for (began, _), (ended, mark) in pairwise(reached):
        if mark in NODE_PHASES:
            child(NODE_PHASES[mark], mark, began, max(began, ended))
    return made


def _number(size: int, *parts: str) -> int:
    digest = hashlib.sha256("\0".join(parts).encode("utf-8", "replace")).digest()
    return int.from_bytes(digest[:size], "big") or 1


def _attributes(incident: IncidentRecord, cluster: str) -> dict[str, Value]:
    diagnosis = incident.diagnosis
    found: dict[str, Value] = {
        "holdfast.incident": incident.id,
        "holdfast.cluster": cluster,
        "holdfast.outcome": incident.outcome,
        "holdfast.jobs": tuple(str(job) for job in incident.jobs),
        "holdfast.nodes": tuple(incident.nodes),
        "holdfast.remedies": tuple(remedy.value for remedy in incident.remedies),
        "holdfast.drill": incident.drill,
        "holdfast.findings": len(incident.findings) + incident.findings_dropped,
    }
    if diagnosis is not None:
        found |= {
            "holdfast.cause": diagnosis.cause,
            "holdfast.domain": diagnosis.domain.value,
            "holdfast.confidence": diagnosis.confidence,
            "holdfast.summary": diagnosis.summary[:TEXT_MAX],
        }
    if incident.lost_steps is not None:
        found["holdfast.lost_steps"] = incident.lost_steps
    return {name: value for name, value in found.items() if value not in ("", ())}


def _findings(incident: IncidentRecord) -> tuple[Moment, ...]:
    return tuple(
        Moment(
            one.rule,
            one.at,
            {
                "holdfast.role": one.role.value,
                "holdfast.place": str(one.place)[:TEXT_MAX],
                "holdfast.summary": one.summary[:TEXT_MAX],
            },
        )
        for one in incident.findings[:FINDINGS_MAX]
    )

"""One incident's phases: from its marks to seconds, percent and the slowest one. Pure; times come from the marks.

Called by every form of report, by `holdfast incident`, and by drills, which judge their limits by it.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from holdfast.model.evidence import Remedy
from holdfast.model.records import IncidentRecord, Mark, between

ORDER: tuple[Mark, ...] = (
    Mark.FAULT,
    Mark.DETECTED,
    Mark.DIAGNOSED,
    Mark.ISOLATED,
    Mark.STOPPED,
    Mark.REQUEUED,
    Mark.RELEASED,
    Mark.PLACED,
    Mark.STARTED,
    Mark.FIRST_STEP,
    Mark.PROVEN,
)
"""Columns of a timeline, in the order in which they usually come. The node's own side follows in NODE_ORDER."""

NODE_ORDER: tuple[Mark, ...] = (Mark.ISOLATED, Mark.NODE_REPAIRED, Mark.NODE_RETURNED)

PHASE_NAMES: dict[Mark, str] = {
    Mark.DETECTED: "detect",
    Mark.DIAGNOSED: "diagnose",
    Mark.ISOLATED: "isolate",
    Mark.STOPPED: "stop",
    Mark.REQUEUED: "requeue",
    Mark.RELEASED: "release",
    Mark.PLACED: "wait for a node",
    Mark.STARTED: "start",
    Mark.FIRST_STEP: "first step",
    Mark.PROVEN: "prove",
}


class Phase(Struct, frozen=True):
    """The time that passed before `mark` was reached, since the latest earlier mark in time."""

    name: str
    mark: Mark
    at: float
    seconds: float
    percent: float
    """Of the whole span from fault to the last mark of the job's side."""


class Timeline(Struct, frozen=True):
    """An incident in phases."""

    incident: str
    offsets: dict[Mark, float]
    """Seconds from the fault to each mark that is known, the node's side included."""
    phases: tuple[Phase, ...]
    total_s: float
    slowest: str
    """Name of the longest phase, empty when there is none."""


def timeline(incident: IncidentRecord) -> Timeline:
    """Phases of an incident in order of time.

    Marks may be missing (an application crash isolates no node) and may come in another order than usual (a
    diagnosis refined after the restart): phases are cut in order of time, so their seconds always add up to the total.
    """
    marks = incident.marks
    start = marks.get(Mark.FAULT, marks.get(Mark.DETECTED, incident.opened_at))
    known = sorted(
        ((max(at, start), ORDER.index(mark), mark) for mark, at in marks.items() if mark in ORDER),
        key=lambda item: (item[0], item[1]),
    )
    total = known[-1][0] - start if known else 0.0
    phases: list[Phase] = []
    last = start
    for at, _, mark in known:
        if mark is Mark.FAULT:
            continue
        seconds = at - last
        percent = 100.0 * seconds / total if total > 0 else 0.0
        phases.append(Phase(PHASE_NAMES[mark], mark, at, seconds, percent))
        last = at
    slowest = max(phases, key=lambda phase: phase.seconds).name if phases else ""
    offsets = {mark: at - start for mark, at in sorted(marks.items(), key=lambda item: item[1])}
    return Timeline(incident.id, offsets, tuple(phases), total, slowest)


def node_phases(incident: IncidentRecord) -> tuple[Phase, ...]:
    """The node's own side, from the fault to its return: detect, isolate, drain, the repair's name, validate.

    Its seconds add up to the span between these marks. It runs beside the job's side; where a job had to wait for this
    node, within "wait for a node". Empty until the node is repaired.
    """
    marks = incident.marks
    isolated, repaired = marks.get(Mark.ISOLATED), marks.get(Mark.NODE_REPAIRED)
    if isolated is None or repaired is None:
        return ()
    start = marks.get(Mark.FAULT, marks.get(Mark.DETECTED, incident.opened_at))
    repairs = [remedy for remedy in incident.remedies if remedy in _REPAIRS]
    ends = [
        ("detect", Mark.DETECTED, marks.get(Mark.DETECTED)),
        ("isolate", Mark.ISOLATED, isolated),
        ("drain", Mark.STOPPED, marks.get(Mark.STOPPED)),
        (repairs[-1].replace("_", " ") if repairs else "repair", Mark.NODE_REPAIRED, repaired),
        ("validate", Mark.NODE_RETURNED, marks.get(Mark.NODE_RETURNED)),
    ]
    total = max(at for _, _, at in ends if at is not None) - start
    found, last = [], start
    for name, mark, at in ends:
        if at is None or (mark is Mark.STOPPED and at > repaired):
            continue  # the job stopped elsewhere, later
        end = max(at, last)
        found.append(Phase(name, mark, end, end - last, 100.0 * (end - last) / total if total > 0 else 0.0))
        last = end
    return tuple(found)


_REPAIRS = frozenset({Remedy.RESET_GPU, Remedy.REBOOT, Remedy.REPLACE})


def seconds_by_phase(incident: IncidentRecord) -> dict[str, float]:
    """Seconds of each phase by its name, as `timeline` cuts them; for many incidents, where nothing else is wanted."""
    marks = incident.marks
    last = marks.get(Mark.FAULT, marks.get(Mark.DETECTED, incident.opened_at))
    known = sorted([(at, _PLACE[mark], mark) for mark, at in marks.items() if mark in _PLACE])
    found: dict[str, float] = {}
    for at, _, mark in known:
        if mark is not Mark.FAULT:
            found[PHASE_NAMES[mark]] = max(0.0, at - last)
            last = max(at, last)
    return found


_PLACE = {mark: place for place, mark in enumerate(ORDER)}


def phase_totals(incidents: Iterable[IncidentRecord]) -> dict[str, float]:
    """Seconds of each phase over all these incidents; a phase of no time is 0."""
    totals = {PHASE_NAMES[mark]: 0.0 for mark in ORDER if mark is not Mark.FAULT}
    for incident in incidents:
        for name, seconds in seconds_by_phase(incident).items():
            totals[name] += seconds
    return totals


def span(incident: IncidentRecord, begin: Mark, end: Mark) -> float | None:
    """Seconds from one mark to another, None when either is not known; never negative."""
    return between(incident.marks, begin, end)


def spans(incidents: Iterable[IncidentRecord], begin: Mark, end: Mark) -> list[float | None]:
    """`span` of each of many incidents, in their order."""
    return [span(incident, begin, end) for incident in incidents]

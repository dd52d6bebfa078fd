"""One incident's phases: from its marks to seconds, percent and the slowest one. Pure; times come from the marks.

Called by every form of report, by `holdfast incident`, and by drills, which judge their limits by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from msgspec import Struct

from holdfast.model.evidence import Remedy
from holdfast.model.records import PHASE_MARKS, IncidentRecord, Mark, between

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


What = TypeVar("What")


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
    start, reached = _reached(incident)
    phases = tuple(
        Phase(PHASE_NAMES[mark], mark, end, end - begin, percent)
        for mark, begin, end, percent in cut(start, [(at, mark) for at, _, mark in reached])
    )
    slowest = max(phases, key=lambda phase: phase.seconds).name if phases else ""
    offsets = {mark: at - start for mark, at in sorted(incident.marks.items(), key=lambda item: item[1])}
    return Timeline(incident.id, offsets, phases, phases[-1].at - start if phases else 0.0, slowest)


def _reached(incident: IncidentRecord) -> tuple[float, list[tuple[float, int, Mark]]]:
    """(begin of the timeline, (moment, place, mark) of each later mark), in order of time; none lies before it."""
    start = began_at(incident)
    marks = incident.marks.items()
    return start, sorted([(max(at, start), _PLACE[mark], mark) for mark, at in marks if mark in _PLACE])


_PLACE = {mark: place for place, mark in enumerate(PHASE_MARKS) if mark is not Mark.FAULT}


def began_at(incident: IncidentRecord) -> float:
    """When a timeline begins: the fault, else its detection, else the incident's begin."""
    return incident.marks.get(Mark.FAULT, incident.marks.get(Mark.DETECTED, incident.opened_at))


def cut(start: float, ends: Sequence[tuple[float, What]]) -> list[tuple[What, float, float, float]]:
    """(what, begin, end, percent of the whole) of stretches that follow each other from `start` on.

    Each ends at its own moment, or where the one before it ended if that was later.
    """
    whole = max((at for at, _ in ends), default=start) - start
    found, last = [], start
    for at, what in ends:
        end = max(at, last)
        found.append((what, last, end, 100.0 * (end - last) / whole if whole > 0 else 0.0))
        last = end
    return found


def node_phases(incident: IncidentRecord) -> tuple[Phase, ...]:
    """The node's own side, from the fault to its return: detect, isolate, drain, the repair's name, validate.

    Its seconds add up to the span between these marks. It runs beside the job's side; where a job had to wait for this
    node, within "wait for a node". Empty until the node is repaired.
    """
    marks = incident.marks
    isolated, repaired = marks.get(Mark.ISOLATED), marks.get(Mark.NODE_REPAIRED)
    if isolated is None or repaired is None:
        return ()
    repairs = [remedy for remedy in incident.remedies if remedy in _REPAIRS]
    repair = repairs[-1].replace("_", " ") if repairs else "repair"
    ends = [
        (marks[mark], (name, mark))
        for name, mark in (
            ("detect", Mark.DETECTED), ("isolate", Mark.ISOLATED), ("drain", Mark.STOPPED),
            (repair, Mark.NODE_REPAIRED), ("validate", Mark.NODE_RETURNED),
        )
        if mark in marks and not (mark is Mark.STOPPED and marks[mark] > repaired)  # it stopped elsewhere, later
    ]  # fmt: skip
    found = cut(began_at(incident), ends)
    return tuple(Phase(name, mark, end, end - begin, percent) for (name, mark), begin, end, percent in found)


_REPAIRS = frozenset({Remedy.RESET_GPU, Remedy.REBOOT, Remedy.REPLACE})


def seconds_by_phase(incident: IncidentRecord) -> dict[str, float]:
    """Seconds of each phase by its name, as `timeline` cuts them; for many incidents, where nothing else is wanted."""
    last, reached = _reached(incident)
    found: dict[str, float] = {}
    for at, _, mark in reached:
        found[PHASE_NAMES[mark]] = at - last
        last = at
    return found


def phase_totals(incidents: Iterable[IncidentRecord]) -> dict[str, float]:
    """Seconds of each phase over all these incidents; a phase of no time is 0."""
    totals = {PHASE_NAMES[mark]: 0.0 for mark in PHASE_MARKS if mark is not Mark.FAULT}
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

"""Marks of an incident: their one order, which the engine and the reports share."""

from __future__ import annotations

from holdfast.model.records import JOB_MARKS, PHASE_MARKS, Mark
from holdfast.report.timeline import PHASE_NAMES


def test_marks_have_one_order():
    """From the fault to the proven recovery; each but the first names a phase, and the node's side is left out for jobs."""
    assert [mark.value for mark in PHASE_MARKS] == [
        "fault", "detected", "diagnosed", "isolated", "stopped", "requeued", "released", "placed", "started",
        "first_step", "proven",
    ]  # fmt: skip
    assert tuple(PHASE_NAMES) == PHASE_MARKS[1:]
    assert [mark for mark in PHASE_MARKS if mark not in JOB_MARKS] == [Mark.FAULT, Mark.ISOLATED]

"""`holdfast.client.rows`: records as rows that a table takes."""

from __future__ import annotations

from holdfast.client import rows
from holdfast.model.cluster import JobKey, JobView, SchedulerState
from holdfast.model.records import AttemptRecord, IncidentRecord, JobRecord, Mark
from holdfast.ports import Sample


def test_records_inside_become_columns_and_keys_text() -> None:
    """A view's fields, a job's key, enumerations, attempts as rows of their own."""
    key = JobKey("c", "7", 2)
    job = JobRecord(
        key=key, view=JobView(key=key, state=SchedulerState.RUNNING), attempts=[AttemptRecord(0, nodes=("n1",))]
    )
    (row,) = rows([job])
    assert (row["key"], row["view.key"], row["view.state"], row["state"]) == ("7#2", "7#2", "running", "watching")
    assert row["attempts"][0]["nodes"] == ["n1"]
    assert rows(job.attempts)[0]["number"] == 0


def test_marks_are_columns_of_times() -> None:
    """What has not happened has no column in its row; a table shows it as missing."""
    found = rows([
        IncidentRecord("i1", 5.0, jobs=[JobKey("c", "7")], marks={Mark.FAULT: 4.0, Mark.DETECTED: 5.0}),
        IncidentRecord("i2", 6.0),
    ])  # fmt: skip
    assert [(row.get("marks.fault"), row.get("marks.detected"), row["jobs"]) for row in found] == [
        (4.0, 5.0, ["7"]), (None, None, []),
    ]  # fmt: skip


def test_samples_are_rows() -> None:
    """Points of a series."""
    assert rows([Sample("step", "job:7(0)", 1.0, 3.0)]) == [
        {"series": "step", "subject": "job:7(0)", "at": 1.0, "value": 3.0}
    ]

"""A job's saves, from the events of its checkpoints."""

from __future__ import annotations

from holdfast.model.cluster import JobKey
from holdfast.model.events import CheckpointSaved
from holdfast.report.saves import Save, saves_of

ON = {"source": "launcher:7", "job": JobKey("c", "7")}


def said(step: int, at: float, *, durable: bool, attempt: int = 0, took_s: float | None = None) -> CheckpointSaved:
    return CheckpointSaved(id=f"{step}{at}", at=at, attempt=attempt, step=step, durable=durable, took_s=took_s, **ON)


def test_staged_and_durable_are_one_save_and_the_newest_stands_first() -> None:
    """The seconds that the ranks told win over the difference of the two times; what nobody told is None."""
    events = [
        said(10, 1.0, durable=False),
        said(10, 3.5, durable=True, took_s=2.25),
        said(20, 4.0, durable=False),
        said(20, 6.0, durable=True),
        said(30, 7.0, durable=True),
        said(40, 8.0, durable=False),
    ]
    assert saves_of(events) == [
        Save(0, 40, 8.0, None, None),
        Save(0, 30, None, 7.0, None),
        Save(0, 20, 4.0, 6.0, 2.0),
        Save(0, 10, 1.0, 3.5, 2.25),
    ]


def test_the_same_step_of_another_attempt_is_another_save() -> None:
    """Saved anew after a restart."""
    events = [said(30, 1.0, durable=False), said(30, 9.0, durable=True, attempt=1)]
    assert saves_of(events) == [Save(1, 30, None, 9.0, None), Save(0, 30, 1.0, None, None)]

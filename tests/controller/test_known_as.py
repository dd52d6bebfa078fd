"""A source that cannot know how often an id was used before means the job that runs now."""

from __future__ import annotations

from holdfast.controller.state import ShellState, key_text
from holdfast.model import events as e
from holdfast.model.cluster import JobKey, JobView


def shell(*keys: JobKey) -> ShellState:
    return ShellState(jobs={key_text(key): JobView(key=key) for key in keys})


def test_generation_one_means_the_job_that_runs_now() -> None:
    """The first is gone, its id was used again: a launcher of the second says generation 1 all the same."""
    second = JobKey("lab", "7", 2)
    assert shell(second, JobKey("lab", "8")).known_as(JobKey("lab", "7")) == second


def test_a_known_or_unknown_job_is_taken_as_it_is_named() -> None:
    """Nothing is guessed where the name fits, or fits nothing."""
    first, second = JobKey("lab", "7"), JobKey("lab", "7", 2)
    assert shell(first, second).known_as(first) == first
    assert shell(second).known_as(JobKey("lab", "7", 3)) == JobKey("lab", "7", 3)
    assert shell(second).known_as(JobKey("other", "7")) == JobKey("other", "7")


def test_the_late_goodbye_of_an_earlier_launcher_leaves_its_successors_lease():
    """Its run is named; an older version's word names none, and means the newest."""
    base = {"at": 1.0, "received_at": 1.0, "source": "launcher:7", "job": JobKey("c", "7")}
    state = ShellState()
    state.fold(e.LauncherAttached(id="1", restart_count=1, lease_s=10.0, nodes=(), ranks=8, **base), [])
    state.fold(e.LauncherLapsed(id="2", restart_count=0, left=True, **base), [])
    assert [lease.restart_count for lease in state.launchers.values()] == [1]
    state.fold(e.LauncherLapsed(id="3", **base), [])
    assert state.launchers == {}

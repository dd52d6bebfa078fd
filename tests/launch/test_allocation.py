"""What a launcher makes of its engine's state: when it may leave, and with whose exit code."""

from __future__ import annotations

import pytest

from holdfast.launch.allocation import is_settled
from holdfast.model.cluster import JobKey, JobView
from holdfast.model.orders import AnyOrder, Escalate, GiveUp, Notify
from holdfast.model.records import JobRecord, JobState

KEY = JobKey("test", "7")
LEAVE = Escalate(id="c1.1", cause="e1", job=KEY, attempt=1, exit_code=86, why="the same fault twice")
STOP = GiveUp(id="c1.2", cause="e1", job=KEY, why="the same fault twice")
TELL = Notify(id="c1.3", cause="e1", topic="i1", title="given up")


def record(state: JobState) -> JobRecord:
    return JobRecord(KEY, JobView(KEY), state)


@pytest.mark.parametrize(
    ("job", "pending", "settled"),
    [
        (None, [], False),
        (record(JobState.DIAGNOSING), [], False),
        (record(JobState.WATCHING), [], True),
        (record(JobState.COMPLETED), [TELL], True),
        (record(JobState.GIVEN_UP), [], True),
        (record(JobState.GIVEN_UP), [TELL, LEAVE], False),
        (record(JobState.GIVEN_UP), [STOP], False),
    ],
)
def test_a_launcher_leaves_by_the_order_that_says_with_which_code(
    job: JobRecord | None, pending: list[AnyOrder], settled: bool
):
    """A job given up is not left with the command's own code while the order to leave with 86 is still to be done."""
    assert is_settled(job, pending) is settled

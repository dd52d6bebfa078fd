"""The names by which people call a job find the same record in every command."""

from __future__ import annotations

import asyncio

import pytest
from journal_with_history import a_job
from msgspec.structs import replace

from holdfast.cli.records import Records, job_named
from holdfast.errors import UserError
from holdfast.model.cluster import JobKey
from holdfast.model.records import JobRecord

PLAIN = a_job()
AGAIN = replace(a_job(), key=JobKey("lab", "1778", 2))
TASK = replace(a_job(), key=JobKey("lab", "14"))
TASK.view = replace(TASK.view, key=TASK.key, task="12_2")


class Known(Records):
    """Three jobs."""

    async def jobs(self, *, job: str = "") -> list[JobRecord]:
        """All of them."""
        del job
        return [PLAIN, AGAIN, TASK]


@pytest.mark.parametrize(
    ("said", "meant"),
    [("1778", AGAIN), ("1778(3)", AGAIN), ("1778#2", AGAIN), ("12_2", TASK), ("12_2(0)", TASK), ("14", TASK)],
)
def test_a_job_is_found_by_the_name_that_people_see(said: str, meant: JobRecord) -> None:
    """Id, attempt, generation, an array's task; of a reused id the newest."""
    assert asyncio.run(job_named(Known(), said)) is meant


def test_a_name_that_no_job_has_is_said() -> None:
    """One sentence."""
    with pytest.raises(UserError, match='no job "12_3"'):
        asyncio.run(job_named(Known(), "12_3"))

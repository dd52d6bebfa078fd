"""Attempts that a record no longer holds: what events make of them is what the engine had made of them."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from tests.report.histories import a_year, events_of
from tests.report.year import Year, journal_of, recorded, recorded_journal

from holdfast.decide.records.job import ATTEMPTS_MAX
from holdfast.model.records import AttemptRecord, JobRecord
from holdfast.report.attempts import KINDS, earlier, lacks_some
from holdfast.report.gather import gather

FIELDS = (
    "number", "started_at", "first_step_at", "first_step", "resumed_from", "last_step", "durable_step", "nodes",
)  # fmt: skip


@pytest.fixture(scope="module")
def year() -> Year:
    return recorded()


def test_attempts_out_of_events_are_those_of_the_engine(year: Year) -> None:
    """Of each of three jobs the newest 64, made again from the events alone, are those that the engine remembers."""
    told = [event for event in year.events if event.__struct_config__.tag in KINDS]
    for job in year.jobs:
        assert lacks_some(job)
        made = {one.number: one for one in earlier(msgspec.structs.replace(job, attempts=[AttemptRecord(10**9)]), told)}
        for held in job.attempts:
            for name in FIELDS:
                assert getattr(made[held.number], name) == getattr(held, name), (str(job.key), held.number, name)
            # Nothing but the scheduler's word tells of a third job's ends: it is heard of in half a second.
            if held.ended_at:
                assert made[held.number].ended_at == pytest.approx(held.ended_at, abs=0.0 if held.epoch else 0.51)
        assert not {n for n in made if n >= job.attempts[0].number} - {one.number for one in job.attempts}


def test_a_report_knows_every_attempt(year: Year) -> None:
    """As many as were started, in order, none twice; nothing is said to be missing."""
    data = asyncio.run(gather(recorded_journal(), title="t", cluster="sim", now=year.ended_at, with_details=False))
    assert not [note for note in data.notes if "attempts" in note]
    for job in data.jobs:
        numbers = [one.number for one in job.attempts]
        assert numbers == sorted(set(numbers))
        said = {e.attempt for e in year.events if e.__struct_config__.tag == "attempt_started" and e.job == job.key}
        assert not said - set(numbers)
        assert len(numbers) > ATTEMPTS_MAX


def test_what_retention_has_dropped_is_named(year: Year) -> None:
    """Half of the events are gone: the rest is counted, the job and its first known attempt are named, MTBF counts neither side of the others."""
    half = year.events[len(year.events) // 2].seq
    data = asyncio.run(gather(journal_of(year, after=half), title="t", cluster="sim", now=year.ended_at))
    notes = [note for note in data.notes if "attempts" in note]
    first = {str(job.key): job.attempts[0].number for job in data.jobs}
    for name, note in zip(first, notes, strict=True):
        assert f"Job {name}: nothing in this journal tells of its attempts before {name}({first[name]})" in note
    counted = [i for i in data.incidents if i.attempt_before is not None and i.outcome != "observed"]
    known = [
        i
        for i in counted
        if (i.attempt_before or 0) >= first[str(i.jobs[0])] and not i.diagnosis.cause.startswith("operator.")
    ]
    assert len(known) < len(counted)
    up = sum(account.up_s for account in data.accounts)
    assert data.totals.mtbf_s == pytest.approx(up / len(known))


def test_a_job_that_was_there_before_the_journal_is_no_gap() -> None:
    """Its record begins with a later attempt since nobody had heard of the others: no words are made of it."""
    jobs, nodes, incidents = a_year(1, incidents=8, jobs=1)
    [job] = jobs
    job.attempts = job.attempts[2:]
    year = Year([e for i in incidents for e in events_of(i)][:0], jobs, nodes, incidents, 0.0, 2_000_000_000.0)
    data = asyncio.run(gather(journal_of(year), title="t", cluster="sim", now=year.ended_at))
    assert data.notes == []
    assert [one.number for one in data.jobs[0].attempts] == [one.number for one in job.attempts]


def test_words_of_other_jobs_change_nothing(year: Year) -> None:
    """Each job is made of its own events."""
    [one, other, *_] = year.jobs
    told = [e for e in year.events if e.__struct_config__.tag in KINDS]
    assert earlier(one, told) == earlier(one, [e for e in told if _key(e) == one.key])
    assert earlier(one, [e for e in told if _key(e) == other.key]) == []


def _key(event: Any) -> Any:
    return event.job.key if event.__struct_config__.tag == "job_observed" else event.job


def test_a_job_whose_first_attempt_is_there_lacks_none() -> None:
    """Nothing is read for it."""
    jobs, _, _ = a_year(1, incidents=8, jobs=1)
    assert not lacks_some(jobs[0])
    assert not lacks_some(JobRecord(jobs[0].key, jobs[0].view))

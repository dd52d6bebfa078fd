"""A glance into a journal: the job's record as opening the journal would give it, or the word that it cannot tell."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest
from tests.adapters.journal_cases import KEY, entry, job_record, run

from holdfast.adapters.journal import open_journal
from holdfast.adapters.journal.glance import last_record
from holdfast.errors import JournalError
from holdfast.model.records import AttemptRecord, JobRecord, JobState


def written(path: Path, *, close: bool = True) -> JobRecord:
    """A journal with one job in it; `close=False` leaves it as a killed launcher would."""

    async def work() -> JobRecord:
        journal = open_journal(f"sqlite:///{path}")
        await journal.acquire("launcher", lease_s=10.0, now=1.0)
        record = job_record(JobState.PROVING)
        record.attempts = [AttemptRecord(number=3, epoch=9)]
        record.epoch = 9
        await journal.append([entry(1, jobs=[record])])
        found = (await journal.jobs(job=str(KEY)))[0]
        if close:
            await journal.close()
        return found

    return run(work)


def test_it_tells_what_the_journal_tells(tmp_path: Path):
    """Attempt, epoch and state of the job are those of the whole journal; another job is not there."""
    path = tmp_path / "journal.db"
    expected = written(path)
    assert expected == last_record(path, str(KEY))
    assert last_record(path, "8") is None


def test_it_reads_what_a_killed_launcher_left(tmp_path: Path):
    """What stands only in the write-ahead log counts."""
    path = tmp_path / "journal.db"
    pid = os.fork()
    if pid == 0:
        written(path, close=False)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert path.with_name("journal.db-wal").stat().st_size > 0
    found = last_record(path, str(KEY))
    assert found is not None
    assert (found.epoch, found.attempt and found.attempt.number) == (9, 3)


def test_no_journal_is_no_record(tmp_path: Path):
    """A job that has never run: nothing is made, too."""
    assert last_record(tmp_path / "journal.db", "7") is None
    assert list(tmp_path.iterdir()) == []


def test_what_it_cannot_judge_is_left_to_the_journal(tmp_path: Path):
    """Not a database, another database, tables of another version: the caller opens the journal, which knows what to do."""
    foreign = tmp_path / "foreign.db"
    foreign.write_bytes(b"not a database" * 100)
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE jobs (id TEXT)")
    newer = tmp_path / "newer.db"
    written(newer)
    with sqlite3.connect(newer) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    for path in (foreign, other, newer):
        with pytest.raises(JournalError):
            last_record(path, "7")

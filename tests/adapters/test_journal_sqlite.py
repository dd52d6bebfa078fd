"""What is particular to the journal in SQLite: killed writers, damage, full disks, upgrades, thinning."""

from __future__ import annotations

import itertools
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
import sqlalchemy as sa
from tests.adapters.journal_cases import audited_from_two_sides, entry, node_record, run

from holdfast.adapters.journal import migrate, open_journal, schema, series
from holdfast.errors import JournalDamagedError, JournalError, UsageError
from holdfast.ports import Sample

ROOT = Path(__file__).resolve().parents[2]


def url(path: Path) -> str:
    return f"sqlite:///{path}"


def test_a_writer_killed_at_random_points_loses_nothing_that_it_acknowledged(tmp_path: Path):
    """Twelve times kill -9 in the middle of appends: acknowledged batches are there, none is there in part."""
    path = tmp_path / "journal.db"
    rng = random.Random(7)
    acknowledged = 0
    for _ in range(12):
        writer = subprocess.Popen(
            [sys.executable, "-m", "tests.adapters.journal_writer", url(path)], cwd=ROOT, stdout=subprocess.PIPE
        )
        try:
            said = writer.stdout.readline()
            assert said, "the writer ended by itself"
            time.sleep(rng.uniform(0.0, 0.05))
        finally:
            writer.send_signal(signal.SIGKILL)
            said += writer.stdout.read()
            writer.wait()
            writer.stdout.close()
        lines = said.split(b"\n")[:-1]
        acknowledged = max(acknowledged, int(lines[-1]))
        stored = run(lambda: stored_seqs(path))
        assert stored == list(range(1, len(stored) + 1))
        assert len(stored) >= acknowledged
        # Batches are of 1 + seq % 7 events: an end inside a batch would be half a transaction.
        end = 0
        while end < len(stored):
            end += 1 + end % 7
        assert end == len(stored)
        acknowledged = len(stored)


async def stored_seqs(path: Path) -> list[int]:
    journal = open_journal(url(path))
    try:
        state, seq, events = await journal.load()
        assert state is None or state == b"state %d" % seq
        assert [one.seq for one in events] == list(range(seq + 1, await journal.last_seq() + 1))
        return [one.seq for one in await journal.events(limit=10**6)]
    finally:
        await journal.close()


def test_a_journal_that_was_moved_away_is_named_with_what_to_do(tmp_path: Path):
    """The sentence names the file, what has become of it, and both ways out."""
    path = tmp_path / "journal.db"

    async def work() -> None:
        journal = open_journal(url(path))
        await journal.acquire("a", lease_s=10, now=100)
        path.rename(tmp_path / "away.db")
        with pytest.raises(
            JournalError, match=r"journal\.db: it was moved away or removed while it was open: bring it"
        ):
            await journal.append([entry(1)])
        (tmp_path / "away.db").rename(path)
        await journal.close()

    run(work)


def test_a_commit_is_flushed_to_disk(tmp_path: Path):
    """The writer runs in WAL with synchronous=FULL: each commit is one fsync of the log."""
    journal = open_journal(url(tmp_path / "journal.db"))
    with journal._writer.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar_one() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar_one() == 2
    with journal._readers.connect() as connection, pytest.raises(sa.exc.OperationalError, match="readonly"):
        connection.execute(sa.insert(schema.meta), {"key": "x", "value": "y"})
    run(journal.close)


def test_a_folder_without_shared_memory_works_too(tmp_path: Path):
    """`?wal=0` keeps to a rollback journal, for network file systems."""

    async def work() -> None:
        journal = open_journal(url(tmp_path / "journal.db") + "?wal=0")
        await journal.acquire("a", lease_s=10, now=100)
        await journal.append([entry(1)])
        assert await journal.last_seq() == 1
        await journal.close()
        assert not {path.name for path in tmp_path.iterdir()} & {"journal.db-wal", "journal.db-shm"}

    run(work)


def test_a_full_disk_refuses_whole_batches_and_heals(tmp_path: Path):
    """When SQLite has no page left, an append fails as a whole; with space again, the same append succeeds."""

    async def work() -> None:
        journal = open_journal(url(tmp_path / "journal.db"))
        await journal.acquire("a", lease_s=10, now=100)
        await journal.append([entry(1)])

        def limit(pages: int) -> None:
            with journal._writer.connect() as connection:
                connection.exec_driver_sql(f"PRAGMA max_page_count={pages}")

        limit(1)
        batch = [entry(n, node="x" * 2000, nodes=[node_record(f"n{n}")]) for n in range(2, 50)]
        for _ in range(2):
            with pytest.raises(JournalError, match="full"):
                await journal.append(batch)
        assert await journal.last_seq() == 1
        assert await journal.nodes() == []
        limit(10**6)
        await journal.append(batch)
        assert await journal.last_seq() == 49
        await journal.close()

    run(work)


def test_an_append_whose_answer_was_lost_is_not_an_error(tmp_path: Path):
    """The same entries again are taken as stored; other ones under the same numbers are refused."""

    async def work() -> None:
        journal = open_journal(url(tmp_path / "journal.db"))
        await journal.acquire("a", lease_s=10, now=100)
        await journal.append([entry(1), entry(2)])
        await journal.append([entry(1), entry(2)])
        with pytest.raises(JournalError, match="cannot be stored"):
            await journal.append([entry(2, event_id="other")])
        await journal.close()

    run(work)


def damage_nothing(path: Path) -> None:
    path.write_bytes(b"not a database at all, but long enough to be taken for one" * 100)


def damage_foreign(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE users (name)")
    connection.close()


def damage_page(path: Path) -> None:
    fill(path)
    with path.open("r+b") as file:
        file.seek(4096 * 3)
        file.write(os.urandom(4096 * 4))


def damage_hole(path: Path) -> None:
    fill(path)
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM events WHERE seq = 77")
    connection.close()


def damage_newer(path: Path) -> None:
    fill(path)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()


def fill(path: Path) -> None:
    async def work() -> None:
        journal = open_journal(url(path))
        await journal.acquire("a", lease_s=10, now=100)
        await journal.append([entry(n) for n in range(1, 200)])
        await journal.close()

    run(work)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (damage_nothing, "is not a journal"),
        (damage_foreign, "not a Holdfast journal"),
        (damage_page, "damaged"),
        (damage_hole, "1 of 199 events after the snapshot are missing"),
        (damage_newer, "written by a newer version"),
    ],
)
def test_what_is_no_whole_journal_is_refused_with_one_sentence(tmp_path: Path, damage, said: str):
    """Nothing is acted upon from a file that cannot be trusted; the sentence names the file."""
    path = tmp_path / "journal.db"
    damage(path)
    with pytest.raises(JournalDamagedError, match=said) as caught:
        open_journal(url(path))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_cannot_be_opened_is_said(tmp_path: Path):
    """A URL of another kind, without a file, or a file in a place that is a file."""
    with pytest.raises(UsageError, match="kind 'mysql'"):
        open_journal("mysql://x")
    with pytest.raises(UsageError, match="no kind"):
        open_journal("journal.db")
    with pytest.raises(UsageError, match="names no file"):
        open_journal("sqlite:///")
    (tmp_path / "file").touch()
    with pytest.raises(JournalError, match="cannot be opened"):
        open_journal(url(tmp_path / "file" / "journal.db"))


def structure(engine: sa.Engine) -> dict[str, object]:
    inspector = sa.inspect(engine)
    return {
        table: (
            [(c["name"], str(c["type"]), c["nullable"], c["primary_key"]) for c in inspector.get_columns(table)],
            sorted((i["name"], tuple(i["column_names"])) for i in inspector.get_indexes(table)),
        )
        for table in inspector.get_table_names()
        if table != "alembic_version"
    }


def test_migrations_and_tables_agree(tmp_path: Path):
    """A journal that was upgraded step by step has exactly the tables of a new one."""
    migrated = sa.create_engine(url(tmp_path / "migrated.db"))
    with migrated.begin() as connection:
        connection.execute(sa.text("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY)"))
    migrate.upgrade(migrated, "migrated.db")
    fresh = sa.create_engine(url(tmp_path / "fresh.db"))
    schema.metadata.create_all(fresh)
    assert structure(migrated) == structure(fresh)
    with migrated.connect() as connection:
        assert connection.scalar(sa.text("SELECT version_num FROM alembic_version")) == schema.HEAD
    migrated.dispose()
    fresh.dispose()


def test_an_older_journal_is_upgraded_on_open(tmp_path: Path):
    """A file that an earlier version left is brought to this version's tables, with its content."""
    path = tmp_path / "journal.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY)")
        connection.execute(f"PRAGMA application_id={0x484F4C44}")
    connection.close()
    fill(path)
    assert run(lambda: stored_seqs(path)) == list(range(1, 200))


def test_the_series_store_thins_what_ages_and_is_bounded(tmp_path: Path):
    """After an hour one sample in 10 s is kept, after a day one a minute; beyond the row limit the oldest go."""
    engine = sa.create_engine(url(tmp_path / "series.db"))
    schema.metadata.create_all(engine)
    day = 86400.0
    points = [Sample("step", "r0", float(n), float(n)) for n in range(0, int(day) + 7200, 2)]
    with engine.begin() as connection:
        for start in range(0, len(points), 1000):
            series.add(connection, points[start : start + 1000])
        series.thin(connection, day + 7200)
        at = list(connection.scalars(sa.select(schema.samples.c.at).order_by(schema.samples.c.at)))
        old = [one for one in at if one < 7200 - 60]
        middle = [one for one in at if 7200 <= one < day + 3600 - 10]
        new = [one for one in at if one >= day + 3600]
        assert {round(b - a) for a, b in itertools.pairwise(old)} == {60}
        assert {round(b - a) for a, b in itertools.pairwise(middle)} == {10}
        assert {round(b - a) for a, b in itertools.pairwise(new)} == {2}
        series.add(connection, points[-100:], rows_max=500, thin_every=10)
        assert connection.scalar(sa.select(sa.func.count()).select_from(schema.samples)) == 500
    engine.dispose()


def test_a_controller_and_the_command_line_write_one_audit(tmp_path: Path):
    """60 acts from two connections at once are 60 lines of a whole chain."""
    assert run(lambda: audited_from_two_sides(url(tmp_path / "journal.db"))).number == 60

"""What is particular to the journal in PostgreSQL: lost connections, conflicts, a stuck holder, upgrades, other tables."""

from __future__ import annotations

import asyncio
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

import psycopg
import pytest
import sqlalchemy as sa
from tests.adapters.journal_cases import audited_from_two_sides, entry, node_record, run

from holdfast.adapters.journal import chain, migrate, open_journal, schema, series
from holdfast.adapters.journal import postgres as store
from holdfast.adapters.journal.reading_postgres import PostgresReading
from holdfast.adapters.journal.sql import SqlJournal
from holdfast.errors import (
    FencedError,
    JournalBusyError,
    JournalDamagedError,
    JournalError,
    NotFoundError,
    UsageError,
)
from holdfast.ports import Sample
from postgres_fixture import Postgres, running_postgres

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def url(postgres: Postgres) -> str:
    return postgres.schema_url()


async def stored_seqs(url: str) -> list[int]:
    journal = open_journal(url)
    try:
        return [one.seq for one in await journal.events(limit=10**6)]
    finally:
        await journal.close()


def before_commit(journal: SqlJournal, act) -> None:
    """Have `act(connection)` called once, when the next transaction is about to be committed."""

    @sa.event.listens_for(journal._writer, "commit", once=True)
    def _(connection: sa.Connection) -> None:
        act(connection)


# --- connections that are lost ---


def test_a_connection_lost_in_mid_transaction_leaves_no_half_batch(postgres: Postgres, url: str):
    """The backend dies before the commit: nothing of the batch is there, and the same append succeeds afterwards."""

    async def work() -> None:
        journal = open_journal(url)
        await journal.acquire("a", lease_s=10, now=100)
        await journal.append([entry(1)])
        before_commit(journal, lambda _: postgres.kill_backends(url, only="idle in transaction"))
        batch = [entry(2, nodes=[node_record()]), entry(3)]
        with pytest.raises(JournalError) as caught:
            await journal.append(batch)
        assert "\n" not in str(caught.value)
        assert await journal.last_seq() == 1
        assert await journal.nodes() == []
        await journal.append(batch)
        assert await journal.last_seq() == 3
        await journal.close()

    run(work)


def test_a_commit_whose_answer_was_lost_is_not_done_twice(postgres: Postgres, url: str):
    """The backend dies right after the commit: the append seems to fail, and the same one again is taken as stored."""

    async def work() -> None:
        journal = open_journal(url)
        await journal.acquire("a", lease_s=10, now=100)

        def commit_and_lose(connection: sa.Connection) -> None:
            connection.exec_driver_sql("COMMIT")
            postgres.kill_backends(url)
            connection.exec_driver_sql("SELECT 1")  # the driver knows that nothing is left to commit and asks nobody

        before_commit(journal, commit_and_lose)
        batch = [entry(1), entry(2)]
        with pytest.raises(JournalError):
            await journal.append(batch)
        await journal.append(batch)
        assert [one.seq for one in await journal.events()] == [1, 2]
        with pytest.raises(JournalError, match="cannot be stored"):
            await journal.append([entry(2, event_id="other")])
        await journal.close()

    run(work)


def test_a_writer_whose_backends_are_killed_loses_nothing_that_it_acknowledged(postgres: Postgres, url: str):
    """A process appends and tries again; its connections are ended at random moments, at last it is killed itself."""
    rng = random.Random(11)
    writer = subprocess.Popen(
        [sys.executable, "-m", "tests.adapters.journal_writer", url, "again"], cwd=ROOT, stdout=subprocess.PIPE
    )
    try:
        said = writer.stdout.readline()
        killed = 0
        deadline = time.monotonic() + 60
        while killed < 60 and time.monotonic() < deadline:
            time.sleep(rng.uniform(0.0, 0.03))
            killed += postgres.kill_backends(url)
        assert killed >= 60
    finally:
        writer.send_signal(signal.SIGKILL)
        said += writer.stdout.read()
        writer.wait()
        writer.stdout.close()
    acknowledged = int(said.split(b"\n")[:-1][-1])
    stored = run(lambda: stored_seqs(url))
    assert stored == list(range(1, len(stored) + 1))
    assert len(stored) >= acknowledged > 0
    end = 0
    while end < len(stored):  # batches are of 1 + seq % 7 events: an end inside a batch would be half a transaction
        end += 1 + end % 7
    assert end == len(stored)


def test_a_server_that_restarts_is_found_again():
    """While it is away every call fails with one sentence; afterwards the lease and the history are as they were."""

    async def work(server: Postgres, url: str) -> None:
        journal = open_journal(url)
        await journal.acquire("a", lease_s=10, now=100)
        await journal.append([entry(1)])
        server.stop()
        for call in (lambda: journal.append([entry(2)]), journal.last_seq, lambda: journal.renew(now=101)):
            with pytest.raises(JournalError) as caught:
                await call()
            assert not isinstance(caught.value, FencedError)
            assert "\n" not in str(caught.value)
        with pytest.raises(JournalError, match="cannot be opened"):
            open_journal(url)
        server.start()
        await journal.append([entry(2)])
        assert await journal.last_seq() == 2
        await journal.close()

    with running_postgres() as server:
        run(lambda: work(server, server.schema_url()))


# --- several writers ---


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
def test_of_many_that_race_for_the_lease_one_wins_each_time(postgres: Postgres, url: str, isolation: str):
    """Whatever isolation the database has by default: conflicts are tried again, epochs are given out once each."""
    url = url.replace(
        "-csearch_path", f"-cdefault_transaction_isolation%3D{isolation.replace(' ', '%5C%20')}%20-csearch_path"
    )

    async def work() -> None:
        journals = [open_journal(url) for _ in range(6)]
        won: list[int] = []

        async def race(number: int, journal: SqlJournal) -> None:
            for _ in range(8):
                try:
                    won.append(await journal.acquire(f"c{number}", lease_s=10, now=100))
                except JournalBusyError:
                    await asyncio.sleep(0.001)
                else:
                    await journal.append([entry(len(won))])
                    await journal.release()

        await asyncio.gather(*(race(number, journal) for number, journal in enumerate(journals)))
        assert won == list(range(1, len(won) + 1))
        assert [one.seq for one in await journals[0].events()] == won
        for journal in journals:
            await journal.close()

    run(work)


def test_a_deadlock_is_tried_again(postgres: Postgres, url: str):
    """The server rolls an append back because of another transaction: it is done again and nobody hears of it."""

    async def work() -> None:
        # A session looks for deadlocks once, so long after it began to wait: by then the other one must wait, too.
        with postgres.connect() as admin:
            admin.execute("ALTER ROLE CURRENT_USER SET deadlock_timeout = '5s'")
        journal = open_journal(url)
        await journal.acquire("a", lease_s=10, now=100)
        await journal.append([entry(1, nodes=[node_record("n1")])])
        rolled_back: list[object] = []
        sa.event.listen(journal._writer, "rollback", rolled_back.append)
        with postgres.connect() as other:
            other.autocommit = False
            other.execute(f"SET search_path = {url.rpartition('=')[2]}".encode())
            # It is the one that looks that gives up.
            other.execute("SET deadlock_timeout = '60s'")
            other.execute("SELECT * FROM nodes WHERE name = 'n1' FOR UPDATE")
            append = asyncio.create_task(journal.append([entry(2, nodes=[node_record("n1")])]))
            await asyncio.to_thread(until_waits, postgres, url)
            await asyncio.to_thread(other.execute, "SELECT * FROM lease FOR UPDATE")
            other.rollback()
            await append
        assert await journal.last_seq() == 2
        assert rolled_back, "more than once when the other one is slow"
        await journal.close()

    try:
        run(work)
    finally:
        with postgres.connect() as admin:
            admin.execute("ALTER ROLE CURRENT_USER RESET deadlock_timeout")


def until_waits(postgres: Postgres, url: str) -> None:
    """Until a session of this place waits for a lock: those of tests before may be about to end."""
    name = url.rpartition("application_name=")[2]
    deadline = time.monotonic() + 60
    with postgres.connect() as connection:
        while True:
            query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = %s"
            row = connection.execute(query, (name,)).fetchone()
            if row is not None and row[0]:
                return
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_a_holder_that_stands_still_in_a_transaction_does_not_keep_its_successor_away(
    postgres: Postgres, url: str, monkeypatch
):
    """The server ends its session after the limit; the standby's `acquire` goes on, and the first one is fenced."""
    monkeypatch.setitem(store.LIMITS_MS, "idle_in_transaction_session_timeout", 3000)

    async def work() -> None:
        old, new = open_journal(url), open_journal(url)
        await old.acquire("old", lease_s=10, now=100)
        stuck, go_on = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()

        def stand_still(_: sa.Connection) -> None:
            loop.call_soon_threadsafe(stuck.set)
            asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result(120)

        before_commit(old, stand_still)
        append = asyncio.create_task(old.append([entry(1)]))
        await stuck.wait()
        assert await new.acquire("new", lease_s=10, now=111) == 2
        await new.append([entry(1, event_id="by-new")])
        go_on.set()
        with pytest.raises(JournalError):
            await append
        with pytest.raises(FencedError, match="'new'"):
            await old.append([entry(2)])
        assert [one.id for one in await new.events()] == ["by-new"]
        await old.close()
        await new.close()

    run(work)


def test_no_batch_is_a_pipeline_whose_middle_has_no_limit(url: str, monkeypatch):
    """The server waits for the rest of a pipeline for ever, with its locks held: none is opened, whatever is written."""

    def opened(_: psycopg.Pipeline) -> NoReturn:
        raise AssertionError("a pipeline was opened")

    monkeypatch.setattr(psycopg.Pipeline, "__enter__", opened)

    async def work() -> None:
        journal = open_journal(url)
        await journal.acquire("one", lease_s=10, now=100)
        nodes = [[node_record(f"n{number}") for number in range(seq, seq + 3)] for seq in (1, 2)]
        await journal.append([entry(seq, nodes=nodes[seq - 1]) for seq in (1, 2)])
        assert [one.seq for one in await journal.events()] == [1, 2]
        assert [one.name for one in await journal.nodes()] == ["n1", "n2", "n3", "n4"]
        await journal.close()

    run(work)


def test_two_that_open_an_empty_database_at_once_make_one_journal(url: str):
    """Tables are made by one of them; both can use them."""

    async def work() -> None:
        journals = await asyncio.gather(*(asyncio.to_thread(open_journal, url) for _ in range(5)))
        for number, journal in enumerate(journals):
            await journal.acquire("same", lease_s=10, now=100)
            await journal.append([entry(number + 1)])
            await journal.close()
        assert await stored_seqs(url) == [1, 2, 3, 4, 5]

    run(work)


# --- what the server promises, and what it refuses ---


def test_a_commit_is_flushed_to_disk_whatever_the_default_is(postgres: Postgres, url: str):
    """A database that answers before it has written is told not to; a journal that writes is not a hot standby's."""
    journal = open_journal(url.replace("-csearch_path", "-csynchronous_commit%3Doff%20-csearch_path"))
    with journal._writer.connect() as connection:
        assert connection.exec_driver_sql("SHOW synchronous_commit").scalar_one() == "on"
        assert connection.exec_driver_sql("SHOW idle_in_transaction_session_timeout").scalar_one() == "10s"
    run(journal.close)


def structure(engine: sa.Engine) -> dict[str, object]:
    inspector = sa.inspect(engine)
    return {
        table: (
            [(c["name"], repr(c["type"]), c["nullable"], c.get("autoincrement")) for c in inspector.get_columns(table)],
            sorted((i["name"], tuple(i["column_names"])) for i in inspector.get_indexes(table)),
            inspector.get_pk_constraint(table)["constrained_columns"],
        )
        for table in inspector.get_table_names()
        if table != "alembic_version"
    }


def test_migrations_and_tables_agree(postgres: Postgres):
    """A journal that was upgraded step by step has exactly the tables of a new one."""
    migrated, fresh = (store.engine(postgres.schema_url(), pool_size=1) for _ in range(2))
    with migrated.begin() as connection:
        connection.execute(sa.text("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL PRIMARY KEY)"))
    migrate.upgrade(migrated, "migrated")
    schema.metadata.create_all(fresh)
    assert structure(migrated) == structure(fresh)
    with migrated.connect() as connection:
        assert connection.scalar(sa.text("SELECT version_num FROM alembic_version")) == schema.HEAD
    migrated.dispose()
    fresh.dispose()


def set_version(url: str, version: str | None) -> None:
    engine = store.engine(url, pool_size=1)
    with engine.begin() as connection:
        connection.execute(sa.text("DELETE FROM alembic_version"))
        if version is not None:
            connection.execute(sa.text("INSERT INTO alembic_version VALUES (:v)"), {"v": version})
    engine.dispose()


def test_a_newer_journal_is_refused_and_can_still_be_read(url: str):
    """Nothing is written into tables that are not understood; a report says so and reads what both know."""
    run(open_journal(url).close)
    set_version(url, "9999")
    with pytest.raises(JournalDamagedError, match="written by a newer version"):
        open_journal(url)
    reading = PostgresReading(url)
    assert ["newer version 9999" in note for note in reading.take_notes()] == [True]
    run(reading.close)


FURTHER = """
import sqlalchemy as sa
from alembic import op
revision, down_revision = "0003", "0002"
def upgrade():
    op.add_column("nodes", sa.Column("rack", sa.String, nullable=False, server_default="?"))
    {then}
"""


@pytest.mark.parametrize("breaks", [False, True])
def test_an_older_journal_is_upgraded_on_open(url: str, tmp_path: Path, monkeypatch, breaks: bool):
    """The next version's migration is run once, with the content kept; one that fails half-way changes nothing."""
    run(lambda: fill(url))
    scripts = tmp_path / "migrations"
    shutil.copytree(migrate.SCRIPTS, scripts)
    further = FURTHER.format(then='op.execute("SELECT 1/0")' if breaks else "pass")
    (scripts / "versions" / "0003_rack.py").write_text(further)
    with monkeypatch.context() as later:
        later.setattr(migrate, "SCRIPTS", scripts)
        later.setattr(schema, "HEAD", "0003")
        if breaks:
            with pytest.raises(JournalError, match="division by zero"):
                open_journal(url)
        else:
            assert run(lambda: stored_seqs(url)) == [1, 2]
            run(open_journal(url).close)
    engine = store.engine(url, pool_size=1)
    with engine.connect() as connection:
        columns = {column["name"] for column in sa.inspect(connection).get_columns("nodes")}
        version = connection.scalar(sa.text("SELECT version_num FROM alembic_version"))
    engine.dispose()
    assert ("rack" in columns, version) == ((False, "0002") if breaks else (True, "0003"))


async def fill(url: str) -> None:
    journal = open_journal(url)
    await journal.acquire("a", lease_s=10, now=100)
    await journal.append([entry(1, nodes=[node_record()]), entry(2)])
    await journal.close()


def test_tables_of_somebody_else_are_left_alone(postgres: Postgres, url: str):
    """A schema with other tables is refused, by who would write and by who would only read."""
    with postgres.connect() as connection:
        connection.execute(f"CREATE TABLE {url.rpartition('=')[2]}.users (name text)".encode())
    for look in (open_journal, PostgresReading):
        with pytest.raises(JournalDamagedError, match="not a Holdfast journal's"):
            look(url)


def test_an_empty_database_is_no_journal_to_read(postgres: Postgres, url: str):
    """Looking makes nothing."""
    with pytest.raises(NotFoundError, match="there is no journal in postgresql://"):
        PostgresReading(url)
    engine = store.engine(url, pool_size=1)
    with engine.connect() as connection:
        assert store.tables_of(connection) == set()
    engine.dispose()


def test_missing_events_are_noticed(postgres: Postgres, url: str):
    """A hole behind the snapshot: nothing is acted upon; a reading says it."""
    run(lambda: fill(url))
    with postgres.connect() as connection:
        connection.execute(f"DELETE FROM {url.rpartition('=')[2]}.events WHERE seq = 1".encode())
    with pytest.raises(JournalDamagedError, match="1 of 2 events after the snapshot are missing"):
        open_journal(url)
    reading = PostgresReading(url)
    assert reading.take_notes() == ["1 of 2 events after the newest snapshot are missing."]
    run(reading.close)


@pytest.mark.parametrize(
    ("url", "kind", "said"),
    [
        ("postgresql://u:secret@/db?colour=red", UsageError, "colour"),
        ("postgresql://u:secret@127.0.0.1:1/db", JournalError, "cannot be opened"),
        ("postgresql://u:secret@[::1/db", UsageError, "write postgresql://"),
        ("postgres://u:secret@127.0.0.1:1,127.0.0.1:2/db", JournalError, "cannot be opened"),
    ],
)
def test_what_cannot_be_opened_is_one_sentence_without_the_password(url: str, kind: type[Exception], said: str):
    """A wrong URL, and servers that are not there."""
    with pytest.raises(kind, match=said) as caught:
        open_journal(url)
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_reading_is_of_one_moment(url: str):
    """What a controller stores meanwhile is not in it, and it holds the controller up in nothing."""

    async def work() -> None:
        journal = open_journal(url)
        await journal.acquire("a", lease_s=10, now=100)
        await journal.append([entry(1, nodes=[node_record("n1")])])
        reading = PostgresReading(url)
        await journal.append([entry(2, nodes=[node_record("n2")])])
        assert [one.name for one in await reading.nodes()] == ["n1"]
        assert [one.seq for one in await reading.events()] == [1]
        assert (reading.last_seq, reading.holder, reading.lease_until) == (1, "a", 110.0)
        with pytest.raises(sa.exc.InternalError, match="read-only"):
            reading._connection.execute(sa.delete(schema.nodes))
        await reading.close()
        await journal.close()

    run(work)


def test_what_cannot_be_understood_is_counted_and_left_out(postgres: Postgres, url: str):
    """Records that a newer version wrote: the others are given, the first reasons are named."""
    run(lambda: fill(url))
    with postgres.connect() as connection:
        connection.execute(f"SET search_path = {url.rpartition('=')[2]}".encode())
        connection.execute(b"INSERT INTO nodes SELECT 'n9', state, seq, '{\"colour\": 1}' FROM nodes")
    reading = PostgresReading(url)

    async def work() -> None:
        assert [one.name for one in await reading.nodes()] == ["n1"]
        (note,) = reading.take_notes()
        assert note.startswith("1 nodes of the journal could not be understood and are left out")
        assert reading.take_notes() == []
        await reading.close()

    run(work)


def test_the_series_store_thins_by_whole_buckets(url: str):
    """As in SQLite: after an hour the last sample of each ten seconds is kept."""
    engine = store.engine(url, pool_size=1)
    schema.metadata.create_all(engine)
    points = [Sample("step", "r0", float(n), float(n)) for n in range(0, 10800, 2)]
    with engine.begin() as connection:
        series.add(connection, points, thin_every=10**9)
        series.thin(connection, 10800.0)
        at = list(connection.scalars(sa.select(schema.samples.c.at).order_by(schema.samples.c.at)))
    engine.dispose()
    assert [one for one in at if one < 7200] == [float(n) for n in range(8, 7200, 10)]
    assert [one for one in at if one >= 7200] == [float(n) for n in range(7200, 10800, 2)]


def test_a_controller_and_the_command_line_write_one_audit(url: str):
    """60 acts from two connections at once are 60 lines of a whole chain, also for a reader that may write nothing."""
    head = run(lambda: audited_from_two_sides(url))
    assert head.number == 60
    reading = PostgresReading(url)
    assert run(lambda: reading.audited(chain.check)) == head
    run(reading.close)

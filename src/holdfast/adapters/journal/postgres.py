"""Opening a journal in PostgreSQL: tables made or upgraded, commits that are flushed, limits for what hangs.

Called by `open_journal`. No time passes here; every wait of the server has a limit, because a controller that stood
still in the middle of a transaction would keep its successor from the lease. What libpq understands is understood:
several hosts, `sslmode`, a schema of its own by `options=-csearch_path=NAME`, PGPASSFILE and PGPASSWORD.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from sqlalchemy import Connection, Engine, create_engine, inspect, select, text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.pool import QueuePool

from holdfast.adapters.journal import queries, schema
from holdfast.adapters.journal.sql import READERS, SqlJournal, said_by
from holdfast.errors import JournalDamagedError, JournalError, UsageError

OPEN_LOCK = 0x484F4C44
"""Advisory lock under which tables are made and upgraded: two controllers may be started at once."""
LIMITS_MS = {"idle_in_transaction_session_timeout": 10_000, "lock_timeout": 15_000, "statement_timeout": 60_000}
"""A session that stands still in a transaction is ended by the server, sooner than others give up waiting for it."""
READING_LIMITS_MS = {"idle_in_transaction_session_timeout": 3_600_000, "statement_timeout": 600_000}
"""One that only reads holds nobody up, and a long report does much between two questions."""
LINK = {
    "connect_timeout": "5",
    "tcp_user_timeout": "10000",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "application_name": "holdfast",
    "target_session_attrs": "read-write",
}
"""Unless the URL says otherwise: a server that is gone is given up after ten seconds, and its standby is not taken."""


class OneByOne(psycopg.Cursor[Any]):
    """A cursor that never opens a pipeline.

    A session that stands still in the middle of a pipeline is `active` to the server, which waits for its next message
    without any limit and keeps its locks: a controller that was stopped there kept its successor from the lease for
    good. Between two messages that are each ended by a Sync it is `idle in transaction`, and that has a limit.
    """

    def executemany(self, query: Any, params_seq: Iterable[Any], *, returning: bool = False) -> None:
        """Execute for each set of parameters, a round trip each."""
        if returning:
            raise NotImplementedError("results of many statements are not read here")
        for params in params_seq:
            self.execute(query, params)


def open_postgres(url: str) -> SqlJournal:
    """Open the journal in this database, and make it there when the database (or schema) is empty.

    Raises:
        UsageError: the URL is not understood.
        JournalDamagedError: other tables stand there, or a newer version's, or events are missing.
        JournalError: the server cannot be reached or refuses.
    """
    name = shown(url)
    writer = engine(url, pool_size=1)
    readers = engine(url, pool_size=READERS, is_checked=True)
    try:
        _prepare(writer, name)
        with readers.connect() as connection:
            _check(connection, name)
    except SQLAlchemyError as error:
        _dispose(writer, readers)
        raise JournalError(f"journal {name}: cannot be opened: {said_by(error)}") from error
    except JournalError:
        _dispose(writer, readers)
        raise
    return SqlJournal(writer, readers)


def shown(url: str) -> str:
    """The URL without its password, and without options: for people's eyes."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "postgresql://..."
    user = f"{parts.username}@" if parts.username else ""
    return f"postgresql://{user}{parts.netloc.rpartition('@')[2]}{parts.path}"


def engine(url: str, *, pool_size: int, is_checked: bool = False, read_only: bool = False) -> Engine:
    """Connections to the server of this URL.

    Args:
        url: as libpq understands it.
        pool_size: at most so many, and no more at a time.
        is_checked: try each connection before it is used, so that a restart of the server is not noticed.
        read_only: for a look that changes nothing; any server will do, all that is read is as of one moment.

    Raises:
        UsageError: the URL is not understood.
    """
    link = {**LINK, **({"target_session_attrs": "any"} if read_only else {})}
    try:
        asked = conninfo_to_dict(url)
        conninfo = make_conninfo(url, **{key: value for key, value in link.items() if key not in asked})
    except psycopg.ProgrammingError as error:
        said = str(error).strip().partition("\n")[0]
        why = "is not understood" if "://" in said else said  # libpq quotes the URL, and with it a password
        raise UsageError(f"journal URL {shown(url)}: {why}: write postgresql://USER@HOST/DATABASE") from error

    def connect() -> psycopg.Connection[Any]:
        # Autocommit, so that what is set here stays whatever becomes of the first transaction.
        connection = psycopg.connect(conninfo, autocommit=True, client_encoding="UTF8", cursor_factory=OneByOne)
        for limit, milliseconds in (READING_LIMITS_MS if read_only else LIMITS_MS).items():
            connection.execute(f"SET {limit} = {milliseconds}".encode())
        # An answer means: it is on disk. A database whose default is to answer earlier would break that.
        if connection.execute("SHOW synchronous_commit").fetchone() == ("off",):
            connection.execute("SET synchronous_commit = on")
        connection.autocommit = False
        if read_only:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.read_only = True
        return connection

    made = create_engine(
        "postgresql+psycopg://",
        creator=connect,
        poolclass=QueuePool,
        pool_size=pool_size,
        max_overflow=0,
        pool_pre_ping=is_checked,
    )
    made.dialect.use_insertmanyvalues_wo_returning = True  # many rows are one statement, and so one round trip
    return made


def tables_of(connection: Connection) -> set[str]:
    """Names of the tables in the schema that is written to."""
    return set(inspect(connection).get_table_names())


def is_journal(connection: Connection, tables: set[str]) -> bool:
    """Are these tables a journal's?"""
    if not {"alembic_version", "meta"} <= tables:
        return False
    query = select(schema.meta.c.value).where(schema.meta.c.key == "format")
    try:
        return connection.execute(query).scalar_one_or_none() == schema.FORMAT
    except DBAPIError:
        return False


def not_ours(name: str) -> JournalDamagedError:
    """The tables there are somebody else's."""
    return JournalDamagedError(
        f"journal {name}: holds tables that are not a Holdfast journal's: give it a database or a schema of its own"
    )


def _dispose(*engines: Engine) -> None:
    for one in engines:
        one.dispose()


def _prepare(writer: Engine, name: str) -> None:
    with writer.begin() as connection:
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": OPEN_LOCK})
        encoding = connection.exec_driver_sql("SHOW server_encoding").scalar_one()
        if encoding != "UTF8":
            raise JournalError(f"journal {name}: the database is in {encoding}: make one with ENCODING 'UTF8'")
        tables = tables_of(connection)
        if not tables:
            schema.make(connection)
            return
        if not is_journal(connection, tables):
            raise not_ours(name)
        version = connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one_or_none()
        if version != schema.HEAD:
            from holdfast.adapters.journal.migrate import upgrade_in  # noqa: PLC0415 - Alembic is slow to import

            upgrade_in(connection, name)


def _check(connection: Connection, name: str) -> None:
    missing, expected = queries.missing_events(connection)
    if missing:
        raise JournalDamagedError(
            f"journal {name}: damaged ({missing} of {expected} events after the snapshot are missing): "
            "restore a copy, or start anew in another database"
        )

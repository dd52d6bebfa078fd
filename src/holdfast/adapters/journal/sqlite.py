"""Opening a journal in SQLite: WAL, a flush to disk with every commit, checks on open, upgrade of older files.

Called by `open_journal`. No time passes here. A torn write of a killed process or a power cut is mended by SQLite's
own recovery; what it cannot mend is refused here with one sentence, before anything is acted upon.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, inspect, make_url, text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.pool import QueuePool, StaticPool

from holdfast.adapters.journal import queries, schema
from holdfast.adapters.journal.sql import READERS, SqlJournal
from holdfast.errors import JournalDamagedError, JournalError, UsageError

APPLICATION_ID = 0x484F4C44
"""`HOLD`, in the file's header: tells `file` and us whose database it is."""
CHECK_BYTES_MAX = 256 * 1024 * 1024
"""Files larger than this are not read whole on open (about 1 s per GB); `holdfast doctor` can still ask for it."""
BUSY_S = 10.0


def open_sqlite(url: str) -> SqlJournal:
    """Open or make the file. Raises as `open_journal` says."""
    parsed = make_url(url)
    if not parsed.database:
        raise UsageError(f"journal URL {url!r} names no file: write sqlite:///path/to/journal.db")
    path = Path(parsed.database)
    wal = parsed.query.get("wal", "1") != "0"
    fresh = not path.exists() or path.stat().st_size == 0
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # The journal holds operators' names and log lines: for its owner only.
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    except OSError as error:
        raise JournalError(f"journal {path}: cannot be opened: {error.strerror}") from error
    writer, readers = _engine(path, wal=wal, writes=True), _engine(path, wal=wal, writes=False)
    try:
        _prepare(writer, path, fresh=fresh)
        with readers.connect() as connection:
            _check(connection, path)
    except SQLAlchemyError as error:
        _dispose(writer, readers)
        raise _mapped(path, error) from error
    except JournalError:
        _dispose(writer, readers)
        raise
    return SqlJournal(writer, readers)


def _dispose(*engines: Engine) -> None:
    for engine in engines:
        engine.dispose()


def _engine(path: Path, *, wal: bool, writes: bool) -> Engine:
    connect_args = {"timeout": BUSY_S, "check_same_thread": False}
    url = f"sqlite:///{path}"
    if writes:
        engine = create_engine(url, poolclass=StaticPool, connect_args=connect_args)
    else:
        engine = create_engine(
            url, poolclass=QueuePool, pool_size=READERS, max_overflow=READERS, connect_args=connect_args
        )

    opened: set[tuple[int, int]] = set()

    def on_connect(connection: Any, _record: object) -> None:
        opened.add(_identity(path))
        # Transactions are begun below, explicitly: Python's sqlite3 would begin them late and hold none for reads.
        connection.isolation_level = None
        if writes:
            connection.execute(f"PRAGMA journal_mode={'WAL' if wal else 'TRUNCATE'}")
            connection.execute("PRAGMA synchronous=FULL")
        else:
            connection.execute("PRAGMA query_only=ON")
        connection.execute("PRAGMA temp_store=MEMORY")

    def on_begin(connection: Connection) -> None:
        if writes:
            check_place(path, opened)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    event.listen(engine, "connect", on_connect)
    event.listen(engine, "begin", on_begin)
    return engine


def _identity(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino


def check_place(path: Path, opened: set[tuple[int, int]]) -> None:
    """Return when the file that is open still bears its name: what is written to another one is lost with it.

    Raises:
        JournalError: it was removed, or another one stands in its place.
    """
    try:
        if _identity(path) in opened:
            return
        what = "another file has taken its place"
    except FileNotFoundError:
        what = "it was moved away or removed"
    except OSError as error:
        what = f"it cannot be looked at: {error.strerror}"
    raise JournalError(
        f"journal {path}: {what} while it was open: bring it back, or restart to go on with what is there"
    )


def _prepare(writer: Engine, path: Path, *, fresh: bool) -> None:
    with writer.begin() as connection:
        owner = int(connection.exec_driver_sql("PRAGMA application_id").scalar_one())
        tables = set(inspect(connection).get_table_names())
        if fresh or not tables:
            connection.exec_driver_sql(f"PRAGMA application_id={APPLICATION_ID}")
            schema.make(connection)
            return
        if owner != APPLICATION_ID or "alembic_version" not in tables:
            raise JournalDamagedError(f"journal {path}: is a database, but not a Holdfast journal: name another file")
        version = connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one_or_none()
    if version != schema.HEAD:
        from holdfast.adapters.journal.migrate import upgrade  # noqa: PLC0415 - Alembic is slow to import

        upgrade(writer, str(path))


def _check(connection: Connection, path: Path) -> None:
    if path.stat().st_size <= CHECK_BYTES_MAX:
        said = connection.exec_driver_sql("PRAGMA quick_check(1)").scalar_one()
        if said != "ok":
            raise _damaged(path, str(said).splitlines()[-1])
    missing, expected = queries.missing_events(connection)
    if missing:
        raise _damaged(path, f"{missing} of {expected} events after the snapshot are missing")


def _damaged(path: Path, what: str) -> JournalDamagedError:
    return JournalDamagedError(f"journal {path}: damaged ({what}): move it away and restore a copy, or start anew")


def _mapped(path: Path, error: SQLAlchemyError) -> JournalError:
    said = str(error.orig) if isinstance(error, DBAPIError) else str(error)
    if "not a database" in said:
        return JournalDamagedError(f"journal {path}: is not a journal (no SQLite file): name another file")
    if "malformed" in said:
        return _damaged(path, said)
    return JournalError(f"journal {path}: cannot be opened: {said}")

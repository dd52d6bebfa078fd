"""One look into a journal without opening it: what a launcher must know of its job before it starts the ranks.

Opening a journal loads SQLAlchemy, checks the file and takes a lease: half a second that a restart should not wait for.
Called by the launcher with the journal that the launchers before it left. No time passes here.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from urllib.parse import quote

from holdfast.adapters.journal.version import HEAD
from holdfast.errors import JournalError, WireError
from holdfast.model.records import JobRecord
from holdfast.model.wire import decode

_BUSY_S = 10.0


def last_record(path: Path, job: str) -> JobRecord | None:
    """The job's record in the SQLite journal at `path`; None when there is no journal, or no such job in it.

    Raises:
        JournalError: a glance does not tell: open the journal, which mends it, upgrades it, or says what is wrong.
    """
    if not path.exists() or path.stat().st_size == 0:
        return None
    try:
        # Not read-only: what a killed launcher left in the write-ahead log must be read too, and that writes its index.
        connection = sqlite3.connect(f"file:{quote(str(path))}?mode=rw", uri=True, timeout=_BUSY_S)
        try:
            version = connection.execute("SELECT version_num FROM alembic_version").fetchone()
            found = connection.execute("SELECT payload FROM jobs WHERE id = ? ORDER BY key", (job,)).fetchone()
        finally:
            connection.close()
        if version != (HEAD,):
            raise JournalError(f"journal {path}: its tables are of version {version!r}, not {HEAD}")
        return decode(found[0], JobRecord) if found is not None else None
    except (sqlite3.Error, WireError) as error:
        raise JournalError(f"journal {path}: {error}") from error

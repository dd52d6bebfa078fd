"""The journal on disk: every event and order before it takes effect, the lease, the read models, the series store.

`open_journal(url)` is the only door; `cli/` and the launcher call it. `export` writes a journal in its one canonical
form, and `glance` reads the one record that a launcher needs before its ranks start. The code is SQLAlchemy Core and
portable; what is particular to SQLite stands in `sqlite.py`, to PostgreSQL in `postgres.py`.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from holdfast.adapters.journal.export import export
from holdfast.errors import UsageError

if TYPE_CHECKING:  # SQLAlchemy is slow to import, and a launcher starts its ranks before it opens its journal
    from holdfast.adapters.journal.sql import SqlJournal

__all__ = ["export", "is_postgres", "need_driver", "open_journal"]

KINDS = "sqlite:///path/to/journal.db or postgresql://USER@HOST/DATABASE"


def open_journal(url: str) -> SqlJournal:
    """Open the journal at a URL, make or upgrade it where needed, and check that it is whole.

    Args:
        url: `sqlite:///relative/path`, `sqlite:////absolute/path`; `?wal=0` for folders on network file systems,
            where SQLite's shared memory does not work. Or `postgresql://USER@HOST/DATABASE`, as libpq understands it.

    Raises:
        UsageError: a URL of a kind that is not known, or PostgreSQL's driver is not installed.
        JournalDamagedError: it is not a journal, or is torn, or was written by a newer version.
        JournalError: it cannot be opened or written.
    """
    kind, mark, _ = url.partition("://")
    if not mark:
        raise UsageError(f"journal URL {url!r} has no kind: write {KINDS}")
    if kind == "sqlite":
        from holdfast.adapters.journal.sqlite import open_sqlite  # noqa: PLC0415 - other stores must not pay for it

        return open_sqlite(url)
    if is_postgres(url):
        need_driver()
        from holdfast.adapters.journal.postgres import open_postgres  # noqa: PLC0415 - an extra

        return open_postgres(url)
    raise UsageError(f"journal URL of kind {kind!r} is not known here: write {KINDS}")


def is_postgres(url: str) -> bool:
    """Does this URL name a journal in PostgreSQL? libpq knows both spellings."""
    return url.startswith(("postgresql://", "postgres://"))


def need_driver() -> None:
    """Raises UsageError where PostgreSQL's driver is not installed."""
    if importlib.util.find_spec("psycopg") is None:
        raise UsageError("a journal in PostgreSQL needs its driver: pip install 'holdfast[postgres]'")

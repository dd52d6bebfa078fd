"""The journal on disk: every event and order before it takes effect, the lease, the read models, the series store.

`open_journal(url)` is the only door; `cli/` and the launcher call it. `export` writes a journal in its one canonical
form. The code is SQLAlchemy Core and portable; what is particular to SQLite stands in `sqlite.py`.
"""

from __future__ import annotations

from holdfast.adapters.journal.export import export
from holdfast.adapters.journal.sql import SqlJournal
from holdfast.errors import UsageError

__all__ = ["SqlJournal", "export", "open_journal"]


def open_journal(url: str) -> SqlJournal:
    """Open the journal at a URL, make or upgrade it where needed, and check that it is whole.

    Args:
        url: `sqlite:///relative/path`, `sqlite:////absolute/path`; `?wal=0` for folders on network file systems,
            where SQLite's shared memory does not work.

    Raises:
        UsageError: a URL of a kind that is not known.
        JournalDamagedError: the file is not a journal, or is torn, or was written by a newer version.
        JournalError: the file cannot be opened or written.
    """
    kind, mark, _ = url.partition("://")
    if not mark:
        raise UsageError(f"journal URL {url!r} has no kind: write sqlite:///path/to/journal.db")
    if kind == "sqlite":
        from holdfast.adapters.journal.sqlite import open_sqlite  # noqa: PLC0415 - other stores must not pay for it

        return open_sqlite(url)
    raise UsageError(f"journal URL of kind {kind!r} is not known here: write sqlite:///path/to/journal.db")

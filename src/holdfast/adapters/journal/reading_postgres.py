"""Reading a journal in PostgreSQL without touching it: the counterpart of `reading.py`, for the viewing commands.

Called through `cli/records`. Everything is read as of one moment, in one read-only transaction that holds nobody up,
also while a controller goes on writing. Nothing is made or upgraded. A record that cannot be understood (a newer
version wrote it) is counted and left out. No time passes here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from sqlalchemy import Connection, Select, select, text
from sqlalchemy.exc import SQLAlchemyError

from holdfast.adapters.journal import queries, schema
from holdfast.adapters.journal.postgres import engine, is_journal, not_ours, shown, tables_of
from holdfast.adapters.journal.sql import said_by
from holdfast.errors import JournalError, NotFoundError, WireError

R = TypeVar("R")

NAMED_MAX = 3
"""As many rows that cannot be understood are named; the rest is counted."""


class PostgresReading(queries.Reads):
    """The reading half of `ports.Journal`, as of one moment."""

    def __init__(self, url: str) -> None:
        """Connect.

        Raises:
            NotFoundError: there is no journal in that database.
            JournalDamagedError: the tables there are somebody else's.
            UsageError, JournalError: see `postgres.open_postgres`.
        """
        self._name = shown(url)
        self._odd: dict[str, list[str]] = {}
        self._notes: list[str] = []
        self.holder = ""
        """Who holds the lease, and may be writing."""
        self.lease_until = 0.0
        self.last_seq = 0
        """Newest event that this reading holds."""
        self._engine = engine(url, pool_size=1, read_only=True)
        try:
            self._connection = self._engine.connect()
            self._begin(self._connection)
        except SQLAlchemyError as error:
            self._engine.dispose()
            raise JournalError(f"journal {self._name}: cannot be opened: {said_by(error)}") from error
        except (JournalError, NotFoundError):
            self._engine.dispose()
            raise

    def take_notes(self) -> list[str]:
        """What could not be read so far, one sentence each. Each is given once."""
        odd = [
            f"{len(said)} {table} of the journal could not be understood and are left out: "
            f"{'; '.join(dict.fromkeys(said[:NAMED_MAX]))}."
            for table, said in self._odd.items()
        ]
        found, self._notes, self._odd = [*self._notes, *odd], [], {}
        return found

    def _begin(self, connection: Connection) -> None:
        tables = tables_of(connection)
        if not tables:
            raise NotFoundError(f"there is no journal in {self._name}: it has no tables")
        if not is_journal(connection, tables):
            raise not_ours(self._name)
        version = connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one_or_none()
        if version != schema.HEAD:
            age = "older" if str(version) < schema.HEAD else "newer"
            self._notes.append(
                f"The journal is of the {age} version {version} (here: {schema.HEAD}), read as far as both agree."
            )
        row = connection.execute(select(schema.lease)).one_or_none()
        if row is not None:
            self.holder, self.lease_until = str(row.holder), float(row.expires)
        self.last_seq = queries.last_seq(connection)
        missing, expected = queries.missing_events(connection)
        if missing:
            self._notes.append(f"{missing} of {expected} events after the newest snapshot are missing.")

    async def close(self) -> None:
        """Let go of the server."""
        self._connection.close()
        self._engine.dispose()

    async def audited(self, work: Callable[[Connection], R]) -> R:
        """Read the audit by a function of `chain`."""
        try:
            return work(self._connection)
        except SQLAlchemyError as error:
            raise JournalError(f"journal {self._name}: cannot be read: {said_by(error)}") from error

    # --- rows ---

    async def _payloads(self, table: str, query: Select[Any], read: Callable[[str], R]) -> list[R]:
        found: list[R] = []
        for row in await self._rows(query):
            try:
                found.append(read(row.payload))
            except WireError as error:
                self._odd.setdefault(table, []).append(str(error))
        return found

    async def _rows(self, query: Select[Any]) -> list[Any]:
        try:
            return list(self._connection.execute(query).all())
        except SQLAlchemyError as error:
            raise JournalError(f"journal {self._name}: cannot be read: {said_by(error)}") from error

"""Reading a SQLite journal without touching it: what can be read is given, what cannot is named.

Called by the viewing commands and reports, through `cli/records`. Everything is read as of one moment, also while a
controller goes on writing. Nothing is upgraded, mended or locked: a damaged file gives the rows that lie outside the
damage, an older or newer one the tables and fields that both versions know. No time passes here.
"""

from __future__ import annotations

import math
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from holdfast.adapters.journal.version import HEAD
from holdfast.errors import JournalDamagedError, JournalError, WireError
from holdfast.model.events import AnyEvent
from holdfast.model.orders import WAITING
from holdfast.model.records import BrakeRecord, IncidentRecord, JobRecord, NodeRecord, OrderRecord
from holdfast.model.wire import decode, decode_event
from holdfast.os.files import is_on_read_only
from holdfast.ports import Sample

Asked = Mapping[str, str | float | tuple[str, ...]]
R = TypeVar("R")

APPLICATION_ID = 0x484F4C44
BUSY_S = 10.0
ROWID_MAX = 2**62
GAPS_MAX = 1000
"""Damaged places in one table that are stepped over; a table with more of them is read no further."""
NAMED_MAX = 3
"""As many rows that cannot be understood are named; the rest is counted."""
EVERY = -1
"""As a limit: none."""
TABLES = ("events", "jobs", "nodes", "incidents", "orders", "brakes", "samples")


class _File:
    """What SQLite is to open as the journal: its file, or a copy where SQLite may not write.

    SQLite writes beside a journal even to read it. On a read-only file system it is told that nobody changes the file.
    What a killed writer left in a log would be passed over then: such a journal is read from a copy.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._copy: tempfile.TemporaryDirectory[str] | None = None

    def open(self) -> sqlite3.Connection:
        """Open it, to read it as of now.

        Raises:
            sqlite3.Error: it cannot be.
            JournalError: it cannot be copied.
        """
        logs = [log for end in ("wal", "journal") if _holds(log := Path(f"{self._path}-{end}"))]
        if not is_on_read_only(self._path):
            # Read-only, what a killed writer left in its log stays there. Without a log that would leave an empty one
            # behind, which a connection that may write takes away with it.
            return _first_of(self._path, ("ro", "rw") if logs else ("rw", "ro"))
        return _first_of(self._copied(logs), ("ro", "rw")) if logs else _connect(self._path, "ro&immutable=1")

    def _copied(self, logs: list[Path]) -> Path:
        self._copy = tempfile.TemporaryDirectory(prefix="holdfast-journal-")
        place = Path(self._copy.name)
        try:
            for file in (self._path, *logs):
                shutil.copyfile(file, place / file.name)
        except OSError as error:
            self.close()
            raise JournalError(
                f"journal {self._path}: is on a read-only file system, and a copy in {place.parent} failed "
                f"({error.strerror}): set TMPDIR to a folder with room for it"
            ) from error
        return place / self._path.name

    def close(self) -> None:
        """Without the copy."""
        if self._copy is not None:
            self._copy.cleanup()


def _holds(log: Path) -> bool:
    return log.exists() and log.stat().st_size > 0


def _first_of(file: Path, modes: tuple[str, str]) -> sqlite3.Connection:
    try:
        return _connect(file, modes[0])
    except sqlite3.DatabaseError:
        return _connect(file, modes[1])


def _connect(file: Path, mode: str) -> sqlite3.Connection:
    uri = f"file:{quote(str(file))}?mode={mode}"
    connection = sqlite3.connect(uri, uri=True, timeout=BUSY_S, isolation_level=None)
    try:
        connection.execute("PRAGMA query_only=ON")
        connection.execute("PRAGMA cell_size_check=ON")
        # Not to write it (see above): without this SQLite refuses a file that was cut short or has a torn schema.
        connection.execute("PRAGMA writable_schema=ON")
        # The transaction makes all that follows one moment; it holds nobody up.
        connection.execute("BEGIN")
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.Error:
        connection.close()
        raise
    return connection


class JournalReading:
    """The reading half of `ports.Journal`, as of one moment."""

    def __init__(self, path: Path) -> None:
        """Open the file.

        Raises:
            JournalDamagedError: it is no journal, or so torn that not even its list of tables can be read.
            JournalError: it cannot be opened.
        """
        self._path = path
        self._file = _File(path)
        self._notes: dict[str, str] = {}
        self._odd: dict[str, list[str]] = {}
        self._tables: frozenset[str] = frozenset()
        self.holder = ""
        """Who holds the lease, and may be writing."""
        self.lease_until = 0.0
        self.last_seq = 0
        """Newest event that this reading holds."""
        self.last_at = 0.0
        """When that event happened."""
        self._connection = self._say_if_wrong(self._file.open)
        self._say_if_wrong(self._begin)
        self._look_for_a_cut()
        self._look_for_holes()

    def take_notes(self) -> list[str]:
        """What could not be read so far, one sentence each. Each is given once."""
        found = list(self._notes.values())
        self._notes.clear()
        return found

    def _say_if_wrong(self, work: Callable[[], R]) -> R:
        try:
            return work()
        except sqlite3.Error as error:
            said = str(error)
            if "not a database" in said:
                raise JournalDamagedError(
                    f"journal {self._path}: is not a journal (no SQLite file): name another file"
                ) from error
            if "malformed" in said:
                raise JournalDamagedError(
                    f"journal {self._path}: damaged ({said}): not even its tables are known"
                ) from error
            raise JournalError(f"journal {self._path}: cannot be opened: {said}") from error

    def _begin(self) -> None:
        self._tables = frozenset(
            str(name) for (name,) in self._connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        )
        owner = self._connection.execute("PRAGMA application_id").fetchone()[0]
        if owner != APPLICATION_ID or "alembic_version" not in self._tables:
            self._connection.close()
            raise JournalDamagedError(
                f"journal {self._path}: is a database, but not a Holdfast journal: name another file"
            )
        version = self._one("SELECT version_num FROM alembic_version")
        if not isinstance(version, str):
            self._note("version", "The journal does not say its version: it is read as one of this version.")
        elif version != HEAD:
            age = "older" if version < HEAD else "newer"
            self._note(
                "version", f"The journal is of the {age} version {version} (here: {HEAD}), read as far as both agree."
            )
        for name in TABLES:
            if name not in self._tables:
                self._note(f"table {name}", f"The journal has no {name}: what rests on them is not in this report.")
        if row := self._row("SELECT holder, expires FROM lease"):
            self.holder, self.lease_until = str(row[0]), float(row[1])
        self.last_seq = int(self._one("SELECT max(seq) FROM events") or 0)
        if row := self._row("SELECT at FROM events WHERE seq = ?", self.last_seq):
            self.last_at = float(row[0])

    def _look_for_a_cut(self) -> None:
        """The file's head says how long it is; a log beside it may hold the rest."""
        with self._path.open("rb") as file:
            head = file.read(100)
        page = int.from_bytes(head[16:18], "big")
        said = int.from_bytes(head[28:32], "big") * (65536 if page == 1 else page)
        size = self._path.stat().st_size
        log = Path(f"{self._path}-wal")
        if size < said and not (log.exists() and log.stat().st_size):
            self._note("cut", f"The journal's file was cut short: {size} of {said} bytes are there.")

    def _look_for_holes(self) -> None:
        """Events behind the newest snapshot must be there without a gap: each has the number after the one before."""
        newest = int(self._one("SELECT max(seq) FROM snapshots") or 0)
        row = self._row("SELECT count(*), max(seq) FROM events WHERE seq > ?", newest)
        if row is not None and row[1] is not None and row[0] != row[1] - newest:
            missing = row[1] - newest - row[0]
            self._note("holes", f"{missing} of {row[1] - newest} events after the newest snapshot are missing.")

    # --- the reading half of ports.Journal ---

    async def jobs(self, *, job: str = "") -> list[JobRecord]:
        """See `ports.Journal.jobs`."""
        return list(self._records("jobs", JobRecord, {"id": job}, order="key"))

    async def nodes(self, *, node: str = "") -> list[NodeRecord]:
        """See `ports.Journal.nodes`."""
        return list(self._records("nodes", NodeRecord, {"name": node}, order="name"))

    async def brakes(self) -> list[BrakeRecord]:
        """See `ports.Journal.brakes`."""
        return list(self._records("brakes", BrakeRecord, {}, order="name"))

    async def incidents(
        self, *, incident: str = "", job: str = "", node: str = "", open_only: bool = False, limit: int = 1000
    ) -> list[IncidentRecord]:
        """See `ports.Journal.incidents`."""
        asked = {"id": incident, "closed_at": 0.0 if open_only else ""}
        found = self._records("incidents", IncidentRecord, asked, order="opened_at DESC, id DESC")
        return list(islice((one for one in found if one.concerns(job=job, node=node)), limit))

    async def orders(
        self, *, incident: str = "", job: str = "", node: str = "", pending_only: bool = False, limit: int = 1000
    ) -> list[OrderRecord]:
        """See `ports.Journal.orders`."""
        asked = {"incident": incident, "job": job, "node": node, "status": WAITING if pending_only else ""}
        return list(self._records("orders", OrderRecord, asked, order="issued_at DESC, id DESC", limit=limit))

    async def samples(self, series: str, subject: str = "", *, after: float = 0.0) -> list[Sample]:
        """See `ports.Journal.samples`."""
        if "samples" not in self._tables:
            return []
        query, values = "SELECT series, subject, at, value FROM samples WHERE series = ? AND at > ?", [series, after]
        if subject.endswith("*"):
            query += " AND subject >= ? AND subject < ?"
            values += [subject[:-1], subject[:-1] + "\U0010ffff"]
        elif subject:
            query += " AND subject = ?"
            values.append(subject)
        try:
            rows = self._connection.execute(f"{query} ORDER BY at, id", values).fetchall()
        except sqlite3.DatabaseError:
            self._note(
                "samples", "Of the samples (steps, losses) not all could be read: plots and intervals lack them."
            )
            return []
        return [Sample(row[0], row[1], row[2], math.nan if row[3] is None else row[3]) for row in rows]

    async def events(self, *, after: int = 0, limit: int = 1000, **where: Any) -> list[AnyEvent]:
        """See `ports.Journal.events`."""
        asked: list[str] = ["seq > ?"]
        values: list[int | str] = [after]
        for name, value in where.items():
            if not value:
                continue
            if name == "incident":
                asked.append("seq IN (SELECT seq FROM event_incidents WHERE incident = ?)")
                if "event_incidents" not in self._tables:
                    return []
            elif name in {"kind", "job", "node"}:
                asked.append(f"{name} = ?")
            else:
                raise JournalError(f"events cannot be chosen by {name!r}: use incident, job, node or kind")
            values.append(str(value))
        clause = f"WHERE {' AND '.join(asked)}"
        return list(self._decoded("events", decode_event, clause, tuple(values), order="seq", limit=limit))

    async def close(self) -> None:
        """Let go of the file."""
        self._connection.close()
        self._file.close()

    # --- rows ---

    def _records(self, table: str, kind: type[R], asked: Asked, *, order: str, limit: int = EVERY) -> Iterator[R]:
        where, values = _chosen_by(asked)
        return self._decoded(table, lambda data: decode(data, kind), where, values, order=order, limit=limit)

    def _decoded(
        self,
        table: str,
        read: Callable[[str], R],
        where: str,
        values: tuple[Any, ...],
        *,
        order: str,
        limit: int,
    ) -> Iterator[R]:
        if table not in self._tables:
            return
        for payload in self._payloads(table, where, values, order, limit):
            try:
                yield read(payload)
            except WireError as error:
                self._count_odd(table, error)

    def _payloads(self, table: str, where: str, values: tuple[Any, ...], order: str, limit: int) -> Iterator[str]:
        """Rows one by one; after a damaged page the rows that lie outside it, in the table's own order."""
        given = 0
        try:
            for (payload,) in self._connection.execute(
                f"SELECT payload FROM {table} {where} ORDER BY {order} LIMIT ?",  # noqa: S608 - constants of this file
                (*values, limit),
            ):
                given += 1
                yield payload
        except sqlite3.DatabaseError:
            yield from self._around_damage(table, where, values, order, limit, given)

    def _around_damage(
        self, table: str, where: str, values: tuple[Any, ...], order: str, limit: int, given: int
    ) -> Iterator[str]:
        """What lies outside the damage. An index may lead into it although the rows beside it are whole."""
        column = order.split(",", maxsplit=1)[0].split(maxsplit=1)[0]
        found: list[tuple[Any, int, str]] = []
        start = -ROWID_MAX
        clause = f"{where} AND" if where else "WHERE"
        for _ in range(GAPS_MAX):
            rows, last = self._rows_from(table, clause, values, column, start)
            found += rows
            if last is None:
                break
            following = self._behind(table, last)
            if following is None:
                break
            start = following
        found.sort(key=lambda row: (isinstance(row[0], str), row[0], row[1]), reverse="DESC" in order)
        self._note(f"damage {table}", self._loss(table, len(found), is_whole=not where))
        for _, _, payload in found[given : None if limit < 0 else limit]:
            yield payload

    def _rows_from(
        self, table: str, clause: str, values: tuple[Any, ...], column: str, start: int
    ) -> tuple[list[tuple[Any, int, str]], int | None]:
        """Rows from this rowid on, until the damage; the last rowid before it, None when the end was reached."""
        rows: list[tuple[Any, int, str]] = []
        last = start - 1
        try:
            # NOT INDEXED: the table itself, in the order of its rowids.
            query = f"SELECT {column}, rowid, payload FROM {table} NOT INDEXED {clause} rowid >= ?"  # noqa: S608 - as above
            for at, rowid, payload in self._connection.execute(f"{query} ORDER BY rowid", (*values, start)):
                if not isinstance(rowid, int) or rowid <= last:
                    return rows, last  # a torn page that looks whole: no table goes backwards
                if isinstance(payload, str) and isinstance(at, float | int | str):
                    rows.append((at, rowid, payload))
                last = rowid
        except sqlite3.DatabaseError:
            return rows, last
        return rows, None

    def _behind(self, table: str, last: int) -> int | None:
        """The first rowid after `last` from which the table can be read again, None when there is none."""
        step = 1
        low = max(last, -1)
        while not self._is_readable(table, low + 1 + step):
            step *= 2
            if step >= ROWID_MAX:
                return None
        bad, good = low + 1 + step // 2, low + 1 + step
        while bad + 1 < good:
            middle = (bad + good) // 2
            bad, good = (bad, middle) if self._is_readable(table, middle) else (middle, good)
        return good

    def _is_readable(self, table: str, rowid: int) -> bool:
        try:
            query = f"SELECT rowid, payload FROM {table} NOT INDEXED WHERE rowid >= ?"  # noqa: S608 - as above
            row = self._connection.execute(f"{query} ORDER BY rowid LIMIT 1", (rowid,)).fetchone()
        except sqlite3.DatabaseError:
            return False
        return row is None or (isinstance(row[0], int) and row[0] >= rowid)

    def _loss(self, table: str, found: int, *, is_whole: bool) -> str:
        there = self._one(f"SELECT count(*) FROM {table}") if is_whole else None  # noqa: S608 - as above
        if isinstance(there, int) and there == found:
            return f"The journal is damaged in an index: all {found} {table} could be read without it."
        if isinstance(there, int) and there > found:
            return f"The journal is damaged: {there - found} of {there} {table} could not be read."
        return f"The journal is damaged: {found} {table} could be read; how many are lost is not known."

    def _count_odd(self, table: str, error: WireError) -> None:
        """A row that is there and cannot be understood: counted, the first reasons are told."""
        key = f"odd {table}"
        said = self._odd.setdefault(key, [])
        said.append(str(error))
        shown = "; ".join(dict.fromkeys(said[:NAMED_MAX]))
        self._notes[key] = f"{len(said)} {table} of the journal could not be understood and are left out: {shown}."

    def _row(self, query: str, *values: Any) -> Any:
        try:
            return self._connection.execute(query, values).fetchone()
        except sqlite3.DatabaseError:
            return None

    def _one(self, query: str) -> Any:
        row = self._row(query)
        return row[0] if row is not None else None

    def _note(self, key: str, text: str) -> None:
        self._notes.setdefault(key, text)


def _chosen_by(asked: Asked) -> tuple[str, tuple[str | float, ...]]:
    """Condition and values: columns are as asked, or one of several; an empty text asks for nothing."""
    given = {column: value for column, value in asked.items() if value != ""}
    chosen = {column: value if isinstance(value, tuple) else (value,) for column, value in given.items()}
    each = [f"{column} IN ({', '.join('?' * len(several))})" for column, several in chosen.items()]
    return f"WHERE {' AND '.join(each)}" if each else "", tuple(one for several in chosen.values() for one in several)

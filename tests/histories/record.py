"""A history: what each client asked and what it was answered, one JSON line as it happens, and the journal read raw.

`clients.py` writes a history, `checker.py` judges it. Times are seconds of one monotonic clock, that of the process in
which all clients run. An outcome is `ok`, `refused` (nothing may come of it) or `unknown` (it happened or not).
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

OK, REFUSED, UNKNOWN = "ok", "refused", "unknown"


@dataclass(frozen=True)
class Op:
    """One request of a client."""

    number: int
    client: str
    what: str
    """`report`, `command`, `state`, `events`, `stream` or `audit`."""
    asked: dict[str, Any]
    began: float
    ended: float = float("inf")
    outcome: str = UNKNOWN
    answer: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.what} {self.number} of {self.client}"


class Recorder:
    """Writes a history file."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8")
        self._count = 0

    def invoke(self, client: str, what: str, **asked: Any) -> int:
        """Note a request before it is sent; returns its number."""
        self._count += 1
        self._write(number=self._count, did="invoke", client=client, what=what, asked=asked)
        return self._count

    def complete(self, number: int, outcome: str, **answer: Any) -> None:
        self._write(number=number, did=outcome, answer=answer)

    def note(self, what: str) -> None:
        """What the nemesis does: for the reader."""
        self._write(did="nemesis", what=what)

    def _write(self, **line: Any) -> None:
        self._file.write(json.dumps({"at": time.monotonic(), **line}) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def read_history(lines: Iterable[str]) -> list[Op]:
    """The requests of a history, in the order in which they were sent. One without an outcome is unknown."""
    ops: dict[int, Op] = {}
    for text in lines:
        line = json.loads(text)
        number = line.get("number")
        if line["did"] == "invoke":
            ops[number] = Op(number, line["client"], line["what"], line["asked"], line["at"])
        elif number is not None:
            asked = ops[number]
            ended = float("inf") if line["did"] == UNKNOWN else line["at"]
            ops[number] = Op(
                number, asked.client, asked.what, asked.asked, asked.began, ended, line["did"], line["answer"]
            )
    return list(ops.values())


@dataclass(frozen=True)
class Row:
    """An event as it is stored."""

    seq: int
    id: str
    kind: str
    source: str
    payload: str

    @property
    def body(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.payload)
        return found


@dataclass(frozen=True)
class Journal:
    """What is stored behind some event and some line of the audit."""

    rows: list[Row]
    lines: list[tuple[int, int, str]]
    """(number, seq, line) of the table `audit`."""
    head: str = ""
    """The journal's own count of the audit, `NUMBER:HASH`."""
    after: int = 0
    """Sequence number behind which `rows` begin."""
    before: str = "0:" + "0" * 64
    """Head of the audit before `lines`."""

    @property
    def seq(self) -> int:
        return self.rows[-1].seq if self.rows else self.after


EVENTS = "SELECT seq, id, kind, source, payload FROM events WHERE seq > {} ORDER BY seq"
LINES = "SELECT number, seq, line FROM audit WHERE number > {} ORDER BY number"
HEAD = "SELECT value FROM meta WHERE key = 'audit_head'"


def read_journal(place: Path | str, *, after: int = 0, before: str = Journal.before) -> Journal:
    """One consistent look at a journal in SQLite (a path) or PostgreSQL (a URL)."""
    number = int(before.partition(":")[0])
    connection: Any
    if isinstance(place, Path):
        connection = sqlite3.connect(f"file:{place}?mode=ro", uri=True, isolation_level=None, timeout=10.0)
        connection.execute("BEGIN")
        mark = "?"
    else:
        connection = psycopg.connect(place)
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        mark = "%s"
    try:
        rows = [Row(*row) for row in connection.execute(EVENTS.format(mark), (after,)).fetchall()]
        lines = [tuple(row) for row in connection.execute(LINES.format(mark), (number,)).fetchall()]
        head = connection.execute(HEAD).fetchone()
    finally:
        connection.close()
    return Journal(rows, lines, head[0] if head else "", after, before)

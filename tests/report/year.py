"""The simulated year of `recorded/` (`record_year.py` wrote it), as raw lines, as values, and as a journal to be read."""

from __future__ import annotations

import asyncio
import json
import lzma
from functools import cache
from pathlib import Path
from typing import Any

from msgspec import Struct

from holdfast.adapters.memory.journal import MemoryJournal
from holdfast.model.events import AnyEvent
from holdfast.model.orders import AnyOrder
from holdfast.model.records import IncidentRecord, JobRecord, NodeRecord, Touched
from holdfast.model.wire import decode, decode_event
from holdfast.ports import Entry

HERE = Path(__file__).parent / "recorded"


@cache
def raw_lines() -> tuple[dict[str, Any], ...]:
    """`{"seq", "event", "orders"}` of every event."""
    with lzma.open(HERE / "simulated-year.jsonl.xz", "rt", encoding="utf-8") as file:
        return tuple(json.loads(line) for line in file)


@cache
def raw_records() -> dict[str, Any]:
    """What the engine remembered at the end."""
    with lzma.open(HERE / "simulated-year.records.json.xz", "rt", encoding="utf-8") as file:
        found: dict[str, Any] = json.loads(file.read())
    return found


@cache
def recorded() -> Year:
    """The recording as values, once; nobody changes them."""
    return Year.read()


@cache
def recorded_journal() -> MemoryJournal:
    """The same as a journal: every reader gets values of its own."""
    return journal_of(recorded())


class Year(Struct):
    """A history as values."""

    events: list[AnyEvent]
    jobs: list[JobRecord]
    nodes: list[NodeRecord]
    incidents: list[IncidentRecord]
    started_at: float
    ended_at: float

    @classmethod
    def read(cls) -> Year:
        """The recording."""
        records = raw_records()

        def of(name: str, kind: type[Any]) -> list[Any]:
            return [decode(json.dumps(one), kind) for one in records[name]]

        events = [decode_event(json.dumps(line["event"])) for line in raw_lines()]
        return cls(
            events, of("jobs", JobRecord), of("nodes", NodeRecord), of("incidents", IncidentRecord),
            records["started_at"], records["ended_at"],
        )  # fmt: skip


def journal_of(year: Year, *, after: int = 0, orders: dict[int, list[AnyOrder]] | None = None) -> MemoryJournal:
    """A journal with these records and the events behind `after`, as retention leaves it."""
    journal = MemoryJournal()
    kept = [event for event in year.events if event.seq > after]
    known = orders or {}
    entries = [Entry(event, known.get(event.seq, []), Touched()) for event in kept]

    async def fill() -> None:
        await journal.acquire("test", lease_s=3600.0, now=0.0)
        await journal.append(entries)

    asyncio.run(fill())
    journal._project(Touched(jobs=year.jobs, nodes=year.nodes, incidents=year.incidents))
    return journal

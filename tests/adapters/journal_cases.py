"""What the journal tests are made of: entries with a seq, the stores under test, a run helper."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.adapters.journal import chain, open_journal
from holdfast.adapters.memory import MemoryJournal, MemoryStore
from holdfast.model import events as e
from holdfast.model import orders as o
from holdfast.model import records as r
from holdfast.model.audit import Head
from holdfast.model.cluster import JobKey, JobView, NodeView
from holdfast.ports import Entry, Journal, Touched

KEY = JobKey("c", "7")
STORES = ("memory", "sqlite", "postgres")


class Store:
    """One store of a kind; `open()` gives a further journal over the same data, as a restart or a standby would."""

    def __init__(self, kind: str, folder: Path, request: pytest.FixtureRequest) -> None:
        self.kind = kind
        self._memory = MemoryStore()
        self.url = f"sqlite:///{folder / 'journal.db'}"
        if kind == "postgres":
            self.url = request.getfixturevalue("postgres").schema_url()

    def open(self) -> Journal:
        return MemoryJournal(self._memory) if self.kind == "memory" else open_journal(self.url)


def entry(seq: int, *, at: float = 100.0, event_id: str = "", node: str = "n1", **touched: Any) -> Entry:
    event = e.NodeHeard(id=event_id or f"e{seq}", at=at, received_at=at, seq=seq, node=node)
    orders = touched.pop("orders_out", [])
    return Entry(event, orders, Touched(**touched))


def order(order_id: str, *, incident: str = "i1", node: str = "n1") -> o.QuarantineNode:
    return o.QuarantineNode(id=order_id, cause=1, incident=incident, node=node, why="Xid 74")


def order_record(
    order_id: str, status: str = "pending", *, incident: str = "i1", at: float = 100.0, node: str = "n1"
) -> r.OrderRecord:
    ended = 0.0 if status == "pending" else at
    return r.OrderRecord(
        order(order_id, incident=incident, node=node), o.OrderStatus(status), issued_at=at, ended_at=ended
    )


def job_record(state: r.JobState = r.JobState.WATCHING, key: JobKey = KEY) -> r.JobRecord:
    return r.JobRecord(key=key, view=JobView(key=key, name="gpt"), state=state)


def node_record(name: str = "n1", state: r.NodeState = r.NodeState.HEALTHY) -> r.NodeRecord:
    return r.NodeRecord(name=name, view=NodeView(name=name), state=state)


def run(work: Callable[[], Awaitable[Any]]) -> Any:
    """Run an async test with a deadline."""

    async def bounded() -> Any:
        return await asyncio.wait_for(work(), 30)

    return asyncio.run(bounded())


async def audited_from_two_sides(url: str) -> Head:
    """A controller stores commands while another process notes acts: all of them stand in one whole chain."""
    one, other = open_journal(url), open_journal(url)
    try:
        await one.acquire("one", lease_s=10.0, now=1.0)

        async def commands() -> None:
            for seq in range(1, 31):
                said = e.OperatorCommand(id=f"c{seq}", at=1.0, seq=seq, command=e.Command.DRAIN, who="mei", node="n1")
                await one.append([Entry(said, [], Touched())])

        async def notes() -> None:
            for number in range(30):
                await other.note({"event": "token_created", "id": str(number)})

        await asyncio.gather(commands(), notes())
        return await one.audited(chain.check)
    finally:
        await one.close()
        await other.close()

"""How much the journal takes: events a second in batches, one commit's time, a replay, a request over HTTP.

    python benchmarks/journal.py [--seconds 3] [--dir FOLDER]

Every commit is flushed to the disk of FOLDER (default: a temporary folder of the working directory).
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path

from holdfast.adapters.clock import SystemClock
from holdfast.adapters.journal import open_journal
from holdfast.adapters.memory import MemoryOrchestrator
from holdfast.api import ApiServer
from holdfast.client import AsyncClient
from holdfast.controller import Controller, Settings
from holdfast.model.cluster import JobKey, NodeView
from holdfast.model.events import FindingSeen
from holdfast.model.evidence import Evidence, EvidenceKind, Finding, Place
from holdfast.model.records import NodeRecord
from holdfast.ports import Entry, Touched

KEY = JobKey("bench", "1778")


def finding(number: int) -> FindingSeen:
    """An ordinary finding with one log line."""
    line = "NVRM: Xid (PCI:0000:b9:00): 74, pid=1234, name=python, NVLink: fatal error detected on link 6(0x10000)"
    seen = Finding(
        id=f"f{number}",
        rule="nvidia.xid.74",
        at=time.time(),
        place=Place(node=f"node{number % 100:02d}", gpu=3),
        job=KEY,
        evidence=(Evidence(EvidenceKind.LOG, line),),
    )
    return FindingSeen(id=f"e{number}", at=time.time(), received_at=time.time(), seq=number, finding=seen)


class Nothing:
    """An engine that judges nothing, so that the shell alone is measured."""

    def handle(self, event):  # noqa: ARG002
        return []

    def touched(self):
        return Touched()

    def snapshot(self):
        return b""

    def pending_orders(self):
        return []


async def appends(folder: Path, size: int, seconds: float) -> None:
    """Append batches of a size, each with a changed node record per event."""
    journal = open_journal(f"sqlite:///{folder}/append-{size}.db")
    await journal.acquire("bench", lease_s=60, now=time.time())
    took, seq = [], 0
    began = time.perf_counter()
    while time.perf_counter() - began < seconds:
        names = [f"node{n % 100:02d}" for n in range(seq, seq + size)]
        batch = [
            Entry(finding(seq + n + 1), [], Touched(nodes=[NodeRecord(name, NodeView(name))]))
            for n, name in enumerate(names)
        ]
        at = time.perf_counter()
        await journal.append(batch)
        took.append(time.perf_counter() - at)
        seq += size
    rate = seq / sum(took)
    print(f"append, batches of {size:4}: {rate:9,.0f} events/s   one commit {statistics.median(took) * 1e3:7.2f} ms")
    at = time.perf_counter()
    _, _, events = await journal.load()
    count = sum(1 for _ in events)
    print(f"load for replay           : {count / (time.perf_counter() - at):9,.0f} events/s")
    await journal.close()


async def shell(folder: Path, seconds: float) -> None:
    """Submit to a controller, and ask its API."""
    clock = SystemClock()
    journal = open_journal(f"sqlite:///{folder}/shell.db")
    world = MemoryOrchestrator(clock)
    settings = Settings(watch=False, snapshot_every=10**9)
    controller = Controller(journal, lambda _: Nothing(), world, [], [], clock, holder="bench", settings=settings)
    task = asyncio.create_task(controller.run())
    await controller.ready.wait()
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        await asyncio.gather(*(controller.submit(finding(count + n)) for n in range(2000)))
        count += 2000
    print(f"controller.submit         : {count / (time.perf_counter() - began):9,.0f} events/s")
    alone = []
    for number in range(200):
        at = time.perf_counter()
        await controller.submit(finding(count + number))
        alone.append(time.perf_counter() - at)
    print(f"one event alone, to disk  : {_ms(alone)}")
    async with ApiServer(controller) as server, AsyncClient(server.url) as client:
        health, ingest, wakes = [], [], []
        for number in range(300):
            at = time.perf_counter()
            await client.healthy()
            health.append(time.perf_counter() - at)
            at = time.perf_counter()
            await client.ingest("agent:node01", [finding(10**7 + number)])
            ingest.append(time.perf_counter() - at)
        for number in range(100):
            poll = asyncio.create_task(client.events(after=controller.seq, wait_s=10))
            await asyncio.sleep(0.005)
            await controller.submit(finding(2 * 10**7 + number))
            at = time.perf_counter()
            await poll
            wakes.append(time.perf_counter() - at)
        print(f"GET /healthz              : {_ms(health)}")
        print(f"POST /v1/ingest, 1 event  : {_ms(ingest)}")
        print(f"long poll after the commit: {_ms(wakes)}")
    controller.stop()
    await task
    await journal.close()


def _ms(times: list[float]) -> str:
    ordered = sorted(times)
    return f"median {ordered[len(ordered) // 2] * 1e3:6.2f} ms   p95 {ordered[int(len(ordered) * 0.95)] * 1e3:6.2f} ms"


def main() -> None:
    """Print all figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--dir", type=Path, default=Path())
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.dir) as name:
        for size in (1, 16, 128, 512):
            asyncio.run(appends(Path(name), size, args.seconds))
        asyncio.run(shell(Path(name), args.seconds))


if __name__ == "__main__":
    main()

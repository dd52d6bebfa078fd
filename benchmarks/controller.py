"""One controller under 10,000 agents: beats, findings in batches, a burst, and 750 nodes to be fenced, over real HTTP.

    python benchmarks/controller.py [--agents 10000] [--seconds 30] [--connections 2000] [--json]

The controller is the real one (engine, SQLite journal on disk with fsync, API with tokens) in a process of its own, over
a scheduler in memory that knows all nodes. Agents are not processes here: this process sends their requests, each as
from its own agent and node, over so many kept connections. Every agent beats once per 10 s with one sample; meanwhile
2,033 findings a second come in batches of 100, of a kind that is evidence and no reason to act. Then 20,000 findings come
at once in batches of 1,000; then 750 nodes report an Xid 79 each. The share of a core is the controller process's alone.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from holdfast.model import events as e
from holdfast.model.cluster import NodeView
from holdfast.model.evidence import Domain, Evidence, EvidenceKind, Finding, Place, Remedy, Role, Severity
from holdfast.model.orders import OrderStatus, QuarantineNode
from holdfast.model.wire import Batch, Beat, SamplePoint, encode

BEAT_S = 10.0
FINDINGS_PER_S = 2033
BATCH = 100
BURST = 20_000
FENCED = 750


def node(number: int) -> str:
    return f"n{number:05}"


# --- the controller's process ---


async def serve(folder: Path, agents: int, tls=None) -> None:
    from holdfast.adapters.clock import SystemClock
    from holdfast.adapters.journal import open_journal
    from holdfast.adapters.memory import MemoryNotifier, MemoryOrchestrator
    from holdfast.api import ApiServer, TokenBook
    from holdfast.api.auth import ensure_tokens
    from holdfast.controller import Controller
    from holdfast.decide.engine import Engine
    from holdfast.model.policy import Brake, Policy, PolicySet

    clock = SystemClock()
    nodes = [
        NodeView(name=node(n), group=f"p{n % 4}", alive=True, boot_id=f"b{n}", instance_id=f"m{n}", gpus=8,
                 topology=f"row{n // 512}/switch{n // 16}")
        for n in range(agents)
    ]  # fmt: skip
    policies = PolicySet(site=Policy(brake=Brake(max_nodes=agents, max_percent=100.0)))
    world = MemoryOrchestrator(clock, cluster="big", nodes=nodes)

    def engine(state: bytes | None) -> Engine:
        return Engine(policies) if state is None else Engine.restore(state, policies, presets={})

    journal = open_journal(f"sqlite:///{folder / 'journal.db'}")
    controller = Controller(journal, engine, world, [], [MemoryNotifier()], clock, holder="benchmark")
    running = asyncio.create_task(controller.run())
    await controller.ready.wait()
    book = TokenBook.load(ensure_tokens(folder))
    async with ApiServer(controller, tokens=book, tls=tls) as api:
        (folder / "url").write_text(api.url)
        while not (folder / "end").exists():
            await asyncio.sleep(0.2)
    controller.stop()
    await running
    await journal.close()


# --- the agents ---


class Line(asyncio.Protocol):
    """One kept connection: a request at a time, as an agent has it."""

    def __init__(self) -> None:
        self.data = b""
        self.answer: asyncio.Future[tuple[int, bytes]] | None = None
        self.busy = asyncio.Lock()

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.data += data
        head, mark, body = self.data.partition(b"\r\n\r\n")
        if not mark:
            return
        low = head.lower()
        length = int(low.split(b"content-length:")[1].split(b"\r\n")[0])
        if len(body) >= length and self.answer is not None:
            self.data = b""
            self.answer.set_result((int(head[9:12]), body))
            self.answer = None

    def connection_lost(self, _: Exception | None) -> None:
        if self.answer is not None:
            self.answer.set_exception(ConnectionError("the controller closed the connection"))

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        async with self.busy:
            if self.transport.is_closing():
                raise ConnectionError("closed as idle")
            self.answer = asyncio.get_running_loop().create_future()
            self.transport.write(request)
            return await self.answer


class Load:
    """All agents' requests."""

    def __init__(self, url: str, token: str) -> None:
        self.place = urlsplit(url)
        self.head = f"Host: {self.place.netloc}\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n"
        self.lines: list[Line] = []
        self.again = 0
        """Connections made anew, because the server had closed them as idle."""
        self.took: dict[str, list[float]] = {"beat": [], "batch": []}
        self.codes: dict[int, int] = {}
        self.number = 0

    async def connect(self, count: int) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(count):
            _, line = await loop.create_connection(Line, self.place.hostname, self.place.port)
            self.lines.append(line)

    def request(self, path: str, body: bytes) -> bytes:
        return f"POST {path} HTTP/1.1\r\n{self.head}Content-Length: {len(body)}\r\n\r\n".encode() + body

    async def post(self, kind: str, line: int, path: str, body: bytes) -> bytes:
        begun = time.perf_counter()
        while True:
            try:
                code, answer = await self.lines[line % len(self.lines)].ask(self.request(path, body))
            except ConnectionError:
                self.again += 1
                loop = asyncio.get_running_loop()
                _, fresh = await loop.create_connection(Line, self.place.hostname, self.place.port)
                self.lines[line % len(self.lines)] = fresh
                continue
            self.codes[code] = self.codes.get(code, 0) + 1
            if code not in {429, 503}:
                break
            await asyncio.sleep(0.2)  # asked to come back
        if code != 200:
            raise RuntimeError(f"{path}: {code} {answer[:300]!r}")
        self.took[kind].append(time.perf_counter() - begun)
        return answer

    async def beat(self, n: int) -> None:
        sample = SamplePoint(series="gpu_temp", subject=f"node:{node(n)}", at=time.time(), value=61.0)
        said = Beat(source=f"agent:{node(n)}", node=node(n), boot_id=f"b{n}", instance_id=f"m{n}", at=time.time(),
                    samples=[sample])  # fmt: skip
        await self.post("beat", n, "/v1/beat", encode(said))

    def finding(self, n: int, *, fatal: bool) -> e.FindingSeen:
        self.number += 1
        code = 79 if fatal else 13
        found = Finding(
            id=f"f{self.number}", rule=f"nvidia.xid.{code}", at=time.time(), domain=Domain.HARDWARE,
            role=Role.ROOT if fatal else Role.CONTEXT, severity=Severity.FATAL if fatal else Severity.WARNING,
            remedy=Remedy.REPLACE if fatal else Remedy.NONE, place=Place(node=node(n), gpu=n % 8),
            summary=f"Xid {code}", fingerprint=f"nvidia.xid.{code}",
            evidence=(Evidence(EvidenceKind.LOG, f"NVRM: Xid (PCI:0000:b9:00): {code}, pid=1, name=python"),),
        )  # fmt: skip
        return e.FindingSeen(id=f"seen:{found.id}", at=found.at, source=f"agent:{node(n)}", finding=found)

    async def batch(self, first: int, count: int, agents: int, *, fatal: bool = False) -> None:
        import msgspec

        events = [msgspec.Raw(encode(self.finding((first + k) % agents, fatal=fatal))) for k in range(count)]
        source = f"agent:{node(first % agents)}"
        await self.post("batch", first, "/v1/ingest", encode(Batch(version=1, source=source, events=events)))


async def paced(rate: float, seconds: float, do) -> int:
    """`do(i)` so often a second, on time whatever the answers take; returns how many."""
    tasks: set[asyncio.Task] = set()
    start = time.perf_counter()
    sent = 0
    while (now := time.perf_counter() - start) < seconds:
        while sent < now * rate:
            task = asyncio.create_task(do(sent))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            sent += 1
        await asyncio.sleep(0.005)
    await asyncio.gather(*list(tasks))
    return sent


def spread(values: list[float]) -> dict[str, float]:
    ordered = sorted(values)
    return {"median_ms": statistics.median(ordered) * 1e3, "p99_ms": ordered[int(len(ordered) * 0.99)] * 1e3,
            "max_ms": ordered[-1] * 1e3}  # fmt: skip


async def measure(folder: Path, pid: int, options: argparse.Namespace) -> dict[str, object]:
    while not (folder / "url").exists():
        await asyncio.sleep(0.05)
    load = Load((folder / "url").read_text(), (folder / "agent-token").read_text().strip())
    process = psutil.Process(pid)
    await load.connect(min(options.connections, options.agents))

    def cpu() -> float:
        used = process.cpu_times()
        return used.user + used.system

    begun, used = time.perf_counter(), cpu()
    await paced(2000.0, options.agents / 2000.0, lambda i: load.beat(i % options.agents))
    first = {"seconds": time.perf_counter() - begun, "cpu_s": cpu() - used}
    load.took = {"beat": [], "batch": []}

    begun, used = time.perf_counter(), cpu()
    beats, batches = await asyncio.gather(
        paced(options.agents / BEAT_S, options.seconds, lambda i: load.beat(i % options.agents)),
        paced(FINDINGS_PER_S / BATCH, options.seconds, lambda i: load.batch(i * BATCH, BATCH, options.agents)),
    )
    wall = time.perf_counter() - begun
    steady = {"seconds": wall, "beats_per_s": beats / wall, "findings_per_s": batches * BATCH / wall,
              "cores": (cpu() - used) / wall, "rss_mib": process.memory_info().rss / 2**20,
              "beat": spread(load.took["beat"]), "batch": spread(load.took["batch"])}  # fmt: skip

    begun, used = time.perf_counter(), cpu()
    await asyncio.gather(*(load.batch(i * 1000, 1000, options.agents) for i in range(BURST // 1000)))
    burst = {"findings": BURST, "seconds": time.perf_counter() - begun, "cpu_s": cpu() - used}

    wanted = min(FENCED, options.agents)
    begun, used = time.perf_counter(), cpu()
    await asyncio.gather(*(load.batch(i * 13, 1, options.agents, fatal=True) for i in range(wanted)))
    answered = time.perf_counter() - begun
    fenced = await until_fenced(folder, wanted)
    fence = {"nodes": fenced, "all_stored_s": answered, "all_fenced_s": time.perf_counter() - begun,
             "cpu_s": cpu() - used}  # fmt: skip
    return {"agents": options.agents, "connections": len(load.lines), "made_anew": load.again, "first_beats": first, "steady": steady,
            "burst": burst, "fence": fence, "codes": load.codes}  # fmt: skip


async def until_fenced(folder: Path, wanted: int) -> int:
    """All quarantine orders are carried out, as the journal says."""
    from holdfast.adapters.journal import open_journal

    journal = open_journal(f"sqlite:///{folder / 'journal.db'}")
    deadline = time.perf_counter() + 120.0
    try:
        while True:
            orders = await journal.orders(limit=100_000)
            done = [o for o in orders if isinstance(o.order, QuarantineNode) and o.status is OrderStatus.DONE]
            if len(done) >= wanted or time.perf_counter() > deadline:
                return len(done)
            await asyncio.sleep(0.25)
    finally:
        await journal.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--connections", type=int, default=2000)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve(options.serve, options.agents))
        return 0
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        words = [sys.executable, __file__, "--serve", place, "--agents", str(options.agents)]
        process = psutil.Popen(words)
        try:
            found = asyncio.run(measure(folder, process.pid, options))
        finally:
            (folder / "end").touch()
            try:
                process.wait(20)
            except psutil.TimeoutExpired:
                process.kill()
    print(json.dumps(found, indent=None if options.json else 2, default=float))
    return 0


if __name__ == "__main__":
    sys.exit(main())

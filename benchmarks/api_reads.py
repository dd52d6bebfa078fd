"""Server time of the API's reads over a large journal: 2,000 nodes, 5,000 jobs, 100,000 findings in SQLite.

Run by hand: `.venv/bin/python benchmarks/api_reads.py`. One client asks each route 60 times, one request at a time, on
a kept connection; a second one ingests 200 findings a second meanwhile. Prints median and p95 in milliseconds.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path

import httpx
import msgspec

from holdfast.adapters.clock import SystemClock
from holdfast.adapters.journal import open_journal
from holdfast.adapters.memory import MemoryNotifier, MemoryOrchestrator
from holdfast.adapters.policy_files import packaged_presets, read_policy
from holdfast.api import ApiServer
from holdfast.controller import Controller, Settings
from holdfast.decide.engine import Engine
from holdfast.model import events as e
from holdfast.model.cluster import JobKey, JobView, NodeView, RecoverySpec, SchedulerState
from holdfast.model.evidence import Domain, Evidence, EvidenceKind, Finding, Place, Role, Severity

NODES, JOBS, FINDINGS, ROUNDS, RATE = 2000, 5000, 100_000, 60, 200

ROUTES = (
    "/v1/jobs?limit=100", "/v1/jobs?limit=100&state=watching&user=u3", "/v1/jobs/17", "/v1/nodes?limit=100",
    "/v1/nodes/n0017", "/v1/incidents?limit=100", "/v1/orders?limit=100", "/v1/findings?node=n0017",
    "/v1/findings?limit=100", "/v1/events?after=1000&limit=100", "/v1/events?node=n0017&limit=100", "/v1/audit",
    "/v1/brakes", "/v1/drills", "/v1/policies", "/healthz", "/metrics",
)  # fmt: skip
WHOLE = ("/v1/jobs", "/v1/nodes", "/v1/state")


def world(clock: SystemClock) -> MemoryOrchestrator:
    nodes = [
        NodeView(name=f"n{n:04}", group=f"p{n % 4}", alive=True, boot_id="b", instance_id=f"m{n}", gpus=8,
                 jobs=(str(n),) if n < JOBS else (), topology=f"row{n // 500}/rack{n // 20}")
        for n in range(NODES)
    ]  # fmt: skip
    jobs = [
        JobView(key=JobKey("big", str(n)), name=f"train-{n}", user=f"u{n % 40}", partition=f"p{n % 4}", want_nodes=1,
                state=SchedulerState.RUNNING if n < NODES else SchedulerState.PENDING, recovery=RecoverySpec(),
                nodes=(f"n{n:04}",) if n < NODES else (), submitted_at=time.time())
        for n in range(JOBS)
    ]  # fmt: skip
    return MemoryOrchestrator(clock, cluster="big", jobs=jobs, nodes=nodes)


def finding(number: int, at: float) -> e.FindingSeen:
    node = f"n{number % NODES:04}"
    fatal = number % 2000 == 17
    seen = Finding(
        id=f"f{number}", rule="nvidia.xid.79" if fatal else "nvidia.xid.13", at=at, domain=Domain.HARDWARE,
        role=Role.ROOT if fatal else Role.CONTEXT, severity=Severity.FATAL if fatal else Severity.WARNING,
        place=Place(node=node, gpu=number % 8), fingerprint=f"x{number % 50}", summary="seen",
        evidence=(Evidence(EvidenceKind.LOG, "NVRM: Xid (PCI:0000:1b:00): 13, pid=4711 " + "x" * 120),),
    )  # fmt: skip
    return e.FindingSeen(id=f"e{number}", at=at, source=f"agent:{node}", finding=seen)


async def fill(controller: Controller) -> None:
    while len(controller.shell().nodes) < NODES or len(controller.shell().jobs) < JOBS:
        await asyncio.sleep(0.2)
    for start in range(0, FINDINGS, 2000):
        now = time.time()
        await asyncio.gather(*(controller.submit(finding(n, now)) for n in range(start, start + 2000)))


async def noise(controller: Controller) -> None:
    number = FINDINGS
    while True:
        for _ in range(RATE // 10):
            number += 1
            _ = controller.submit(finding(number * 2000, time.time()))
        await asyncio.sleep(0.1)


async def client(url: str) -> dict[str, dict[str, float]]:
    out: dict[str, dict[str, float]] = {}
    async with httpx.AsyncClient(base_url=url, timeout=120) as http:
        for path in (*ROUTES, *WHOLE):
            took = []
            for _ in range(ROUNDS if path in ROUTES else 5):
                began = time.perf_counter()
                answer = await http.get(path)
                took.append((time.perf_counter() - began) * 1000)
                answer.raise_for_status()
            took.sort()
            out[path] = {
                "median_ms": round(took[len(took) // 2], 1),
                "p95_ms": round(took[min(len(took) - 1, int(len(took) * 0.95))], 1),
                "kB": round(len(answer.content) / 1000, 1),
            }
    return out


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        journal = open_journal(f"sqlite:///{Path(folder)}/journal.db")
        clock, presets = SystemClock(), packaged_presets()
        policies, _ = read_policy(None, presets)

        def engine(state: bytes | None) -> Engine:
            return Engine(policies, presets=presets) if state is None else Engine.restore(state, policies)

        controller = Controller(
            journal, engine, world(clock), [], [MemoryNotifier()], clock, holder="bench", settings=Settings(watch_s=5.0)
        )
        running = asyncio.create_task(controller.run())
        await controller.ready.wait()
        began = time.perf_counter()
        await fill(controller)
        print(f"filled in {time.perf_counter() - began:.0f} s, seq {controller.seq}", file=sys.stderr)
        async with ApiServer(controller) as server:
            busy = asyncio.create_task(noise(controller))
            # The client is a process of its own: its time must not be the server's.
            process = await asyncio.create_subprocess_exec(
                sys.executable, __file__, server.url, stdout=asyncio.subprocess.PIPE
            )
            said, _ = await process.communicate()
            busy.cancel()
        figures = msgspec.json.decode(said)
        for path, row in figures.items():
            print(f"{path:52} median {row['median_ms']:7.1f} ms   p95 {row['p95_ms']:7.1f} ms   {row['kB']:8.1f} kB")
        worst = max(figures[path]["p95_ms"] for path in ROUTES)
        print(f"worst p95 of pages: {worst:.1f} ms")
        controller.stop()
        await running
        await journal.close()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(asyncio.run(client(sys.argv[1]))))
    else:
        asyncio.run(main())

"""A controller over a large journal, for benchmarks: 2,000 nodes, 5,000 jobs, 100,000 findings in SQLite.

Used by `api_reads.py` and `cockpit.py`; no benchmark of its own.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from holdfast.adapters.clock import SystemClock
from holdfast.adapters.journal import open_journal
from holdfast.adapters.memory import MemoryNotifier, MemoryOrchestrator
from holdfast.adapters.policy_files import packaged_presets, read_policy
from holdfast.controller import Controller, Settings
from holdfast.decide.engine import Engine
from holdfast.model import events as e
from holdfast.model.cluster import JobKey, JobView, NodeView, RecoverySpec, SchedulerState
from holdfast.model.evidence import Domain, Evidence, EvidenceKind, Finding, Place, Role, Severity

NODES, JOBS, FINDINGS, RATE = 2000, 5000, 100_000, 200
"""`RATE`: findings a second that come in while something is measured."""


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


async def fill(controller: Controller, findings: int = FINDINGS) -> None:
    while len(controller.shell().nodes) < NODES or len(controller.shell().jobs) < JOBS:
        await asyncio.sleep(0.2)
    for start in range(0, findings, 2000):
        now = time.time()
        await asyncio.gather(*(controller.submit(finding(n, now)) for n in range(start, start + 2000)))


@asynccontextmanager
async def filled_controller(
    findings: int = FINDINGS,
) -> AsyncIterator[tuple[Controller, Path, Mapping[str, str]]]:
    """A running controller that has all of it, a folder for whatever else, and the presets. Ends it in order."""
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
        await fill(controller, findings)
        print(f"filled in {time.perf_counter() - began:.0f} s, event {controller.seq}", file=sys.stderr, flush=True)
        try:
            yield controller, Path(folder), presets
        finally:
            controller.stop()
            await running
            await journal.close()

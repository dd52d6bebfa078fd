"""The real engine behind the real server: a controller over SQLite and a world in memory, served on a free port."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from pathlib import Path

from tests.controller.cases import KEY, running
from tests.controller.cases import until as until_within

from holdfast.adapters.clock import SystemClock
from holdfast.adapters.journal import open_journal
from holdfast.adapters.memory import MemoryNotifier, MemoryOrchestrator
from holdfast.adapters.policy_files import packaged_presets, read_policy
from holdfast.api import ApiServer, Role, TokenBook
from holdfast.api.auth import book_line
from holdfast.controller import Controller, Settings
from holdfast.decide.engine import Engine
from holdfast.model import events as e
from holdfast.model.cluster import JobKey, JobView, NodeView, RecoverySpec, SchedulerState
from holdfast.model.evidence import Domain, Finding, Place, Severity
from holdfast.model.evidence import Role as FindingRole


async def until(condition, limit_s: float = 300.0) -> None:
    """Wait until something is so."""
    await until_within(condition, limit_s)


def run(work, limit_s: float = 500.0):
    """Run an async test to its end. The limit is for a machine whose cores are all taken several times over."""

    async def bounded():
        async with asyncio.timeout(limit_s):
            return await work()

    return asyncio.run(bounded())


def node_view(name: str, *, jobs: tuple[str, ...] = ()) -> NodeView:
    return NodeView(
        name=name, group="gpu", alive=True, boot_id=f"b-{name}", instance_id=f"m-{name}", jobs=jobs, gpus=8,
        topology=f"row1/rack-of-{name}",
    )  # fmt: skip


def job_view(key: JobKey, nodes: tuple[str, ...], *, user: str = "mei") -> JobView:
    state = SchedulerState.RUNNING if nodes else SchedulerState.PENDING
    return JobView(
        key=key, name="gpt", user=user, partition="gpu", state=state, nodes=nodes, recovery=RecoverySpec(),
        want_nodes=max(1, len(nodes)), submitted_at=time.time() - 60,
    )  # fmt: skip


def bad_gpu(node: str, number: int = 0) -> e.FindingSeen:
    """A fault of hardware that does not heal: an Xid 79."""
    found = Finding(
        id=f"xid-{node}-{number}", rule="nvidia.xid.79", at=time.time(), domain=Domain.HARDWARE,
        role=FindingRole.ROOT, severity=Severity.FATAL, place=Place(node=node, gpu=3),
        summary="GPU has fallen off the bus", fingerprint="xid79",
    )  # fmt: skip
    return e.FindingSeen(id=f"seen-xid-{node}-{number}", at=found.at, source=f"agent:{node}", finding=found)


class EngineHouse:
    """What a test of the API holds in its hands."""

    def __init__(self, controller: Controller, server: ApiServer, world: MemoryOrchestrator) -> None:
        self.controller = controller
        self.server = server
        self.world = world
        self.faults = 0

    async def settled(self) -> None:
        """Wait until no order runs."""
        await until(lambda: not self.controller.health().orders)

    async def fault(self, node: str) -> None:
        """An Xid of this node, and all that comes of it at once."""
        self.faults += 1
        await self.controller.submit(bad_gpu(node, self.faults))
        await self.settled()

    async def five_faults(self) -> None:
        """Incidents on every other node, more jobs, some words of people."""
        for number in range(8, 11):
            self.world.set_job(job_view(JobKey("test", str(number)), (), user="mei"))
        await until(lambda: "10" in self.server.app.state.fleet.jobs)
        for node in list(self.world.nodes)[:5]:
            await self.fault(node)
        for number in range(3):
            await self.controller.submit(
                e.OperatorCommand(
                    id=f"c{number}", at=time.time(), command=e.Command.DRAIN, who="mei", why="x", node=f"n9{number}"
                )
            )
        await self.settled()

    async def run_job(self) -> None:
        """An attempt of job 7 that has come to its first durable checkpoint."""
        now = time.time()
        said = [
            e.LauncherAttached(id="la", at=now, source="launcher:7", job=KEY, restart_count=0, nodes=("n1",)),
            e.AttemptStarted(id="as", at=now, source="launcher:7", job=KEY, attempt=0, epoch=1, nodes=("n1",)),
            e.FirstStepDone(id="fs", at=now, source="launcher:7", job=KEY, attempt=0, step=1),
            e.CheckpointSaved(id="cs", at=now, source="launcher:7", job=KEY, attempt=0, step=10, durable=True),
        ]
        for event in said:
            await self.controller.submit(event)


@asynccontextmanager
async def engine_served(tmp_path: Path, *, nodes: int = 6, owner: str = "", **more):
    """A controller with the real engine and one job 7 on n1, all of whose world has been seen."""
    from tests.api.test_api import TOKENS

    clock = SystemClock()
    views = [node_view(f"n{n}", jobs=("7",) if n == 1 else ()) for n in range(1, nodes + 1)]
    world = MemoryOrchestrator(clock, jobs=[job_view(KEY, ("n1",))], nodes=views)
    journal = open_journal(f"sqlite:///{tmp_path}/engine.db")
    presets = packaged_presets()

    def engine(state: bytes | None) -> Engine:
        policies, _ = read_policy(None, presets)
        return Engine(policies, scope="cluster", presets=presets) if state is None else Engine.restore(state, policies)

    book = tmp_path / "engine-tokens"
    lines = [book_line(TOKENS[role], role, owner if role is Role.OWNER and owner else f"the-{role}") for role in Role]
    book.write_text("".join(lines))
    book.chmod(0o600)
    settings = Settings(watch_s=0.2)
    controller = Controller(
        journal, engine, world, [], more.pop("notifiers", [MemoryNotifier()]), clock, holder="house", settings=settings
    )
    server = ApiServer(controller, tokens=TokenBook.load(book), **more)
    try:
        async with running(controller), server:
            await until(lambda: len(server.app.state.fleet.nodes) == nodes and "7" in server.app.state.fleet.jobs)
            yield EngineHouse(controller, server, world)
    finally:
        await journal.close()

"""A real controller with the real engine over SQLite and a scheduler in memory, with API and cockpit on a free port."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
from tests.controller.cases import running, until

from holdfast.adapters.clock import SystemClock
from holdfast.adapters.journal import open_journal
from holdfast.adapters.memory import MemoryNotifier, MemoryOrchestrator
from holdfast.adapters.policy_files import packaged_presets
from holdfast.api import ApiServer, Role, TokenBook
from holdfast.api.auth import book_line, new_token
from holdfast.cockpit import Cockpit, router
from holdfast.controller import Controller, Settings
from holdfast.decide.engine import Engine
from holdfast.drill.calendar import Calendar
from holdfast.model import events as e
from holdfast.model.cluster import JobKey, JobView, NodeView, RecoverySpec, SchedulerState
from holdfast.model.evidence import Domain, Evidence, EvidenceKind, Finding, Place, Remedy, Severity
from holdfast.model.evidence import Role as FindingRole
from holdfast.model.policy_toml import parse_policy

KEY = JobKey("test", "7")
TOKENS = {role: new_token() for role in Role}
OWNER = "mei"
"""Whose job the job is."""
CSRF = re.compile(r'name="csrf" value="([^"]+)"')


LIMIT_S = 400.0
"""A machine that is busy gets time; what hangs ends all the same."""


def run(work: Callable[[], Awaitable[None]]) -> None:
    """Run a test's coroutine to its end."""

    async def bounded() -> None:
        async with asyncio.timeout(LIMIT_S):
            await work()

    asyncio.run(bounded())


class Served:
    """What a test holds of it."""

    def __init__(self, controller: Controller, cockpit: Cockpit, api: ApiServer, world: MemoryOrchestrator) -> None:
        self.controller, self.cockpit, self.api, self.world = controller, cockpit, api, world
        self.url = api.url

    async def fault(
        self, node: str = "n1", *, text: str = "NVRM: Xid 74", number: int = 0, **more: object
    ) -> e.AnyEvent:
        """A hardware fault is seen on a node; returns when it is on disk."""
        event = fault(node, text=text, number=number, **more)
        await self.controller.submit(event)
        return event

    @asynccontextmanager
    async def browser(self, role: Role | None = Role.OPERATOR) -> AsyncIterator[httpx.AsyncClient]:
        """An HTTP client with cookies, logged in as this role."""
        async with httpx.AsyncClient(base_url=self.url, timeout=200) as http:
            if role is not None:
                answer = await http.post("/login", data={"token": TOKENS[role], "next": "/"})
                assert answer.status_code == 303, answer.text
            yield http


def fault(node: str = "n1", *, text: str = "NVRM: Xid 74", number: int = 0, **more: object) -> e.FindingSeen:
    now = time.time()
    fields: dict[str, object] = {
        "rule": "nvidia.xid.74", "summary": "Xid 74: NVLINK Error", "fingerprint": f"nvidia.xid.74:{number}",
    }  # fmt: skip
    seen = Finding(
        id=f"f-{node}-{number}-{now}", at=now, domain=Domain.HARDWARE, role=FindingRole.ROOT, severity=Severity.FATAL,
        remedy=Remedy.REPLACE, place=Place(node=node, gpu=3),
        evidence=(Evidence(EvidenceKind.LOG, text, "kmsg", 12),), **(fields | more),
    )  # fmt: skip
    return e.FindingSeen(id=seen.id, at=now, source=f"agent:{node}", finding=seen)


def nodes_of(count: int) -> list[NodeView]:
    return [
        NodeView(
            name=f"n{n}", group="gpu", alive=True, boot_id=f"boot-n{n}", instance_id=f"machine-n{n}", gpus=8,
            jobs=("7",) if n <= 2 else (), topology=f"row1/rack{n // 4}",
        )
        for n in range(1, count + 1)
    ]  # fmt: skip


def the_job(**more: object) -> JobView:
    fields: dict[str, object] = {"name": "gpt", "user": OWNER, "partition": "gpu"}
    return JobView(
        key=KEY, state=SchedulerState.RUNNING, nodes=("n1", "n2"), recovery=RecoverySpec(), want_nodes=2,
        started_at=time.time() - 60, **(fields | more),
    )  # fmt: skip


@asynccontextmanager
async def served(
    folder: Path,
    *,
    tokens: bool = True,
    policy: str = "",
    jobs: Iterable[JobView] | None = None,
    nodes: Iterable[NodeView] | None = None,
    journal: str = "",
    watch: bool = True,
    replaces: bool = False,
    calendar: Calendar | None = None,
    book_lines: Iterable[str] = (),
    **settings: object,
) -> AsyncIterator[Served]:
    """`replaces`: a machine is replaced at once, back before a page has been looked at. If not, it takes for ever."""
    clock = SystemClock()
    world = MemoryOrchestrator(
        clock, jobs=[the_job()] if jobs is None else jobs, nodes=nodes_of(6) if nodes is None else nodes
    )
    if not replaces:
        world.gate("replace_node")
    presets = packaged_presets()
    policies = parse_policy(policy, "", presets)

    def engine(state: bytes | None) -> Engine:
        if state is None:
            return Engine(policies, scope="cluster", presets=presets)
        return Engine.restore(state, policies, presets=presets)

    book = folder / "tokens"
    names = {role: OWNER if role is Role.OWNER else f"the-{role}" for role in TOKENS}
    book.write_text(
        "".join(book_line(token, role, names[role]) for role, token in TOKENS.items()) + "".join(book_lines)
    )
    book.chmod(0o600)
    the_tokens = TokenBook.load(book) if tokens else TokenBook()
    store = open_journal(journal or f"sqlite:///{folder}/journal.db")
    try:
        controller = Controller(
            store,
            engine,
            world,
            [],
            [MemoryNotifier()],
            clock,
            holder="test",
            settings=Settings(watch=watch, **settings),
        )
        cockpit = Cockpit(controller, the_tokens, presets, drills=folder / "drills", calendar=calendar or Calendar())
        api = ApiServer(
            controller, tokens=the_tokens, pages=[router(cockpit)], sessions=cockpit.sessions, fleet=cockpit.fleet
        )
        async with running(controller), api, cockpit:
            if watch:
                await until(lambda: len(cockpit.fleet.nodes) >= len(world.nodes))
            if policy:
                await controller.submit(e.PolicyLoaded(id="policy:test", at=time.time(), toml=policy))
            yield Served(controller, cockpit, api, world)
    finally:
        await store.close()


async def csrf_of(http: httpx.AsyncClient, path: str) -> str:
    """The secret of the form on a page."""
    found = CSRF.search((await http.get(path)).text)
    assert found, path
    return found.group(1)

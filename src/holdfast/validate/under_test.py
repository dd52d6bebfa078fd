"""The nodes of one validation, and what its parts share: steps asked of them, remarks, progress.

Used by `examination` and by its parts (`paired`, `collectives`). Time: that of the steps.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from holdfast.ports import Clock
from holdfast.validate.hands import Hands
from holdfast.validate.registry import Options, Suite
from holdfast.validate.results import Item, StepResult
from holdfast.validate.results_kept import Results
from holdfast.validate.step import Tell
from holdfast.validate.wire import Hello

Say = Callable[[str], None]


class Asked(Struct, frozen=True, kw_only=True):
    """What a validation is to be."""

    suites: tuple[Suite, ...]
    options: Options = Options()
    baseline: str = ""


class NodesUnderTest:
    """See the module.

    Args:
        hands: who runs steps.
        asked: what is to be done.
        clock: the time.
        results: what an earlier try found.
        progress: told a line at a time how far it is.
    """

    def __init__(
        self, hands: Hands, asked: Asked, *, clock: Clock, results: Results, progress: Say = lambda _line: None
    ) -> None:
        self.hands = hands
        self.asked = asked
        self.clock = clock
        self.results = results
        self.progress = progress
        self.extra: dict[str, list[Item]] = {hello.node: [] for hello in hands.nodes}
        """Items of a node beside those of its own steps."""
        self.notes: list[str] = []
        self.rounds: list[str] = []
        self.unfit: set[str] = set()
        """Nodes that a test found at fault: what needs all nodes would only wait for them."""

    @property
    def alive(self) -> tuple[Hello, ...]:
        """Nodes that are not lost."""
        return tuple(hello for hello in self.hands.nodes if hello.node not in self.hands.lost)

    @property
    def colocated(self) -> bool:
        """Do nodes share a machine? Then they also share its disks, caches and wires."""
        boots = Counter(hello.boot for hello in self.hands.nodes if hello.boot)
        return any(count > 1 for count in boots.values())

    def options(self, hello: Hello, **more: object) -> Options:
        """What a step on this node is told."""
        peers = tuple(one.node for one in self.alive)
        base = replace(self.asked.options, node=hello.node, rank=hello.rank, world=len(peers), peers=peers)
        return replace(base, **more)

    async def step(self, hello: Hello, step: str, *, key: str = "", **more: object) -> StepResult:
        """Run a step on a node, or take its earlier result."""
        name = f"{hello.node} {step}{' ' + key if key else ''}"
        return await self.kept(name, lambda: self.hands.ask(hello.node, step, self.options(hello, **more)))

    async def kept(self, name: str, run: Callable[[], Awaitable[StepResult]]) -> StepResult:
        """The earlier result of this name, or that of `run`."""
        known = self.results.get(name)
        if known is None:
            known = await run()
            self.results.put(name, known)
        return known

    def add(self, node: str, *items: Item) -> None:
        """More items of a node."""
        self.extra[node] += items


class Serving(NamedTuple):
    """A step that listens for others."""

    end: asyncio.Future[StepResult]
    port: int
    """0: it does not listen."""
    why: str
    """Why it does not."""


@contextlib.asynccontextmanager
async def serving(ask: Callable[[Tell], Awaitable[StepResult]], limit_s: float) -> AsyncIterator[Serving]:
    """Have a step run that tells its port, while the others of its test run. `limit_s`: until it must listen."""
    ports: asyncio.Queue[int] = asyncio.Queue()
    end = asyncio.ensure_future(ask(lambda told: ports.put_nowait(int(float(told.get("port", 0))))))
    waiting = asyncio.create_task(ports.get())
    try:
        await asyncio.wait({end, waiting}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        if waiting.done():
            yield Serving(end, waiting.result(), "")
        else:
            yield Serving(end, 0, end.result().error if end.done() else f"it did not listen within {limit_s:g} s")
    finally:
        for task in (end, waiting):
            task.cancel()
        await asyncio.gather(end, waiting, return_exceptions=True)

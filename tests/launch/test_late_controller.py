"""Events that come before the launcher's journal is open: kept in order, handed over at once, never lost in silence."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdfast.errors import LinkError
from holdfast.launch.late_controller import LateController
from holdfast.model.events import NodeHeard


class Real:
    """A controller that takes what it is given and says when it may run."""

    def __init__(self) -> None:
        self.ready = asyncio.Event()
        self.taken: list[str] = []
        self.stopped = asyncio.Event()
        self.journal: Any = object()

    @property
    def seq(self) -> int:
        return len(self.taken)

    def submit(self, event: Any) -> asyncio.Future[int]:
        self.taken.append(event.id)
        stored: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(stored.set_result, len(self.taken))
        return stored

    async def events_after(self, after: int, *, limit: int = 1000, wait_s: float = 0.0) -> list[str]:
        return self.taken[after:]

    async def run(self) -> None:
        await asyncio.sleep(0)
        self.ready.set()
        await self.stopped.wait()

    def stop(self) -> None:
        self.stopped.set()


def heard(number: int) -> NodeHeard:
    return NodeHeard(id=f"e{number}", at=float(number), source="launcher:7", node="n1")


def bounded(work: Callable[[], Awaitable[Any]]) -> Any:
    async def within() -> Any:
        return await asyncio.wait_for(work(), 10)

    return asyncio.run(within())


def test_events_are_handed_over_in_order():
    """What came first is stored first, what comes meanwhile is not overtaken, and every waiter gets its number."""

    async def work() -> None:
        late, real = LateController(), Real()
        early = [late.submit(heard(1)), late.submit(heard(2))]
        asked = asyncio.create_task(late.events_after(0))
        assert (late.seq, late.ready.is_set()) == (0, False)
        with pytest.raises(LinkError):
            _ = late.journal
        running = asyncio.create_task(late.run(real))
        early.append(late.submit(heard(3)))
        assert await asyncio.gather(*early) == [1, 2, 3]
        assert await late.submit(heard(4)) == 4
        assert real.taken == ["e1", "e2", "e3", "e4"]
        assert (await asked)[:3] == ["e1", "e2", "e3"]
        assert (late.seq, late.journal) == (4, real.journal)
        late.stop()
        await running

    bounded(work)


def test_a_journal_that_cannot_be_opened_fails_all_who_wait():
    """Nobody waits for ever, and nothing that comes later is taken in silence."""

    async def work() -> None:
        late = LateController()
        early = late.submit(heard(1))
        asked = asyncio.create_task(late.events_after(0))
        await asyncio.sleep(0)
        late.end()
        for future in (early, asked, late.submit(heard(2))):
            with pytest.raises(LinkError):
                await future

    bounded(work)


def test_a_controller_that_fails_at_once_says_so():
    """The real error comes out of `run`; what waited is refused."""

    class Broken(Real):
        async def run(self) -> None:
            raise LinkError("no")

    async def work() -> None:
        late = LateController()
        early = late.submit(heard(1))
        with pytest.raises(LinkError, match=r"^no"):
            await late.run(Broken())
        with pytest.raises(LinkError, match="has ended"):
            await early

    bounded(work)

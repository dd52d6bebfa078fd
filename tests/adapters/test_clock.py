"""The clocks: the machine's, and a virtual one that jumps."""

from __future__ import annotations

import asyncio
import time

import pytest

from holdfast.adapters import clock as module
from holdfast.adapters.clock import SystemClock, VirtualClock, run_virtual
from holdfast.errors import HoldfastError


def test_the_machines_time_is_the_machines():
    """`now` and `monotonic` are those of the machine, `sleep` and `call_later` wait."""

    async def work() -> None:
        clock = SystemClock()
        assert abs(clock.now() - time.time()) < 1
        assert abs(clock.monotonic() - time.monotonic()) < 1
        rung = asyncio.Event()
        began = clock.monotonic()
        clock.call_later(0.02, rung.set)
        cancel = clock.call_later(0.01, lambda: pytest.fail("was cancelled"))
        cancel()
        await asyncio.wait_for(rung.wait(), 10)
        await clock.sleep(0.01)
        assert clock.monotonic() - began >= 0.029

    asyncio.run(work())


def test_virtual_waits_take_no_time_and_come_in_order():
    """A year passes at once; what is due earlier comes earlier, and time stands still between."""

    async def work() -> list[tuple[str, float]]:
        clock = VirtualClock(start=1000.0)
        seen: list[tuple[str, float]] = []

        async def wait(name: str, seconds: float) -> None:
            await clock.sleep(seconds)
            seen.append((name, clock.now()))

        clock.call_later(5.0, lambda: seen.append(("call", clock.now())))
        await asyncio.gather(wait("year", 365 * 86400.0), wait("b", 2.5), wait("a", 2.0))
        return seen

    began = time.monotonic()
    assert run_virtual(work()) == [("a", 1002.0), ("b", 1002.5), ("call", 1005.0), ("year", 1000.0 + 365 * 86400.0)]
    assert time.monotonic() - began < 5


def test_virtual_time_that_stands_still_is_an_error(monkeypatch: pytest.MonkeyPatch):
    """A deadlock in simulation is said, not waited out for ever."""
    monkeypatch.setattr(module, "STUCK_S", 0.05)

    async def work() -> None:
        await asyncio.Event().wait()

    with pytest.raises(HoldfastError, match="stands still"):
        run_virtual(work())

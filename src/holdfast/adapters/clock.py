"""The clocks: the machine's, and a virtual one in which waiting takes no time.

`cli/` wires `SystemClock`; simulation and tests run the same controller on `run_virtual`, whose loop jumps to the next
thing that is due as soon as nothing is ready. No other module of the shells may ask the machine for the time.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from holdfast.errors import HoldfastError
from holdfast.os.clock import steady_time

T = TypeVar("T")

VIRTUAL_START = 1_700_000_000.0
RESOLUTION_S = 1e-6
STUCK_S = 20.0
"""Real seconds that a virtual loop waits for a thread or a file before it says that nothing can happen any more."""


class SystemClock:
    """The machine's time, by the running asyncio loop."""

    def now(self) -> float:
        """Unix seconds."""
        return time.time()

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)

    def call_later(self, seconds: float, callback: Callable[[], object]) -> Callable[[], None]:
        """Have `callback` called once by the running loop; the returned function cancels it."""
        return asyncio.get_running_loop().call_later(seconds, callback).cancel


class SteadyClock(SystemClock):
    """The machine's time as it goes on from when this process began, whatever its clock is set to. A launcher's."""

    def now(self) -> float:
        """Unix seconds."""
        return steady_time()


class VirtualClock(SystemClock):
    """The time of the running `VirtualLoop`. Works on any loop, whose own time it then shows."""

    def __init__(self, start: float = VIRTUAL_START) -> None:
        self._start = start

    def now(self) -> float:
        """Unix seconds: `start` at the loop's beginning."""
        return self._start + asyncio.get_running_loop().time()

    def monotonic(self) -> float:
        """Seconds since the loop's beginning."""
        return asyncio.get_running_loop().time()


class _JumpingSelector(selectors.DefaultSelector):
    """Instead of waiting until something is due, moves the loop's time there."""

    def __init__(self) -> None:
        super().__init__()
        self.elapsed_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            ready = super().select(STUCK_S)
            if not ready:
                raise HoldfastError(f"virtual time stands still: nothing is due and nothing came for {STUCK_S:g} s")
            return ready
        self.elapsed_s += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An asyncio loop in which waiting takes no time. For code without threads or outside connections only."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)
        # A timer counts as due when it is not later than now plus this. The machine clock's own nanosecond is lost in
        # a float after some weeks, and the loop would spin at the very moment that it waits for.
        self._clock_resolution = RESOLUTION_S

    def time(self) -> float:
        """Virtual seconds since the loop's beginning."""
        return self._jumping.elapsed_s


def run_virtual(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end on a fresh virtual loop. Every wait inside is instant and in the right order."""
    results: list[T] = []

    async def work_without_result() -> None:
        # As it restores the handler of SIGINT, the runner has Python write out the task with its result, however large.
        results.append(await work)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(work_without_result())
    return results[0]

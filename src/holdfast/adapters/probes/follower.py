"""A tool that runs on and prints a line when something happens (`dcgmi policy --reg`); started again when it ends.

Used by the sources. Lines are kept, bounded, until the next look takes them. Time passes only in the tool.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
from collections import deque
from collections.abc import Mapping, Sequence

LINES_MAX = 1000


class Follower:
    """One tool. `take` starts it when it does not run.

    Args:
        argv: the tool.
        env: its environment.
    """

    def __init__(self, argv: Sequence[str], env: Mapping[str, str]) -> None:
        self._argv = tuple(argv)
        self._env = dict(env)
        self._process: asyncio.subprocess.Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._lines: deque[str] = deque(maxlen=LINES_MAX)
        self._heard = asyncio.Event()

    async def until_heard(self, limit_s: float) -> bool:
        """Wait until it has printed its first line, or ended; False when it has not within the limit."""
        try:
            async with asyncio.timeout(limit_s):
                await self._heard.wait()
        except TimeoutError:
            return False
        return True

    async def take(self) -> list[str]:
        """What it printed since the last time. Raises OSError when it cannot be started."""
        if self._process is None or self._process.returncode is not None:
            self._heard.clear()
            self._process = await asyncio.create_subprocess_exec(
                *self._argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=self._env,
                start_new_session=True,
            )
            self._reading = asyncio.create_task(self._read(self._process))
        return self.drain()

    def drain(self) -> list[str]:
        """What it printed since the last time, without starting it again."""
        lines = list(self._lines)
        self._lines.clear()
        return lines

    async def _read(self, process: asyncio.subprocess.Process) -> None:
        if process.stdout is None:
            return
        with contextlib.suppress(ValueError):  # a line beyond all bounds: what comes after it is still read next time
            while line := await process.stdout.readline():
                self._lines.append(line.decode(errors="replace").rstrip("\n"))
                self._heard.set()
        await process.wait()
        self._heard.set()

    async def close(self) -> None:
        """End it."""
        if self._reading is not None:
            self._reading.cancel()
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    await self._process.wait()

"""A tool that runs on and prints a line when something happens (`dcgmi policy --reg`); started again when it ends.

Used by the sources. Lines are kept, bounded, until the next look takes them. Time passes only in the tool.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Mapping, Sequence

from holdfast.os.programs import JOINED, Command, Program

LINES_MAX = 1000


class Follower:
    """One tool. `take` starts it when it does not run.

    Args:
        argv: the tool.
        env: its environment.
    """

    def __init__(self, argv: Sequence[str], env: Mapping[str, str]) -> None:
        self._command = Command(argv=tuple(argv), env=dict(env), stderr=JOINED)
        self._program: Program | None = None
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
        if self._program is None or not self._program.is_running:
            await self.close()
            self._heard.clear()
            self._program = await Program.start(self._command)
            self._reading = asyncio.create_task(self._read(self._program))
        return self.drain()

    def drain(self) -> list[str]:
        """What it printed since the last time, without starting it again."""
        lines = list(self._lines)
        self._lines.clear()
        return lines

    async def _read(self, program: Program) -> None:
        with contextlib.suppress(ValueError):  # a line beyond all bounds: what comes after it is still read next time
            while program.process.stdout is not None and (line := await program.process.stdout.readline()):
                self._lines.append(line.decode(errors="replace").rstrip("\n"))
                self._heard.set()
        await program.process.wait()
        self._heard.set()

    async def close(self) -> None:
        """End it. What it printed stays."""
        if self._reading is not None:
            self._reading.cancel()
        if self._program is not None:
            await self._program.end()

"""Asks the reading process, and kills it when it does not answer in time. Used by the sources.

A process that cannot be killed (it waits inside the kernel) is left behind, and no more than `STUCK_MAX` of them are
ever made: then everything that would be read counts as hung. Time passes while an answer is waited for.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.adapters.probes.check import Reading
from holdfast.os.programs import DROPPED, Command, Program

STUCK_MAX = 3
LINE_MAX = 8 << 20


class Reader:
    """One reading process at a time, started when it is needed.

    Args:
        env: its environment.
    """

    def __init__(self, env: Mapping[str, str]) -> None:
        argv = (sys.executable, "-m", "holdfast.adapters.probes.reader_main")
        self._command = Command(argv=argv, env=dict(env), stderr=DROPPED)
        self._program: Program | None = None
        self._stuck: list[Program] = []
        self._next = 0
        self._lock = asyncio.Lock()

    async def ask(self, what: str, limit_s: float, **args: Any) -> Reading:
        """Have something read. Never raises for what is read: the reading says what went wrong."""
        async with self._lock:
            try:
                async with asyncio.timeout(limit_s):
                    answer = await self._exchange(what, args)
            except TimeoutError:
                self._abandon()
                return Reading(hung=True, failed=f"no answer within {limit_s:g} s")
            except (OSError, EOFError, ValueError, msgspec.DecodeError) as error:
                self._abandon()
                return Reading(failed=f"the reading process failed: {str(error) or 'it ended'}")
            return msgspec.convert(answer, Reading)

    async def _exchange(self, what: str, args: dict[str, Any]) -> dict[str, Any]:
        try:
            return await self._ask_once(what, args)
        except (EOFError, ConnectionError):
            # It had ended after its last answer (NVML must be loaded anew): the next one answers.
            self._abandon()
            return await self._ask_once(what, args)

    async def _ask_once(self, what: str, args: dict[str, Any]) -> dict[str, Any]:
        process = (await self._running()).process
        if process.stdin is None or process.stdout is None:
            raise OSError("it has no pipes")
        self._next += 1
        process.stdin.write(msgspec.json.encode({"id": self._next, "read": what, "args": args}) + b"\n")
        await process.stdin.drain()
        while True:
            line = await process.stdout.readline()
            if not line:
                raise EOFError
            answer: dict[str, Any] = msgspec.json.decode(line)
            if answer.get("id") == self._next:
                return answer

    async def _running(self) -> Program:
        for program in self._stuck:
            if not program.is_running:
                await program.end()
        self._stuck = [program for program in self._stuck if program.is_running]
        if self._program is not None and self._program.is_running:
            return self._program
        if len(self._stuck) >= STUCK_MAX:
            raise OSError(f"{len(self._stuck)} reading processes hang in the kernel and cannot be killed")
        self._program = await Program.start(self._command, asks=True, line_max=LINE_MAX)
        return self._program

    def _abandon(self) -> None:
        """Kill it. It counts as stuck until it is gone."""
        program, self._program = self._program, None
        if program is not None:
            self._stuck.append(program)
            program.kill()

    async def close(self) -> None:
        """End it."""
        program, self._program = self._program, None
        await asyncio.gather(*(one.end() for one in (program, *self._stuck) if one is not None))

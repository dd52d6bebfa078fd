"""Who runs steps for an examination: this machine alone, or a fleet of workers. Called by `examination`.

A fleet's leader listens; workers join within `join_s`, and who does not is reported. Time: an asked step has its own
limit and a grace for the line; a worker that says nothing for SILENT_S, or whose line closes, is lost, and what it was
asked ends with that sentence.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from holdfast.errors import LinkError
from holdfast.os.doorway import Doorway
from holdfast.os.frames import Frames
from holdfast.validate.registry import Options, limit_of
from holdfast.validate.results import StepResult
from holdfast.validate.running import run_step
from holdfast.validate.step import Tell
from holdfast.validate.wire import Answer, Ask, Hello, admit, hear

SILENT_S = 60.0
LINE_GRACE_S = 30.0
"""A worker kills its step at the limit and says so; the leader waits so much longer."""


class Alone:
    """This machine by itself."""

    def __init__(self, hello: Hello, env: Mapping[str, str]) -> None:
        self.nodes: tuple[Hello, ...] = (hello,)
        self.lost: dict[str, str] = {}
        self._env = env

    async def ask(self, node: str, step: str, options: Options, on_told: Tell = lambda _told: None) -> StepResult:
        """Have a step run; never raises for what becomes of it."""
        del node
        return await run_step(step, options, env=self._env, on_told=on_told)


class _Asked(NamedTuple):
    """A step that a worker runs."""

    step: str
    on_told: Tell
    done: asyncio.Future[StepResult]


@dataclass
class _Line:
    """The line to one worker."""

    hello: Hello
    frames: Frames
    asked: dict[int, _Asked] = field(default_factory=dict)


class Fleet:
    """The leader's side.

    Args:
        expected: how many nodes shall join.
        secret: what they prove to know.
        names: the nodes' names by rank, where they are known: who never joins is named.
    """

    def __init__(self, expected: int, secret: str, names: Sequence[str] = ()) -> None:
        self.nodes: tuple[Hello, ...] = ()
        self.lost: dict[str, str] = {}
        self._expected = expected
        self._secret = secret
        self._names = tuple(names)
        self._lines: dict[str, _Line] = {}
        self._numbers = itertools.count(1)
        self._joined = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._doorway = Doorway(expected)

    async def open(self, host: str, port: int = 0) -> int:
        """Listen; returns the port. Raises LinkError when that is not possible."""
        both = not host and socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both or ":" in host else socket.AF_INET
        try:
            # One socket for both families: asyncio would take another free port for each.
            listening = socket.create_server((host, port), family=family, dualstack_ipv6=both, backlog=4096)
            self._server = await asyncio.start_server(self._knock, sock=listening)
        except OSError as error:
            raise LinkError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
        port_taken: int = self._server.sockets[0].getsockname()[1]
        return port_taken

    async def gather(self, join_s: float) -> None:
        """Wait until all have joined, at most `join_s`. Raises LinkError when nobody did."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(join_s):
                await self._joined.wait()
        self.nodes = tuple(sorted((line.hello for line in self._lines.values()), key=lambda one: one.rank))
        if not self.nodes:
            raise LinkError(f"no node joined within {join_s:g} s")
        for name in self._names:
            if name not in self._lines:
                self.lost[name] = f"it did not join within {join_s:g} s"

    async def close(self) -> None:
        """Send the workers home."""
        for line in self._lines.values():
            with contextlib.suppress(OSError):
                await line.frames.send(Ask(leave=True))
                line.frames.close()
        if self._server is not None:
            self._server.close()
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- lines ---

    def _knock(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A task of our own for each line: asyncio complains aloud of one of its own that is cancelled."""
        task = asyncio.create_task(self._greet(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with self._doorway.enter(writer):
                hello, frames = await admit(reader, writer, self._secret)
        except LinkError:
            writer.close()
            return
        if hello.node in self._lines:
            # A second task on one node adds nothing, and would measure the first one.
            await frames.send(Ask(leave=True))
            frames.close()
            return
        line = self._lines[hello.node] = _Line(hello, frames)
        if len(self._lines) >= self._expected:
            self._joined.set()
        try:
            while True:
                async with asyncio.timeout(SILENT_S):
                    answer = await hear(frames, Answer)
                self._take(line, answer)
        except TimeoutError:
            self._lose(hello.node, f"it said nothing for {SILENT_S:g} s")
        except LinkError as error:
            self._lose(hello.node, f"its line ended in the middle of the run ({error})")

    def _take(self, line: _Line, answer: Answer) -> None:
        asked = line.asked.get(answer.number)
        if asked is None:
            return
        if answer.told:
            asked.on_told(answer.told)
        if answer.result is not None and not asked.done.done():
            asked.done.set_result(answer.result)

    def _lose(self, name: str, why: str) -> None:
        line = self._lines[name]
        if name not in self.lost:
            self.lost[name] = why
        for asked in line.asked.values():
            if not asked.done.done():
                asked.done.set_result(StepResult(step=asked.step, error=f"{name} was lost: {why}"))
        line.frames.close()

    # --- steps ---

    async def ask(self, node: str, step: str, options: Options, on_told: Tell = lambda _told: None) -> StepResult:
        """Have a step run; never raises for what becomes of it."""
        line = self._lines.get(node)
        if line is None or node in self.lost:
            return StepResult(step=step, error=f"{node} was lost: {self.lost.get(node, 'it never joined')}")
        number, asked = next(self._numbers), _Asked(step, on_told, asyncio.get_running_loop().create_future())
        line.asked[number] = asked
        limit = limit_of(step, options)
        try:
            async with asyncio.timeout(limit + LINE_GRACE_S):
                await line.frames.send(Ask(number=number, step=step, options=options, limit_s=limit))
                return await asked.done
        except TimeoutError:
            return StepResult(step=step, hung=True, error=f"{node} did not end it within {limit:g} s")
        except OSError as error:
            self._lose(node, f"its line broke ({error})")
            return StepResult(step=step, error=f"{node} was lost: {self.lost[node]}")
        finally:
            del line.asked[number]


Hands = Alone | Fleet
"""Who runs steps: `nodes`, those of them that are `lost` and why, and `ask`."""

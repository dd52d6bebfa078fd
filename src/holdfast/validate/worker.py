"""A node of a fleet run: connects to the leader, runs the steps that it asks for, and ends with it.

Called by the command on every node. When the line to the leader ends, whatever runs is killed: nothing outlives a run.
Time: a beat every BEAT_S; the leader tells a dead worker by its silence or its closed line.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping

from msgspec.structs import replace

from holdfast.errors import LinkError
from holdfast.os.frames import Frames
from holdfast.validate.registry import STEPS
from holdfast.validate.results import StepResult
from holdfast.validate.running import run_step
from holdfast.validate.wire import Answer, Ask, Hello, hear, introduce

BEAT_S = 2.0


class Worker:
    """See the module.

    Args:
        hello: who this is.
        env: environment of the steps.
    """

    def __init__(self, hello: Hello, env: Mapping[str, str]) -> None:
        self.hello = hello
        self.admitted = False
        """The leader has taken it in: when the line ends now, the run is over."""
        self._env = env
        self._steps: set[asyncio.Task[None]] = set()
        """And the beat."""

    async def run(self, host: str, port: int, secret: str) -> None:
        """Serve one leader to its end. Raises LinkError when it breaks off."""
        try:
            reader, writer = await asyncio.open_connection(host, port)
        except OSError as error:
            raise LinkError(f"no leader answers at {host}:{port}: {error.strerror or error}") from error
        try:
            # Others reach it by what it was told, else by the address of its line to the leader.
            address = self.hello.address or writer.get_extra_info("sockname")[0]
            frames = await introduce(reader, writer, secret, replace(self.hello, address=address))
            self.admitted = True
            self._steps.add(asyncio.create_task(self._beat(frames)))
            while not (asked := await hear(frames, Ask)).leave:
                task = asyncio.create_task(self._serve(frames, asked))
                self._steps.add(task)
                task.add_done_callback(self._steps.discard)
        finally:
            for task in self._steps:
                task.cancel()
            await asyncio.gather(*self._steps, return_exceptions=True)
            self._steps.clear()
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _serve(self, frames: Frames, asked: Ask) -> None:
        if asked.step not in STEPS:
            result = StepResult(step=asked.step, error="this version of Holdfast has no such step")
        else:
            result = await run_step(
                asked.step,
                asked.options,
                env=self._env,
                limit_s=asked.limit_s,
                on_told=lambda told: frames.post(Answer(number=asked.number, told=told)),
            )
        await frames.send(Answer(number=asked.number, result=result))

    async def _beat(self, frames: Frames) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            with contextlib.suppress(OSError):
                await frames.send(Answer())

"""Runs a step in a process of its own, within its limit, and leaves nothing of it. Called by command, worker, agent.

Time passes until the step ends, at most its limit and a grace; a process that hangs in the kernel is not waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Mapping

import msgspec

from holdfast.os.programs import Command, Program
from holdfast.validate.registry import Options, limit_of
from holdfast.validate.results import StepResult
from holdfast.validate.step import Tell, Told

LINE_MAX = 8 << 20
TAIL = 4096


async def run_step(
    name: str,
    options: Options,
    *,
    env: Mapping[str, str],
    limit_s: float | None = None,
    on_told: Tell = lambda _told: None,
) -> StepResult:
    """Run one step to its end or its limit.

    Args:
        name: of the step.
        options: what it is told.
        env: its environment.
        limit_s: when it is killed; default: its own limit.
        on_told: called with what it says on the way, such as the port that it listens on.
    """
    limit = limit_of(name, options) if limit_s is None else limit_s
    loop = asyncio.get_running_loop()
    start = loop.time()
    told_options = msgspec.json.encode(options).decode()
    argv = (sys.executable, "-m", "holdfast.validate.step", str(os.getpid()), name, told_options)
    program = await Program.start(Command(argv=argv, env=env), line_max=LINE_MAX)
    process = program.process
    end: Told | None = None
    told: dict[str, float | str] = {}
    tail = bytearray()
    reading = asyncio.ensure_future(_keep_tail(process.stderr, tail))
    hung = False
    try:
        async with asyncio.timeout(limit):
            while process.stdout is not None and (line := await process.stdout.readline()):
                said = msgspec.json.decode(line, type=Told)
                if said.items is None and not said.error:
                    told |= said.told
                    on_told(said.told)
                else:
                    end = said
    except TimeoutError:
        hung = True
    except (msgspec.MsgspecError, ValueError) as error:
        end = Told(error=f"it said what is no result: {error}")
    finally:
        program.kill()  # also after a good end, what the step left behind
        await program.end()
        reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reading
    seconds = round(loop.time() - start, 3)
    if end is not None and end.items is not None:
        return StepResult(step=name, items=end.items, seconds=seconds, told=told)
    why = end.error if end is not None else ""
    if hung:
        why = f"it did not end within {limit:g} s and was killed"
    elif not why:
        last = tail.decode(errors="replace").strip().splitlines()
        why = f"it ended with {process.returncode}" + (f": {last[-1][:300]}" if last else "")
    return StepResult(step=name, seconds=seconds, hung=hung, error=why, told=told)


async def _keep_tail(stream: asyncio.StreamReader | None, tail: bytearray) -> None:
    while stream is not None and (data := await stream.read(65_536)):
        tail += data
        del tail[:-TAIL]

"""Runs a tool within a time limit, in a process group of its own that is killed when the limit is over.

Used by the sources that ask commands. Output is bounded. Time passes until the tool ends, at most `limit_s` and a
grace.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence

from msgspec import Struct

OUTPUT_MAX = 4 << 20
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Slurm's prolog and health check run in an almost empty environment."""
KILL_GRACE_S = 1.0
EXIT_GRACE_S = 5.0
"""A busy machine notices an exit so much later than the end of the output; a tool that lives on is killed."""


class Ran(Struct, frozen=True, kw_only=True):
    """How a tool ended."""

    argv: tuple[str, ...]
    code: int | None = None
    """None: it was killed, or could not be started."""
    out: str = ""
    err: str = ""
    hung: bool = False
    seconds: float = 0.0


def where(name: str, env: Mapping[str, str]) -> str:
    """Path of a tool, empty when it is not here."""
    return shutil.which(name, path=env.get("PATH") or DEFAULT_PATH) or ""


async def run(argv: Sequence[str], limit_s: float, env: Mapping[str, str], kept_max: int | None = None) -> Ran:
    """Run `argv`; never raises for what the tool does.

    Args:
        argv: path of the tool, and its arguments.
        limit_s: after so many seconds its whole process group is killed.
        env: its environment.
        kept_max: so many bytes are kept of each of its two outputs; default: OUTPUT_MAX.
    """
    loop = asyncio.get_running_loop()
    kept = OUTPUT_MAX if kept_max is None else kept_max
    start = loop.time()
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(env),
            start_new_session=True,
        )
    except OSError as error:
        return Ran(argv=tuple(argv), err=error.strerror or str(error))
    reading = asyncio.ensure_future(asyncio.gather(_bounded(process.stdout, kept), _bounded(process.stderr, kept)))
    hung = False
    try:
        async with asyncio.timeout(limit_s):
            out, err = await asyncio.shield(reading)
        async with asyncio.timeout(EXIT_GRACE_S):
            await process.wait()
    except TimeoutError:
        hung = True
        out, err = b"", b""
    finally:
        if hung or process.returncode is None:
            await _end(process)
        reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reading
    return Ran(
        argv=tuple(argv),
        code=None if hung else process.returncode,
        out=out.decode(errors="replace"),
        err=err.decode(errors="replace"),
        hung=hung,
        seconds=loop.time() - start,
    )


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill the whole group; one that hangs in the kernel is not waited for."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(KILL_GRACE_S):
            await process.wait()


async def _bounded(stream: asyncio.StreamReader | None, kept_max: int) -> bytes:
    """All that comes, of which the first bytes are kept."""
    kept = bytearray()
    while stream is not None and (data := await stream.read(65_536)):
        kept += data[: max(0, kept_max - len(kept))]
    return bytes(kept)

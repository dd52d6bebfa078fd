"""Runs programs within limits. Each gets a process group of its own, and the group ends as a whole.

`run` serves callers in asyncio, `run_blocking` all others; `start` and `Background` give a program that runs on beside
its caller. The group is killed at the limit, when the caller stops waiting (a cancellation, Ctrl-C), and when the
calling process ends, by SIGKILL too: then `_Guard` kills it. A program that ends by itself may leave others running.
What is printed is kept up to a bound; the rest is read and dropped. Time passes until the program ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import IO, Any, Self

from msgspec import Struct

KEPT_MAX = 4 << 20
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Slurm's prolog and health check run in an almost empty environment."""
KILL_GRACE_S = 1.0
"""A killed program is waited for so long; one that hangs in the kernel is left behind."""
APART, JOINED, DROPPED = subprocess.PIPE, subprocess.STDOUT, subprocess.DEVNULL
"""What becomes of a program's stderr."""
_CHUNK = 65_536
_GUARD = 'read -r _; kill -9 "-$1"'


class Command(Struct, frozen=True, kw_only=True):
    """A program to run, and what it gets."""

    argv: tuple[str, ...]
    env: Mapping[str, str] | None = None
    """Its whole environment; None: ours."""
    cwd: Path | str | None = None
    owner: Mapping[str, Any] | None = None
    """`user`, `group` and `extra_groups` that it runs as, where that is not us."""
    stderr: int = APART
    """`APART`, `JOINED` with stdout, or `DROPPED`."""
    log: Path | None = None
    """Both outputs are appended to this file instead of being kept."""
    given: bytes | None = None
    """Its standard input; None: it has none."""
    kept_max: int = KEPT_MAX
    """Bytes that are kept of each of its two outputs."""


class Ran(Struct, frozen=True, kw_only=True):
    """How a program ended and what it printed."""

    code: int | None = None
    """Exit code, minus the signal that ended it; None: it was killed at its limit, or could not be started."""
    stdout: bytes = b""
    stderr: bytes = b""
    """Where it could not be started: why."""
    hung: bool = False
    """It was killed at its limit."""
    seconds: float = 0.0

    @property
    def is_started(self) -> bool:
        """False where there was nothing to run."""
        return self.hung or self.code is not None

    @property
    def out(self) -> str:
        """What it printed, as text; bytes that are no UTF-8 are replaced."""
        return self.stdout.decode("utf-8", "replace")

    @property
    def err(self) -> str:
        """What it printed on stderr, as text."""
        return self.stderr.decode("utf-8", "replace")

    @property
    def said(self) -> str:
        """The last line that it printed, for people."""
        lines = [line.strip() for line in f"{self.out}\n{self.err}".splitlines() if line.strip()]
        return lines[-1][:300] if lines else "it said nothing"


def where(name: str, path: str = "") -> str:
    """Path of a program among these folders; empty when it is not there."""
    return shutil.which(name, path=path or DEFAULT_PATH) or ""


async def run(command: Command, limit_s: float) -> Ran:
    """Run a program to its end or its limit; never raises for what it does."""
    begun = time.monotonic()
    outputs = bytearray(), bytearray()
    hung = False
    try:
        program = await Program.start(command)
    except OSError as error:
        return Ran(stderr=(error.strerror or str(error)).encode())
    try:
        async with asyncio.timeout(limit_s):
            await program.read(*outputs, kept_max=command.kept_max)
            await program.process.wait()
    except TimeoutError:
        hung = True
    finally:
        await program.end()
    return _ran(None if hung else program.process.returncode, outputs, begun)


def run_blocking(command: Command, limit_s: float) -> Ran:
    """`run` for callers outside asyncio; no other work of this thread goes on meanwhile."""
    try:
        program = Background(command)
    except OSError as error:
        return Ran(stderr=(error.strerror or str(error)).encode())
    return program.finish(limit_s)


class Program:
    """A program that runs on, for callers in asyncio. Made by `start`; ended by `end`, or by `started`'s block.

    `process` has its pipes and its exit code.
    """

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self._guard = _Guard(process.pid)

    @classmethod
    async def start(cls, command: Command, *, asks: bool = False, line_max: int = _CHUNK) -> Self:
        """Start it.

        Args:
            command: the program.
            asks: its standard input is a pipe.
            line_max: the longest line that is read of it, in bytes.

        Raises:
            OSError: it cannot be started.
        """
        process = await asyncio.create_subprocess_exec(
            *command.argv,
            stdin=subprocess.PIPE if asks else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            limit=line_max,
            **_settings(command),
        )
        return cls(process)

    @property
    def is_running(self) -> bool:
        """Its end has not been seen."""
        return self.process.returncode is None

    async def read(self, out: bytearray, err: bytearray, *, kept_max: int) -> None:
        """Read both outputs to their ends; their first bytes are kept."""
        streams = (self.process.stdout, out), (self.process.stderr, err)
        await asyncio.gather(*(_keep(stream, kept, kept_max) for stream, kept in streams if stream is not None))

    def interrupt(self) -> None:
        """Ask the whole group to end, as Ctrl-C does."""
        _signal_group(self.process.pid, signal.SIGINT)

    def kill(self) -> None:
        """Kill the whole group."""
        _signal_group(self.process.pid, signal.SIGKILL)

    async def end(self) -> None:
        """Kill the group of a program that still runs, and wait for it, but not for one that hangs in the kernel."""
        try:
            if self.is_running:
                self.kill()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(KILL_GRACE_S):
                        await self.process.wait()
        finally:
            self._guard.release()


@contextlib.asynccontextmanager
async def started(command: Command, *, line_max: int = _CHUNK) -> AsyncIterator[Program]:
    """A program that runs as long as the block does. Raises OSError: it cannot be started."""
    program = await Program.start(command, line_max=line_max)
    try:
        yield program
    finally:
        await program.end()


class Background:
    """A program that runs on, for callers outside asyncio. Raises OSError: it cannot be started."""

    def __init__(self, command: Command) -> None:
        self._begun = time.monotonic()
        self._outputs = bytearray(), bytearray()
        stdin = subprocess.DEVNULL if command.given is None else subprocess.PIPE
        with contextlib.ExitStack() as stack:
            settings = _settings(command)
            log = stack.enter_context(command.log.open("ab")) if command.log is not None else None
            settings |= {} if log is None else {"stderr": log}
            self._process = subprocess.Popen(command.argv, stdin=stdin, stdout=log or subprocess.PIPE, **settings)
        self._guard = _Guard(self._process.pid)
        streams = (self._process.stdout, self._outputs[0]), (self._process.stderr, self._outputs[1])
        self._threads = [
            threading.Thread(target=_keep_blocking, args=(stream, kept, command.kept_max), daemon=True)
            for stream, kept in streams
            if stream is not None
        ]
        if self._process.stdin is not None and command.given is not None:
            feed = threading.Thread(target=_feed, args=(self._process.stdin, command.given), daemon=True)
            self._threads.append(feed)
        for thread in self._threads:
            thread.start()

    @property
    def pid(self) -> int:
        """Its process and its group."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """It has not ended."""
        return self._process.poll() is None

    def finish(self, limit_s: float) -> Ran:
        """Wait for its end. Kill its group at the limit, which counts from now, and when the wait is broken off."""
        deadline = time.monotonic() + limit_s
        hung = False
        try:
            for thread in self._threads:
                thread.join(max(0.0, deadline - time.monotonic()))
            hung = any(thread.is_alive() for thread in self._threads)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(max(0.0, deadline - time.monotonic()))
        finally:
            hung = hung or self.is_running
            if hung:
                self.kill()
            self._guard.release()
        return _ran(None if hung else self._process.returncode, self._outputs, self._begun)

    def kill(self) -> None:
        """Kill the whole group, and collect the program unless it hangs in the kernel."""
        _signal_group(self.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(KILL_GRACE_S)
        for thread in self._threads:
            thread.join(KILL_GRACE_S)


class _Guard:
    """Kills a group when this process ends before `release`: a shell that waits for the end of a pipe of ours.

    A system without a shell has no guard; the other ways of ending a group hold there too.
    """

    def __init__(self, group: int) -> None:
        self._shell: subprocess.Popen[bytes] | None = None
        with contextlib.suppress(OSError):
            self._shell = subprocess.Popen(
                ("/bin/sh", "-c", _GUARD, "guard", str(group)),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={},
                cwd="/",
                start_new_session=True,
            )

    def release(self) -> None:
        """The group needs no guard any more. Calling it twice is harmless."""
        if self._shell is None:
            return
        self._shell.kill()
        self._shell.wait()
        if self._shell.stdin is not None:
            self._shell.stdin.close()


def _settings(command: Command) -> dict[str, Any]:
    env = None if command.env is None else dict(command.env)
    settings = {"stderr": command.stderr, "env": env, "cwd": command.cwd, "start_new_session": True}
    return settings | dict(command.owner or {})


def _ran(code: int | None, outputs: tuple[bytearray, bytearray], begun: float) -> Ran:
    out, err = map(bytes, outputs)
    return Ran(code=code, stdout=out, stderr=err, hung=code is None, seconds=time.monotonic() - begun)


def _signal_group(pid: int, signum: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signum)


async def _keep(stream: asyncio.StreamReader, kept: bytearray, kept_max: int) -> None:
    while data := await stream.read(_CHUNK):
        kept += data[: max(0, kept_max - len(kept))]


def _keep_blocking(stream: IO[bytes], kept: bytearray, kept_max: int) -> None:
    with stream:
        while data := os.read(stream.fileno(), _CHUNK):
            kept += data[: max(0, kept_max - len(kept))]


def _feed(stream: IO[bytes], given: bytes) -> None:
    with contextlib.suppress(BrokenPipeError), stream:
        stream.write(given)

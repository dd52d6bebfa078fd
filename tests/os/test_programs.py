"""A program within its limit: what is kept of it, and that its whole group ends, however its caller ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from holdfast.os.programs import (
    DEFAULT_PATH,
    DROPPED,
    JOINED,
    Background,
    Command,
    Program,
    Ran,
    run,
    run_blocking,
    started,
    where,
)

ENV = {"PATH": os.environ.get("PATH", DEFAULT_PATH)}
FAMILY = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
folder, depth = sys.argv[1], int(sys.argv[2])
if depth:
    subprocess.Popen([sys.executable, "-c", open(folder + "/family.py").read(), folder, str(depth - 1)])
open(f"{folder}/{depth}.pid", "w").write(f"{os.getpid()}\\n")
time.sleep(600)
"""
"""A program with a child and a grandchild, all of which ignore SIGTERM."""
CALLERS = {
    "asyncio": "asyncio.run(programs.run(command, 600))",
    "blocking": "programs.run_blocking(command, 600)",
    "background": "program = programs.Background(command); time.sleep(600)",
    "started": (
        "async def body():\n    async with programs.started(command): await asyncio.sleep(600)\nasyncio.run(body())"
    ),
}


def family(folder: Path) -> Command:
    (folder / "family.py").write_text(FAMILY)
    return Command(argv=(sys.executable, str(folder / "family.py"), str(folder), "2"), env=ENV)


def members(folder: Path) -> list[psutil.Process]:
    """All three, once each has written its number."""
    deadline = time.monotonic() + 60
    while True:
        with contextlib.suppress(OSError, ValueError):
            return [psutil.Process(int((folder / f"{depth}.pid").read_text())) for depth in (2, 1, 0)]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def all_gone(processes: list[psutil.Process], limit_s: float = 20.0) -> bool:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if not any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in processes):
            return True
        time.sleep(0.02)
    return False


async def at_limit(command: Command) -> Ran:
    return await run(command, 3.0)


async def at_limit_blocking(command: Command) -> Ran:
    return await asyncio.to_thread(run_blocking, command, 3.0)


async def at_limit_in_background(command: Command) -> Ran:
    return await asyncio.to_thread(Background(command).finish, 3.0)


@pytest.mark.parametrize("ended", [at_limit, at_limit_blocking, at_limit_in_background])
def test_the_limit_ends_the_whole_group(tmp_path: Path, ended: Callable[[Command], Ran]) -> None:
    """Child and grandchild end with the program, although SIGTERM does not move them."""

    async def body() -> tuple[Ran, list[psutil.Process]]:
        ran = asyncio.create_task(ended(family(tmp_path)))
        found = await asyncio.to_thread(members, tmp_path)
        return await ran, found

    ran, found = asyncio.run(body())
    assert (ran.hung, ran.code, all_gone(found)) == (True, None, True)


@pytest.mark.parametrize("streams", [False, True])
def test_a_caller_that_stops_waiting_ends_the_whole_group(tmp_path: Path, streams: bool) -> None:
    """A cancelled caller leaves nothing, and its cancellation is not swallowed."""

    async def follow() -> None:
        async with started(family(tmp_path)):
            await asyncio.sleep(600)

    async def body() -> list[psutil.Process]:
        task = asyncio.create_task(follow() if streams else run(family(tmp_path), 600))
        found = await asyncio.to_thread(members, tmp_path)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return found

    assert all_gone(asyncio.run(body()))


@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGINT])
@pytest.mark.parametrize("caller", list(CALLERS))
def test_the_end_of_the_calling_process_ends_the_whole_group(tmp_path: Path, caller: str, sig: int) -> None:
    """Killed or interrupted, a caller leaves neither the program nor its child and grandchild."""
    argv = family(tmp_path).argv
    lines = [
        "import asyncio, signal, time",
        "signal.signal(signal.SIGINT, signal.default_int_handler)",  # ignored where a shell runs the tests behind `&`
        "from holdfast.os import programs",
        f"command = programs.Command(argv={argv!r})",
        CALLERS[caller],
    ]
    process = subprocess.Popen([sys.executable, "-c", "\n".join(lines)], stderr=subprocess.DEVNULL)
    found = members(tmp_path)
    deadline = time.monotonic() + 60
    while len(psutil.Process(process.pid).children()) < 2:  # the guard is started after the program
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.send_signal(sig)
    process.wait(60)
    assert all_gone(found)


def test_what_a_program_left_behind_after_its_end_runs_on(tmp_path: Path) -> None:
    """A program that ends by itself may have started another that stays."""
    script = f"sleep 600 >/dev/null 2>&1 & echo $! > {tmp_path}/pid"
    assert asyncio.run(run(Command(argv=("sh", "-c", script), env=ENV), 60)).code == 0
    left = psutil.Process(int((tmp_path / "pid").read_text()))
    time.sleep(0.2)
    assert left.is_running()
    left.kill()


def both(command: Command, limit_s: float = 60.0) -> Ran:
    """By both faces, which agree."""
    one, other = asyncio.run(run(command, limit_s)), run_blocking(command, limit_s)
    assert (one.code, one.stdout, one.stderr, one.hung) == (other.code, other.stdout, other.stderr, other.hung)
    return one


def test_outputs_and_code_are_told_apart(tmp_path: Path) -> None:
    """Both streams, the exit code, the folder, and no standard input that a program could wait for."""
    script = Command(argv=("sh", "-c", "cat; pwd; echo no >&2; exit 3"), env=ENV, cwd=tmp_path)
    ran = both(script)
    assert (ran.code, ran.out, ran.err, ran.said) == (3, f"{tmp_path.resolve()}\n", "no\n", "no")
    assert both(Command(argv=("sh", "-c", "echo a; echo b >&2"), env=ENV, stderr=JOINED)).out == "a\nb\n"
    assert both(Command(argv=("sh", "-c", "echo a; echo b >&2"), env=ENV, stderr=DROPPED)).stderr == b""
    assert both(Command(argv=("sh", "-c", "kill -9 $$"), env=ENV)).code == -9


def test_output_is_bounded() -> None:
    """A program that prints without end keeps no more than the bound, and is not held up by it."""
    ran = both(Command(argv=("sh", "-c", "head -c 5000000 /dev/zero; echo another >&2"), env=ENV, kept_max=6))
    assert (ran.code, ran.stdout, ran.err) == (0, b"\0" * 6, "anothe")


def test_a_program_that_is_not_there_is_told() -> None:
    """Neither a code nor a hang: it was not started, and the reason stands where its errors would."""
    ran = both(Command(argv=("/nowhere/tool",), env=ENV))
    assert (ran.is_started, ran.err, ran.said) == (False, "No such file or directory", "No such file or directory")
    assert (where("sh"), where("no-such-tool-here", ENV["PATH"])) == (where("sh", ENV["PATH"]), "")


def test_input_and_a_log(tmp_path: Path) -> None:
    """A program may be given its input, of any length, and may write into a log that is kept."""
    text = b"line\n" * 100_000
    assert run_blocking(Command(argv=("cat",), env=ENV, given=text), 60).stdout == text
    assert run_blocking(Command(argv=("true",), env=ENV, given=text), 60).code == 0
    log = tmp_path / "log"
    for _ in range(2):
        assert run_blocking(Command(argv=("sh", "-c", "echo a; echo b >&2"), env=ENV, log=log), 60).code == 0
    assert log.read_text() == "a\nb\n" * 2


def test_a_program_without_output_has_its_limit() -> None:
    """One that closes its output and goes on is ended at the limit like any other."""
    assert both(Command(argv=("sh", "-c", "exec >&- 2>&-; sleep 600"), env=ENV), 0.5).hung


def test_a_guard_ends_with_its_program() -> None:
    """No shell is left of any run."""

    before = psutil.Process().children()

    async def body() -> tuple[list[str], list[str]]:
        for _ in range(3):
            await run(Command(argv=("true",), env=ENV), 60)
        program = await Program.start(Command(argv=("cat",), env=ENV), asks=True)
        during = [one.name() for one in psutil.Process().children() if one not in before]
        await program.end()
        await program.end()
        return sorted(during), [one.name() for one in psutil.Process().children() if one not in before]

    assert asyncio.run(body()) == (["cat", "sh"], [])

"""One run of a tool: what it prints and how it ends; its time limit leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

import pytest

from holdfast.adapters.local.processes import process_table
from holdfast.adapters.slurm.once import Done, run_once

ENV = {"PATH": os.environ.get("PATH", "/usr/bin:/bin")}


def once(script: str, *, limit_s: float = 60.0, cwd: Path | None = None) -> Done:
    return asyncio.run(run_once(["sh", "-c", script], env=ENV, limit_s=limit_s, cwd=cwd))


def test_output_error_and_code_are_told_apart(tmp_path: Path) -> None:
    """Both streams, the exit code, the folder, and no standard input that a tool could wait for."""
    done = once("cat; pwd; echo no >&2; exit 3", cwd=tmp_path)
    assert done == Done(3, f"{tmp_path.resolve()}\n".encode(), b"no\n")
    assert done.text_of_error() == "no"


def test_a_tool_that_does_not_end_is_killed() -> None:
    """The limit is a TimeoutError, and the process is gone when it is raised."""
    argv = ["sleep", f"600.{os.getpid()}"]
    with pytest.raises(TimeoutError):
        asyncio.run(run_once(argv, env=ENV, limit_s=1.0))
    assert not [pid for pid in process_table() if command_of(pid) == argv]


def command_of(pid: int) -> list[str]:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0")
    return []


def test_who_stops_waiting_leaves_nothing_running(tmp_path: Path) -> None:
    """A cancelled caller, as at the end of a program: the tool ends with its wait, and the cancellation is not swallowed."""
    mark = tmp_path / "pid"

    async def body() -> None:
        task = asyncio.create_task(run_once(["sh", "-c", f"echo $$ > {mark}; exec sleep 600"], env=ENV, limit_s=600))
        while not (mark.exists() and mark.read_text().strip()):
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(body())
    with pytest.raises(ProcessLookupError):
        os.kill(int(mark.read_text()), 0)


def test_a_tool_that_is_not_there_is_an_os_error() -> None:
    """Callers say in their own words what is missing."""
    with pytest.raises(FileNotFoundError):
        asyncio.run(run_once(["no-such-tool-of-slurm"], env=ENV, limit_s=1.0))

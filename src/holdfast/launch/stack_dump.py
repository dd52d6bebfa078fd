"""Stacks of this node's ranks while nothing moves: by signal where the rank has armed one, else by py-spy.

Used by the node runner when the leader asks. A rank that was stopped (state T) or holds on in the kernel gives none,
and that is said: it is what sets it apart. All ranks are asked at once; what has not answered at the limit is silent.
"""

from __future__ import annotations

import asyncio
import os
import sysconfig
import tempfile
from pathlib import Path

from msgspec import Struct

from holdfast.detect.stack_groups import training_stack
from holdfast.errors import PermanentOrderError
from holdfast.launch.frames import STOPPED, RankStack
from holdfast.launch.process import NOT_RUNNING, spawn, state_of
from holdfast.os.processes import catches, strike
from holdfast.telemetry.layout import stacks_name
from holdfast.telemetry.signals import STACK_SIGNAL
from holdfast.telemetry.slot import SlotView
from holdfast.telemetry.stacks import ThreadStack, parse_faulthandler, parse_pyspy

_POLL_S = 0.01
_QUIET_POLLS = 3
_FRAMES_MAX = 48


class Target(Struct, frozen=True):
    """A rank whose stack is wanted."""

    rank: int
    pid: int
    slot: SlotView | None


async def dump_stacks(targets: list[Target], folder: Path, limit_s: float) -> list[RankStack]:
    """One `RankStack` per target, within `limit_s` seconds."""
    return list(await asyncio.gather(*(_dump(target, folder, limit_s) for target in targets)))


async def _dump(target: Target, folder: Path, limit_s: float) -> RankStack:
    state = state_of(target.pid)
    if state in NOT_RUNNING:
        return RankStack(target.rank, why="has ended")
    if state in {"T", "t"}:
        return RankStack(target.rank, why=STOPPED)
    try:
        async with asyncio.timeout(limit_s):
            armed = target.slot is not None and target.slot.pid == target.pid and target.slot.stack_signal
            threads = await (_by_signal(target, folder) if armed else _by_pyspy(target.pid))
    except TimeoutError:
        return RankStack(target.rank, why=f"gave no stack within {limit_s:g} s (state {state_of(target.pid) or '?'})")
    except (PermanentOrderError, OSError) as error:
        return RankStack(target.rank, why=str(error))
    frames = training_stack(threads)[:_FRAMES_MAX]
    if not frames:
        return RankStack(target.rank, why=f"shows no Python stack (state {state})")
    return RankStack(target.rank, tuple((frame.function, frame.file, frame.line) for frame in frames))


async def _by_signal(target: Target, folder: Path) -> list[ThreadStack]:
    """By faulthandler, whose C handler writes even while the interpreter lock is held or a system call lasts."""
    path = folder / stacks_name(target.rank)
    before = path.stat().st_size
    if not strike([target.pid], STACK_SIGNAL, of=lambda: [target.pid] if catches(target.pid, STACK_SIGNAL) else []):
        raise PermanentOrderError("has ended, or takes no stack signal: it would end a process that is not armed")
    size, quiet = before, 0
    while size == before or quiet < _QUIET_POLLS:
        await asyncio.sleep(_POLL_S)
        now = path.stat().st_size
        quiet = quiet + 1 if now == size else 0
        size = now
    with path.open("rb") as file:
        file.seek(before)
        return parse_faulthandler(file.read().decode(errors="replace"))


async def _by_pyspy(pid: int) -> list[ThreadStack]:
    program = Path(sysconfig.get_path("scripts")) / "py-spy"
    if not program.exists():
        raise PermanentOrderError(
            "py-spy is not installed beside holdfast, and the rank has not armed the stack signal"
        )
    with tempfile.TemporaryFile() as out:
        argv = [str(program), "dump", "--json", "--nonblocking", "--pid", str(pid)]
        child = spawn(argv, env=os.environ, stdout=out.fileno(), stderr=out.fileno())
        try:
            await child.exited.wait()
        finally:
            child.send_group(9)
        out.seek(0)
        text = out.read().decode(errors="replace")
    if child.exit is None or not child.exit.is_success:
        last = text.strip().splitlines()[-1:] or ["no reason given"]
        raise PermanentOrderError(f"py-spy cannot look at it: {last[0][:200]}")
    return parse_pyspy(text)

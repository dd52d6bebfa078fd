"""What leader and follower stand on alike: place, options and environment, and how each waits for its end.

Made by `program`. No time passes here but in the caller's asyncio loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from holdfast.errors import HoldfastError
from holdfast.failpoint import site_path
from holdfast.launch import process
from holdfast.launch.late_matcher import LateMatcher
from holdfast.launch.link import Network
from holdfast.launch.node import NodeRunner
from holdfast.launch.options import RunOptions
from holdfast.launch.output import Voice
from holdfast.launch.place import JobPlace

if TYPE_CHECKING:  # few jobs have any
    from holdfast.detect.hyperpod_rules import LogRule


class Ground(Struct):
    """What leader and follower stand on alike."""

    place: JobPlace
    network: Network
    options: RunOptions
    environ: Mapping[str, str]
    voice: Voice
    matcher: LateMatcher
    tag: str
    telemetry: Path
    lease_s: float
    log_rules: tuple[LogRule, ...] = ()
    owns_telemetry: bool = False
    local_ranks: int = 1
    may_renice: bool = False

    def runner(self, report: Callable[[Any], None]) -> NodeRunner:
        """This node's runner."""
        base = dict(self.environ)
        base[process.TAG] = self.tag
        if "PET_NODE_RANK" in base:
            base.pop("RANK", None)  # an operator's: it numbers pods, and would be taken for a rank of the training
        if self.place.drill_ok:
            base["HOLDFAST_DRILL_DIR"] = str(self.place.job_dir / "drill")
            before = base.get("PYTHONPATH", "")
            base["PYTHONPATH"] = site_path() + (os.pathsep + before if before else "")
        else:
            base.pop("HOLDFAST_DRILL_DIR", None)
        return NodeRunner(
            self.place,
            self.options,
            local_ranks=self.local_ranks,
            base=base,
            telemetry_root=self.telemetry,
            matcher=self.matcher,
            report=report,
            voice=self.voice,
            log_rules=self.log_rules,
            may_renice=self.may_renice,
        )


class Background:
    """Tasks that nobody waits for. An error of one ends `is_over`, the future with the launcher's exit code."""

    def __init__(self) -> None:
        self.is_over: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._tasks: set[asyncio.Task[Any]] = set()

    def run(self, work: Coroutine[Any, Any, Any]) -> None:
        """Start it."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not self.is_over.done():
            self.is_over.set_exception(error)


def on_signals(end: Callable[[int], None], forward: Callable[[int], None]) -> None:
    """Have signals that end a job call `end`, and those that are the user's own `forward`."""
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(signum, end, int(signum))
    for signum in (signal.SIGUSR1, signal.SIGUSR2):
        loop.add_signal_handler(signum, forward, int(signum))


async def until_over(over: asyncio.Future[int], tasks: Sequence[asyncio.Task[Any]]) -> int:
    """The exit code; an error of a background task ends everything and is raised."""
    await asyncio.wait([over, *tasks], return_when=asyncio.FIRST_COMPLETED)
    if over.done():
        return over.result()
    for task in tasks:
        if task.done():
            task.result()
    return await over


async def cancel_all(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """End background tasks."""
    for task in tasks:
        task.cancel()
    for task in tasks:
        with contextlib.suppress(asyncio.CancelledError, HoldfastError):
            await task

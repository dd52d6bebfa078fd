"""Runs a follower, the launcher of every node but the first: link, ranks and loop around `core.follower`.

Started by `program`, and by `step_watch` where Slurm runs the tasks. Time passes in the asyncio loop.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import structs

from holdfast.errors import EXIT_UNAVAILABLE
from holdfast.launch.core import follower as core
from holdfast.launch.core.asks import Finish, KillRanks, Say
from holdfast.launch.frames import AnyAsk, AnyReport, Beat, Bye, Hello, Welcome
from holdfast.launch.ground import cancel_all, until_over
from holdfast.launch.link import FollowerLink, Network
from holdfast.launch.options import RunOptions
from holdfast.launch.output import Voice
from holdfast.launch.place import JobPlace
from holdfast.launch.runner import Runner
from holdfast.os.clock import steady_time

_CHECK_S = 0.1


class Follower:
    """Carries out what the follower's core asks.

    Args:
        place: this node's.
        options: of the run.
        network: to the leader.
        voice: for people.
        lease_s: length of the lease until the leader says otherwise.
        make_runner: makes what runs the ranks here, which reports to the function it is handed.
    """

    def __init__(
        self,
        place: JobPlace,
        options: RunOptions,
        *,
        network: Network,
        voice: Voice,
        lease_s: float,
        make_runner: Callable[[Callable[[AnyReport], None]], Runner],
    ) -> None:
        self.place = place
        self.voice = voice
        self._process = secrets.token_hex(8)
        self._is_refused = False
        self.is_over: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.link = FollowerLink(place, network, self)
        self.runner = make_runner(self.link.send)
        self._core = core.FollowerCore(
            place.node,
            nodes=len(place.nodes),
            lease_s=lease_s,
            wait_s=options.follower_wait_s,
            now=time.monotonic(),
        )

    @property
    def why(self) -> str:
        """Why it left where no leader says so; empty otherwise."""
        finished = self._core.finished
        return finished.why if finished is not None and finished.code == EXIT_UNAVAILABLE else ""

    # --- what the link wants of us ---

    def hello(self) -> Hello:
        """Who we are and what we hold, for a new connection."""
        held = self.runner.attempt
        return Hello(
            node=self.place.node,
            local_ranks=self.runner.local_ranks,
            address=self.place.address,
            attempt=held.spec.attempt if held is not None and not held.is_gone else None,
            process=self._process,
        )

    def next_beat(self) -> tuple[Beat, float]:
        """The beat to send now, and the seconds until the next."""
        beat = structs.replace(self._core.next_beat(time.monotonic()), at=steady_time())
        return beat, self._core.pause_s

    def welcomed(self, welcome: Welcome) -> None:
        """The leader has taken our connection."""
        self._tell(core.Welcomed(welcome.lease_s))

    def refused(self, why: str) -> None:
        """The leader does not take our connection: said once."""
        if not self._is_refused:
            self._is_refused = True
            self.voice.say(why)

    def asked(self, ask: AnyAsk) -> None:
        """The leader asks for something."""
        self._tell(core.Asked(ask))

    def broken(self, why: str) -> None:
        """The connection has ended; the link tries again."""
        self._tell(core.Disconnected(time.monotonic(), why))

    # --- signals and time ---

    def end_job(self, signum: int) -> None:
        """End the job, told by a signal."""
        is_connected, has_attempt = self.link.connected.is_set(), self.runner.attempt is not None
        self._tell(core.Signalled(signum=signum, is_connected=is_connected, has_attempt=has_attempt))

    def dismiss(self) -> None:
        """Leave without a word to what runs here, told by the scheduler's signal."""
        self._tell(core.Dismissed(time.monotonic()))

    async def keep_lease(self) -> None:
        """Let the core see time pass, until cancelled."""
        while True:
            await asyncio.sleep(_CHECK_S)
            now, attempt = time.monotonic(), self.runner.attempt
            held = core.Held(attempt.spec.attempt, attempt.is_ending) if attempt is not None else None
            for ask in self._core.handle(core.Ticked(now, held)):
                if isinstance(ask, KillRanks):
                    await self.runner.end(ask.attempt, 0.0, why=ask.why)
                else:
                    self._carry_out(ask)

    def _tell(self, report: core.FollowerInput) -> None:
        for ask in self._core.handle(report):
            self._carry_out(ask)

    def _carry_out(self, ask: core.FollowerAsk) -> None:
        match ask:
            case core.CarryOut():
                self.runner.ask_soon(ask.ask)
            case core.SignalRanks():
                self.runner.pass_signal(ask.signum)
            case core.Tell():
                self.link.send(ask.report)
            case Say():
                (self.voice.note if ask.is_note else self.voice.say)(ask.text)
            case Finish() if not self.is_over.done():
                self.is_over.set_result(ask.code)
            case _:
                return

    # --- from beginning to end ---

    async def run(self, environ: Mapping[str, str]) -> int:
        """Follow to the end; returns the exit code."""
        work = [self.runner.watch(), self.link.run(), self.keep_lease()]
        tasks: list[asyncio.Task[Any]] = [asyncio.create_task(part) for part in work]
        try:
            code = await until_over(self.is_over, tasks)
            await self._leave(code)
            if self._core.is_unled:
                from holdfast.launch.own_slurm_job import call_back  # noqa: PLC0415 - once, at the very end

                await call_back(self.place.job_dir, environ, self.voice)
        finally:
            await cancel_all(tasks)
            await self.runner.close(0.0)
        return code

    async def _leave(self, code: int) -> None:
        """End what runs here and say goodbye."""
        await self.runner.close(0.0)
        finished = self._core.finished
        self.link.send(Bye(exit_code=code, why=finished.why if finished is not None else ""))
        await self.link.flush(0.5)

"""A follower: the launcher of every node but the first.

Does what the leader asks, and lets its ranks live no longer than their lease. Started by `program`. Time passes in the
asyncio loop.
"""

from __future__ import annotations

import asyncio
import os
import time

from holdfast.errors import EXIT_UNAVAILABLE
from holdfast.launch.frames import AnyAsk, AnyReport, Bye, EndAsked, Hello, Leave, PassSignal
from holdfast.launch.link import FollowerLink
from holdfast.launch.options import RunOptions
from holdfast.launch.output import Voice
from holdfast.launch.place import JobPlace
from holdfast.launch.runner import Runner

_CHECK_S = 0.1


class Follower:
    """See the module. `runner` is set by `program`, which gives it `report` to call."""

    runner: Runner

    def __init__(self, place: JobPlace, options: RunOptions, *, voice: Voice, lease_s: float) -> None:
        self.place = place
        self.options = options
        self.voice = voice
        self.is_over: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.why = ""
        self.is_unled = False
        """Told to end while nobody leads: the leader may have gone with its machine."""
        self.link = FollowerLink(
            place, lease_s=lease_s, hello=self._hello, on_ask=self._on_ask, on_broken=self._on_broken
        )
        self._away_since: float | None = time.monotonic()
        self._ending = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def report(self, report: AnyReport) -> None:
        """Pass on what the runner sees."""
        self.link.send(report)

    def _hello(self) -> Hello:
        self._away_since = None
        held = self.runner.attempt
        return Hello(
            node=self.place.node,
            node_rank=self.place.node_rank,
            local_ranks=self.runner.local_ranks,
            address=self.place.address,
            pid=os.getpid(),
            attempt=held.spec.attempt if held is not None and not held.is_gone else None,
        )

    def _on_ask(self, ask: AnyAsk) -> None:
        if isinstance(ask, Leave):
            self.finish(ask.exit_code, ask.why)
            return
        if isinstance(ask, PassSignal) and ask.is_end:
            self._ending = ask.signum
        self.runner.ask_soon(ask)

    def _on_broken(self, why: str) -> None:
        if self._away_since is None:
            self._away_since = time.monotonic()
            self.voice.note(f"the leader's connection is broken: {why}")

    def finish(self, code: int, why: str = "") -> None:
        """Leave with this code; the first call counts."""
        if not self.is_over.done():
            self.why = why
            self.is_over.set_result(code)

    def end_job(self, signum: int) -> None:
        """Told by a signal to end: our ranks get it at once, the leader hears of it; a second one kills."""
        if self._ending:
            if self.runner.attempt is not None:
                self.finish(128 + signum, "ended on request")
            return
        self._ending = signum
        self.link.send(EndAsked(signum=signum))
        self.runner.pass_signal(signum)
        if not self.link.connected.is_set():
            self.is_unled = True
            self.finish(128 + signum, "ended on request")

    async def keep_lease(self) -> None:
        """Kill the ranks when the leader's lease has run out; leave when it has been away for too long."""
        while True:
            await asyncio.sleep(_CHECK_S)
            now = time.monotonic()
            attempt = self.runner.attempt
            if attempt is not None and not attempt.is_ending and self.link.lease.is_over(now):
                why = f"{self.place.node} could not renew its attempt lease of {self.link.lease.lease_s:g} s"
                self.voice.say(f"{why}: killing its ranks")
                await self.runner.end(attempt.spec.attempt, 0.0, why=why)
            if self._ending and self.link.lease.is_over(now):
                # Whoever waits for this job's end need not wait for a leader to tell us.
                self.is_unled = True
                self.finish(128 + self._ending, "ended on request")
            if self._away_since is not None and now - self._away_since > self.options.follower_wait_s:
                limit = f"{self.options.follower_wait_s:g} s"
                self.finish(EXIT_UNAVAILABLE, f"the leader of this job has not answered for {limit}")

    async def leave(self, code: int) -> None:
        """End what runs here and say goodbye."""
        await self.runner.close(0.0)
        self.link.send(Bye(exit_code=code, why=self.why))
        await self.link.flush(0.5)

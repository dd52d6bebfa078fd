"""One node's part of `holdfast run`: starts the ranks it is told to, watches them, ends them, reports.

The leader's own node and every follower run one of these; `ask` takes what the leader wants, `report` gives what is
seen. It decides nothing but one thing: when the attempt lease runs out, the ranks are killed at once. Time passes in
the asyncio loop: ends of processes come by pidfd, output and slots are looked at every 20 to 100 ms.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import PermanentOrderError
from holdfast.launch import process
from holdfast.launch.environment import AttemptSpec
from holdfast.launch.frames import (
    AnyAsk,
    AnyReport,
    AskEvacuate,
    DumpStacks,
    EndRanks,
    PassSignal,
    RanksGone,
    RanksStarted,
    StacksDumped,
    StartFailed,
    StartRanks,
)
from holdfast.launch.late_matcher import LateMatcher
from holdfast.launch.node_attempt import AttemptMaker, NodeAttempt
from holdfast.launch.options import RunOptions
from holdfast.launch.output import Voice
from holdfast.launch.place import JobPlace
from holdfast.launch.process import Exit
from holdfast.launch.standby import StandbyPool
from holdfast.os.clock import steady_time
from holdfast.telemetry.slot import SlotError, request_evacuate

if TYPE_CHECKING:  # loaded when the first ranks run: a restart must not wait for what reads their output
    from holdfast.detect.hyperpod_rules import LogRule
    from holdfast.launch.rank_drills import RankDrills

_TICK_S = 0.02
_OUTPUT_EVERY = 2
_SLOTS_EVERY = 4
_DISCOVER_EVERY = 20


class NodeRunner:
    """Runs this node's ranks.

    Args:
        place: job and node.
        options: of the run.
        local_ranks: ranks to start here per attempt.
        base: environment that ranks inherit (with the launcher's tag).
        telemetry_root: folder of this node's slots.
        matcher: compiled beside the start of the first ranks.
        log_rules: HyperPod's rules of the job.
        report: takes what is seen; must not block.
        voice: for people.
        may_renice: standbys may warm up at a lower priority.
    """

    def __init__(
        self,
        place: JobPlace,
        options: RunOptions,
        *,
        local_ranks: int,
        base: Mapping[str, str],
        telemetry_root: Path,
        matcher: LateMatcher,
        report: Callable[[AnyReport], None],
        voice: Voice,
        log_rules: Sequence[LogRule] = (),
        may_renice: bool = False,
    ) -> None:
        self.place = place
        self.options = options
        self.local_ranks = local_ranks
        self.report = report
        self.attempt: NodeAttempt | None = None
        self._base = dict(base)
        self._matcher = matcher
        self._voice = voice
        self._maker = AttemptMaker(
            place,
            options,
            base=self._base,
            telemetry_root=telemetry_root,
            matcher=matcher,
            log_rules=log_rules,
            report=report,
            voice=voice,
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False
        self.pool = StandbyPool(
            size=options.standby_count(local_ranks),
            modules=options.preload,
            env=self._standby_environment(),
            cwd=str(Path.cwd()),
            log=place.job_dir / "logs" / f"standby-{place.node}.log",
            may_renice=may_renice,
            on_line=voice.say,
        )
        self._drills: RankDrills | None = None

    def _standby_environment(self) -> dict[str, str]:
        environ = dict(self._base)
        # Read by OpenMP when torch is imported, so it must be there before the rank's own environment is.
        if self.local_ranks > 1:
            environ.setdefault("OMP_NUM_THREADS", "1")
        return environ

    # --- what the leader asks ---

    async def ask(self, ask: AnyAsk) -> None:
        """Carry out; answers come as reports."""
        match ask:
            case StartRanks():
                await self._start(ask.spec)
            case EndRanks():
                self._run(self.end(ask.attempt, ask.grace_s))
            case DumpStacks():
                self._run(self._dump(ask.attempt, ask.limit_s))
            case AskEvacuate():
                self._evacuate(ask.attempt)
            case PassSignal():
                self.pass_signal(ask.signum)
            case _:
                return

    def ask_soon(self, ask: AnyAsk) -> None:
        """As `ask`, without waiting for it."""
        self._run(self.ask(ask))

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _start(self, spec: AttemptSpec) -> None:
        now = self.attempt
        if now is not None and spec.attempt <= now.spec.attempt:
            if spec.attempt == now.spec.attempt and not now.is_ending:
                self._report_started(now)
            return
        if now is not None and not now.is_gone:
            await self.end(now.spec.attempt, 0.0)
        if self._is_closed or not spec.ranks_of(self.place.node):
            return
        try:
            attempt = self._maker.prepare(spec, self._ended)
            self.attempt = attempt
            attempt.ranks.start(self.pool)
        except (OSError, PermanentOrderError) as error:
            self.report(StartFailed(attempt=spec.attempt, why=f"{self.place.node}: {error}"))
            await self.end(spec.attempt, 0.0)
            return
        self._report_started(attempt)
        asyncio.get_running_loop().call_soon(self._begin_reading)

    def _begin_reading(self) -> None:
        """Load what reads the ranks' output, now that they run."""
        self._matcher.begin()
        if self.place.drill_ok and self._drills is None:
            from holdfast.launch.rank_drills import RankDrills  # noqa: PLC0415 - as above

            self._drills = RankDrills(self.place.job_dir / "drill", self._send_to_rank, self._voice.note)

    def _report_started(self, attempt: NodeAttempt) -> None:
        ranks = attempt.spec.ranks_of(self.place.node)
        what = "the command" if self.options.is_command else f"ranks {ranks.start} to {ranks.stop - 1}"
        self._voice.note(f"attempt {attempt.spec.attempt} (epoch {attempt.spec.epoch}): started {what}")
        self.report(RanksStarted(attempt=attempt.spec.attempt, standbys_used=attempt.ranks.standbys_used))

    # --- what happens here ---

    def _ended(self, number: int, rank: int | None, how: Exit, at: float) -> None:
        attempt = self.attempt
        if attempt is not None and attempt.spec.attempt == number:
            attempt.rank_ended(rank, how, at)
            self._run(self._end_if_over(attempt))

    async def _end_if_over(self, attempt: NodeAttempt) -> None:
        if not attempt.ranks.living and not attempt.is_ending:
            await self.end(attempt.spec.attempt, 0.0)

    async def end(self, number: int, grace_s: float, why: str = "") -> None:
        """End the ranks of this attempt (or an older one) and report when all are gone. Safe to call again."""
        attempt = self.attempt
        if attempt is None or attempt.spec.attempt > number or attempt.is_gone:
            self.report(RanksGone(attempt=number, why=why))
            return
        if attempt.is_ending:
            if grace_s <= 0:
                attempt.ranks.send_all(signal.SIGKILL, groups=True)
            await attempt.gone.wait()
            return
        attempt.is_ending = True
        children = list(attempt.ranks.children.values())
        await process.end_trees(children, grace_s=grace_s)
        attempt.finish()
        self.report(RanksGone(attempt=attempt.spec.attempt, why=why))

    async def _dump(self, number: int, limit_s: float) -> None:
        attempt = self.attempt
        if attempt is None or attempt.spec.attempt != number:
            self.report(StacksDumped(attempt=number, stacks=()))
            return
        from holdfast.launch.stack_dump import Target, dump_stacks  # noqa: PLC0415 - few attempts ever hang

        targets = [Target(rank, pid, attempt.slots.views.get(rank)) for rank, pid in attempt.ranks.pids().items()]
        stacks = await dump_stacks(targets, attempt.slots.folder, limit_s)
        attempt.tell_strange()
        self.report(StacksDumped(attempt=number, stacks=tuple(stacks)))

    def _evacuate(self, number: int) -> None:
        attempt = self.attempt
        if attempt is not None and attempt.spec.attempt == number and not attempt.is_ending:
            try:
                request_evacuate(attempt.slots.folder)
            except SlotError as error:
                self._voice.say(f"cannot ask the ranks to save and stop: {error}")

    def pass_signal(self, signum: int) -> None:
        """Send a signal to all ranks here, or to the command."""
        if self.attempt is not None and not self.attempt.is_gone:
            self.attempt.ranks.send_all(signum)

    def _send_to_rank(self, rank: int, signum: int) -> bool:
        return self.attempt is not None and self.attempt.ranks.send(rank, signum)

    # --- the loop ---

    async def watch(self) -> None:
        """Look at output, slots, drills and standbys until cancelled."""
        tick = 0
        while True:
            await asyncio.sleep(_TICK_S)
            tick += 1
            attempt = self.attempt
            if attempt is not None and not attempt.is_gone:
                self._look(attempt, tick)
            if tick % _DISCOVER_EVERY == 0:
                process.reap_strangers()

    def _look(self, attempt: NodeAttempt, tick: int) -> None:
        if tick % _OUTPUT_EVERY == 0 and self._matcher.is_ready:
            attempt.read_output(steady_time())
        if tick % _SLOTS_EVERY == 0 or (self._drills is not None and self._drills.is_waiting):
            attempt.read_slots()
            if attempt.is_command and tick % _DISCOVER_EVERY == 0:
                attempt.discover_ranks()
        if self._drills is not None:
            begun = {rank: view.step_begun for rank, view in attempt.slots.views.items()}
            self._drills.look(attempt.spec.attempt, attempt.ranks.pids(), begun, steady_time())
        if tick % _SLOTS_EVERY == 0:
            attempt.tell_slots()
            if attempt.may_warm:
                self.pool.tend()

    async def close(self, grace_s: float = 0.0) -> None:
        """End everything that was started here."""
        if self._is_closed:
            return
        self._is_closed = True
        if self.attempt is not None:
            await self.end(self.attempt.spec.attempt, grace_s)
        for child in self.pool.close():
            await child.exited.wait()
        for task in list(self._tasks):
            with contextlib.suppress(asyncio.CancelledError):
                await task

"""One node's part of `holdfast run`: starts the ranks it is told to, watches them, ends them, reports.

The leader's own node and every follower run one of these; `ask` takes what the leader wants, `report` gives what is
seen. It decides nothing but one thing: when the attempt lease runs out, the ranks are killed at once. Time passes in
the asyncio loop: ends of processes come by pidfd, output and slots are looked at every 20 to 100 ms.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import signal
import time
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
    RankEnded,
    RanksGone,
    RanksStarted,
    SlotBrief,
    SlotsSeen,
    Spotted,
    StacksDumped,
    StartFailed,
    StartRanks,
)
from holdfast.launch.late_matcher import LateMatcher
from holdfast.launch.options import RunOptions
from holdfast.launch.output import OwnOutput, RankLog, Voice
from holdfast.launch.place import JobPlace
from holdfast.launch.process import Exit
from holdfast.launch.ranks import RankSet
from holdfast.launch.slots import SlotReader
from holdfast.launch.standby import StandbyPool
from holdfast.model.evidence import Role
from holdfast.telemetry.slot import SlotError, request_evacuate

if TYPE_CHECKING:  # loaded when the first ranks run: a restart must not wait for what reads their output
    from holdfast.detect.hyperpod_rules import LogRule
    from holdfast.detect.matcher import Match
    from holdfast.launch.line_watch import LineWatch
    from holdfast.launch.listener import Heard, Listener
    from holdfast.launch.rank_drills import RankDrills
    from holdfast.launch.reading import OutputReader

_TICK_S = 0.02
_OUTPUT_EVERY = 2
_SLOTS_EVERY = 4
_DISCOVER_EVERY = 20
_WARM_AFTER_STEPS = 1
_WARM_WITHOUT_TELEMETRY_S = 30.0
_ERROR_TEXT_MAX = 400
_STRANGE_MAX = 12


class Attempt:
    """What belongs to one attempt on this node."""

    def __init__(
        self,
        spec: AttemptSpec,
        ranks: RankSet,
        logs: Mapping[int | None, RankLog],
        slots: SlotReader,
        listen: Callable[[], Heard],
    ) -> None:
        self._listen = listen
        self.spec = spec
        self.ranks = ranks
        self.logs = logs
        self.slots = slots
        self.began = time.monotonic()
        self.is_ending = False
        self.is_gone = False
        self.gone = asyncio.Event()
        self.ended_well = True
        """No rank here has ended badly so far."""
        self.told_strange = False
        self._steps: dict[int, int] = {}

    @property
    def reader(self) -> OutputReader:
        """Reads the matcher's matches."""
        return self._listen().reader

    @property
    def lines(self) -> LineWatch:
        """Judges the lines themselves."""
        return self._listen().lines

    def steps_rose(self, slots: Sequence[SlotBrief]) -> bool:
        """Whether one of these slots shows a step that its rank had not completed before."""
        rose = False
        for slot in slots:
            if slot.ended is not None and slot.ended > self._steps.get(slot.rank, -1):
                self._steps[slot.rank] = slot.ended
                rose = True
        return rose


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
        self.attempt: Attempt | None = None
        self._base = dict(base)
        self._telemetry_root = telemetry_root
        self._matcher = matcher
        self._log_rules = tuple(log_rules)
        self._ears: Listener | None = None
        self._voice = voice
        self._out = OwnOutput()
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
            attempt = self._prepare(spec)
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

    def _listener(self) -> Listener:
        from holdfast.launch.listener import Listener  # noqa: PLC0415 - as above

        if self._ears is None:
            self._ears = Listener(self.place, self._matcher, self._log_rules, is_command=self.options.is_command)
        return self._ears

    def _report_started(self, attempt: Attempt) -> None:
        ranks = attempt.spec.ranks_of(self.place.node)
        what = "the command" if self.options.is_command else f"ranks {ranks.start} to {ranks.stop - 1}"
        self._voice.note(f"attempt {attempt.spec.attempt} (epoch {attempt.spec.epoch}): started {what}")
        self.report(
            RanksStarted(
                attempt=attempt.spec.attempt, pids=attempt.ranks.pids(), standbys_used=attempt.ranks.standbys_used
            )
        )

    def _prepare(self, spec: AttemptSpec) -> Attempt:
        place, options = self.place, self.options
        logs_dir = place.job_dir / "logs" / f"attempt-{spec.attempt}"
        telemetry_dir = self._telemetry_root / f"a{spec.attempt}"
        telemetry_dir.mkdir(parents=True, exist_ok=True)
        self._voice.write_to(logs_dir / f"launcher-{place.node}.log")
        at = time.time()
        listen = functools.cache(lambda: self._listener().attempt(spec, at))
        logs: dict[int | None, RankLog] = {}
        if options.is_command:
            many = len(spec.nodes) > 1
            prefix = f"[{place.node}]: ".encode() if many else b""
            repeat = None if options.tee == "none" else self._out.write
            logs[None] = self._log(logs_dir / f"command-{place.node}.log", None, prefix, repeat, listen)
        else:
            teed = options.teed_ranks(range(spec.world_size))
            for rank in spec.ranks_of(place.node):
                repeat = self._out.write if rank in teed else None
                prefix = f"[rank{rank}]: ".encode()
                logs[rank] = self._log(logs_dir / f"rank-{rank:05d}.log", rank, prefix, repeat, listen)
        ranks = RankSet(
            spec,
            node=place.node,
            options=options,
            base=self._base,
            job_dir=place.job_dir,
            job_id=str(place.job),
            telemetry_dir=telemetry_dir,
            logs=logs,
            on_end=lambda rank, how, at: self._ended(spec.attempt, rank, how, at),
        )
        return Attempt(spec, ranks, logs, SlotReader(telemetry_dir), listen)

    def _log(
        self,
        path: Path,
        rank: int | None,
        prefix: bytes,
        repeat: Callable[[bytes], None] | None,
        listen: Callable[[], Heard],
    ) -> RankLog:
        return RankLog(
            path,
            rank=rank,
            prefix=prefix,
            repeat=repeat,
            stream=lambda: self._listener().stream(str(path), rank),
            on_lines=lambda lines, at: listen().lines.lines(rank, lines, at),
        )

    # --- what happens here ---

    def _ended(self, number: int, rank: int | None, how: Exit, at: float) -> None:
        attempt = self.attempt
        if attempt is None or attempt.spec.attempt != number:
            return
        ended_badly = how.is_known and not how.is_success
        attempt.ended_well &= not ended_badly
        log = attempt.logs.get(rank) or attempt.logs.get(None)
        tail: tuple[str, ...] = ()
        if log is not None:
            matches = log.finish(at) if rank in attempt.logs else log.pump(at)
            self._read_matches(attempt, log, matches, at)
            tail = log.tail()
        attempt.slots.read([rank] if rank is not None else attempt.slots.discover())
        self._report_slots(attempt)
        if not attempt.is_ending:
            self._look_at_lines(attempt, at)
            self.report(
                RankEnded(
                    attempt=number,
                    rank=rank,
                    exit=how,
                    at=at,
                    tail=tail,
                    error=self._error_of(attempt, rank),
                    log=str(log.path) if log is not None else "",
                )
            )
            # After the end that they may explain: then they join its incident, also when that is one gone on with.
            if ended_badly and log is not None and (strange := attempt.lines.strange(log.rank, at)):
                self.report(Spotted(findings=strange))
        self._run(self._end_if_over(attempt))

    async def _end_if_over(self, attempt: Attempt) -> None:
        if not attempt.ranks.living and not attempt.is_ending:
            await self.end(attempt.spec.attempt, 0.0)

    @staticmethod
    def _error_of(attempt: Attempt, rank: int | None) -> str:
        """The message that torch's `record` decorator left."""
        if rank is None or rank not in attempt.logs:
            return ""
        try:
            message = json.loads(attempt.ranks.error_file(rank).read_bytes())["message"]
            text = message if isinstance(message, str) else message.get("message", "")
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return ""
        return str(text)[:_ERROR_TEXT_MAX]

    def _read_matches(self, attempt: Attempt, log: RankLog, matches: list[Match], at: float) -> None:
        if not matches:
            return
        file = str(log.path.relative_to(self.place.job_dir))
        findings = attempt.reader.findings(matches, rank=log.rank, file=file, at=at)
        if findings:
            attempt.lines.matched(findings)
            self.report(Spotted(findings=findings))
        line = attempt.reader.progress(matches, rank=log.rank, at=at)
        if line is not None:
            if line.step is not None:
                steps = [match.text for match in matches if match.rule.role is Role.PROGRESS]
                attempt.lines.progress(at, log.rank, steps)
            self.report(line)

    def _report_slots(self, attempt: Attempt) -> None:
        changed = attempt.slots.changed(time.monotonic())
        if changed:
            if attempt.steps_rose(changed):
                attempt.lines.progress(time.time())
            self.report(SlotsSeen(attempt=attempt.spec.attempt, at=time.time(), slots=changed))

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
        attempt.ranks.close()
        at = time.time()
        for log in attempt.logs.values():
            self._read_matches(attempt, log, log.finish(at), at)
            log.close()
        attempt.slots.read(attempt.slots.views)
        self._report_slots(attempt)
        attempt.lines.end(at, well=attempt.ended_well)
        attempt.is_gone = True
        attempt.gone.set()
        self.report(RanksGone(attempt=attempt.spec.attempt, why=why))

    async def _dump(self, number: int, limit_s: float) -> None:
        attempt = self.attempt
        if attempt is None or attempt.spec.attempt != number:
            self.report(StacksDumped(attempt=number, stacks=()))
            return
        from holdfast.launch.stack_dump import Target, dump_stacks  # noqa: PLC0415 - few attempts ever hang

        targets = [Target(rank, pid, attempt.slots.views.get(rank)) for rank, pid in attempt.ranks.pids().items()]
        stacks = await dump_stacks(targets, attempt.slots.folder, limit_s)
        self._tell_strange(attempt)
        self.report(StacksDumped(attempt=number, stacks=tuple(stacks)))

    def _tell_strange(self, attempt: Attempt) -> None:
        """The job stands still: what its ranks last said that they never said before, once an attempt."""
        if attempt.told_strange or attempt.is_ending:
            return
        attempt.told_strange = True
        at = time.time()
        found = [finding for rank in attempt.logs for finding in attempt.lines.strange(rank, at)]
        if found:
            self.report(Spotted(findings=tuple(found[:_STRANGE_MAX])))

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

    def _look_at_lines(self, attempt: Attempt, at: float) -> None:
        found = attempt.lines.look(at)
        if said := attempt.lines.said():
            self._voice.say(*said)
        if found:
            self.report(Spotted(findings=found))

    def _look(self, attempt: Attempt, tick: int) -> None:
        at = time.time()
        if tick % _OUTPUT_EVERY == 0 and self._matcher.is_ready:
            for log in attempt.logs.values():
                self._read_matches(attempt, log, log.pump(at), at)
            if not attempt.is_ending:
                self._look_at_lines(attempt, at)
        if tick % _SLOTS_EVERY == 0 or (self._drills is not None and self._drills.is_waiting):
            is_command = None in attempt.ranks.children
            attempt.slots.read(attempt.slots.discover() if is_command else attempt.spec.ranks_of(self.place.node))
            if is_command and tick % _DISCOVER_EVERY == 0:
                pids = {rank: view.pid for rank, view in attempt.slots.views.items()}
                attempt.ranks.discover(pids, time.time)
        if self._drills is not None:
            begun = {rank: view.step_begun for rank, view in attempt.slots.views.items()}
            self._drills.look(attempt.spec.attempt, attempt.ranks.pids(), begun, at)
        if tick % _SLOTS_EVERY == 0:
            self._report_slots(attempt)
            if self._may_warm(attempt):
                self.pool.tend()

    @staticmethod
    def _may_warm(attempt: Attempt) -> bool:
        """Warming must not slow a start: it waits for the first step; scripts without telemetry, for half a minute."""
        views = attempt.slots.views.values()
        if views:
            return all(view.steps >= _WARM_AFTER_STEPS for view in views)
        return time.monotonic() - attempt.began > _WARM_WITHOUT_TELEMETRY_S

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

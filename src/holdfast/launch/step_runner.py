"""Srun itself: started for each attempt, its output passed through and read, its end seen at once.

What srun prints goes on to our own output as it comes, into `logs/attempt-N/output.log`, and through the matcher; its
lines about tasks become reports. With `--pty` the terminal is handed over: then only files and exit codes are read.
Used by `step` through `StepCrew`. Time passes in the asyncio loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

from msgspec import structs

from holdfast.adapters.slurm.srun_words import StepFate, TaskEnd, is_waiting_for_nodes, lost_node, task_end
from holdfast.adapters.slurm.steps import SrunCall, StepShape, attempt_argv
from holdfast.detect.matcher import LineStream, Match, StreamSource
from holdfast.errors import EXIT_RESTART_ME
from holdfast.launch import process
from holdfast.launch.environment import AttemptSpec
from holdfast.launch.frames import (
    AnyAsk,
    AnyReport,
    AskEvacuate,
    DumpStacks,
    PassSignal,
    RankEnded,
    Spotted,
    StacksDumped,
)
from holdfast.launch.late_matcher import LateMatcher
from holdfast.launch.output import TAIL_LINES, OwnOutput, Voice
from holdfast.launch.place import JobPlace
from holdfast.launch.process import Child, Exit
from holdfast.launch.reading import OutputReader
from holdfast.launch.step_files import StepFiles
from holdfast.launch.step_slots import StepSlots, slots_folder
from holdfast.launch.step_tasks import kill_all, tasks_of
from holdfast.telemetry.slot import SlotError

_TICK_S = 0.1
_BLOCK = 1 << 16
_WAITING_MAX = 1 << 20
_SRUN_EXIT_S = 2.0
"""After its tasks are gone srun ends by itself within a tenth of a second; then the step is over for the scheduler."""
_SRUN_ABORT_S = 15.0
_LOST_EXIT_S = 0.1
_LAST_WORDS_S = 0.3
_UNSEEN_S = 0.5
"""On nodes without a watcher srun has to end the tasks. It is told to after this time, in which the words of a
person's cancel arrive: after that they could not be told from the words about ours."""
_WORD_S = 1.0
"""After slurmctld has told srun that the step is over, ends of tasks are kept back so long: slurmstepd's word that it
was cancelled comes over another connection."""
_CANCELLED_RULE = "slurm.step_cancelled"
_ASKS_RESTART = ("slurm.task.exited", str(EXIT_RESTART_ME))
_KILLED = frozenset({signal.SIGKILL, signal.SIGTERM})


def _open_log(path: Path) -> IO[bytes]:
    """What srun says is kept here; a folder that is full or gone must not stop the step."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("ab", buffering=0)
    except OSError:
        return Path(os.devnull).open("ab", buffering=0)


class Stream:
    """One of srun's outputs: a pipe that we read."""

    def __init__(self, ours: int) -> None:
        self.out = OwnOutput(ours)
        self.read_end = self.write_end = -1
        self.line = b""

    def open(self) -> int:
        """What srun gets as its descriptor."""
        self.line = b""
        self.read_end, self.write_end = os.pipe()
        os.set_blocking(self.read_end, False)
        return self.write_end


class StepAttempt:
    """One run of srun."""

    def __init__(
        self, job: str, spec: AttemptSpec, child: Child, reader: OutputReader, log: IO[bytes], files: StepFiles
    ) -> None:
        self.spec = spec
        self.child = child
        self.reader = reader
        self.log = log
        self.files = files
        self.is_ending = False
        self.is_gone = False
        self.fate = StepFate(job)
        self.is_cancel_told = False
        self.stream: LineStream | None = None
        self.waiting = b""
        self.tail: list[str] = []
        self.first_bad: TaskEnd | None = None
        self.bad_until = 0.0
        """Until then (monotonic) what is printed without a place may still be the first bad task's."""
        self.unplaced: list[Spotted] = []
        self.kept_back: list[tuple[str, RankEnded]] = []
        self.undecided: list[tuple[str, RankEnded]] = []
        """Ends that a person's cancel may explain, see `_WORD_S`."""


class StepRunner:
    """See the module.

    Args:
        place: of the supervisor.
        call: srun's command line.
        shape: of the step.
        base: environment that srun gets.
        user: name of the user, for file-name patterns.
        telemetry: what the names of the tasks' folders of slots begin with, see `step_slots`.
        matcher: may still be loading.
        report: (node, report) takes what is seen.
        on_end: srun has ended by itself.
        on_lost: (node, line) the scheduler says that a node has failed.
        on_cancelled: (attempt, why) a person has ended the step.
        is_acting: ends of tasks are answered by us; otherwise the step is left as srun itself would have it.
        voice: for people.
    """

    local_ranks = 1

    def __init__(
        self,
        place: JobPlace,
        call: SrunCall,
        shape: StepShape,
        *,
        base: Mapping[str, str],
        user: str,
        telemetry: str,
        matcher: LateMatcher,
        report: Callable[[str, AnyReport], None],
        on_end: Callable[[int], None],
        on_lost: Callable[[str, str], None],
        on_cancelled: Callable[[int, str], None],
        is_acting: bool,
        voice: Voice,
    ) -> None:
        self.attempt: StepAttempt | None = None
        self.left_hanging = False
        """srun had to be killed, so the scheduler still counts its step."""
        self.is_interactive = call.has("pty") or os.isatty(0)
        self.last_exit = Exit()
        self._place = place
        self._call = call
        self._shape = shape
        self._base = dict(base)
        self._user = user
        self._telemetry = telemetry
        self._slots = StepSlots(telemetry, place.node, lambda told: report(place.node, told))
        self._matcher = matcher
        self._report = report
        self._on_end = on_end
        self._on_lost = on_lost
        self._on_cancelled = on_cancelled
        self._voice = voice
        self._streams = [] if call.has("pty") else [Stream(1), Stream(2)]
        self._ended_by = "srun" if call.has("pty") else "us" if is_acting and not self._waits else "user"
        self._hurry = asyncio.Event()
        self._dumps: set[asyncio.Task[None]] = set()

    # --- start ---

    def start(self, spec: AttemptSpec, *, overlap: bool) -> None:
        """Start srun for this attempt. Raises PermanentOrderError."""
        place = self._place
        folder = place.job_dir / "logs" / f"attempt-{spec.attempt}"
        log = _open_log(folder / "output.log")
        self._voice.write_to(folder / f"launcher-{place.node}.log")
        argv = attempt_argv(self._call, self._shape, spec.nodes, overlap=overlap, ended_by=self._ended_by)
        self._voice.note(f"starting {' '.join(argv[:12])}")
        files = StepFiles(self._call, self._base, folder, user=self._user)
        descriptors = {1: 1, 2: 2}
        for number, stream in enumerate(self._streams, start=1):
            descriptors[number] = stream.open()
        self._hurry.clear()
        self._slots.begin(spec.attempt)
        try:
            child = process.spawn(
                "srun",
                argv,
                env=self._environment(spec),
                stdin=0,
                stdout=descriptors[1],
                stderr=descriptors[2],
                own_session=not self.is_interactive,
            )
        finally:
            for stream in self._streams:
                if stream.write_end >= 0:
                    os.close(stream.write_end)
                    stream.write_end = -1
        reader = OutputReader(
            job=place.job, node="", attempt=spec.attempt, source=f"{place.source}/{place.restart_count}"
        )
        attempt = StepAttempt(place.job.id, spec, child, reader, log, files)
        self.attempt = attempt
        loop = asyncio.get_running_loop()
        for stream in self._streams:
            if stream.read_end >= 0:
                loop.add_reader(stream.read_end, self._read, attempt, stream)
        child.on_exit = lambda _: self._ended(attempt)
        if child.exit is not None:
            self._ended(attempt)
        self._matcher.begin()

    def _environment(self, spec: AttemptSpec) -> dict[str, str]:
        environ = dict(self._base)
        environ |= {
            "HOLDFAST_JOB_ID": self._place.job.id,
            "HOLDFAST_JOB_DIR": str(self._place.job_dir),
            "HOLDFAST_ATTEMPT": str(spec.attempt),
            "HOLDFAST_EPOCH": str(spec.epoch),
        }
        if self._telemetry:
            environ["HOLDFAST_TELEMETRY_DIR"] = slots_folder(self._telemetry, spec.attempt)
        environ.pop("HOLDFAST_RESTORE_STEP", None)
        if spec.restore_step is not None:
            environ["HOLDFAST_RESTORE_STEP"] = str(spec.restore_step)
        return environ

    @property
    def _waits(self) -> bool:
        """The user wants the other tasks to go on when one has ended badly."""
        return self._call.value("kill-on-bad-exit") == "0"

    # --- what srun says ---

    def _read(self, attempt: StepAttempt, stream: Stream) -> None:
        while stream.read_end >= 0:
            try:
                data = os.read(stream.read_end, _BLOCK)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._close(stream)
                return
            stream.out.write(data)
            with contextlib.suppress(OSError):  # a full disk must not stop the step
                attempt.log.write(data)
            self._take(attempt, stream, data)

    @staticmethod
    def _close(stream: Stream) -> None:
        if stream.read_end >= 0:
            asyncio.get_running_loop().remove_reader(stream.read_end)
            os.close(stream.read_end)
            stream.read_end = -1

    def _take(self, attempt: StepAttempt, stream: Stream, data: bytes) -> None:
        lines = (stream.line + data).split(b"\n")
        stream.line = lines.pop()[-_BLOCK:]
        texts = [line[:500].decode(errors="replace") for line in lines[-TAIL_LINES:]]
        attempt.tail = [*attempt.tail, *texts][-TAIL_LINES:]
        self._match(attempt, b"".join(line + b"\n" for line in lines))
        for line in lines:
            if line.startswith(b"srun: ") or b"slurmstepd" in line[:32]:
                self._srun_says(attempt, line.decode(errors="replace"))

    def _fate_says(self, attempt: StepAttempt, line: str) -> None:
        attempt.fate.take(line, time.monotonic())
        if attempt.first_bad is not None or attempt.is_ending:
            self._tell_cancelled(attempt)

    def _tell_cancelled(self, attempt: StepAttempt, *, is_all_said: bool = False) -> None:
        if attempt.is_cancel_told or attempt.is_gone:
            return
        if attempt.fate.is_cancelled(time.monotonic(), is_all_said=is_all_said):
            attempt.is_cancel_told = True
            self._on_cancelled(attempt.spec.attempt, "the step was cancelled")
            self._release(attempt)

    def _waited(self, attempt: StepAttempt) -> None:
        """A reason for the step's end would have come by now."""
        self._tell_cancelled(attempt, is_all_said=True)
        self._release(attempt)

    def _release(self, attempt: StepAttempt) -> None:
        """It is known whether a person cancelled the step, and has been told: what was kept back is as it looks."""
        undecided, attempt.undecided = attempt.undecided, []
        for node, report in undecided:
            self._report(node, report)

    def _srun_says(self, attempt: StepAttempt, line: str) -> None:
        self._fate_says(attempt, line)
        if attempt.is_ending:
            return
        at = time.time()
        ended = task_end(line)
        if ended is not None:
            if attempt.first_bad is not None and ended.signal == signal.SIGTERM:
                return  # srun ends the others after the first
            if attempt.first_bad is None:
                attempt.first_bad, attempt.bad_until = ended, time.monotonic() + _LAST_WORDS_S
                self._tell_cancelled(attempt)
            self._place_findings(attempt, ended)
            self._slots.look()
            rank, how = ended.tasks[0], Exit(code=ended.code, signal=ended.signal)
            report = self._rank_ended(attempt, rank, how, at)
            if self._waits:
                attempt.kept_back.append((ended.node, report))
            elif attempt.fate.is_aborted and ended.signal in _KILLED and not attempt.is_cancel_told:
                attempt.undecided.append((ended.node, report))
                asyncio.get_running_loop().call_later(_WORD_S, self._waited, attempt)
            else:
                self._report(ended.node, report)
        elif (node := lost_node(line)) is not None:
            self._on_lost(node, line)
        elif is_waiting_for_nodes(line) and attempt.spec.in_place:
            self._voice.note("an earlier step still holds the nodes")

    def _match(self, attempt: StepAttempt, data: bytes) -> None:
        if not self._matcher.is_ready:
            attempt.waiting = (attempt.waiting + data)[-_WAITING_MAX:]
            return
        is_late = bool(attempt.waiting)
        if attempt.stream is None:
            attempt.stream = self._matcher.get().stream(StreamSource(name="output.log"))
            data, attempt.waiting = attempt.waiting + data, b""
        if data:
            at = time.time()
            self._tell(attempt, attempt.stream.feed(data, at), at, rank=None, file="output.log")
        if is_late and attempt.first_bad is not None:
            self._place_findings(attempt, attempt.first_bad)

    def _tell(self, attempt: StepAttempt, matches: list[Match], at: float, *, rank: int | None, file: str) -> None:
        # A task that asks to be started again has not failed.
        matches = [m for m in matches if (m.rule.id, m.captures.get("code")) != _ASKS_RESTART]
        if not matches:
            return
        if attempt.is_ending:
            # What the scheduler says of tasks that we end explains nothing.
            matches = [match for match in matches if not match.rule.id.startswith("slurm.")]
        findings = attempt.reader.findings(matches, rank=rank, file=file, at=at)
        if findings:
            spotted = Spotted(findings=findings)
            self._report("", spotted)
            attempt.unplaced.append(spotted)
            if attempt.first_bad is not None and time.monotonic() < attempt.bad_until:
                self._place_findings(attempt, attempt.first_bad)
        line = attempt.reader.progress(matches, rank=rank, at=at)
        if line is not None:
            self._report("", line)

    def _place_findings(self, attempt: StepAttempt, ended: TaskEnd) -> None:
        """What was printed without a place, just before the first task ended: that task's node is where it was."""
        for spotted in attempt.unplaced[-20:]:
            placed = tuple(
                structs.replace(
                    found,
                    id=f"{found.id}:placed",
                    place=structs.replace(found.place, node=ended.node, rank=ended.tasks[0] if ended.tasks else None),
                )
                for found in spotted.findings
                if not found.place.node and found.place.rank in {None, *ended.tasks}
            )
            if placed:
                self._report(ended.node, Spotted(findings=placed))
        attempt.unplaced.clear()

    async def watch(self) -> None:
        """Slots, output files, and what was printed before the matcher was ready, until cancelled."""
        while True:
            await asyncio.sleep(_TICK_S)
            attempt = self.attempt
            if attempt is None or attempt.is_gone:
                continue
            self._slots.look()
            if self._matcher.is_ready:
                self._match(attempt, b"")
                self._read_files(attempt)

    def _read_files(self, attempt: StepAttempt) -> None:
        at = time.time()
        for path, rank, matches in attempt.files.pump(self._matcher.get(), at):
            for match in matches:
                if match.rule.id == _CANCELLED_RULE:  # slurmstepd writes to where the first task does
                    self._fate_says(attempt, match.text)
            self._tell(attempt, matches, at, rank=rank, file=path)

    # --- its end ---

    def _ended(self, attempt: StepAttempt) -> None:
        """Srun has ended, by itself or by us; what it still said is in the pipes."""
        for stream in self._streams:
            if stream.read_end >= 0:
                self._read(attempt, stream)
        how = attempt.child.exit or Exit()
        if not attempt.is_ending:
            self.last_exit = how
            if self._matcher.is_ready:
                self._read_files(attempt)
            if not self._streams and how.shell_code in {128 + number for number in _KILLED}:
                # Of a step with a terminal nothing is read; the person who sits there knows who ended it.
                self._on_cancelled(attempt.spec.attempt, "the step with a terminal was killed")
            elif not how.is_success:
                self._tell_cancelled(attempt, is_all_said=True)
            self._release(attempt)
            for node, report in attempt.kept_back:
                self._report(node, report)
            self._report(self._place.node, self._rank_ended(attempt, None, how, attempt.child.ended_at))
            self._on_end(attempt.spec.attempt)
        elif how.code is not None:
            self.last_exit = how

    def _rank_ended(self, attempt: StepAttempt, rank: int | None, how: Exit, at: float) -> RankEnded:
        return RankEnded(
            attempt=attempt.spec.attempt,
            rank=rank,
            exit=how,
            at=at,
            tail=tuple(attempt.tail[-20:]),
            log=str(self._place.job_dir / "logs" / f"attempt-{attempt.spec.attempt}" / "output.log"),
        )

    async def ask_to_end(self, grace_s: float) -> None:
        """SIGTERM, which srun passes on, and time to obey."""
        attempt = self.attempt
        if attempt is None or attempt.child.exit is not None:
            return
        attempt.fate.explain()
        attempt.child.send(signal.SIGTERM)
        hurried = asyncio.create_task(self._hurry.wait())
        ended = asyncio.create_task(attempt.child.exited.wait())
        await asyncio.wait([hurried, ended], timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        ended.cancel()

    def hurry(self) -> None:
        """No more time for the program."""
        self._hurry.set()

    async def end_srun(self, *, is_seen: bool, is_whole: bool) -> None:
        """Have srun end. Its tasks are being ended meanwhile.

        Args:
            is_seen: watchers end the tasks on every node; otherwise srun itself must have them ended.
            is_whole: no node is lost, so that srun can learn the end of all its tasks.
        """
        attempt = self.attempt
        if attempt is None:
            return
        attempt.is_ending = True
        own = asyncio.create_task(self.end_own_tasks(attempt.spec.epoch))
        if not is_seen and not await self._exits(attempt, _UNSEEN_S):
            # Two interrupts within a second have srun kill the step (srun(1), "SIGNALS AND ESCAPE SEQUENCES").
            attempt.fate.explain()
            attempt.child.send(signal.SIGINT)
            await asyncio.sleep(_TICK_S)
            attempt.child.send(signal.SIGINT)
            await self._exits(attempt, _SRUN_ABORT_S)
        await self._exits(attempt, _SRUN_EXIT_S if is_whole else _LOST_EXIT_S)
        await own
        if attempt.child.exit is None:
            self.left_hanging = True
            attempt.child.send(signal.SIGKILL)
            await attempt.child.exited.wait()

    @staticmethod
    async def _exits(attempt: StepAttempt, limit_s: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await attempt.child.exited.wait()
        return attempt.child.exit is not None

    async def end_own_tasks(self, epoch: int) -> None:
        """Kill what runs of this and earlier attempts on our own node."""
        folder = str(self._place.job_dir)
        await kill_all(lambda: tasks_of(self._place.job.id, folder, lambda found: found <= epoch))

    def finish(self) -> None:
        """The attempt is over everywhere: close its files, keep its part of the output files."""
        attempt = self.attempt
        if attempt is None or attempt.is_gone:
            return
        self._slots.look()
        for stream in self._streams:
            if stream.read_end >= 0:
                self._read(attempt, stream)
                self._close(stream)
        if self._matcher.is_ready:
            self._match(attempt, b"")
            self._read_files(attempt)
            if attempt.stream is not None:
                at = time.time()
                self._tell(attempt, attempt.stream.flush(at), at, rank=None, file="output.log")
        if attempt.first_bad is not None:
            self._tell_cancelled(attempt, is_all_said=True)
        attempt.is_gone = True
        attempt.log.close()
        attempt.files.keep_soon()

    # --- as `runner.Runner` ---

    def ask_soon(self, ask: AnyAsk) -> None:
        """Signals are for srun, stacks and saves of our own node's tasks; the rest is done by `StepCrew` itself."""
        if isinstance(ask, PassSignal):
            self.pass_signal(ask.signum)
        elif isinstance(ask, DumpStacks):
            task = asyncio.create_task(self._dump(ask))
            self._dumps.add(task)
            task.add_done_callback(self._dumps.discard)
        elif isinstance(ask, AskEvacuate):
            with contextlib.suppress(SlotError):  # the slots of other nodes may still be there
                self._slots.evacuate(ask.attempt)

    async def _dump(self, ask: DumpStacks) -> None:
        job, folder = self._place.job.id, str(self._place.job_dir)
        stacks = await self._slots.dump(ask.attempt, ask.limit_s, lambda: tasks_of(job, folder, lambda _: True))
        self._report(self._place.node, StacksDumped(attempt=ask.attempt, stacks=stacks))

    def pass_signal(self, signum: int) -> None:
        """To srun, which passes it on to all tasks."""
        if self.attempt is not None and self.attempt.child.exit is None:
            self.attempt.child.send(signum)

    async def end(self, number: int, grace_s: float, why: str = "") -> None:
        """The supervisor's own lease is over: nothing may go on, here or elsewhere."""
        del grace_s
        attempt = self.attempt
        if attempt is None or attempt.spec.attempt != number or attempt.is_gone:
            return
        self._voice.note(f"ending the step: {why}")
        await self.end_srun(is_seen=True, is_whole=False)
        self._on_end(number)

    async def close(self, grace_s: float) -> None:
        """End what still runs."""
        attempt = self.attempt
        if attempt is None:
            return
        await self._end_and_keep(attempt, grace_s)
        self._slots.close()

    async def _end_and_keep(self, attempt: StepAttempt, grace_s: float) -> None:
        if attempt.child.exit is None:
            await self.ask_to_end(grace_s) if grace_s else None
            await self.end_srun(is_seen=False, is_whole=True)
        self.finish()
        await asyncio.to_thread(attempt.files.keep)

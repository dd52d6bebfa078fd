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
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from msgspec import Struct

from holdfast.adapters.slurm.srun_words import StepRefusals
from holdfast.adapters.slurm.steps import SrunCall, StepShape, attempt_argv
from holdfast.errors import PermanentOrderError
from holdfast.launch import process
from holdfast.launch.environment import AttemptSpec, attempt_environment
from holdfast.launch.frames import (
    AnyAsk,
    AskEvacuate,
    DumpStacks,
    PassSignal,
    StacksDumped,
)
from holdfast.launch.late_matcher import LateMatcher
from holdfast.launch.output import OwnOutput, Voice
from holdfast.launch.place import JobPlace
from holdfast.launch.process import Child, Exit
from holdfast.launch.step_files import StepFiles
from holdfast.launch.step_slots import StepSlots, slots_folder
from holdfast.launch.step_tasks import kill_all, tasks_of
from holdfast.launch.step_words import KILLED, StepListener, StepWords
from holdfast.telemetry.slot import SlotError

_TICK_S = 0.1
_BLOCK = 1 << 16
_SRUN_EXIT_S = 2.0
"""After its tasks are gone srun ends by itself within a tenth of a second; then the step is over for the scheduler."""
_SRUN_ABORT_S = 15.0
_LOST_EXIT_S = 0.1
CONTROLLER_AWAY_S = 2.0
"""Between two tries of srun while slurmctld is away."""
_UNSEEN_S = 0.5
"""On nodes without a watcher srun has to end the tasks. It is told to after this time, in which the words of a
person's cancel arrive: after that they could not be told from the words about ours."""


def _open_log(path: Path) -> IO[bytes]:
    """What srun says is kept here; a folder that is full or gone must not stop the step."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("ab", buffering=0)
    except OSError:
        return Path(os.devnull).open("ab", buffering=0)


class SrunPipes:
    """What srun prints: passed on to our own output, and read. With a terminal srun has that to itself."""

    def __init__(self, outs: Sequence[int]) -> None:
        self._outs = {number: OwnOutput(number) for number in outs}
        self._read_ends: dict[int, int] = {}
        self._parts: dict[int, bytes] = {}
        """Of a line that is not yet whole."""
        self._log: IO[bytes] | None = None
        self._on_lines: Callable[[list[bytes]], None] | None = None

    @property
    def are_read(self) -> bool:
        """Srun has no terminal to itself."""
        return bool(self._outs)

    @contextlib.contextmanager
    def opened(self) -> Iterator[dict[int, int]]:
        """Srun's own ends, by number, closed when srun has been started."""
        ends = {1: 1, 2: 2}
        self._parts.clear()
        try:
            for number in self._outs:
                self._read_ends[number], ends[number] = os.pipe()
                os.set_blocking(self._read_ends[number], False)
            yield ends
        finally:
            for number in self._outs:
                if ends[number] != number:
                    os.close(ends[number])

    def listen(self, log: IO[bytes], on_lines: Callable[[list[bytes]], None]) -> None:
        """Read from now on; whole lines are told, everything goes into the log."""
        self._log, self._on_lines = log, on_lines
        for number, end in self._read_ends.items():
            asyncio.get_running_loop().add_reader(end, self._read, number)

    def drain(self) -> None:
        """Read what is there."""
        for number in list(self._read_ends):
            self._read(number)

    def close(self) -> None:
        """Read what is there, and nothing more."""
        self.drain()
        for number in list(self._read_ends):
            self._close(number)
        self._log = self._on_lines = None

    def _close(self, number: int) -> None:
        end = self._read_ends.pop(number)
        asyncio.get_running_loop().remove_reader(end)
        os.close(end)

    def _read(self, number: int) -> None:
        while number in self._read_ends:
            try:
                data = os.read(self._read_ends[number], _BLOCK)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._close(number)
                return
            self._outs[number].write(data)
            if self._log is not None:
                with contextlib.suppress(OSError):  # a full disk must not stop the step
                    self._log.write(data)
            lines = (self._parts.get(number, b"") + data).split(b"\n")
            self._parts[number] = lines.pop()[-_BLOCK:]
            if self._on_lines is not None:
                self._on_lines(lines)


class SrunStep(Struct, frozen=True):
    """How srun is called.

    Args:
        place: of the supervisor.
        call: srun's command line.
        shape: of the step.
        base: environment that srun gets.
        telemetry: what the names of the tasks' folders of slots begin with, see `step_slots`.
        is_acting: ends of tasks are answered by us; otherwise the step is left as srun itself would have it.
    """

    place: JobPlace
    call: SrunCall
    shape: StepShape
    base: Mapping[str, str]
    telemetry: str
    is_acting: bool

    @property
    def waits(self) -> bool:
        """The user wants the other tasks to go on when one has ended badly."""
        return self.call.value("kill-on-bad-exit") == "0"

    @property
    def has_terminal(self) -> bool:
        """Srun has the terminal to itself."""
        return self.call.has("pty")

    def argv(self, spec: AttemptSpec, *, overlap: bool) -> list[str]:
        """Srun's command line for this attempt."""
        ended_by = "srun" if self.has_terminal else "us" if self.is_acting and not self.waits else "user"
        return attempt_argv(self.call, self.shape, spec.nodes, overlap=overlap, ended_by=ended_by)

    def files(self, attempt: int) -> StepFiles:
        """The output files that the call asks for."""
        return StepFiles(self.call, self.base, self.place.logs(attempt), user=self.place.user)

    def environment(self, spec: AttemptSpec) -> dict[str, str]:
        """What srun and the tasks get."""
        telemetry = slots_folder(self.telemetry, spec.attempt) if self.telemetry else ""
        environ = attempt_environment(self.base, spec, job_dir=str(self.place.job_dir), telemetry_dir=telemetry)
        return environ | {"HOLDFAST_JOB_ID": self.place.job.id}


class StepAttempt:
    """One run of srun."""

    def __init__(
        self, spec: AttemptSpec, child: Child, log: IO[bytes], files: StepFiles, words: StepWords, *, overlap: bool
    ) -> None:
        self.again: asyncio.TimerHandle | None = None
        """Srun is started again at this time: slurmctld was away."""
        self.has_waited = False
        self.refusals = StepRefusals()
        self.overlap = overlap
        self.spec = spec
        self.child = child
        self.log = log
        self.files = files
        self.words = words
        self.is_gone = False

    @property
    def is_ending(self) -> bool:
        """It is being ended by us."""
        return self.words.is_ending

    def hear(self, lines: list[bytes]) -> None:
        """Whole lines that srun has printed. That slurmctld is away explains nothing."""
        now = time.monotonic()
        told = [line for line in lines if not self.refusals.is_one(line[:500].decode(errors="replace"), now)]
        self.words.take(told)

    def stop_waiting(self) -> None:
        """Srun is not started again."""
        if self.again is not None:
            self.again.cancel()
            self.again = None

    async def exits(self, limit_s: float) -> bool:
        """Whether srun ends within this time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self.child.exited.wait()
        return self.child.exit is not None


class StepRunner:
    """See the module.

    Args:
        step: how srun is called.
        matcher: may still be loading.
        listener: is told what is seen.
        voice: for people.
    """

    local_ranks = 1

    def __init__(self, step: SrunStep, *, matcher: LateMatcher, listener: StepListener, voice: Voice) -> None:
        place = step.place
        self.attempt: StepAttempt | None = None
        self.left_hanging = False
        """srun had to be killed, so the scheduler still counts its step."""
        self.is_interactive = step.has_terminal or os.isatty(0)
        self.last_exit = Exit()
        self._step = step
        self._place = place
        self._slots = StepSlots(step.telemetry, place.node, lambda told: listener.report(place.node, told))
        self._matcher = matcher
        self._listener = listener
        self._voice = voice
        self._pipes = SrunPipes(() if step.has_terminal else (1, 2))
        self._hurry = asyncio.Event()
        self._dumps: set[asyncio.Task[None]] = set()

    # --- start ---

    @property
    def is_waiting(self) -> bool:
        """There is no srun, because slurmctld is away."""
        return self.attempt is not None and self.attempt.again is not None

    def start(self, spec: AttemptSpec, *, overlap: bool) -> None:
        """Start srun for this attempt. Raises PermanentOrderError."""
        folder = self._place.logs(spec.attempt)
        log = _open_log(folder / "output.log")
        self._voice.write_to(folder / f"launcher-{self._place.node}.log")
        files = self._step.files(spec.attempt)
        self._hurry.clear()
        self._slots.begin(spec.attempt)
        child = self._spawn(spec, overlap=overlap)
        words = StepWords(
            self._place,
            spec,
            files,
            matcher=self._matcher,
            listener=self._listener,
            look_at_slots=self._slots.look,
            waits=self._step.waits,
            voice=self._voice,
        )
        attempt = StepAttempt(spec, child, log, files, words, overlap=overlap)
        self.attempt = attempt
        self._follow(attempt)
        self._matcher.begin()

    def _spawn(self, spec: AttemptSpec, *, overlap: bool) -> Child:
        argv = self._step.argv(spec, overlap=overlap)
        self._voice.note(f"starting {' '.join(argv[:12])}")
        with self._pipes.opened() as ends:
            return process.spawn(
                argv,
                env=self._step.environment(spec),
                stdin=0,
                stdout=ends[1],
                stderr=ends[2],
                own_session=not self.is_interactive,
            )

    def _follow(self, attempt: StepAttempt) -> None:
        self._pipes.listen(attempt.log, attempt.hear)
        attempt.child.on_exit = lambda _: self._ended(attempt)
        if attempt.child.exit is not None:
            self._ended(attempt)

    def _start_again(self, attempt: StepAttempt) -> None:
        """Slurmctld was away."""
        attempt.again = None
        attempt.refusals.is_refused = False
        try:
            attempt.child = self._spawn(attempt.spec, overlap=attempt.overlap)
        except PermanentOrderError as error:
            self._voice.say(str(error))
            self._over(attempt)
            return
        self._follow(attempt)

    async def watch(self) -> None:
        """Slots, output files, and what was printed before the matcher was ready, until cancelled."""
        while True:
            await asyncio.sleep(_TICK_S)
            attempt = self.attempt
            if attempt is None or attempt.is_gone:
                continue
            self._slots.look()
            attempt.words.take([])
            attempt.words.read_files()

    # --- its end ---

    def _ended(self, attempt: StepAttempt) -> None:
        """Srun has ended, by itself or by us; what it still said is in the pipes."""
        self._pipes.drain()
        if self._step.is_acting and attempt.refusals.is_refused and not attempt.is_ending:
            if not attempt.has_waited:
                self._voice.say("waiting for slurmctld, which makes no step now; this counts as no restart")
                attempt.has_waited = True
            self._pipes.close()
            attempt.again = asyncio.get_running_loop().call_later(CONTROLLER_AWAY_S, self._start_again, attempt)
            return
        self._over(attempt)

    def _over(self, attempt: StepAttempt) -> None:
        how = attempt.child.exit or Exit()
        if not attempt.is_ending:
            self.last_exit = how
            attempt.words.read_files()
            is_killed = not self._pipes.are_read and how.shell_code in {128 + number for number in KILLED}
            if is_killed:
                # Of a step with a terminal nothing is read; the person who sits there knows who ended it.
                self._listener.cancelled(attempt.spec.attempt, "the step with a terminal was killed")
            attempt.words.srun_ended(is_explained=is_killed or how.is_success)
            ended = attempt.words.rank_ended(None, how, attempt.child.ended_at)
            self._listener.report(self._place.node, ended)
            self._listener.ended(attempt.spec.attempt)
        elif how.code is not None:
            self.last_exit = how

    async def ask_to_end(self, grace_s: float) -> None:
        """SIGTERM, which srun passes on, and time to obey."""
        attempt = self.attempt
        if attempt is None or attempt.child.exit is not None:
            return
        attempt.words.fate.explain()
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
        attempt.words.findings.is_ending = True
        attempt.stop_waiting()
        own = asyncio.create_task(self.end_own_tasks(attempt.spec.epoch))
        if not is_seen and not await attempt.exits(_UNSEEN_S):
            # Two interrupts within a second have srun kill the step (srun(1), "SIGNALS AND ESCAPE SEQUENCES").
            attempt.words.fate.explain()
            attempt.child.send(signal.SIGINT)
            await asyncio.sleep(_TICK_S)
            attempt.child.send(signal.SIGINT)
            await attempt.exits(_SRUN_ABORT_S)
        await attempt.exits(_SRUN_EXIT_S if is_whole else _LOST_EXIT_S)
        await own
        if attempt.child.exit is None:
            self.left_hanging = True
            attempt.child.send(signal.SIGKILL)
            await attempt.child.exited.wait()

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
        self._pipes.close()
        attempt.words.finish()
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
        self._listener.report(self._place.node, StacksDumped(attempt=ask.attempt, stacks=stacks))

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
        self._listener.ended(number)

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

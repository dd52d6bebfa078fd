"""What srun says about one run of a step: findings in the output, ends of tasks, and whether a person cancelled it.

Used by `step_runner`, which reads the pipes. What srun prints carries no place; the first task that ends badly gives
its own to what was printed just before. Times are read here.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable

from msgspec import Struct, structs

from holdfast.adapters.slurm.srun_words import StepFate, TaskEnd, is_waiting_for_nodes, lost_node, task_end
from holdfast.detect.matcher import LineStream, Match, StreamSource
from holdfast.errors import EXIT_RESTART_ME
from holdfast.launch.environment import AttemptSpec
from holdfast.launch.frames import AnyReport, RankEnded, Spotted
from holdfast.launch.late_matcher import LateMatcher
from holdfast.launch.output import TAIL_LINES, Voice
from holdfast.launch.place import JobPlace
from holdfast.launch.process import Exit
from holdfast.launch.reading import OutputReader
from holdfast.launch.step_files import StepFiles
from holdfast.os.clock import steady_time

_WAITING_MAX = 1 << 20
_LAST_WORDS_S = 0.3
_WORD_S = 1.0
"""After slurmctld has told srun that the step is over, ends of tasks are kept back so long: slurmstepd's word that it
was cancelled comes over another connection."""
_CANCELLED_RULE = "slurm.step_cancelled"
_ASKS_RESTART = ("slurm.task.exited", str(EXIT_RESTART_ME))
KILLED = frozenset({signal.SIGKILL, signal.SIGTERM})


class StepListener(Struct, frozen=True):
    """Who is told of a step."""

    report: Callable[[str, AnyReport], None]
    """(node, report) what is seen; "": of no known node."""
    ended: Callable[[int], None]
    """(attempt) srun has ended by itself."""
    lost: Callable[[str, str], None]
    """(node, line) the scheduler says that a node has failed."""
    cancelled: Callable[[int, str], None]
    """(attempt, why) a person has ended the step."""


class StepFindings:
    """Findings in a step's output.

    Args:
        place: of the supervisor.
        attempt: its number.
        matcher: may still be loading.
        report: (node, report) takes findings and progress.
    """

    def __init__(
        self, place: JobPlace, attempt: int, matcher: LateMatcher, report: Callable[[str, AnyReport], None]
    ) -> None:
        self.is_ending = False
        """The step is being ended by us: what the scheduler says of its tasks explains nothing."""
        self._reader = OutputReader(
            job=place.job, node="", attempt=attempt, source=f"{place.source}/{place.restart_count}"
        )
        self._matcher = matcher
        self._report = report
        self._stream: LineStream | None = None
        self._waiting = b""
        self.first_bad: TaskEnd | None = None
        self._bad_until = 0.0
        """Until then (monotonic) what is printed without a place may still be the first bad task's."""
        self._unplaced: list[Spotted] = []

    def take(self, data: bytes) -> None:
        """Whole lines that srun has printed; none: what waited for the matcher."""
        if not self._matcher.is_ready:
            self._waiting = (self._waiting + data)[-_WAITING_MAX:]
            return
        is_late = bool(self._waiting)
        if self._stream is None:
            self._stream = self._matcher.get().stream(StreamSource())
            data, self._waiting = self._waiting + data, b""
        if data:
            at = steady_time()
            self.tell(self._stream.feed(data, at), at, rank=None, file="output.log")
        if is_late and self.first_bad is not None:
            self.place(self.first_bad)

    def flush(self) -> None:
        """Nothing more will be printed."""
        if self._stream is not None:
            at = steady_time()
            self.tell(self._stream.flush(at), at, rank=None, file="output.log")

    def tell(self, matches: list[Match], at: float, *, rank: int | None, file: str) -> None:
        """Report what was matched in a file, or in the output."""
        # A task that asks to be started again has not failed.
        matches = [m for m in matches if (m.rule.id, m.captures.get("code")) != _ASKS_RESTART]
        if not matches:
            return
        if self.is_ending:
            matches = [match for match in matches if not match.rule.id.startswith("slurm.")]
        findings = self._reader.findings(matches, rank=rank, file=file, at=at)
        if findings:
            spotted = Spotted(findings=findings)
            self._report("", spotted)
            self._unplaced.append(spotted)
            if self.first_bad is not None and time.monotonic() < self._bad_until:
                self.place(self.first_bad)
        line = self._reader.progress(matches, rank=rank, at=at)
        if line is not None:
            self._report("", line)

    def fail(self, ended: TaskEnd) -> None:
        """The first task has come to a bad end."""
        self.first_bad, self._bad_until = ended, time.monotonic() + _LAST_WORDS_S

    def place(self, ended: TaskEnd) -> None:
        """A task has come to a bad end: what was printed just before is placed where it ran."""
        rank = ended.tasks[0] if ended.tasks else None
        for spotted in self._unplaced[-20:]:
            placed = tuple(
                structs.replace(
                    found, id=f"{found.id}:placed", place=structs.replace(found.place, node=ended.node, rank=rank)
                )
                for found in spotted.findings
                if not found.place.node and found.place.rank in {None, *ended.tasks}
            )
            if placed:
                self._report(ended.node, Spotted(findings=placed))
        self._unplaced.clear()


class StepWords:
    """Reads one run of srun.

    Args:
        place: of the supervisor.
        spec: the attempt.
        files: the tasks' output files.
        matcher: may still be loading.
        listener: is told.
        look_at_slots: called when a task has ended, so that its last step is known first.
        waits: the user wants the other tasks to go on when one has ended badly.
        voice: for people.
    """

    def __init__(
        self,
        place: JobPlace,
        spec: AttemptSpec,
        files: StepFiles,
        *,
        matcher: LateMatcher,
        listener: StepListener,
        look_at_slots: Callable[[], None],
        waits: bool,
        voice: Voice,
    ) -> None:
        self.fate = StepFate(place.job.id)
        self.findings = StepFindings(place, spec.attempt, matcher, listener.report)
        self._spec = spec
        self._files = files
        self._matcher = matcher
        self._listener = listener
        self._look_at_slots = look_at_slots
        self._waits = waits
        self._voice = voice
        self._log = str(place.logs(spec.attempt) / "output.log")
        self._tail: list[str] = []
        self._is_cancel_told = False
        self._kept_back: list[tuple[str, RankEnded]] = []
        self._undecided: list[tuple[str, RankEnded]] = []
        """Ends that a person's cancel may explain, see `_WORD_S`."""
        self._is_over = False

    @property
    def is_ending(self) -> bool:
        """The step is being ended by us."""
        return self.findings.is_ending

    # --- what is said ---

    def take(self, lines: list[bytes]) -> None:
        """Whole lines that srun has printed."""
        texts = [line[:500].decode(errors="replace") for line in lines[-TAIL_LINES:]]
        self._tail = [*self._tail, *texts][-TAIL_LINES:]
        self.findings.take(b"".join(line + b"\n" for line in lines))
        for line in lines:
            if line.startswith(b"srun: ") or b"slurmstepd" in line[:32]:
                self._srun_says(line.decode(errors="replace"))

    def read_files(self) -> None:
        """What the tasks have written into their output files."""
        if not self._matcher.is_ready:
            return
        at = steady_time()
        for path, rank, matches in self._files.pump(self._matcher.get(), at):
            for match in matches:
                if match.rule.id == _CANCELLED_RULE:  # slurmstepd writes to where the first task does
                    self._fate_says(match.text)
            self.findings.tell(matches, at, rank=rank, file=path)

    def _srun_says(self, line: str) -> None:
        self._fate_says(line)
        if self.is_ending:
            return
        ended = task_end(line)
        if ended is not None:
            self._task_ended(ended)
        elif (node := lost_node(line)) is not None:
            self._listener.lost(node, line)
        elif is_waiting_for_nodes(line) and self._spec.in_place:
            self._voice.note("an earlier step still holds the nodes")

    def _task_ended(self, ended: TaskEnd) -> None:
        if self.findings.first_bad is None:
            self.findings.fail(ended)
            self._tell_cancelled()
        elif ended.signal == signal.SIGTERM:
            return  # srun ends the others after the first
        self.findings.place(ended)
        self._look_at_slots()
        how = Exit(code=ended.code, signal=ended.signal)
        report = self.rank_ended(ended.tasks[0], how, steady_time())
        if self._waits:
            self._kept_back.append((ended.node, report))
        elif self.fate.is_aborted and ended.signal in KILLED and not self._is_cancel_told:
            self._undecided.append((ended.node, report))
            asyncio.get_running_loop().call_later(_WORD_S, self._waited)
        else:
            self._listener.report(ended.node, report)

    def rank_ended(self, rank: int | None, how: Exit, at: float) -> RankEnded:
        """The end of a task, or of srun (None), as a report."""
        return RankEnded(
            attempt=self._spec.attempt, rank=rank, exit=how, at=at, tail=tuple(self._tail[-20:]), log=self._log
        )

    # --- a person's cancel ---

    def _fate_says(self, line: str) -> None:
        self.fate.take(line, time.monotonic())
        if self.findings.first_bad is not None or self.is_ending:
            self._tell_cancelled()

    def _tell_cancelled(self, *, is_all_said: bool = False) -> None:
        if self._is_cancel_told or self._is_over:
            return
        if self.fate.is_cancelled(time.monotonic(), is_all_said=is_all_said):
            self._is_cancel_told = True
            self._listener.cancelled(self._spec.attempt, "the step was cancelled")
            self._release()

    def _waited(self) -> None:
        """A reason for the step's end would have come by now."""
        self._tell_cancelled(is_all_said=True)
        self._release()

    def _release(self) -> None:
        """It is known whether a person cancelled the step, and has been told: what was kept back is as it looks."""
        undecided, self._undecided = self._undecided, []
        for node, report in undecided:
            self._listener.report(node, report)

    # --- its end ---

    def srun_ended(self, *, is_explained: bool) -> None:
        """Srun has ended by itself, and all that it said was taken; `is_explained`: well, or for a known reason."""
        if not is_explained:
            self._tell_cancelled(is_all_said=True)
        self._release()
        for node, report in self._kept_back:
            self._listener.report(node, report)

    def finish(self) -> None:
        """The attempt is over everywhere: what is still unread, then nothing more."""
        if self._matcher.is_ready:
            self.findings.take(b"")
            self.read_files()
            self.findings.flush()
        if self.findings.first_bad is not None:
            self._tell_cancelled(is_all_said=True)
        self._is_over = True

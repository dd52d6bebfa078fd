"""What a job lived through: errors before more steps, that came back by themselves, or after its work was done. Pure.

`LogReading` asks for each finding; what is set aside is shown with its reason and blamed for nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.detect.finding_times import MACHINE, Kept, SchedulerClock
from holdfast.detect.matcher import Match
from holdfast.detect.meaning import Trait, has, meaning
from holdfast.detect.unnamed import UnnamedErrors
from holdfast.model.evidence import Domain, Finding, Role, Severity

SURVIVED_STEPS = 2
"""So many rising steps after an error prove that the job lived through it; one may have been under way."""
WENT_ON_BYTES = 32_000
WENT_ON_SHARE = 0.4
"""So much of a log after its last error, free of trouble, shows that the error was handled. A tenth of the bytes is
enough when that is this share of the log."""
THREAD_TRACE_BYTES = 20_000
IGNORED_TRACE_BYTES = 4_000
"""Within so much after Python says that it ignores an exception, its trace ends."""
THREAD_WENT_ON_BYTES = 250
"""A program that prints so much after one of its threads ended, and nothing of trouble, does without that thread."""
GRACE_STEPS = 100
GRACE_S = 180.0
"""A step that Slurm has begun to end goes on for its KillWait, minutes at most: more shows another attempt."""
HANDLED = frozenset({"python", "data", "distributed", "control"})
"""Families of rules whose errors a program can handle."""
_PARTING_TYPES = ("Connection", "BrokenPipe", "EOF", "Timeout", "Dist", "Cancelled", "Shutdown", "SystemExit", "Socket")
_PARTING_WORDS = (
    "connection", "broken pipe", "peer", "process group", "processgroup", "tcpstore", "nccl", "gloo", "socket",
    "closed", "shut down", "shutdown", "shutting down", "interpreter", "killed by signal", "terminated",
    "sigterm", "atexit",
)  # fmt: skip
TOTALS_MAX = 256
STEP_TIMES_MAX = 512
OTHERS_S = 60.0
"""A process that the kernel ended so long before the last step was none of the job's, or none that it needed."""


class LogFile:
    """What is known of one log."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.scheduler = SchedulerClock()
        self.last_at: float | None = None
        self.progress_at: float | None = None
        self.numbers: dict[str, float] = {}
        self.rises: dict[str, int] = {}
        self.restarts: list[int] = []
        self.progress_lines = 0
        self.last_progress: Match | None = None
        self.step_times: list[float] = []
        self.completed: int | None = None
        self.steps_after = 0
        self.totals: set[str] = set()
        """How far the bars of the training went, as the logs say: an evaluation's go elsewhere."""
        self.back: dict[str, int] = {}
        self.size = 0
        self.recognised = False
        self.last_trouble = 0
        self.thread_at: int | None = None
        """Where an exception of a thread was announced, until it has come."""
        self.ignored_at: int | None = None
        self.unnamed = UnnamedErrors()
        self.alive = -1
        """Where the last line lies that shows the job at work."""

    def take_progress(self, match: Match, order: int) -> None:
        """Lines of progress of one rule, or of a checkpoint; `order` is the match's place among those of all logs."""
        self.alive = max(self.alive, match.offset)
        if match.rule.role is Role.CHECKPOINT:
            return
        self.progress_lines += match.count
        self.last_progress = match
        self._step_after_end(match)
        name = match.rule.id
        counted = (match.numbers or _numbers(match)) if "step" in match.rule.captures else ()
        before = self.numbers.get(name)
        if match.at is not None:
            took = _line_time(match, self.progress_at, before, counted)
            if took is not None and len(self.step_times) < STEP_TIMES_MAX:
                self.step_times.append(took)
            self.progress_at = match.at
        if not counted:
            self.rises[name] = self.rises.get(name, 0) + match.count
            return
        for value in counted:
            if before is None or value > before:
                self.rises[name] = self.rises.get(name, 0) + 1
            elif value < before:
                self.restarts.append(order)
            before = value
        self.numbers[name] = counted[-1]

    def _step_after_end(self, match: Match) -> None:
        """A line of progress: after the end of the work it shows that only a part of it was done, or an evaluation."""
        total = match.captures.get("total", "")
        if self.completed is None:
            if len(self.totals) < TOTALS_MAX:
                self.totals.add(total)
        elif "loss" in match.rule.captures or (total and total in self.totals):
            self.steps_after += match.count
            if self.steps_after > SURVIVED_STEPS:
                self.completed = None  # Another stage, epoch or fold has begun.


def _numbers(match: Match) -> tuple[float, ...]:
    text = match.captures.get("step") or match.captures.get("done") or ""
    return (float(text),) if text.isdigit() else ()


def _line_time(match: Match, last: float | None, before: float | None, steps: Sequence[float]) -> float | None:
    """Seconds from one line of progress to the next; of many in one match by their steps, as lines may be left unread.

    Args:
        match: the lines.
        last: the time on the line of progress that was read before them, Unix seconds.
        before: the step on it.
        steps: those on the lines; empty where the rule counts none.
    """
    if match.at is None or last is None:
        return None
    if match.count == 1:
        return match.at - last
    if before is None or not steps or not before < steps[0] < steps[-1]:
        return None
    return (match.at - last) / (steps[-1] - before) * (steps[-1] - steps[0]) / (match.count - 1)


def set_aside(kept: Kept, files: Sequence[LogFile], *, at: float, seen: int) -> str:
    """Why a finding is no trouble of the job after all; empty when it may be.

    Args:
        kept: the finding and its place.
        files: all logs, in their order.
        at: the finding's time as attribution needs it, Unix seconds; 0.0 when nothing tells.
        seen: how often its rule was seen in its log.
    """
    file = files[kept.file]
    after_end = file.completed is not None and kept.order > file.completed
    rule = kept.finding.rule
    # Connections break when processes end; a time-out says that one of them did not end at all.
    if after_end and _is_parting(kept.finding) and not has(rule, Trait.STILL_RUNS):
        return "the work was done before it"
    if has(rule, Trait.HELD_UP) and file.back.get(rule, 0) > kept.order:
        return "it passed by itself"
    if seen < meaning(rule).often:
        return "it came a few times only, which is no trouble"
    of_machine = kept.match.rule.family in MACHINE
    if of_machine and kept.finding.domain is Domain.HARDWARE:
        return ""
    if of_machine and not file.progress_lines and all_done(files):
        return "the job completed, as its own log says"
    ended_one = of_machine or has(rule, Trait.KERNEL_ENDED)
    if ended_one and kept.finding.domain is Domain.APPLICATION and kept.match.at is not None and _others(files, at):
        return "the job's steps went on for long after it"
    return _lived_through(kept, file)


def _lived_through(kept: Kept, file: LogFile) -> str:
    if any(restart > kept.order for restart in file.restarts) and kept.finding.severity is Severity.FATAL:
        return ""
    if _went_on(kept, file):
        return "steps went on rising after it"
    quiet = file.size - file.last_trouble
    if kept.ignored:
        return "Python passed over it"
    if kept.of_thread and quiet > THREAD_WENT_ON_BYTES:
        return "it ended a thread, and the program went on"
    handled = kept.finding.severity is not Severity.FATAL and kept.match.rule.family in HANDLED
    if handled and (quiet > WENT_ON_BYTES or (quiet > WENT_ON_BYTES // 10 and quiet > WENT_ON_SHARE * file.size)):
        return "the log went on for long without any trouble"
    return ""


def _others(files: Sequence[LogFile], at: float) -> bool:
    """Whether every log with steps shows them long after this moment."""
    last = [file.progress_at or 0.0 for file in files if file.progress_lines]
    return bool(last) and min(last) - at > OTHERS_S


def _went_on(kept: Kept, file: LogFile) -> bool:
    """Whether the job lived through it, as its steps show."""
    begun_anew = any(restart > kept.order for restart in file.restarts)
    is_ended = has(kept.finding.rule, Trait.SCHEDULER_ENDS) and not begun_anew
    if is_ended and file.progress_at and 0 < kept.finding.at < file.progress_at - GRACE_S:
        return True
    enough = GRACE_STEPS if is_ended else SURVIVED_STEPS
    return any(rises - kept.steps_then.get(name, 0) >= enough for name, rises in file.rises.items())


def all_done(files: Sequence[LogFile]) -> bool:
    """Whether some log says that the work was done, and none tells of steps without that."""
    done = [file.completed is not None for file in files if file.progress_lines or file.completed is not None]
    return bool(done) and all(done)


def _is_parting(finding: Finding) -> bool:
    """Whether the finding is what processes leave behind when they end, and not a failure of its own.

    A final model that could not be saved, or an evaluation that fails after the work, is such a failure.
    """
    if finding.role is Role.CASCADE or finding.domain in {Domain.NETWORK, Domain.OPERATOR}:
        return True
    if has(finding.rule, Trait.PARTING):
        return True
    if not has(finding.rule, Trait.BY_WORDS):
        return False
    if finding.captures.get("type", "").rpartition(".")[2].startswith(_PARTING_TYPES):
        return True
    told = f"{finding.captures.get('message', '')} {finding.summary}".lower()
    return any(word in told for word in _PARTING_WORDS)

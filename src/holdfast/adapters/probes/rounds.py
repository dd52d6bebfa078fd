"""Looks: a source is read once, its checks judge what it said, and what counts is told from what does not count yet.

The agent calls `Looker.look` for each source in its own rhythm; `holdfast check` calls `once` for a set of checks. What
keeps a good node from harm is here: a source that hangs or talks nonsense is UNKNOWN, never bad; a driver that has just
come up has its warm-up grace; a problem that may pass must be seen several times in a row.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from holdfast.adapters.probes.check import (
    NAGIOS,
    Check,
    Judging,
    Mode,
    NodeConfig,
    Problem,
    Reading,
    Source,
    Status,
)
from holdfast.adapters.probes.checks import SOURCES
from holdfast.adapters.probes.facts import GpuFacts, NvmlFacts
from holdfast.adapters.probes.reach import LIMIT_S, Reach
from holdfast.detect.counters import CounterFold
from holdfast.detect.trends import Course
from holdfast.model.plain_text import clean
from holdfast.os.files import write_whole
from holdfast.ports import Clock

NEVER = float("-inf")
OVER_S = 5.0
_PASSING = ("clock:",)
"""What is learned of this boot only."""


class Verdict(Struct, frozen=True, kw_only=True):
    """What one check says after one look."""

    check: str
    status: Status
    problems: tuple[Problem, ...] = ()
    """Those that count."""
    detail: str = ""
    seconds: float = 0.0
    hung: bool = False

    @property
    def conclusive(self) -> bool:
        """Did it see the whole truth, so that what it did not see is not there?"""
        return self.status in {Status.OK, Status.WARNING, Status.CRITICAL}


MARKS = {
    Status.OK: "OK      ",
    Status.WARNING: "WARNING ",
    Status.CRITICAL: "CRITICAL",
    Status.UNKNOWN: "UNKNOWN ",
    Status.WARMING: "warming ",
    Status.ABSENT: "-       ",
    Status.OFF: "off     ",
}


def is_bad(verdict: Verdict) -> bool:
    """Worth a line where only problems are told."""
    return verdict.status in {Status.WARNING, Status.CRITICAL, Status.UNKNOWN}


def line_of(verdict: Verdict, width: int = 0) -> str:
    """One line, which Slurm's scripts read, too: nothing that a process is named may begin another."""
    return f"{MARKS[verdict.status]}  {verdict.check:<{width}}  {clean(verdict.detail) or 'well'}"


class Memory(Struct, kw_only=True):
    """What a restarted agent goes on from; kept in a file."""

    machine: str = ""
    """Instance id: another machine has other GPUs."""
    boot: str = ""
    counters: dict[str, int] = {}
    learned: dict[str, str] = {}

    @classmethod
    def load(cls, path: Path, *, machine: str, boot: str) -> Memory:
        """What is known of this machine; counters only of this boot. A file that cannot be read is as none."""
        try:
            known = msgspec.json.decode(path.read_bytes(), type=cls)
        except (OSError, msgspec.MsgspecError):
            return cls(machine=machine, boot=boot)
        if known.machine != machine:
            return cls(machine=machine, boot=boot)
        if known.boot != boot:
            known.boot, known.counters = boot, {}
            known.learned = {key: value for key, value in known.learned.items() if not key.startswith(_PASSING)}
        return known

    def save(self, path: Path) -> None:
        """Write it down. Raises OSError."""
        write_whole(path, msgspec.json.encode(self))


class Looker:
    """Looks at one node. Not for use from two loops.

    Args:
        reach: the way to the node.
        config: which checks, and what is expected.
        clock: the time.
        memory: what was known before.
        born: when the node came up, in the clock's monotonic seconds; graces count from there.
        kernel_log: somebody reads the kernel log.
    """

    def __init__(
        self,
        reach: Reach,
        config: NodeConfig,
        *,
        clock: Clock,
        memory: Memory | None = None,
        born: float = NEVER,
        kernel_log: bool = False,
    ) -> None:
        self.reach = reach
        self.config = config
        self.kernel_log = kernel_log
        self._clock = clock
        self.memory = memory or Memory()
        self._counters = CounterFold(self.memory.counters)
        self._courses: dict[str, Course] = {}
        self._alive_since: dict[str, float] = {}
        self._born = born
        self._gone: set[str] = set()
        self.gpus: tuple[GpuFacts, ...] = ()
        """As they were at the last look."""
        self._rows: dict[str, dict[str, tuple[int, float]]] = {}
        """Check -> problem's key -> how often in a row it was seen, and since when."""

    def remember(self) -> Memory:
        """What a restarted agent should know."""
        lasting = {key: value for key, value in self.memory.learned.items() if not key.startswith(_PASSING)}
        return msgspec.structs.replace(self.memory, counters=self._counters.last, learned=lasting)

    def enabled(self, check: Check, mode: Mode) -> bool:
        """Is this check to be run in this mode here?"""
        settings = self.config.of(check.name)
        modes = check.modes if settings.modes is None else settings.modes
        return settings.enabled and mode in modes and (check.emulated_ok or not self.reach.emulated)

    async def look(self, source: Source, checks: Sequence[Check], mode: Mode) -> list[Verdict]:
        """Read the source and judge: one verdict per check, in order."""
        self.reach.mode, self.reach.config = mode, self.config
        limits = [limit for check in checks if (limit := self.config.of(check.name).limit_s) is not None]
        LIMIT_S.set(max(limits, default=None))
        # The source ends by itself at its own limit; this one is for a source that does not.
        limit_s = max(limits) + OVER_S if limits else source.limit_s
        start = self._clock.monotonic()
        try:
            # Not wait_for: before Python 3.12 it can swallow a cancellation that comes together with the answer.
            async with asyncio.timeout(limit_s):
                reading = await source.read(self.reach)
        except TimeoutError:
            reading = Reading(hung=True, failed=f"no answer within {limit_s:g} s")
        except (OSError, ValueError) as error:
            reading = Reading(failed=f"{source.name} could not be read: {error}")
        took = self._clock.monotonic() - start
        self._note_life(source.name, reading)
        if isinstance(reading.facts, NvmlFacts):
            self.gpus = reading.facts.gpus
        return [self._verdict(check, reading, mode, took) for check in checks]

    def _note_life(self, name: str, reading: Reading) -> None:
        """A source that was not there, or had nothing, and now has: its warm-up begins."""
        empty = bool(reading.absent) or (reading.facts is not None and not getattr(reading.facts, "gpus", True))
        if empty:
            self._gone.add(name)
        elif reading.facts is not None and name in self._gone:
            self._gone.discard(name)
            self._alive_since[name] = self._clock.monotonic()

    def _verdict(self, check: Check, reading: Reading, mode: Mode, took: float) -> Verdict:
        name = check.name
        said = functools.partial(Verdict, check=name, seconds=took)
        if reading.failed:
            self._rows.pop(name, None)
            return said(status=Status.UNKNOWN, detail=reading.failed, hung=reading.hung)
        judging = Judging(
            profile=self.config.profile,
            limits=self.config.limits,
            mode=mode,
            at=self._clock.monotonic(),
            now=self._clock.now(),
            counters=self._counters,
            courses=self._courses,
            learned=self.memory.learned,
            kernel_log=self.kernel_log,
        )
        try:
            if reading.absent:
                found = list(check.on_absent(reading.absent, judging)) if check.on_absent is not None else []
                if not found:
                    return said(status=Status.ABSENT, detail=reading.absent)
            else:
                found = check(reading.facts, judging)
        except (ValueError, TypeError, KeyError, ArithmeticError) as error:
            return said(status=Status.UNKNOWN, detail=f"what it read cannot be judged: {error}")
        settings = self.config.of(name)
        grace_s = check.grace_s if settings.grace_s is None else settings.grace_s
        if mode is not Mode.PERIODIC:
            grace_s = max(grace_s, check.lasting_s)  # a single look cannot see how long something lasts
        since = self._alive_since.get(check.source, self._born)
        if found and self._clock.monotonic() - since < grace_s:
            detail = f"{found[0].summary}; does not count within {grace_s:g} s of coming up"
            return said(status=Status.WARMING, detail=detail)
        counted = self._counted(check, found, mode)
        waiting = "" if len(counted) == len(found) else "seen, not often enough in a row to count yet"
        detail = "; ".join(problem.summary or problem.text for problem in counted) or waiting
        return said(status=worst(counted), problems=tuple(counted), detail=detail)

    def _counted(self, check: Check, found: Sequence[Problem], mode: Mode) -> list[Problem]:
        """Those that have lasted long enough. A single look by hand counts at once."""
        if mode is not Mode.PERIODIC:
            return list(found)
        now = self._clock.monotonic()
        before = self._rows.get(check.name, {})
        rows = {}
        counted = []
        looks = self.config.of(check.name).looks or check.looks
        for problem in found:
            times, since = before.get(problem.key, (0, now))
            rows[problem.key] = (times + 1, since)
            if problem.happened or (times + 1 >= looks and now - since >= check.lasting_s):
                counted.append(problem)
        self._rows[check.name] = rows
        return counted

    async def once(self, checks: Sequence[Check], mode: Mode, limit_s: float | None = None) -> list[Verdict]:
        """Run these checks now, source by source, the quickest first. Those that are switched off are told as such.

        Args:
            checks: which; the verdicts come in this order.
            mode: when it is.
            limit_s: for all of them together; what has no answer by then is UNKNOWN. None: each has its own alone.
        """
        verdicts: dict[str, Verdict] = {}
        by_source: dict[str, list[Check]] = {}
        for check in checks:
            if not self.config.of(check.name).enabled:
                verdicts[check.name] = Verdict(check=check.name, status=Status.OFF, detail="switched off in agent.toml")
            elif self.reach.emulated and not check.emulated_ok:
                detail = "about the machine under the emulated node"
                verdicts[check.name] = Verdict(check=check.name, status=Status.ABSENT, detail=detail)
            else:
                by_source.setdefault(check.source, []).append(check)
        end = None if limit_s is None else asyncio.get_running_loop().time() + limit_s
        for name, members in sorted(by_source.items(), key=lambda one: SOURCES[one[0]].limit_s):
            try:
                async with asyncio.timeout_at(end):
                    found = await self.look(SOURCES[name], members, mode)
            except TimeoutError:
                reading = Reading(hung=True, failed=f"no answer within the {limit_s:g} s of all checks")
                found = [self._verdict(check, reading, mode, 0.0) for check in members]
            verdicts |= {verdict.check: verdict for verdict in found}
        return [verdicts[check.name] for check in checks]


def worst(problems: Sequence[Problem]) -> Status:
    """What problems together mean. A forecast is a warning."""
    if any(not problem.warning and not problem.predicts for problem in problems):
        return Status.CRITICAL
    return Status.WARNING if problems else Status.OK


def exit_code(verdicts: Sequence[Verdict]) -> int:
    """Nagios: 2 when any is critical, else 1 when any warns, else 3 when any is unknown, else 0."""
    codes = {NAGIOS.get(verdict.status, 0) for verdict in verdicts}
    return next((code for code in (2, 1, 3) if code in codes), 0)


def uptime_s() -> float:
    """Seconds since boot; 0.0 when it cannot be told."""
    try:
        return float(Path("/proc/uptime").read_text(encoding="ascii").split()[0])
    except (OSError, ValueError, IndexError):
        return 0.0

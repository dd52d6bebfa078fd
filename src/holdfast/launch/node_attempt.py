"""One attempt on this node: its ranks, their logs and slots, and the reports that are made of them. Used by `node`."""

from __future__ import annotations

import asyncio
import functools
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.launch.environment import AttemptSpec
from holdfast.launch.frames import AnyReport, RankEnded, SlotBrief, SlotsSeen, Spotted
from holdfast.launch.late_matcher import LateMatcher
from holdfast.launch.options import RunOptions
from holdfast.launch.output import OwnOutput, RankLog, Voice
from holdfast.launch.place import JobPlace
from holdfast.launch.process import Exit
from holdfast.launch.ranks import RankSet
from holdfast.launch.slots import SlotReader
from holdfast.model.evidence import Role
from holdfast.os.clock import steady_time

if TYPE_CHECKING:  # loaded when the first ranks run: a restart must not wait for what reads their output
    from holdfast.detect.hyperpod_rules import LogRule
    from holdfast.detect.matcher import Match
    from holdfast.launch.line_watch import LineWatch
    from holdfast.launch.listener import Heard, Listener
    from holdfast.launch.reading import OutputReader

_WARM_AFTER_STEPS = 1
_WARM_WITHOUT_TELEMETRY_S = 30.0
_ERROR_TEXT_MAX = 400
_STRANGE_MAX = 12


class NodeAttempt:
    """See the module.

    Args:
        spec: the attempt.
        place: of this node.
        ranks: not yet started.
        logs: of each rank, or of the command (None).
        slots: of the ranks.
        listen: gives what reads the output, loaded late.
        report: takes what is seen.
        voice: for people.
    """

    def __init__(
        self,
        spec: AttemptSpec,
        place: JobPlace,
        ranks: RankSet,
        logs: Mapping[int | None, RankLog],
        slots: SlotReader,
        *,
        listen: Callable[[], Heard],
        report: Callable[[AnyReport], None],
        voice: Voice,
    ) -> None:
        self.spec = spec
        self.ranks = ranks
        self.logs = logs
        self.slots = slots
        self.is_ending = False
        self.gone = asyncio.Event()
        self._place = place
        self._listen = listen
        self._report = report
        self._voice = voice
        self._began = time.monotonic()
        self._ended_well = True
        """No rank here has ended badly so far."""
        self._told_strange = False
        self._steps: dict[int, int] = {}

    @property
    def is_gone(self) -> bool:
        """Nothing of it runs here any more."""
        return self.gone.is_set()

    @property
    def is_command(self) -> bool:
        """A command runs, which starts its own ranks."""
        return None in self.ranks.children

    @property
    def _reader(self) -> OutputReader:
        return self._listen().reader

    @property
    def _lines(self) -> LineWatch:
        return self._listen().lines

    # --- output ---

    def read_output(self, at: float) -> None:
        """What the ranks have printed."""
        for log in self.logs.values():
            self._read_matches(log, log.pump(at), at)
        if not self.is_ending:
            self._look_at_lines(at)

    def _read_matches(self, log: RankLog, matches: list[Match], at: float) -> None:
        if not matches:
            return
        file = str(log.path.relative_to(self._place.job_dir))
        findings = self._reader.findings(matches, rank=log.rank, file=file, at=at)
        if findings:
            self._lines.matched(findings)
            self._report(Spotted(findings=findings))
        line = self._reader.progress(matches, rank=log.rank, at=at)
        if line is not None:
            if line.step is not None:
                steps = [match.text for match in matches if match.rule.role is Role.PROGRESS]
                self._lines.progress(at, log.rank, steps)
            self._report(line)

    def _look_at_lines(self, at: float) -> None:
        found = self._lines.look(at)
        if said := self._lines.said():
            self._voice.say(*said)
        if found:
            self._report(Spotted(findings=found))

    def tell_strange(self) -> None:
        """The job stands still: what its ranks last said that they never said before, once an attempt."""
        if self._told_strange or self.is_ending:
            return
        self._told_strange = True
        at = steady_time()
        found = [finding for rank in self.logs for finding in self._lines.strange(rank, at)]
        if found:
            self._report(Spotted(findings=tuple(found[:_STRANGE_MAX])))

    # --- slots ---

    def read_slots(self) -> None:
        """What the ranks' telemetry says, read but not yet told."""
        self.slots.read(self.slots.discover() if self.is_command else self.spec.ranks_of(self._place.node))

    def discover_ranks(self) -> None:
        """Ranks below a command."""
        self.ranks.discover({rank: view.pid for rank, view in self.slots.views.items()}, steady_time)

    def tell_slots(self) -> None:
        """Tell the leader of slots that have changed."""
        changed = self.slots.changed(time.monotonic())
        if changed:
            if self._steps_rose(changed):
                self._lines.progress(steady_time())
            self._report(SlotsSeen(attempt=self.spec.attempt, at=steady_time(), slots=changed))

    def _steps_rose(self, slots: Sequence[SlotBrief]) -> bool:
        """Whether one of these slots shows a step that its rank had not completed before."""
        rose = False
        for slot in slots:
            if slot.ended is not None and slot.ended > self._steps.get(slot.rank, -1):
                self._steps[slot.rank] = slot.ended
                rose = True
        return rose

    @property
    def may_warm(self) -> bool:
        """Warming must not slow a start: it waits for the first step; scripts without telemetry, for half a minute."""
        views = self.slots.views.values()
        if views:
            return all(view.steps >= _WARM_AFTER_STEPS for view in views)
        return time.monotonic() - self._began > _WARM_WITHOUT_TELEMETRY_S

    # --- ends ---

    def rank_ended(self, rank: int | None, how: Exit, at: float) -> None:
        """A rank or the command has ended: its last output, its last slot, its end."""
        ended_badly = how.is_known and not how.is_success
        self._ended_well &= not ended_badly
        log = self.logs.get(rank) or self.logs.get(None)
        tail: tuple[str, ...] = ()
        if log is not None:
            self._read_matches(log, log.finish(at) if rank in self.logs else log.pump(at), at)
            tail = log.tail()
        self.slots.read([rank] if rank is not None else self.slots.discover())
        self.tell_slots()
        if self.is_ending:
            return
        self._look_at_lines(at)
        self._report(
            RankEnded(
                attempt=self.spec.attempt,
                rank=rank,
                exit=how,
                at=at,
                tail=tail,
                error=self._error_of(rank),
                log=str(log.path) if log is not None else "",
            )
        )
        # After the end that they may explain: then they join its incident, also when that is one gone on with.
        if ended_badly and log is not None and (strange := self._lines.strange(log.rank, at)):
            self._report(Spotted(findings=strange))

    def _error_of(self, rank: int | None) -> str:
        """The message that torch's `record` decorator left."""
        if rank is None or rank not in self.logs:
            return ""
        try:
            message = json.loads(self.ranks.error_file(rank).read_bytes())["message"]
            text = message if isinstance(message, str) else message.get("message", "")
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return ""
        return str(text)[:_ERROR_TEXT_MAX]

    def finish(self) -> None:
        """No process of it is left: what is still unread, then nothing more."""
        self.ranks.close()
        at = steady_time()
        for log in self.logs.values():
            self._read_matches(log, log.finish(at), at)
            log.close()
        self.slots.read(self.slots.views)
        self.tell_slots()
        self._lines.end(at, well=self._ended_well)
        self.gone.set()


class AttemptMaker:
    """Makes this node's part of an attempt.

    Args:
        place: job and node.
        options: of the run.
        base: environment that ranks inherit.
        telemetry_root: folder of this node's slots.
        matcher: reads the output once it is loaded.
        log_rules: HyperPod's rules of the job.
        report: takes what is seen; must not block.
        voice: for people.
    """

    def __init__(
        self,
        place: JobPlace,
        options: RunOptions,
        *,
        base: Mapping[str, str],
        telemetry_root: Path,
        matcher: LateMatcher,
        log_rules: Sequence[LogRule],
        report: Callable[[AnyReport], None],
        voice: Voice,
    ) -> None:
        self._place = place
        self._options = options
        self._base = base
        self._telemetry_root = telemetry_root
        self._matcher = matcher
        self._log_rules = tuple(log_rules)
        self._report = report
        self._voice = voice
        self._out = OwnOutput()
        self._ears: Listener | None = None

    def prepare(self, spec: AttemptSpec, on_end: Callable[[int, int | None, Exit, float], None]) -> NodeAttempt:
        """Folders, logs and ranks of an attempt; nothing is started. `on_end` is told attempt, rank, how and when.

        Raises OSError when the job's folder cannot be used.
        """
        place, options = self._place, self._options
        logs_dir = place.logs(spec.attempt)
        telemetry_dir = self._telemetry_root / f"a{spec.attempt}"
        telemetry_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._voice.write_to(logs_dir / f"launcher-{place.node}.log")
        at = steady_time()
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
            on_end=lambda rank, how, at: on_end(spec.attempt, rank, how, at),
        )
        return NodeAttempt(
            spec,
            place,
            ranks,
            logs,
            SlotReader(telemetry_dir),
            listen=listen,
            report=self._report,
            voice=self._voice,
        )

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
            stream=lambda: self._listener().stream(rank),
            on_lines=lambda lines, at: listen().lines.lines(rank, lines, at),
        )

    def _listener(self) -> Listener:
        from holdfast.launch.listener import Listener  # noqa: PLC0415 - as above

        if self._ears is None:
            self._ears = Listener(self._place, self._matcher, self._log_rules, is_command=self._options.is_command)
        return self._ears

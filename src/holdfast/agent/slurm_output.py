"""The output of Slurm jobs that no launcher reads: followed by the agent of the node that writes it.

A plain `sbatch` script without `holdfast run` is recovered by the controller alone; what its tasks print says why it
failed and how far it came. The files are found from what the job's processes have open, each on the node that has it
open, so that a file has one reader; a job with a launcher is left to the launcher. What is read becomes findings about
the job's attempt, and its progress lines first step, steps and durable checkpoints; ranks with telemetry say the same
by their slots. Lines of a job's output never move a node by themselves: the engine holds them against an end that they
explain. Files are opened only where they are the job's own user's: the agent may read more than that user, who may put
a link to anything in a log's place. Time comes from the clock port; a look costs some milliseconds every `LOOK_S`.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

from holdfast.adapters.slurm.open_files import OpenJob, open_jobs
from holdfast.adapters.tail import Tailer
from holdfast.agent.job_slots import SlotPoints, progress_of, read_slots
from holdfast.agent.parser import Outcome, ParsedStream, ParserProcess
from holdfast.agent.parsing import Origin
from holdfast.agent.told import seen
from holdfast.detect.catalogue import StreamKind
from holdfast.detect.findings import RuleRates, counted, to_finding
from holdfast.detect.matcher import Match, StreamSource
from holdfast.detect.told import is_durable, path_told, seconds_told, step_told
from holdfast.model.cluster import JobKey, attempt_name
from holdfast.model.events import AnyEvent, CheckpointSaved, FirstStepDone, StepReached
from holdfast.model.evidence import Place, Role
from holdfast.model.wire import SamplePoint
from holdfast.os.files import open_regular
from holdfast.ports import Clock
from holdfast.telemetry.slot import SlotView

LOOK_S = 1.0
IDLE_S = 3.0
"""Between two looks while no job of Slurm's is here."""
MARK_EVERY_S = 10.0
LINGER_S = 5.0
"""A file is followed so long after nobody has it open any more: last words may be on their way."""
FIRST_AGAIN_S = 2.0
"""After so long a controller has seen the run of a job that had just started."""
_Run = tuple[str, str, int]
"""Cluster, job's id and restart count: two clusters on one machine may give a job the same number."""
_Slots = dict[_Run, list[SlotView]]
_FAULTS = frozenset({Role.ROOT, Role.CASCADE, Role.CONTEXT})


class _Attempt(Struct):
    """One run of a job, as far as its output tells."""

    key: JobKey
    number: int
    step: int | None = None
    told: int = -1
    told_at: float = 0.0
    durable: int = 0
    count: int = 0
    first: FirstStepDone | None = None
    """Its first step, until that was told a second time."""


class _Followed(Struct):
    attempt: _Attempt
    stream: ParsedStream
    seen_at: float
    users: frozenset[int]
    """Whose it has to be."""
    held: list[bytes] | None = None
    """What a new file of the same name holds, until a look that was begun after it tells whose it is."""
    is_looked: bool = False
    """One look has ended since; it may have been begun before."""


def is_of(opened: int, users: Collection[int]) -> bool:
    """Whether an open file belongs to one of these users."""
    return os.fstat(opened).st_uid in users


def _run_of(job: OpenJob) -> _Run:
    return job.cluster, job.job_id, job.restart_count


class SlurmOutput:
    """See the module.

    Args:
        node: this node's name.
        source: name of the agent in events.
        parser: judges the lines.
        clock: the time.
        report: takes the events.
        look: finds the jobs and their files; replaced in tests.
    """

    def __init__(
        self,
        *,
        node: str,
        source: str,
        parser: ParserProcess,
        clock: Clock,
        report: Callable[[AnyEvent], None],
        look: Callable[[], list[OpenJob]] = open_jobs,
    ) -> None:
        self._node = node
        self._source = source
        self._parser = parser
        self._clock = clock
        self._report = report
        self._look = look
        self._files: dict[str, _Followed] = {}
        self._attempts: dict[_Run, _Attempt] = {}
        self._rates = RuleRates()
        self._points = SlotPoints()
        self._tailer = Tailer(self._on_data, self._on_reset, poll_s=LOOK_S, open_file=self._open, is_full=self._is_full)

    async def run(self) -> None:
        """Look and follow until cancelled."""
        self._tailer.start()
        try:
            while True:
                jobs, slots = await asyncio.to_thread(self._look_with_slots)
                self.take(jobs)
                self.take_slots(slots)
                await self._clock.sleep(LOOK_S if jobs or self._files else IDLE_S)
        finally:
            self._tailer.close()

    def _look_with_slots(self) -> tuple[list[OpenJob], _Slots]:
        jobs = self._look()
        return jobs, {_run_of(job): read_slots(job) for job in jobs if job.telemetry and self._is_here(job)}

    def _is_here(self, job: OpenJob) -> bool:
        return job.node in {"", self._node}

    def take_slots(self, slots: _Slots) -> None:
        """Progress by what the ranks tell; of jobs that `take` follows."""
        now = self._clock.now()
        for run, views in slots.items():
            attempt = self._attempts.get(run)
            if attempt is None:
                continue
            self._points.take(attempt_name(str(attempt.key), attempt.number), views)
            step, resumed, durable = progress_of(views)
            if step is not None and step > (-1 if attempt.step is None else attempt.step):
                self._reached(attempt, step, resumed, now)
            if durable:
                self._saved(attempt, durable, None, now)

    def points(self) -> list[SamplePoint]:
        """What the next beat takes along."""
        self._points.keep({attempt_name(str(one.key), one.number) for one in self._attempts.values()})
        return self._points.points(self._clock.now())

    def take(self, jobs: list[OpenJob]) -> None:
        """Follow what these jobs write; let go of what nobody has written to for a while."""
        now = self._clock.monotonic()
        live = {_run_of(job) for job in jobs}
        for job in jobs:
            if job.has_launcher or not job.cluster or not self._is_here(job):
                continue
            run = _run_of(job)
            attempt = self._attempts.setdefault(run, _Attempt(JobKey(job.cluster, job.job_id), job.restart_count))
            for path in job.files:
                followed = self._files.get(path)
                if followed is not None and followed.attempt is attempt and followed.held is None:
                    followed.seen_at = now
                    continue
                if followed is not None and followed.held is not None:
                    if followed.attempt is attempt and not followed.is_looked:
                        followed.is_looked = True
                        continue
                    followed.stream.close()
                    self._files[path] = _Followed(attempt, self._stream(attempt, path), now, job.users)
                    for data in followed.held:
                        self._on_data(path, data)
                    continue
                # The next run of the job appends to the same file: what is there already is the run before's.
                position = self._tailer.position(path) if followed is not None else None
                if followed is not None:
                    self._tailer.remove(path)
                    followed.stream.close()
                self._files[path] = _Followed(attempt, self._stream(attempt, path), now, job.users)
                self._tailer.add(path, position=position)
        for path, followed in list(self._files.items()):
            if now - followed.seen_at > LINGER_S:
                self._tailer.remove(path)
                self._files.pop(path).stream.close()
        used = {id(followed.attempt) for followed in self._files.values()}
        for run, attempt in list(self._attempts.items()):
            if run not in live and id(attempt) not in used:
                del self._attempts[run]

    def _open(self, path: str) -> int:
        """A log of the job's own. Raises OSError for all that its user could not have made."""
        followed = self._files.get(path)
        opened = open_regular(Path(path))
        if followed is not None and is_of(opened, followed.users):
            return opened
        os.close(opened)
        raise PermissionError(errno.EPERM, "it is not the job's user's", path)

    def _stream(self, attempt: _Attempt, path: str) -> ParsedStream:
        origin = Origin(StreamSource(kind=StreamKind.OUTPUT, node=self._node))
        return self._parser.stream(origin, path, functools.partial(self._judged, attempt, path))

    def _is_full(self, path: str) -> bool:
        followed = self._files.get(path)
        return followed is not None and followed.stream.is_full

    def _on_reset(self, path: str, why: str) -> None:
        """The file is another one now, or begins anew: most likely the next run's, which the next look will show."""
        followed = self._files.get(path)
        if followed is not None and why != "deleted":
            followed.held, followed.is_looked = followed.held or [], False

    def _on_data(self, path: str, data: bytes) -> None:
        followed = self._files.get(path)
        if followed is None:
            return
        if followed.held is not None:
            followed.held.append(data)
            return
        followed.stream.feed(data, self._clock.now())

    def _judged(self, attempt: _Attempt, path: str, came: Outcome) -> None:
        for match in came.matches:
            if match.rule.role in _FAULTS:
                self._fault(attempt, path, match, came.at)
            elif match.rule.role in {Role.PROGRESS, Role.CHECKPOINT}:
                self._progress(attempt, match, came.at)

    def _fault(self, attempt: _Attempt, path: str, match: Match, now: float) -> None:
        count = self._rates.admit(match.rule, match.rank, now)
        if not count:
            return
        if attempt.step is not None and attempt.step > attempt.told:
            self._mark(attempt, now)  # how far it came, before why it ends
        finding = to_finding(
            match,
            source_place=Place(node=self._node, rank=match.rank),
            job=attempt.key,
            attempt=attempt.number,
            at=now,
            id_prefix=f"{self._source}/{attempt.key}/a{attempt.number}/{Path(path).name}",
            file=Path(path).name,
        )
        self._report(seen(counted(finding, count), self._source))

    def _progress(self, attempt: _Attempt, match: Match, now: float) -> None:
        step = step_told(match)
        if match.rule.role is Role.PROGRESS and step is not None:
            self._reached(attempt, step, max(0, step - 1), now)
        elif match.rule.role is Role.CHECKPOINT:
            step = attempt.step if step is None else step
            if step is not None and is_durable(match):
                self._saved(attempt, step, match, now)

    def _reached(self, attempt: _Attempt, step: int, resumed: int, now: float) -> None:
        first, attempt.step = attempt.step is None, step
        if first:
            attempt.first = FirstStepDone(**self._words(attempt, now), step=step, resumed_from=resumed)
            self._report(attempt.first)
        if now - attempt.told_at >= MARK_EVERY_S:
            self._mark(attempt, now)

    def _saved(self, attempt: _Attempt, step: int, match: Match | None, now: float) -> None:
        if step > attempt.durable:
            attempt.durable = step
            self._first_again(attempt, now)
            path, took_s = ("", None) if match is None else (path_told(match), seconds_told(match))
            said = CheckpointSaved(**self._words(attempt, now), step=step, durable=True, path=path, took_s=took_s)
            self._report(said)

    def _mark(self, attempt: _Attempt, now: float) -> None:
        if attempt.step is not None and attempt.step > attempt.told:
            attempt.told, attempt.told_at = attempt.step, now
            self._first_again(attempt, now)
            self._report(StepReached(**self._words(attempt, now), step=attempt.step))

    def _first_again(self, attempt: _Attempt, now: float) -> None:
        """Tell of the first step once more.

        A step may be over before the scheduler has told the controller of its run, and what is said of a run that the
        controller does not know is lost.
        """
        if attempt.first is not None and now - attempt.first.at >= FIRST_AGAIN_S:
            self._report(structs.replace(attempt.first, id=f"{attempt.first.id}:again"))
            attempt.first = None

    def _words(self, attempt: _Attempt, now: float) -> dict[str, Any]:
        attempt.count += 1
        event_id = f"{self._source}:{attempt.key}:a{attempt.number}:{attempt.count}:{now:.3f}"
        return {
            "id": event_id, "at": now, "source": self._source, "job": attempt.key, "attempt": attempt.number,
        }  # fmt: skip

"""Folds what ranks show many times a second into the few events worth storing. Pure: times and facts come in.

Used by the leader, one per attempt. Slots and progress lines go in; the first step, checkpoints and coarse steps come
out as events, points for the pages as samples, and samples for the hang detector.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from holdfast.detect.evaluations import Evaluations
from holdfast.detect.rhythm import StepSample
from holdfast.launch.frames import LineSeen, SlotBrief
from holdfast.launch.launcher_events import EventMaker, Told
from holdfast.model.cluster import JobKey, attempt_name
from holdfast.model.events import AnyEvent, CheckpointSaved, FirstStepDone, StepReached
from holdfast.ports import Sample

MARK_EVERY_S = 10.0
LINES_AFTER_S = 0.5
"""A line may be read before the slot of the same step: lines wait this long for slots, then speak for the job."""
EARLY_MAX = 256
"""Lines that wait at most: that many are told at once."""
_JOB = -1


class Points:
    """What the pages draw of an attempt, each point once.

    Args:
        name: the attempt's, as it stands in the subjects of series.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._durable = 0
        self._sampled: dict[int, tuple[int, str]] = {}
        self._evaluations = Evaluations()
        self._saves: dict[int, tuple[int, float]] = {}
        self._consumed: dict[str, int] = {}

    def new(self, briefs: Mapping[int, SlotBrief], line: LineSeen | None, durable: int, at: float) -> list[Sample]:
        """Give what has changed since the last call.

        Args:
            briefs: newest slot of each rank.
            line: newest progress line, which counts where there are no slots.
            durable: the newest durable checkpoint.
            at: seconds since the epoch.
        """
        name = self._name
        told: dict[int, SlotBrief | LineSeen] = dict(briefs)
        if not told and line is not None:
            told[_JOB] = line
        points: list[Sample] = []
        if durable > self._durable:
            self._durable = durable
            points.append(Sample(series="checkpoint", subject=f"job:{name}", at=at, value=float(durable)))
        for rank, one in told.items():
            step = one.ended if isinstance(one, SlotBrief) else one.step
            if step is None:
                continue
            mark = (step, f"{one.loss} {one.accuracy}")  # as text, because a NaN is not even equal to itself
            if self._sampled.get(rank) == mark:
                continue
            self._sampled[rank] = mark
            subject = f"job:{name}" if rank == _JOB else f"job:{name}/rank:{rank}"
            of_slot = isinstance(one, SlotBrief)
            accuracy = self._evaluations.new(rank, one.accuracy) if of_slot else one.accuracy
            values = (("step", float(step)), ("loss", one.loss), ("accuracy", accuracy), ("step_s", one.step_s))
            for series, value in values:
                if value is not None and math.isfinite(value):
                    points.append(Sample(series=series, subject=subject, at=at, value=value))
        points += self._new_consumed(briefs, at)
        points += (self._save_cost(brief, at) for brief in briefs.values() if self._has_saved(brief))
        return points

    def _new_consumed(self, briefs: Mapping[int, SlotBrief], at: float) -> list[Sample]:
        """Samples and tokens that all ranks of the attempt have consumed so far, when they tell any."""
        totals = (
            ("samples", sum(brief.samples for brief in briefs.values())),
            ("tokens", sum(brief.tokens for brief in briefs.values())),
        )
        points = [
            Sample(series=series, subject=f"job:{self._name}", at=at, value=float(total))
            for series, total in totals
            if total > self._consumed.get(series, 0)
        ]
        self._consumed.update(totals)
        return points

    def _has_saved(self, brief: SlotBrief) -> bool:
        return brief.saves > self._saves.get(brief.rank, (0, 0.0))[0]

    def _save_cost(self, brief: SlotBrief, at: float) -> Sample:
        """What a rank's saves since the last point held it up for, in seconds each."""
        count, total_s = self._saves.get(brief.rank, (0, 0.0))
        self._saves[brief.rank] = (brief.saves, brief.saves_s)
        each_s = (brief.saves_s - total_s) / (brief.saves - count)
        return Sample(series="save_s", subject=f"job:{self._name}/rank:{brief.rank}", at=at, value=each_s)


class EarlyLines:
    """Lines that wait for slots of the same steps."""

    def __init__(self) -> None:
        self._lines: list[LineSeen] = []
        self._since: float | None = None
        """When the attempt's first line was read: the wait is counted once, from there."""

    def add(self, line: LineSeen) -> None:
        """Let a line wait."""
        if self._since is None:
            self._since = line.at
        self._lines.append(line)

    def drop(self) -> None:
        """Forget the lines that wait: slots tell the same, and know better."""
        self._lines.clear()

    def due(self, at: float, *, is_urgent: bool) -> list[LineSeen]:
        """Take the lines that have waited long enough; all of them when it is urgent."""
        if self._since is None or (at - self._since < LINES_AFTER_S and len(self._lines) < EARLY_MAX and not is_urgent):
            return []
        due, self._lines = self._lines, []
        return due


class AttemptFold:
    """One attempt's progress.

    Args:
        job: its key.
        attempt: its number.
        events: makes what is told.
        restored: tells the step that the attempt resumed from, None when it is not written down.
    """

    def __init__(self, job: JobKey, attempt: int, *, events: EventMaker, restored: Callable[[], int | None]) -> None:
        self.briefs: dict[int, SlotBrief] = {}
        self.has_first_step = False
        self.bad_loss: tuple[int | None, float] | None = None
        """(rank, loss) when a loss is not a finite number."""
        self._job = job
        self._attempt = attempt
        self._events = events
        self._restored = restored
        self._lines: LineSeen | None = None
        self._early = EarlyLines()
        self._told = -1
        self._told_at = 0.0
        self._staged = 0
        self._durable = 0
        self._points = Points(attempt_name(str(job), attempt))

    def take_slots(self, slots: tuple[SlotBrief, ...], at: float) -> list[AnyEvent]:
        """Newer slots of some ranks, seen at `at` (Unix seconds)."""
        for slot in slots:
            self.briefs[slot.rank] = slot
            if slot.loss is not None and not math.isfinite(slot.loss) and self.bad_loss is None:
                self.bad_loss = (slot.rank, slot.loss)
        durable = self._durable_on_all()
        events = self._first_step_by_slots(at, has_saved=durable is not None and durable > self._durable)
        events += self._checkpoints(
            staged=self._least(brief.staged for brief in self.briefs.values()),
            durable=durable,
            at=at,
            took_s=max(
                (one.durable_took_s for one in self.briefs.values() if one.durable_took_s is not None), default=None
            ),
        )
        events += self._mark(at)
        return events

    def take_line(self, line: LineSeen) -> list[AnyEvent]:
        """A progress or checkpoint line; slots that tell of steps know better."""
        if self._slots_tell():
            return []
        if line.loss is not None and not math.isfinite(line.loss) and self.bad_loss is None:
            self.bad_loss = (line.rank, line.loss)
        self._early.add(line)
        return self.lines_due(line.at)

    def lines_due(self, at: float, *, is_urgent: bool = False) -> list[AnyEvent]:
        """What lines told that have waited long enough for slots, each with the time at which it was read.

        Args:
            at: seconds since the epoch.
            is_urgent: the attempt has ended, or a fault is reported: no longer wait for slots.
        """
        if self._slots_tell():
            self._early.drop()
        return [event for line in self._early.due(at, is_urgent=is_urgent) for event in self._told_by(line)]

    def _slots_tell(self) -> bool:
        return any(brief.begun is not None or brief.ended is not None for brief in self.briefs.values())

    def _told_by(self, line: LineSeen) -> list[AnyEvent]:
        events: list[AnyEvent] = []
        if line.step is not None:
            self._lines = line
            if not self.has_first_step:
                events.append(self._first(line.step if line.first is None else line.first, line.at))
        if line.checkpoint is not None and not any(self._tells_saves(brief) for brief in self.briefs.values()):
            events += self._checkpoints(
                staged=None if line.durable else line.checkpoint,
                durable=line.checkpoint if line.durable else None,
                at=line.at,
                path=line.path,
                took_s=line.took_s,
            )
        return events + self._mark(line.at)

    @staticmethod
    def _least(steps: Iterable[int | None]) -> int | None:
        """The step that every rank that reports any has reached."""
        known = [step for step in steps if step is not None]
        return min(known, default=None)

    @staticmethod
    def _tells_saves(brief: SlotBrief) -> bool:
        return brief.staged is not None or brief.durable is not None

    def _durable_on_all(self) -> int | None:
        """The step that is durable on every rank that saves: one that has only staged so far has nothing durable."""
        saving = [brief.durable for brief in self.briefs.values() if self._tells_saves(brief)]
        return None if None in saving else self._least(saving)

    @property
    def step(self) -> int | None:
        """The newest step that all ranks have completed."""
        ended = [brief.ended for brief in self.briefs.values() if brief.ended is not None]
        if ended:
            return min(ended)
        return self._lines.step if self._lines is not None else None

    def _first_step_by_slots(self, at: float, *, has_saved: bool) -> list[AnyEvent]:
        """Once all ranks have told of it. A checkpoint may be durable before the slots of another node are heard."""
        firsts = [brief.first for brief in self.briefs.values() if brief.first is not None]
        if self.has_first_step or not firsts or (len(firsts) < len(self.briefs) and not has_saved):
            return []
        return [self._first(max(firsts), at)]

    def _first(self, step: int, at: float) -> AnyEvent:
        self.has_first_step = True
        resumed = self._restored()
        return self._event(
            FirstStepDone,
            at,
            step=step,
            resumed_from=max(0, step - 1) if resumed is None else resumed,
        )

    def _checkpoints(
        self, *, staged: int | None, durable: int | None, at: float, path: str = "", took_s: float | None = None
    ) -> list[AnyEvent]:
        events: list[AnyEvent] = []
        if staged is not None and staged > max(self._staged, self._durable) and staged != durable:
            self._staged = staged
            events.append(self._saved(staged, at, path, durable=False))
        if durable is not None and durable > self._durable:
            self._durable = durable
            events.append(self._saved(durable, at, path, durable=True, took_s=took_s))
        return events

    def _saved(self, step: int, at: float, path: str, *, durable: bool, took_s: float | None = None) -> AnyEvent:
        return self._event(
            CheckpointSaved,
            at,
            step=step,
            durable=durable,
            path=path,
            took_s=took_s,
        )

    def _mark(self, at: float) -> list[AnyEvent]:
        return self._reached(at) if at - self._told_at >= MARK_EVERY_S else []

    def reached(self, at: float) -> list[AnyEvent]:
        """All that is known of the progress and has not been told; asked before a fault is reported."""
        return [*self.lines_due(at, is_urgent=True), *self._reached(at)]

    def _reached(self, at: float) -> list[AnyEvent]:
        step = self.step
        if step is None or step <= self._told:
            return []
        self._told, self._told_at = step, at
        return [self._event(StepReached, at, step=step)]

    def _event(self, kind: type[Told], at: float, **fields: Any) -> Told:
        return self._events.event(kind, at=at, job=self._job, attempt=self._attempt, **fields)

    def samples(self, at: float) -> list[Sample]:
        """Points since the last call: step, loss, accuracy, step time and cost of saves of ranks, the checkpoint."""
        return self._points.new(self.briefs, self._lines, self._durable, at)

    def rhythm_sample(self, slot: SlotBrief, now_mono: float) -> StepSample:
        """What the hang detector needs of a slot, on the leader's monotonic clock."""
        return StepSample(
            at=now_mono,
            phase=slot.phase,
            begun=slot.begun,
            ended=slot.ended,
            step_s=slot.step_s,
            phase_at=now_mono - slot.phase_age_s,
            attempt=self._attempt,
            writes=slot.writes,
            is_gone=slot.is_gone,
        )

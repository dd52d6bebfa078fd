"""What the ranks of the newest attempt do: reports of the nodes become events. Used by the leader.

Ranks start before what judges them is loaded: the watch of an attempt is made when it is first asked for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from holdfast.launch.attempts import Attempts
from holdfast.launch.beats import Beats
from holdfast.launch.crew import Crew
from holdfast.launch.epoch import restored_step
from holdfast.launch.frames import AnyReport, LineSeen, RankEnded, RanksGone, RankStack, SlotsSeen, Spotted
from holdfast.launch.ground import Background
from holdfast.launch.launcher_events import EventMaker, LauncherEvents
from holdfast.launch.output import Voice
from holdfast.launch.place import JobPlace
from holdfast.model.events import AnyEvent
from holdfast.model.policy import Policy
from holdfast.os.clock import steady_time

if TYPE_CHECKING:  # loaded when the first ranks run
    from holdfast.detect.catalogue import Catalogue
    from holdfast.detect.rhythm import Rhythm
    from holdfast.launch.environment import AttemptSpec
    from holdfast.launch.watch import AttemptWatch

_SAMPLES_EVERY = 5
_LOOK_LIMIT_S = 0.5


class Judgement:
    """What ranks are judged with, loaded late.

    Args:
        policy: how hangs and stragglers are told.
        catalogue: gives findings their domain and role.
        is_ready: the catalogue is there; to wait for it would cost the nodes their leases.
    """

    def __init__(self, policy: Policy, catalogue: Callable[[], Catalogue], is_ready: Callable[[], bool]) -> None:
        self.is_ready = is_ready
        self._policy = policy
        self._catalogue = catalogue
        self._rhythm: Rhythm | None = None

    def watch(self, place: JobPlace, spec: AttemptSpec, started_mono: float, events: EventMaker) -> AttemptWatch:
        """The watch of an attempt that was started at this monotonic time."""
        from holdfast.detect.rhythm import Rhythm  # noqa: PLC0415 - ranks start without what judges them
        from holdfast.launch.slowdown import Slowdown  # noqa: PLC0415
        from holdfast.launch.watch import AttemptWatch  # noqa: PLC0415

        if self._rhythm is None:
            self._rhythm = Rhythm(self._policy.hang, 0)
        self._rhythm.begin_attempt(spec.attempt, started_mono, ranks=spec.world_size)
        return AttemptWatch(
            place.job,
            spec,
            events=events,
            catalogue=self._catalogue,
            rhythm=self._rhythm,
            slowdown=Slowdown(self._policy.straggler.factor, self._policy.straggler.steps),
            restored=lambda: restored_step(place.job_dir, spec.epoch),
        )


class Observer:
    """Follows the newest attempt.

    Args:
        place: the leader's.
        judgement: what ranks are judged with.
        attempts: says which attempt is the newest.
        crew: dumps stacks, and knows whose lease has run out.
        events: takes what is seen.
        voice: for people.
        background: runs looks for stragglers.
        on_fall: told the attempt of which a rank has ended.
    """

    def __init__(
        self,
        place: JobPlace,
        judgement: Judgement,
        *,
        attempts: Attempts,
        crew: Crew,
        events: LauncherEvents,
        voice: Voice,
        background: Background,
        on_fall: Callable[[int], object],
    ) -> None:
        self.beats = Beats(place)
        self._place = place
        self._judgement = judgement
        self._attempts = attempts
        self._crew = crew
        self._events = events
        self._voice = voice
        self._background = background
        self._on_fall = on_fall
        self._watch: AttemptWatch | None = None
        self._is_looking = False
        self._looks = 0

    @property
    def watch(self) -> AttemptWatch | None:
        """What is known of the newest attempt, None before the first."""
        spec = self._attempts.spec
        if spec is not None and (self._watch is None or self._watch.spec is not spec):
            self._watch = self._judgement.watch(self._place, spec, self._attempts.started_mono, self._events)
        return self._watch

    def running(self, attempt: int | None = None) -> AttemptWatch | None:
        """The watch of the newest attempt while it is not over, and only if it has this number."""
        watch = self.watch
        if watch is None or watch.is_over or attempt not in {None, watch.spec.attempt}:
            return None
        return watch

    # --- reports ---

    def hear(self, node: str, report: AnyReport) -> None:
        """A node reports."""
        watch = self.running(getattr(report, "attempt", None))
        if watch is None:
            return
        at, mono = steady_time(), time.monotonic()
        match report:
            case SlotsSeen():
                self._submit(watch.slots_seen(report, node, at, mono))
            case LineSeen():
                self._submit(watch.line_seen(report, node, at, mono))
            case Spotted() if not watch.ends.puts_off(report, node):
                self._submit(watch.found(report.findings))
            case RankEnded():
                self._rank_ended(watch, report, node)
            case RanksGone() if report.why:
                self._submit(watch.lease_over(node, at, report.why))
            case _:
                return

    def _submit(self, events: Sequence[AnyEvent]) -> None:
        self._events.submit(*events)

    def _rank_ended(self, watch: AttemptWatch, report: RankEnded, node: str) -> None:
        events = watch.rank_ended(report, node)
        if not events:
            return
        for other in self._crew.leases_run_out(time.monotonic()):
            why = f"{other} has not answered for as long as its attempt lease lasts: its ranks are killed"
            self._submit(watch.lease_over(other, report.at, why))
        self._submit(events)
        self._voice.say(f"{report.who} on {node} ended with {report.exit.words}")
        self._on_fall(watch.spec.attempt)

    def lease_over(self, node: str, why: str, at: float) -> None:
        """A node's ranks were killed because its lease could not be renewed."""
        if (watch := self.watch) is not None:
            self._voice.say(why)
            self._submit(watch.lease_over(node, at, why))

    def end(self, watch: AttemptWatch, *, stopped: bool) -> asyncio.Future[int] | None:
        """No process of the attempt is left: tell all that is known; the future says when its end is stored."""
        at = steady_time()
        for report, node in watch.ends.due(at, is_over=True):
            self.hear(node, report)
        self._submit(watch.fold.lines_due(at, is_urgent=True))
        return self._events.submit(watch.ended(at, stopped=stopped))

    # --- looking ---

    def look(self, quiet_s: dict[str, float]) -> None:
        """Hangs, slow steps, samples. Called ten times a second with how long each node has been silent, in seconds."""
        watch = self.running()
        if watch is None:
            return
        at, mono = steady_time(), time.monotonic()
        self._submit(watch.fold.lines_due(at))
        for report, node in watch.ends.due(at):
            self.hear(node, report)
        if self._judgement.is_ready():
            self._submit(watch.judge_hang(at, mono, quiet_s))
        if watch.slow.wants_look and not self._is_looking:
            self._is_looking = True
            self._background.run(self._look_for_stragglers(watch))
        self._looks += 1
        if self._looks % _SAMPLES_EVERY == 0:
            self.beats.add(watch.fold.samples(at))

    async def _look_for_stragglers(self, watch: AttemptWatch) -> None:
        """Looks at all stacks within slow steps, until they tell or the steps are usual again."""
        from holdfast.launch.slowdown import LOOKS_MAX  # noqa: PLC0415 - as above

        looks: list[list[RankStack]] = []
        try:
            for _ in range(LOOKS_MAX):
                if watch.is_over or not watch.slow.looks_on(looks):
                    break
                stacks = await self._crew.dump(watch.spec.attempt, _LOOK_LIMIT_S)
                if stacks:
                    looks.append(stacks)
                await asyncio.sleep(watch.slow.look_pause_s)
            self._submit(watch.stragglers(looks, steady_time()))
        finally:
            self._is_looking = False

    async def capture_stacks(self, attempt: int, limit_s: float) -> None:
        """Dump, group, and say so."""
        watch = self.running(attempt)
        if watch is None:
            return
        captured = watch.stacks(await self._crew.dump(attempt, limit_s), steady_time())
        if captured.odd_ranks:
            self._voice.say(f"rank {', '.join(map(str, captured.odd_ranks))} stands apart from the others")
        self._events.submit(captured)

    def ask_to_save(self, watch: AttemptWatch, why: str) -> None:
        """Ask all ranks to save a checkpoint and stop."""
        watch.ends.leaving = True
        self._voice.say(f"asked all ranks to save a checkpoint and stop{why and f': {why}'}")
        self._crew.evacuate(watch.spec.attempt)

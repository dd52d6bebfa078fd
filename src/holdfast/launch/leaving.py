"""Drives `core.shutdown`: whether, when and with which exit code the leader leaves. Used by the leader.

An end of the job that needs a decision waits for the engine; a signal, a lost lease, another launcher's epoch and a
folder that refuses do not.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from holdfast.errors import EXIT_RESTART_ME
from holdfast.launch.allocation import outcome, until_settled
from holdfast.launch.attempts import Attempts
from holdfast.launch.core.asks import Finish, KillRanks, Say
from holdfast.launch.core.shutdown import (
    GIVE_UP_S,
    AttemptOver,
    AwaitDecision,
    Ended,
    EndRanks,
    ExpectStop,
    FinishLater,
    FolderRefused,
    Handed,
    Hurry,
    LeaseLost,
    LossReport,
    OwnReport,
    PassEnd,
    Settled,
    Shutdown,
    ShutdownAsk,
    Stored,
    Superseded,
)
from holdfast.launch.crew import Crew
from holdfast.launch.folder import TELL_S, FolderWatch
from holdfast.launch.ground import Background
from holdfast.launch.launcher_events import LauncherEvents
from holdfast.launch.observer import Observer
from holdfast.launch.output import Voice
from holdfast.launch.place import JobPlace
from holdfast.model.events import Escalated, LauncherLapsed
from holdfast.model.orders import Escalate

if TYPE_CHECKING:  # loaded when the first ranks run
    from holdfast.launch.uplink import Uplink
    from holdfast.launch.watch import AttemptWatch

_TOLD_S = 5.0


class LastWords(Struct):
    """What a leader that leaves its allocation leaves behind, for whoever requeues the job."""

    exclude: tuple[str, ...] = ()
    """Nodes that the job is to be kept off where it runs next."""
    progressed: int = 0
    """How often the job has made progress, by the engine's count."""
    is_superseded: bool = False
    """Another launcher has taken the job over."""


class Leaving:
    """The way out.

    Args:
        place: the leader's.
        shutdown: decides.
        attempts: knows the newest attempt and epoch.
        crew: ends the ranks.
        events: reach the engine.
        observer: knows how the newest attempt ended.
        voice: for people.
        background: runs what is waited for elsewhere; an error there ends this launcher.
    """

    uplink: Uplink | None = None
    """The line to the cluster's controller, once there is one."""

    def __init__(
        self,
        place: JobPlace,
        shutdown: Shutdown,
        *,
        attempts: Attempts,
        crew: Crew,
        events: LauncherEvents,
        observer: Observer,
        voice: Voice,
        background: Background,
    ) -> None:
        self.shutdown = shutdown
        self.is_over: asyncio.Future[int] = background.is_over
        self.why = ""
        self.last_words = LastWords()
        self.told_over: defaultdict[int, asyncio.Event] = defaultdict(asyncio.Event)
        """The engine knows of these attempts that no process of them is left."""
        self._hurried = False
        self._place = place
        self._attempts = attempts
        self._crew = crew
        self._events = events
        self._observer = observer
        self._voice = voice
        self._background = background
        self._folder = FolderWatch(place.job_dir, voice.say)

    @property
    def has_begun(self) -> bool:
        """Told to end, or over."""
        return bool(self.shutdown.ending) or self.is_over.done()

    def wants_requeue(self, code: int) -> bool:
        """Left with this code, nothing is left to be done in this allocation, and the job is still ours."""
        decides = self.shutdown.recovers and not self.shutdown.observes
        return code == EXIT_RESTART_ME and decides and not self.last_words.is_superseded

    def finish(self, code: int, why: str = "") -> None:
        """Leave with this code; the first call counts."""
        if not self.is_over.done():
            self.why = why
            self.is_over.set_result(code)

    def take(self, report: OwnReport) -> list[ShutdownAsk]:
        """Have the core decide, and do what it asks."""
        asks = self.shutdown.handle(report)
        self._carry_out(asks)
        return asks

    def _carry_out(self, asks: Sequence[ShutdownAsk]) -> None:
        for ask in asks:
            match ask:
                case Say():
                    self._voice.say(ask.text)
                case ExpectStop() if (watch := self._observer.watch) is not None:
                    watch.stop_asked = True
                case PassEnd():
                    self._crew.pass_signal(ask.signum, is_end=True)
                case EndRanks():
                    self._background.run(self._end_ranks(ask))
                case Hurry():
                    self._hurried = True
                case Finish():
                    self.finish(ask.code, ask.why)
                case FinishLater():
                    self._background.run(self._finish_later(ask))
                case _:
                    pass

    async def _end_ranks(self, ask: EndRanks) -> None:
        if ask.after_s:
            await asyncio.sleep(ask.after_s)
        await self._crew.end(ask.attempt, ask.grace_s)

    async def _finish_later(self, ask: FinishLater) -> None:
        await asyncio.sleep(ask.after_s)
        self.finish(ask.finish.code, ask.finish.why)

    async def _take_loss(self, report: LossReport) -> None:
        """As `take`; the ranks here are dead when it returns."""
        for ask in self.shutdown.handle(report):
            if isinstance(ask, KillRanks):
                await self._crew.runner.end(ask.attempt, 0.0, why=ask.why)
            else:
                self._carry_out([ask])

    # --- the job's end ---

    async def after_end(self, watch: AttemptWatch, told: asyncio.Future[int] | None) -> None:
        """No process of the attempt is left. When nothing is to be done about it (observe, advise lapsed), leave."""
        stored = await outcome(told, self._voice.say)
        asks = self.take(AttemptOver(_ended(watch), stored))
        if stored is not Stored.LOST:
            self.told_over[watch.spec.attempt].set()

        def is_awaited() -> bool:
            return self._attempts.fence.attempt == watch.spec.attempt and not self.is_over.done()

        if AwaitDecision() in asks and await until_settled(self._events.controller, self._place.job, is_awaited):
            self.take(Settled(_ended(watch)))

    async def escalate(self, order: Escalate) -> None:
        """Hand the job to the controller, which ends this allocation; without one, or given up for good, leave it."""
        self._voice.say(f"no remedy is left inside the allocation: {order.why}")
        record = await self._events.job_record()
        self.last_words.exclude = order.exclude_nodes
        self.last_words.progressed = record.progressed if record is not None else 0
        controller = self._events.controller
        incidents = await controller.journal.incidents(open_only=True)
        escalated = self._events.event(
            Escalated,
            job=self._place.job,
            attempt=order.attempt if record is None or record.attempt is None else record.attempt.number,
            diagnosis=incidents[0].diagnosis if incidents else None,
            exclude_nodes=order.exclude_nodes,
            why=order.why,
        )
        seq = await controller.submit(escalated)
        is_told = self.uplink is not None and await self.uplink.flush(seq, _TOLD_S)
        self.take(Handed(code=order.exit_code, why=order.why, is_told=is_told))

    # --- what takes the job from us ---

    async def lost_lease(self) -> None:
        """Our own lease has run out: kill this node's ranks; the followers' die because nothing is granted."""
        if (watch := self._observer.running()) is not None:
            await self._take_loss(LeaseLost(watch.spec.attempt))

    async def superseded(self, epoch: int) -> None:
        """Another launcher has started an attempt of this job with a newer epoch."""
        self.last_words.is_superseded = True
        fence = self._attempts.fence
        await self._take_loss(Superseded(epoch=epoch, own=fence.epoch, attempt=fence.attempt))

    def look_at_folder(self, unread: str, mono: float) -> None:
        """Nothing can be decided while the folder refuses: ranks that run go on; when none is left, we leave."""
        self._folder.look(self._events.controller.failing or unread, mono, is_read=not unread)
        watch = self._observer.watch
        if watch is None or self.is_over.done() or not self._crew.is_empty:
            return
        if (for_s := self._folder.refused_for(mono)) >= GIVE_UP_S:
            self.take(FolderRefused(ended=_ended(watch), for_s=for_s, error=str(self._folder.error)))

    async def say_left(self, code: int) -> int:
        """Tell the engine that this launcher has left, and wait for that event's number.

        Raises:
            LinkError: the controller has ended, or the folder cannot be used, or somebody is in a hurry.
        """
        left = self._events.event(
            LauncherLapsed,
            job=self._place.job,
            left=True,
            exit_code=code,
            restart_count=self._place.restart_count,
        )
        return await self._events.until_stored(
            left, lambda mono: self._hurried or self._folder.refused_for(mono) >= TELL_S
        )


def _ended(watch: AttemptWatch) -> Ended:
    """How the watched attempt has ended, as far as is known."""
    return Ended(exit=watch.outcome(), is_good=watch.ended_well, cause=watch.cause, stop_asked=watch.stop_asked)

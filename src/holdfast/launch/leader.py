"""The leader: the launcher of node rank 0. Holds the job's engine and journal, and leads all nodes of the allocation.

Started by `program`. Reports of the nodes become events, the engine's orders are carried out here (`allocation` calls
back). The leader's own lease is renewed by the controller's answer or by reading its epoch in the job's folder; when
it runs out, every rank of the job dies: its own by its hand, the followers' because it grants nothing any more.
Time passes in the asyncio loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, structs

from holdfast.errors import EXIT_DO_NOT_REQUEUE, EXIT_RESTART_ME, HoldfastError, LinkError, PermanentOrderError
from holdfast.launch.allocation import AllocationController, is_settled, lay_out
from holdfast.launch.beats import Beats
from holdfast.launch.checkpoint_gate import before_start
from holdfast.launch.core.asks import Finish, KillRanks, Say
from holdfast.launch.core.fence import (
    EpochRaised,
    Fence,
    FenceReport,
    LaidOut,
    LayOut,
    PinCheckpoint,
    Pinned,
    RaiseEpoch,
    RenewLease,
    Resumed,
    StartOrdered,
    StartRanks,
)
from holdfast.launch.core.lease import YieldJob
from holdfast.launch.core.presence import CheckSpare, FollowersLooked, Presence, SpareChecked, TellHeard, TellSilent
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
    PassEnd,
    RankFell,
    Settled,
    Shutdown,
    ShutdownAsk,
    Signalled,
    Stored,
    Superseded,
)
from holdfast.launch.crew import Crew, free_port
from holdfast.launch.environment import AttemptSpec
from holdfast.launch.epoch import newest_attempt, raise_epoch, read_epoch, restored_step
from holdfast.launch.folder import TELL_S, FolderWatch, unusable
from holdfast.launch.frames import AnyReport, EndAsked, LineSeen, RankEnded, RanksGone, RankStack, SlotsSeen, Spotted
from holdfast.launch.options import RunOptions
from holdfast.launch.output import Voice
from holdfast.launch.own_lease import OwnLease
from holdfast.launch.parting import Parting
from holdfast.launch.place import JobPlace
from holdfast.model import events as e
from holdfast.model.cluster import JobView
from holdfast.model.evidence import Remedy
from holdfast.model.orders import Escalate
from holdfast.model.policy import Mode, Policy
from holdfast.model.records import JobRecord

if TYPE_CHECKING:  # loaded when the first ranks run
    from holdfast.detect.catalogue import Catalogue
    from holdfast.detect.rhythm import Rhythm
    from holdfast.launch.slurm_nodes import SlurmNodes
    from holdfast.launch.uplink import Uplink
    from holdfast.launch.watch import AttemptWatch

_LOOK_S = 0.1
_SAMPLES_EVERY = 5
_LOOK_LIMIT_S = 0.5
_LEASE_BACK_S = 60.0
_START_LIMIT_S = 120.0
_LATE_S = 2.0
_LAST_WORD_S = 30.0
"""A loaded machine may take that long to open the journal of a job that ends at once."""
_SPARE_AGAIN_S = 5.0
_NEVER = 1 << 62


class _Wanted(Struct, frozen=True):
    """An attempt on its way to its ranks. `spec` is None until it is laid out."""

    nodes: tuple[str, ...]
    restore_step: int | None
    spec: AttemptSpec | None = None


class Leader:
    """See the module. `controller`, `crew` and `uplink` are set by `program` once they exist."""

    controller: AllocationController
    crew: Crew
    uplink: Uplink | None = None

    def __init__(
        self,
        place: JobPlace,
        options: RunOptions,
        *,
        policy: Policy,
        view: JobView,
        want_nodes: int,
        catalogue: Callable[[], Catalogue],
        voice: Voice,
        lease_s: float,
    ) -> None:
        self.place = place
        self.options = options
        self.policy = policy
        self.want_nodes = want_nodes
        self.voice = voice
        self.shutdown = Shutdown(
            recovers=view.recovery is not None and view.recovery.enabled,
            observes=policy.mode_for(Remedy.RESTART_IN_PLACE) is Mode.OBSERVE,
            is_command=options.is_command,
            stop_grace_s=options.stop_grace_s,
        )
        self.own_lease = OwnLease(
            place,
            lease_s,
            epoch=lambda: self.epoch,
            has_begun=lambda: self._spec is not None,
            is_held=lambda: self._spec is not None and not self.crew.is_empty,
            on_lost=self.lost_lease,
            on_superseded=self.superseded,
        )
        self.folder = FolderWatch(place.job_dir, voice.say)
        self.hurried = asyncio.Event()
        """Told a second time to end: nothing is waited for any more."""
        self.beats = Beats(place)
        self._spec: AttemptSpec | None = None
        self._started_mono = 0.0
        self._watch: AttemptWatch | None = None
        self.fence = Fence()
        self.is_over: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.why = ""
        self.parting = Parting()
        self.evidence: SlurmNodes | None = None
        self.can_judge: Callable[[], bool] = lambda: True  # to wait for the catalogue would cost the nodes their leases
        self._view = view
        self._catalogue = catalogue
        self._rhythm: Rhythm | None = None
        self._token = secrets.token_hex(3)
        self._numbers = itertools.count(1)
        self._told_over: dict[int, asyncio.Event] = {}
        self._is_looking = False
        self._begun = asyncio.Event()
        self._starting = asyncio.Lock()
        self._let_go: set[str] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._attach_seq = 0

    # --- small things ---

    def event_id(self) -> str:
        """A new id, unique over restarts of this launcher."""
        return f"{self.place.source}/{self.place.restart_count}.{self._token}.{next(self._numbers)}"

    def submit(self, *events: e.AnyEvent) -> asyncio.Future[int] | None:
        """Hand events to the engine, in order."""
        last = None
        for event in events:
            last = self.controller.submit(event)
        return last

    def run_soon(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start something that nobody waits for."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not self.is_over.done():
            self.is_over.set_exception(error)

    def job_view(self) -> JobView:
        """The job as it is now."""
        return self._view

    @property
    def attempt(self) -> int:
        """The newest attempt, -1 before the first."""
        return self.fence.attempt

    @property
    def epoch(self) -> int:
        """The newest epoch that this leader has raised."""
        return self.fence.epoch

    @property
    def ending(self) -> int:
        """The signal by which the job is being ended from outside, 0 when it is not."""
        return self.shutdown.ending

    def finish(self, code: int, why: str = "") -> None:
        """Leave with this code; the first call counts."""
        if not self.is_over.done():
            self.why = why
            self.is_over.set_result(code)

    # --- attaching and starting ---

    async def attach(self, record: JobRecord | None) -> None:
        """Take authority over the job, going on with numbers and epochs where it was left."""
        self._continue(record)
        self.submit(
            e.JobObserved(id=self.event_id(), at=time.time(), source="allocation", job=self._view),
        )
        self.run_soon(self._attach(self._say_attached()))

    def _continue(self, record: JobRecord | None) -> None:
        try:
            epoch = read_epoch(self.place.job_dir)
        except OSError as error:
            raise unusable(self.place.job_dir, error) from error
        known = record.attempt if record is not None else None
        resumed = Resumed(
            epoch=epoch,
            record_epoch=record.epoch if record is not None else None,
            record_attempt=known.number if known is not None else None,
            folder_attempt=newest_attempt(self.place.job_dir) if epoch else -1,
        )
        self.fence.handle(resumed)

    async def _attach(self, stored: asyncio.Future[int]) -> None:
        self._attach_seq = _NEVER
        with contextlib.suppress(LinkError):  # the journal could not be opened, which ends this launcher
            self._attach_seq = await stored

    def _say_attached(self) -> asyncio.Future[int]:
        return self.controller.submit(
            e.LauncherAttached(
                id=self.event_id(),
                at=time.time(),
                source=self.place.source,
                job=self.place.job,
                restart_count=self.place.restart_count,
                lease_s=10.0,
                nodes=self.place.nodes,
                ranks=self.want_nodes * self.crew.runner.local_ranks,
            )
        )

    async def start_first(self) -> None:
        """The allocation's first attempt, on the first nodes that join."""
        nodes = await self.crew.until_joined(self.want_nodes, self.options.follower_wait_s)
        if len(nodes) < self.want_nodes:
            missing = sorted(set(self.place.nodes) - set(nodes))
            self.finish(EXIT_RESTART_ME, f"{', '.join(missing)} did not join within {self.options.follower_wait_s:g} s")
            return
        await self.start_attempt(
            attempt=self.attempt + 1,
            epoch=self.epoch + 1,
            nodes=nodes,
            restore_step=self.place.restore_step,
            in_place=False,
        )
        self._begun.set()

    async def until_begun(self) -> None:
        """Wait until this launcher has started its first attempt."""
        await self._begun.wait()

    async def until_may_start(self) -> None:
        """Wait until our own lease is beyond doubt; raises TemporaryOrderError when that takes too long."""
        await self.own_lease.until_sure(_LEASE_BACK_S)

    async def start_attempt(
        self, *, attempt: int, epoch: int, nodes: tuple[str, ...], restore_step: int | None, in_place: bool
    ) -> None:
        """Fence the attempts before it, start it on these nodes, and say so."""
        async with self._starting:
            ordered = StartOrdered(attempt=attempt, epoch=epoch, in_place=in_place)
            await self._advance(ordered, _Wanted(nodes, restore_step))
        self._let_lost_go()

    @property
    def has_let_go(self) -> bool:
        """A lost node has left the job; whoever started the launchers may still wait for its own."""
        return bool(self._let_go) and self.evidence is not None

    def _let_lost_go(self) -> None:
        """Lost nodes leave the job once it goes on without them: the scheduler would end it for their sake."""
        lost = self.parting.gone - self._let_go
        if lost and self.evidence is not None:
            self._let_go |= lost
            self.run_soon(self._tell_let_go(self.evidence))

    async def _tell_let_go(self, nodes: SlurmNodes) -> None:
        self.voice.say(await nodes.let_go(self._let_go))

    async def _advance(self, report: FenceReport, wanted: _Wanted) -> None:
        """Take the steps to the attempt's ranks, one after the other."""
        for ask in self.fence.handle(report):
            match ask:
                case LayOut():
                    laid_out = structs.replace(wanted, spec=self._lay_out(ask, wanted))
                    await self._advance(LaidOut(ask.attempt, ask.epoch), laid_out)
                case RaiseEpoch():
                    await self._advance(await _raise_epoch(self.place.job_dir, ask.epoch), wanted)
                case YieldJob():
                    await self.superseded(ask.epoch)
                case RenewLease():
                    self.own_lease.renew(ask.since)
                case PinCheckpoint():
                    step = await before_start(self.options.checkpoints, wanted.restore_step, self.voice.say)
                    is_leaving = bool(self.ending) or self.is_over.done()
                    await self._advance(Pinned(is_leaving=is_leaving), structs.replace(wanted, restore_step=step))
                case StartRanks() if wanted.spec is not None:
                    await self._start_ranks(structs.replace(wanted.spec, restore_step=wanted.restore_step))

    def _lay_out(self, ask: LayOut, wanted: _Wanted) -> AttemptSpec:
        nodes = wanted.nodes
        return lay_out(
            self.crew,
            attempt=ask.attempt,
            epoch=ask.epoch,
            nodes=nodes,
            port=free_port(self.crew.address_of(nodes[0]) if nodes[0] == self.place.node else self.place.address),
            restart_count=self.place.restart_count,
            in_place=ask.in_place,
            restore_step=wanted.restore_step,
            max_restarts=self.policy.limits.max_in_place,
        )

    async def _start_ranks(self, spec: AttemptSpec) -> None:
        self._spec, self._started_mono = spec, time.monotonic()
        self._told_over[spec.attempt] = asyncio.Event()
        await self.crew.start(spec, _START_LIMIT_S)
        is_warm = self.crew.standbys_used > 0
        self.submit(_attempt_started(self.event_id(), time.time(), self.place, spec, standby=is_warm))
        self.voice.say(self._started_line(spec.world_size, spec.nodes))

    def _started_line(self, ranks: int, nodes: tuple[str, ...]) -> str:
        warm = f", {self.crew.standbys_used} of them warm standbys" if self.crew.standbys_used else ""
        what = "the command" if self.options.is_command else f"{ranks} rank{'s' if ranks > 1 else ''}{warm}"
        return f"attempt {self.attempt} (epoch {self.epoch}): {what} on {', '.join(nodes)}"

    @property
    def watch(self) -> AttemptWatch | None:
        """What is known of the newest attempt, None before the first. Made on first use: the ranks come before it."""
        if self._spec is not None and (self._watch is None or self._watch.spec is not self._spec):
            self._watch = self._watch_of(self._spec)
        return self._watch

    def _watch_of(self, spec: AttemptSpec) -> AttemptWatch:
        from holdfast.detect.rhythm import Rhythm  # noqa: PLC0415 - ranks start without what judges them
        from holdfast.launch.slowdown import Slowdown  # noqa: PLC0415
        from holdfast.launch.watch import AttemptWatch  # noqa: PLC0415

        if self._rhythm is None:
            self._rhythm = Rhythm(self.policy.hang, 0)
        self._rhythm.begin_attempt(spec.attempt, self._started_mono, ranks=spec.world_size)
        epoch, job_dir = spec.epoch, self.place.job_dir
        return AttemptWatch(
            self.place.job,
            spec,
            source=self.place.source,
            event_id=self.event_id,
            catalogue=self._catalogue,
            rhythm=self._rhythm,
            slowdown=Slowdown(self.policy.straggler.factor, self.policy.straggler.steps),
            restored=lambda: restored_step(job_dir, epoch),
        )

    # --- what nodes report ---

    def on_report(self, node: str, report: AnyReport) -> None:
        """Everything that the crew hears."""
        if isinstance(report, EndAsked):
            self.end_job(report.signum, told_by=node)
            return
        watch = self.watch
        if watch is None or getattr(report, "attempt", watch.spec.attempt) != watch.spec.attempt or watch.is_over:
            return
        at, mono = time.time(), time.monotonic()
        match report:
            case SlotsSeen():
                self.submit(*watch.slots_seen(report, node, at, mono))
            case LineSeen():
                self.submit(*watch.line_seen(report, node, at, mono))
            case Spotted() if not watch.ends.puts_off(report, node):
                self.submit(*watch.found(report.findings))
            case RankEnded():
                self._rank_ended(watch, report, node)
            case RanksGone() if report.why:
                self.submit(*watch.lease_over(node, at, report.why))
            case _:
                return

    def _rank_ended(self, watch: AttemptWatch, report: RankEnded, node: str) -> None:
        events = watch.rank_ended(report, node)
        if not events:
            return
        for other in self.crew.leases_run_out(time.monotonic()):
            why = f"{other} has not answered for as long as its attempt lease lasts: its ranks are killed"
            self.submit(*watch.lease_over(other, report.at, why))
        self.submit(*events)
        self.voice.say(f"{report.who} on {node} ended with {report.exit.words}")
        self.carry_out(self.shutdown.handle(RankFell(watch.spec.attempt)))

    def on_all_gone(self, attempt: int) -> None:
        """No process of the attempt is left anywhere: tell the engine, and see what that means for us."""
        watch = self.watch
        if watch is None or watch.spec.attempt != attempt or watch.is_over:
            return
        if watch.ends.is_doubtful and not watch.stop_asked:
            asyncio.get_running_loop().call_later(_LOOK_S, self.on_all_gone, attempt)
            return
        stopped = self.shutdown.is_stopped(stop_asked=watch.stop_asked)
        at = time.time()
        for report, node in watch.ends.due(at, is_over=True):
            self.on_report(node, report)
        self.submit(*watch.fold.lines_due(at, is_urgent=True))
        stored = self.submit(watch.ended(at, stopped=stopped))
        self.run_soon(self._after_end(watch, stored))

    async def _after_end(self, watch: AttemptWatch, stored: asyncio.Future[int] | None) -> None:
        how = Stored.TAKEN if stored is None else await self._outcome_of(stored)
        asks = self.shutdown.handle(AttemptOver(_ended(watch), how))
        self.carry_out(asks)
        if how is not Stored.LOST:
            self._told_over[watch.spec.attempt].set()
        if AwaitDecision() in asks:
            await self._until_decided(watch)

    async def until_stored(self, event: e.AnyEvent) -> int:
        """Hand one last event to the engine and wait for it.

        Raises:
            LinkError: the controller has ended, or the folder cannot be used, or somebody is in a hurry.
        """
        stored = self.controller.submit(event)
        deadline = time.monotonic() + _LAST_WORD_S
        while not stored.done():
            now = time.monotonic()
            if self.hurried.is_set() or now > deadline or self.folder.refused_for(now) >= TELL_S:
                raise LinkError("the launcher's last event is not stored")
            await asyncio.wait([stored], timeout=_LOOK_S)
        return stored.result()

    async def _outcome_of(self, stored: asyncio.Future[int]) -> Stored:
        try:
            await stored
        except LinkError:
            return Stored.LOST
        except HoldfastError as error:
            self.voice.say(f"the engine refused to judge the end of the attempt: {str(error).splitlines()[0]}")
            return Stored.REFUSED
        return Stored.TAKEN

    async def _until_decided(self, watch: AttemptWatch) -> None:
        """The attempt ended by itself. When nothing is to be done about it (observe, advise lapsed), leave."""
        while self.attempt == watch.spec.attempt and not self.is_over.done():
            record = await self.record()
            pending = [known.order for known in await self.controller.journal.orders(pending_only=True)]
            if is_settled(record, pending):
                self.carry_out(self.shutdown.handle(Settled(_ended(watch))))
                return
            await self.controller.events_after(self.controller.seq, wait_s=_LATE_S)

    async def record(self) -> JobRecord | None:
        """The engine's record of the job."""
        found = await self.controller.journal.jobs(job=str(self.place.job))
        return found[0] if found else None

    def on_lost(self, node: str, evidence: str) -> None:
        """A follower's connection was ended by its kernel: its launcher is gone, and its ranks died with it."""
        self.voice.say(f"{node} is lost: {evidence}")
        self.parting.gone |= {node}
        self.submit(
            e.NodeGone(id=self.event_id(), at=time.time(), source=self.place.source, node=node, evidence=evidence)
        )
        self.crew.lost(node)

    # --- what the engine orders ---

    async def stop_attempt(self, attempt: int, grace_s: float) -> None:
        """End it; returns when it is provably over and that is stored."""
        watch = self.watch
        if watch is None or watch.spec.attempt != attempt:
            return
        watch.stop_asked = True
        await self.crew.end(attempt, grace_s)
        await self._told_over[attempt].wait()

    async def capture_stacks(self, attempt: int, limit_s: float) -> None:
        """Dump, group, and say so."""
        watch = self.watch
        if watch is None or watch.spec.attempt != attempt or watch.is_over:
            return
        stacks = await self.crew.dump(attempt, limit_s)
        captured = watch.stacks(stacks, time.time())
        if captured.odd_ranks:
            self.voice.say(f"rank {', '.join(map(str, captured.odd_ranks))} stands apart from the others")
        self.submit(captured)

    def save_and_stop(self, attempt: int, why: str) -> None:
        """Ask all ranks to save and stop; their exit code 85 then ends this launcher with the same."""
        if self.watch is not None and self.watch.spec.attempt == attempt and not self.watch.is_over:
            self.watch.ends.leaving = True
            self.voice.say(f"asked all ranks to save a checkpoint and stop{why and f': {why}'}")
            self.crew.evacuate(attempt)

    async def escalate(self, order: Escalate) -> None:
        """Hand the job to the controller, which ends this allocation; without one, or given up for good, leave it."""
        self.voice.say(f"no remedy is left inside the allocation: {order.why}")
        record = await self.record()
        self.parting.exclude = order.exclude_nodes
        self.parting.progressed = record.progressed if record is not None else 0
        incidents = await self.controller.journal.incidents(open_only=True)
        escalated = e.Escalated(
            id=self.event_id(),
            at=time.time(),
            source=self.place.source,
            job=self.place.job,
            attempt=order.attempt if record is None or record.attempt is None else record.attempt.number,
            diagnosis=incidents[0].diagnosis if incidents else None,
            exclude_nodes=order.exclude_nodes,
            why=order.why,
        )
        seq = await self.controller.submit(escalated)
        is_told = self.uplink is not None and await self.uplink.flush(seq, 5.0)
        self.carry_out(self.shutdown.handle(Handed(code=order.exit_code, why=order.why, is_told=is_told)))

    async def _finish_later(self, ask: FinishLater) -> None:
        await asyncio.sleep(ask.after_s)
        self.finish(ask.finish.code, ask.finish.why)

    async def give_up(self, why: str) -> None:
        """Stop for good and leave."""
        await self.stop_attempt(self.attempt, 0.0)
        self.finish(EXIT_DO_NOT_REQUEUE, why)

    # --- signals ---

    def end_job(self, signum: int, told_by: str = "") -> None:
        """The job is being ended from outside: pass the signal on, no restarts; a second time kills."""
        has_ranks = self.watch is not None and not self.crew.is_empty
        signalled = Signalled(signum=signum, attempt=self.attempt, has_ranks=has_ranks, is_ours=not told_by)
        self.carry_out(self.shutdown.handle(signalled))

    def carry_out(self, asks: Sequence[ShutdownAsk]) -> None:
        """Do what the core asks, apart from what is waited for."""
        for ask in asks:
            match ask:
                case Say():
                    self.voice.say(ask.text)
                case ExpectStop() if self.watch is not None:
                    self.watch.stop_asked = True
                case PassEnd():
                    self.crew.pass_signal(ask.signum, is_end=True)
                case EndRanks():
                    self.run_soon(self._end_after(ask))
                case Hurry():
                    self.hurried.set()
                case Finish():
                    self.finish(ask.code, ask.why)
                case FinishLater():
                    self.run_soon(self._finish_later(ask))

    async def _carry_out_and_wait(self, asks: Sequence[ShutdownAsk]) -> None:
        for ask in asks:
            if isinstance(ask, KillRanks):
                await self.crew.runner.end(ask.attempt, 0.0, why=ask.why)
            else:
                self.carry_out([ask])

    async def _end_after(self, ask: EndRanks) -> None:
        if ask.after_s:
            await asyncio.sleep(ask.after_s)
        await self.crew.end(ask.attempt, ask.grace_s)

    # --- loops ---

    async def look(self) -> None:
        """Hangs, samples, silent nodes, leases of followers."""
        count = 0
        while True:
            await asyncio.sleep(_LOOK_S)
            count += 1
            at, mono, watch = time.time(), time.monotonic(), self.watch
            if watch is not None and not watch.is_over:
                self.submit(*watch.fold.lines_due(at))
                for report, node in watch.ends.due(at):
                    self.on_report(node, report)
                self.submit(*(watch.judge_hang(at, mono, self._quiet_s(mono)) if self.can_judge() else ()))
                if watch.wants_look and not self._is_looking:
                    self._is_looking = True
                    self.run_soon(self._look_for_stragglers(watch))
                if count % _SAMPLES_EVERY == 0:
                    self.beats.add(watch.fold.samples(at))
            self._look_at_followers(at, mono)
            self._look_at_folder(mono)

    def _look_at_folder(self, mono: float) -> None:
        """Nothing can be decided while the folder refuses: ranks that run go on; when none is left, we leave."""
        unread = self.own_lease.unread
        self.folder.look(self.controller.failing or unread, mono, is_read=not unread)
        watch = self.watch
        if watch is None or self.is_over.done() or not self.crew.is_empty:
            return
        if (for_s := self.folder.refused_for(mono)) >= GIVE_UP_S:
            refused = FolderRefused(ended=_ended(watch), for_s=for_s, error=str(self.folder.error))
            self.carry_out(self.shutdown.handle(refused))

    async def _look_for_stragglers(self, watch: AttemptWatch) -> None:
        """Looks at all stacks within slow steps, until they tell or the steps are usual again."""
        from holdfast.launch.slowdown import LOOKS_MAX  # noqa: PLC0415 - as above

        looks: list[list[RankStack]] = []
        try:
            for _ in range(LOOKS_MAX):
                if watch.is_over or not watch.looks_on(looks):
                    break
                stacks = await self.crew.dump(watch.spec.attempt, _LOOK_LIMIT_S)
                if stacks:
                    looks.append(stacks)
                await asyncio.sleep(watch.look_pause_s)
            self.submit(*watch.stragglers(looks, time.time()))
        finally:
            self._is_looking = False

    def _quiet_s(self, mono: float) -> dict[str, float]:
        """Seconds since the launcher of each node of the attempt was heard."""
        port = self.crew.port
        return {} if port is None else {n: port.presence.quiet_s(n, mono) for n in self._follower_nodes()}

    def _look_at_followers(self, at: float, mono: float) -> None:
        port = self.crew.port
        if port is None:
            return
        looked = FollowersLooked(
            now=mono,
            used=frozenset(self._follower_nodes()),
            gone=self.parting.gone,
            can_ask=self.evidence is not None,
        )
        for ask in port.presence.handle(looked):
            match ask:
                case TellSilent():
                    if self.evidence is not None:
                        self.evidence.look_ahead(ask.node)
                    self.submit(
                        e.NodeSilent(
                            id=self.event_id(), at=at, source=self.place.source, node=ask.node, for_s=ask.for_s
                        )
                    )
                case TellHeard():
                    self.submit(e.NodeHeard(id=self.event_id(), at=at, source=self.place.source, node=ask.node))
                case CheckSpare() if self.evidence is not None:
                    self.run_soon(self._look_for_spare(ask.node, self.evidence, port.presence))
                case _:
                    pass
        for node in self.crew.look_at_leases(mono):
            self.run_soon(self._lease_over(node, at))

    async def _look_for_spare(self, node: str, nodes: SlurmNodes, presence: Presence) -> None:
        """A node that the attempt does not use is silent: when it is dead, it leaves the job."""
        if await nodes.is_dead(node) and node not in self._follower_nodes():
            self.voice.say(f"{node}, which the job does not use now, is lost: neither it nor its slurmd answers")
            self.parting.gone |= {node}
            self._let_lost_go()
        await asyncio.sleep(_SPARE_AGAIN_S)
        presence.handle(SpareChecked(node))

    async def _lease_over(self, node: str, at: float) -> None:
        if self.evidence is not None and await self.evidence.is_dead(node):
            self.on_lost(node, "it has not answered, and neither does its scheduler's daemon")
        elif self.watch is not None:
            why = f"{node} has not answered, and its attempt lease has run out: its ranks are killed"
            self.voice.say(why)
            self.submit(*self.watch.lease_over(node, at, why))

    def _follower_nodes(self) -> tuple[str, ...]:
        return self.crew.spec.nodes if self.crew.spec is not None else ()

    async def lost_lease(self) -> None:
        """Our own lease has run out: kill this node's ranks; the followers' die because nothing is granted."""
        watch = self.watch
        if watch is not None and not watch.is_over:
            await self._carry_out_and_wait(self.shutdown.handle(LeaseLost(watch.spec.attempt)))

    async def superseded(self, epoch: int) -> None:
        """Another launcher has started an attempt of this job with a newer epoch."""
        self.parting.is_superseded = True
        superseded = Superseded(epoch=epoch, own=self.epoch, attempt=self.attempt)
        await self._carry_out_and_wait(self.shutdown.handle(superseded))

    async def keep_own_beat(self) -> None:
        """Our own controller hears from us like any other, and stores our samples."""
        while True:
            await self.controller.beat(self.beats.for_own_controller(time.time()))
            await asyncio.sleep(1.0)

    def attach_again(self) -> None:
        """The cluster's controller does not know us (any more)."""
        if self.uplink is not None and self.uplink.sent >= self._attach_seq:
            self.run_soon(self._attach(self._say_attached()))


def _ended(watch: AttemptWatch) -> Ended:
    """How the watched attempt has ended, as far as is known."""
    return Ended(exit=watch.outcome(), is_good=watch.ended_well, cause=watch.cause, stop_asked=watch.stop_asked)


async def _raise_epoch(job_dir: Path, epoch: int) -> EpochRaised:
    since = time.monotonic()
    try:
        return EpochRaised(await asyncio.to_thread(raise_epoch, job_dir, epoch), since)
    except OSError as error:
        raise PermanentOrderError(str(unusable(job_dir, error))) from error


def _attempt_started(name: str, at: float, place: JobPlace, spec: AttemptSpec, *, standby: bool) -> e.AttemptStarted:
    return e.AttemptStarted(
        id=name,
        at=at,
        source=place.source,
        job=place.job,
        attempt=spec.attempt,
        epoch=spec.epoch,
        restart_count=place.restart_count,
        in_place=spec.in_place,
        nodes=spec.nodes,
        ranks=spec.world_size,
        standby=standby,
        log_dir=str(place.job_dir / "logs" / f"attempt-{spec.attempt}"),
    )

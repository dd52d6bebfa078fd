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
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from msgspec import structs

from holdfast.errors import EXIT_DO_NOT_REQUEUE, EXIT_RESTART_ME, HoldfastError, LinkError, PermanentOrderError
from holdfast.launch.allocation import AllocationController, is_settled, lay_out
from holdfast.launch.beats import Beats
from holdfast.launch.checkpoint_gate import before_start
from holdfast.launch.crew import Crew, free_port
from holdfast.launch.environment import AttemptSpec
from holdfast.launch.epoch import newest_attempt, raise_epoch, read_epoch, restored_step
from holdfast.launch.folder import GIVE_UP_S, TELL_S, FolderWatch, unusable
from holdfast.launch.frames import AnyReport, EndAsked, LineSeen, RankEnded, RanksGone, RankStack, SlotsSeen, Spotted
from holdfast.launch.options import RunOptions
from holdfast.launch.output import Voice
from holdfast.launch.own_lease import OwnLease
from holdfast.launch.parting import Parting
from holdfast.launch.place import JobPlace
from holdfast.launch.process import Exit
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
HANDED_OVER_S = 300.0
"""After an escalation the controller requeues or cancels the job, which ends this launcher; it does not wait longer."""


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
        self.attempt = -1
        self.epoch = 0
        self.in_place = 0
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
        self._ending = 0
        self._is_looking = False
        self._begun = asyncio.Event()
        self._starting = asyncio.Lock()
        self._lease_told = -1
        self._silent: set[str] = set()
        self._let_go: set[str] = set()
        self._asked_after: set[str] = set()
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
    def recovers(self) -> bool:
        """Restarts are wanted: `--max-restarts 0` makes this a plain launcher."""
        return self._view.recovery is not None and self._view.recovery.enabled

    @property
    def observes(self) -> bool:
        """Policy says that faults are only watched: the job ends as it would by itself, with its own exit code."""
        return self.policy.mode_for(Remedy.RESTART_IN_PLACE) is Mode.OBSERVE

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
            self.epoch = read_epoch(self.place.job_dir)
        except OSError as error:
            raise unusable(self.place.job_dir, error) from error
        known = record.attempt if record is not None else None
        self.attempt = known.number if known is not None else -1
        if record is None or self.epoch > record.epoch:
            # A launcher that was killed may have started an attempt that its journal does not know.
            self.attempt = max(self.attempt, newest_attempt(self.place.job_dir) if self.epoch else -1)
        else:
            self.epoch = record.epoch

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
            await self._start_attempt(attempt, epoch, nodes, restore_step, in_place=in_place)
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

    async def _start_attempt(
        self, attempt: int, epoch: int, nodes: tuple[str, ...], restore_step: int | None, *, in_place: bool
    ) -> None:
        if attempt <= self.attempt:
            return
        self.in_place = self.in_place + 1 if in_place else 0
        epoch = max(epoch, self.epoch + 1)
        spec = lay_out(
            self.crew,
            attempt=attempt,
            epoch=epoch,
            nodes=nodes,
            port=free_port(self.crew.address_of(nodes[0]) if nodes[0] == self.place.node else self.place.address),
            restart_count=self.place.restart_count,
            in_place=self.in_place,
            restore_step=restore_step,
            max_restarts=self.policy.limits.max_in_place,
        )
        self.attempt, self.epoch = attempt, epoch
        since = time.monotonic()
        try:
            found = await asyncio.to_thread(raise_epoch, self.place.job_dir, epoch)
        except OSError as error:
            raise PermanentOrderError(str(unusable(self.place.job_dir, error))) from error
        if found > epoch:
            # Our own lease looks only now and then; an attempt that is fenced before it starts must not start at all.
            await self.superseded(found)
            return
        self.own_lease.renew(since)
        pinned = await before_start(self.options.checkpoints, restore_step, self.voice.say)
        if self._ending or self.is_over.done():
            return  # told to end meanwhile: nothing may be started any more
        spec = structs.replace(spec, restore_step=pinned)
        self._spec, self._started_mono = spec, time.monotonic()
        self._told_over[attempt] = asyncio.Event()
        await self.crew.start(spec, _START_LIMIT_S)
        self.submit(
            e.AttemptStarted(
                id=self.event_id(),
                at=time.time(),
                source=self.place.source,
                job=self.place.job,
                attempt=attempt,
                epoch=epoch,
                restart_count=self.place.restart_count,
                in_place=self.in_place,
                nodes=nodes,
                ranks=spec.world_size,
                standby=self.crew.standbys_used > 0,
                log_dir=str(self.place.job_dir / "logs" / f"attempt-{attempt}"),
            )
        )
        self.voice.say(self._started_line(spec.world_size, nodes))

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
            case Spotted():
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
        who = "the command" if report.rank is None else f"rank {report.rank}"
        self.voice.say(f"{who} on {node} ended with {report.exit.words}")
        # Of a command's ranks the command takes care; ours must not wait for one that is dead.
        if not self.recovers or (self.observes and not self.options.is_command):
            watch.stop_asked = True
            self.run_soon(self.crew.end(watch.spec.attempt, self.options.stop_grace_s))

    def on_all_gone(self, attempt: int) -> None:
        """No process of the attempt is left anywhere: tell the engine, and see what that means for us."""
        watch = self.watch
        if watch is None or watch.spec.attempt != attempt or watch.is_over:
            return
        stopped = watch.stop_asked and ((self.recovers and not self.observes) or bool(self._ending))
        at = time.time()
        for report, node in watch.fallen(at, is_over=True):
            self._rank_ended(watch, report, node)
        self.submit(*watch.fold.lines_due(at, is_urgent=True))
        stored = self.submit(watch.ended(at, stopped=stopped))
        self.run_soon(self._after_end(watch, stored))

    async def _after_end(self, watch: AttemptWatch, stored: asyncio.Future[int] | None) -> None:
        try:
            is_stored = stored is None or await self._is_stored(stored)
        except LinkError:  # the controller has ended, which ends this launcher
            self._finish_as_ended(watch)
            return
        if not is_stored:
            self.finish(watch.outcome().shell_code, watch.cause)
        self._told_over[watch.spec.attempt].set()
        if not self._finish_as_ended(watch) and (self.observes or not watch.stop_asked):
            await self._until_decided(watch)

    def _finish_as_ended(self, watch: AttemptWatch) -> bool:
        """Leave when the end of the attempt needs no decision; False when it does."""
        how = watch.outcome()
        if self._ending:
            self.finish(how.shell_code if how != Exit() else 128 + self._ending, "ended on request")
        elif watch.ended_well:
            self.finish(0)
        elif how.code == EXIT_RESTART_ME:
            self.finish(EXIT_RESTART_ME, "the job saved its state and asks to be started again")
        elif not self.recovers:
            self.finish(how.shell_code, watch.cause)
        else:
            return False
        return True

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

    async def _is_stored(self, stored: asyncio.Future[int]) -> bool:
        """Whether the engine took the event. A defect of judgement must not keep the command's own exit code back."""
        try:
            await stored
        except LinkError:
            raise
        except HoldfastError as error:
            self.voice.say(f"the engine refused to judge the end of the attempt: {str(error).splitlines()[0]}")
            return False
        return True

    async def _until_decided(self, watch: AttemptWatch) -> None:
        """The attempt ended by itself. When nothing is to be done about it (observe, advise lapsed), leave."""
        while self.attempt == watch.spec.attempt and not self.is_over.done():
            record = await self.record()
            pending = [known.order for known in await self.controller.journal.orders(pending_only=True)]
            if is_settled(record, pending):
                self.finish(watch.outcome().shell_code, watch.cause)
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
            self.watch.leaving = True
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
        if is_told and order.exit_code != EXIT_DO_NOT_REQUEUE:
            self.run_soon(self._leave_later(order))
        else:
            self.finish(order.exit_code, order.why)

    async def _leave_later(self, order: Escalate) -> None:
        await asyncio.sleep(HANDED_OVER_S)
        self.finish(order.exit_code, order.why)

    async def give_up(self, why: str) -> None:
        """Stop for good and leave."""
        await self.stop_attempt(self.attempt, 0.0)
        self.finish(EXIT_DO_NOT_REQUEUE, why)

    # --- signals ---

    def end_job(self, signum: int, told_by: str = "") -> None:
        """The job is being ended from outside: pass the signal on, no restarts; a second time kills."""
        if self._ending:
            if not told_by:
                self.hurried.set()
                self.run_soon(self.crew.end(self.attempt, 0.0))
            return
        self._ending = signum
        if self.watch is None or self.crew.is_empty:
            self.finish(128 + signum, "ended on request")
            return
        self.watch.stop_asked = True
        self.crew.pass_signal(signum, is_end=True)
        self.run_soon(self._end_after(self.attempt, self.options.stop_grace_s))

    async def _end_after(self, attempt: int, grace_s: float) -> None:
        await asyncio.sleep(grace_s)
        await self.crew.end(attempt, 0.0)

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
                for report, node in watch.fallen(at):
                    self._rank_ended(watch, report, node)
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
        if self.folder.refused_for(mono) >= GIVE_UP_S and not self._finish_as_ended(watch):
            code = watch.outcome().shell_code if self.observes else EXIT_DO_NOT_REQUEUE
            self.finish(code, f"{watch.cause}, and {self.folder.error}")

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
        return {} if port is None else {n: mono - port.heard_at.get(n, mono) for n in self._follower_nodes()}

    def _look_at_followers(self, at: float, mono: float) -> None:
        port = self.crew.port
        if port is None:
            return
        for node, heard in port.heard_at.items():
            quiet_s = mono - heard
            if quiet_s > port.lease_s and node not in self._silent and node in self._follower_nodes():
                self._silent.add(node)
                if self.evidence is not None:
                    self.evidence.look_ahead(node)
                self.submit(
                    e.NodeSilent(
                        id=self.event_id(), at=at, source=self.place.source, node=node, for_s=round(quiet_s, 1)
                    )
                )
            elif quiet_s < port.lease_s and node in self._silent:
                self._silent.discard(node)
                self.submit(e.NodeHeard(id=self.event_id(), at=at, source=self.place.source, node=node))
            elif quiet_s > port.lease_s and self.evidence is not None and self._is_lonely_spare(node):
                self._asked_after.add(node)
                self.run_soon(self._look_for_spare(node, self.evidence))
        for node in self.crew.look_at_leases(mono):
            self.run_soon(self._lease_over(node, at))

    def _is_lonely_spare(self, node: str) -> bool:
        known = {*self._follower_nodes(), *self.parting.gone, *self._asked_after}
        return self.crew.spec is not None and node not in known

    async def _look_for_spare(self, node: str, nodes: SlurmNodes) -> None:
        """A node that the attempt does not use is silent: when it is dead, it leaves the job."""
        if await nodes.is_dead(node) and node not in self._follower_nodes():
            self.voice.say(f"{node}, which the job does not use now, is lost: neither it nor its slurmd answers")
            self.parting.gone |= {node}
            self._let_lost_go()
        await asyncio.sleep(_SPARE_AGAIN_S)
        self._asked_after.discard(node)

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
        why = "this launcher can reach neither the controller nor the job's folder"
        watch = self.watch
        if watch is None or watch.is_over or self._lease_told == watch.spec.attempt:
            return
        self._lease_told = watch.spec.attempt
        self.voice.say(f"{why}: its attempt lease has run out, killing the ranks")
        await self.crew.runner.end(watch.spec.attempt, 0.0, why=why)

    async def superseded(self, epoch: int) -> None:
        """Another launcher has started an attempt of this job with a newer epoch."""
        self.voice.say(f"epoch {epoch} has been started elsewhere, ours is {self.epoch}: leaving")
        self.parting.is_superseded = True
        if self.watch is not None:
            self.watch.stop_asked = True
        await self.crew.runner.end(self.attempt, 0.0)
        self.finish(EXIT_RESTART_ME, "another launcher has taken this job over")

    async def keep_own_beat(self) -> None:
        """Our own controller hears from us like any other, and stores our samples."""
        while True:
            await self.controller.beat(self.beats.for_own_controller(time.time()))
            await asyncio.sleep(1.0)

    def attach_again(self) -> None:
        """The cluster's controller does not know us (any more)."""
        if self.uplink is not None and self.uplink.sent >= self._attach_seq:
            self.run_soon(self._attach(self._say_attached()))

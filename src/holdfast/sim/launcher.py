"""`holdfast run` inside the simulation: the launcher's own cores, driven in virtual time over one allocation.

The scheduler starts it on the job's nodes and kills it. When an attempt may start, what an end means, when ranks die
with a lease and when the launcher leaves is decided by `launch.core` and `launch.allocation`, as in production; what
is carried out here is what they ask. Its journal is the job's and outlives it. Beats are folded: leases are counted
from the moment on at which a node is cut off, and the controller's presence holds the launcher while it can be heard.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Coroutine
from typing import Any

from holdfast.controller import Controller
from holdfast.controller.state import key_text
from holdfast.errors import EXIT_DO_NOT_REQUEUE, EXIT_RESTART_ME, HoldfastError
from holdfast.launch.allocation import AllocationOrchestrator, outcome, until_settled
from holdfast.launch.core.asks import Finish, KillRanks
from holdfast.launch.core.fence import (
    EpochRaised,
    EpochTaken,
    Fence,
    FenceAsk,
    FenceReport,
    LaidOut,
    LayOut,
    PinCheckpoint,
    Pinned,
    RaiseEpoch,
    Resumed,
    StartOrdered,
    StartRanks,
    advance,
)
from holdfast.launch.core.lease import ATTACH_LEASE_S, YieldJob
from holdfast.launch.core.shutdown import (
    AttemptOver,
    AwaitDecision,
    Ended,
    EndRanks,
    ExpectStop,
    FinishLater,
    Handed,
    RankFell,
    Settled,
    Shutdown,
    ShutdownReport,
    Signalled,
    Stored,
    Superseded,
)
from holdfast.launch.launcher_events import EventMaker, order_outcome
from holdfast.launch.process import Exit
from holdfast.model import events as e
from holdfast.model import orders as o
from holdfast.model.cluster import JobView, SchedulerState
from holdfast.model.evidence import EvidenceKind, Place, Remedy
from holdfast.model.policy import Mode
from holdfast.model.wire import Beat
from holdfast.sim.agents import Agents, finding
from holdfast.sim.control import ControlPlane
from holdfast.sim.cut import WAIT_S, Followers, keep_own_lease
from holdfast.sim.reports import AttemptReports
from holdfast.sim.scheduler import Allocation, Job, Scheduler
from holdfast.sim.store import Disk, SimJournal
from holdfast.sim.training import Attempt
from holdfast.sim.world import Node, World

KILL_S = 0.1
"""From an order to end all ranks until none is left."""
LAUNCH_FAILS_S = 60.0
POLL_S = 600.0
LONG_POLL_S = 86400.0
"""When nobody kills controllers: a beat that waits is answered as soon as there is an order."""
TOLD_S = 5.0
LONG_S = 400 * 86400.0
SIGTERM = 15
LOOK_S = 0.5


class LauncherVoice(EventMaker):
    """What a launcher says: to its own engine, and once that has it, to the cluster's controller.

    Args:
        world: gives the time.
        job: that it leads.
        leader: the node that it runs on.
        agents: carry its events to the controller.
    """

    def __init__(self, world: World, job: Job, leader: Node, agents: Agents) -> None:
        source = f"launcher:{job.key}"
        super().__init__(source, f"{source}/{job.restart_count}", lambda: world.clock_of(leader))
        self.world = world
        self.key = job.key
        self.controller: Controller | None = None
        self.is_over = False
        """Nothing is said any more."""
        self._leader = leader
        self._agents = agents

    def found(self, rule: str, place: Place, about: tuple[int, EvidenceKind], **fields: Any) -> e.FindingSeen:
        """A finding of this launcher, now, about an attempt and from such evidence."""
        name, at = self.new_id(), self._clock()
        attempt, kind = about
        made = finding(
            rule, id=f"{name}:{rule}", at=at, place=place, job=self.key, attempt=attempt, kind=kind, **fields
        )
        return e.FindingSeen(id=name, at=at, source=self.source, finding=made)

    def say(self, event: e.AnyEvent, *, forward: bool = True) -> asyncio.Future[int] | None:
        """Hand an event to our own engine, and then, with `forward`, to the cluster's controller."""
        if self.controller is None or self.is_over:
            return None
        stored = self.controller.submit(event)
        if forward:
            stored.add_done_callback(lambda done: self._forward(event, done))
        return stored

    def _forward(self, event: e.AnyEvent, done: asyncio.Future[int]) -> None:
        if not done.cancelled() and done.exception() is None:
            self._agents.send(event, self._leader)


class Launcher(Allocation):
    """An allocation led by `holdfast run`: the lead of its orders, and the nodes that may join."""

    def __init__(
        self, scheduler: Scheduler, job: Job, nodes: tuple[Node, ...], agents: Agents, control: ControlPlane
    ) -> None:
        super().__init__(scheduler, job, nodes)
        self.world = scheduler.world
        self.control = control
        self.restart_count = job.restart_count
        self.voice = LauncherVoice(scheduler.world, job, nodes[0], agents)
        self.fence = Fence()
        view = scheduler.view_of(job)
        policy = control.policies.for_job(view.partition, "")
        self.shutdown = Shutdown(
            recovers=view.recovery is not None and view.recovery.enabled,
            observes=policy.mode_for(Remedy.RESTART_IN_PLACE) is Mode.OBSERVE,
            is_command=False,
            stop_grace_s=0.0,
        )
        lead = self.lead = Lead(self)
        self.orders = AllocationOrchestrator(lead, lead, want_nodes=job.plan.nodes, now=self.world.now)
        self.followers = Followers(self, self.world, len(nodes))
        self.reports: AttemptReports | None = None
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._did: set[str] = set()
        self._is_handed = False
        self._leaving = False

    # --- life ---

    @property
    def leader(self) -> Node:
        """The node that it runs on: the batch host."""
        return self.nodes[0]

    @property
    def address(self) -> str:
        """What presence knows it by."""
        return f"launcher:{key_text(self.job.key)}"

    def begin(self) -> None:
        """The scheduler starts it."""
        self.control.launchers[str(self.job.key)] = self
        self.run(self._lead())

    def run(self, work: Coroutine[Any, Any, Any]) -> None:
        """Start something that nobody waits for."""
        task = asyncio.ensure_future(work)
        self._tasks[task] = None
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None and not self._leaving:
            raise error

    async def _lead(self) -> None:
        world = self.world
        if not self.leader.reachable:
            await world.clock.sleep(LAUNCH_FAILS_S)
            world.not_answering(self.leader)
            self.job.reason = "NodeFail"
            self.scheduler.over(self.job, self, SchedulerState.NODE_FAIL, code=None, signal=None)
            return
        disk = self.job.disk
        if disk is None:
            disk = self.job.disk = Disk()
        journal = SimJournal(disk, world.clock, lean=not world.options.keep_journal)
        self.voice.controller = Controller(
            journal,
            lambda state: self.control.make_engine("allocation", state),
            self.orders,
            [],
            [],
            world.clock,
            holder="launcher",
            scope="allocation",
            lease_s=LONG_S,
            settings=self.control.settings(watch=False),
        )
        self.run(self.voice.controller.run())
        await self.voice.controller.ready.wait()
        self.fence.handle(Resumed(epoch=self.job.epoch, folder_attempt=self.job.attempts - 1))
        self.voice.say(
            self.voice.event(e.JobObserved, source="allocation", job=self.scheduler.view_of(self.job)),
            forward=False,
        )
        self.attach()
        self.voice.controller.presence.hold(self.address)
        self.vouch()
        self.run(self._mail())
        await self._start_first()

    def attach(self) -> None:
        """Take authority over the job; once more when the controller has forgotten us."""
        self.voice.say(
            self.voice.event(
                e.LauncherAttached,
                job=self.job.key,
                restart_count=self.restart_count,
                lease_s=ATTACH_LEASE_S,
                nodes=tuple(node.name for node in self.nodes),
                ranks=self.job.plan.nodes * self.world.options.gpus_per_node,
            )
        )

    def vouch(self) -> None:
        """Have the controller's presence count us as heard, or not, as things stand."""
        controller = self.control.active
        if controller is None:
            return
        if self.leader.heard and not self._leaving and self.voice.controller is not None:
            controller.presence.hold(self.address)
        else:
            controller.presence.let_go(self.address)

    def kill(self, why: str) -> None:
        """The scheduler ends it: ranks stop, it says good-bye if it still can."""
        if self._leaving:
            return
        attempt = self.attempt
        self.shutdown.handle(Signalled(signum=SIGTERM, attempt=self.fence.attempt, has_ranks=attempt is not None))
        if attempt is not None and not attempt.is_over:
            attempt.end(why)
            if self.leader.reachable and self.reports is not None:
                self.voice.say(self.reports.ended(Exit(), stopped=True))
        self._leave(128 + SIGTERM)

    def _leave(self, code: int) -> None:
        if self._leaving:
            return
        if self.leader.reachable and self.voice.controller is not None:
            self.voice.say(
                self.voice.event(
                    e.LauncherLapsed, job=self.job.key, left=True, exit_code=code, restart_count=self.restart_count
                )
            )
        self._end_here()

    def _end_here(self) -> None:
        # What was said so far still goes to the engine, and nothing more.
        self._leaving = self.voice.is_over = True
        self.vouch()
        if self.control.launchers.get(str(self.job.key)) is self:
            del self.control.launchers[str(self.job.key)]
        # What was said last still goes into our own journal; then this process is gone.
        self.world.later(0.5, self._gone)

    def _gone(self) -> None:
        for task in list(self._tasks):
            task.cancel()

    def exit(self, code: int) -> None:
        """This launcher ends by itself, and the scheduler sees it."""
        if self._leaving:
            return
        if self.attempt is not None and not self.attempt.is_over:
            self.attempt.end("launcher left")
        self._leave(code)
        state = SchedulerState.COMPLETED if code == 0 else SchedulerState.FAILED
        self.scheduler.over(self.job, self, state, code=code, signal=None)

    # --- nodes ---

    def lost(self, node: Node, fault: str) -> None:
        """A node of it stopped, or cannot be reached any more."""
        attempt = self.attempt
        if attempt is not None and node in attempt.nodes:
            attempt.breaks(node.name, "", fault)
        if node is not self.leader:
            self.followers.lost(node)
        elif node.up:
            for other in self.nodes[1:]:
                self.followers.lost(other)
            self.run(keep_own_lease(self, self.world))
        else:
            # Nobody is left who could say anything; the followers' ranks end with their leases.
            self.world.later(self.followers.lease_s, self._end_ranks)
            self._end_here()

    def _end_ranks(self) -> None:
        if self.attempt is not None:
            self.attempt.end("lease")

    def tell_node(self, kind: type[e.NodeSilent | e.NodeHeard | e.NodeGone], node: str, **fields: Any) -> None:
        """Say something of a node; whether it is heard here says nothing of whether the cluster hears it."""
        self.voice.say(self.voice.event(kind, node=node, **fields), forward=kind is e.NodeGone)

    @property
    def is_leaving(self) -> bool:
        """It has left, or is about to."""
        return self._leaving

    @property
    def epoch(self) -> int:
        """The newest that it has raised."""
        return self.fence.epoch

    @property
    def used(self) -> frozenset[str]:
        """Nodes of the newest attempt."""
        return frozenset(node.name for node in self.attempt.nodes) if self.attempt is not None else frozenset()

    # --- attempts ---

    @property
    def newest(self) -> int:
        """Number of the newest attempt whose ranks were started, -1 before the first."""
        return self.attempt.number if self.attempt is not None else -1

    async def _start_first(self) -> None:
        want = self.job.plan.nodes
        nodes = await self.lead.until_joined(want, WAIT_S)
        if len(nodes) < want:
            self.exit(EXIT_RESTART_ME)
            return
        ordered = StartOrdered(attempt=self.fence.attempt + 1, epoch=self.fence.epoch + 1, in_place=False)
        await self.start(ordered, nodes, self.job.step_max)

    async def start(self, ordered: StartOrdered, nodes: tuple[str, ...], step_max: int | None) -> None:
        """Fence the attempts before it, and start it on these nodes."""
        if ordered.in_place:
            self.world.effect(f"{self.job.key}/a{ordered.attempt}")
        await advance(self.fence, ordered, lambda ask: self._carry_out(ask, nodes, step_max))

    async def _carry_out(self, ask: FenceAsk, nodes: tuple[str, ...], step_max: int | None) -> FenceReport | None:
        match ask:
            case LayOut():
                return LaidOut(ask.attempt, ask.epoch)
            case RaiseEpoch():
                if self.job.epoch >= ask.epoch:
                    return EpochTaken(self.job.epoch)
                self.job.epoch = ask.epoch
                return EpochRaised(self.world.clock.monotonic())
            case YieldJob():
                await self.take(Superseded(epoch=ask.epoch, own=self.fence.epoch, attempt=self.fence.attempt))
            case PinCheckpoint():
                return Pinned(is_leaving=self._leaving or bool(self.shutdown.ending))
            case StartRanks():
                self._start(nodes, step_max)
        return None

    def _start(self, names: tuple[str, ...], step_max: int | None) -> None:
        job, number = self.job, self.fence.attempt
        job.attempts = number + 1
        self.reports = AttemptReports(
            self.voice,
            number,
            names,
            on_started=self._say_started,
            on_fall=lambda: self.run(self.take(RankFell(number))),
            on_finished=lambda: self._ranks_gone(Exit(code=0)),
        )
        nodes = tuple(node for node in self.nodes if node.name in names)
        attempt = Attempt(
            self.world,
            job.plan,
            str(self.job.key),
            number,
            nodes,
            job.saved,
            job.account,
            self.reports,
            step_max=step_max,
        )
        self.attempt = self.reports.attempt = attempt
        attempt.begin(job.plan.in_place_s if self.fence.in_place else job.plan.start_s)

    @property
    def _running(self) -> Attempt:
        if self.attempt is None:
            raise HoldfastError("a launcher was told of an attempt before it made one")
        return self.attempt

    def _say_started(self) -> None:
        if self.reports is not None:
            self.reports.tell(
                e.AttemptStarted,
                epoch=self.fence.epoch,
                restart_count=self.restart_count,
                in_place=self.fence.in_place,
                nodes=tuple(node.name for node in self._running.nodes),
                ranks=self.job.plan.nodes * self.world.options.gpus_per_node,
            )
        self.lead.begun.set()

    async def end_ranks(self, number: int, why: str, grace_s: float = 0.0) -> None:
        """End the attempt on all nodes; what is cut off ends with its lease."""
        attempt = self.attempt
        if attempt is None or attempt.number != number or attempt.is_over:
            return
        await self.world.clock.sleep(KILL_S + grace_s)
        await self.followers.until_empty(self.used)
        if not attempt.is_over:
            attempt.end(why)
            if self.reports is not None:
                self._ranks_gone(self.reports.exit)

    def _ranks_gone(self, how: Exit) -> None:
        """No process of the newest attempt is left: tell the engine, and see what that means for us."""
        reports, number = self.reports, self.newest
        if reports is None:
            return
        stopped = self.shutdown.is_stopped(stop_asked=reports.stop_asked)
        told = self.voice.say(reports.ended(how, stopped=stopped))
        ended = Ended(exit=how, is_good=how == Exit(code=0), cause="", stop_asked=reports.stop_asked)
        self.run(self._after_end(reports, number, ended, told))

    async def _after_end(
        self, reports: AttemptReports, number: int, ended: Ended, told: asyncio.Future[int] | None
    ) -> None:
        stored = await outcome(told)
        waits = await self.take(AttemptOver(ended, stored))
        if stored is not Stored.LOST:
            reports.told_over.set()
        controller = self.voice.controller

        def is_awaited() -> bool:
            return self.fence.attempt == number and not self._leaving

        if waits and controller is not None and await until_settled(controller, self.job.key, is_awaited):
            await self.take(Settled(ended))

    async def take(self, report: ShutdownReport) -> bool:
        """Do what the core asks; whether it waits for the engine's decision."""
        waits = False
        for ask in self.shutdown.handle(report):
            match ask:
                case ExpectStop() if self.reports is not None:
                    self.reports.stop_asked = True
                case KillRanks():
                    await self.end_ranks(ask.attempt, ask.why)
                case EndRanks():
                    self.run(self.end_ranks(ask.attempt, "ended", ask.grace_s))
                case Finish():
                    self.exit(ask.code)
                case FinishLater():
                    code = ask.finish.code
                    self.world.later(ask.after_s, functools.partial(self.exit, code))
                case AwaitDecision():
                    waits = True
                case _:
                    pass
        return waits

    async def stop(self, attempt: int, grace_s: float) -> None:
        """End it; returns when it is over and that is stored."""
        reports = self.reports
        if self.newest == attempt and reports is not None:
            reports.stop_asked = True
            await self.end_ranks(attempt, "stopped", grace_s)
            await reports.told_over.wait()

    def saved_and_stopped(self, number: int) -> None:
        """All ranks have saved, on request, and stop."""
        attempt = self.attempt
        if attempt is None or attempt.number != number or not attempt.is_well or self._leaving:
            return
        attempt.saves_now()
        attempt.end("saved and stopped")
        self._ranks_gone(Exit(code=EXIT_RESTART_ME))

    async def escalate(self, order: o.Escalate) -> None:
        """Hand the job to the controller, or leave."""
        controller = self.voice.controller
        if controller is None:
            return
        incidents = await controller.journal.incidents(open_only=True)
        self._is_handed = False
        escalated = self.voice.event(
            e.Escalated,
            job=self.job.key,
            attempt=order.attempt,
            diagnosis=incidents[0].diagnosis if incidents else None,
            exclude_nodes=order.exclude_nodes,
            why=order.why,
        )
        self.voice.say(escalated)
        deadline = self.world.clock.monotonic() + TOLD_S
        while not self._is_handed and self.world.clock.monotonic() < deadline:
            await self.world.clock.sleep(LOOK_S)
        await self.take(Handed(code=order.exit_code, why=order.why, is_told=self._is_handed))

    def handed_over(self) -> None:
        """The cluster's controller has our `Escalated`."""
        self._is_handed = True

    # --- what the cluster's controller asks for ---

    async def _mail(self) -> None:
        """Beats that wait for orders; each order once."""
        key = self.job.key
        beat = Beat(source=self.voice.source, cluster=key.cluster, job=key.id, generation=key.generation)
        wait_s = POLL_S if self.world.options.keep_journal else LONG_POLL_S
        while not self._leaving:
            controller = self.control.active
            if controller is None or not self.leader.heard:
                await self.world.clock.sleep(5.0)
                continue
            try:
                answer = await controller.beat(beat, wait_s=wait_s)
            except HoldfastError:
                continue
            if controller is not self.control.active or not self.leader.heard:
                continue
            self.vouch()
            if not answer.attached:
                self.attach()
            for order in answer.requests:
                if order.id not in self._did:
                    self._did.add(order.id)
                    self.run(self._foreign(order))
            await self.world.clock.sleep(1.0)

    async def _foreign(self, order: o.AnyOrder) -> None:
        self.voice.say(await order_outcome(order, self.orders, self.voice))


class Lead:
    """The launcher as `AllocationOrchestrator` sees it: who leads, and the nodes that may join."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        self._world = launcher.world
        self.begun = asyncio.Event()

    @property
    def attempt(self) -> int:
        """See `allocation.Lead`."""
        return self._launcher.newest

    @property
    def joined(self) -> tuple[str, ...]:
        """See `allocation.Joiners`."""
        return tuple(node.name for node in self._launcher.nodes if node.reachable)

    async def until_joined(self, count: int, limit_s: float, *, excluded: tuple[str, ...] = ()) -> tuple[str, ...]:
        """See `allocation.Joiners`."""
        deadline = self._world.clock.monotonic() + limit_s
        while True:
            good = tuple(name for name in self.joined if name not in excluded)
            if len(good) >= count or self._world.clock.monotonic() >= deadline:
                return good[:count]
            await self._world.clock.sleep(LOOK_S)

    def job_view(self) -> JobView:
        """The job, as the scheduler's files say it."""
        return self._launcher.scheduler.view_of(self._launcher.job)

    async def until_begun(self) -> None:
        """See `allocation.Lead`."""
        await self.begun.wait()

    async def until_may_start(self) -> None:
        """See `allocation.Lead`. Without a cut our lease is beyond doubt."""
        while not self._launcher.leader.reachable:
            await self._world.clock.sleep(LOOK_S)

    async def start_attempt(
        self, *, attempt: int, epoch: int, nodes: tuple[str, ...], restore_step: int | None, in_place: bool
    ) -> None:
        """See `allocation.Lead`."""
        ordered = StartOrdered(attempt=attempt, epoch=epoch, in_place=in_place)
        await self._launcher.start(ordered, nodes, restore_step)

    async def stop_attempt(self, attempt: int, grace_s: float) -> None:
        """See `allocation.Lead`."""
        await self._launcher.stop(attempt, grace_s)

    async def capture_stacks(self, attempt: int, limit_s: float) -> None:
        """See `allocation.Lead`."""
        await self._world.clock.sleep(min(1.0, limit_s / 2))
        reports = self._launcher.reports
        if self.attempt == attempt and reports is not None:
            reports.tell(e.StacksCaptured)

    def save_and_stop(self, attempt: int, why: str) -> None:
        """See `allocation.Lead`."""
        del why
        self._world.later(self._launcher.job.plan.save_s, lambda: self._launcher.saved_and_stopped(attempt))

    async def escalate(self, order: o.Escalate) -> None:
        """See `allocation.Lead`."""
        await self._launcher.escalate(order)

    async def give_up(self, why: str) -> None:
        """See `allocation.Lead`."""
        del why
        await self._launcher.stop(self.attempt, 0.0)
        self._launcher.exit(EXIT_DO_NOT_REQUEUE)

"""`holdfast run` inside the simulation: the real controller in scope `allocation`, leading one simulated allocation.

The scheduler starts it on the job's nodes and kills it. It makes attempts, tells its own engine and the cluster's
controller what it sees, and carries out what either orders. Its journal is the job's and outlives it. Beats are folded:
the controller's presence holds the launcher while its node can be heard.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from holdfast.controller import Controller
from holdfast.controller.state import key_text
from holdfast.decide.waits import STUCK
from holdfast.errors import EXIT_DO_NOT_REQUEUE, EXIT_RESTART_ME, HoldfastError, OrderError, PermanentOrderError
from holdfast.model import events as e
from holdfast.model import orders as o
from holdfast.model.cluster import JobView, SchedulerState, WorldView
from holdfast.model.evidence import EvidenceKind, Place
from holdfast.model.wire import Beat, kind_of
from holdfast.sim.agents import Agents, finding
from holdfast.sim.control import ControlPlane
from holdfast.sim.scheduler import Allocation, Job, Scheduler, exit_of
from holdfast.sim.store import Disk, SimJournal
from holdfast.sim.training import Attempt
from holdfast.sim.world import Node

KILL_S = 0.1
"""From an order to end all ranks until none is left."""
RESET_S = 0.5
"""From a node's end to the reset of its connections."""
LEASE_S = 10.0
"""Ranks on a node that cannot reach the leader end after this."""
LAUNCH_FAILS_S = 60.0
POLL_S = 600.0
LONG_POLL_S = 86400.0
"""When nobody kills controllers: a beat that waits is answered as soon as there is an order."""
HANDED_OVER_S = 300.0
LONG_S = 400 * 86400.0


Told = TypeVar("Told", bound=e.AnyEvent)


class Launcher(Allocation):
    """An allocation led by `holdfast run`. As an `Attempt`'s watcher it turns what happens into events."""

    def __init__(
        self, scheduler: Scheduler, job: Job, nodes: tuple[Node, ...], agents: Agents, control: ControlPlane
    ) -> None:
        super().__init__(scheduler, job, nodes)
        self.world = scheduler.world
        self.agents = agents
        self.control = control
        self.restart_count = job.restart_count
        self.source = f"launcher:{job.key}"
        self.in_place = 0
        self.controller: Controller | None = None
        self._number = 0
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._begun = asyncio.Event()
        self._ends: dict[int, asyncio.Event] = {}
        self._did: set[str] = set()
        self._how: tuple[int | None, int | None] = (None, None)
        self._leaving = False
        self._slow: set[str] = set()

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
        self._run(self._lead())

    def _run(self, work: Coroutine[Any, Any, Any]) -> None:
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
        self.controller = Controller(
            journal,
            lambda state: self.control.make_engine("allocation", state),
            self,
            [],
            [],
            world.clock,
            holder="launcher",
            scope="allocation",
            lease_s=LONG_S,
            settings=self.control.settings(watch=False),
        )
        self._run(self.controller.run())
        await self.controller.ready.wait()
        self._say(e.JobObserved(id=self._id(), at=self._at(), source="allocation", job=self.job_view()), forward=False)
        self.attach()
        self.controller.presence.hold(self.address)
        self.vouch()
        self._start(self.job.attempts, self.job.epoch + 1, self.nodes[: self.job.plan.nodes], self.job.step_max)
        self._run(self._mail())

    def attach(self) -> None:
        """Take authority over the job; once more when the controller has forgotten us."""
        plan = self.job.plan
        self._say(
            self._event(
                e.LauncherAttached,
                job=self.job.key,
                restart_count=self.restart_count,
                lease_s=LEASE_S,
                nodes=tuple(node.name for node in self.nodes),
                ranks=plan.nodes * self.world.options.gpus_per_node,
            )
        )

    def job_view(self) -> JobView:
        """The job, as the scheduler's files say it."""
        return self.scheduler.view_of(self.job)

    def vouch(self) -> None:
        """Have the controller's presence count us as heard, or not, as things stand."""
        controller = self.control.active
        if controller is None:
            return
        if self.leader.heard and not self._leaving and self.controller is not None:
            controller.presence.hold(self.address)
        else:
            controller.presence.let_go(self.address)

    def kill(self, why: str) -> None:
        """The scheduler ends it: ranks stop, it says good-bye if it still can."""
        if self._leaving:
            return
        attempt = self.attempt
        if attempt is not None and not attempt.is_over:
            attempt.end(why)
            if self.leader.reachable:
                self._tell_end(attempt, stopped=True)
        self._leave(143)

    def _leave(self, code: int) -> None:
        if self._leaving:
            return
        if self.leader.reachable and self.controller is not None:
            self._say(
                self._event(
                    e.LauncherLapsed,
                    job=self.job.key,
                    left=True,
                    exit_code=code,
                    restart_count=self.restart_count,
                )
            )
        self._end_here()

    def _end_here(self) -> None:
        self._leaving = True
        self.vouch()
        if self.control.launchers.get(str(self.job.key)) is self:
            del self.control.launchers[str(self.job.key)]
        # What was said last still goes into our own journal; then this process is gone.
        self.world.later(0.5, self._gone)

    def _gone(self) -> None:
        for task in list(self._tasks):
            task.cancel()

    def lost(self, node: Node, fault: str) -> None:
        """A node of it stopped, or cannot be reached any more."""
        attempt = self.attempt
        if node is self.leader:
            # Nobody is left who could say anything; all ranks end with their lease.
            if attempt is not None:
                attempt.breaks(node.name, "", fault)
                self.world.later(LEASE_S, lambda: attempt.end("lease"))
            if node.up:
                self.world.later(LEASE_S, self._exit_when_back)
            else:
                self._end_here()
            return
        self.world.later(LEASE_S if node.up else RESET_S, lambda: self._say_lost(node))
        if attempt is not None and node in attempt.nodes:
            attempt.breaks(node.name, "", fault)

    def _exit_when_back(self) -> None:
        """It was cut off, could not renew its lease, and has ended its ranks: it asks to be started again."""
        if self._leaving or not self.leader.up:
            return
        if self.leader.reachable:
            self._exit(EXIT_RESTART_ME)
        else:
            self.world.later(LEASE_S, self._exit_when_back)

    def _say_lost(self, node: Node) -> None:
        evidence = "connection reset by peer" if not node.up else "its lease ended"
        self._say(self._event(e.NodeGone, node=node.name, evidence=evidence))

    # --- saying ---

    def _id(self) -> str:
        self._number += 1
        return f"{self.source}/{self.restart_count}.{self._number}"

    def _at(self) -> float:
        return self.world.clock_of(self.leader)

    def _event(self, kind: type[Told], **fields: Any) -> Told:
        """An event of this launcher, now."""
        return kind(id=self._id(), at=self._at(), source=self.source, **fields)

    def _say(self, event: e.AnyEvent, *, forward: bool = True) -> None:
        """To our own engine, and once that has it, to the cluster's controller."""
        controller = self.controller
        if controller is None or self._leaving:
            return
        stored = controller.submit(event)
        if forward:
            stored.add_done_callback(lambda done: self._forward(event, done))

    def _forward(self, event: e.AnyEvent, done: asyncio.Future[int]) -> None:
        if not done.cancelled() and done.exception() is None:
            self.agents.send(event, self.leader)

    def _found(self, rule: str, node: str, kind: EvidenceKind, *, summary: str = "", stuck_s: float = 0.0) -> None:
        """A finding about the running attempt, behind the step that it had reached."""
        attempt = self.attempt
        if attempt is None or attempt.is_over or self._leaving:
            return
        key, number = self.job.key, attempt.number
        if attempt.has_trained:
            self._tell(e.StepReached, step=attempt.step)
        rank = self._rank(attempt, node)
        name = self._id()
        made = finding(
            rule,
            id=f"{name}:{rule}",
            at=self._at(),
            place=Place(node=node, rank=rank),
            job=key,
            attempt=number,
            kind=kind,
            summary=summary,
            captures={STUCK: f"{stuck_s:.1f}"} if stuck_s else None,
        )
        self._say(e.FindingSeen(id=name, at=made.at, source=self.source, finding=made))

    def _rank(self, attempt: Attempt, node: str) -> int | None:
        names = [one.name for one in attempt.nodes]
        return names.index(node) * self.world.options.gpus_per_node if node in names else None

    @property
    def _running(self) -> Attempt:
        """The attempt that speaks through its watcher: the newest."""
        if self.attempt is None:
            raise HoldfastError("a launcher was told of an attempt before it made one")
        return self.attempt

    def _tell(self, kind: type[Told], **fields: Any) -> None:
        """Say something of the newest attempt."""
        self._say(self._event(kind, job=self.job.key, attempt=self._running.number, **fields))

    def _tell_end(self, attempt: Attempt, *, stopped: bool, code: int | None = None, signal: int | None = None) -> None:
        last_step = attempt.step if attempt.has_trained else None
        self._tell(e.AttemptEnded, exit_code=code, signal=signal, stopped=stopped, last_step=last_step)
        self._ends[attempt.number].set()

    # --- attempts ---

    def _start(self, number: int, epoch: int, nodes: tuple[Node, ...], step_max: int | None) -> None:
        if self._leaving:
            return  # ended while it made ready
        job = self.job
        job.attempts, job.epoch = number + 1, max(epoch, job.epoch + 1)
        self._ends[number] = asyncio.Event()
        self._how = (None, None)
        self._slow.clear()
        self.attempt = Attempt(
            self.world, job.plan, str(job.key), number, nodes, job.saved, job.account, self, step_max=step_max
        )
        self.attempt.begin(job.plan.in_place_s if self.in_place else job.plan.start_s)

    def started(self) -> None:
        """See `training.Watcher`."""
        self._tell(
            e.AttemptStarted,
            epoch=self.job.epoch,
            restart_count=self.restart_count,
            in_place=self.in_place,
            nodes=tuple(node.name for node in self._running.nodes),
            ranks=self.job.plan.nodes * self.world.options.gpus_per_node,
        )
        self._begun.set()

    def training(self) -> None:
        """See `training.Watcher`."""
        resumed = self._running.resumed_step
        self._tell(e.FirstStepDone, step=resumed + 1, resumed_from=resumed)

    def saved(self, step: int, *, durable: bool) -> None:
        """See `training.Watcher`."""
        self._tell(e.CheckpointSaved, step=step, durable=durable)

    def rank_ended(self, node: str, rule: str, fault: str) -> None:
        """See `training.Watcher`. An empty rule: its node went with it, and is told of as such."""
        del fault
        self._echo(node)
        if rule:
            self._how = exit_of(rule)
            self.world.later(
                self.world.options.detect_s, lambda: self._found(rule, node, EvidenceKind.EXIT, summary=rule)
            )

    def _echo(self, node: str) -> None:
        """A rank elsewhere waits in a collective for the one that ended: its library says that a peer is lost."""
        world, attempt = self.world, self.attempt
        peers = [one.name for one in attempt.nodes if one.name != node] if attempt is not None else []
        if not peers or not world.chance("echo", world.options.echoes):
            return
        dice = world.dice("echo")
        peer = peers[int(dice.random() * len(peers))]
        world.later(
            world.options.detect_s * dice.uniform(0.1, 1.5),
            lambda: self._found("nccl.remote", peer, EvidenceKind.LOG) if attempt is self.attempt else None,
        )

    def stalled(self, fault: str) -> None:
        """See `training.Watcher`."""
        del fault
        attempt, limit_s = self.attempt, self.world.options.hang_s
        says = f"no progress for {limit_s:.1f} s in step {attempt.step if attempt is not None else 0}"
        self.world.later(
            limit_s,
            lambda: (
                self._found("hang.step", "", EvidenceKind.TELEMETRY, summary=says, stuck_s=limit_s)
                if attempt is not None and attempt is self.attempt and attempt.stands_still
                else None
            ),
        )

    def moves_again(self) -> None:
        """See `training.Watcher`: its next step is told."""
        self._tell(e.StepReached, step=self._running.step + 1)

    def bad_numbers(self, node: str, fault: str) -> None:
        """See `training.Watcher`."""
        del fault
        self._found("loss.nan", node, EvidenceKind.TELEMETRY, summary="The loss became nan")

    def slowed(self, node: str, fault: str) -> None:
        """See `training.Watcher`: seen over a few steps."""
        if fault in self._slow:
            return
        self._slow.add(fault)
        self.world.later(self.job.plan.step_s * 5, lambda: self._found("straggler.rank", node, EvidenceKind.STACK))

    def finished(self) -> None:
        """See `training.Watcher`."""
        attempt = self.attempt
        if attempt is not None:
            self._tell_end(attempt, stopped=False, code=0)
        self._leave(0)
        self.scheduler.over(self.job, self, SchedulerState.COMPLETED, code=0, signal=None)

    # --- as the orchestrator of its own engine, and of orders that came from the cluster's controller ---

    name = "allocation"

    async def observe(self) -> WorldView:
        """The job: nothing else is looked at."""
        return WorldView(cluster=self.world.cluster, at=self.world.now(), jobs=(self.job_view(),))

    async def wait_change(self, timeout_s: float) -> bool:
        """Everything is told by events."""
        await self.world.clock.sleep(timeout_s)
        return False

    def can(self, order: o.AnyOrder) -> bool:
        """Orders about the attempt inside its allocation."""
        return isinstance(
            order, o.CaptureStacks | o.StopAttempt | o.RestartInPlace | o.SaveAndStop | o.Escalate | o.GiveUp
        )

    async def execute(self, order: o.AnyOrder) -> str:
        """See `ports.Orchestrator.execute`."""
        if isinstance(order, o.CaptureStacks | o.StopAttempt | o.RestartInPlace | o.Escalate):
            await self._begun.wait()
        match order:
            case o.CaptureStacks():
                return await self._stacks(order)
            case o.StopAttempt():
                return await self._stop(order.attempt, order.grace_s)
            case o.RestartInPlace():
                return await self._restart(order)
            case o.SaveAndStop():
                self.world.later(self.job.plan.save_s, lambda: self._saved_and_stopped(order.attempt))
                return "asked all ranks"
            case o.Escalate():
                return await self._escalate(order)
            case o.GiveUp():
                await self._stop(order.attempt if isinstance(order, o.StopAttempt) else self._newest(), 0.0)
                self._exit(EXIT_DO_NOT_REQUEUE)
                return "stopped for good"
            case _:
                raise PermanentOrderError(f"a launcher cannot {kind_of(order)}")

    def _newest(self) -> int:
        return self.attempt.number if self.attempt is not None else -1

    async def _stacks(self, order: o.CaptureStacks) -> str:
        await self.world.clock.sleep(min(1.0, order.limit_s / 2))
        if self._newest() == order.attempt:
            self._tell(e.StacksCaptured)
        return "stacks captured"

    async def _stop(self, number: int, grace_s: float) -> str:
        attempt = self.attempt
        if attempt is None or attempt.number != number:
            return "a newer attempt runs"
        if not attempt.is_over:
            await self.world.clock.sleep(KILL_S + grace_s)
            if not attempt.is_over:
                attempt.end("stopped")
                code, signal = self._how
                self._tell_end(attempt, stopped=True, code=code, signal=signal)
        await self._ends[number].wait()
        return "stopped"

    async def _restart(self, order: o.RestartInPlace) -> str:
        if self._newest() >= order.attempt:
            return "already started"
        out = set(order.exclude_nodes)
        good = tuple(node for node in self.nodes if node.reachable and node.name not in out)
        want = self.job.plan.nodes
        if len(good) < want:
            raise PermanentOrderError(f"{want} nodes are needed and {len(good)} are here")
        self.in_place += 1
        self.world.effect(f"{self.job.key}/{order.id}")
        self._start(order.attempt, order.epoch, good[:want], order.restore_step_max)
        return "started"

    def _saved_and_stopped(self, number: int) -> None:
        attempt = self.attempt
        if attempt is None or attempt.number != number or not attempt.is_well or self._leaving:
            return
        attempt.saves_now()
        attempt.end("saved and stopped")
        self._tell_end(attempt, stopped=True, code=EXIT_RESTART_ME)
        self._exit(EXIT_RESTART_ME)

    async def _escalate(self, order: o.Escalate) -> str:
        if order.attempt < self._newest() or self.controller is None:
            return "a newer attempt runs"
        incidents = await self.controller.journal.incidents(open_only=True)
        diagnosis = incidents[0].diagnosis if incidents else None
        self._tell(e.Escalated, diagnosis=diagnosis, exclude_nodes=order.exclude_nodes, why=order.why)
        wait_s = HANDED_OVER_S if order.exit_code != EXIT_DO_NOT_REQUEUE else 5.0
        self.world.later(wait_s, lambda: self._exit(order.exit_code))
        return "handed over"

    def _exit(self, code: int) -> None:
        """This launcher ends by itself, and the scheduler sees it."""
        if self._leaving:
            return
        if self.attempt is not None and not self.attempt.is_over:
            self.attempt.end("launcher left")
        self._leave(code)
        state = SchedulerState.COMPLETED if code == 0 else SchedulerState.FAILED
        self.scheduler.over(self.job, self, state, code=code, signal=None)

    # --- what the cluster's controller asks for ---

    async def _mail(self) -> None:
        """Beats that wait for orders; each order once."""
        key = self.job.key
        beat = Beat(source=self.source, cluster=key.cluster, job=key.id, generation=key.generation)
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
                    self._run(self._foreign(order))
            await self.world.clock.sleep(1.0)

    async def _foreign(self, order: o.AnyOrder) -> None:
        outcome: e.AnyEvent
        try:
            detail = await self.execute(order)
        except OrderError as error:
            outcome = self._event(e.OrderFailed, order=order.id, why=str(error))
        else:
            outcome = self._event(e.OrderDone, order=order.id, detail=detail)
        self._say(outcome)

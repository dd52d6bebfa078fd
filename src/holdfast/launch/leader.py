"""The leader: the launcher of node rank 0. Holds the job's engine and journal, and leads all nodes of the allocation.

Started by `program`. Reports of the nodes become events (`observer`, the nodes' own watch), the engine's orders are
carried out here (`allocation` calls back), attempts start behind their epoch (`attempts`), and `leaving` knows the way
out. The leader's own lease is renewed by the controller's answer or by reading its epoch in the job's folder; when it
runs out, every rank of the job dies: its own by its hand, the followers' because it grants nothing any more. Time
passes in the asyncio loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import time

from holdfast.errors import EXIT_DO_NOT_REQUEUE, EXIT_RESTART_ME, LinkError, TemporaryOrderError
from holdfast.launch.allocation import AllocationController
from holdfast.launch.attempts import Attempts
from holdfast.launch.core.fence import StartOrdered
from holdfast.launch.core.lease import ATTACH_LEASE_S
from holdfast.launch.core.shutdown import RankFell, Shutdown, Signalled
from holdfast.launch.crew import Crew
from holdfast.launch.frames import AnyReport, EndAsked
from holdfast.launch.ground import Background, Ground
from holdfast.launch.launcher_events import LauncherEvents
from holdfast.launch.launcher_nodes import Nodes
from holdfast.launch.leaving import Leaving
from holdfast.launch.observer import Judgement, Observer
from holdfast.launch.own_lease import OwnLease
from holdfast.model.cluster import JobView
from holdfast.model.events import JobObserved, LauncherAttached
from holdfast.model.evidence import Remedy
from holdfast.model.orders import Escalate
from holdfast.model.policy import Mode, Policy
from holdfast.model.records import JobRecord
from holdfast.os.clock import steady_time

_LOOK_S = 0.1
_LEASE_BACK_S = 60.0
_LEAVING_S = 60.0
_NEVER = 1 << 62


class Leader:
    """Leads one allocation; `nodes` is set before `attach`.

    Args:
        ground: what leader and follower stand on alike.
        policy: of the job.
        view: the job, as the engine is told of it.
        want_nodes: how many nodes an attempt takes.
        crew: all nodes of the allocation.
        controller: runs the engine.
    """

    nodes: Nodes

    def __init__(
        self,
        ground: Ground,
        *,
        policy: Policy,
        view: JobView,
        want_nodes: int,
        crew: Crew,
        controller: AllocationController,
    ) -> None:
        place, options, voice = ground.place, ground.options, ground.voice
        self.place = place
        self.policy = policy
        self.want_nodes = want_nodes
        self.crew = crew
        self.background = Background()
        self.events = LauncherEvents(place, controller, voice.say)
        self.own_lease = OwnLease(
            place,
            ground.lease_s,
            network=ground.network,
            epoch=lambda: self.attempts.fence.epoch,
            has_begun=lambda: self.attempts.spec is not None,
            is_held=lambda: self.attempts.spec is not None and not crew.is_empty,
            on_lost=lambda: self.leaving.lost_lease(),
            on_superseded=lambda epoch: self.leaving.superseded(epoch),
        )
        self.attempts = Attempts(
            place,
            options,
            crew=crew,
            events=self.events,
            voice=voice,
            max_restarts=policy.limits.max_in_place,
            is_leaving=lambda: self.leaving.has_begun,
            renew_lease=self.own_lease.renew,
            yield_job=lambda epoch: self.leaving.superseded(epoch),
        )
        self.observer = Observer(
            place,
            Judgement(policy, lambda: ground.matcher.get().catalogue, lambda: ground.matcher.is_ready),
            attempts=self.attempts,
            crew=crew,
            events=self.events,
            voice=voice,
            background=self.background,
            on_fall=lambda attempt: self.leaving.take(RankFell(attempt)),
        )
        shutdown = Shutdown(
            recovers=view.recovery is not None and view.recovery.enabled,
            observes=policy.mode_for(Remedy.RESTART_IN_PLACE) is Mode.OBSERVE,
            is_command=options.is_command,
            stop_grace_s=options.stop_grace_s,
        )
        self.leaving = Leaving(
            place,
            shutdown,
            attempts=self.attempts,
            crew=crew,
            events=self.events,
            observer=self.observer,
            voice=voice,
            background=self.background,
        )
        self._follower_wait_s = options.follower_wait_s
        self._view = view
        self._begun = asyncio.Event()
        self._attach_seq = 0

    @property
    def attempt(self) -> int:
        """The newest attempt, -1 before the first."""
        return self.attempts.fence.attempt

    def job_view(self) -> JobView:
        """The job as it is now."""
        return self._view

    # --- attaching and starting ---

    def attach(self, record: JobRecord | None) -> None:
        """Take authority over the job, going on with numbers and epochs where it was left. Raises FolderError."""
        self.attempts.resume(record)
        self.nodes.resumed(record, self.attempts.fence)
        self.events.submit(self.events.event(JobObserved, source="allocation", job=self._view))
        self.background.run(self._attach(self._say_attached()))

    def attach_again(self) -> None:
        """The cluster's controller does not know us (any more)."""
        uplink = self.leaving.uplink
        if uplink is not None and uplink.sent >= self._attach_seq:
            self.background.run(self._attach(self._say_attached()))

    async def _attach(self, stored: asyncio.Future[int]) -> None:
        self._attach_seq = _NEVER
        with contextlib.suppress(LinkError):  # the journal could not be opened, which ends this launcher
            self._attach_seq = await stored

    def _say_attached(self) -> asyncio.Future[int]:
        return self.events.controller.submit(
            self.events.event(
                LauncherAttached,
                job=self.place.job,
                restart_count=self.place.restart_count,
                lease_s=ATTACH_LEASE_S,
                nodes=self.place.nodes,
                ranks=self.want_nodes * self.crew.runner.local_ranks,
            )
        )

    async def start_first(self) -> None:
        """The allocation's first attempt, on the first nodes that join."""
        nodes = await self.crew.until_joined(self.want_nodes, self._follower_wait_s)
        if len(nodes) < self.want_nodes:
            missing = ", ".join(sorted(set(self.place.nodes) - set(nodes)))
            self.leaving.finish(EXIT_RESTART_ME, f"{missing} did not join within {self._follower_wait_s:g} s")
            return
        fence = self.attempts.fence
        await self.start_attempt(
            attempt=fence.attempt + 1,
            epoch=fence.epoch + 1,
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
        """Fence the attempts before it, start it on these nodes, and say so.

        Raises TemporaryOrderError when this launcher was told to end the job; told meanwhile, it starts nothing.
        """
        if self.leaving.shutdown.ending:
            raise TemporaryOrderError("the job is being ended from outside", retry_after_s=_LEAVING_S)
        ordered = StartOrdered(attempt=attempt, epoch=epoch, in_place=in_place)
        await self.attempts.start(ordered, nodes, restore_step)
        self.nodes.attempt_started(in_place=in_place)

    # --- what nodes report ---

    def on_report(self, node: str, report: AnyReport) -> None:
        """Everything that the crew hears."""
        if isinstance(report, EndAsked):
            self.end_job(report.signum, told_by=node)
        else:
            self.observer.hear(node, report)

    def on_all_gone(self, attempt: int) -> None:
        """No process of the attempt is left anywhere: tell the engine, and see what that means for us."""
        watch = self.observer.running(attempt)
        if watch is None:
            return
        if watch.ends.is_doubtful and not watch.stop_asked:
            asyncio.get_running_loop().call_later(_LOOK_S, self.on_all_gone, attempt)
            return
        stopped = self.leaving.shutdown.is_stopped(stop_asked=watch.stop_asked)
        self.background.run(self.leaving.after_end(watch, self.observer.end(watch, stopped=stopped)))

    # --- what the engine orders ---

    async def stop_attempt(self, attempt: int, grace_s: float) -> None:
        """End it; returns when it is provably over and that is stored."""
        watch = self.observer.watch
        if watch is None or watch.spec.attempt != attempt:
            return
        watch.stop_asked = True
        await self.crew.end(attempt, grace_s)
        await self.leaving.told_over[attempt].wait()

    async def capture_stacks(self, attempt: int, limit_s: float) -> None:
        """Dump, group, and say so."""
        await self.observer.capture_stacks(attempt, limit_s)

    def save_and_stop(self, attempt: int, why: str) -> None:
        """Ask all ranks to save and stop; their exit code 85 then ends this launcher with the same.

        Raises PermanentOrderError when not all can be asked.
        """
        if (watch := self.observer.running(attempt)) is not None:
            self.nodes.check_save(attempt)
            self.observer.ask_to_save(watch, why)

    async def escalate(self, order: Escalate) -> None:
        """Hand the job to the controller, or leave."""
        await self.leaving.escalate(order)

    async def give_up(self, why: str) -> None:
        """Stop for good and leave."""
        await self.stop_attempt(self.attempt, 0.0)
        self.leaving.finish(EXIT_DO_NOT_REQUEUE, why)

    def end_job(self, signum: int, told_by: str = "") -> None:
        """The job is being ended from outside: pass the signal on, no restarts; a second time kills."""
        has_ranks = self.observer.watch is not None and not self.crew.is_empty
        self.leaving.take(Signalled(signum=signum, attempt=self.attempt, has_ranks=has_ranks, is_ours=not told_by))

    # --- loops ---

    async def look(self) -> None:
        """Hangs, samples, silent nodes, leases of followers, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_S)
            at, mono, port = steady_time(), time.monotonic(), self.crew.port
            quiet_s = {} if port is None else {node: port.presence.quiet_s(node, mono) for node in self.crew.used}
            self.observer.look(quiet_s)
            self.nodes.look(at, mono)
            self.leaving.look_at_folder(self.own_lease.unread, mono)

    async def keep_own_beat(self) -> None:
        """Our own controller hears from us like any other, and stores our samples."""
        while True:
            await self.events.controller.beat(self.observer.beats.for_own_controller(steady_time()))
            await asyncio.sleep(1.0)

"""The scheduler as Holdfast sees it: a `ports.Orchestrator` whose commands take time, fail, hang, lie and act late.

The controller calls it. "Ensure" semantics as in real adapters; each change that an order makes is counted in
`world.effects`. In the calm all commands work.
"""

from __future__ import annotations

import asyncio
import contextlib

from holdfast.errors import LinkError, PermanentOrderError, TemporaryOrderError
from holdfast.model import orders as o
from holdfast.model.cluster import WorldView
from holdfast.model.wire import kind_of
from holdfast.sim.scheduler import Job, Scheduler
from holdfast.sim.world import OWN_REASON, Node, World

LATE_S = (30.0, 600.0)


class SimOrchestrator:
    """See the module."""

    name = "sim"

    def __init__(self, world: World, scheduler: Scheduler) -> None:
        self._world = world
        self._scheduler = scheduler
        self._changed = asyncio.Event()
        self._waiters: dict[asyncio.Event, None] = {}
        """In order: two controllers are woken in the same order each time."""
        self._refused: set[str] = set()
        """Orders that were refused for good: an earlier command of theirs comes to nothing, too."""
        world.on_change = self._ring

    def _ring(self) -> None:
        for waiter in list(self._waiters):
            waiter.set()
        self._changed.set()

    async def observe(self) -> WorldView:
        """One snapshot."""
        self._world.counts["looks"] += 1
        if self._world.scheduler_mute:
            raise LinkError("slurm_load_jobs error: Unable to contact slurm controller")
        self._changed.clear()
        return self._scheduler.snapshot()

    async def wait_change(self, timeout_s: float) -> bool:
        """True as soon as anything has changed since the last look."""
        if self._changed.is_set():
            return True
        waiter = asyncio.Event()
        self._waiters[waiter] = None
        cancel = self._world.later(timeout_s, waiter.set)
        try:
            await waiter.wait()
        finally:
            cancel()
            self._waiters.pop(waiter, None)
        return self._changed.is_set()

    def can(self, order: o.AnyOrder) -> bool:
        """Orders about jobs that a scheduler understands, and about taking nodes out and in."""
        return isinstance(
            order,
            o.RequeueHeld | o.SetExcluded | o.ReleaseJob | o.GiveUp | o.QuarantineNode | o.ReturnNode | o.RetireNode,
        )

    async def execute(self, order: o.AnyOrder) -> str:
        """See `ports.Orchestrator.execute`."""
        world, options = self._world, self._world.options
        await world.clock.sleep(options.command_s / 2)
        if world.scheduler_mute or world.chance("command", options.command_fail):
            world.say("command_failed", order=order.id, detail=kind_of(order))
            raise TemporaryOrderError("slurm_load_jobs error: Unable to contact slurm controller")
        if world.chance("refused", options.command_refuse):
            world.say("command_refused", order=order.id, detail=kind_of(order))
            world.counts["refused"] += 1
            self._refused.add(order.id)
            raise PermanentOrderError("Access/permission denied")
        if world.chance("command", options.command_hang):
            world.say("command_hung", order=order.id, detail=kind_of(order))
            await asyncio.Event().wait()  # until the caller's own limit
        if world.chance("command", options.command_late):
            world.say("command_late", order=order.id, detail=kind_of(order))
            world.later(world.dice("late").uniform(*LATE_S), lambda: self._late(order))
            raise TemporaryOrderError("Socket timed out on send/recv operation")
        changed = self._carry_out(order)
        await world.clock.sleep(options.command_s / 2)
        if world.chance("command", options.command_lie):
            world.say("command_lied", order=order.id, detail=kind_of(order))
            raise TemporaryOrderError("Socket timed out on send/recv operation")
        return "done" if changed else "was so already"

    def _late(self, order: o.AnyOrder) -> None:
        """The command is carried out after all, unless its order had its effect in the meantime."""
        if not (self._world.calm or self._world.effects[order.id] or order.id in self._refused):
            with contextlib.suppress(PermanentOrderError):  # there is nobody any more who could be told
                self._carry_out(order)

    def _carry_out(self, order: o.AnyOrder) -> bool:
        if isinstance(order, o.JobOrder):
            changed = self._to_job(order)
        elif isinstance(order, o.NodeOrder):
            changed = self._to_node(order)
        else:
            raise PermanentOrderError(f"the scheduler has no way to {kind_of(order)}")
        if changed:
            self._world.effects[order.id] += 1
        return changed

    def _to_job(self, order: o.JobOrder) -> bool:
        scheduler = self._scheduler
        job = scheduler.jobs.get(str(order.job))
        if job is None:
            raise PermanentOrderError(f"slurm_update error: Invalid job id specified: {order.job}")
        match order:
            case o.RequeueHeld():
                return self._requeue(job, order)
            case o.SetExcluded():
                return scheduler.exclude(job, order.nodes, who="controller", order=order.id)
            case o.ReleaseJob():
                return scheduler.release(job, who="controller", order=order.id, step_max=order.restore_step_max)
            case o.GiveUp():
                return order.cancel and scheduler.cancel(job, who="controller", order=order.id)
            case _:
                raise PermanentOrderError(f"the scheduler has no way to {kind_of(order)}")

    def _requeue(self, job: Job, order: o.RequeueHeld) -> bool:
        if job.restart_count > order.restart_count:
            return self._scheduler.hold(job, who="controller", order=order.id)
        if job.is_over and job.state.value in {"cancelled", "completed"}:
            raise PermanentOrderError(f"job {job.key} is {job.state}: it cannot be requeued")
        return self._scheduler.requeue(job, held=True, who="controller", order=order.id)

    def _to_node(self, order: o.NodeOrder) -> bool:
        node = self._world.nodes.get(order.node)
        if node is None or node.hidden:
            self._world.counts["refused"] += 1
            raise PermanentOrderError(f"no node {order.node}")
        if order.instance_id and order.instance_id != node.machine:
            raise PermanentOrderError(f"{order.node} is another machine now")
        match order:
            case o.QuarantineNode() if order.takes_prolog_drain and node.failed_check:
                node.failed_check, node.reason = "", f"{OWN_REASON} {order.why}"
                self._world.say("node_drained", who="controller", order=order.id, node=node.name, detail=node.reason)
                self._world.touch(node)
                return True
            case o.QuarantineNode():
                return self._world.drain(node, f"{OWN_REASON} {order.why}", who="controller", order=order.id)
            case o.ReturnNode():
                return self._return(node, order)
            case o.RetireNode():
                return self._retire(node, order)
            case _:
                raise PermanentOrderError(f"the scheduler has no way to {kind_of(order)}")

    def _return(self, node: Node, order: o.ReturnNode) -> bool:
        if not node.drained:
            return False
        if not node.reason.startswith(OWN_REASON):
            raise PermanentOrderError(f"{node.name} was drained by someone else: {node.reason}")
        changed = self._world.resume(node, who="controller", order=order.id)
        self._scheduler.look_soon()
        return changed

    def _retire(self, node: Node, order: o.RetireNode) -> bool:
        world = self._world
        changed = world.drain(node, f"{OWN_REASON} {order.why}", who="controller", order=order.id)
        if not node.retired:
            node.retired = True
            world.say("node_retired", who="controller", order=order.id, node=node.name, detail=order.why)
            back_s = world.options.retired_back_s
            if back_s > 0.0:
                world.later(back_s, lambda: self._person_returns(node))
            return True
        return changed

    def _person_returns(self, node: Node) -> None:
        """Whoever it was handed to has repaired it by hand."""
        if not node.retired:
            return
        world = self._world
        world.mend(node, "replace", who="operator:noc")
        if not node.up:
            world.come_up(node, who="operator:noc")
        world.say("node_returned_by_person", who="operator:noc", node=node.name)
        world.resume(node, who="operator:noc")
        self._scheduler.look_soon()

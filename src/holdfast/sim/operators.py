"""People who interfere: they drain, resume, hold, release, requeue and cancel, in the scheduler and through Holdfast.

`breaking.py` calls `interferes` at the planned times. What a person took out of service they bring back an hour later,
or in the calm at the latest; what they held they release.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.model import events as e
from holdfast.model.cluster import SchedulerState
from holdfast.sim.agents import Agents
from holdfast.sim.record import Fault
from holdfast.sim.scheduler import RUNS, Job, Scheduler
from holdfast.sim.world import OWN_REASON, Node, World

WHO = "operator:ada"
BACK_S = 3600.0


class Operators:
    """See the module."""

    def __init__(self, world: World, scheduler: Scheduler, agents: Agents) -> None:
        self._world = world
        self._scheduler = scheduler
        self._agents = agents
        self._number = 0
        self._asked: list[str] = []
        """Nodes that Holdfast was asked to drain."""

    def interferes(self, fault: Fault) -> bool:
        """One deed, chosen by the fault's luck. False when there is nothing to do it to."""
        deeds: tuple[Callable[[Fault], bool], ...] = (
            self._drain,
            self._resume,
            self._take_over,
            self._requeue,
            self._hold,
            self._cancel,
            self._ask_drain,
            self._ask_return,
            self._ask_requeue,
            self._ask_give_up,
            self._reset_brake,
        )
        return deeds[int(fault.luck * 1e4) % len(deeds)](fault)

    def tidy(self) -> None:
        """The calm: nothing stays drained or held by a person."""
        for node in self._world.nodes.values():
            if node.drained and not node.reason.startswith(OWN_REASON):
                self._world.resume(node, who=WHO)
        for job in self._scheduler.jobs.values():
            if job.state is SchedulerState.HELD and job.reason == "JobHeldUser":
                job.reason = ""
                self._scheduler.release(job, who=WHO)
        for name in self._asked:
            self._ask(e.Command.RETURN, node=name)
        self._scheduler.look_soon()

    def _node(self, fault: Fault) -> Node:
        return self._world.nodes[fault.node]

    def _job(self, fault: Fault, *, queued: bool = False) -> Job | None:
        found = [
            job
            for job in self._scheduler.jobs.values()
            if (job.state in RUNS) is not queued and not job.is_over and job.plan.work_s > 0.0
        ]
        return found[int(fault.luck * len(found))] if found else None

    # --- in the scheduler, behind Holdfast's back ---

    def _drain(self, fault: Fault) -> bool:
        node = self._node(fault)
        done = self._world.drain(node, "maintenance (ada)", who=WHO)
        if done:
            self._world.later(BACK_S, lambda: self._back(node))
        return done

    def _back(self, node: Node) -> None:
        if node.drained and not node.reason.startswith(OWN_REASON):
            self._world.resume(node, who=WHO)
            self._scheduler.look_soon()

    def _resume(self, fault: Fault) -> bool:
        """Whatever its reason is: a person's word goes first."""
        drained = [node for node in self._world.nodes.values() if node.drained and not node.retired]
        if not drained:
            return False
        node = drained[int(fault.luck * len(drained))]
        self._world.resume(node, who=WHO)
        self._scheduler.look_soon()
        return True

    def _take_over(self, fault: Fault) -> bool:
        """Gives our drain a reason of their own."""
        ours = [node for node in self._world.nodes.values() if node.drained and node.reason.startswith(OWN_REASON)]
        if not ours:
            return False
        node = ours[int(fault.luck * len(ours))]
        node.reason = "mine now (ada)"
        self._world.say("node_drained", who=WHO, node=node.name, detail=node.reason)
        self._world.touch(node)
        self._world.later(BACK_S, lambda: self._back(node))
        return True

    def _requeue(self, fault: Fault) -> bool:
        job = self._job(fault)
        return job is not None and self._scheduler.requeue(job, held=False, who=WHO)

    def _hold(self, fault: Fault) -> bool:
        job = self._job(fault, queued=True)
        if job is None or not self._scheduler.hold(job, who=WHO):
            return False
        job.reason = "JobHeldUser"
        self._scheduler.touch(job)
        self._world.later(BACK_S, lambda: self._let_go(job))
        return True

    def _let_go(self, job: Job) -> None:
        if job.state is SchedulerState.HELD and job.reason == "JobHeldUser":
            job.reason = ""
            self._scheduler.release(job, who=WHO)

    def _cancel(self, fault: Fault) -> bool:
        job = self._job(fault)
        return job is not None and self._scheduler.cancel(job, who=WHO)

    # --- through Holdfast ---

    def _ask(self, command: e.Command, **fields: object) -> bool:
        self._number += 1
        name = f"command:{self._number}"
        event = e.OperatorCommand(
            id=name,
            at=self._world.now(),
            source=WHO,
            command=command,
            who="ada",
            why="as I see fit",
            **fields,  # type: ignore[arg-type]
        )
        node, job = fields.get("node", ""), fields.get("job")
        self._world.say(
            "operator", who=WHO, node=str(node), job=str(job) if job else "", detail=f"holdfast {command.value}"
        )
        self._agents.send(event, None)
        return True

    def _ask_drain(self, fault: Fault) -> bool:
        self._asked.append(fault.node)
        return self._ask(e.Command.DRAIN, node=fault.node)

    def _ask_return(self, fault: Fault) -> bool:
        return self._ask(e.Command.RETURN, node=fault.node)

    def _ask_requeue(self, fault: Fault) -> bool:
        job = self._job(fault)
        return job is not None and self._ask(e.Command.REQUEUE, job=job.key)

    def _ask_give_up(self, fault: Fault) -> bool:
        job = self._job(fault)
        return job is not None and self._ask(e.Command.GIVE_UP, job=job.key)

    def _reset_brake(self, fault: Fault) -> bool:
        del fault
        return self._ask(e.Command.RESET_BRAKE, group="batch")

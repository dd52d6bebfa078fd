"""People who interfere: they drain, resume, hold, release, requeue and cancel in the scheduler, behind Holdfast's back.

`breaking.py` calls `interferes` and `asks` at the planned times; what goes through Holdfast is `requests.py`. What a
person took out of service they bring back an hour later, or in the calm at the latest; what they held they release.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.model import events as e
from holdfast.model.cluster import SchedulerState
from holdfast.model.records import RUNS
from holdfast.sim.agents import Agents
from holdfast.sim.record import Fault
from holdfast.sim.requests import BACK_S, WHO, Requests
from holdfast.sim.scheduler import Job, Scheduler
from holdfast.sim.world import OWN_REASON, Node, World


class Operators:
    """See the module."""

    def __init__(self, world: World, scheduler: Scheduler, agents: Agents) -> None:
        self._world = world
        self._scheduler = scheduler
        self.requests = Requests(world, scheduler, agents, self._hold_in_queue)

    def interferes(self, fault: Fault) -> bool:
        """One deed, chosen by the fault's luck. False when there is nothing to do it to."""
        deeds: tuple[Callable[[Fault], bool], ...] = (
            self._drain,
            self._resume,
            self._take_over,
            self._requeue,
            self._hold,
            self._cancel,
            self.requests.of_node(e.Command.DRAIN),
            self.requests.of_node(e.Command.RETURN),
            self.requests.of_job(e.Command.REQUEUE),
            self.requests.of_job(e.Command.GIVE_UP),
            lambda _: self.requests.ask(e.Command.RESET_BRAKE, group="batch"),
        )
        return deeds[int(fault.luck * 1e4) % len(deeds)](fault)

    def asks(self, fault: Fault) -> bool:
        """One request to Holdfast, or an owner wants a job that is over to go on. False when there is nothing to do."""
        return self._requeue_finished(fault) if int(fault.luck * 1e4) % 11 == 10 else self.requests.asks(fault)

    def tidy(self) -> None:
        """The calm: nothing stays drained or held by a person."""
        for node in self._world.nodes.values():
            self._back(node)
        for job in self._scheduler.jobs.values():
            self._let_go(job)
        self.requests.tidy()
        options = self._world.options
        asks = "mode" in options.policy or "[trust]" in options.policy
        left_alone = self.requests.modes_set or asks or self._world.counts.get("refused")
        if options.cleans_up and left_alone:
            self.requests.act_again("")
            self._world.later(BACK_S, self._clean_up)
        self._scheduler.look_soon()

    def _clean_up(self) -> None:
        """See to all that Holdfast could not or might not help: vouch for nodes, once mended, and queue jobs again."""
        for node in self._world.nodes.values():
            self._world.mend(node, "replace", who=WHO)
            if not node.up:
                self._world.come_up(node, who=WHO)
            elif node.heard:
                self.requests.ask(e.Command.CONFIRM_HEALTHY, node=node.name)
        for name, job in self._scheduler.jobs.items():
            stands_still = job.state in RUNS and job.attempt is not None and job.attempt.stands_still
            if job.state is SchedulerState.HELD and name not in self.requests.holding:
                self._scheduler.release(job, who=WHO)
            elif stands_still or job.state in {SchedulerState.FAILED, SchedulerState.NODE_FAIL}:
                self._scheduler.requeue(job, held=False, who=WHO)
        self._world.later(BACK_S, self._clean_up)

    def looks_after(self, node: Node) -> None:
        """Have a person return what somebody else than Holdfast has drained, an hour later."""
        self._world.later(BACK_S, lambda: self._back(node))

    def _drain(self, fault: Fault) -> bool:
        node = self._world.nodes[fault.node]
        done = self._world.drain(node, "maintenance (ada)", who=WHO)
        if done:
            self.looks_after(node)
        return done

    def _back(self, node: Node) -> None:
        if not node.drained or node.reason.startswith(OWN_REASON):
            return
        if self._world.resume(node, who=WHO):
            self._scheduler.look_soon()
        else:
            self.looks_after(node)

    def _resume(self, fault: Fault) -> bool:
        """Whatever its reason is: a person's word goes first."""
        known = [node for node in self._world.nodes.values() if node.drained and not node.hidden]
        drained = [node for node in known if not node.retired]
        if not drained:
            return False
        node = fault.picks(drained)
        self._world.resume(node, who=WHO)
        self._scheduler.look_soon()
        return True

    def _take_over(self, fault: Fault) -> bool:
        """Gives our drain a reason of their own."""
        known = [node for node in self._world.nodes.values() if node.drained and not node.hidden]
        ours = [node for node in known if node.reason.startswith(OWN_REASON)]
        if not ours:
            return False
        node = fault.picks(ours)
        node.reason = "mine now (ada)"
        self._world.say("node_drained", who=WHO, node=node.name, detail=node.reason)
        self._world.touch(node)
        self.looks_after(node)
        return True

    def _requeue(self, fault: Fault) -> bool:
        job = self._scheduler.one_of(fault)
        return job is not None and self._scheduler.requeue(job, held=False, who=WHO)

    def _hold(self, fault: Fault) -> bool:
        job = self._scheduler.one_of(fault, queued=True)
        return job is not None and self._hold_in_queue(job)

    def _hold_in_queue(self, job: Job) -> bool:
        if not self._scheduler.hold(job, who=WHO):
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
        job = self._scheduler.one_of(fault)
        return job is not None and self._scheduler.cancel(job, who=WHO)

    def _requeue_finished(self, fault: Fault) -> bool:
        """Have a job that is over go on."""
        over = [job for job in self._scheduler.jobs.values() if job.is_over]
        if not over:
            return False
        return self._scheduler.requeue(fault.picks(over), held=False, who=WHO)

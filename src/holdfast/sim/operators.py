"""People who interfere: they drain, resume, hold, release, requeue and cancel, in the scheduler and through Holdfast.

`breaking.py` calls `interferes` at the planned times. What a person took out of service they bring back an hour later,
or in the calm at the latest; what they held they release.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.model import events as e
from holdfast.model.cluster import JobKey, SchedulerState
from holdfast.model.orders import Notify
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
        self._modes = False
        """Has a mode been set?"""
        self._asked: list[str] = []
        """Nodes that Holdfast was asked to drain."""
        self.holding: dict[str, JobKey] = {}
        """Jobs that Holdfast was asked to hold, and not to release since."""
        world.on_notice = self._told

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
        for number, name in enumerate(list(self.holding)):
            if number or not self._world.options.holds_last:
                self._ask_release(name)  # what was held first is held to the end
        options = self._world.options
        left_alone = self._modes or "mode" in options.policy or self._world.counts.get("refused")
        if options.cleans_up and left_alone:
            self._act_again("")
            self._world.later(BACK_S, self._clean_up)
        self._scheduler.look_soon()

    def _clean_up(self) -> None:
        """See to all that Holdfast could not or might not help: vouch for nodes, once mended, and queue jobs again."""
        for node in self._world.nodes.values():
            self._world.mend(node, "replace", who=WHO)
            if not node.up:
                self._world.come_up(node, who=WHO)
            elif node.heard:
                self._ask(e.Command.CONFIRM_HEALTHY, node=node.name)
        for name, job in self._scheduler.jobs.items():
            attempt = job.allocation.attempt if job.allocation is not None else None
            if job.state is SchedulerState.HELD and name not in self.holding:
                self._scheduler.release(job, who=WHO)
            elif job.is_failed or (job.state in RUNS and attempt is not None and attempt.stands_still):
                self._scheduler.requeue(job, held=False, who=WHO)
        self._world.later(BACK_S, self._clean_up)

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

    def _ask_drain_with_jobs(self, fault: Fault) -> bool:
        self._asked.append(fault.node)
        return self._ask(e.Command.EVACUATE, node=fault.node)

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

    # --- through Holdfast, in swarms of the fourth edition ---

    def asks(self, fault: Fault) -> bool:
        """One request to Holdfast, chosen by the fault's luck. False when there is nothing to ask for."""
        requests: tuple[Callable[[Fault], bool], ...] = (
            self._ask_hold,
            self._ask_hold,
            self._ask_evacuation,
            lambda fault: self._ask_repair(fault, e.Command.REBOOT),
            lambda fault: self._ask_repair(fault, e.Command.REPLACE),
            lambda fault: self._ask(e.Command.CONFIRM_HEALTHY, node=fault.node),
            self._ask_drain_with_jobs,
            self._ask_mode,
            lambda _: self._ask(e.Command.DRAIN, node="ghost"),
            self._load_policy,
            self._requeue_finished,
        )
        return requests[int(fault.luck * 1e4) % len(requests)](fault)

    def looks_after(self, node: Node) -> None:
        """Have a person return what the scheduler has drained, an hour later."""
        self._world.later(BACK_S, lambda: self._back(node))

    def drills(self, name: str, job: Job, node: Node) -> None:
        """Tell Holdfast that a drill's fault takes effect now, as its tool does."""
        at, source = self._world.now(), WHO
        run = e.DrillRun(
            id=f"{name}/run", at=at, source=source, who="ada", drills=("kill_rank",), phase="begun", run=name
        )
        fired = e.DrillFired(
            id=f"{name}/fired", at=at, source=source, drill=name, kind="kill_rank", job=job.key, node=node.name
        )
        self._agents.send(run, None)
        self._agents.send(fired, None)

    def _ask_hold(self, fault: Fault) -> bool:
        job = self._job(fault, queued=fault.luck * 1e3 % 1.0 < 0.3)
        if job is None or str(job.key) in self.holding:
            return False
        name = str(job.key)
        self.holding[name] = job.key
        if not self._world.options.holds_last:
            self._world.later(BACK_S * 4 * fault.luck, lambda: self._ask_release(name))
        return self._ask(e.Command.HOLD, job=job.key)

    def _ask_release(self, name: str) -> None:
        key = self.holding.pop(name, None)
        if key is not None:
            self._ask(e.Command.RELEASE, job=key)

    def _ask_evacuation(self, fault: Fault) -> bool:
        job = self._job(fault)
        return job is not None and self._ask(e.Command.EVACUATE, job=job.key)

    def _ask_repair(self, fault: Fault, command: e.Command) -> bool:
        retired = [node.name for node in self._world.nodes.values() if node.retired]
        return self._ask(command, node=retired[0] if retired and fault.luck < 0.5 else fault.node)

    def _ask_mode(self, fault: Fault) -> bool:
        """Have some rung advised or observed for half an hour."""
        rung = ("reboot", "requeue", "quarantine", "")[int(fault.luck * 4)]
        value = ("advise", "observe")[int(fault.luck * 1e3) % 2]
        self._modes = True
        self._world.later(BACK_S / 2, lambda: None if self._world.calm else self._act_again(rung))
        return self._ask(e.Command.SET_MODE, value=value, remedy=rung)

    def _act_again(self, rung: str) -> None:
        self._ask(e.Command.SET_MODE, value="act", remedy=rung)

    def _load_policy(self, fault: Fault) -> bool:
        """Load the policy that holds once more, or one that is refused."""
        self._number += 1
        text = self._world.options.policy if fault.luck < 0.8 else "mode = 'maybe'\n"
        event = e.PolicyLoaded(
            id=f"policy:{self._number}", at=self._world.now(), source=WHO, toml=text, file="holdfast.toml"
        )
        self._agents.send(event, None)
        return True

    def _requeue_finished(self, fault: Fault) -> bool:
        """Behind Holdfast's back: its owner wants a job that is over to go on."""
        over = [job for job in self._scheduler.jobs.values() if job.is_over]
        if not over:
            return False
        job = over[int(fault.luck * len(over))]
        return self._scheduler.requeue(job, held=False, who=WHO)

    def _told(self, notice: Notify) -> None:
        """Decide on a proposal, some minutes after its notice was read; look into a job that was requeued."""
        self._look_into(notice)
        share, calm = self._world.options.answers, self._world.calm
        asks, _, rest = notice.title.partition(" ")
        if asks != "Approve" or not rest.endswith("?") or share <= 0.0:
            return
        dice = self._world.dice("answers")
        wait_s, word = 10.0 + 600.0 * dice.random() ** 2, dice.random()
        if not calm and word > share:
            return
        command = e.Command.REJECT if not calm and word < share / 4 else e.Command.APPROVE
        self._world.later(wait_s, lambda: self._decide(command, rest[:-1]))

    def _look_into(self, notice: Notify) -> None:
        """Hold a job that has just failed, or that waits for nodes again, until its owner has looked."""
        job = self._scheduler.jobs.get(str(notice.job)) if notice.job is not None else None
        if job is None or self._world.calm or not self._world.options.holds_last:
            return
        if notice.title.endswith("is requeued, held") and self._world.chance("holds", 0.3):
            if str(job.key) not in self.holding:
                self.holding[str(job.key)] = job.key
                self._world.later(BACK_S, lambda: self._ask_release(str(job.key)))
                self._ask(e.Command.HOLD, job=job.key)
        elif " is released" in notice.title and self._world.chance("holds", 0.5):
            self._world.later(120.0, lambda: self._hold_waiting(job))

    def _hold_waiting(self, job: Job) -> None:
        self._hold_in_queue(job)

    def _decide(self, command: e.Command, order: str) -> None:
        self._ask(command, order=order)

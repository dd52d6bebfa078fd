"""What people ask of Holdfast, by its commands: drains, repairs, holds, modes, policies, drills, and their decisions.

`operators.py` makes it and calls `asks` at the planned times. People read what they are told, and decide on proposals.
What they held they release, in the calm at the latest.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from holdfast.model import events as e
from holdfast.model.cluster import JobKey
from holdfast.model.orders import Notify
from holdfast.sim.agents import Agents
from holdfast.sim.record import Fault
from holdfast.sim.scheduler import Job, Scheduler
from holdfast.sim.world import Node, World

WHO = "operator:ada"
BACK_S = 3600.0


class Requests:
    """See the module."""

    def __init__(
        self, world: World, scheduler: Scheduler, agents: Agents, hold_in_queue: Callable[[Job], object]
    ) -> None:
        self._world = world
        self._scheduler = scheduler
        self._agents = agents
        self._hold_in_queue = hold_in_queue
        self._number = 0
        self._drained: list[str] = []
        """Nodes that Holdfast was asked to drain."""
        self.modes_set = False
        """Has a mode been set?"""
        self.holding: dict[str, JobKey] = {}
        """Jobs that Holdfast was asked to hold, and not to release since."""
        world.on_notice = self._told
        self._takes_two = "approvals = 2" in world.options.policy

    def tidy(self) -> None:
        """The calm: nodes are returned, and jobs released but the first, where holds last."""
        for name in self._drained:
            self.ask(e.Command.RETURN, node=name)
        for number, name in enumerate(list(self.holding)):
            if number or not self._world.options.holds_last:
                self._release(name)

    def ask(self, command: e.Command, *, person: str = "ada", **fields: object) -> bool:
        """Send a command, with this person's own token."""
        self._number += 1
        name = f"command:{self._number}"
        event = e.OperatorCommand(
            id=name,
            at=self._world.now(),
            source=f"operator:{person}",
            command=command,
            who=person,
            by=f"{person} token-{person}",
            why="as I see fit",
            **fields,  # type: ignore[arg-type]
        )
        node, job = fields.get("node", ""), fields.get("job")
        self._world.say(
            "operator", who=WHO, node=str(node), job=str(job) if job else "", detail=f"holdfast {command.value}"
        )
        self._agents.send(event, None)
        return True

    def of_node(self, command: e.Command) -> Callable[[Fault], bool]:
        """Ask for this of the fault's node; what is drained is returned in the calm."""

        def asked(fault: Fault) -> bool:
            if command in {e.Command.DRAIN, e.Command.EVACUATE}:
                self._drained.append(fault.node)
            return self.ask(command, node=fault.node)

        return asked

    def of_job(self, command: e.Command) -> Callable[[Fault], bool]:
        """Ask for this of a job that runs."""

        def asked(fault: Fault) -> bool:
            job = self._scheduler.one_of(fault)
            return job is not None and self.ask(command, job=job.key)

        return asked

    def asks(self, fault: Fault) -> bool:
        """One request to Holdfast, chosen by the fault's luck. False when there is nothing to ask for."""
        requests: tuple[Callable[[Fault], bool], ...] = (
            self._hold,
            self._hold,
            self.of_job(e.Command.EVACUATE),
            lambda fault: self._repair(fault, e.Command.REBOOT),
            lambda fault: self._repair(fault, e.Command.REPLACE),
            self.of_node(e.Command.CONFIRM_HEALTHY),
            self.of_node(e.Command.EVACUATE),
            self._mode,
            lambda _: self.ask(e.Command.DRAIN, node="ghost"),
            self._load_policy,
        )
        return requests[int(fault.luck * 1e4) % 11](fault)

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

    def _hold(self, fault: Fault) -> bool:
        job = self._scheduler.one_of(fault, queued=fault.luck * 1e3 % 1.0 < 0.3)
        if job is None or str(job.key) in self.holding:
            return False
        name = str(job.key)
        self.holding[name] = job.key
        if not self._world.options.holds_last:
            self._world.later(BACK_S * 4 * fault.luck, lambda: self._release(name))
        return self.ask(e.Command.HOLD, job=job.key)

    def _release(self, name: str) -> None:
        key = self.holding.pop(name, None)
        if key is not None:
            self.ask(e.Command.RELEASE, job=key)

    def _repair(self, fault: Fault, command: e.Command) -> bool:
        retired = [node.name for node in self._world.nodes.values() if node.retired]
        return self.ask(command, node=retired[0] if retired and fault.luck < 0.5 else fault.node)

    def _mode(self, fault: Fault) -> bool:
        """Have some rung advised or observed for half an hour."""
        rung = ("reboot", "requeue", "quarantine", "")[int(fault.luck * 4)]
        value = ("advise", "observe")[int(fault.luck * 1e3) % 2]
        self.modes_set = True
        self._world.later(BACK_S / 2, lambda: None if self._world.calm else self.act_again(rung))
        return self.ask(e.Command.SET_MODE, value=value, remedy=rung)

    def act_again(self, rung: str) -> None:
        """End what was said about a rung, or about all."""
        self.ask(e.Command.SET_MODE, value="act", remedy=rung)

    def _load_policy(self, fault: Fault) -> bool:
        """Load the policy that holds once more, or one that is refused."""
        self._number += 1
        text = self._world.options.policy if fault.luck < 0.8 else "mode = 'maybe'\n"
        event = e.PolicyLoaded(
            id=f"policy:{self._number}", at=self._world.now(), source=WHO, toml=text, file="holdfast.toml"
        )
        self._agents.send(event, None)
        return True

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
        self._world.later(wait_s, functools.partial(self.ask, command, order=rest[:-1]))
        if command is e.Command.APPROVE and self._takes_two:
            self._second(rest[:-1], wait_s)

    def _second(self, order: str, after_s: float) -> None:
        """A second person approves, mostly; or the first one does once more, or takes the approval back."""
        dice, calm = self._world.dice("second"), self._world.calm
        wait_s, word = after_s + 60.0 * dice.random(), dice.random()
        person = "ada" if not calm and word < 0.4 else "bea"
        command = e.Command.WITHDRAW if not calm and word < 0.2 else e.Command.APPROVE
        self._world.later(wait_s, functools.partial(self.ask, command, person=person, order=order))

    def _look_into(self, notice: Notify) -> None:
        """Hold a job that has just failed, or that waits for nodes again, until its owner has looked."""
        job = self._scheduler.jobs.get(str(notice.job)) if notice.job is not None else None
        if job is None or self._world.calm or not self._world.options.holds_last:
            return
        if notice.title.endswith("is requeued, held") and self._world.chance("holds", 0.3):
            if str(job.key) not in self.holding:
                self.holding[str(job.key)] = job.key
                self._world.later(BACK_S, lambda: self._release(str(job.key)))
                self.ask(e.Command.HOLD, job=job.key)
        elif " is released" in notice.title and self._world.chance("holds", 0.5):
            self._world.later(120.0, functools.partial(self._hold_in_queue, job))

"""Faults take effect: one small function per kind, called at the planned time by `run.py`.

A fault that finds nothing to break is written down as missed. In the calm none comes, and those that last are ended.
Time is the world's.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from holdfast.sim.agents import Agents
from holdfast.sim.control import ControlPlane
from holdfast.sim.operators import Operators
from holdfast.sim.record import Fault
from holdfast.sim.scheduler import RUNS, Job, Scheduler
from holdfast.sim.training import LINK_RULE, Attempt
from holdfast.sim.world import Node, World


class Breaker:
    """See the module."""

    def __init__(
        self, world: World, scheduler: Scheduler, agents: Agents, control: ControlPlane, operators: Operators
    ) -> None:
        self.world = world
        self.scheduler = scheduler
        self.agents = agents
        self.control = control
        self.operators = operators
        self._lasting: dict[str, Callable[[], None]] = {}
        """What ends each fault that lasts."""

    def strike(self, fault: Fault) -> None:
        """Make it happen now."""
        node = self.world.nodes.get(fault.node) if fault.node else None
        if fault.machine and node is not None and node.machine != fault.machine:
            self._missed(fault, "the machine was replaced")
            return
        _EFFECTS[fault.kind](self, fault)

    def calm(self) -> None:
        """Nothing breaks any more, and what lasts ends now."""
        for end in list(self._lasting.values()):
            end()
        self._lasting.clear()

    def _missed(self, fault: Fault, why: str) -> None:
        self.world.say("fault_missed", fault=fault.id, who="fault", node=fault.node, detail=why)

    def _took(self, fault: Fault, job: Job | None = None) -> None:
        name = str(job.key) if job is not None else ""
        self.world.say(
            "fault", fault=fault.id, who="fault", node=fault.node, nodes=fault.group, job=name, detail=fault.label
        )

    def _lasts(self, fault: Fault, end: Callable[[], None]) -> None:
        def ended() -> None:
            if self._lasting.pop(fault.id, None) is not None:
                end()
                self.world.say("fault_ended", fault=fault.id, node=fault.node)

        self._lasting[fault.id] = ended
        self.world.later(fault.for_s, ended)

    # --- whom it hits ---

    def _node(self, fault: Fault) -> Node:
        return self.world.nodes[fault.node]

    def _training(self, fault: Fault) -> tuple[Job, Attempt] | None:
        """The attempt on the fault's node, or else any that runs."""
        job = self.scheduler.running_on(self._node(fault))
        if job is None or _attempt_of(job) is None:
            running = [
                one for one in self.scheduler.jobs.values() if one.state in RUNS and _attempt_of(one) is not None
            ]
            if not running:
                return None
            job = running[int(fault.luck * len(running))]
        attempt = _attempt_of(job)
        return (job, attempt) if attempt is not None else None

    def _on(self, node: Node) -> Attempt | None:
        job = self.scheduler.running_on(node)
        attempt = _attempt_of(job) if job is not None else None
        return attempt if attempt is not None and node in attempt.nodes else None

    # --- nodes ---

    def gpu(self, fault: Fault) -> None:
        """A part breaks: the kernel says so, and a rank there dies."""
        node = self._breaks_machine(fault)
        if node is None:
            return
        if fault.luck < self.world.options.attribution:
            self.agents.sees(node, fault.cause, gpu=int(fault.luck * 1e6) % self.world.options.gpus_per_node)
        attempt = self._on(node)
        if attempt is not None:
            attempt.breaks(node.name, "exit.signal.6", fault.id)

    def node(self, fault: Fault) -> None:
        """It stops."""
        node = self._breaks_machine(fault)
        if node is not None:
            self.world.go_down(node, fault.id, fault.label)

    def _breaks_machine(self, fault: Fault) -> Node | None:
        """A part of the fault's node is broken from here on. None: the node does not run."""
        node = self._node(fault)
        if not node.up:
            self._missed(fault, "the node does not run")
            return None
        self._took(fault, self.scheduler.running_on(node))
        self.world.break_part(node, fault.id, fault.remedy, fault.label)
        return node

    def cut_off(self, fault: Fault) -> None:
        """A switch: its nodes lose their network until it is back."""
        self._took(fault)
        for name in fault.group:
            self.world.cut(self.world.nodes[name], fault.id)
        self._lasts(fault, lambda: self._heal(fault))

    def _heal(self, fault: Fault) -> None:
        for name in fault.group:
            self.world.heal(self.world.nodes[name], fault.id)
        self.scheduler.look_soon()

    def power(self, fault: Fault) -> None:
        """All of it stops, and boots when power is back."""
        self._took(fault)
        downed = [self.world.nodes[name] for name in fault.group if self.world.nodes[name].up]
        machines = [node.machine for node in downed]
        for node in downed:
            self.world.go_down(node, fault.id, fault.label)

        def back() -> None:
            for node, machine in zip(downed, machines, strict=True):
                if not node.up and node.machine == machine and not any(r == "replace" for r in node.broken.values()):
                    self.world.come_up(node, who="power")
            self.scheduler.look_soon()

        self._lasts(fault, back)

    def partition(self, fault: Fault) -> None:
        """The node's half of the cluster cannot reach the controller; jobs go on."""
        self._took(fault)
        nodes = list(self.world.nodes.values())
        size = max(1, int(fault.luck * len(nodes)))
        start = self._node(fault).index
        chosen = [nodes[(start + step) % len(nodes)] for step in range(size)]
        for node in chosen:
            self.world.part(node, fault.id, apart=True)

        def healed() -> None:
            for node in chosen:
                self.world.part(node, fault.id, apart=False)

        self._lasts(fault, healed)

    # --- jobs ---

    def crash(self, fault: Fault) -> None:
        """A rank ends by itself."""
        hit = self._training(fault)
        if hit is None or not hit[1].is_well:
            self._missed(fault, "no job trains")
            return
        self._took(fault, hit[0])
        hit[1].breaks(hit[1].nodes[int(fault.luck * len(hit[1].nodes))].name, fault.cause, fault.id)

    def cable(self, fault: Fault) -> None:
        """A link of the node is down: ranks there cannot reach their peers, on whatever machine, until it is up."""
        node = self._node(fault)
        self._took(fault, self.scheduler.running_on(node))
        node.links[fault.id] = fault.label
        seen = node.up and fault.luck < self.world.options.attribution
        if seen:
            self.agents.sees(node, fault.cause)
        attempt = self._on(node)
        if attempt is not None:
            attempt.breaks(node.name, LINK_RULE, fault.id)

        def up_again() -> None:
            node.links.pop(fault.id, None)
            if seen and node.up and not node.links:
                self.agents.cleared(node, fault.cause)

        self._lasts(fault, up_again)

    def hang(self, fault: Fault) -> None:
        """Nothing moves."""
        hit = self._training(fault)
        if hit is None or not hit[1].is_well:
            self._missed(fault, "no job trains")
            return
        self._took(fault, hit[0])
        hit[1].stalls(fault.id)

    def corruption(self, fault: Fault) -> None:
        """Numbers go bad."""
        hit = self._training(fault)
        if hit is None or not hit[1].is_well or not hit[1].has_trained:
            self._missed(fault, "no job trains")
            return
        self._took(fault, hit[0])
        hit[1].goes_bad(hit[1].nodes[int(fault.luck * len(hit[1].nodes))].name, fault.id)

    def straggler(self, fault: Fault) -> None:
        """The node is slow for a while, for whatever runs there."""
        node = self._node(fault)
        attempt = self._on(node)
        if attempt is None or not attempt.is_well:
            self._missed(fault, "no job trains there")
            return
        self._took(fault, self.scheduler.running_on(node))
        attempt.slows(node.name, fault.id, self.world.options.straggler_factor, slow=True)
        self._lasts(fault, lambda: attempt.slows(node.name, fault.id, 1.0, slow=False))

    def storage(self, fault: Fault) -> None:
        """The file system stands still: nothing is loaded or saved meanwhile."""
        self._took(fault)
        self.world.storage_down.add(fault.id)

        def back() -> None:
            self.world.storage_down.discard(fault.id)
            if not self.world.storage_down:
                self.world.on_storage()

        self._lasts(fault, back)

    def preemption(self, fault: Fault) -> None:
        """The scheduler requeues a job for something more important."""
        hit = self._training(fault)
        if hit is None:
            self._missed(fault, "no job runs")
            return
        self._took(fault, hit[0])
        self.scheduler.requeue(hit[0], held=False, who="scheduler")

    def reuse(self, fault: Fault) -> None:
        """The owner cancels a job and submits another that gets its id."""
        waiting = [job for job in self.scheduler.jobs.values() if job.plan.work_s > 0.0]
        if not waiting:
            self._missed(fault, "no job")
            return
        job = waiting[int(fault.luck * len(waiting))]
        self._took(fault, job)
        work_s = min(job.plan.work_s, 1800.0)
        job.plan = replace(job.plan, work_s=work_s)
        self.scheduler.reuse_id(job)

    def operator(self, fault: Fault) -> None:
        """A person interferes."""
        done = self.operators.interferes(fault)
        if done:
            self._took(fault)
        else:
            self._missed(fault, "nothing to interfere with")

    # --- the controller ---

    def kill(self, fault: Fault) -> None:
        """The controller dies."""
        self._took(fault)
        self.control.kill(fault.id)

    def second(self, fault: Fault) -> None:
        """Two controllers at once."""
        self._took(fault)
        self.control.second(fault.id)

    def disk_full(self, fault: Fault) -> None:
        """The journal cannot be written for a while."""
        self._took(fault)
        self.control.disk.full = True

        def space() -> None:
            self.control.disk.full = False

        self._lasts(fault, space)

    def torn(self, fault: Fault) -> None:
        """Killed in the middle of a write."""
        self._took(fault)
        self.control.tear(fault.id, stored=fault.luck < 0.5)

    def slow_disk(self, fault: Fault) -> None:
        """Each transaction takes seconds."""
        self._took(fault)
        self.control.disk.slow_s = 0.1 + 5.0 * fault.luck

        def fast() -> None:
            self.control.disk.slow_s = 0.0

        self._lasts(fault, fast)


def _attempt_of(job: Job) -> Attempt | None:
    return job.allocation.attempt if job.allocation is not None else None


_EFFECTS: dict[str, Callable[[Breaker, Fault], None]] = {
    "gpu": Breaker.gpu,
    "node": Breaker.node,
    "crash": Breaker.crash,
    "cable": Breaker.cable,
    "link": Breaker.crash,
    "hang": Breaker.hang,
    "corruption": Breaker.corruption,
    "straggler": Breaker.straggler,
    "switch": Breaker.cut_off,
    "rack": Breaker.cut_off,
    "power": Breaker.power,
    "storage": Breaker.storage,
    "preemption": Breaker.preemption,
    "partition": Breaker.partition,
    "operator": Breaker.operator,
    "reuse": Breaker.reuse,
    "kill": Breaker.kill,
    "second": Breaker.second,
    "disk_full": Breaker.disk_full,
    "torn": Breaker.torn,
    "slow_disk": Breaker.slow_disk,
}

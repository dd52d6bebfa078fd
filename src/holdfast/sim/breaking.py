"""Faults take effect: one small function per kind, called at the planned time by `run.py`.

A fault that finds nothing to break is written down as missed. In the calm none comes, and those that last are ended.
Time is the world's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from msgspec.structs import replace

from holdfast.model.records import RUNS
from holdfast.sim.agents import Agents
from holdfast.sim.control import ControlPlane
from holdfast.sim.hostile import Liar
from holdfast.sim.ledger import TRAIN
from holdfast.sim.operators import Operators
from holdfast.sim.record import Fault
from holdfast.sim.scheduler import Job, Scheduler
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
        self.liar = Liar(world, scheduler, control)
        self._lasting: dict[str, Callable[[], None]] = {}
        """What ends each fault that lasts."""

    def strike(self, fault: Fault) -> None:
        """Make it happen now."""
        node = self.world.nodes.get(fault.node) if fault.node else None
        if fault.machine and node is not None and node.machine != fault.machine:
            self.missed(fault, "the machine was replaced")
            return
        EFFECTS[fault.kind](self, fault)

    def calm(self) -> None:
        """Nothing breaks any more, and what lasts ends now."""
        for end in list(self._lasting.values()):
            end()
        self._lasting.clear()

    def missed(self, fault: Fault, why: str) -> None:
        """Write down that it found nothing to break."""
        self.world.say("fault_missed", fault=fault.id, who="fault", node=fault.node, detail=why)

    def took(self, fault: Fault, job: Job | None = None, nodes: tuple[str, ...] = ()) -> None:
        """Write down that it takes effect: on the planned node or group, or on these nodes."""
        self.world.say(
            "fault",
            fault=fault.id,
            who="fault",
            node=nodes[0] if nodes else fault.node,
            nodes=nodes or fault.group,
            job=str(job.key) if job is not None else "",
            detail=fault.label,
        )

    def lasts(self, fault: Fault, end: Callable[[], None]) -> None:
        """Have it end after its time, or in the calm."""

        def ended() -> None:
            if self._lasting.pop(fault.id, None) is not None:
                end()
                self.world.say("fault_ended", fault=fault.id, node=fault.node)

        self._lasting[fault.id] = ended
        self.world.later(fault.for_s, ended)

    # --- whom it hits ---

    def node_of(self, fault: Fault) -> Node:
        """The planned node."""
        return self.world.nodes[fault.node]

    def training(self, fault: Fault) -> tuple[Job, Attempt] | None:
        """The attempt on the fault's node, or else any that runs."""
        job = self.scheduler.running_on(self.node_of(fault))
        if job is None or job.attempt is None:
            running = [one for one in self.scheduler.jobs.values() if one.state in RUNS and one.attempt is not None]
            job = fault.picks(running) if running else None
        return (job, job.attempt) if job is not None and job.attempt is not None else None

    def on(self, node: Node) -> Attempt | None:
        """The attempt that uses the node."""
        job = self.scheduler.running_on(node)
        attempt = job.attempt if job is not None else None
        return attempt if attempt is not None and node in attempt.nodes else None


Effect = Callable[[Breaker, Fault], None]
EFFECTS: dict[str, Effect] = {}
"""Kind of fault -> what it does."""


def _effect(*kinds: str) -> Callable[[Effect], Effect]:
    def keep(function: Effect) -> Effect:
        EFFECTS.update(dict.fromkeys(kinds, function))
        return function

    return keep


def _to_attempt(
    *kinds: str, when: Callable[[Attempt], bool] = lambda attempt: attempt.is_well, why: str = "no job trains"
) -> Callable[[Callable[[Breaker, Fault, Job, Attempt], None]], Effect]:
    """What a fault does to the attempt that it hits; when none is such as it needs, it is missed."""

    def keep(function: Callable[[Breaker, Fault, Job, Attempt], None]) -> Effect:
        @_effect(*kinds)
        def effect(breaker: Breaker, fault: Fault) -> None:
            hit = breaker.training(fault)
            if hit is None or not when(hit[1]):
                breaker.missed(fault, why)
                return
            breaker.took(fault, hit[0])
            function(breaker, fault, *hit)

        return effect

    return keep


def _to_node(
    *kinds: str, when: Callable[[Node], bool] = lambda node: node.up, why: str = "the node does not run"
) -> Callable[[Callable[[Breaker, Fault, Node], None]], Effect]:
    """What a fault does to its node, and to the job there; when the node is not such as it needs, it is missed."""

    def keep(function: Callable[[Breaker, Fault, Node], None]) -> Effect:
        @_effect(*kinds)
        def effect(breaker: Breaker, fault: Fault) -> None:
            node = breaker.node_of(fault)
            if not when(node):
                breaker.missed(fault, why)
                return
            breaker.took(fault, breaker.scheduler.running_on(node))
            function(breaker, fault, node)

        return effect

    return keep


# --- nodes ---


@_to_node("gpu")
def gpu(breaker: Breaker, fault: Fault, node: Node) -> None:
    """A part breaks: the kernel says so, and a rank there dies."""
    breaker.world.break_part(node, fault.id, fault.remedy, fault.label)
    attempt = breaker.on(node)
    if fault.luck < breaker.world.options.attribution:
        _seen(breaker, node, fault, attempt)
    if attempt is not None:
        attempt.breaks(node.name, "exit.signal.6", fault.id)


def _seen(breaker: Breaker, node: Node, fault: Fault, attempt: Attempt | None, rule: str = "") -> None:
    """Have its agent tell: at once, or minutes later of what the attempt that used it dies of."""
    options = breaker.world.options
    gpu = int(fault.luck * 1e6) % options.gpus_per_node
    job = breaker.scheduler.running_on(node)
    dies = attempt if attempt is not None and attempt.is_well else None
    if dies is not None and job is not None and fault.luck * 1e3 % 1.0 < options.late_looks:
        about = (job.key, dies.number)
        breaker.agents.sees(node, rule or fault.cause, gpu=gpu, after_s=30.0 + 600.0 * fault.luck, about=about)
    else:
        breaker.agents.sees(node, rule or fault.cause, gpu=gpu)


@_effect("batch")
def batch(breaker: Breaker, fault: Fault) -> None:
    """Parts of several nodes of one job break at once, as when their cooling fails."""
    hit = breaker.training(fault)
    nodes = [one for one in hit[1].nodes if one.up][: 2 + int(fault.luck * 2)] if hit is not None else []
    if hit is None or len(nodes) < 2:
        breaker.missed(fault, "no job trains on several nodes")
        return
    breaker.took(fault, hit[0], tuple(one.name for one in nodes))
    for one in nodes:
        breaker.world.break_part(one, f"{fault.id}/{one.name}", "reset", fault.label)
        _seen(breaker, one, fault, hit[1])
    hit[1].breaks(nodes[0].name, "exit.signal.6", fault.id)


@_to_node("warning")
def warning(breaker: Breaker, fault: Fault, node: Node) -> None:
    """A part will break some minutes after its agent has said so."""
    machine = node.machine
    breaker.agents.sees(node, fault.cause, gpu=0)

    def breaks() -> None:
        if breaker.world.calm or node.machine != machine or not node.up:
            return
        breaker.world.break_part(node, fault.id, "reset", fault.label)
        attempt = breaker.on(node)
        _seen(breaker, node, fault, attempt, "nvidia.xid.95")
        if attempt is not None:
            attempt.breaks(node.name, "exit.signal.6", fault.id)

    breaker.world.later(60.0 + 1200.0 * fault.luck, breaks)


@_effect("prolog")
def prolog(breaker: Breaker, fault: Fault) -> None:
    """The scheduler's own check fails, and it drains the node until a person looks."""
    node = breaker.node_of(fault)
    if not node.up or node.drained or node.hidden:
        breaker.missed(fault, "the node takes no work")
        return
    breaker.took(fault)
    node.failed_check = "prolog exited with 1"
    breaker.world.drain(node, "Prolog error", who="scheduler")
    breaker.operators.looks_after(node)


@_to_node("vanishing", when=lambda node: not node.job and not node.hidden, why="a job runs there")
def vanishing(breaker: Breaker, fault: Fault, node: Node) -> None:
    """The scheduler does not know the node for a while: it was taken out of the configuration."""
    node.hidden = True
    breaker.world.touch(node)

    def known_again() -> None:
        node.hidden = False
        breaker.world.touch(node)
        breaker.scheduler.look_soon()

    breaker.lasts(fault, known_again)


@_to_node("node")
def stop(breaker: Breaker, fault: Fault, node: Node) -> None:
    """The node stops."""
    breaker.world.break_part(node, fault.id, fault.remedy, fault.label)
    breaker.world.go_down(node, fault.id, fault.label)


@_effect("switch", "rack")
def cut_off(breaker: Breaker, fault: Fault) -> None:
    """A switch: its nodes lose their network until it is back."""
    breaker.took(fault)
    group = [breaker.world.nodes[name] for name in fault.group]
    for node in group:
        breaker.world.cut(node, fault.id)

    def healed() -> None:
        for node in group:
            breaker.world.heal(node, fault.id)
        breaker.scheduler.look_soon()

    breaker.lasts(fault, healed)


@_effect("power")
def power(breaker: Breaker, fault: Fault) -> None:
    """All of it stops, and boots when power is back."""
    breaker.took(fault)
    downed = [breaker.world.nodes[name] for name in fault.group if breaker.world.nodes[name].up]
    machines = [node.machine for node in downed]
    for node in downed:
        breaker.world.go_down(node, fault.id, fault.label)

    def back() -> None:
        for node, machine in zip(downed, machines, strict=True):
            if not node.up and node.machine == machine and not any(r == "replace" for r in node.broken.values()):
                breaker.world.come_up(node, who="power")
        breaker.scheduler.look_soon()

    breaker.lasts(fault, back)


@_effect("partition")
def partition(breaker: Breaker, fault: Fault) -> None:
    """The node's half of the cluster cannot reach the controller; jobs go on."""
    breaker.took(fault)
    nodes = list(breaker.world.nodes.values())
    size = max(1, int(fault.luck * len(nodes)))
    start = breaker.node_of(fault).index
    chosen = [nodes[(start + step) % len(nodes)] for step in range(size)]
    for node in chosen:
        breaker.world.part(node, fault.id, apart=True)

    def healed() -> None:
        for node in chosen:
            breaker.world.part(node, fault.id, apart=False)

    breaker.lasts(fault, healed)


# --- jobs ---


@_to_attempt("crash", "link")
def crash(breaker: Breaker, fault: Fault, job: Job, attempt: Attempt) -> None:
    """A rank ends by itself."""
    del breaker, job
    attempt.breaks(fault.picks(attempt.nodes).name, fault.cause, fault.id)


@_to_node("cable", when=lambda _: True)
def cable(breaker: Breaker, fault: Fault, node: Node) -> None:
    """A link of the node is down: ranks there cannot reach their peers, on whatever machine, until it is up."""
    node.links[fault.id] = fault.label
    seen = node.up and fault.luck < breaker.world.options.attribution
    if seen:
        breaker.agents.sees(node, fault.cause)
    attempt = breaker.on(node)
    if attempt is not None:
        attempt.breaks(node.name, LINK_RULE, fault.id)

    def up_again() -> None:
        node.links.pop(fault.id, None)
        if seen and node.up and not node.links:
            breaker.agents.cleared(node, fault.cause)

    breaker.lasts(fault, up_again)


@_to_attempt("hang")
def hang(breaker: Breaker, fault: Fault, job: Job, attempt: Attempt) -> None:
    """Nothing moves."""
    del breaker, job
    attempt.stalls(fault.id)


@_to_attempt("pause", when=lambda attempt: attempt.phase == TRAIN)
def pause(breaker: Breaker, fault: Fault, job: Job, attempt: Attempt) -> None:
    """Nothing moves for a while, and then it does."""
    del job
    attempt.pauses(fault.id)
    breaker.lasts(fault, attempt.goes_on)


@_to_attempt("drill")
def drill(breaker: Breaker, fault: Fault, job: Job, attempt: Attempt) -> None:
    """A person's drill kills a rank, and says so."""
    node = fault.picks(attempt.nodes)
    breaker.operators.requests.drills(fault.id, job, node)
    attempt.breaks(node.name, fault.cause, fault.id)


@_to_attempt("corruption", when=lambda attempt: attempt.is_well and attempt.has_trained)
def corruption(breaker: Breaker, fault: Fault, job: Job, attempt: Attempt) -> None:
    """Numbers go bad."""
    del breaker, job
    attempt.goes_bad(fault.picks(attempt.nodes).name, fault.id)


@_effect("straggler")
def straggler(breaker: Breaker, fault: Fault) -> None:
    """The node is slow for a while, for whatever runs there."""
    node = breaker.node_of(fault)
    attempt = breaker.on(node)
    if attempt is None or not attempt.is_well:
        breaker.missed(fault, "no job trains there")
        return
    breaker.took(fault, breaker.scheduler.running_on(node))
    attempt.slows(node.name, fault.id, breaker.world.options.straggler_factor, slow=True)
    breaker.lasts(fault, lambda: attempt.slows(node.name, fault.id, 1.0, slow=False))


@_effect("storage")
def storage(breaker: Breaker, fault: Fault) -> None:
    """The file system stands still: nothing is loaded or saved meanwhile."""
    breaker.took(fault)
    breaker.world.storage_down.add(fault.id)

    def back() -> None:
        breaker.world.storage_down.discard(fault.id)
        if not breaker.world.storage_down:
            breaker.world.on_storage()

    breaker.lasts(fault, back)


@_to_attempt("preemption", when=lambda _: True, why="no job runs")
def preemption(breaker: Breaker, fault: Fault, job: Job, attempt: Attempt) -> None:
    """The scheduler requeues a job for something more important."""
    del fault, attempt
    breaker.scheduler.requeue(job, held=False, who="scheduler")


@_effect("reuse")
def reuse(breaker: Breaker, fault: Fault) -> None:
    """The owner cancels a job and submits another that gets its id."""
    waiting = [job for job in breaker.scheduler.jobs.values() if job.plan.work_s > 0.0]
    if not waiting:
        breaker.missed(fault, "no job")
        return
    job = fault.picks(waiting)
    breaker.took(fault, job)
    job.plan = replace(job.plan, work_s=min(job.plan.work_s, 1800.0))
    breaker.scheduler.reuse_id(job)


@_effect("operator", "command")
def person(breaker: Breaker, fault: Fault) -> None:
    """A person interferes, or asks Holdfast for something."""
    operators = breaker.operators
    if operators.asks(fault) if fault.kind == "command" else operators.interferes(fault):
        breaker.took(fault)
    else:
        breaker.missed(fault, "nothing to ask for" if fault.kind == "command" else "nothing to interfere with")


@_effect("blind")
def blind(breaker: Breaker, fault: Fault) -> None:
    """The scheduler answers no questions and takes no commands."""
    breaker.took(fault)
    breaker.world.scheduler_mute.add(fault.id)
    breaker.lasts(fault, lambda: breaker.world.scheduler_mute.discard(fault.id))


@_effect("hostile")
def hostile(breaker: Breaker, fault: Fault) -> None:
    """Somebody lies for a while."""
    breaker.took(fault)
    breaker.liar.strikes(fault)


# --- the controller ---


@_effect("kill")
def kill(breaker: Breaker, fault: Fault) -> None:
    """The controller dies."""
    breaker.took(fault)
    breaker.control.kill(fault.id)


@_effect("second")
def second(breaker: Breaker, fault: Fault) -> None:
    """Two controllers at once."""
    breaker.took(fault)
    breaker.control.second(fault.id)


@_effect("disk_full")
def disk_full(breaker: Breaker, fault: Fault) -> None:
    """The journal cannot be written for a while."""
    breaker.took(fault)
    breaker.control.disk.full = True
    breaker.lasts(fault, functools.partial(setattr, breaker.control.disk, "full", False))


@_effect("torn")
def torn(breaker: Breaker, fault: Fault) -> None:
    """Killed in the middle of a write."""
    breaker.took(fault)
    breaker.control.tear(fault.id, stored=fault.luck < 0.5)


@_effect("slow_disk")
def slow_disk(breaker: Breaker, fault: Fault) -> None:
    """Each transaction takes seconds."""
    breaker.took(fault)
    breaker.control.disk.slow_s = 0.1 + 5.0 * fault.luck
    breaker.lasts(fault, functools.partial(setattr, breaker.control.disk, "slow_s", 0.0))

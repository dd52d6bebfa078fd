"""One simulated run: the real controller and engine over a simulated cluster, in virtual time, to the byte repeatable.

`holdfast simulate`, the fuzzer and the tests call `simulate`. Two phases: faults happen for `fault_s`; then, when
`converge_s` is set, nothing breaks any more and everything must come to rest within that time. Time passes in a
`VirtualLoop` only: there is no thread, no real sleep, and no luck that does not come from the seed.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Callable, Iterator
from typing import Any

import structlog

from holdfast.adapters.clock import VIRTUAL_START, VirtualClock, run_virtual
from holdfast.adapters.memory.journal import MemoryJournal
from holdfast.adapters.policy_files import packaged_presets
from holdfast.decide.engine import Engine
from holdfast.errors import HoldfastError
from holdfast.model.cluster import SchedulerState
from holdfast.model.orders import Notify, OrderStatus
from holdfast.model.policy_toml import parse_policy
from holdfast.model.records import JOB_ENDED, RUNS, JobState, NodeState
from holdfast.sim.agents import Agents
from holdfast.sim.breaking import Breaker
from holdfast.sim.control import ControlPlane
from holdfast.sim.faults import plan
from holdfast.sim.launcher import Launcher
from holdfast.sim.operators import Operators
from holdfast.sim.options import SimOptions
from holdfast.sim.orchestrator import SimOrchestrator
from holdfast.sim.record import Fault, Ledger, SimResult
from holdfast.sim.repair_shop import SimRepair
from holdfast.sim.scheduler import Allocation, Job, Scheduler
from holdfast.sim.world import Node, World

LOOK_S = 60.0
RESTS = JOB_ENDED | {JobState.WATCHING}
NODE_RESTS = frozenset({NodeState.HEALTHY, NodeState.RETIRED})
Progress = Callable[[float, float], None]
"""Told the virtual seconds done, and of how many."""


class Simulation:
    """Everything of one run; `simulate` makes it. Tests may reach into `world`, `scheduler` and `control`."""

    def __init__(self, options: SimOptions, *, engine: type[Engine] = Engine) -> None:
        presets = packaged_presets()
        self.options = options
        self.faults: tuple[Fault, ...] = plan(options)
        clock = VirtualClock()
        self.world = World(options, clock)
        self.scheduler = Scheduler(self.world)
        orchestrator = SimOrchestrator(self.world, self.scheduler)
        repair = SimRepair(self.world, self.scheduler)
        policies = parse_policy(options.policy, "", presets)
        self.control = ControlPlane(self.world, clock, policies, presets, engine, orchestrator, repair)
        self.agents = Agents(self.world, self.control)
        self.operators = Operators(self.world, self.scheduler, self.agents)
        self.scheduler.allocation_for = self._allocation  # type: ignore[method-assign]
        self.breaker = Breaker(self.world, self.scheduler, self.agents, self.control, self.operators)
        self.world.on_storage = self._storage_back
        self.calm_at = 0.0
        self._errors: list[Exception] = []

    def _allocation(self, job: Job, nodes: tuple[Node, ...]) -> Allocation:
        if job.plan.launcher:
            return Launcher(self.scheduler, job, nodes, self.agents, self.control)
        return Allocation(self.scheduler, job, nodes)

    def _storage_back(self) -> None:
        for job in self.scheduler.jobs.values():
            if job.attempt is not None:
                job.attempt.storage_is_back()

    async def run(
        self, *, progress: Progress | None = None, at_calm: Callable[[Simulation], None] | None = None
    ) -> SimResult:
        """All of it."""
        options, world = self.options, self.world
        asyncio.get_running_loop().set_exception_handler(self._broken)
        self.control.start()
        self.agents.begin()
        self._plan_jobs()
        dropped = frozenset(options.drop)
        for fault in self.faults:
            if fault.id not in dropped:
                world.later(fault.at_s, functools.partial(self.breaker.strike, fault))
        total_s = options.fault_s + options.converge_s
        steps = 200
        for step in range(1, steps + 1):
            await world.clock.sleep(options.fault_s * step / steps - world.clock.monotonic())
            if progress is not None:
                progress(world.clock.monotonic(), total_s)
        self.calm_at = world.now()
        unrest: list[str] = []
        if options.converge_s > 0.0:
            self._begin_calm()
            if at_calm is not None:
                at_calm(self)
            unrest = await self._converge(progress, total_s)
        result = await self._result(unrest)
        self.agents.end()
        self.breaker.liar.end()
        await self.control.close()
        if self._errors:
            raise self._errors[0]
        return result

    def _broken(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """An error of the simulation itself, in a callback: it must not pass for a quiet run."""
        del loop
        error = context.get("exception")
        self._errors.append(error if isinstance(error, Exception) else HoldfastError(str(context.get("message"))))

    def _plan_jobs(self) -> None:
        for job in self.options.jobs:
            if job.arrives_s <= 0.0:
                self.scheduler.submit(job)
            else:
                self.world.later(job.arrives_s, functools.partial(self.scheduler.submit, job))

    def _begin_calm(self) -> None:
        """Faults stop: what lasts ends, disks work, a controller runs, and people let go of what they held."""
        self.world.calm = True
        self.world.say("calm")
        self.breaker.calm()
        self.operators.tidy()
        self.control.ensure()

    async def _converge(self, progress: Progress | None, total_s: float) -> list[str]:
        clock = self.world.clock
        end = clock.monotonic() + self.options.converge_s
        while clock.monotonic() < end:
            await clock.sleep(LOOK_S)
            rests = not self._unfinished() and not await self.unrest()
            if progress is not None:
                progress(clock.monotonic(), total_s)
            if rests:
                return []
        return await self.unrest()

    async def unrest(self) -> list[str]:
        """What has not come to rest, one line each; empty when all is well."""
        journal = MemoryJournal(self.control.disk)
        found: list[str] = []
        if self.control.active is None:
            found.append("no controller is active")
        elif self.control.active.health().blind:
            found.append("the scheduler cannot be read yet")
        starved = self._starved() | self._kept_back()
        found += [
            f"incident {one.id} is open"
            for one in await journal.incidents(open_only=True)
            if one.nodes_open or not {str(key) for key in one.jobs_open} <= starved
        ]
        for record in await journal.orders(pending_only=True):
            if record.status is OrderStatus.PENDING and not isinstance(record.order, Notify):
                found.append(f"order {record.order.id} ({record.order.__struct_config__.tag}) has no outcome")
        for job in await journal.jobs():
            if job.state not in RESTS and str(job.key) in self.scheduler.jobs and str(job.key) not in starved:
                found.append(f"job {job.key} is {job.state}")
        for node in await journal.nodes():
            down = node.state is NodeState.UNKNOWN and node.before_unknown is NodeState.RETIRED
            if node.state not in NODE_RESTS and not down:
                found.append(f"node {node.name} is {node.state}")
        found += [f"job {job.key} is {job.state} in the scheduler" for job in self._unfinished()]
        return found

    def _fits(self, job: Job) -> bool:
        """Are enough nodes in service for it? Retired ones may never come back."""
        usable = [node.name for node in self.world.nodes.values() if not node.drained and node.up and not node.cuts]
        return sum(name not in job.excluded for name in usable) >= job.plan.nodes

    def _starved(self) -> set[str]:
        """Jobs that wait for nodes of which too few are left."""
        waiting = (job for job in self.scheduler.jobs.values() if job.state is SchedulerState.PENDING)
        return {str(job.key) for job in waiting if not self._fits(job)}

    def _kept_back(self) -> set[str]:
        """Jobs that a person has Holdfast hold, and that are held: such a wish about a job that runs stops nothing."""
        jobs = self.scheduler.jobs
        asked = (name for name in self.operators.requests.holding if name in jobs)
        return {name for name in asked if jobs[name].state is SchedulerState.HELD}

    def _unfinished(self) -> list[Job]:
        """Jobs that have work left and could go on: they run, or there are nodes for them."""
        kept_back = self._kept_back()
        able = RUNS | {SchedulerState.HELD}
        return [
            job
            for name, job in self.scheduler.jobs.items()
            if not job.is_over and job.plan.work_s > 0.0 and name not in kept_back
            if job.state in able or self._fits(job)
        ]

    async def _result(self, unrest: list[str]) -> SimResult:
        disk, world = self.control.disk, self.world
        journal = MemoryJournal(disk)
        incidents = await journal.incidents(limit=10**9)
        return SimResult(
            options=self.options,
            faults=self.faults,
            truth=world.truth,
            started_at=VIRTUAL_START,
            calm_at=self.calm_at,
            ended_at=world.now(),
            converged=not unrest,
            unrest=unrest,
            final=self.scheduler.snapshot(),
            policies=self.control.policies,
            ledgers=self._ledgers(),
            jobs=await journal.jobs(),
            nodes=await journal.nodes(),
            incidents=incidents[::-1],
            orders=(await journal.orders(limit=10**9))[::-1],
            events=disk.events,
            orders_given=disk.orders,
            digest=disk.digest.hexdigest(),
            bytes_written=disk.written,
            refused=self.control.refused,
            effects=world.effects,
            state=await self.control.state(),
            counts=world.counts,
            disk=disk,
            told=self.agents.told,
        )

    def _ledgers(self) -> list[Ledger]:
        found = []
        for job in [*self.scheduler.gone, *self.scheduler.jobs.values()]:
            trains = job.attempt is not None and job.attempt.is_well
            kept_s = (
                job.attempt.position() if job.attempt is not None and trains else max(job.saved.points, default=0.0)
            )
            found.append(job.account.close(self.world.now(), kept_s))
        return found


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The controller's own log would say what the record says better."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        yield
    finally:
        structlog.configure(**before)


def simulate(
    options: SimOptions,
    *,
    engine: type[Engine] = Engine,
    at_calm: Callable[[Simulation], None] | None = None,
    progress: Progress | None = None,
) -> SimResult:
    """Run it.

    Args:
        options: everything, the seed too.
        engine: the engine's class; a planted bug is a subclass.
        at_calm: called once when faults stop, before the world converges.
        progress: told about 200 times how far it is.

    Raises:
        ConfigError: the policy is wrong.
        UsageError: an option is.
    """

    async def work() -> SimResult:
        return await Simulation(options, engine=engine).run(progress=progress, at_calm=at_calm)

    with _quiet():
        return run_virtual(work())

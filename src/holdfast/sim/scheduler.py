"""The simulated gang scheduler: a queue with priorities, whole allocations, holds, exclusions, requeues, preemption.

It knows nothing of recovery, as Slurm does not. People and faults call it directly, Holdfast through `orchestrator.py`.
A job's processes are its allocation's: an `Attempt` without a launcher, or a `Launcher` that makes attempts.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from holdfast.model.cluster import ENDED, JobKey, JobView, RecoverySpec, SchedulerState, WorldView
from holdfast.model.records import RUNS
from holdfast.sim.ledger import Account
from holdfast.sim.options import JobPlan
from holdfast.sim.record import Fault
from holdfast.sim.store import Disk
from holdfast.sim.training import Attempt, Saved, Watcher
from holdfast.sim.world import Node, World

QUEUED = frozenset({SchedulerState.PENDING, SchedulerState.HELD})


class Allocation(Watcher):
    """What runs on a job's nodes without a launcher: one attempt, whose end the scheduler sees."""

    def __init__(self, scheduler: Scheduler, job: Job, nodes: tuple[Node, ...]) -> None:
        self.scheduler = scheduler
        self.job = job
        self.nodes = nodes
        self.attempt: Attempt | None = None

    def begin(self) -> None:
        """Start."""
        job = self.job
        self.attempt = self.attempt_of(job.restart_count, self.nodes[: job.plan.nodes], self, job.step_max)
        self.attempt.begin(job.plan.start_s)

    def attempt_of(self, number: int, nodes: tuple[Node, ...], watcher: Watcher, step_max: int | None) -> Attempt:
        """An attempt of the job, not yet begun."""
        job, world = self.job, self.scheduler.world
        return Attempt(world, job.plan, str(job.key), number, nodes, job.saved, job.account, watcher, step_max=step_max)

    def kill(self, why: str) -> None:
        """The scheduler ends everything of it."""
        if self.attempt is not None:
            self.attempt.end(why)

    def lost(self, node: Node, fault: str) -> None:
        """A node of it stopped, or cannot be reached."""
        if self.attempt is not None and node in self.attempt.nodes:
            self.attempt.breaks(node.name, "node.lost", fault)

    # --- as an attempt's watcher ---

    def rank_ended(self, node: str, rule: str, fault: str) -> None:
        """Its peers notice, and the job ends."""
        del node, fault
        code, signal = exit_of(rule)
        self.scheduler.world.later(1.0, lambda: self._over(code, signal))

    def _over(self, code: int | None, signal: int | None) -> None:
        self.scheduler.over(self.job, self, SchedulerState.FAILED, code=code, signal=signal)

    def stalled(self, fault: str) -> None:
        """NCCL's own time-out ends it after ten minutes."""
        del fault
        self.scheduler.world.later(600.0, lambda: self._over(1, None))

    def bad_numbers(self, node: str, fault: str) -> None:
        """The script checks its loss, and ends."""
        del node, fault
        if self.attempt is not None:
            self.attempt.breaks("", "exit.code.1", "")

    def finished(self) -> None:
        """All work is done."""
        self.scheduler.over(self.job, self, SchedulerState.COMPLETED, code=0, signal=None)


def exit_of(rule: str) -> tuple[int | None, int | None]:
    """Exit code and signal of `exit.code.1`, `exit.signal.11`; 1 for all else."""
    kind, _, number = rule.rpartition(".")
    if number.isdigit() and kind == "exit.signal":
        return None, int(number)
    return (int(number), None) if number.isdigit() and kind == "exit.code" else (1, None)


class Job:
    """One job in the scheduler's memory."""

    def __init__(self, key: JobKey, plan: JobPlan, account: Account, submitted_at: float) -> None:
        self.key = key
        self.plan = plan
        self.account = account
        self.saved = Saved()
        self.state = SchedulerState.PENDING
        self.restart_count = 0
        self.nodes: tuple[Node, ...] = ()
        self.excluded: tuple[str, ...] = ()
        self.reason = ""
        self.submitted_at = submitted_at
        self.started_at = 0.0
        self.ended_at = 0.0
        self.exit_code: int | None = None
        self.signal: int | None = None
        self.allocation: Allocation | None = None
        self.step_max: int | None = None
        self.disk = Disk()
        """Its launchers' journal, in the job's folder."""
        self.attempts = 0
        """How many attempts its launchers have made."""
        self.epoch = 0
        self.priority = plan.priority
        self.view: JobView | None = None
        self.names: tuple[str, ...] = ()

    @property
    def attempt(self) -> Attempt | None:
        """The attempt that runs on its nodes, or ran there last."""
        return self.allocation.attempt if self.allocation is not None else None

    @property
    def is_over(self) -> bool:
        """Has it ended, as the scheduler sees it?"""
        return self.state in ENDED

    @property
    def want(self) -> int:
        """Nodes of its allocation."""
        return self.plan.nodes + self.plan.spares


class Scheduler:
    """See the module."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.jobs: dict[str, Job] = {}
        """By `str(key)`, in order of submission."""
        self.gone: list[Job] = []
        """Jobs whose id was used again."""
        self._due = False
        world.on_lost = self._lost
        world.on_registered = self._registered

    # --- people ---

    def submit(self, plan: JobPlan, generation: int = 1) -> Job:
        """An owner submits a job."""
        world = self.world
        key = JobKey(world.cluster, plan.id, generation)
        job = Job(key, plan, Account(str(key), plan.nodes, world.now()), world.now())
        self.jobs[str(key)] = job
        world.say("job_submitted", who="owner", job=str(key), detail=f"{plan.nodes} nodes")
        self.touch(job)
        self.look_soon()
        return job

    def running_on(self, node: Node) -> Job | None:
        """The job whose allocation holds the node."""
        job = self.jobs.get(node.job) if node.job else None
        return job if job is not None and job.state in RUNS else None

    def one_of(self, fault: Fault, *, queued: bool = False) -> Job | None:
        """One of the jobs with an end that run, or else are queued."""
        found = [
            job
            for job in self.jobs.values()
            if (job.state in RUNS) is not queued and not job.is_over and job.plan.work_s > 0.0
        ]
        return fault.picks(found) if found else None

    # --- views ---

    def touch(self, job: Job) -> None:
        """It may look different now."""
        job.view = None
        self.world.on_change()

    def view_of(self, job: Job) -> JobView:
        """The job as the scheduler shows it. The value is kept until the job changes."""
        if job.view is None:
            plan = job.plan
            spec = RecoverySpec(enabled=plan.recover, max_requeues=plan.max_requeues)
            job.view = JobView(
                key=job.key,
                name=f"train-{plan.id}",
                user=plan.user,
                partition="batch",
                state=job.state,
                restart_count=job.restart_count,
                nodes=job.names,
                excluded=job.excluded,
                want_nodes=job.want,
                exit_code=job.exit_code,
                signal=job.signal,
                reason=job.reason,
                lacks_nodes=job.reason == "Resources",
                recovery=spec,
                submitted_at=job.submitted_at,
                started_at=job.started_at,
                ended_at=job.ended_at,
            )
        return job.view

    def snapshot(self) -> WorldView:
        """All jobs and nodes."""
        world = self.world
        return WorldView(
            cluster=world.cluster,
            at=world.now(),
            jobs=tuple(self.view_of(job) for job in self.jobs.values()),
            nodes=tuple(node.view or world.view_of(node) for node in world.nodes.values() if not node.hidden),
        )

    # --- starting ---

    def look_soon(self) -> None:
        """Something may start: look, once, a moment later."""
        if not self._due:
            self._due = True
            self.world.later(0.05, self._look)

    def _look(self) -> None:
        self._due = False
        waiting = [job for job in self.jobs.values() if job.state is SchedulerState.PENDING]
        if not waiting:
            return
        free = [node for node in self.world.nodes.values() if node.takes_work and not node.job]
        for job in sorted(waiting, key=lambda one: (-one.priority, one.submitted_at, one.key)):
            excluded = set(job.excluded)
            good = [node for node in free if node.name not in excluded]
            want = job.want if len(good) >= job.want else job.plan.nodes
            if len(good) < want:
                if self.world.options.preempt and self._preempts(job, len(good), want):
                    return  # their nodes are free at the next look, a moment from now, and this job is the first then
                if job.reason != "Resources":
                    job.reason = "Resources"
                    self.touch(job)
                continue
            taken = {node.index for node in good[:want]}
            free = [node for node in free if node.index not in taken]
            self._start(job, tuple(good[:want]))

    def _preempts(self, job: Job, have: int, want: int) -> bool:
        """Take the nodes of running jobs of lower priority, the newest first, if that gives it as many as it needs."""
        lower = [one for one in self.jobs.values() if one.state in RUNS and one.priority < job.priority]
        excluded = set(job.excluded)
        victims: list[Job] = []
        for one in sorted(lower, key=lambda one: (one.priority, -one.started_at, one.key)):
            if have >= want:
                break
            fit = [node for node in one.nodes if node.takes_work and node.name not in excluded]
            if fit:
                victims.append(one)
                have += len(fit)
        if have < want:
            return False
        for one in victims:
            self.requeue(one, held=False, who="scheduler")
        return True

    def _start(self, job: Job, nodes: tuple[Node, ...]) -> None:
        now = self.world.now()
        job.state, job.nodes, job.started_at, job.reason = SchedulerState.RUNNING, nodes, now, ""
        job.names = tuple(node.name for node in nodes)
        job.ended_at, job.exit_code, job.signal = 0.0, None, None
        name = str(job.key)
        for node in nodes:
            node.job = name
        self.world.say("job_started", who="scheduler", job=str(job.key), nodes=job.names, detail=str(job.restart_count))
        job.allocation = self.allocation_for(job, nodes)
        job.allocation.begin()
        self.touch(job)

    def allocation_for(self, job: Job, nodes: tuple[Node, ...]) -> Allocation:
        """What runs on the nodes; `run.py` puts one with a launcher in its place."""
        return Allocation(self, job, nodes)

    # --- ending ---

    def over(
        self, job: Job, allocation: Allocation, state: SchedulerState, *, code: int | None, signal: int | None
    ) -> None:
        """The allocation ended by itself. Words of an earlier allocation change nothing."""
        if job.allocation is not allocation or job.state not in RUNS:
            return
        job.exit_code, job.signal = code, signal
        self._leave(job, state, f"exit {code if code is not None else ''} signal {signal or ''}")

    def _leave(self, job: Job, state: SchedulerState, why: str) -> None:
        """Its processes are gone, its nodes free."""
        allocation, job.allocation = job.allocation, None
        if allocation is not None:
            allocation.kill(why)
        name = str(job.key)
        for node in job.nodes:
            if node.job == name:
                node.job = ""
                if node.drained:
                    self.world.touch(node)
        job.nodes = ()
        job.state = state
        if state in ENDED:
            # Schedulers go on naming the nodes of a job that has ended.
            job.ended_at = self.world.now()
            self._close(job)
            self.world.say("job_ended", who="scheduler", job=str(job.key), detail=state.value)
        else:
            job.names = ()
        self.touch(job)
        self.look_soon()

    def _close(self, job: Job) -> None:
        if job.state is SchedulerState.COMPLETED:
            job.account.ledger.completed = True
        elif job.plan.resubmit_s > 0.0:
            self.world.later(job.plan.resubmit_s, lambda: self._resubmit(job))
            return
        if job.state in {SchedulerState.COMPLETED, SchedulerState.CANCELLED}:
            job.account.enter("", self.world.now())

    def _resubmit(self, job: Job) -> None:
        """Its owner finds it ended, for instance given up, and has it queued again."""
        if job.is_over and str(job.key) in self.jobs:
            self.world.counts["resubmitted"] += 1
            self.requeue(job, held=False, who="owner")

    def _lost(self, node: Node, fault: str) -> None:
        """A node stopped, booted, or was cut off under its job."""
        job = self.running_on(node)
        if job is None or job.allocation is None:
            return
        allocation = job.allocation
        allocation.lost(node, fault)
        self.world.later(self.world.options.down_s, lambda: self._node_fail(job, allocation, node))

    def _registered(self, node: Node) -> None:
        """A node that has booted runs no job any more, whatever was thought to be there, and takes the next one."""
        job = self.running_on(node)
        if job is not None and job.allocation is not None:
            job.reason = "NodeFail"
            self.over(job, job.allocation, SchedulerState.NODE_FAIL, code=None, signal=None)
        self.look_soon()

    def _node_fail(self, job: Job, allocation: Allocation, node: Node) -> None:
        """The node was given up under the job: the scheduler ends it."""
        if job.allocation is allocation and node.known_down and job.state in RUNS:
            job.reason = "NodeDown"
            self.over(job, allocation, SchedulerState.NODE_FAIL, code=None, signal=None)

    # --- commands, by Holdfast and by people; each says whether anything changed ---

    def requeue(self, job: Job, *, held: bool, who: str, order: str = "") -> bool:
        """Stop it if it runs, and put it back into the queue."""
        state = SchedulerState.HELD if held else SchedulerState.PENDING
        job.restart_count += 1
        job.reason = ""
        if job.account.phase == "":
            job.account.enter("queue", self.world.now())
        if job.state in RUNS:
            self._leave(job, state, f"requeued by {who}")
        else:
            job.state, job.names = state, ()
            self.touch(job)
            self.look_soon()
        job.exit_code, job.signal = None, None
        self.world.say("job_requeued", who=who, order=order, job=str(job.key), detail="held" if held else "pending")
        return True

    def hold(self, job: Job, *, who: str, order: str = "") -> bool:
        """Keep a job in the queue from starting. False when it runs, or is held already."""
        if job.state is not SchedulerState.PENDING:
            return False
        job.state = SchedulerState.HELD
        self.world.say("job_held", who=who, order=order, job=str(job.key))
        self.touch(job)
        return True

    def release(self, job: Job, *, who: str, order: str = "", step_max: int | None = None) -> bool:
        """Let a held job start."""
        if job.state is not SchedulerState.HELD:
            return False
        job.state, job.step_max = SchedulerState.PENDING, step_max
        self.world.say("job_released", who=who, order=order, job=str(job.key))
        self.touch(job)
        self.look_soon()
        return True

    def exclude(self, job: Job, nodes: Iterable[str], *, who: str, order: str = "") -> bool:
        """Keep the job off these nodes."""
        new = tuple(sorted(set(nodes)))
        if new == job.excluded:
            return False
        job.excluded = new
        self.world.say("job_excluded", who=who, order=order, job=str(job.key), nodes=new)
        self.touch(job)
        self.look_soon()
        return True

    def cancel(self, job: Job, *, who: str, order: str = "") -> bool:
        """End it for good."""
        if job.is_over:
            return False
        if job.state in RUNS:
            self._leave(job, SchedulerState.CANCELLED, f"cancelled by {who}")
        else:
            job.state, job.names, job.ended_at = SchedulerState.CANCELLED, (), self.world.now()
            self._close(job)
            self.touch(job)
            self.world.say("job_ended", who=who, order=order, job=str(job.key), detail="cancelled")
        if not order:
            self.world.say("operator", who=who, job=str(job.key), detail="cancel")
        return True

    def reuse_id(self, job: Job) -> Job:
        """Its owner cancels it; later the same id is a new job."""
        self.cancel(job, who="owner")
        del self.jobs[str(job.key)]
        self.gone.append(job)
        self.world.on_change()
        return self.submit(replace(job.plan, arrives_s=0.0), job.key.generation + 1)

"""The embedded scheduler's jobs: queue, allocation, ends, holds, exclusions, and requeues that end provably.

The daemon calls every method from its one loop and nodes report through `task_*` and `node_lost`. A job has one task
per node of its allocation. When a task ends badly (exit code, signal, lost node) the others are ended after the job's
`bad_exit_wait_s`, as `srun -K` does. A job's allocation is given up only when its last task is over.

Over means: its node said that no process is left; or the node is provably gone; or the node cannot be reached and the
job's lease has run out since it was asked to end, by which time the launcher there has killed its ranks itself.

Time: Unix seconds for what people see, the loop's clock for leases.
"""

from __future__ import annotations

import asyncio
import getpass
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from holdfast.adapters.local.nodes import LocalNode
from holdfast.adapters.local.protocol import (
    Cancel,
    Exclude,
    Hold,
    JobRequest,
    Release,
    RequeueHeldJob,
    Submit,
)
from holdfast.adapters.local.scheduler import Seat, Wish, plan
from holdfast.errors import NotFoundError, PermanentOrderError, RefusedError, TemporaryOrderError, UsageError
from holdfast.model.cluster import ENDED, JobKey, JobView, SchedulerState
from holdfast.model.records import RUNS
from holdfast.os.files import write_whole

HOLDFAST_HOLD = "holdfast"
"""Name of the hold that a requeue sets, in the place where a person's name stands otherwise."""


class Task(Struct, kw_only=True):
    """What runs on one node of a job's allocation."""

    node: str
    id: str
    pid: int = 0
    code: int | None = None
    sig: int | None = None
    ended: bool = False
    over: bool = False
    lost: str = ""
    """Evidence, when the task is over because its node is."""
    asked_at: float | None = None
    """Loop time at which it was first asked to end."""

    @property
    def bad(self) -> bool:
        """Ended otherwise than by exit code 0."""
        return self.ended and (self.code != 0 or bool(self.lost))


class Job(Struct, kw_only=True):
    """A job and its present allocation."""

    id: str
    spec: Submit
    folder: Path
    user: str
    submitted_at: float
    state: SchedulerState = SchedulerState.PENDING
    restart_count: int = 0
    holds: dict[str, str] = {}
    """Who holds it -> why."""
    excluded: tuple[str, ...] = ()
    """By Holdfast, besides the owner's."""
    tasks: dict[str, Task] = {}
    nodes: tuple[str, ...] = ()
    reason: str = ""
    lacks_nodes: bool = False
    exit_code: int | None = None
    sig: int | None = None
    started_at: float = 0.0
    ended_at: float = 0.0
    first_bad: str = ""
    cancelled: str = ""
    """Why it was cancelled."""
    requeue: bool = False
    """To be queued again and held as soon as its tasks are over."""
    restore_step_max: int | None = None
    notes: list[str] = []

    @property
    def running(self) -> bool:
        """It has an allocation."""
        return self.state in RUNS


class JobBook:
    """All jobs of an embedded cluster."""

    def __init__(
        self,
        *,
        cluster: str,
        folder: Path,
        nodes: Mapping[str, LocalNode],
        env: Mapping[str, str],
        changed: Callable[[], None],
    ) -> None:
        self.cluster = cluster
        self.folder = folder
        self.nodes = nodes
        self.env = env
        self._changed = changed
        self.jobs: dict[str, Job] = {}
        self._pulse = asyncio.Event()
        folder.mkdir(parents=True, exist_ok=True)
        self._next_id = 1 + max((int(p.name) for p in folder.iterdir() if p.name.isdigit()), default=0)

    def changed(self, job: Job | None = None) -> None:
        """Something is different: tell observers and whoever waits on tasks."""
        if job is not None:
            self._store(job)
        self._pulse.set()
        self._pulse = asyncio.Event()
        self._changed()

    def find(self, job_id: str) -> Job:
        """The job of this id. Raises NotFoundError."""
        job = self.jobs.get(job_id)
        if job is None:
            raise NotFoundError(f"there is no job {job_id[:40]}; `holdfast cluster status` lists them")
        return job

    # --- what people and orders ask for ---

    async def carry_out(self, request: JobRequest) -> str:
        """One request about one job."""
        match request:
            case Cancel():
                return self.cancel(request)
            case RequeueHeldJob():
                return await self._requeue_held(request)
            case Exclude():
                return self._exclude(request)
            case Release():
                return self._release(request)
            case Hold():
                return self._hold(request)
        raise UsageError(f"`{type(request).__name__}` is not handled")  # a request without a line above: a bug

    def submit(self, spec: Submit) -> Job:
        """Queue a job. Raises UsageError when it could never run."""
        if not spec.argv and not spec.script:
            raise UsageError("a job needs `argv` or `script`")
        if spec.nodes < 1 or spec.nodes > len(self.nodes):
            raise UsageError(
                f"`nodes` is {spec.nodes}, the cluster has {len(self.nodes)}: ask for 1 to {len(self.nodes)}"
            )
        unknown = sorted(set(spec.exclude) - set(self.nodes))
        if unknown:
            raise UsageError(f"`exclude` names {unknown[0]}, which is no node of this cluster")
        job_id = str(self._next_id)
        self._next_id += 1
        folder = self.folder / job_id
        (folder / "logs").mkdir(parents=True)
        if spec.script:
            script = folder / "script"
            script.write_text(spec.script, encoding="utf-8")
            script.chmod(0o755)
        job = Job(id=job_id, spec=spec, folder=folder, user=spec.user or getpass.getuser(), submitted_at=time.time())
        if spec.hold:
            job.holds[job.user] = "held at submission"
            job.state = SchedulerState.HELD
        self.jobs[job_id] = job
        self.changed(job)
        return job

    def cancel(self, request: Cancel) -> str:
        """End the job for good; already ended is fine."""
        job = self.find(request.job)
        if job.state in ENDED:
            return f"already {job.state}"
        if job.running and request.only_waiting:
            return "it runs and goes on"
        job.cancelled = request.why or "cancelled"
        job.requeue = False
        if job.running:
            self._end_tasks(job, job.spec.stop_grace_s)
        else:
            self._finish(job, SchedulerState.CANCELLED)
        return "cancelled"

    def _hold(self, request: Hold) -> str:
        job = self.find(request.job)
        if job.running or job.state in ENDED:
            raise RefusedError(f"job {job.id} is {job.state}: only a waiting job can be held")
        job.holds[request.who or job.user] = request.why
        job.state = SchedulerState.HELD
        self.changed(job)
        return "held"

    def _exclude(self, request: Exclude) -> str:
        job = self.find(request.job)
        if job.state in ENDED:
            raise PermanentOrderError(f"job {job.id} is {job.state}")
        job.excluded = tuple(sorted(set(request.nodes)))
        self.changed(job)
        return f"excluded: {', '.join(self._all_excluded(job)) or 'no node'}"

    def _release(self, request: Release) -> str:
        """Lift Holdfast's hold, or with `who` every hold, and fence the older attempts' epochs."""
        job = self.find(request.job)
        if job.state in ENDED:
            raise PermanentOrderError(f"job {job.id} is {job.state}: there is nothing to release")
        if job.requeue:
            raise TemporaryOrderError(f"job {job.id} is still being stopped for its requeue")
        if job.state is not SchedulerState.HELD:
            return f"already {job.state}"
        if request.who:
            job.holds.clear()
        else:
            others = {name: why for name, why in job.holds.items() if name != HOLDFAST_HOLD}
            if others:
                name, why = next(iter(others.items()))
                raise PermanentOrderError(f"job {job.id} is held by {name}{f': {why}' if why else ''}")
            job.holds.pop(HOLDFAST_HOLD, None)
        self._raise_epoch(job, request.epoch)
        job.restore_step_max = request.restore_step_max
        job.state = SchedulerState.PENDING
        job.reason, job.lacks_nodes = "", False
        self.changed(job)
        return "released"

    async def _requeue_held(self, request: RequeueHeldJob) -> str:
        """Stop the job, queue it again and hold it. Returns when its old attempt is provably over.

        Raises:
            PermanentOrderError: a person cancelled it, or it has completed.
        """
        job = self.find(request.job)
        if job.restart_count > request.restart_count and job.state is not SchedulerState.PENDING:
            return f"already requeued: its restart count is {job.restart_count}"
        if job.cancelled or job.state in {SchedulerState.CANCELLED, SchedulerState.COMPLETED}:
            raise PermanentOrderError(f"job {job.id} is {'cancelled' if job.cancelled else job.state}")
        job.holds[HOLDFAST_HOLD] = request.why
        if job.state in {SchedulerState.PENDING, SchedulerState.HELD}:
            # It waits already and nothing of it runs: holding it is all that is left to do.
            job.state = SchedulerState.HELD
            self.changed(job)
            return "it was waiting and is held"
        job.requeue = True
        if job.running:
            self._end_tasks(job, job.spec.stop_grace_s if request.grace_s is None else request.grace_s)
            await self.until_over(job)
        if job.cancelled:
            raise PermanentOrderError(f"job {job.id} was cancelled meanwhile")
        if job.requeue:
            self._queue_again(job)
        return "; ".join(job.notes) or "stopped and held"

    # --- the queue ---

    def schedule(self) -> None:
        """Start what can start."""
        wishes = [
            Wish(
                job=job.id,
                nodes=job.spec.nodes,
                queued_at=job.submitted_at,
                priority=job.spec.priority,
                excluded=frozenset(self._all_excluded(job)),
            )
            for job in self.jobs.values()
            if job.state is SchedulerState.PENDING
        ]
        if not wishes:
            return
        held = {node for job in self.jobs.values() if job.running for node in job.nodes}
        seats = [
            Seat(node=n.name, free=n.reachable and not n.drained and not n.tasks and n.name not in held, spare=n.spare)
            for n in self.nodes.values()
        ]
        decided = plan(wishes, seats)
        for job_id, reason in decided.waits.items():
            job = self.jobs[job_id]
            if job.reason != reason:
                job.reason, job.lacks_nodes = reason, job_id in decided.lack_nodes
                self.changed(job)
        for job_id, names in decided.starts:
            self._start(self.jobs[job_id], names)

    def _start(self, job: Job, names: tuple[str, ...]) -> None:
        job.state = SchedulerState.RUNNING
        job.nodes = names
        job.reason, job.first_bad = "", ""
        job.exit_code = job.sig = None
        job.started_at, job.ended_at = time.time(), 0.0
        job.notes = []
        job.tasks = {name: Task(node=name, id=f"{job.id}.{job.restart_count}") for name in names}
        argv = [str(job.folder / "script"), *job.spec.argv] if job.spec.script else list(job.spec.argv)
        for rank, name in enumerate(names):
            node = self.nodes[name]
            env = {**node.environment(), **self.env, **job.spec.env, **self._job_environment(job, node, rank)}
            cwd = job.spec.cwd or str(job.folder)
            node.start_task(job.tasks[name].id, argv=argv, env=env, cwd=cwd, out=str(job.folder / "output.log"))
        self.changed(job)

    def _job_environment(self, job: Job, node: LocalNode, rank: int) -> dict[str, str]:
        env = {
            "HOLDFAST_JOB_ID": job.id,
            "HOLDFAST_CLUSTER": self.cluster,
            "HOLDFAST_GENERATION": "1",
            "HOLDFAST_JOB_DIR": str(job.folder),
            "HOLDFAST_JOB_NAME": job.spec.name,
            "HOLDFAST_PARTITION": "local",
            "HOLDFAST_NODE": node.name,
            "HOLDFAST_NODE_DIR": str(node.folder),
            "HOLDFAST_NODE_RANK": str(rank),
            "HOLDFAST_NODELIST": ",".join(job.nodes),
            "HOLDFAST_NODE_ADDRESS": "127.0.0.1",
            "HOLDFAST_RESTART_COUNT": str(job.restart_count),
            "HOLDFAST_LEASE_S": str(job.spec.lease_s),
            "HOLDFAST_DRILL_OK": "1" if job.spec.drill_ok else "0",
        }
        if job.restore_step_max is not None:
            env["HOLDFAST_RESTORE_STEP"] = str(job.restore_step_max)
        return env

    # --- what nodes report ---

    def task_started(self, node: str, task: str, pid: int, at: float) -> None:  # noqa: ARG002 - NodeEvents' shape
        """A task's main process runs."""
        found = self._task(node, task)
        if found is not None:
            found[1].pid = pid
            self.changed()

    def task_ended(self, node: str, task: str, code: int | None, sig: int | None, at: float) -> None:
        """A task's main process has ended."""
        found = self._task(node, task)
        if found is None or found[1].ended:
            return
        job, ours = found
        ours.ended, ours.code, ours.sig = True, code, sig
        self._note_end(job, ours, at)

    def task_gone(self, node: str, task: str) -> None:
        """No process of the task is left."""
        found = self._task(node, task)
        if found is not None:
            found[1].over = True
            self._settle(found[0])
        self.changed()

    def node_lost(self, node: str, evidence: str) -> None:
        """All that ran on the node is provably gone."""
        for job in self.jobs.values():
            task = job.tasks.get(node)
            if job.running and task is not None and not task.over:
                task.over = True
                if not task.ended:
                    task.ended, task.lost = True, evidence
                    self._note_end(job, task, time.time())
                self._settle(job)

    def _task(self, node: str, task: str) -> tuple[Job, Task] | None:
        job = self.jobs.get(task.partition(".")[0])
        ours = job.tasks.get(node) if job is not None else None
        return (job, ours) if job is not None and ours is not None and ours.id == task else None

    def _note_end(self, job: Job, task: Task, at: float) -> None:
        if task.bad and not job.first_bad:
            job.first_bad = task.node
            job.exit_code, job.sig = task.code, task.sig
            how = f"signal {task.sig}" if task.sig else f"node lost: {task.lost}" if task.lost else f"exit {task.code}"
            job.reason = job.reason or f"{how} on {task.node}"
            job.state = SchedulerState.COMPLETING
            job.ended_at = at
            if job.spec.bad_exit_wait_s is not None:
                asyncio.get_running_loop().call_later(job.spec.bad_exit_wait_s, self._end_rest, job, task.id)
        self.changed(job)
        self._settle(job)

    def _end_rest(self, job: Job, task_id: str) -> None:
        if job.running and any(task.id == task_id for task in job.tasks.values()):
            self._end_tasks(job, job.spec.stop_grace_s)

    # --- ending ---

    def _end_tasks(self, job: Job, grace_s: float) -> None:
        now = asyncio.get_running_loop().time()
        job.state = SchedulerState.COMPLETING
        for task in job.tasks.values():
            if task.over:
                continue
            if task.asked_at is None:
                task.asked_at = now
                asyncio.get_running_loop().call_later(job.spec.lease_s + 0.01, self._lease_over, job, task)
            self.nodes[task.node].end_task(task.id, grace_s)
        self.changed(job)
        self._settle(job)

    def _lease_over(self, job: Job, task: Task) -> None:
        """The lease has run out since the task was asked to end: with its node out of reach, that ends the wait."""
        if task.over or not job.running or job.tasks.get(task.node) is not task:
            return
        node = self.nodes.get(task.node)
        if node is not None and node.reachable:
            asyncio.get_running_loop().call_later(0.25, self._lease_over, job, task)
            return
        task.over = task.ended = True
        task.lost = task.lost or "lease over"
        job.notes.append(f"{task.node} is out of reach; its lease of {job.spec.lease_s:g} s has ended")
        self._settle(job)
        self.changed(job)

    async def until_over(self, job: Job) -> None:
        """Return when the job has given its allocation up."""
        while job.running:
            await self._pulse.wait()

    def _settle(self, job: Job) -> None:
        """Give the allocation up when every task is over."""
        if not job.running or not all(task.over for task in job.tasks.values()):
            return
        tasks = list(job.tasks.values())
        if job.cancelled:
            self._finish(job, SchedulerState.CANCELLED)
        elif job.requeue:
            self._queue_again(job)
        elif any(task.lost for task in tasks):
            self._finish(job, SchedulerState.NODE_FAIL)
        elif any(task.bad for task in tasks):
            self._finish(job, SchedulerState.FAILED)
        else:
            job.exit_code = 0
            self._finish(job, SchedulerState.COMPLETED)

    def _finish(self, job: Job, state: SchedulerState) -> None:
        job.state = state
        job.ended_at = time.time()
        if job.cancelled:
            job.reason = job.cancelled
        self.changed(job)

    def _queue_again(self, job: Job) -> None:
        job.requeue = False
        job.restart_count += 1
        job.state = SchedulerState.HELD
        job.reason = f"held by holdfast: {job.holds.get(HOLDFAST_HOLD, '')}".removesuffix(": ")
        job.nodes = ()
        job.tasks = {}
        job.ended_at = time.time()
        self.changed(job)

    # --- views and files ---

    def _all_excluded(self, job: Job) -> tuple[str, ...]:
        return tuple(sorted({*job.spec.exclude, *job.excluded}))

    def _raise_epoch(self, job: Job, epoch: int) -> None:
        """The job's fencing epoch only grows; older attempts can no longer write checkpoints."""
        path = job.folder / "epoch"
        try:
            present = int(path.read_text(encoding="ascii"))
        except (FileNotFoundError, ValueError):
            present = 0
        if epoch > present:
            write_whole(path, f"{epoch}\n".encode())

    def view(self, job: Job) -> JobView:
        """The job as an observer sees it."""
        by = ", ".join(f"{name}{f': {why}' if why else ''}" for name, why in job.holds.items())
        return JobView(
            key=JobKey(cluster=self.cluster, id=job.id),
            name=job.spec.name,
            user=job.user,
            partition="local",
            state=job.state,
            restart_count=job.restart_count,
            nodes=job.nodes,
            excluded=self._all_excluded(job),
            want_nodes=job.spec.nodes,
            exit_code=job.exit_code,
            signal=job.sig,
            reason=f"held by {by}" if job.state is SchedulerState.HELD and by else job.reason,
            lacks_nodes=job.state is SchedulerState.PENDING and job.lacks_nodes,
            recovery=job.spec.recovery,
            drill_ok=job.spec.drill_ok,
            job_dir=str(job.folder),
            submitted_at=job.submitted_at,
            started_at=job.started_at,
            ended_at=job.ended_at,
        )

    def _store(self, job: Job) -> None:
        facts = {"view": self.view(job), "argv": job.spec.argv, "lease_s": job.spec.lease_s}
        try:
            write_whole(job.folder / "job.json", msgspec.json.format(msgspec.json.encode(facts), indent=2))
        except OSError as error:
            # The file is for people; a full disk or a folder that somebody removed must not stop the scheduler.
            sys.stderr.write(f"holdfast cluster: job.json of job {job.id} is out of date: {error}\n")

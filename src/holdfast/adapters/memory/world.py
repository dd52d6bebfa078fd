"""A world in memory for tests: a scheduler whose jobs and nodes are plain values, repairs and notices that are kept.

Orders have "ensure" semantics as in real adapters, and each change of the world is counted per order id in `effects`:
an order done twice would show there. A test scripts it by `set_job`, `set_node`, `fail_next`, `gate`.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict, deque
from collections.abc import Iterable

import msgspec

from holdfast.errors import HoldfastError, LinkError, PermanentOrderError
from holdfast.model import orders as o
from holdfast.model.cluster import JobKey, JobView, NodeView, SchedulerState, Unseen, WorldView
from holdfast.model.records import RUNS
from holdfast.model.wire import kind_of
from holdfast.ports import Clock

REASON_PREFIX = "[holdfast]"


class MemoryOrchestrator:
    """A `ports.Orchestrator` over values in memory."""

    name = "memory"

    def __init__(
        self, clock: Clock, *, cluster: str = "test", jobs: Iterable[JobView] = (), nodes: Iterable[NodeView] = ()
    ) -> None:
        self._clock = clock
        self.cluster = cluster
        self.jobs: dict[JobKey, JobView] = {job.key: job for job in jobs}
        self.nodes: dict[str, NodeView] = {node.name: node for node in nodes}
        self.effects: Counter[str] = Counter()
        """How often each order (by id) changed the world. More than once is a fault of the caller."""
        self.asked: list[o.AnyOrder] = []
        """Every order that was handed in, repetitions too."""
        self.refused: frozenset[str] = frozenset()
        """Kinds of orders that `can` denies."""
        self.unreadable = ""
        """Set: `observe` raises LinkError with this text."""
        self.complete = True
        self.unseen: tuple[Unseen, ...] = ()
        self._failures: defaultdict[str, deque[HoldfastError]] = defaultdict(deque)
        self._gates: dict[str, asyncio.Event] = {}
        self._change = asyncio.Event()
        self._machines = 0

    # --- the script ---

    def set_job(self, job: JobView) -> None:
        """The job is now like this."""
        self.jobs[job.key] = job
        self._change.set()

    def set_node(self, node: NodeView) -> None:
        """The node is now like this."""
        self.nodes[node.name] = node
        self._change.set()

    def remove(self, what: JobKey | str) -> None:
        """The job or node is gone."""
        if isinstance(what, str):
            del self.nodes[what]
        else:
            del self.jobs[what]
        self._change.set()

    def fail_next(self, kind: str, *errors: HoldfastError) -> None:
        """The next orders of this kind raise these errors, one each."""
        self._failures[kind].extend(errors)

    def gate(self, kind: str) -> asyncio.Event:
        """Orders of this kind wait, before they have any effect, until the returned event is set."""
        return self._gates.setdefault(kind, asyncio.Event())

    # --- the port ---

    async def observe(self) -> WorldView:
        """One snapshot."""
        if self.unreadable:
            raise LinkError(self.unreadable)
        return WorldView(
            cluster=self.cluster,
            at=self._clock.now(),
            jobs=tuple(self.jobs.values()),
            nodes=tuple(self.nodes.values()),
            complete=self.complete,
            unseen=self.unseen,
        )

    async def wait_change(self, timeout_s: float) -> bool:
        """True when the script or an order changed something since the last call."""
        cancel = self._clock.call_later(timeout_s, self._change.set)
        started = self._clock.monotonic()
        try:
            await self._change.wait()
        finally:
            cancel()
        self._change.clear()
        return self._clock.monotonic() - started < timeout_s

    def can(self, order: o.AnyOrder) -> bool:
        """All orders about nodes, and those about jobs that a scheduler understands."""
        known = isinstance(order, o.NodeOrder | o.RequeueHeld | o.SetExcluded | o.ReleaseJob | o.GiveUp)
        return known and kind_of(order) not in self.refused

    async def execute(self, order: o.AnyOrder) -> str:
        """See `ports.Orchestrator.execute`."""
        kind = kind_of(order)
        self.asked.append(order)
        if kind in self._gates:
            await self._gates[kind].wait()
        if self._failures[kind]:
            raise self._failures[kind].popleft()
        changed = self._carry_out(order)
        if changed:
            self.effects[order.id] += 1
            self._change.set()
        return "done" if changed else "was so already"

    def _carry_out(self, order: o.AnyOrder) -> bool:
        if isinstance(order, o.JobOrder):
            job = self.jobs.get(order.job)
            if job is None:
                raise PermanentOrderError(f"no job {order.job}")
            new_job = self._job_after(job, order)
            self.jobs[job.key] = new_job
            return new_job != job
        if isinstance(order, o.NodeOrder):
            node = self.nodes.get(order.node)
            if node is None:
                raise PermanentOrderError(f"no node {order.node}")
            if order.instance_id and order.instance_id != node.instance_id and not isinstance(order, o.ReplaceNode):
                raise PermanentOrderError(f"{order.node} is another machine now")
            new_node = self._node_after(node, order)
            self.nodes[node.name] = new_node
            return new_node != node
        raise PermanentOrderError(f"the scheduler has no way to {kind_of(order)}")

    def _job_after(self, job: JobView, order: o.JobOrder) -> JobView:
        change = msgspec.structs.replace
        if isinstance(order, o.RequeueHeld):
            if job.restart_count > order.restart_count:
                return change(job, state=SchedulerState.HELD) if job.state is SchedulerState.PENDING else job
            return change(job, state=SchedulerState.HELD, restart_count=order.restart_count + 1, nodes=())
        if isinstance(order, o.SetExcluded):
            return change(job, excluded=tuple(sorted({*job.excluded, *order.nodes})))
        if isinstance(order, o.ReleaseJob):
            return change(job, state=SchedulerState.PENDING) if job.state is SchedulerState.HELD else job
        if isinstance(order, o.GiveUp):
            return change(job, state=SchedulerState.CANCELLED, nodes=()) if order.cancel else job
        raise PermanentOrderError(f"the scheduler has no way to {kind_of(order)}")

    def _node_after(self, node: NodeView, order: o.NodeOrder) -> NodeView:
        change = msgspec.structs.replace
        if isinstance(order, o.QuarantineNode | o.RetireNode):
            return node if node.drained else change(node, drained=True, drain_reason=f"{REASON_PREFIX} {order.why}")
        if isinstance(order, o.ReturnNode):
            if not node.drained:
                return node
            if not node.drain_reason.startswith(REASON_PREFIX):
                raise PermanentOrderError(f"{node.name} was drained by someone else: {node.drain_reason}")
            return change(node, drained=False, drain_reason="")
        if isinstance(order, o.RebootNode):
            return node if order.boot_id != node.boot_id else change(node, boot_id=self._next("boot"), alive=True)
        if isinstance(order, o.ReplaceNode):
            if order.instance_id and order.instance_id != node.instance_id:
                return node
            return change(node, instance_id=self._next("machine"), boot_id=self._next("boot"), alive=True)
        return node

    def _next(self, what: str) -> str:
        self._machines += 1
        return f"{what}-new-{self._machines}"

    def start(self, key: JobKey, nodes: tuple[str, ...]) -> None:
        """The scheduler starts a pending job on these nodes."""
        job = self.jobs[key]
        if job.state in RUNS:
            return
        started_at = self._clock.now()
        self.set_job(msgspec.structs.replace(job, state=SchedulerState.RUNNING, nodes=nodes, started_at=started_at))


class MemoryRepair:
    """A `ports.Repair` that hands chosen kinds of orders to a world and keeps what it was asked."""

    def __init__(self, world: MemoryOrchestrator, *kinds: str) -> None:
        self._world = world
        self._kinds = frozenset(kinds)
        self.asked: list[o.AnyOrder] = []

    def can(self, order: o.AnyOrder) -> bool:
        """Only the chosen kinds."""
        return kind_of(order) in self._kinds

    async def execute(self, order: o.AnyOrder) -> str:
        """See `ports.Orchestrator.execute`."""
        self.asked.append(order)
        return await self._world.execute(order)


class MemoryNotifier:
    """A `ports.Notifier` that keeps what it was given."""

    def __init__(self) -> None:
        self.sent: list[o.Notify] = []
        self.failures: deque[HoldfastError] = deque()

    async def send(self, notice: o.Notify) -> None:
        """Keep the notice, or raise the next scripted failure."""
        if self.failures:
            raise self.failures.popleft()
        self.sent.append(notice)

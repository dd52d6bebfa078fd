"""A Kubernetes cluster as an orchestrator: looks, waits for changes, hands orders to those who carry them out.

`holdfast controller --cluster kubernetes:[CONTEXT]` runs it. Fulfils `ports.Orchestrator`; the orders themselves are in
`job_orders.py` and `node_orders.py`, the copies that it looks at in `looks.py`. How time passes: changes are pushed by
the API server; a look at rest costs nothing but a small request every ten seconds that proves that the server answers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import structlog
from msgspec.structs import replace

from holdfast.adapters.kubernetes import node_orders, patches
from holdfast.adapters.kubernetes.api import ApiError, KubeApi
from holdfast.adapters.kubernetes.asks import Vocabulary
from holdfast.adapters.kubernetes.check_pod import CheckPods
from holdfast.adapters.kubernetes.job_orders import JobOrders
from holdfast.adapters.kubernetes.looks import Looks
from holdfast.adapters.kubernetes.memory import Memory
from holdfast.adapters.kubernetes.node_orders import NodeOrders
from holdfast.adapters.kubernetes.objects import (
    GENERATION,
    Node,
    Pod,
    Workload,
    is_unmarked,
    job_view,
    node_view,
)
from holdfast.adapters.kubernetes.pod_logs import PodLogs
from holdfast.adapters.kubernetes.put_away import NAMESPACE
from holdfast.adapters.kubernetes.settings import KubernetesConfig
from holdfast.adapters.tasks import end
from holdfast.errors import LinkError, PermanentOrderError, TemporaryOrderError
from holdfast.model import orders as o
from holdfast.model.cluster import JobKey, JobView, NodeView, SchedulerState, Unseen, WorldView, job_kind

MARK = "health labels"
MARK_AGAIN_S = 5.0
"""Labels that could not be written are tried again after this long."""
CHECK_MIN_S = 60.0
"""A check pod's limit is that of a repair less this, and never shorter than this."""
_ENDED_BADLY = frozenset({SchedulerState.FAILED, SchedulerState.TIMEOUT})
"""Ends that the pods' own words may explain; a lost node has its own evidence, and its kubelet does not answer."""
_log = structlog.get_logger("holdfast.kubernetes")


class KubernetesOrchestrator:
    """See the module. `folder` keeps what must be remembered; `context` and `own` are as `KubeApi.connect` has them."""

    name = "kubernetes"

    def __init__(self, config: KubernetesConfig, context: str = "", folder: Path | None = None, own: str = "") -> None:
        self.config = config
        self._connect = partial(KubeApi.connect, context, config.kubeconfig, own)
        self.memory = Memory(folder)
        self.pod_logs: PodLogs | None = None
        """Reads what failed pods said last; None: nobody wants to know."""
        self.may_mark: Callable[[str], bool] | None = None
        """May nodes of this group be labelled as well before anything befell them? None: nobody has said so."""
        self._unmarked: list[tuple[str, str]] = []
        """Nodes of whose health nothing was said yet: name and group."""
        self._mark_after = 0.0
        self._words = Vocabulary(prefix=self.config.prefix)
        self._looks: Looks | None = None
        self._jobs: JobOrders | None = None
        self._nodes: NodeOrders | None = None
        self._checks: CheckPods | None = None
        self._world: WorldView | None = None
        self._seen = -1
        self._begun: set[tuple[str, int]] = set()
        """Jobs (uid, restarts) all of whose pods have been seen running."""
        self._views: dict[str, tuple[Node, tuple[str, ...], NodeView]] = {}
        self._chores: dict[str, asyncio.Task[None]] = {}
        self._connecting = asyncio.Lock()

    @property
    def api(self) -> KubeApi:
        """The way to the API server. Raises LinkError before the first look."""
        if self._looks is None:
            raise LinkError("the API server has not been looked at yet")
        return self._looks.api

    async def connect(self) -> Looks:
        """Read the kubeconfig and make the copies; they are empty until `observe`.

        Raises:
            ConfigError: see `KubeApi.connect`.
        """
        async with self._connecting:
            if self._looks is None:
                api = await self._connect()
                looks = Looks(api, namespace=api.namespace or NAMESPACE)
                self._jobs = JobOrders(looks, find=self.find)
                self._nodes = NodeOrders(looks, self._words, self.config)
                if self.config.check_template:
                    # Its own word comes before the executor's limit, which would cut it off without one.
                    limit_s = max(CHECK_MIN_S, self.config.repair_limit_s - CHECK_MIN_S)
                    self._checks = CheckPods(looks, self.config.check_template, limit_s=limit_s)
                self._looks = looks
            return self._looks

    @property
    def cluster(self) -> str:
        """Name in job keys."""
        return self.config.cluster or self.api.cluster

    # --- looking ---

    async def observe(self) -> WorldView:
        """See ports.Orchestrator."""
        looks = await self.connect()
        await looks.fresh()
        seen = looks.version
        if self._world is None or seen != self._seen:
            self._world, self._seen = self._view(looks), seen
        self._mark_if_due()
        return replace(self._world, at=time.time())

    def _view(self, looks: Looks) -> WorldView:
        pods = looks.pods_by_workload()
        unseen = looks.unseen()
        jobs: list[JobView] = []
        busy: dict[str, list[str]] = {}
        for job in looks.workloads():
            mine = pods.get(job.uid, [])
            if job.kind.name.lower() not in unseen:
                jobs.append(self._job(job, mine))
            for pod in mine:
                if pod.live and pod.spec.node_name:
                    busy.setdefault(pod.spec.node_name, []).append(job.id)
        nodes = tuple(
            self._node(node, tuple(sorted(set(busy.get(node.metadata.name, ())))))
            for node in looks.nodes.items.values()
        )
        for gone in self._views.keys() - looks.nodes.items.keys():
            del self._views[gone]
        replacing = self._nodes.kept.all() if self._nodes is not None else {}
        nodes += self._away(looks, replacing)
        self._unmarked = self._well(looks, nodes, replacing)
        return WorldView(
            cluster=self.cluster,
            at=time.time(),
            jobs=tuple(jobs),
            nodes=nodes,
            # A job that is put away is nowhere else.
            complete=not looks.put_away.broken,
            unseen=tuple(Unseen(kind, why) for kind, why in unseen.items()),
        )

    def _away(self, looks: Looks, replacing: Mapping[str, Node]) -> tuple[NodeView, ...]:
        """Nodes that are being replaced and have no Node just now: they have not left the cluster."""
        return tuple(
            replace(node_view(node, jobs=(), words=self._words), alive=False, state_text="being replaced")
            for name, node in replacing.items()
            if looks.node(name) is None
        )

    def _job(self, job: Workload, pods: list[Pod]) -> JobView:
        generation = self.memory.generation(job)
        if generation > 1 and GENERATION not in job.annotations and not job.put_away:
            self._chore(f"job {job.id}", self._write_generation(job, generation))
        mark = (job.uid, job.restarts)
        view = job_view(job, pods, JobKey(self.cluster, job.id, generation), begun=mark in self._begun)
        if view.state is SchedulerState.RUNNING:
            self._begun.add(mark)
        elif not any(pod.live for pod in pods):
            self._begun.discard(mark)
        if view.state in _ENDED_BADLY and not self._is_read(job, view.key, pods):
            return replace(view, state=SchedulerState.COMPLETING)
        return view

    def _is_read(self, job: Workload, key: JobKey, pods: list[Pod]) -> bool:
        """Is what its failed pods said known? Its end is told only then."""
        if self.pod_logs is None or self._looks is None:
            return True
        return self.pod_logs.told_of(self.api, job, key, pods, then=self._looks.changed)

    def _node(self, node: Node, jobs: tuple[str, ...]) -> NodeView:
        known = self._views.get(node.metadata.uid)
        if known is not None and known[0] is node and known[1] == jobs:
            return known[2]
        view = node_view(node, jobs=jobs, words=self._words)
        self._views[node.metadata.uid] = node, jobs, view
        if self._nodes is not None and self._nodes.left_over(node):
            self._chore(f"node {node.metadata.name}", self._tidy(node))
        return view

    def find(self, key: JobKey) -> Workload | None:
        """The job of this key, None when there is none or its name is another job's by now."""
        if self._looks is None:
            return None
        job = next((job for job in self._looks.workloads() if job.id == key.id), None)
        return job if job is not None and self.memory.generation(job) == key.generation else None

    async def wait_change(self, timeout_s: float) -> bool:
        """See ports.Orchestrator."""
        looks = await self.connect()
        return await looks.wait(self._seen, timeout_s)

    # --- chores: what is ours and must be as it is, without an order ---

    def _chore(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        if name in self._chores:
            work.close()
            return
        task = self._chores[name] = asyncio.create_task(self._quietly(name, work), name=name)
        task.add_done_callback(lambda _: self._chores.pop(name, None))

    async def _quietly(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except (ApiError, LinkError, TemporaryOrderError, PermanentOrderError) as error:
            _log.info("left for the next look", chore=name, why=str(error))

    async def _tidy(self, node: Node) -> None:
        """Somebody uncordoned a node of ours: their word wins, and our taint must not stand against it."""
        if self._nodes is not None:
            await self._nodes.put_back(node.metadata.name, uncordon=False)

    def _well(self, looks: Looks, views: Sequence[NodeView], replacing: Mapping[str, Node]) -> list[tuple[str, str]]:
        """Those to mark. Not a machine that takes another's place: it is proven first."""
        found = {node.metadata.name for node in looks.nodes.items.values() if is_unmarked(node, self._words)}
        return [(view.name, view.group) for view in views if view.name in found - replacing.keys()]

    def _mark_if_due(self) -> None:
        """Jobs may ask by node selector for nodes that are `Schedulable`: those that nothing ever befell are, too."""
        may = self.may_mark
        if may is None or self._nodes is None or MARK in self._chores or time.monotonic() < self._mark_after:
            return
        if names := [name for name, group in self._unmarked if may(group)]:
            self._unmarked = []
            self._chore(MARK, self._mark(self._nodes, names))

    async def _mark(self, nodes: NodeOrders, names: Sequence[str]) -> None:
        try:
            await nodes.mark_well(names)
        except (ApiError, LinkError, TemporaryOrderError, PermanentOrderError):
            self._mark_after, self._seen = time.monotonic() + MARK_AGAIN_S, -1
            raise

    async def _write_generation(self, job: Workload, generation: int) -> None:
        body = patches.annotated(job, {GENERATION: str(generation)})
        looks = await self.connect()
        looks.take(job, await self.api.patch(job.path, body))

    # --- orders ---

    def can(self, order: o.AnyOrder) -> bool:
        """See ports.Orchestrator."""
        if isinstance(order, o.ValidateNode):
            return bool(self.config.check_template)
        if isinstance(order, o.NodeOrder):
            return node_orders.can(order, self.config)
        return isinstance(order, o.RequeueHeld | o.SetExcluded | o.ReleaseJob | o.GiveUp)

    async def execute(self, order: o.AnyOrder) -> str:
        """See ports.Orchestrator."""
        if not self.can(order):
            raise PermanentOrderError(f"Kubernetes does not carry out {type(order).__name__}")
        try:
            looks = await self.connect()
            await looks.fresh()
            if isinstance(order, o.JobOrder) and self._jobs is not None:
                raise_if_unseen(order.job, looks)
                return await self._jobs.execute(order)
            if isinstance(order, o.ValidateNode) and self._nodes is not None and self._checks is not None:
                return await self._check(order, self._nodes, self._checks)
            if isinstance(order, o.NodeOrder) and self._nodes is not None:
                if self._checks is not None:
                    await self._checks.clear(order.node)
                return await self._nodes.execute(order)
        except LinkError as error:
            raise TemporaryOrderError(str(error)) from error
        except ApiError as error:
            raise error.as_order_error() from error
        raise PermanentOrderError(f"Kubernetes does not carry out {type(order).__name__}")

    async def _check(self, order: o.ValidateNode, nodes: NodeOrders, checks: CheckPods) -> str:
        try:
            await nodes.in_checks(order)
        except ApiError as error:
            # That its mark cannot be set is no word about the node.
            raise TemporaryOrderError(str(error.as_order_error())) from error
        return await checks.execute(order)

    async def close(self) -> None:
        """Stop watching and close the connections."""
        await end(self._chores.values())
        if self.pod_logs is not None:
            await self.pod_logs.close()
        if self._looks is not None:
            await self._looks.close()
            await self._looks.api.close()
        self._looks = None


def raise_if_unseen(key: JobKey, looks: Looks) -> None:
    """A job of a kind that cannot be read now is neither there nor gone. Raises TemporaryOrderError."""
    why = looks.unseen().get(job_kind(key))
    if why is None and looks.put_away.broken and all(job.id != key.id for job in looks.workloads()):
        why = looks.put_away.broken
    if why is not None:
        raise TemporaryOrderError(f"{key.id} cannot be read now: {why or 'its kind is not served'}")

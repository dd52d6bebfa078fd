"""The lab's kubelets: pods that were bound to its nodes run here as real processes, and their ends are reported.

One object in the keeper's loop stands for the kubelets of all nodes. It has each node reported (`kube_nodes`),
starts a bound pod's containers under the node's first process, writes their output as `var/log/pods/...` below the
node's folder, reports exit codes and signals, starts containers again as `restartPolicy` says, and ends deleted pods by
SIGTERM and, after their grace, SIGKILL. A node that is cut off or switched off says nothing at all. The API server may
be away for as long as it likes: what is to be said waits. Time: beats each `beat_s`; all else follows events.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any

import structlog

from holdfast.adapters.kubernetes.api import ApiError, KubeApi
from holdfast.adapters.kubernetes.looks import Store
from holdfast.adapters.local import node_init
from holdfast.adapters.local.nodes import LocalNode
from holdfast.errors import HoldfastError, LinkError, UsageError
from holdfast.lab import kube_pod, kube_token
from holdfast.lab.kube_nodes import RETRY_S, NodeReports, stamp
from holdfast.lab.kube_pod import Json, Run

BEAT_S = 1.0
BACK_OFF_S = 0.5
BACK_OFF_MAX_S = 20.0
"""A container that keeps ending waits so long before it is started again (a real kubelet: 10 s to 300 s)."""
_log = structlog.get_logger("holdfast.lab")


class PodRun:
    """A pod that was bound to a node of ours."""

    def __init__(self, pod: Json, node: str) -> None:
        self.pod = pod
        self.node = node
        self.runs: list[Run] = [Run(name=c["name"], waits="ContainerCreating") for c in pod["spec"]["containers"]]
        self.started = stamp()
        self.begun = False
        self.ending = False
        self.lost = ""
        self.instance = ""
        """Boot of the node under which it was begun."""

    @property
    def uid(self) -> str:
        """The pod's own."""
        return str(self.pod["metadata"]["uid"])

    @property
    def path(self) -> str:
        """Where the API has it."""
        about = self.pod["metadata"]
        return f"/api/v1/namespaces/{about['namespace']}/pods/{about['name']}"


class Kubelets:
    """See the module. `nodes` is the keeper's fleet; it tells by `task_*`, `node_lost` and `nodes_changed`."""

    def __init__(self, api: KubeApi, nodes: Mapping[str, LocalNode], *, gpus: int, logs_port: int) -> None:
        self._api = api
        self._nodes = nodes
        self._store: Store[Json] = Store(api, "/api/v1/pods", dict, self._pods_changed)
        self._pods: dict[str, PodRun] = {}
        self._tasks: dict[str, tuple[PodRun, Run]] = {}
        self._work = Background()
        self._again: set[str] = set()
        self._reports = NodeReports(api, gpus=gpus, logs_port=logs_port)
        self._beat = asyncio.Event()

    async def run(self) -> None:
        """Beat, watch and work until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._beats())
            group.create_task(self._store.run())

    # --- what the fleet says ---

    def nodes_changed(self) -> None:
        """A node came, went, was cut or healed."""
        self._beat.set()
        for run in self._pods.values():
            self._touch(run)

    def task_ended(self, task: str, code: int | None, sig: int | None) -> None:
        """A container's main process has ended; what it left behind is being killed."""
        found = self._tasks.get(task)
        if found is not None:
            found[1].code, found[1].signal, found[1].ended = code, sig, stamp()

    def task_gone(self, task: str) -> None:
        """Nothing of the container runs any more."""
        found = self._tasks.pop(task, None)
        if found is None:
            return
        pod, run = found
        run.task = ""
        if not run.over:
            run.code, run.ended = 137, stamp()
        self._touch(pod)
        if not pod.ending and kube_pod.again(pod.pod, run):
            self._work.start(f"again:{task}", self._start_again(pod, run))

    def node_lost(self, node: str) -> None:
        """All that ran there is gone; nobody is told, since the kubelet went with it."""
        for task, (pod, run) in list(self._tasks.items()):
            if pod.node == node:
                del self._tasks[task]
                run.task = ""
        self._reports.forget(node)
        self._beat.set()

    def log_of(self, namespace: str, name: str, container: str) -> Path | None:
        """The newest log of a container on a node that can be reached; None when there is none."""
        for run in self._pods.values():
            about, node = run.pod["metadata"], self._nodes.get(run.node)
            if (about["namespace"], about["name"]) == (namespace, name) and node is not None and node.reachable:
                folder = self._log_folder(run, node, container)
                return max(folder.glob("*.log"), key=lambda path: int(path.stem), default=None)
        return None

    @staticmethod
    def _log_folder(pod: PodRun, node: LocalNode, container: str) -> Path:
        about = pod.pod["metadata"]
        return node.folder / "var/log/pods" / f"{about['namespace']}_{about['name']}_{pod.uid}" / container

    @staticmethod
    def _volumes(pod: PodRun, node: LocalNode) -> Path:
        return node.folder / "var/lib/kubelet/pods" / pod.uid / "volumes"

    # --- nodes ---

    async def _beats(self) -> None:
        while True:
            self._beat.clear()
            for node in list(self._nodes.values()):
                self._work.start(f"node:{node.name}", self._attend(node))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BEAT_S):
                    await self._beat.wait()
            await asyncio.sleep(0.02)

    async def _attend(self, node: LocalNode) -> None:
        if await self._reports.attend(node):
            for run in self._pods.values():
                self._touch(run)

    # --- pods ---

    def _pods_changed(self) -> None:
        for uid in self._pods.keys() - self._store.items.keys():
            self._forget(uid)
        for uid, pod in self._store.items.items():
            if uid not in self._pods or self._pods[uid].pod is not pod:
                self._see(pod)

    def _see(self, pod: Json) -> None:
        node = pod["spec"].get("nodeName", "")
        uid = pod["metadata"]["uid"]
        known = self._pods.get(uid)
        if known is not None:
            known.pod = pod
            if pod["metadata"].get("deletionTimestamp"):
                self._touch(known)
        elif node in self._nodes:
            self._pods[uid] = run = PodRun(pod, node)
            phase = (pod.get("status") or {}).get("phase", "Pending")
            if phase in {"Succeeded", "Failed"}:
                run.begun, run.ending = True, True
            elif phase != "Pending":
                run.begun = True  # an earlier keeper began it; none of that runs any more
            self._touch(run)

    def _forget(self, uid: str) -> None:
        """The pod's object is gone, by force perhaps: end what runs of it."""
        run = self._pods.pop(uid, None)
        if run is None:
            return
        run.ending = True
        for container in run.runs:
            if container.task and run.node in self._nodes:
                self._nodes[run.node].end_task(container.task, 0.0)

    def _touch(self, run: PodRun) -> None:
        """Have the pod attended to; once more if that is under way."""
        key = f"pod:{run.uid}"
        if self._work.is_at(key):
            self._again.add(run.uid)
        else:
            self._work.start(key, self._attend_pod(run))

    async def _attend_pod(self, run: PodRun) -> None:
        while True:
            self._again.discard(run.uid)
            node = self._nodes.get(run.node)
            if node is None or not node.reachable or not self._reports.has(node):
                return  # no kubelet there just now; `nodes_changed` and registration come back to it
            try:
                await self._sync(run, node)
            except LinkError:
                await asyncio.sleep(RETRY_S)
                continue
            except ApiError as error:
                if not error.gone:
                    _log.warning("a pod could not be reported", pod=run.path, why=str(error))
                    await asyncio.sleep(RETRY_S)
            if run.uid not in self._again:
                return

    async def _sync(self, run: PodRun, node: LocalNode) -> None:
        deleted = bool(run.pod["metadata"].get("deletionTimestamp"))
        if deleted:
            run.ending = True
            for container in run.runs:
                if container.task and container.code is None and container.signal is None:
                    node.end_task(container.task, kube_pod.grace_of(run.pod))
            if any(container.task for container in run.runs):
                return
            await self._say(run)
            await self._api.delete(run.path, uid=run.uid, grace_s=0)
            return
        if not run.begun:
            try:
                await kube_token.write(self._api, run.pod, self._volumes(run, node))
            except ApiError as error:
                for container in run.runs:
                    container.waits, container.words = "CreateContainerConfigError", str(error)
                await self._say(run)
                await asyncio.sleep(RETRY_S)
                if run.uid in self._pods:
                    self._again.add(run.uid)
                return
            run.begun, run.instance = True, node.boot_id
            for container in run.runs:
                self._start(run, node, container)
        elif run.instance != node.boot_id and not run.ending:
            run.lost = "the node booted anew under it"
            run.ending = True
        elif run.ending and not run.lost:
            return
        await self._say(run)

    async def _say(self, run: PodRun) -> None:
        body = kube_pod.status(run.pod, run.runs, started=run.started, lost=run.lost)
        body["metadata"] = {"uid": run.uid}
        await self._api.patch(f"{run.path}/status", body)

    def _start(self, pod: PodRun, node: LocalNode, run: Run) -> None:
        container = next(c for c in pod.pod["spec"]["containers"] if c["name"] == run.name)
        about = pod.pod["metadata"]
        task = f"{about['name']}.{pod.uid}.{run.name}.{run.restarts}"
        folder = self._log_folder(pod, node, run.name)
        folder.mkdir(parents=True, exist_ok=True)
        places = kube_token.mounts(pod.pod, container, self._volumes(pod, node))
        try:
            own = kube_pod.environment(pod.pod, container)
            argv = [kube_token.moved(word, places) for word in kube_pod.command(container, {**own})]
        except UsageError as error:
            run.waits, run.words = "CreateContainerError", str(error)
            return
        run.waits, run.words, run.code, run.signal, run.ended = "", "", None, None, ""
        run.started, run.task = stamp(), task
        self._tasks[task] = (pod, run)
        cwd = container.get("workingDir") or str(node.folder / "tmp")
        node.start_task(
            task,
            argv=[sys.executable, "-I", "-S", node_init.__file__, "--pod", *argv],
            env={**node.environment(), **{k: kube_token.moved(v, places) for k, v in own.items()}},
            cwd=cwd if Path(cwd).is_dir() else "/",
            out=str(folder / f"{run.restarts}.log"),
        )

    async def _start_again(self, pod: PodRun, run: Run) -> None:
        pause_s = min(BACK_OFF_S * 2.0 ** min(run.restarts, 10), BACK_OFF_MAX_S)
        run.last = kube_pod.terminated(run)
        run.waits, run.words = "CrashLoopBackOff", f"back-off {pause_s:g} s"
        self._touch(pod)
        await asyncio.sleep(pause_s)
        node = self._nodes.get(pod.node)
        if pod.ending or pod.uid not in self._pods or node is None or node.boot_id != pod.instance:
            return
        run.restarts += 1
        self._start(pod, node, run)
        self._touch(pod)

    async def close(self) -> None:
        """End what is under way."""
        await self._work.close()


class Background:
    """Work in tasks of its own, one at a time for each key."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(self, key: str, work: Coroutine[Any, Any, None]) -> None:
        """Have it done, unless the same is being done."""
        if self.is_at(key):
            work.close()
            return
        task = self._tasks[key] = asyncio.create_task(_guarded(work), name=key)
        task.add_done_callback(lambda done: self._tasks.pop(key, None) if self._tasks.get(key) is done else None)

    def is_at(self, key: str) -> bool:
        """Is it being done? Work that has ended looks at nothing any more, also before its callback has run."""
        task = self._tasks.get(key)
        return task is not None and not task.done()

    async def close(self) -> None:
        """End what is under way."""
        for task in list(self._tasks.values()):
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)


async def _guarded(work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except HoldfastError as error:
        _log.warning("a kubelet's work failed", why=str(error))

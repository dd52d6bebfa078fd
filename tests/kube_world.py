"""A real Kubernetes with Holdfast's adapter on it, for tests: the lab, the orchestrator, waits with deadlines.

Built on `kube_fixture`. Used by the contract suite and by the tests of jobs and nodes on Kubernetes.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.adapters.kubernetes.client import KubernetesOrchestrator
from holdfast.adapters.kubernetes.objects import DRAIN_REASON
from holdfast.adapters.kubernetes.settings import KubernetesConfig
from holdfast.adapters.local.node_init import process_table
from holdfast.adapters.local.processes import environment_of
from holdfast.lab.kube_lab import KubeLab
from holdfast.model.cluster import JobKey, JobView, NodeView, WorldView
from kube_fixture import JOBS, PODS, PYTORCH, admin

VERB = """\
#!{python} -IS
import json, socket, sys
with socket.socket(socket.AF_UNIX) as link:
    link.settimeout(60)
    link.connect({sock!r})
    link.sendall(json.dumps({{"op": {verb!r}, "node": sys.argv[-1]}}).encode() + b"\\n")
    sys.exit(not json.loads(link.makefile().readline())["ok"])
"""
SLEEP = ["sleep", "1000"]
LIMIT_S = 120.0
NOBODY = {"reboot_program": (), "replace_program": ()}
"""No program of the site repairs its nodes."""
_names = itertools.count(1)


def program(lab: KubeLab, verb: str) -> tuple[str, ...]:
    """A site's program that reboots or replaces a node of the lab."""
    path = lab.folder / f"{verb}-node"
    path.write_text(VERB.format(python=sys.executable, sock=f"{lab.folder}/cluster.sock", verb=verb))
    path.chmod(0o755)
    return (str(path),)


def orchestrator_of(lab: KubeLab, folder: Path, **settings: Any) -> KubernetesOrchestrator:
    """The adapter on this lab; what it remembers is kept in `folder`."""
    programs = {"reboot_program": program(lab, "reboot"), "replace_program": program(lab, "replace")}
    wanted = {**programs, "repair_limit_s": 60.0, **settings}
    return KubernetesOrchestrator(KubernetesConfig(kubeconfig=str(lab.kubeconfig), **wanted), folder=folder)


def template(
    command: list[str], *, exclude: tuple[str, ...] = (), policy: str = "Never", grace_s: int = 5, **env: str
) -> dict[str, Any]:
    """A pod template that takes a whole node."""
    container = {
        "name": "main",
        "image": "none",
        "command": command,
        "env": [{"name": name, "value": value} for name, value in env.items()],
        "resources": {"limits": {"nvidia.com/gpu": "8"}},
    }
    spec: dict[str, Any] = {
        "restartPolicy": policy,
        "terminationGracePeriodSeconds": grace_s,
        "containers": [container],
    }
    if exclude:
        wish = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": list(exclude)}
        terms = {"nodeSelectorTerms": [{"matchExpressions": [wish]}]}
        spec["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    return {"spec": spec}


def batch_job(name: str, pod: dict[str, Any], *, nodes: int = 1, **annotations: str) -> dict[str, Any]:
    """A Job of so many pods."""
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "annotations": annotations},
        "spec": {"parallelism": nodes, "completions": nodes, "backoffLimit": 0, "template": pod},
    }


def pytorch_job(name: str, pod: dict[str, Any], *, nodes: int = 1, **annotations: str) -> dict[str, Any]:
    """A PyTorchJob of a master and workers."""
    replicas = {"Master": {"replicas": 1, "restartPolicy": "Never", "template": pod}}
    if nodes > 1:
        replicas["Worker"] = {"replicas": nodes - 1, "restartPolicy": "Never", "template": pod}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name, "annotations": annotations},
        "spec": {"pytorchReplicaSpecs": replicas},
    }


class KubeWorld:
    """The contract suite's world: a lab and the orchestrator on it; jobs are of one kind."""

    def __init__(self, lab: KubeLab, folder: Path, *, kind: str = "PyTorchJob", **settings: Any) -> None:
        self.lab = lab
        self.kind = kind
        self.orchestrator = orchestrator_of(lab, folder, **settings)

    async def submit(
        self, *, nodes: int = 1, exclude: tuple[str, ...] = (), command: list[str] = SLEEP, **notes: str
    ) -> JobKey:
        name = f"job-{next(_names)}"
        mark = {"LAB_JOB": self._mark(f"default.{self.kind.lower()}.{name}")}
        make, path = (pytorch_job, PYTORCH) if self.kind == "PyTorchJob" else (batch_job, JOBS)
        async with admin(self.lab) as api:
            await api.create(path, make(name, template(command, exclude=exclude, **mark), nodes=nodes, **notes))
        world = await self.until(lambda w: any(job.name == name for job in w.jobs), f"{name} is seen")
        return next(job.key for job in world.jobs if job.name == name)

    async def drain_as_admin(self, node: str, reason: str) -> None:
        async with admin(self.lab) as api:
            body = {"metadata": {"annotations": {DRAIN_REASON: reason}}, "spec": {"unschedulable": True}}
            await api.patch(f"/api/v1/nodes/{node}", body)
        await self.until_node(node, lambda view: view.drained)

    async def processes(self, job: JobKey) -> int:
        return sum(environment_of(pid).get("LAB_JOB") == self._mark(job.id) for pid in process_table())

    async def pods(self, job: JobKey) -> list[dict[str, Any]]:
        """The job's own pods, by the name of their owner: of any life of the job, and of no other job."""
        name = job.id.rpartition(".")[2]
        async with admin(self.lab) as api:
            found = (await api.list_all(PODS))[0]
        return [pod for pod in found if any(o["name"] == name for o in pod["metadata"].get("ownerReferences") or [])]

    def _mark(self, job_id: str) -> str:
        """Of this lab alone: a lab that runs in parallel has jobs of the same names."""
        return f"{self.lab.folder}:{job_id}"

    async def lose_scheduler(self) -> None:
        await self.orchestrator.observe()
        await asyncio.to_thread(self.lab.stop, "kube-apiserver")

    async def until(self, holds: Callable[[WorldView], object], what: str, limit_s: float = LIMIT_S) -> WorldView:
        """Look until `holds(world)`; fails the test after `limit_s`."""
        deadline = time.monotonic() + limit_s
        while True:
            seen = await self.orchestrator.observe()
            if holds(seen):
                return seen
            left = deadline - time.monotonic()
            assert left > 0, f"not within {limit_s} s: {what}\n{seen}"
            await self.orchestrator.wait_change(min(left, 1.0))

    async def until_job(self, key: JobKey, holds: Callable[[JobView], object], limit_s: float = LIMIT_S) -> JobView:
        seen = await self.until(lambda world: (job := job_in(world, key)) and holds(job), f"job {key}", limit_s)
        found = job_in(seen, key)
        assert found is not None
        return found

    async def until_node(self, name: str, holds: Callable[[NodeView], object], limit_s: float = LIMIT_S) -> NodeView:
        seen = await self.until(lambda world: holds(node_in(world, name)), f"node {name}", limit_s)
        return node_in(seen, name)


def job_in(world: WorldView, key: JobKey) -> JobView | None:
    return next((job for job in world.jobs if job.key == key), None)


def node_in(world: WorldView, name: str) -> NodeView:
    return next(node for node in world.nodes if node.name == name)

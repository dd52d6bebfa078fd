"""A small operator for PyTorchJob, for tests and drills: pods with the real operator's names, labels and variables.

What it does of the real one (Kubeflow training-operator, v1): a pod for each replica, `NAME-master-0` and
`NAME-worker-0...`, owned by the job; the labels below; MASTER_ADDR, MASTER_PORT, WORLD_SIZE, RANK and the PET_ ones; a
deleted pod is made again; a failed one is made again when `restartPolicy` is `ExitCode` and its code is above 127, and
fails the job otherwise; `OnFailure` and `Always` are left to the kubelet; `runPolicy.suspend` deletes the pods,
`cleanPodPolicy` and `backoffLimit` hold; conditions Created, Running, Restarting, Succeeded, Failed, Suspended.
Pods are made from the template as it is now. Time: it follows watches, and looks at everything every few seconds.
"""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import structlog

from holdfast.adapters.kubernetes.api import ApiError, KubeApi
from holdfast.adapters.kubernetes.looks import Store
from holdfast.errors import LinkError
from holdfast.lab.kube_nodes import stamp

Json = dict[str, Any]
JOBS = "/apis/kubeflow.org/v1/pytorchjobs"
LOOK_S = 5.0
SOON_S = 0.02
PORT = 23456
_log = structlog.get_logger("holdfast.lab")


class Operator:
    """See the module."""

    def __init__(self, api: KubeApi) -> None:
        self._api = api
        self._news = asyncio.Event()
        query = {"labelSelector": "training.kubeflow.org/operator-name"}
        self._jobs: Store[Json] = Store(api, JOBS, dict, self._news.set)
        self._pods: Store[Json] = Store(api, "/api/v1/pods", dict, self._news.set, query=query)

    async def run(self) -> None:
        """Work until cancelled. While PyTorchJob is not served here, look for it now and then."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._jobs.run())
            group.create_task(self._pods.run())
            group.create_task(self._work())

    async def _work(self) -> None:
        while True:
            self._news.clear()
            for job in list(self._jobs.items.values()):
                try:
                    await self._sync(job)
                except (LinkError, ApiError) as error:
                    if isinstance(error, LinkError) or not (error.conflict or error.gone):
                        _log.warning("a PyTorchJob waits", job=job["metadata"]["name"], why=str(error))
            try:
                async with asyncio.timeout(LOOK_S):
                    await self._news.wait()
                await asyncio.sleep(SOON_S)
            except TimeoutError:
                pass

    async def _sync(self, job: Json) -> None:
        if job["metadata"].get("deletionTimestamp"):
            return  # the garbage collector takes its pods
        status = job.get("status") or {}
        if state_of(status) in {"Succeeded", "Failed"}:
            return
        mine = self._of(job)
        policy = job["spec"].get("runPolicy") or {}
        if policy.get("suspend"):
            for pod in mine.values():
                await self._delete(pod)
            await self._mark(job, "Suspended", "PyTorchJobSuspended")
            return
        wanted = {name: pod for name, pod in pods_of(job).items() if name not in mine}
        for pod in wanted.values():
            await self._api.create(f"/api/v1/namespaces/{job['metadata']['namespace']}/pods", pod)
        await self._judge(job, mine, policy)

    def _of(self, job: Json) -> dict[str, Json]:
        uid = job["metadata"]["uid"]
        return {
            pod["metadata"]["name"]: pod
            for pod in self._pods.items.values()
            if any(owner["uid"] == uid for owner in pod["metadata"].get("ownerReferences") or [])
        }

    async def _delete(self, pod: Json) -> None:
        about = pod["metadata"]
        if not about.get("deletionTimestamp"):
            path = f"/api/v1/namespaces/{about['namespace']}/pods/{about['name']}"
            await self._api.delete(path, uid=about["uid"])

    async def _judge(self, job: Json, mine: dict[str, Json], policy: Json) -> None:
        phases = {name: (pod.get("status") or {}).get("phase", "Pending") for name, pod in mine.items()}
        kinds = job["spec"]["pytorchReplicaSpecs"]
        for name, pod in mine.items():
            if phases[name] == "Failed" and not pod["metadata"].get("deletionTimestamp"):
                kind = pod["metadata"]["labels"]["training.kubeflow.org/replica-type"]
                replica = next(spec for key, spec in kinds.items() if key.lower() == kind)
                again = replica.get("restartPolicy", "OnFailure") == "ExitCode" and exit_code(pod) > 127
                restarts = int((job.get("status") or {}).get("restarts", 0))
                if again and restarts < policy.get("backoffLimit", 1 << 30):
                    await self._delete(pod)
                    await self._mark(job, "Restarting", "PyTorchJobRestarting", restarts=restarts + 1)
                else:
                    for other in mine.values():
                        if phases[other["metadata"]["name"]] in {"Pending", "Running"}:
                            await self._delete(other)
                    await self._mark(
                        job, "Failed", "PyTorchJobFailed", f"{name} failed with exit code {exit_code(pod)}"
                    )
                return
        first = f"{job['metadata']['name']}-master-0"
        if phases.get(first) == "Succeeded" or (phases and set(phases.values()) == {"Succeeded"}):
            await self._mark(job, "Succeeded", "PyTorchJobSucceeded")
        elif "Running" in phases.values():
            await self._mark(job, "Running", "PyTorchJobRunning")
        else:
            await self._mark(job, "Created", "PyTorchJobCreated")

    async def _mark(self, job: Json, kind: str, reason: str, words: str = "", *, restarts: int | None = None) -> None:
        status = job.get("status") or {}
        if state_of(status) == kind and restarts is None:
            return
        now = stamp()
        about = {
            "type": kind,
            "status": "True",
            "reason": reason,
            "message": words or reason,
            "lastTransitionTime": now,
        }
        kept = [
            {**one, "status": "False"} if one["type"] in {"Running", "Restarting", "Suspended"} else one
            for one in status.get("conditions") or []
            if one["type"] != kind
        ]
        body: Json = {"status": {"conditions": [*kept, {**about, "lastUpdateTime": now}], "replicaStatuses": {}}}
        if not status.get("startTime"):
            body["status"]["startTime"] = now
        if kind in {"Succeeded", "Failed"}:
            body["status"]["completionTime"] = now
        path = f"/apis/kubeflow.org/v1/namespaces/{job['metadata']['namespace']}/pytorchjobs/{job['metadata']['name']}"
        fresh = await self._api.patch(f"{path}/status", body)
        fresh["status"]["restarts"] = restarts if restarts is not None else status.get("restarts", 0)
        self._jobs.take(fresh)


def state_of(status: Json) -> str:
    """The newest condition that holds."""
    true = [one["type"] for one in status.get("conditions") or [] if one["status"] == "True"]
    return str(true[-1]) if true else ""


def exit_code(pod: Json) -> int:
    """The main container's exit code; 0 when it has none."""
    for container in (pod.get("status") or {}).get("containerStatuses") or []:
        ended = (container.get("state") or {}).get("terminated")
        if ended:
            return int(ended.get("exitCode", 0))
    return 0


def pods_of(job: Json) -> dict[str, Json]:
    """Every pod that the job should have, by name."""
    about, replicas = job["metadata"], job["spec"]["pytorchReplicaSpecs"]
    order = sorted(replicas, key=lambda kind: kind != "Master")
    world = sum(int(replicas[kind].get("replicas", 1)) for kind in order)
    made: dict[str, Json] = {}
    rank = 0
    for kind in order:
        for index in range(int(replicas[kind].get("replicas", 1))):
            pod = _pod(job, kind, index, rank, world)
            made[f"{about['name']}-{kind.lower()}-{index}"] = pod
            rank += 1
    return made


def _pod(job: Json, kind: str, index: int, rank: int, world: int) -> Json:
    about, replica = job["metadata"], job["spec"]["pytorchReplicaSpecs"][kind]
    template = copy.deepcopy(replica["template"])
    spec = template["spec"]
    policy = replica.get("restartPolicy", "OnFailure")
    spec["restartPolicy"] = "Never" if policy == "ExitCode" else policy
    labels = {
        "training.kubeflow.org/job-name": about["name"],
        "training.kubeflow.org/operator-name": "pytorchjob-controller",
        "training.kubeflow.org/replica-type": kind.lower(),
        "training.kubeflow.org/replica-index": str(index),
        **({"training.kubeflow.org/job-role": "master"} if kind == "Master" else {}),
    }
    variables = {
        "PYTHONUNBUFFERED": "1",
        "MASTER_PORT": str(PORT),
        "MASTER_ADDR": f"{about['name']}-master-0",
        "WORLD_SIZE": str(world),
        "RANK": str(rank),
        "PET_NNODES": str(world),
        "PET_NODE_RANK": str(rank),
        "PET_MASTER_ADDR": f"{about['name']}-master-0",
        "PET_MASTER_PORT": str(PORT),
    }
    for container in spec["containers"]:
        own = container.setdefault("env", [])
        given = {entry["name"] for entry in own}
        own += [{"name": name, "value": value} for name, value in variables.items() if name not in given]
    head = template.get("metadata") or {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{about['name']}-{kind.lower()}-{index}",
            "namespace": about["namespace"],
            "labels": {**(head.get("labels") or {}), **labels},
            "annotations": head.get("annotations") or {},
            "ownerReferences": [
                {
                    "apiVersion": "kubeflow.org/v1",
                    "kind": "PyTorchJob",
                    "name": about["name"],
                    "uid": about["uid"],
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "spec": spec,
    }

"""Operators of JobSet, TrainJob and MPIJob, as far as the adapter can tell them from the real ones.

    async with operators(lab): ...

Child objects carry the real ones' names, labels and owners; a suspended job has none.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import holdfast.lab
from holdfast.adapters.kubernetes.api import ApiError, KubeApi
from holdfast.adapters.kubernetes.objects import KINDS
from holdfast.errors import LinkError
from holdfast.lab.kube_keeper import install_crds
from holdfast.lab.kube_lab import KubeLab
from kube_fixture import JOBS, admin

Json = dict[str, Any]
MORE = Path(holdfast.lab.__file__).with_name("crds") / "more"
PODS = "/api/v1/namespaces/default/pods"
PATHS = {name: KINDS[name].path(KINDS[name].versions[0], "default") for name in ("MPIJob", "JobSet", "TrainJob")}
LOOK_S = 0.1


def owned(by: Json, kind: str) -> list[Json]:
    about = by["metadata"]
    found = {"apiVersion": f"{KINDS[kind].group}/{KINDS[kind].versions[0]}", "kind": kind, "controller": True}
    return [{**found, "name": about["name"], "uid": about["uid"], "blockOwnerDeletion": True}]


def manifest(kind: str, name: str, pod: Json, *, nodes: int, **about: Any) -> Json:
    """A job of this kind whose pods are made of this template."""
    head = {
        "apiVersion": f"{KINDS[kind].group}/{KINDS[kind].versions[0]}",
        "kind": kind,
        "metadata": {"name": name} | about,
    }
    if kind == "MPIJob":
        replicas = {
            "Launcher": {"replicas": 1, "restartPolicy": "Never", "template": pod},
            "Worker": {"replicas": nodes - 1, "restartPolicy": "Never", "template": pod},
        }
        return head | {"spec": {"slotsPerWorker": 8, "mpiReplicaSpecs": replicas}}
    if kind == "JobSet":
        inner = {"parallelism": nodes, "completions": nodes, "backoffLimit": 0, "template": pod}
        return head | {"spec": {"replicatedJobs": [{"name": "node", "replicas": 1, "template": {"spec": inner}}]}}
    container = pod["spec"]["containers"][0]
    trainer = {"numNodes": nodes, "command": container["command"], "env": container["env"]}
    return head | {"spec": {"runtimeRef": {"name": "torch"}, "trainer": trainer}}


async def install(lab: KubeLab) -> None:
    async with admin(lab) as api:
        for file in sorted(MORE.glob("*.json")):
            await install_crds(api, file)


@contextlib.asynccontextmanager
async def operators(lab: KubeLab, runtime: Json) -> AsyncIterator[None]:
    """`runtime`: the pod template of the training runtime `torch`. What is left of the kinds goes at the end."""
    async with admin(lab) as api:
        task = asyncio.create_task(_work(api, runtime))
        try:
            yield
            assert not task.done()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            for path in PATHS.values():
                await api.call("DELETE", path, body={"kind": "DeleteOptions", "propagationPolicy": "Background"})


async def _work(api: KubeApi, runtime: Json) -> None:
    while True:
        with contextlib.suppress(ApiError, LinkError):
            for job in await _listed(api, PATHS["TrainJob"]):
                await _train_job(api, job, runtime)
            for job in await _listed(api, PATHS["JobSet"]):
                await _job_set(api, job)
            for job in await _listed(api, PATHS["MPIJob"]):
                await _mpi_job(api, job)
        await asyncio.sleep(LOOK_S)


async def _listed(api: KubeApi, path: str) -> list[Json]:
    return [one for one in (await api.list_all(path))[0] if not one["metadata"].get("deletionTimestamp")]


async def _create(api: KubeApi, path: str, body: Json) -> None:
    with contextlib.suppress(ApiError):
        await api.create(path, body)


async def _train_job(api: KubeApi, job: Json, runtime: Json) -> None:
    spec, name = job["spec"], job["metadata"]["name"]
    pod = copy.deepcopy(runtime)
    pod["spec"]["containers"][0] |= {key: spec["trainer"][key] for key in ("command", "env")}
    for patch in spec.get("runtimePatches") or []:
        for part in patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]:
            if part["name"] == "node":
                pod["spec"] |= part["template"]["spec"]["template"]["spec"]
    made = manifest("JobSet", name, pod, nodes=spec["trainer"]["numNodes"], ownerReferences=owned(job, "TrainJob"))
    made["spec"]["suspend"] = bool(spec.get("suspend"))
    await _create(api, PATHS["JobSet"], made)
    await api.patch(f"{PATHS['JobSet']}/{name}", {"spec": {"suspend": made["spec"]["suspend"]}})


async def _job_set(api: KubeApi, job: Json) -> None:
    name = job["metadata"]["name"]
    labels = {"jobset.sigs.k8s.io/jobset-name": name}
    for part in job["spec"]["replicatedJobs"]:
        for index in range(part.get("replicas", 1)):
            child = f"{name}-{part['name']}-{index}"
            if job["spec"].get("suspend"):
                with contextlib.suppress(ApiError):
                    await api.delete(f"{JOBS}/{child}")
                continue
            inner = copy.deepcopy(part["template"]["spec"])
            inner["template"].setdefault("metadata", {})["labels"] = labels
            about = {"name": child, "labels": labels, "ownerReferences": owned(job, "JobSet")}
            await _create(api, JOBS, {"metadata": about, "spec": inner})


async def _mpi_job(api: KubeApi, job: Json) -> None:
    name = job["metadata"]["name"]
    suspended = (job["spec"].get("runPolicy") or {}).get("suspend")
    for kind, replica in job["spec"]["mpiReplicaSpecs"].items():
        for index in range(replica["replicas"]):
            child = f"{name}-{kind.lower()}-{index}"
            if suspended:
                with contextlib.suppress(ApiError):
                    await api.delete(f"{PODS}/{child}")
                continue
            labels = {"training.kubeflow.org/job-name": name, "training.kubeflow.org/replica-type": kind.lower()}
            about = {"name": child, "labels": labels, "ownerReferences": owned(job, "MPIJob")}
            pod = copy.deepcopy(replica["template"])
            pod["spec"]["restartPolicy"] = "Never"
            await _create(api, PODS, {"metadata": about, "spec": pod["spec"]})

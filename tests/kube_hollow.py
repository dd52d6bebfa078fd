"""Hollow nodes and pods for a Kubernetes lab: objects that look alive, without a process behind them, in any number.

The benchmark of the adapter at rest and the soak test at scale use it. `HollowCluster.fill` makes nodes and pods that
belong to nobody; `keep` is the kubelet of all hollow nodes: what is bound there runs at once, what is deleted goes at
once. Times are those of the API server's answers; nothing is awaited longer than a request.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any

from holdfast.adapters.kubernetes.api import STRATEGIC, ApiError, KubeApi
from holdfast.errors import LinkError
from holdfast.lab.kube_nodes import READY

Json = dict[str, Any]
AT_ONCE = 48
AGAIN_S = 0.5
BEGAN = "2026-01-01T00:00:00Z"
CONTAINER: Json = {"name": "main", "image": "registry/training:1", "command": ["train"]}


def node_name(number: int) -> str:
    """`gpu-0007`."""
    return f"gpu-{number:04d}"


def running() -> Json:
    """Status of a pod that runs."""
    about = {"name": "main", "image": "x", "imageID": "", "ready": True, "restartCount": 0}
    state = {"state": {"running": {"startedAt": BEGAN}}}
    return {"status": {"phase": "Running", "startTime": BEGAN, "containerStatuses": [about | state]}}


class HollowCluster:
    """See the module.

    Args:
        api: the administrator's way in.
        nodes: how many hollow nodes.
    """

    def __init__(self, api: KubeApi, nodes: int) -> None:
        self._api = api
        self._nodes = nodes
        self._gate = asyncio.Semaphore(AT_ONCE)
        self.pods: dict[str, Json] = {}
        """Every pod that `keep` has seen, by uid: its metadata."""

    async def fill(self, pods: int, owners: list[Json] | None = None) -> None:
        """Make the nodes, and pods that run on them, in turn.

        Args:
            pods: how many.
            owners: owner references given out in turn; none: they belong to nobody.
        """
        await asyncio.gather(*(self.add_node(number) for number in range(self._nodes)))
        await asyncio.gather(
            *(self._pod(number, owners[number % len(owners)] if owners else None) for number in range(pods))
        )

    async def add_node(self, number: int, machine: int = 0) -> None:
        """Make a node that is ready; `machine` counts those that have had its name."""
        async with self._gate:
            name = node_name(number)
            about = {"name": name, "labels": {"kubernetes.io/hostname": name}}
            await self._api.create("/api/v1/nodes", {"metadata": about, "spec": {"providerID": f"{name}-{machine}"}})
            await self.boot(number, machine=machine)

    async def boot(self, number: int, *, machine: int = 0, times: int = 0) -> None:
        """Have its status say that it is ready, and has booted so many times."""
        info = {"bootID": f"b{number}.{machine}.{times}", "machineID": f"m{number}", "systemUUID": f"s{number}"}
        info |= dict.fromkeys(("kernelVersion", "osImage", "containerRuntimeVersion", "kubeletVersion"), "x")
        info |= dict.fromkeys(("kubeProxyVersion", "operatingSystem", "architecture"), "x")
        amounts = {"cpu": "64", "memory": "512Gi", "nvidia.com/gpu": "8", "pods": "110"}
        status = {"conditions": [READY], "nodeInfo": info, "capacity": amounts, "allocatable": amounts}
        await self._api.patch(f"/api/v1/nodes/{node_name(number)}/status", {"status": status}, STRATEGIC)

    async def _pod(self, number: int, owner: Json | None) -> None:
        async with self._gate:
            name = f"{owner['name'] if owner is not None else 'other'}-{number:05d}"
            env = [{"name": f"VARIABLE_{index}", "value": "x" * 40} for index in range(10)]
            about: Json = {"name": name}
            if owner is not None:
                about |= {"labels": {"job-name": owner["name"]}, "ownerReferences": [owner]}
            spec = {"nodeName": node_name(number % self._nodes), "containers": [{**CONTAINER, "env": env}]}
            await self._api.create("/api/v1/namespaces/default/pods", {"metadata": about, "spec": spec})
            await self._api.patch(f"/api/v1/namespaces/default/pods/{name}/status", running())

    async def keep(self) -> None:
        """Be the kubelet of every node until cancelled; the API server may be away meanwhile."""
        async with asyncio.TaskGroup() as group:
            while True:
                with contextlib.suppress(LinkError, ApiError):
                    items, version = await self._api.list_all("/api/v1/pods")
                    for pod in items:
                        self._see(pod, group)
                    async for event in self._api.watch("/api/v1/pods", version):
                        if event.type not in {"BOOKMARK", "DELETED"}:
                            self._see(event.object, group)
                await asyncio.sleep(AGAIN_S)

    def _see(self, pod: Json, group: asyncio.TaskGroup) -> None:
        about = pod["metadata"]
        self.pods[about["uid"]] = about
        path = f"/api/v1/namespaces/{about['namespace']}/pods/{about['name']}"
        if about.get("deletionTimestamp"):
            group.create_task(self._quietly(self._api.delete(path, uid=about["uid"], grace_s=0)))
        elif pod["spec"].get("nodeName") and (pod.get("status") or {}).get("phase", "Pending") == "Pending":
            body = {"metadata": {"uid": about["uid"]}, **running()}
            group.create_task(self._quietly(self._api.patch(f"{path}/status", body)))

    async def _quietly(self, work: Coroutine[Any, Any, Json]) -> None:
        """What fails is done when the pods are listed anew, or is no longer wanted."""
        async with self._gate:
            with contextlib.suppress(LinkError, ApiError):
                await work

"""What a lab's kubelets, and a cloud's controller, tell the API server of its nodes: that they are there, and well.

`kube_kubelet` has each node attended to at every beat. A node is registered anew under each of its boots; one that is
cut off says nothing at all. Time: a beat is as long as the API server's answers, and a pause while it is away.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from datetime import UTC, datetime

import structlog

from holdfast.adapters.kubernetes.api import STRATEGIC, ApiError, KubeApi
from holdfast.adapters.local.nodes import LocalNode, Power
from holdfast.errors import LinkError
from holdfast.lab import kube_pod
from holdfast.lab.kube_pod import Json

RETRY_S = 0.3
CPUS, MEMORY, PODS = "64", "512Gi", "110"
GPU = "nvidia.com/gpu"
SHUTDOWN = "node.cloudprovider.kubernetes.io/shutdown"
"""What a cloud's controller sets on a node whose machine it knows to be switched off."""
READY = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet is posting ready status"}
_log = structlog.get_logger("holdfast.lab")


def stamp() -> str:
    """Now, as the API has it."""
    return datetime.fromtimestamp(time.time(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class NodeReports:
    """See the module."""

    def __init__(self, api: KubeApi, *, gpus: int, logs_port: int) -> None:
        self._api = api
        self._gpus = gpus
        self._logs_port = logs_port
        self._registered: dict[str, str] = {}
        """Node -> the boot under which it was registered."""

    def has(self, node: LocalNode) -> bool:
        """Is it registered under its present boot?"""
        return self._registered.get(node.name) == node.boot_id

    def forget(self, node: str) -> None:
        """Its kubelet went with it: it is registered anew."""
        self._registered.pop(node, None)

    async def attend(self, node: LocalNode) -> bool:
        """Say what is so of a node now; returns whether it was registered anew."""
        path = f"/api/v1/nodes/{node.name}"
        try:
            if node.power is Power.OFF:
                await self._switched_off(node, path)
            elif node.reachable:
                return await self._report(node, path)
        except LinkError:
            await asyncio.sleep(RETRY_S)
        except ApiError as error:
            _log.warning("a node could not be reported", node=node.name, why=str(error))
        return False

    async def _switched_off(self, node: LocalNode, path: str) -> None:
        """The word of a cloud's controller, which asks the provider and not the node."""
        if self._registered.get(node.name) == "off":
            return
        taints = ((await self._api.get(path)).get("spec") or {}).get("taints") or []
        if not any(taint["key"] == SHUTDOWN for taint in taints):
            taint = {"key": SHUTDOWN, "effect": "NoSchedule"}
            await self._api.patch(path, {"spec": {"taints": [taint]}}, STRATEGIC)
        self._registered[node.name] = "off"

    async def _report(self, node: LocalNode, path: str) -> bool:
        fresh = not self.has(node)
        if fresh:
            await self._register(node, path)
        now = stamp()
        status: Json = {"conditions": [{**READY, "lastHeartbeatTime": now}]}
        if fresh:
            status["conditions"][0]["lastTransitionTime"] = now
            amounts = {"cpu": CPUS, "memory": MEMORY, "pods": PODS, GPU: str(self._gpus)}
            status |= {"capacity": amounts, "allocatable": amounts}
            status["addresses"] = [
                {"type": "InternalIP", "address": kube_pod.ADDRESS},
                {"type": "Hostname", "address": node.name},
            ]
            status["nodeInfo"] = node_info(node)
            status["daemonEndpoints"] = {"kubeletEndpoint": {"Port": self._logs_port}}
        await self._api.patch(f"{path}/status", {"status": status}, STRATEGIC)
        if fresh:
            self._registered[node.name] = node.boot_id
        return fresh

    async def _register(self, node: LocalNode, path: str) -> None:
        provider = f"lab://{node.instance_id}"
        labels = {
            "kubernetes.io/hostname": node.name,
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": "amd64",
            "node.kubernetes.io/instance-type": "lab.8gpu",
            **({"holdfast.dev/spare": "true"} if node.spare else {}),
        }
        try:
            known = await self._api.get(path)
        except ApiError as error:
            if not error.gone:
                raise
        else:
            if known["spec"].get("providerID") == provider:
                taints = [t for t in known["spec"].get("taints") or [] if t["key"] != SHUTDOWN]
                await self._api.patch(path, {"spec": {"taints": taints or None}})
                return
            if known["spec"].get("providerID"):
                # Another machine under the name: as with a real cloud, its Node is another object.
                await self._api.delete(path, uid=known["metadata"]["uid"])
                carried = known["metadata"].get("labels") or {}
                labels |= {key: value for key, value in carried.items() if key.startswith("lab/")}
                await self._create(node, provider, labels, known["spec"])
                return
        await self._create(node, provider, labels, {})

    async def _create(self, node: LocalNode, provider: str, labels: Json, old: Json) -> None:
        spec: Json = {"providerID": provider}
        if old.get("unschedulable"):
            # A replacement joins cordoned until it is proven, as sites configure it (`--register-with-taints`).
            spec["unschedulable"] = True
        body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node.name, "labels": labels}, "spec": spec}
        with contextlib.suppress(ApiError):
            await self._api.create("/api/v1/nodes", body)


def node_info(node: LocalNode) -> Json:
    """Which machine, which boot: what a kubelet reads of /etc/machine-id and the kernel's boot_id."""
    return {
        "machineID": node.instance_id,
        "systemUUID": node.instance_id,
        "bootID": node.boot_id,
        "kernelVersion": "lab",
        "osImage": "lab",
        "containerRuntimeVersion": "process://1",
        "kubeletVersion": "v1.20.2",
        "kubeProxyVersion": "",
        "operatingSystem": "linux",
        "architecture": "amd64",
    }

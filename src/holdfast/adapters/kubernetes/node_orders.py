"""Orders about nodes: quarantine, return, reboot, replace, retire. Each looks first and respects whose node it is.

A cordon whose `holdfast.dev/drain-reason` begins with our prefix is ours; any other is a person's and is left standing.
Who repairs is the site's word: a program of its own, the deletion of the node's Machine (Cluster API), or an outside
party that acts on the health label (as HyperPod does), for whom we only mark and wait. Before a repair what still runs
on the node is evicted, training first, then by the eviction API, which respects disruption budgets and grace periods;
pods of DaemonSets and static pods stay. Time passes while a node boots.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import structlog

from holdfast.adapters.kubernetes import patches
from holdfast.adapters.kubernetes.api import MERGE, STRATEGIC, ApiError, KubeApi, again_on_conflict, stamp
from holdfast.adapters.kubernetes.asks import PENDING, UNSCHEDULABLE, Vocabulary
from holdfast.adapters.kubernetes.kept_nodes import KeptNodes
from holdfast.adapters.kubernetes.looks import Looks
from holdfast.adapters.kubernetes.objects import (
    DRAIN_REASON,
    FAULT,
    PREFIX,
    Json,
    Node,
    Pod,
    alive_of,
    at,
    boot_of,
    drain_reason,
    is_ours,
    machine_of,
)
from holdfast.adapters.kubernetes.settings import KubernetesConfig
from holdfast.errors import LinkError, PermanentOrderError, TemporaryOrderError
from holdfast.model import orders as o
from holdfast.model.evidence import Remedy
from holdfast.model.machine import MachineId
from holdfast.os.programs import JOINED, Command, run

EVICT_S = 1.0
GONE_S = 120.0
"""A replaced machine that joins under the old name does so within this; a cloud's new node has a new name."""
PROGRAM_TAIL = 300
MACHINE = "cluster.x-k8s.io/machine"
MACHINE_NAMESPACE = "cluster.x-k8s.io/cluster-namespace"
"""Annotations that Cluster API puts on a Node."""
_REPAIRS = {Remedy.REBOOT: "reboot", Remedy.REPLACE: "replace"}
_log = structlog.get_logger("holdfast.kubernetes")


def can(order: o.AnyOrder, by: KubernetesConfig) -> bool:
    """Is it carried out here? A reboot needs somebody who does it; without one a node's Machine is deleted instead."""
    if isinstance(order, o.RebootNode):
        return bool(by.reboot_program) or by.repair_by_label
    return isinstance(order, o.QuarantineNode | o.ReturnNode | o.RetireNode | o.ReplaceNode)


class NodeOrders:
    """See the module."""

    def __init__(self, looks: Looks, words: Vocabulary, config: KubernetesConfig) -> None:
        self._looks = looks
        self._api: KubeApi = looks.api
        self._words = words
        self._config = config
        self.kept = KeptNodes(looks, limit_s=config.repair_limit_s)
        """Nodes whose machine is being replaced, as they were: their Node may be gone for a while."""

        self._does: dict[type[o.NodeOrder], Callable[[Any, Node], Awaitable[str]]] = {
            o.QuarantineNode: self._quarantine,
            o.ReturnNode: self._return,
            o.RetireNode: self._retire,
            o.RebootNode: self._reboot,
        }

    async def execute(self, order: o.NodeOrder) -> str:
        """See ports.Orchestrator. What the API server refuses comes as ApiError."""
        if isinstance(order, o.ReplaceNode) and (before := self._begun(order)) is not None:
            return await self._end_replacement(order, before)
        node = self._looks.node(order.node)
        if node is None:
            raise PermanentOrderError(f"there is no node {order.node} in this cluster")
        asked = MachineId.parse(order.instance_id)
        stale = bool(asked) and asked != machine_of(node)
        if isinstance(order, o.ReplaceNode):
            return "it is another machine already" if stale else await self._replace(order, node)
        if stale:
            raise PermanentOrderError(f"{order.node} is another machine now")
        return await self._does[type(order)](order, node)

    async def change(self, name: str, make: Callable[[Json], Json]) -> None:
        """Patch the node as it is now; again when somebody changed it meanwhile."""
        path = f"/api/v1/nodes/{name}"

        async def attempt() -> None:
            self._looks.nodes.take(await self._api.patch(path, make(await self._api.get(path)), MERGE))

        await again_on_conflict(attempt, f"node {name}")

    # --- in and out of service ---

    async def _quarantine(self, order: o.QuarantineNode, node: Node) -> str:
        if node.spec.unschedulable and not is_ours(node):
            return f"cordoned already by somebody else ({drain_reason(node)})"
        if is_ours(node):
            return "out of service already"
        repair = _REPAIRS.get(order.repair, "")
        await self.change(
            order.node,
            lambda now: patches.quarantine(now, self._words, why=order.why, repair=repair, now=stamp()),
        )
        await self.show(order.node)
        return f"cordoned and marked {PENDING.get(repair, 'Unschedulable')}"

    async def _return(self, _: o.ReturnNode, node: Node) -> str:
        if node.spec.unschedulable and not is_ours(node):
            raise PermanentOrderError(f"{node.metadata.name} was cordoned by someone else: {drain_reason(node)}")
        if not node.spec.unschedulable and not self.left_over(node):
            return "in service already"
        await self.put_back(node.metadata.name)
        return "in service"

    async def put_back(self, name: str, *, uncordon: bool = True) -> None:
        """Nothing of ours is left but the word that it is well. `uncordon`: the cordon was not lifted by others."""
        await self.change(name, lambda now: patches.returned(now, self._words, uncordon=uncordon))
        await self.show(name)

    async def mark_well(self, names: Sequence[str]) -> None:
        """Say of nodes about which nothing was said yet that they may be scheduled on, one after another."""
        for name in names:
            await self.change(name, lambda now: patches.schedulable(now, self._words))

    async def show(self, name: str) -> None:
        """The node's condition, for `kubectl describe` and tools that go by conditions; its marks are what holds.

        One that cannot be written is said in the log and left out.
        """
        node = self._looks.node(name)
        if node is None:
            return
        before = next((one for one in node.status.conditions or [] if one.type == FAULT), None)
        reason = (node.metadata.labels or {}).get(self._words.health) or UNSCHEDULABLE
        message = drain_reason(node) if is_ours(node) else "no fault is known"
        told = str(is_ours(node)), reason, message
        if before is None and not is_ours(node):
            return
        if before is not None and (before.status, before.reason, before.message) == told:
            return
        is_new = before is None or before.status != told[0]
        body = patches.condition(is_fault=is_ours(node), reason=reason, message=message, now=stamp(), is_new=is_new)
        try:
            self._looks.nodes.take(await self._api.patch(f"/api/v1/nodes/{name}/status", body, STRATEGIC))
        except ApiError as error:
            _log.warning("a node's condition cannot be written", node=name, why=str(error.as_order_error()))
        except LinkError as error:
            _log.warning("a node's condition cannot be written", node=name, why=str(error))

    def left_over(self, node: Node) -> bool:
        """Do our marks stand on a node that somebody has taken back into service?"""
        tainted = any(taint.key == self._words.health for taint in node.spec.taints or [])
        return not node.spec.unschedulable and (tainted or DRAIN_REASON in (node.metadata.annotations or {}))

    async def _retire(self, order: o.RetireNode, node: Node) -> str:
        if node.spec.unschedulable and not is_ours(node):
            return f"out of service by somebody else ({drain_reason(node)})"
        await self.change(order.node, lambda now: patches.retired(now, self._words, why=order.why, now=stamp()))
        await self.show(order.node)
        return "out of service for a person"

    async def in_checks(self, order: o.ValidateNode) -> None:
        """Show that the node is in its checks. Raises TemporaryOrderError when it is another machine, or not there."""
        node = self._looks.node(order.node)
        if node is None:
            raise TemporaryOrderError(f"there is no node {order.node} just now")
        if MachineId.parse(order.instance_id).is_other(machine_of(node)):
            raise TemporaryOrderError(f"{order.node} is another machine now")
        if is_ours(node) and (node.metadata.labels or {}).get(self._words.deep) != "InProgress":
            await self.change(order.node, lambda now: patches.in_checks(now, self._words))
            await self.show(order.node)

    # --- repair ---

    async def _mark(self, node: Node, why: str, repair: str) -> None:
        """The label that asks for the repair; a person's cordon stays theirs."""
        if node.spec.unschedulable and not is_ours(node):
            return
        reason = drain_reason(node)
        await self.change(
            node.metadata.name,
            lambda now: patches.quarantine(now, self._words, why=why, repair=repair, now=stamp(), reason=reason),
        )

    async def _reboot(self, order: o.RebootNode, node: Node) -> str:
        before = boot_of(node)
        if order.boot_id.startswith("k8s:") and before not in {"", order.boot_id} and alive_of(node):
            return "it has booted anew already"
        if node.spec.unschedulable:
            await self._mark(node, order.why, "reboot")
            await self._evict(order.node)
        if self._config.reboot_program:
            await self._run(self._config.reboot_program, order.node)
        await self._until(
            order.node, lambda now: bool(boot_of(now)) and boot_of(now) != before and ready(now), "did not come back"
        )
        await self._settle(order.node, node, order.why)
        return "rebooted"

    async def _replace(self, order: o.ReplaceNode, node: Node) -> str:
        if node.spec.unschedulable:
            await self._mark(node, order.why, "replace")
            await self._evict(order.node)
        before = self._looks.node(order.node) or node
        await self.kept.keep(before)
        try:
            if self._config.replace_program:
                await self._run(self._config.replace_program, order.node)
            elif not self._config.repair_by_label:
                await self._delete_machine(order.node)
        except PermanentOrderError:
            await self.kept.forget(order.node)
            raise
        return await self._end_replacement(order, before)

    def _begun(self, order: o.ReplaceNode) -> Node | None:
        """The node as it was, when this replacement was begun and its machine is gone: an earlier controller's, too."""
        before, now = self.kept.all().get(order.node), self._looks.node(order.node)
        asked = MachineId.parse(order.instance_id)
        if before is None or (asked and asked != machine_of(before)):
            return None
        return before if now is None or machine_of(now) != machine_of(before) else None

    async def _end_replacement(self, order: o.ReplaceNode, before: Node) -> str:
        """Wait for the new machine, and mark it as the old one was."""
        came = await self._came_back(order.node, machine_of(before))
        if came:
            await self._settle(order.node, before, order.why)
        await self.kept.forget(order.node)
        return "another machine" if came else "its Node is gone for good: whatever took its place has another name"

    async def _came_back(self, name: str, before: MachineId) -> bool:
        """Another machine under this name. False when there has been no Node of this name for a while."""
        gone_at = 0.0

        def found() -> bool | None:
            nonlocal gone_at
            node = self._looks.node(name)
            if node is not None:
                gone_at = 0.0
                return True if machine_of(node) != before and ready(node) else None
            gone_at = gone_at or time.monotonic()
            return False if time.monotonic() - gone_at > GONE_S else None

        return await self._looks.until(found, f"{name} was not replaced", limit_s=self._config.repair_limit_s)

    async def _settle(self, name: str, before: Node, why: str) -> None:
        """Out of service as before, and in checks: a new machine's Node knows nothing of our marks."""
        if not before.spec.unschedulable:
            return
        reason = drain_reason(before)
        now = self._looks.node(name)
        theirs = (now.metadata.annotations or {}).get(DRAIN_REASON, PREFIX) if now is not None else PREFIX
        if not theirs.startswith(PREFIX):
            return  # a person has taken the new machine out of service, and said why
        if now is not None and drain_reason(now) != reason:
            await self.change(
                name,
                lambda fresh: patches.quarantine(fresh, self._words, why=why, repair="", now=stamp(), reason=reason),
            )
        if reason.startswith(PREFIX):
            await self.change(name, lambda fresh: patches.in_checks(fresh, self._words))
            await self.show(name)

    async def _delete_machine(self, name: str) -> None:
        """Cluster API makes another in its place."""
        try:
            about = (await self._api.get(f"/api/v1/nodes/{name}"))["metadata"].get("annotations") or {}
            if MACHINE not in about:
                raise PermanentOrderError(
                    f"nobody here replaces {name}: it has no {MACHINE}, and the configuration names no replace_program"
                )
            groups = (await self._api.get("/apis"))["groups"]
            version = next(one["preferredVersion"]["version"] for one in groups if one["name"] == "cluster.x-k8s.io")
            where = f"namespaces/{about.get(MACHINE_NAMESPACE, 'default')}/machines/{about[MACHINE]}"
            path = f"/apis/cluster.x-k8s.io/{version}/{where}"
            machine = await self._api.get(path)
            if at(machine, ("status", "nodeRef", "name")) != name:
                raise PermanentOrderError(f"nobody here replaces {name}: the machine {about[MACHINE]} is not its own")
            await self._api.delete(path, uid=machine["metadata"]["uid"])
        except (ApiError, StopIteration) as error:
            if isinstance(error, ApiError):
                raise error.as_order_error() from error
            raise PermanentOrderError("Machines of Cluster API are not served here") from error

    async def _run(self, program: tuple[str, ...], node: str) -> None:
        limit_s = self._config.repair_limit_s
        ran = await run(Command(argv=(*program, node), stderr=JOINED), limit_s)
        if ran.hung:
            raise TemporaryOrderError(f"{program[0]} {node}: not done in {limit_s:g} s")
        if ran.code is None:
            raise PermanentOrderError(f"{program[0]} cannot be run: {ran.err}")
        if ran.code:
            words = ran.out.strip()[-PROGRAM_TAIL:]
            raise TemporaryOrderError(f"{program[0]} {node} ended with {ran.code}: {words}")

    async def _until(self, name: str, holds: Callable[[Node], bool], what: str) -> None:
        def found() -> bool | None:
            node = self._looks.node(name)
            return True if node is not None and holds(node) else None

        await self._looks.until(found, f"{name} {what}", limit_s=self._config.repair_limit_s)

    # --- drain ---

    async def _evict(self, name: str) -> None:
        """Have everything leave that a drain would: training pods have left before this, or leave first."""
        deadline = time.monotonic() + self._config.evict_s
        while True:
            node = self._looks.node(name)
            leaving = [pod for pod in self._looks.pods.items.values() if pod.spec.node_name == name and moves(pod)]
            if not leaving or node is None or alive_of(node) is not True:
                return
            if time.monotonic() > deadline:
                names = ", ".join(pod.metadata.name for pod in leaving[:5])
                raise TemporaryOrderError(f"{name} is not empty after {self._config.evict_s:g} s: {names}")
            training = [pod for pod in leaving if not is_service(pod)]
            # What a job's pods may need to end in order (a store, a proxy) stays until they have left.
            for pod in training or leaving:
                if pod.metadata.deletion_timestamp is None:
                    await self._evict_pod(pod)
            await self._looks.wait(self._looks.version, EVICT_S)

    async def _evict_pod(self, pod: Pod) -> None:
        about = pod.metadata
        path = f"/api/v1/namespaces/{about.namespace}/pods/{about.name}/eviction"
        body = {
            "apiVersion": f"policy/{self._looks.eviction}",
            "kind": "Eviction",
            "metadata": {"name": about.name, "namespace": about.namespace},
            "deleteOptions": {"preconditions": {"uid": about.uid}},
        }
        try:
            await self._api.create(path, body)
        except ApiError as error:
            if error.status == 429:
                _log.info("a disruption budget keeps a pod where it is", pod=about.name, why=error.message)
            elif not (error.gone or error.conflict):
                raise


def ready(node: Node) -> bool:
    """Its kubelet says so, and nothing says that the machine is off."""
    conditions = node.status.conditions or []
    return alive_of(node) is True and any(one.type == "Ready" and one.status == "True" for one in conditions)


def moves(pod: Pod) -> bool:
    """Would a drain have it leave? Not what has ended, what every node has, and what the kubelet runs by itself."""
    owner = pod.owner
    mirror = "kubernetes.io/config.mirror" in (pod.metadata.annotations or {})
    return pod.live and not mirror and not (owner is not None and owner.kind == "DaemonSet")


def is_service(pod: Pod) -> bool:
    """Is it no training pod?"""
    owner = pod.owner
    return owner is None or owner.kind in {"ReplicaSet", "StatefulSet", "ReplicationController"}

"""The embedded cluster's nodes together: drains, reboots, replacements, growth, and what an observer sees of them.

The daemon hands it the requests about nodes. Orders are ensured: a node that is already as asked is left alone, an
order that names a former machine is stale. Time: `reboot` and `replace` answer when the node is up again.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from holdfast.adapters.local.nodes import LocalNode, NodeEvents, NodeSettings, Power
from holdfast.adapters.local.protocol import (
    Drain,
    NodeRequest,
    Reboot,
    Replace,
    ResetGpus,
    Resume,
    Validate,
)
from holdfast.errors import NotFoundError, PermanentOrderError, TemporaryOrderError, UsageError
from holdfast.model.cluster import NodeView

UP_LIMIT_S = 30.0
"""Longest wait for a node's first word, beyond its boot time."""


class Fleet:
    """All nodes of an embedded cluster, by name, in the order in which they came."""

    def __init__(self, folder: Path, settings: NodeSettings, events: NodeEvents) -> None:
        self.folder = folder
        self.settings = settings
        self.events = events
        self.nodes: dict[str, LocalNode] = {}

    def find(self, name: str) -> LocalNode:
        """The node of this name. Raises NotFoundError."""
        node = self.nodes.get(name)
        if node is None:
            raise NotFoundError(f"there is no node {name[:64]} in this cluster ({', '.join(self.nodes)})")
        return node

    def free_name(self) -> str:
        """The first name of the usual kind that is not taken."""
        number = 1
        while f"node{number:02d}" in self.nodes:
            number += 1
        return f"node{number:02d}"

    def add(self, name: str, *, spare: bool) -> LocalNode:
        """Let the cluster grow; the node boots at once."""
        if name in self.nodes:
            raise PermanentOrderError(f"there is a node {name} already")
        if not name.replace("-", "").replace(".", "").isalnum() or len(name) > 64 or name.startswith((".", "-")):
            raise UsageError(f"`{name[:64]}` is no node name: letters, digits, dots and dashes, at most 64")
        node = LocalNode(name, self.folder / name, self.settings, self.events, spare=spare)
        node.become_another()  # what an earlier cluster left in this folder was another machine's
        self.nodes[name] = node
        node.power_up("first boot", delay_s=0.0)
        return node

    async def carry_out(self, request: NodeRequest) -> Any:
        """One request about one node."""
        node = self.find(request.node)
        match request:
            case Drain():
                return self._drain(node, request)
            case Resume():
                return self._resume(node, request)
            case Reboot():
                return await self._reboot(node, request.boot_id)
            case Replace():
                return await self._replace(node, request)
            case Validate():
                return _validate(node)
            case ResetGpus():
                return _reset_gpu(node, request.gpu)
        raise UsageError(f"`{type(request).__name__}` is not handled")  # a request without a line above: a bug

    def _drain(self, node: LocalNode, request: Drain) -> str:
        _refuse_stale(node, request.instance_id)
        if node.drained:
            return f"already drained: {node.drain_reason}"
        node.drained, node.drain_reason = True, request.reason
        self.events.changed()
        return "drained"

    def _resume(self, node: LocalNode, request: Resume) -> str:
        _refuse_stale(node, request.instance_id)
        if not node.drained:
            return "it takes work already"
        if not node.drain_reason.startswith(request.prefix):
            why = node.drain_reason or "no reason given"
            raise PermanentOrderError(f"{node.name} was drained by somebody else: {why}")
        node.drained, node.drain_reason = False, ""
        self.events.changed()
        return "resumed"

    async def _reboot(self, node: LocalNode, boot_id: str) -> str:
        if boot_id and boot_id != node.boot_id and node.power is Power.UP:
            return f"it has been rebooted already: boot id {node.boot_id}"
        if node.power is not Power.BOOTING:
            node.switch_off("reboot")
            node.power_up("reboot")
        return await _until_up(node)

    async def _replace(self, node: LocalNode, request: Replace) -> str:
        if request.instance_id and request.instance_id != node.instance_id:
            return await _until_up(node)
        renamed = request.new_name and request.new_name != node.name
        if renamed and request.new_name in self.nodes:
            raise PermanentOrderError(f"there is a node {request.new_name} already")
        node.switch_off("replaced")
        if renamed:
            del self.nodes[node.name]
            node = self.add(request.new_name, spare=node.spare)
        else:
            node.become_another()
            node.power_up("replacement")
        return await _until_up(node)


async def _until_up(node: LocalNode) -> str:
    limit_s = node.settings.boot_s + UP_LIMIT_S
    try:
        await asyncio.wait_for(node.up.wait(), limit_s)
    except TimeoutError:
        raise TemporaryOrderError(f"{node.name} did not come up within {limit_s:g} s") from None
    return f"up with boot id {node.boot_id}, instance {node.instance_id}"


def _refuse_stale(node: LocalNode, instance_id: str) -> None:
    if instance_id and instance_id != node.instance_id:
        raise PermanentOrderError(f"{node.name} is another machine now ({node.instance_id}, asked for {instance_id})")


def _validate(node: LocalNode) -> str:
    if not node.reachable:
        raise TemporaryOrderError(f"{node.name} does not answer")
    if not os.access(node.folder, os.W_OK) or not os.access(node.folder / "kmsg", os.R_OK):
        raise PermanentOrderError(f"the folder of {node.name} is not usable")
    return "it answers and its folder can be used"


def _reset_gpu(node: LocalNode, gpu: str) -> str:
    if node.tasks:
        raise TemporaryOrderError(f"{node.name} has processes of a job: a GPU in use is not reset")
    node.append_kmsg(f"holdfast: emulated reset of GPU {gpu or 'all'}")
    return "emulated GPU reset"


def view_of(node: LocalNode) -> NodeView:
    """The node as an observer sees it."""
    return NodeView(
        name=node.name,
        group="local",
        alive=node.alive,
        drained=node.drained,
        drain_reason=node.drain_reason,
        boot_id=node.boot_id,
        instance_id=node.instance_id,
        jobs=tuple(sorted({task.partition(".")[0] for task in node.tasks})),
        spare=node.spare,
        gpus=node.settings.gpus,
        state_text=node.state_text,
    )

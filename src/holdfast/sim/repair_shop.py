"""Who repairs simulated machines and checks them: a `ports.Repair` with times and failure rates.

A repair goes on when the controller that asked for it is killed, and is asked for again by the next one under the same
order id. In the calm every repair works.
"""

from __future__ import annotations

import asyncio

from holdfast.errors import PermanentOrderError, TemporaryOrderError
from holdfast.model import orders as o
from holdfast.sim.scheduler import Scheduler
from holdfast.sim.world import Node, World

BOOT_DOWN_S = 1.0


class SimRepair:
    """See the module."""

    def __init__(self, world: World, scheduler: Scheduler) -> None:
        self._world = world
        self._scheduler = scheduler
        self._work: dict[str, asyncio.Event] = {}
        self._failed: dict[str, str] = {}

    def can(self, order: o.AnyOrder) -> bool:
        """Resets, reboots, replacements, and checks where agents do not run them."""
        if isinstance(order, o.ValidateNode):
            return not self._world.options.agents_check
        return isinstance(order, o.ResetGpu | o.RebootNode | o.ReplaceNode)

    async def execute(self, order: o.AnyOrder) -> str:
        """See `ports.Orchestrator.execute`."""
        if not isinstance(order, o.NodeOrder):
            raise PermanentOrderError("a repair is for a node")
        node = self._world.nodes.get(order.node)
        if node is None:
            raise PermanentOrderError(f"no node {order.node}")
        if order.instance_id and order.instance_id != node.machine:
            if isinstance(order, o.ReplaceNode):
                return "another machine is there already"
            raise PermanentOrderError(f"{order.node} is another machine now")
        if isinstance(order, o.ValidateNode):
            return await self._validate(node)
        if isinstance(order, o.RebootNode) and order.boot_id and order.boot_id != node.boot:
            return "it has booted already"
        if order.id not in self._work:
            self._begin(node, order)
        await self._work[order.id].wait()
        if order.id in self._failed:
            raise PermanentOrderError(self._failed[order.id])
        return "done"

    async def _validate(self, node: Node) -> str:
        options = self._world.options
        await self._world.clock.sleep(options.validate_s)
        if not node.heard:
            raise TemporaryOrderError(f"{node.name} does not answer", retry_after_s=30.0)
        if bad := self._world.check(node, who="repair"):
            raise PermanentOrderError(bad)
        return "dcgmi diag -r 3: pass"

    def _begin(self, node: Node, order: o.NodeOrder) -> None:
        world, options = self._world, self._world.options
        kind, takes_s = {
            o.ResetGpu: ("reset", options.reset_s),
            o.RebootNode: ("reboot", options.reboot_s),
            o.ReplaceNode: ("replace", options.replace_s),
        }[type(order)]
        self._work[order.id] = asyncio.Event()
        world.say("node_repair", who="controller", order=order.id, node=node.name, detail=kind)
        world.effects[order.id] += 1
        if kind != "reset":
            world.later(BOOT_DOWN_S, lambda: world.go_down(node, "", kind, who="repair"))
        spread = world.dice("repair").uniform(0.8, 1.2)
        world.later(takes_s * spread, lambda: self._end(node, order, kind))

    def _end(self, node: Node, order: o.NodeOrder, kind: str) -> None:
        world = self._world
        works = not world.chance("repair", world.options.repair_fail)
        if works:
            world.mend(node, kind, who="repair", order=order.id)
        else:
            world.say("node_repair_failed", who="repair", order=order.id, node=node.name, detail=kind)
            if kind == "replace":
                self._failed[order.id] = "no machine of this type is available"
        if kind != "reset":
            world.come_up(node, who="repair", machine=works and kind == "replace", order=order.id)
        self._work[order.id].set()
        self._scheduler.look_soon()

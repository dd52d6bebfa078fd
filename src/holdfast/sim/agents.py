"""What agents see and say: findings about their nodes, carried by a network that loses, doubles, delays and reorders.

Faults call `sees`; launchers send through `send`, too. Delivery is at least once, as in production: what is lost is
sent again, what waits at a node that is cut off goes out when it is back, and is gone with the machine.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Coroutine
from typing import Any

from msgspec.structs import replace

from holdfast.controller import Controller
from holdfast.detect.catalogue import Catalogue, load_catalogue
from holdfast.detect.findings import synthetic_finding
from holdfast.detect.meaning import packaged_sources
from holdfast.errors import HoldfastError
from holdfast.model import events as e
from holdfast.model import orders as o
from holdfast.model.cluster import JobKey
from holdfast.model.evidence import EvidenceKind, Finding, Place
from holdfast.model.wire import Beat, kind_of
from holdfast.sim.control import ControlPlane
from holdfast.sim.world import Node, World

LOST_AGAIN_S = 2.0
MAIL_S = 600.0
AGAIN_S = 5.0
"""An agent that reaches no controller tries again every so often."""


@functools.cache
def catalogue() -> Catalogue:
    """The shipped rules, read once."""
    return load_catalogue(packaged_sources())


def finding(rule: str, **fields: Any) -> Finding:
    """A finding as the catalogue describes its rule; `fields` as `synthetic_finding` takes them."""
    return synthetic_finding(catalogue(), rule, text=rule, **fields)


class Agents:
    """See the module."""

    def __init__(self, world: World, control: ControlPlane) -> None:
        self._world = world
        self._control = control
        self._number = 0
        self._last: dict[str, float] = {}
        self._asked: set[tuple[str, str]] = set()
        """Boot and order of checks that were begun."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.told: dict[str, str] = {}
        """Where somebody lies: id of each event that an honest reporter sent -> its source."""

    def begin(self) -> None:
        """Have agents take orders, where the options say that they run the checks."""
        if self._world.options.agents_check:
            for node in self._world.nodes.values():
                self._run(self._mail(node))

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def end(self) -> None:
        """The run is over."""
        for task in self._tasks:
            task.cancel()

    async def _mail(self, node: Node) -> None:
        """Beats that wait for orders, each of which is handed out until it is done and carried out once in a boot."""
        clock = self._world.clock
        while True:
            controller = self._control.active
            if controller is None or not node.heard:
                tried_at = clock.monotonic()
                await self._control.change.wait()
                await clock.sleep((tried_at - clock.monotonic()) % AGAIN_S)
                continue
            beat = Beat(source=f"agent:{node.name}", node=node.name, boot_id=node.boot, instance_id=node.machine)
            try:
                answer = await controller.beat(beat, wait_s=MAIL_S)
            except HoldfastError:
                await clock.sleep(AGAIN_S)
                continue
            if self._still(controller, node, beat):
                controller.presence.hold(f"node:{node.name}")
                for order in answer.requests:
                    if (node.boot, order.id) not in self._asked:
                        self._asked.add((node.boot, order.id))
                        self._run(self._carry_out(node, order))
            await clock.sleep(1.0)

    def _still(self, controller: Controller, node: Node, beat: Beat) -> bool:
        """Does the answer reach the agent that asked?"""
        return node.heard and node.boot == beat.boot_id and controller is self._control.active

    async def _carry_out(self, node: Node, order: o.AnyOrder) -> None:
        """Run the checks and report what they say, and that they were run."""
        boot, source = node.boot, f"agent:{node.name}"
        if not isinstance(order, o.ValidateNode):
            why = f"the agent of {node.name} does not carry out {kind_of(order)}"
            name = f"failed:{order.id}:{source}"
            self.send(
                e.OrderFailed(id=name, at=self._world.clock_of(node), source=source, order=order.id, why=why), node
            )
            return
        await self._world.clock.sleep(self._world.options.validate_s)
        if not node.up or node.boot != boot:
            return  # the agent is gone with its boot
        other = bool(order.instance_id) and order.instance_id != node.machine
        why = f"identity: asked about {order.instance_id}, this is {node.machine}" if other else ""
        why = why or self._world.check(node, who=source)
        at = self._world.clock_of(node)
        self.send(
            e.NodeValidated(
                id=f"validated:{order.id}",
                at=at,
                source=source,
                node=node.name,
                passed=not why,
                instance_id=node.machine,
                boot_id=boot,
                detail=why or "6 checks passed",
            ),
            node,
        )
        self.send(e.OrderDone(id=f"done:{order.id}", at=at, source=source, order=order.id, detail=why), node)

    def sees(
        self,
        node: Node,
        rule: str,
        *,
        gpu: int | None = None,
        after_s: float | None = None,
        about: tuple[JobKey, int] | None = None,
    ) -> None:
        """The node's agent finds this in the kernel's log, a moment from now or after so long.

        Args:
            node: whose agent.
            rule: of the finding.
            gpu: at fault.
            after_s: None: as soon as agents do.
            about: job and attempt that died of it, when the agent looked because of them.
        """
        machine = node.machine
        wait_s = self._world.options.detect_s if after_s is None else after_s
        self._world.later(wait_s, lambda: self._tell(node, rule, gpu, about) if node.machine == machine else None)

    def _tell(self, node: Node, rule: str, gpu: int | None, about: tuple[JobKey, int] | None) -> None:
        if not node.up:
            return
        self._number += 1
        name = f"agent:{node.name}/{self._number}"
        at = self._world.clock_of(node)
        place = Place(node=node.name, gpu=gpu)
        if about is None:
            found = finding(rule, id=name, at=at, place=place, kind=EvidenceKind.LOG)
        elif not node.broken:
            return
        else:
            job, attempt = about
            found = finding(rule, id=name, at=at, place=place, job=job, attempt=attempt, kind=EvidenceKind.CHECK)
        self.send(e.FindingSeen(id=name, at=at, source=f"agent:{node.name}", finding=found), node)

    def cleared(self, node: Node, rule: str) -> None:
        """A condition has gone."""
        self._number += 1
        name, at = f"agent:{node.name}/{self._number}", self._world.clock_of(node)
        self.send(e.FindingCleared(id=name, at=at, source=f"agent:{node.name}", rule=rule, node=node.name), node)

    def send(self, event: e.AnyEvent, node: Node | None) -> None:
        """Carry an event to the controller, from this node, or from nowhere in particular."""
        world, options = self._world, self._world.options
        if options.hostiles:
            self.told[event.id] = event.source
        machine = node.machine if node is not None else ""
        delay_s = options.message_s + options.message_jitter_s * world.dice("messages").random()
        if world.chance("messages", options.message_loss):
            delay_s += LOST_AGAIN_S
        arrives = world.now() + delay_s
        if world.chance("messages", options.message_reorder):
            arrives += 5.0 * world.dice("messages").random()
        else:
            # One source's events keep their order.
            arrives = max(arrives, self._last.get(event.source, 0.0) + 1e-3)
            self._last[event.source] = arrives
        if world.chance("messages", options.message_duplicate):
            world.later(arrives - world.now() + 1.0, lambda: self._arrive(replace(event), node, machine))
        world.later(arrives - world.now(), lambda: self._arrive(event, node, machine))

    def _arrive(self, event: e.AnyEvent, node: Node | None, machine: str) -> None:
        if node is not None and not node.heard:
            if node.machine == machine:
                self._world.later(LOST_AGAIN_S * 5, lambda: self._arrive(event, node, machine))
            return
        self._control.deliver(event)

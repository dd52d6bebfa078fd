"""What agents see and say: findings about their nodes, carried by a network that loses, doubles, delays and reorders.

Faults call `sees`; launchers send through `send`, too. Delivery is at least once, as in production: what is lost is
sent again, what waits at a node that is cut off goes out when it is back, and is gone with the machine.
"""

from __future__ import annotations

import functools

from msgspec.structs import replace

from holdfast.detect.catalogue import Catalogue, load_catalogue
from holdfast.detect.findings import synthetic_finding
from holdfast.detect.meaning import packaged_sources
from holdfast.model import events as e
from holdfast.model.cluster import JobKey
from holdfast.model.evidence import EvidenceKind, Finding, Place
from holdfast.sim.control import ControlPlane
from holdfast.sim.world import Node, World

LOST_AGAIN_S = 2.0


@functools.cache
def catalogue() -> Catalogue:
    """The shipped rules, read once."""
    return load_catalogue(packaged_sources())


def finding(
    rule: str,
    *,
    id: str,  # noqa: A002 - the field's own name
    at: float,
    place: Place,
    job: JobKey | None = None,
    attempt: int | None = None,
    summary: str = "",
    kind: EvidenceKind = EvidenceKind.EXIT,
    captures: dict[str, str] | None = None,
) -> Finding:
    """A finding as the catalogue describes its rule."""
    return synthetic_finding(
        catalogue(),
        rule,
        id=id,
        at=at,
        place=place,
        job=job,
        attempt=attempt,
        summary=summary,
        kind=kind,
        text=rule,
        captures=captures,
    )


class Agents:
    """See the module."""

    def __init__(self, world: World, control: ControlPlane) -> None:
        self._world = world
        self._control = control
        self._number = 0
        self._last: dict[str, float] = {}

    def sees(self, node: Node, rule: str, *, gpu: int | None = None) -> None:
        """The node's agent finds this in the kernel's log, a moment from now."""
        self._world.later(self._world.options.detect_s, lambda: self._tell(node, rule, gpu))

    def _tell(self, node: Node, rule: str, gpu: int | None) -> None:
        if not node.up:
            return
        self._number += 1
        name = f"agent:{node.name}/{self._number}"
        at = self._world.clock_of(node)
        place = Place(node=node.name, gpu=gpu)
        found = finding(rule, id=name, at=at, place=place, kind=EvidenceKind.LOG)
        self.send(e.FindingSeen(id=name, at=at, source=f"agent:{node.name}", finding=found), node)

    def cleared(self, node: Node, rule: str) -> None:
        """A condition has gone."""
        self._number += 1
        name, at = f"agent:{node.name}/{self._number}", self._world.clock_of(node)
        self.send(e.FindingCleared(id=name, at=at, source=f"agent:{node.name}", rule=rule, node=node.name), node)

    def send(self, event: e.AnyEvent, node: Node | None) -> None:
        """Carry an event to the controller, from this node, or from nowhere in particular."""
        world, options = self._world, self._world.options
        machine = node.machine if node is not None else ""
        delay_s = options.message_s + options.message_jitter_s * world.dice("messages").random()
        if world.chance("messages", options.message_loss):
            world.count("messages_lost")
            delay_s += LOST_AGAIN_S
        arrives = world.now() + delay_s
        if world.chance("messages", options.message_reorder):
            world.count("messages_reordered")
            arrives += 5.0 * world.dice("messages").random()
        else:
            # One source's events keep their order.
            arrives = max(arrives, self._last.get(event.source, 0.0) + 1e-3)
            self._last[event.source] = arrives
        if world.chance("messages", options.message_duplicate):
            world.count("messages_doubled")
            world.later(arrives - world.now() + 1.0, lambda: self._arrive(replace(event), node, machine))
        world.later(arrives - world.now(), lambda: self._arrive(event, node, machine))

    def _arrive(self, event: e.AnyEvent, node: Node | None, machine: str) -> None:
        if node is not None and not node.heard:
            if node.machine == machine:
                self._world.later(LOST_AGAIN_S * 5, lambda: self._arrive(event, node, machine))
            return
        self._control.deliver(event)

"""The simulated machines: what is up, what is broken, what is reachable; and the record of all that truly happens.

Everything else of the simulation acts through it. It knows nothing of Holdfast: the control plane listens by
`on_heard`. Time is the clock's, which in a simulation is virtual; waiting is `later`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from holdfast.model.cluster import NodeView
from holdfast.model.orders import Notify
from holdfast.ports import Clock
from holdfast.sim.faults import lemons, luck, machine_name, node_name, topology
from holdfast.sim.options import SimOptions
from holdfast.sim.record import Happening

OWN_REASON = "[holdfast]"


class Node:
    """One place in the cluster, and the machine that stands there now."""

    def __init__(self, index: int, path: str, *, spare: bool, lemon: bool, offset_s: float, rate_ppm: float) -> None:
        self.index = index
        self.name = node_name(index)
        self.topology = path
        self.spare = spare
        self.lemon = lemon
        self.offset_s = offset_s
        """How far its clock was off when the run began."""
        self.rate_ppm = rate_ppm
        """Microseconds in a second that its clock runs fast."""
        self.up = True
        self.cuts: set[str] = set()
        """Faults that cut it off from every other node."""
        self.apart: set[str] = set()
        """Faults that keep it from the controller only."""
        self.broken: dict[str, str] = {}
        """Fault -> the repair that mends it."""
        self.links: dict[str, str] = {}
        """Fault -> label, of its links to the fabric that are down: no repair of the machine mends a cable."""
        self.drained = False
        self.reason = ""
        self.failed_check = ""
        """Why the scheduler drained it itself."""
        self.hidden = False
        """The scheduler does not know it."""
        self.retired = False
        self.known_down = False
        """The scheduler has given it up."""
        self.job = ""
        """Id of the job whose processes are there."""
        self.boots = 0
        self.machines = 0
        self.view: NodeView | None = None

    @property
    def machine(self) -> str:
        """Instance id of the machine."""
        return machine_name(self.index, self.machines)

    @property
    def boot(self) -> str:
        """Boot id."""
        return f"b{self.index + 1:04d}.{self.machines}.{self.boots}"

    @property
    def reachable(self) -> bool:
        """Can other nodes and the scheduler talk to it?"""
        return self.up and not self.cuts

    @property
    def takes_work(self) -> bool:
        """May the scheduler start something there, as far as it knows?"""
        return not self.drained and not self.known_down and not self.hidden

    @property
    def heard(self) -> bool:
        """Can the controller hear its agent?"""
        return self.up and not self.cuts and not self.apart


class World:
    """See the module."""

    def __init__(self, options: SimOptions, clock: Clock) -> None:
        self.options = options
        self.clock = clock
        self.cluster = "sim"
        self.calm = False
        """Nothing breaks any more."""
        self.storage_down: set[str] = set()
        self.scheduler_mute: set[str] = set()
        """Faults that keep the scheduler from answering."""
        self.truth: list[Happening] = []
        self.counts: Counter[str] = Counter()
        self.effects: Counter[str] = Counter()
        """Order id -> how often it changed the world."""
        self.on_heard: Callable[[Node], None] = _nobody
        """The node can be heard now, or cannot any more."""
        self.on_registered: Callable[[Node], None] = _nobody
        """The scheduler hears from a node that has booted."""
        self.on_lost: Callable[[Node, str], None] = _nobody
        """Processes on the node are gone or cut off, because of this fault."""
        self.on_storage: Callable[[], None] = lambda: None
        self.on_notice: Callable[[Notify], None] = _nobody
        """People are told something."""
        self.on_change: Callable[[], None] = lambda: None
        """Something that the scheduler shows has changed."""
        self._dice: dict[str, random.Random] = {}
        bad = set(lemons(options))
        drift, rates = luck(options, "drift"), luck(options, "drift/rate")
        self.nodes: dict[str, Node] = {}
        for index in range(options.nodes):
            node = Node(
                index,
                topology(options, index),
                spare=index >= options.nodes - options.spares,
                lemon=index in bad,
                offset_s=drift.uniform(-1.0, 1.0) * options.clock_drift_s,
                rate_ppm=rates.uniform(-1.0, 1.0) * options.clock_drift_ppm,
            )
            self.nodes[node.name] = node

    # --- time, luck, record ---

    def now(self) -> float:
        """Virtual Unix seconds."""
        return self.clock.now()

    def clock_of(self, node: Node) -> float:
        """What the node takes the time for."""
        return self.now() + node.offset_s + node.rate_ppm * 1e-6 * self.clock.monotonic()

    def later(self, seconds: float, do: Callable[[], object]) -> Callable[[], None]:
        """Do it after so long; the returned function forgets it."""
        return self.clock.call_later(seconds, do)

    def dice(self, name: str) -> random.Random:
        """A stream of luck for one matter, so that matters do not disturb each other."""
        found = self._dice.get(name)
        if found is None:
            found = self._dice[name] = luck(self.options, f"world/{name}")
        return found

    def chance(self, name: str, share: float) -> bool:
        """Does it happen, with this probability? Never in the calm."""
        return share > 0.0 and not self.calm and self.dice(name).random() < share

    def say(self, what: str, **fields: Any) -> None:
        """Write down what truly happened; `fields` are those of a `Happening`."""
        self.truth.append(Happening(at=self.now(), what=what, **fields))

    # --- what the scheduler shows of a node ---

    def touch(self, node: Node) -> None:
        """It may look different now."""
        node.view = None
        self.on_change()

    def view_of(self, node: Node) -> NodeView:
        """The node as the scheduler shows it. The value is kept until the node changes."""
        if node.view is None:
            node.view = NodeView(
                name=node.name,
                group="batch",
                alive=not node.known_down,
                drained=node.drained,
                drain_reason=node.reason,
                boot_id=node.boot,
                instance_id=node.machine,
                # What runs on nodes that take work, jobs say themselves: see docs/scale.md.
                jobs=(node.job.partition("#")[0],) if node.job and node.drained else (),
                spare=node.spare,
                gpus=self.options.gpus_per_node,
                topology=node.topology,
                failed_check=node.failed_check,
                state_text="down" if node.known_down else "drained" if node.drained else "up",
            )
        return node.view

    # --- what happens to machines ---

    def go_down(self, node: Node, fault: str, why: str, *, who: str = "fault") -> None:
        """It stops running."""
        if not node.up:
            return
        node.up = False
        self.say("node_down", fault=fault, who=who, node=node.name, detail=why)
        self.on_heard(node)
        self.on_lost(node, fault)
        self.later(self.options.down_s, lambda: self.give_up(node))

    def come_up(self, node: Node, *, who: str, machine: bool = False, order: str = "") -> None:
        """It boots, perhaps as another machine."""
        was_up = node.up
        node.up = True
        node.boots += 1
        if machine:
            node.machines += 1
            node.boots = 0
            node.lemon = False
            node.broken.clear()
        if was_up:
            self.on_lost(node, "")
        node.known_down = node.known_down and bool(node.cuts)
        self.say("node_up", who=who, node=node.name, order=order, detail=f"{node.machine} {node.boot}")
        self.touch(node)
        self.on_heard(node)
        self.on_registered(node)

    def cut(self, node: Node, fault: str) -> None:
        """It loses its network."""
        node.cuts.add(fault)
        self.say("node_cut", fault=fault, who="fault", node=node.name)
        self.on_heard(node)
        self.on_lost(node, fault)
        self.later(self.options.down_s, lambda: self.give_up(node))

    def heal(self, node: Node, fault: str) -> None:
        """Its network is back."""
        if fault not in node.cuts:
            return
        node.cuts.discard(fault)
        self.say("node_healed", fault=fault, node=node.name)
        if node.reachable and node.known_down:
            node.known_down = False
            self.touch(node)
        self.on_heard(node)

    def part(self, node: Node, fault: str, *, apart: bool) -> None:
        """It cannot reach the controller, or can again; jobs do not notice."""
        if apart:
            node.apart.add(fault)
        else:
            node.apart.discard(fault)
        self.say("node_cut" if apart else "node_healed", fault=fault, node=node.name, detail="controller only")
        self.on_heard(node)

    def break_part(self, node: Node, fault: str, remedy: str, label: str) -> None:
        """A part of the machine is broken until it is repaired."""
        if remedy:
            node.broken[fault] = remedy
            self.say("node_bad", fault=fault, who="fault", node=node.name, detail=f"{label} ({remedy} mends it)")

    def mend(self, node: Node, repair: str, *, who: str, order: str = "") -> None:
        """A repair of this kind mends what it, or less, can mend."""
        mends = {"reset": {"reset"}, "reboot": {"reset", "reboot"}}.get(repair, {"reset", "reboot", "replace"})
        mended = [fault for fault, remedy in node.broken.items() if remedy in mends]
        for fault in mended:
            del node.broken[fault]
            self.say("node_mended", fault=fault, who=who, order=order, node=node.name)

    def check(self, node: Node, *, who: str) -> str:
        """Run the node's checks: what they found wrong, or nothing."""
        bad = bool(node.broken or node.links) or self.chance("validate", self.options.validate_fail)
        self.say("node_checked", who=who, node=node.name, detail="failed" if bad else "passed")
        return "dcgmi diag -r 3: fail" if bad else ""

    def drain(self, node: Node, reason: str, *, who: str, order: str = "") -> bool:
        """Keep new work off it. False when it was drained already, or when the scheduler does not know it."""
        if node.drained or node.hidden:
            return False
        node.drained, node.reason = True, reason
        self.say("node_drained", who=who, order=order, node=node.name, detail=reason)
        self.touch(node)
        return True

    def resume(self, node: Node, *, who: str, order: str = "") -> bool:
        """Let it take work. False when it does already, or when the scheduler does not know it."""
        if not node.drained or node.hidden:
            return False
        detail = node.reason
        node.drained, node.reason, node.retired, node.failed_check = False, "", False, ""
        self.say("node_resumed", who=who, order=order, node=node.name, detail=detail)
        self.touch(node)
        return True

    def give_up(self, node: Node) -> None:
        """The scheduler has had no answer for long, or could not start anything there: to it the node is down."""
        if not node.reachable and not node.known_down:
            node.known_down = True
            self.touch(node)


def _nobody(*_: object) -> None:
    """Nobody listens."""

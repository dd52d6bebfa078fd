"""What the controller's tests are made of: a toy engine whose judgement is plain, and controllers that end surely."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from holdfast.adapters.clock import VirtualClock
from holdfast.adapters.memory import MemoryJournal, MemoryNotifier, MemoryOrchestrator, MemoryStore
from holdfast.controller import Controller, Settings
from holdfast.errors import EngineError
from holdfast.model import events as e
from holdfast.model import orders as o
from holdfast.model import records as r
from holdfast.model.cluster import JobKey, JobView, NodeView, RecoverySpec, SchedulerState
from holdfast.model.evidence import Finding, Place
from holdfast.ports import Touched

KEY = JobKey("test", "7")


class ToyState(msgspec.Struct):
    handled: list[str] = []
    """Kinds and ids of all events, in order."""
    pending: dict[str, o.AnyOrder] = {}


class ToyEngine:
    """`finding_seen` with rule `order:KIND` orders KIND for the node or job of its place; `timer:NAME:S` starts a timer.

    `cancel:NAME` cancels one, `refuse` is refused, `withdraw` withdraws all that is pending, `late` calls it failed.
    """

    def __init__(self, state: bytes | None = None) -> None:
        self.state = ToyState([], {}) if state is None else msgspec.msgpack.decode(state, type=ToyState)
        self._touched = Touched()

    def handle(self, event: e.AnyEvent) -> list[o.AnyOrder]:
        self._touched = Touched()
        if isinstance(event, e.FindingSeen) and event.finding.rule == "refuse":
            self.state.handled.append("half done")
            raise EngineError("no such line in the table", story=("once upon a time",))
        self.state.handled.append(f"{type(event).__name__} {event.id}")
        if isinstance(event, e.OrderDone | e.OrderFailed):
            order = self.state.pending.pop(event.order, None)
            if order is not None:
                status = o.OrderStatus.DONE if isinstance(event, e.OrderDone) else o.OrderStatus.FAILED
                self._touched.orders.append(r.OrderRecord(order, status, event.received_at, event.received_at))
        return self._orders(event) if isinstance(event, e.FindingSeen) else []

    def _orders(self, event: e.FindingSeen) -> list[o.AnyOrder]:
        verb, _, rest = event.finding.rule.partition(":")
        name, _, number = rest.partition(":")
        head: dict[str, Any] = {"id": f"o{event.seq}", "cause": event.seq}
        if verb == "timer":
            return [o.StartTimer(**head, timer=name, after_s=float(number))]
        if verb == "cancel":
            return [o.CancelTimer(**head, timer=name)]
        if verb in {"withdraw", "late"}:
            status = o.OrderStatus.WITHDRAWN if verb == "withdraw" else o.OrderStatus.FAILED
            for order in self.state.pending.values():
                self._touched.orders.append(r.OrderRecord(order, status, 0.0, event.received_at))
            self.state.pending.clear()
        if verb != "order":
            return []
        order = self._order(name, head, event.finding.place.node or "n1")
        self.state.pending[order.id] = order
        self._touched.orders.append(r.OrderRecord(order, o.OrderStatus.PENDING, event.received_at))
        return [order]

    def _order(self, kind: str, head: dict[str, Any], node: str) -> o.AnyOrder:
        fields: dict[str, dict[str, Any]] = {
            "quarantine_node": {"node": node, "why": "Xid 74"},
            "replace_node": {"node": node, "instance_id": f"machine-{node}"},
            "validate_node": {"node": node},
            "requeue_held": {"job": KEY, "restart_count": 0},
            "release_job": {"job": KEY, "epoch": 1},
            "capture_stacks": {"job": KEY, "attempt": 0},
            "notify": {"topic": "i1", "title": "node down"},
            "escalate": {"job": KEY, "attempt": 0, "exit_code": 85},
        }
        types = {cls.__struct_config__.tag: cls for cls in o.AnyOrder.__args__}
        return types[kind](**head, **fields[kind])

    def touched(self) -> Touched:
        return self._touched

    def snapshot(self) -> bytes:
        return msgspec.msgpack.encode(self.state)

    def pending_orders(self) -> list[r.OrderRecord]:
        return [r.OrderRecord(order, o.OrderStatus.PENDING, 0.0) for order in self.state.pending.values()]


def finding(rule: str, event_id: str = "", *, node: str = "n1") -> e.FindingSeen:
    seen = Finding(id=event_id or rule, rule=rule, at=1.0, place=Place(node=node))
    return e.FindingSeen(id=event_id or rule, at=1.0, source="agent:n1", finding=seen)


def world(clock: VirtualClock, nodes: int = 3) -> MemoryOrchestrator:
    names = [f"n{n}" for n in range(1, nodes + 1)]
    job = JobView(
        key=KEY, name="gpt", state=SchedulerState.RUNNING, nodes=tuple(names), recovery=RecoverySpec(), want_nodes=nodes
    )
    views = [
        NodeView(name=name, group="gpu", alive=True, boot_id=f"boot-{name}", instance_id=f"machine-{name}", jobs=("7",))
        for name in names
    ]
    return MemoryOrchestrator(clock, jobs=[job], nodes=views)


class House:
    """A store and a world that outlive their controllers."""

    def __init__(self, **settings: Any) -> None:
        self.clock = VirtualClock()
        self.store = MemoryStore()
        self.world = world(self.clock)
        self.notifier = MemoryNotifier()
        self.settings = Settings(**settings)
        self.engines: list[ToyEngine] = []

    def engine(self, state: bytes | None) -> ToyEngine:
        self.engines.append(ToyEngine(state))
        return self.engines[-1]

    def controller(
        self, holder: str = "one", journal: Any = None, lease_s: float = 15.0, witness: Any = None
    ) -> Controller:
        journal = journal if journal is not None else MemoryJournal(self.store)
        return Controller(
            journal,
            self.engine,
            self.world,
            [],
            [self.notifier],
            self.clock,
            holder=holder,
            lease_s=lease_s,
            settings=self.settings,
            witness=witness,
        )

    @property
    def handled(self) -> list[str]:
        """What the newest engine handled, without the watch's events."""
        return [one for one in self.engines[-1].state.handled if "Observed" not in one]


@asynccontextmanager
async def running(controller: Controller, *, kill: bool = False) -> AsyncIterator[Controller]:
    """Run a controller until the block ends: orderly, or (`kill`) with nothing of its own end done."""
    task = asyncio.create_task(controller.run())
    ready = asyncio.create_task(controller.ready.wait())
    try:
        await asyncio.wait([task, ready], return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
        yield controller
        if not kill:
            controller.stop()
            await asyncio.wait_for(task, 60)
    finally:
        ready.cancel()
        task.cancel()
        await asyncio.gather(task, ready, return_exceptions=True)


async def until(condition: Callable[[], Any], limit_s: float = 60.0) -> None:
    """Wait in the loop's own time (virtual, mostly) until something is so."""
    deadline = asyncio.get_running_loop().time() + limit_s
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "did not become so in time"
        await asyncio.sleep(0.01)

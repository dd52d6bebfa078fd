"""Events that tell what became of an order. `executors.py` calls it. Times are the clock port's."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import structlog

from holdfast.controller.state import ShellState
from holdfast.errors import OrderError, PermanentOrderError
from holdfast.model import events as e
from holdfast.model import orders as o
from holdfast.model.wire import kind_of
from holdfast.ports import Clock

_log = structlog.get_logger("holdfast.controller")

TEXT_MAX = 2000


class Outcomes:
    """Each method returns when the event is stored. `outcome` takes an event to the journal."""

    def __init__(
        self,
        clock: Clock,
        outcome: Callable[[e.AnyEvent], Awaitable[int]],
        state: Callable[[], ShellState],
    ) -> None:
        self._clock = clock
        self._outcome = outcome
        self._state = state
        self._failures = 0
        self.epoch = 0

    async def done(self, order: o.AnyOrder, detail: str, *, passed: bool = True) -> None:
        """The order is carried out; `passed`: what a validation's checks said."""
        now = self._clock.now()
        if isinstance(order, o.ValidateNode):
            await self._validated(order, passed=passed, detail=detail)
        await self._outcome(
            e.OrderDone(id=f"done:{order.id}", at=now, source="controller", order=order.id, detail=_plain(detail))
        )

    async def failed(self, order: o.AnyOrder, error: OrderError) -> None:
        """The order has failed, for good or for now."""
        permanent = isinstance(error, PermanentOrderError)
        self._failures += 1
        _log.warning("order failed", order=order.id, kind=kind_of(order), why=str(error), permanent=permanent)
        await self._outcome(
            e.OrderFailed(
                id=f"failed:{order.id}:{self.epoch}.{self._failures}",
                at=self._clock.now(),
                source="controller",
                order=order.id,
                why=_plain(str(error)),
                permanent=permanent,
            )
        )

    async def _validated(self, order: o.ValidateNode, *, passed: bool, detail: str) -> None:
        node = self._state().nodes.get(order.node)
        await self._outcome(
            e.NodeValidated(
                id=f"validated:{order.id}",
                at=self._clock.now(),
                source="controller",
                node=order.node,
                passed=passed,
                instance_id=order.instance_id or (node.instance_id if node is not None else ""),
                boot_id=node.boot_id if node is not None else "",
                detail=_plain(detail),
            )
        )


def _plain(text: str) -> str:
    """Words of a tool, bounded and surely Unicode: they go into the journal and onto pages."""
    return text[:TEXT_MAX].encode("utf-8", "replace").decode()

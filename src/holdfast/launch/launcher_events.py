"""Events of this launcher: their ids, and the way to its own engine, in order. Used by every part of the leader."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections.abc import Callable
from typing import Any, TypeVar

from holdfast.errors import LinkError, OrderError
from holdfast.launch.allocation import AllocationController
from holdfast.launch.place import JobPlace
from holdfast.model.events import AnyEvent, NodeGone, OrderDone, OrderFailed
from holdfast.model.evidence import Domain
from holdfast.model.orders import AnyOrder
from holdfast.model.records import JobRecord
from holdfast.os.clock import steady_time
from holdfast.ports import Orchestrator

_LAST_WORD_S = 30.0
"""A loaded machine may take that long to open the journal of a job that ends at once."""
_LOOK_S = 0.1


Told = TypeVar("Told", bound=AnyEvent)


class EventMaker:
    """Makes the events of one source.

    Args:
        source: who says so.
        prefix: what ids begin with.
        clock: gives seconds since the epoch.
    """

    def __init__(self, source: str, prefix: str, clock: Callable[[], float]) -> None:
        self.source = source
        self._prefix = prefix
        self._clock = clock
        self._numbers = itertools.count(1)

    def new_id(self) -> str:
        """An id that was not given before."""
        return f"{self._prefix}.{next(self._numbers)}"

    def event(self, kind: type[Told], **fields: Any) -> Told:
        """An event, now if its fields do not say when."""
        return kind(**{"id": self.new_id(), "at": self._clock(), "source": self.source, **fields})


async def order_outcome(order: AnyOrder, orchestrator: Orchestrator, maker: EventMaker) -> OrderDone | OrderFailed:
    """Carry out an order of the cluster's controller; what came of it goes back with this launcher's other events."""
    try:
        detail = await orchestrator.execute(order)
    except OrderError as error:
        return maker.event(OrderFailed, order=order.id, why=str(error))
    return maker.event(OrderDone, order=order.id, detail=detail)


class LauncherEvents(EventMaker):
    """What this launcher tells its engine.

    Args:
        place: names the job and this launcher.
        controller: runs the engine; takes events before its journal is open.
        say: takes a sentence for people.
    """

    def __init__(self, place: JobPlace, controller: AllocationController, say: Callable[[str], None]) -> None:
        # The token makes ids unique over restarts of this launcher.
        super().__init__(place.source, f"{place.source}/{place.restart_count}.{secrets.token_hex(3)}", steady_time)
        self.controller = controller
        self._job = place.job
        self._say = say

    def submit(self, *events: AnyEvent) -> asyncio.Future[int] | None:
        """Hand events to the engine, in order; the future is the last one's."""
        last = None
        for event in events:
            last = self.controller.submit(event)
        return last

    def node_gone(self, node: str, evidence: str, domain: Domain = Domain.HARDWARE) -> None:
        """A node that the job uses is lost."""
        self._say(f"{node} is lost: {evidence}")
        self.submit(self.event(NodeGone, node=node, evidence=evidence, domain=domain))

    async def until_stored(self, event: AnyEvent, give_up: Callable[[float], bool]) -> int:
        """Hand one last event to the engine and wait for its number; `give_up` is asked with the monotonic time.

        Raises:
            LinkError: the controller has ended, or nobody waits any longer.
        """
        stored = self.controller.submit(event)
        deadline = time.monotonic() + _LAST_WORD_S
        while not stored.done():
            now = time.monotonic()
            if now > deadline or give_up(now):
                raise LinkError("the launcher's last event is not stored")
            await asyncio.wait([stored], timeout=_LOOK_S)
        return stored.result()

    async def job_record(self) -> JobRecord | None:
        """The engine's record of the job."""
        found = await self.controller.journal.jobs(job=str(self._job))
        return found[0] if found else None

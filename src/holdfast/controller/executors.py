"""Carrying out orders: each by its own task, one at a time per job and per node, with limits and retries.

`loop.py` dispatches an order after its transaction is on disk; what became of it goes back as an event. A killed
controller dispatches its pending orders again, which is harmless because ports have "ensure" semantics. Time passes
by the clock port only. Nothing is begun while `may_act` says no: the lease is in doubt, or outcomes cannot be stored.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

import structlog

from holdfast.controller.acts import Acts, within
from holdfast.controller.mailbox import Mailboxes, address_of
from holdfast.controller.outcomes import Outcomes
from holdfast.controller.settings import Settings
from holdfast.controller.state import ShellState, key_text
from holdfast.errors import OrderError, PermanentOrderError, TemporaryOrderError
from holdfast.model import events as e
from holdfast.model import orders as o
from holdfast.model.wire import kind_of
from holdfast.ports import Clock, Notifier, Orchestrator, Repair

_log = structlog.get_logger("holdfast.controller")

MAILBOX_GRACE_S = 5.0
"""Beyond an order's own limit: a beat there and the outcome back."""


class Executors:
    """See the module. `outcome` takes an event to the journal and returns when it is stored."""

    def __init__(
        self,
        *,
        orchestrator: Orchestrator,
        repairs: Sequence[Repair],
        notifiers: Sequence[Notifier],
        mailboxes: Mailboxes,
        clock: Clock,
        settings: Settings,
        outcome: Callable[[e.AnyEvent], Awaitable[int]],
        may_act: Callable[[], bool],
        storing: Callable[[], int],
        state: Callable[[], ShellState],
    ) -> None:
        self._doers: list[Orchestrator | Repair] = [*repairs, orchestrator]
        self._notifiers = notifiers
        self._mailboxes = mailboxes
        self._clock = clock
        self._settings = settings
        self.acts = Acts(clock, settings, may_act, storing)
        self.outcomes = Outcomes(clock, outcome, state)
        self._lanes: dict[str, deque[o.AnyOrder]] = {}
        # In order of their beginning, not sets: a simulation must cut them off in the same order each time.
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._running: dict[str, asyncio.Task[None]] = {}
        self._known: set[str] = set()
        self._reporting: set[str] = set()
        """Orders that have failed for now, whose outcome is on its way to the journal."""
        self._again: dict[str, o.AnyOrder] = {}
        """Of these, the ones that the engine has asked for once more before their task had ended."""

    @property
    def waiting(self) -> int:
        """Orders that wait or run now."""
        return len(self._known)

    def dispatch(self, order: o.AnyOrder) -> None:
        """Carry the order out as soon as its job or node is free. An id that waits or runs already is ignored."""
        if order.id in self._reporting:
            # Its failure may be stored already, and nobody would ask a third time.
            self._again[order.id] = order
        if order.id in self._known or self.acts.killed:
            return
        self._known.add(order.id)
        lane = self._lane(order)
        queue = self._lanes.setdefault(lane, deque())
        queue.append(order)
        if len(queue) == 1:
            task = asyncio.create_task(self._serve(lane, queue), name=f"lane {lane}")
            self._tasks[task] = None
            task.add_done_callback(lambda done: self._tasks.pop(done, None))

    def settle(self, order_id: str) -> None:
        """The order's end is stored, from wherever it came: do not begin it, nor hand it out, any more.

        The try that runs is left to finish: half of it would be worse than twice. It is the last one.
        """
        self._mailboxes.settle(order_id)
        self._again.pop(order_id, None)
        if order_id in self._running:
            self.acts.settled.add(order_id)
        else:
            self._known.discard(order_id)

    def withdraw(self, order_id: str) -> None:
        """The engine no longer wants it: drop it if it waits, interrupt it if it runs."""
        self._mailboxes.settle(order_id)
        self._again.pop(order_id, None)
        self._known.discard(order_id)
        running = self._running.get(order_id)
        if running is not None:
            running.cancel()

    async def kill(self) -> None:
        """End everything now. What was not finished stays pending in the journal."""
        self.acts.killed = True
        tasks = [*self._tasks, *self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _lane(self, order: o.AnyOrder) -> str:
        if isinstance(order, o.Notify):
            return f"notify:{order.topic}"
        if self._doer(order) is None:
            # Handed out with a beat: the receiver keeps its own order, so one must not wait for another here.
            return f"mail:{order.id}"
        if isinstance(order, o.JobOrder):
            return f"job:{key_text(order.job)}"
        return f"node:{order.node}" if isinstance(order, o.NodeOrder) else f"order:{order.id}"

    def _doer(self, order: o.AnyOrder) -> Orchestrator | Repair | None:
        return next((doer for doer in self._doers if doer.can(order)), None)

    async def _serve(self, lane: str, queue: deque[o.AnyOrder]) -> None:
        while queue:
            order = queue[0]
            if order.id in self._known:
                task = self._running[order.id] = asyncio.create_task(self._one(order), name=f"order {order.id}")
                task.add_done_callback(_read_exception)
                try:
                    await asyncio.wait([task])
                finally:
                    task.cancel()
                    del self._running[order.id]
                    self._known.discard(order.id)
                    self._reporting.discard(order.id)
                    self.acts.settled.discard(order.id)
            queue.popleft()
            again = self._again.pop(order.id, None)
            if again is not None and not self.acts.killed:
                self._known.add(again.id)
                queue.append(again)
        del self._lanes[lane]

    async def _one(self, order: o.AnyOrder) -> None:
        try:
            if isinstance(order, o.Notify):
                await (self.outcomes.done(order, "the answer to a command") if order.is_answer else self._notify(order))
                return
            doer = self._doer(order)
            if doer is None:
                await self._by_mail(order)
                return
            detail = await self.acts.attempt(order, lambda: doer.execute(order), self._limit(order))
        except OrderError as error:
            await self._failed(order, error)
        except Exception as error:  # noqa: BLE001
            # An adapter's bug must not leave the order without an outcome for ever: the engine takes the next rung.
            _log.exception("order broke its adapter", order=order.id, kind=kind_of(order))
            await self._failed(order, PermanentOrderError(f"internal error: {error!r}"))
        else:
            await self.outcomes.done(order, detail)

    async def _failed(self, order: o.AnyOrder, error: OrderError) -> None:
        if order.id in self.acts.settled:
            return
        if isinstance(order, o.ValidateNode) and isinstance(error, PermanentOrderError):
            # The checks ran and said no: that is an outcome of the order, not its failure.
            await self.outcomes.done(order, str(error), passed=False)
            return
        self._reporting.add(order.id)
        await self.outcomes.failed(order, error)

    def _limit(self, order: o.AnyOrder) -> float:
        if isinstance(order, o.CaptureStacks | o.SaveAndStop):
            return order.limit_s + MAILBOX_GRACE_S
        if isinstance(order, o.StopAttempt):
            return order.grace_s + self._settings.order_limit_s
        if isinstance(order, o.ResetGpu | o.RebootNode | o.ReplaceNode | o.ValidateNode):
            return self._settings.repair_limit_s
        return self._settings.order_limit_s

    async def _by_mail(self, order: o.AnyOrder) -> None:
        """Hand the order to a launcher or agent; it is the receiver that reports the outcome."""
        address = address_of(order)
        if not address:
            is_repair = isinstance(order, o.ResetGpu | o.RebootNode | o.ReplaceNode)
            way = ": name a program for it under [repair] of the controller's holdfast.toml" if is_repair else ""
            raise PermanentOrderError(f"nothing here can carry out {kind_of(order)}{way}")
        await self.acts.gate()
        settled = self._mailboxes.put(address, order)
        limit_s = self._limit(order)
        try:
            await within(self._clock, limit_s, settled.wait())
        except TimeoutError as error:
            raise TemporaryOrderError(f"no outcome from {address} within {limit_s:g} s") from error
        finally:
            self._mailboxes.settle(order.id)

    async def _notify(self, order: o.Notify) -> None:
        told: set[int] = set()

        async def tell() -> str:
            for index, notifier in enumerate(self._notifiers):
                if index not in told:
                    await notifier.send(order)
                    told.add(index)
            return f"told by {len(told)} of {len(self._notifiers)}" if self._notifiers else "no notifier is configured"

        detail = await self.acts.attempt(order, tell, self._settings.notify_limit_s)
        await self.outcomes.done(order, detail)


def _read_exception(task: asyncio.Task[None]) -> None:
    """An outcome that could not be stored (the controller ends) leaves the order pending, to be done again."""
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.warning("an order's outcome was not stored", task=task.get_name(), why=str(error))

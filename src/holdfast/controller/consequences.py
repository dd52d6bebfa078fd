"""What follows from an entry once it is on disk: orders are begun or withdrawn, timers started or cancelled.

`loop.py` calls it after every commit, and at a start for what was under way. Timers wait by the clock port; what must
survive a restart is in `ShellState.timers`, and one that was overdue then fires at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from holdfast.controller.executors import Executors
from holdfast.controller.presence import Presence
from holdfast.controller.state import ShellState, Waiting
from holdfast.model import events as e
from holdfast.model import orders as o
from holdfast.ports import Clock, Entry

UNWANTED = frozenset({o.OrderStatus.WITHDRAWN, o.OrderStatus.REJECTED, o.OrderStatus.EXPIRED})
SETTLED = frozenset({o.OrderStatus.DONE, o.OrderStatus.FAILED})


class Timers:
    """Names and what cancels each."""

    def __init__(self, clock: Clock, submit: Callable[[e.AnyEvent], object]) -> None:
        self._clock = clock
        self._submit = submit
        self._cancels: dict[str, Callable[[], None]] = {}

    def start(self, name: str, waiting: Waiting) -> None:
        """Wait until it is due; one of the same name that waits already is replaced."""
        self.cancel(name)
        after_s = waiting.left_s(self._clock.now())
        self._cancels[name] = self._clock.call_later(after_s, lambda: self._fire(name, waiting))

    def cancel(self, name: str) -> None:
        """Forget it."""
        cancel = self._cancels.pop(name, None)
        if cancel is not None:
            cancel()

    def clear(self) -> None:
        """Forget all."""
        for name in list(self._cancels):
            self.cancel(name)

    def _fire(self, name: str, waiting: Waiting) -> None:
        self._cancels.pop(name, None)
        self._submit(e.TimerFired(id=waiting.event_id, at=self._clock.now(), source="controller", timer=name))


class Consequences:
    """Hands orders to the executors and timers."""

    def __init__(
        self, executors: Executors, timers: Timers, presence: Presence, shell: Callable[[], ShellState]
    ) -> None:
        self.executors = executors
        self.timers = timers
        self._presence = presence
        self._shell = shell

    def carry_on(self, pending: Sequence[o.AnyOrder], waiting: Mapping[str, Waiting], still: frozenset[str]) -> None:
        """Begin again what was under way before this controller started.

        Args:
            pending: orders that had no outcome in the journal.
            waiting: timers that were waited for.
            still: ids of orders that are wanted now.
        """
        for order in pending:
            if order.id in still and not isinstance(order, o.StartTimer | o.CancelTimer):
                self.executors.dispatch(order)
        for name, timer in self._shell().timers.items():
            if name in waiting and waiting[name].order == timer.order:
                self.timers.start(name, timer)

    async def stop(self) -> None:
        """End all that runs or waits."""
        self.timers.clear()
        await self.executors.kill()
        self.timers.clear()  # what was stored meanwhile may have started some

    def follow(self, entry: Entry) -> None:
        """Do what one entry asks for."""
        event = entry.event
        told = event.order if isinstance(event, e.OrderDone | e.OrderFailed) else ""
        if told:
            self.executors.settle(told)
        elif isinstance(event, e.LauncherAttached | e.AgentAttached):
            self._presence.attached(event)
        for record in entry.touched.orders:
            if record.status in UNWANTED or (record.status is o.OrderStatus.FAILED and record.order.id != told):
                # Without an outcome of its own it is out of time: what follows it must not wait for its adapter.
                self.executors.withdraw(record.order.id)
            elif record.status in SETTLED:
                self.executors.settle(record.order.id)
        for order in entry.orders:
            if isinstance(order, o.StartTimer):
                waiting = self._shell().timers.get(order.timer)
                if waiting is not None and waiting.order == order.id:
                    self.timers.start(order.timer, waiting)
            elif isinstance(order, o.CancelTimer):
                if order.timer not in self._shell().timers:
                    self.timers.cancel(order.timer)
            else:
                self.executors.dispatch(order)

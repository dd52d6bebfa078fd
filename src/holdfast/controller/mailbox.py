"""Orders that only a launcher or an agent can carry out, waiting to be handed out in the answers to their beats.

Filled by `executors.py`, emptied by `presence.py`. An order is handed out again with every beat until its outcome is
in the journal, because an answer can be lost; the receiver does each id once. Waiting is done by the executor.
"""

from __future__ import annotations

import asyncio

from holdfast.controller.state import key_text
from holdfast.model import orders as o
from holdfast.model.cluster import JobKey


def launcher_address(job: JobKey) -> str:
    """Where orders for a job's leading launcher wait."""
    return f"launcher:{key_text(job)}"


def agent_address(node: str) -> str:
    """Where orders for a node's agent wait."""
    return f"agent:{node}"


def address_of(order: o.AnyOrder) -> str:
    """Who carries this order out, when no adapter does; empty: nobody can."""
    match order:
        case o.CaptureStacks() | o.StopAttempt() | o.RestartInPlace() | o.SaveAndStop() | o.GiveUp():
            return launcher_address(order.job)
        case o.ResetGpu() | o.ValidateNode():
            return agent_address(order.node)
        case _:
            return ""


class Mailboxes:
    """Orders by address, in the order in which they were given."""

    def __init__(self) -> None:
        self._waiting: dict[str, dict[str, o.AnyOrder]] = {}
        self._settled: dict[str, tuple[str, asyncio.Event]] = {}
        self._news = asyncio.Event()

    def put(self, address: str, order: o.AnyOrder) -> asyncio.Event:
        """Let the order wait there; the returned event is set once its outcome is known."""
        settled = asyncio.Event()
        self._waiting.setdefault(address, {})[order.id] = order
        self._settled[order.id] = (address, settled)
        self._news.set()
        self._news = asyncio.Event()
        return settled

    def look(self, address: str) -> list[o.AnyOrder]:
        """What waits there now. Looking takes nothing away."""
        return list(self._waiting.get(address, {}).values())

    def news(self) -> asyncio.Event:
        """An event that is set when the next order arrives anywhere: what a beat that may wait waits for."""
        return self._news

    def settle(self, order_id: str) -> None:
        """The order's outcome is stored, or it is no longer wanted, or its time is over: hand it out no more."""
        address, settled = self._settled.pop(order_id, ("", None))
        if settled is None:
            return
        settled.set()
        box = self._waiting[address]
        del box[order_id]
        if not box:
            del self._waiting[address]

"""Waiting until events are on disk, and no longer than the journal takes events: else the sender is told to come back.

An event that was submitted before the journal refused may be stored later; its id makes the sender's second try
harmless. Called by the routes. Time passes while the journal writes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from holdfast.controller import Controller
from holdfast.errors import LinkError
from holdfast.model.events import AnyEvent


def check_writable(controller: Controller) -> None:
    """Return when the journal takes events, as far as is known. Raises LinkError."""
    if controller.failing:
        raise LinkError(f"the journal cannot be written now: {controller.failing}")


async def stored(controller: Controller, events: Sequence[AnyEvent]) -> list[int | BaseException]:
    """Submit these events; returns for each what `Controller.submit` gives once it is on disk, or its error.

    Raises:
        LinkError: the journal refuses. Nothing was submitted, or what was may be stored later.
    """
    check_writable(controller)
    done = asyncio.gather(*(controller.submit(event) for event in events), return_exceptions=True)
    refuses = asyncio.create_task(controller.refuses.wait())
    waited: list[asyncio.Future[Any]] = [done, refuses]
    try:
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if not done.done():
            check_writable(controller)
        return await done
    finally:
        refuses.cancel()

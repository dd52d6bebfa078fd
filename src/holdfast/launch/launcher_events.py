"""Events of this launcher: their ids, and the way to its own engine, in order. Used by every part of the leader."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections.abc import Callable

from holdfast.errors import HoldfastError, LinkError
from holdfast.launch.allocation import AllocationController
from holdfast.launch.core.shutdown import Stored
from holdfast.launch.place import JobPlace
from holdfast.model.events import AnyEvent
from holdfast.model.records import JobRecord

_LAST_WORD_S = 30.0
"""A loaded machine may take that long to open the journal of a job that ends at once."""
_LOOK_S = 0.1


class LauncherEvents:
    """What this launcher tells its engine.

    Args:
        place: names the job and this launcher.
        controller: runs the engine; takes events before its journal is open.
        say: takes a sentence for people.
    """

    def __init__(self, place: JobPlace, controller: AllocationController, say: Callable[[str], None]) -> None:
        self.source = place.source
        self.controller = controller
        self._job = str(place.job)
        self._restart_count = place.restart_count
        self._say = say
        self._token = secrets.token_hex(3)
        self._numbers = itertools.count(1)

    def new_id(self) -> str:
        """An id, unique over restarts of this launcher."""
        return f"{self.source}/{self._restart_count}.{self._token}.{next(self._numbers)}"

    def submit(self, *events: AnyEvent) -> asyncio.Future[int] | None:
        """Hand events to the engine, in order; the future is the last one's."""
        last = None
        for event in events:
            last = self.controller.submit(event)
        return last

    async def outcome(self, stored: asyncio.Future[int] | None) -> Stored:
        """Wait for what becomes of a submitted event."""
        if stored is None:
            return Stored.TAKEN
        try:
            await stored
        except LinkError:
            return Stored.LOST
        except HoldfastError as error:
            self._say(f"the engine refused to judge the end of the attempt: {str(error).splitlines()[0]}")
            return Stored.REFUSED
        return Stored.TAKEN

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
        found = await self.controller.journal.jobs(job=self._job)
        return found[0] if found else None

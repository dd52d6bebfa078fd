"""How many strangers may stand in a server's door: connections that have not yet said who they are or what they want.

The servers of agents, launchers, validations and stand-bys let each connection enter here. At the limit the one that
has stood there for longest is ended: a client that speaks at once is through before its turn comes, and the process
keeps descriptors for its own work. Each server has its own time limit beside it. No time passes here.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

STRANGERS_MAX = 128
"""Far below the 1,024 descriptors that a process has by default."""


class Doorway:
    """Those who stand in one server's door, the oldest first.

    Args:
        expected: so many honest ones may come at once, beside `STRANGERS_MAX`.
    """

    def __init__(self, expected: int = 0) -> None:
        self._places = STRANGERS_MAX + expected
        self._inside: dict[asyncio.StreamWriter, None] = {}

    @contextlib.contextmanager
    def enter(self, writer: asyncio.StreamWriter) -> Iterator[None]:
        """Stand in the door inside the block; whoever stood there for too long has its connection ended."""
        while len(self._inside) >= self._places:
            oldest = next(iter(self._inside))
            del self._inside[oldest]
            oldest.transport.abort()
        self._inside[writer] = None
        try:
            yield
        finally:
            self._inside.pop(writer, None)

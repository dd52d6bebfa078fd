"""The one canonical form of a journal: JSON lines, one per event with its orders; equal history gives equal bytes.

Called by the command line, and by simulation, which compares two runs of one seed byte by byte. No time passes here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from holdfast.model.wire import encode
from holdfast.ports import Journal

PAGE = 1000


async def export(journal: Journal) -> AsyncIterator[bytes]:
    r"""Every event with the orders it led to, oldest first: `{"seq":7,"event":{...},"orders":[...]}\n`."""
    after = 0
    while True:
        entries = await journal.entries(after=after, limit=PAGE)
        for entry in entries:
            after = entry.event.seq
            yield b'{"seq":%d,"event":%b,"orders":%b}\n' % (after, encode(entry.event), encode(entry.orders))
        if len(entries) < PAGE:
            return

"""A process that appends batches to a journal and says each acknowledged seq on stdout, until it is killed.

Its arguments are the journal's URL and, if it is to try again what the store refused, the word `again`.
"""

from __future__ import annotations

import asyncio
import os
import sys

from tests.adapters.journal_cases import entry, node_record

from holdfast.adapters.journal import open_journal
from holdfast.errors import FencedError, JournalError
from holdfast.ports import Entry, Journal


async def main(url: str, *, again: bool) -> None:
    journal = open_journal(url)
    await journal.acquire("writer", lease_s=60, now=100)
    seq = await journal.last_seq()
    while True:
        size = 1 + seq % 7
        batch = [entry(n, event_id=f"e{n}", nodes=[node_record(f"n{n % 5}")]) for n in range(seq + 1, seq + size + 1)]
        await append(journal, batch, again=again)
        seq += size
        os.write(1, f"{seq}\n".encode())
        if seq % 11 == 0 and not again:
            await journal.snapshot(b"state %d" % seq, seq)


async def append(journal: Journal, batch: list[Entry], *, again: bool) -> None:
    while True:
        try:
            return await journal.append(batch)
        except FencedError:
            raise
        except JournalError:
            if not again:
                raise


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], again=sys.argv[2:] == ["again"]))

"""A process that appends batches to a journal and says each acknowledged seq on stdout, until it is killed."""

from __future__ import annotations

import asyncio
import os
import sys

from tests.adapters.journal_cases import entry, node_record

from holdfast.adapters.journal import open_journal


async def main(path: str) -> None:
    journal = open_journal(f"sqlite:///{path}")
    await journal.acquire("writer", lease_s=60, now=100)
    seq = await journal.last_seq()
    while True:
        size = 1 + seq % 7
        batch = [entry(n, event_id=f"e{n}", nodes=[node_record(f"n{n % 5}")]) for n in range(seq + 1, seq + size + 1)]
        await journal.append(batch)
        seq += size
        os.write(1, f"{seq}\n".encode())
        if seq % 11 == 0:
            await journal.snapshot(b"state %d" % seq, seq)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))

"""Follows the kernel's messages in systemd's journal, for agents that may read the journal but not `/dev/kmsg`.

One `journalctl -k -f` per agent, started again a moment after it ends. What stood in the journal before is history:
there is no place to go on from, as the device and files have it. Time passes in the tool and between two starts of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from holdfast.errors import LinkError
from holdfast.os.programs import DROPPED, Command, run_blocking, started, where

JOURNAL = Path("journald")
"""In place of a path: the journal."""
ARGV = ("journalctl", "--dmesg", "--follow", "--lines=0", "--output=cat", "--no-pager", "--quiet")
AGAIN_S = 5.0
CHUNK = 65_536


class KernelJournal:
    """Follows the journal.

    Args:
        on_data: called with (name, bytes), as a `Tailer` calls it.
    """

    def __init__(self, on_data: Callable[[str, bytes], None]) -> None:
        self._on_data = on_data
        self._task: asyncio.Task[None] | None = None
        self.starts = 0

    def start(self) -> None:
        """Begin. Raises LinkError when there is no journalctl."""
        path = where(ARGV[0], os.environ.get("PATH", ""))
        if not path:
            raise LinkError("there is no journalctl")
        self._task = asyncio.create_task(self._follow(path))

    async def _follow(self, path: str) -> None:
        while True:
            self.starts += 1
            with contextlib.suppress(OSError):
                await self._read(path)
            await asyncio.sleep(AGAIN_S)

    async def _read(self, path: str) -> None:
        async with started(Command(argv=(path, *ARGV[1:]), stderr=DROPPED)) as program:
            while program.process.stdout is not None and (data := await program.process.stdout.read(CHUNK)):
                self._on_data(str(JOURNAL), data)

    def close(self) -> None:
        """Stop; the tool ends with it. Calling it twice is harmless."""
        if self._task is not None:
            self._task.cancel()
            self._task = None


def can_read() -> bool:
    """Is there a journal that this process may read?"""
    ran = run_blocking(Command(argv=(ARGV[0], "--dmesg", "--lines=1", "--output=cat", "--quiet")), 5.0)
    return ran.code == 0 and bool(ran.stdout.strip())

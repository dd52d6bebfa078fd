"""Follows the kernel's messages in systemd's journal, for agents that may read the journal but not `/dev/kmsg`.

One `journalctl -k -f` per agent, started again a moment after it ends. What stood in the journal before is history:
there is no place to go on from, as the device and files have it. Time passes in the tool and between two starts of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from holdfast.errors import LinkError

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
        path = shutil.which(ARGV[0])
        if path is None:
            raise LinkError("there is no journalctl")
        self._task = asyncio.create_task(self._follow(path))

    async def _follow(self, path: str) -> None:
        while True:
            self.starts += 1
            with contextlib.suppress(OSError):
                await self._read(path)
            await asyncio.sleep(AGAIN_S)

    async def _read(self, path: str) -> None:
        process = await asyncio.create_subprocess_exec(
            path, *ARGV[1:], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        try:
            while process.stdout is not None and (data := await process.stdout.read(CHUNK)):
                self._on_data(str(JOURNAL), data)
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    def close(self) -> None:
        """Stop; the tool ends with it. Calling it twice is harmless."""
        if self._task is not None:
            self._task.cancel()
            self._task = None


def can_read() -> bool:
    """Is there a journal that this process may read?"""
    path = shutil.which(ARGV[0])
    if path is None:
        return False
    argv = [path, "--dmesg", "--lines=1", "--output=cat", "--quiet"]
    try:
        done = subprocess.run(argv, capture_output=True, timeout=5.0, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and bool(done.stdout.strip())

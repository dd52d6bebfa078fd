"""One run of one tool: an argument list, a time limit, and nothing left behind, whoever loses patience.

`tool.py` (the controller's commands), `own_job.py` (a job's owner's) and `old_output.py` (a move as the job's owner)
run their tools by this. Time passes while the tool runs.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct


class Done(Struct, frozen=True):
    """How a run ended and what it printed."""

    code: int
    out: bytes
    err: bytes

    def text_of_error(self) -> str:
        """What it said on stderr; bytes that are no UTF-8 are replaced."""
        return self.err.decode("utf-8", "replace").strip()


async def run_once(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    limit_s: float,
    cwd: Path | str | None = None,
    own_session: bool = False,
    owner: Mapping[str, Any] | None = None,
) -> Done:
    """Run it to its end, without standard input.

    Args:
        argv: the tool and its arguments.
        env: its whole environment.
        limit_s: after so long it is killed.
        cwd: where it runs.
        own_session: signals to our own terminal or process group do not reach it.
        owner: `user`, `group` and `extra_groups` that it runs as, where that is not us.

    Raises:
        OSError: it cannot be started.
        TimeoutError: it did not end in time; it has been killed.
    """
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=dict(env),
        cwd=cwd,
        start_new_session=own_session,
        **(owner or {}),
    )
    try:
        async with asyncio.timeout(limit_s):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    return Done(process.returncode or 0, out, err)

"""Starts daemons of this project: each in a session of its own, with a log, and waits for its first word.

The word comes through a pipe whose number the daemon is told (`--ready-fd`). A daemon outlives its starter unless it
was told to follow it. Called by the embedded cluster and the labs.
"""

from __future__ import annotations

import os
import select
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

WORD_MAX = 16


def start_daemon(
    argv: Sequence[str], log: Path, *, limit_s: float, env: Mapping[str, str] | None = None
) -> tuple[subprocess.Popen[bytes], bool]:
    """Start a daemon and wait for its word.

    Args:
        argv: its program; `--ready-fd N` is appended.
        log: both outputs are appended to this file.
        limit_s: longest wait for its word.
        env: its whole environment; None: ours.

    Returns:
        The process, and whether it said that it is ready.
    """
    told, tell = os.pipe()
    with os.fdopen(told, "rb", buffering=0) as word:
        try:
            with log.open("ab") as out:
                process = subprocess.Popen(
                    [*argv, "--ready-fd", str(tell)],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    env=env,
                    pass_fds=[tell],
                    start_new_session=True,
                )
        finally:
            os.close(tell)
        readable, _, _ = select.select([word], [], [], limit_s)
        return process, bool(readable and word.read(WORD_MAX))

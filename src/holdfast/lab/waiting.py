"""Starting a lab's keeper, waiting for daemons and for steps of a build, with deadlines; what the logs said is told.

Called by both labs and their daemons. The machine's clock is read here and nowhere else in the room but in processes
that the keeper owns.
"""

from __future__ import annotations

import os
import select
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from holdfast.errors import LinkError
from holdfast.os.daemons import start_daemon
from holdfast.os.programs import Command, run_blocking

POLL_S = 0.03
TAIL_LINES = 8
TAIL_BYTES = 16_000
BUILD_LIMIT_S = 3600.0


def start_keeper(
    argv: Sequence[str], log: Path, env: Mapping[str, str], *, follow: bool, limit_s: float
) -> subprocess.Popen[bytes]:
    """Start a keeper and return at its first word: that it listens.

    Args:
        argv: its command line, but for `--ready-fd` and `--parent-pid`.
        log: gets what it prints.
        env: its environment.
        follow: it ends with this process.
        limit_s: until it says so.

    Raises:
        LinkError: it did not; it may run still.
    """
    words = [*argv, *(["--parent-pid", str(os.getpid())] if follow else [])]
    process, is_ready = start_daemon(words, log, limit_s=limit_s, env=env)
    if not is_ready:
        raise LinkError(f"the lab did not start{ends(log)}")
    return process


def wait_until(true: Callable[[], object], what: str, *, limit_s: float, logs: tuple[Path, ...] = ()) -> None:
    """Return as soon as `true()` is.

    Raises:
        LinkError: it was not within the limit; says what was waited for and how the logs end.
    """
    deadline = time.monotonic() + limit_s
    while not true():
        if time.monotonic() >= deadline:
            raise LinkError(f"{what}: not within {limit_s:g} s{ends(*logs)}")
        time.sleep(POLL_S)


def wait_gone(pid: int, what: str, *, limit_s: float) -> None:
    """Return when this process has ended. Raises LinkError when it has not within the limit."""
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if not select.select([watched], [], [], limit_s)[0]:
            raise LinkError(f"{what} (pid {pid}) did not end within {limit_s:g} s")
    finally:
        os.close(watched)


def run_step(
    what: str,
    argv: Sequence[str],
    log: Path,
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    may_fail: bool = False,
) -> None:
    """Run one step of a build, whose output goes to `log`.

    Raises:
        LinkError: it failed or took more than an hour; `what` is missing by that, and the end of the log is told.
    """
    ran = run_blocking(Command(argv=tuple(argv), env=env, cwd=cwd, log=log), BUILD_LIMIT_S)
    if ran.hung:
        raise LinkError(f"{what}: `{' '.join(argv[:3])}` did not end in {BUILD_LIMIT_S:g} s{ends(log)}")
    if ran.code != 0 and not may_fail:
        raise LinkError(f"{what}: `{' '.join(argv[:3])}` failed with {ran.code or ran.err}{ends(log)}")


def ends(*logs: Path) -> str:
    """The last lines of each log that has any, to be put behind an error."""
    said = []
    for log in logs:
        try:
            with log.open("rb") as file:
                file.seek(max(0, log.stat().st_size - TAIL_BYTES))
                lines = file.read().decode(errors="replace").splitlines()[-TAIL_LINES:]
        except OSError:
            continue
        if lines:
            said.append(f"\n  the end of {log}:\n    " + "\n    ".join(lines))
    return "".join(said)

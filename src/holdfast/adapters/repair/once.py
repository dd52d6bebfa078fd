"""A command that belongs to an order is run once, whatever becomes of the controller meanwhile.

`command.py` and `hooks.py` call `Once.run`. The command runs below `runner.py`, in a session of its own: a controller
that is killed and started again finds it running, or what it left as a record. Only a runner that was itself killed (a
reboot of this machine) has its command begun anew. An order that is withdrawn does not end a repair that has begun:
half a reboot is worse than a whole one. Time passes until the command ends, at most its limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from holdfast.adapters.repair import runner
from holdfast.errors import TemporaryOrderError

LOOK_FIRST_S = 0.02
LOOK_MAX_S = 0.5
KEEP_S = 7 * 86400.0
"""Records of older orders are removed; no order is carried on after so long."""
_UNFIT = re.compile(r"[^A-Za-z0-9._-]")
_DROPPED = ("HOLDFAST_TOKEN", "HOLDFAST_TOKEN_FILE")
"""Not for a site's program: it acts for the site, not for the controller."""


class Ended(Struct, frozen=True):
    """How a command ended."""

    code: int
    """Minus the signal that ended it."""
    said: str = ""
    """The end of what it printed."""
    late: bool = False
    """It was killed at its limit."""
    seconds: float = 0.0

    @property
    def last_line(self) -> str:
        """For people: what it said last, else its exit code."""
        lines = self.said.splitlines()
        return lines[-1] if lines else f"ended with {self.code}"


class Once:
    """See the module.

    Args:
        folder: where records are kept; made when it is missing.
        environ: what commands get, beside the facts of their order.
    """

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        self._folder = folder
        self._environ = {name: value for name, value in environ.items() if name not in _DROPPED}
        self._runners: list[subprocess.Popen[bytes]] = []
        """Those that may have to be collected, also when whoever waited for them was ended."""

    def record(self, key: str) -> Path:
        """Where a command's end is written."""
        return self._folder / f"{_UNFIT.sub('_', key)}.json"

    def ended(self, key: str) -> Ended | None:
        """How it ended; None when it has not, or was never begun."""
        try:
            return msgspec.json.decode(self.record(key).read_bytes(), type=Ended)
        except (OSError, msgspec.MsgspecError):
            return None

    async def run(self, key: str, argv: Sequence[str], facts: Mapping[str, str], limit_s: float) -> Ended:
        """Run it, or wait for the run that was begun before.

        Args:
            key: names the run; the same key is never run twice to its end.
            argv: the command.
            facts: further environment.
            limit_s: the longest run.

        Raises:
            TemporaryOrderError: the folder cannot be written, or the command's runner vanished.
        """
        record = self.record(key)
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._sweep()
            process = self._start(record, argv, facts, limit_s) if not record.exists() else None
        except OSError as error:
            raise TemporaryOrderError(f"{self._folder}: {error.strerror}", retry_after_s=10.0) from error
        pause_s = LOOK_FIRST_S
        while True:
            over = (process is None or process.poll() is not None) and not runner.alive(record.with_suffix(".begun"))
            if (ended := self.ended(key)) is not None:
                break
            if over:
                record.unlink(missing_ok=True)  # torn, or not there at all
                raise TemporaryOrderError(f"what runs {argv[0]} was itself ended")
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 1.5, LOOK_MAX_S)
        self._runners = [one for one in self._runners if one.poll() is None]
        return ended

    def _start(
        self, record: Path, argv: Sequence[str], facts: Mapping[str, str], limit_s: float
    ) -> subprocess.Popen[bytes] | None:
        if runner.alive(record.with_suffix(".begun")):
            return None
        words = [sys.executable, "-I", runner.__file__, "--record", str(record), "--limit-s", str(limit_s), "--", *argv]
        started = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**self._environ, **facts},
            cwd="/",
            start_new_session=True,
        )
        self._runners.append(started)
        return started

    def _sweep(self) -> None:
        """Remove what is too old to be asked for again."""
        limit = time.time() - KEEP_S
        for entry in os.scandir(self._folder):
            with contextlib.suppress(OSError):
                if entry.is_file(follow_symlinks=False) and entry.stat().st_mtime < limit:
                    os.unlink(entry.path)  # noqa: PTH108 - a directory entry, no Path at hand

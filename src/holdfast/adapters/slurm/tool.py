"""Runs Slurm's tools: argument lists only, each with a time limit, a clean environment and a sorted error.

Called by `client.py` and its orders. What slurmctld says under load ("Socket timed out", "Transient error") is worth
another try and is tried again here for a few seconds; what it refuses is not. Time passes while a tool runs.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import structlog

from holdfast.errors import LinkError, OrderError, PermanentOrderError, TemporaryOrderError
from holdfast.os.programs import Command
from holdfast.os.programs import run as run_program

LIMIT_S = 20.0
RETRY_S = (0.1, 0.3, 1.0)
AT_ONCE = 8
"""Tools that run at the same time at most: slurmctld serves 256 threads, a login node's users need some of them."""
SAID_MAX = 400
OUTPUT_MAX = 512 << 20
"""Bytes of one answer: a job of `squeue --json` takes 5 to 10 kB."""

_TRANSIENT = (
    "socket timed out",
    "transient error",
    "temporarily unable",
    "temporarily unavailable",
    "unable to contact slurm controller",
    "unable to contact slurmctld",
    "connection refused",
    "connection reset",
    "connection timed out",
    "zero bytes were transmitted",
    "message receive failure",
    "message send failure",
    "backup controller in standby",
    "socket communication error",
    "protocol authentication error",
    "in the process of being",
    "slurm_load_jobs error: unexpected message received",
)
_log = structlog.get_logger("holdfast.slurm")

_KEPT = ("PATH", "HOME", "LD_LIBRARY_PATH", "SLURM_CONF", "SLURM_CONF_SERVER", "USER", "LOGNAME")


class Tool:
    """Runs commands of one cluster.

    Args:
        conf: its slurm.conf; None: what the environment says, else the packages' own.
        environ: the environment to take PATH and the like from.
    """

    def __init__(self, conf: Path | None = None, environ: Mapping[str, str] | None = None) -> None:
        base = os.environ if environ is None else environ
        self.environ = {key: base[key] for key in _KEPT if key in base}
        # A person's SQUEUE_FORMAT or SLURM_TIME_FORMAT must not change what is read here.
        self.environ.update({"LC_ALL": "C", "TZ": "UTC", "SLURM_TIME_FORMAT": "standard"})
        if conf is not None:
            self.environ["SLURM_CONF"] = str(conf)
        self.calls: Counter[str] = Counter()
        """How often each tool was run: the load that we are."""
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def run(self, argv: Sequence[str], *, limit_s: float = LIMIT_S, again: bool = True) -> bytes:
        """Run it; returns what it printed. `again`: what is worth another try is tried again at once.

        Raises:
            TemporaryOrderError: slurmctld is busy or away.
            PermanentOrderError: it says no.
            LinkError: the tool itself is not there.
        """
        for pause_s in RETRY_S if again else ():
            try:
                return await self._once(argv, limit_s)
            except TemporaryOrderError as error:
                _log.info("slurm is asked again", tool=argv[0], why=str(error), in_s=pause_s)
            await asyncio.sleep(pause_s)
        return await self._once(argv, limit_s)

    async def text(self, argv: Sequence[str], *, limit_s: float = LIMIT_S, again: bool = True) -> str:
        """`run`, as text. Bytes that are no UTF-8 (in a job's name) are replaced."""
        return (await self.run(argv, limit_s=limit_s, again=again)).decode("utf-8", "replace")

    async def _once(self, argv: Sequence[str], limit_s: float) -> bytes:
        async with self._slots:
            self.calls[argv[0]] += 1
            ran = await run_program(Command(argv=tuple(argv), env=self.environ, kept_max=OUTPUT_MAX), limit_s)
        if ran.hung:
            raise TemporaryOrderError(f"{argv[0]} gave no answer within {limit_s:g} s")
        if ran.code is None:
            raise LinkError(f"{argv[0]} cannot be run: {ran.err}; is Slurm's client on the PATH?")
        words = ran.err.strip()
        if ran.code == 0 and not _refused(argv, words):
            return ran.stdout
        raise error_of(argv, ran.code, words)


def _refused(argv: Sequence[str], words: str) -> bool:
    """`scancel` ends with 0 whatever slurmctld answered."""
    return argv[0] == "scancel" and "error:" in words and not over_already(words)


def is_queued(words: str) -> bool:
    """Does slurmctld refuse a requeue because the job waits in the queue as it is?"""
    return "is pending execution" in words.casefold()


def over_already(words: str) -> bool:
    """Does slurmctld say that the job or step is over, or has not begun, so that there is nothing to end?"""
    low = words.casefold()
    return any(
        phrase in low
        for phrase in (
            "already completing",
            "already completed",
            "has already finished",
            "is pending execution",
            "invalid job id",
        )
    )


def is_transient(words: str) -> bool:
    """Does the error say that slurmctld is busy or away, so that the same may be asked again?"""
    low = words.casefold()
    return any(phrase in low for phrase in _TRANSIENT)


def error_of(argv: Sequence[str], code: int, words: str) -> OrderError:
    """What a tool's failure means."""
    last = words.splitlines()[-1] if words else f"ended with {code}"
    sentence = f"{argv[0]}: {last[:SAID_MAX]}"
    if is_transient(words):
        return TemporaryOrderError(sentence)
    return PermanentOrderError(sentence)

"""A launcher that leaves its allocation on Slurm without a controller has its job requeued, by the owner's right.

Called by `program` and `step` after everything of theirs has ended: the requeue ends this process too. Nothing but the
counts of requeues is kept, in the job's folder; progress in between (`decide.restart`) resets them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Self

from holdfast.adapters.slurm.own_job import OwnJob
from holdfast.errors import LinkError, OrderError
from holdfast.launch import process
from holdfast.launch.leader import Leader
from holdfast.launch.output import Voice

FILE = "requeues.json"
_ENDED_BY_SCHEDULER_S = 120.0
"""The scheduler ends this process after a requeue; it does not wait longer for that."""


def requeue_own_job(leader: Leader, own_job: OwnJob, *, environ: Mapping[str, str], voice: Voice) -> str:
    """Requeue the job without the nodes that it must leave, and wait to be ended.

    Args:
        leader: has left; says which nodes to leave out, and which do not run.
        own_job: the job.
        environ: of the job.
        voice: for people.

    Returns why it was not requeued.
    """
    if leader.leaving.uplink is not None and leader.leaving.uplink.is_reachable:
        return "its controller knows, and does what is to be done"
    folder = leader.place.job_dir
    limits = leader.policy.limits
    asked = leader.job_view().recovery
    allowed = asked.max_requeues if asked is not None and asked.max_requeues is not None else limits.max_requeues
    count = _requeues(folder / FILE, leader.leaving.last_words.progressed)
    if count >= allowed:
        return f"{count} requeues with no progress in between, which is the limit"
    with _EndPutOff(environ) as put_off:
        refusal = _requeue(leader, own_job, count + 1, environ, voice)
        put_off.is_over = not refusal
    if refusal:
        return refusal
    time.sleep(_ENDED_BY_SCHEDULER_S)
    return "the scheduler has not ended this run of it"


def _requeue(leader: Leader, own_job: OwnJob, count: int, environ: Mapping[str, str], voice: Voice) -> str:
    """Write down that it is the `count`-th, and have it done; returns why that failed, else nothing."""
    noted = leader.place.job_dir / FILE
    words = leader.leaving.last_words
    size = environ.get("SLURM_JOB_NUM_NODES", "")
    try:
        noted.write_text(json.dumps({"count": count, "progressed": words.progressed}), encoding="utf-8")
        promise = asyncio.run(
            own_job.requeue(words.exclude, gone=leader.nodes.gone, size=int(size) if size.isdecimal() else 0)
        )
    except (OrderError, LinkError) as error:
        return str(error)
    except OSError as error:
        return f"{noted}: {error.strerror}"
    voice.say(promise)
    return ""


class _EndPutOff:
    """The scheduler's SIGTERM, which follows the requeue at once, has its effect when this is left, not before.

    It may end our command as well, so that the requeue seems to have failed: it is what says that the run is over.

    Attributes:
        is_over: the run is over, whether or not the signal came.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.is_over = False
        self._environ = environ
        self._has_come = False

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGTERM, self._note)
        return self

    def _note(self, number: int, _: FrameType | None) -> None:
        del number
        self._has_come = True

    def __exit__(self, *raised: object) -> None:
        if self.is_over or self._has_come:
            _end_old_sruns(self._environ)
        signal.signal(signal.SIGTERM, self._before)
        if self._has_come:
            os.kill(os.getpid(), signal.SIGTERM)


def _end_old_sruns(environ: Mapping[str, str]) -> None:
    """An srun of this run that outlives it gives up on its step by number, which is then a step of the next run.

    The script that waits for it is stopped first, so that it does not go on with its next line; the scheduler's SIGCONT
    and SIGTERM come in a moment and end it.
    """
    job, count = environ.get("SLURM_JOB_ID", ""), environ.get("SLURM_RESTART_COUNT", "")
    table = process.parents()

    def is_ours(pid: int) -> bool:
        told = process.environ_of(pid)
        return told.get("SLURM_JOB_ID") == job and told.get("SLURM_RESTART_COUNT", "") == count

    for pid in table:
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/comm").read_text(encoding="utf-8", errors="replace").strip() == "srun" and is_ours(
                pid
            ):
                if is_ours(table[pid]):
                    os.kill(table[pid], signal.SIGSTOP)
                os.kill(pid, signal.SIGKILL)


def _requeues(path: Path, progressed: int) -> int:
    """Requeues since the last progress."""
    try:
        told = json.loads(path.read_bytes())
        return int(told["count"]) if int(told["progressed"]) >= progressed else 0
    except (OSError, ValueError, KeyError, TypeError):
        return 0

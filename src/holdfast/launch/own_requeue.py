"""A launcher that leaves its allocation on Slurm without a controller has its job requeued, by the owner's right.

Called by `program` and `step` after everything of theirs has ended: the requeue ends this process too. Nothing but the
counts of requeues is kept, in the job's folder; a new durable checkpoint in between resets them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

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
    if leader.uplink is not None and leader.uplink.is_reachable:
        return "its controller knows, and does what is to be done"
    folder = leader.place.job_dir
    limits = leader.policy.limits
    asked = leader.job_view().recovery
    allowed = asked.max_requeues if asked is not None and asked.max_requeues is not None else limits.max_requeues
    count = _requeues(folder / FILE, leader.parting.durable_step)
    if count >= allowed:
        return f"{count} requeues without a new checkpoint in between, which is the limit"
    size = environ.get("SLURM_JOB_NUM_NODES", "")
    with _end_put_off(environ):
        try:
            (folder / FILE).write_text(
                json.dumps({"count": count + 1, "durable_step": leader.parting.durable_step}), encoding="utf-8"
            )
            promise = asyncio.run(
                own_job.requeue(
                    leader.parting.exclude, gone=leader.parting.gone, size=int(size) if size.isdecimal() else 0
                )
            )
        except (OrderError, LinkError) as error:
            return str(error)
        except OSError as error:
            return f"{folder / FILE}: {error.strerror}"
        voice.say(promise)
        _end_old_sruns(environ)
    time.sleep(_ENDED_BY_SCHEDULER_S)
    return "the scheduler has not ended this run of it"


@contextlib.contextmanager
def _end_put_off(environ: Mapping[str, str]) -> Iterator[None]:
    """The scheduler's SIGTERM, which follows the requeue at once, has its effect when this is left, not before.

    It may end our command as well, so that the requeue seems to have failed: it is what says that the run is over.
    """
    came: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        if came:
            _end_old_sruns(environ)
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


def _requeues(path: Path, durable_step: int) -> int:
    """Requeues since the last progress."""
    try:
        told = json.loads(path.read_bytes())
        return int(told["count"]) if int(told["durable_step"]) >= durable_step else 0
    except (OSError, ValueError, KeyError, TypeError):
        return 0

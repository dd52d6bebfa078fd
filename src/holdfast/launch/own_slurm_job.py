"""What a launcher on Slurm does for its own job as its last act, by the owner's right and without a controller.

A leader that leaves its allocation has the job requeued. Followers whose leader's machine is gone have the job called
back that the scheduler has requeued. A leader that has let nodes go has its srun wait for them no longer.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil

from holdfast.adapters.slurm.daemons import answers_not
from holdfast.adapters.slurm.own_job import OwnJob, job_name
from holdfast.errors import LinkError, OrderError
from holdfast.launch.leader import Leader
from holdfast.launch.link import read_leader
from holdfast.launch.output import Voice
from holdfast.launch.pods import reporting
from holdfast.launch.uplink import controller_line

FILE = "requeues.json"
"""Counts requeues, in the job's folder; progress in between (`decide.restart`) resets it."""
_ENDED_BY_SCHEDULER_S = 120.0
"""The scheduler ends this process after a requeue; it does not wait longer for that."""
FOLLOWERS_S = 1.0
"""Followers that were told to leave have left by then."""


# --- requeue ---


def requeue_own_job(leader: Leader, own_job: OwnJob, *, environ: Mapping[str, str], voice: Voice) -> str:
    """Requeue the job without the nodes that it must leave, and wait to be ended.

    Called after everything of the launcher's has ended.

    Args:
        leader: has left; says which nodes to leave out, and which do not run.
        own_job: the job.
        environ: of the job.
        voice: for people.

    Returns why it was not requeued.
    """
    if leader.leaving.uplink is not None and leader.leaving.uplink.is_reachable:
        return "its controller knows, and does what is to be done"
    limits = leader.policy.limits
    asked = leader.job_view().recovery
    allowed = asked.max_requeues if asked is not None and asked.max_requeues is not None else limits.max_requeues
    count = _requeues(leader.place.job_dir / FILE, leader.leaving.last_words.progressed)
    if count >= allowed:
        return f"{count} requeues with no progress in between, which is the limit"
    # The scheduler's SIGTERM follows the requeue at once and may end our command, so that the requeue seems to have
    # failed: it is what says that the run is over. It has its effect when all is done.
    ends: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: ends.append(number))
    try:
        refusal = _requeue(leader, own_job, count + 1, environ, voice)
        if ends or not refusal:
            _end_old_sruns(environ)
    finally:
        signal.signal(signal.SIGTERM, before)
        if ends:
            os.kill(os.getpid(), signal.SIGTERM)
    if refusal:
        return refusal
    time.sleep(_ENDED_BY_SCHEDULER_S)
    return "the scheduler has not ended this run of it"


def _requeues(path: Path, progressed: int) -> int:
    """Requeues since the last progress."""
    try:
        told = json.loads(path.read_bytes())
        return int(told["count"]) if int(told["progressed"]) >= progressed else 0
    except (OSError, ValueError, KeyError, TypeError):
        return 0


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


# --- recall ---


async def call_back(job_dir: Path, environ: Mapping[str, str], voice: Voice) -> None:
    """Have the job start as soon as it is queued, if it was requeued without its leader; one follower does it.

    Called when the scheduler ends the followers, which it does once it has given the lost node up: by then it has
    queued the job with a begin time in the future (121 s by default). It leaves us KillWait (30 s by default).
    """
    if not environ.get("SLURM_JOB_ID") or controller_line(reporting(environ)) is not None:
        return
    own_job = OwnJob(job_name(environ), job_dir, environ)
    count = environ.get("SLURM_RESTART_COUNT", "") or "0"
    try:
        lost = read_leader(job_dir).node
        facts = await own_job.facts()
        if facts.restarts <= int(count):
            return  # cancelled, or at its time limit: it does not come back
        if not await answers_not((await own_job.addresses([lost])).get(lost)):
            return  # its machine runs: the leader itself has requeued the job, and has it called back
        (job_dir / f"called-back-{count}").touch(exist_ok=False)
        recall = await own_job.call_back(facts, [lost])
    except FileExistsError:
        return
    except (OrderError, LinkError, OSError) as error:
        voice.say(f"{job_name(environ)} comes back {await own_job.own_pace()} ({error})")
    else:
        voice.say(f"{lost} is lost, and the scheduler has requeued the job; job {recall} calls it back at once")


# --- sruns ---


def leave_own_srun(environ: Mapping[str, str], code: int) -> None:
    """Tell the srun that started this launcher to wait no longer, and end this process with `code` at once.

    A node that was let go never reports the end of its launcher, and a kill of the step does not reach it, so that srun
    would hold the allocation until the job's time limit. It runs on our own node, as the batch host's, and is known by
    the port where its tasks report; it has the step killed. Returns where there is none.
    """
    port = environ.get("SLURM_SRUN_COMM_PORT", "")
    found = [srun for srun in _sruns() if port.isdecimal() and _listens(srun, int(port))]
    if not found:
        return
    time.sleep(FOLLOWERS_S)  # in which their exit codes reach srun
    sys.stdout.flush()
    sys.stderr.flush()
    for srun in found:
        with contextlib.suppress(psutil.Error):
            srun.send_signal(signal.SIGQUIT)
    os._exit(code)


def _end_old_sruns(environ: Mapping[str, str]) -> None:
    """An srun of this run that outlives it gives up on its step by number, which is then a step of the next run.

    The script that waits for it is stopped first, so that it does not go on with its next line; the scheduler's SIGCONT
    and SIGTERM come in a moment and end it.
    """
    for srun in _sruns():
        with contextlib.suppress(psutil.Error):
            if not _is_of_run(srun, environ):
                continue
            parent = srun.parent()
            if parent is not None and _is_of_run(parent, environ):
                parent.suspend()
            srun.kill()


def _sruns() -> Iterator[psutil.Process]:
    """Of this user, on this node."""
    for process in psutil.process_iter(["name", "uids"]):
        uids = process.info["uids"]
        if process.info["name"] == "srun" and uids is not None and uids.real == os.getuid():
            yield process


def _listens(process: psutil.Process, port: int) -> bool:
    with contextlib.suppress(psutil.Error):
        return any(getattr(one.laddr, "port", 0) == port for one in process.net_connections(kind="tcp"))
    return False


def _is_of_run(process: psutil.Process, environ: Mapping[str, str]) -> bool:
    """It was started by this run of the job."""
    with contextlib.suppress(psutil.Error):
        told = process.environ()
        return all(told.get(name, "") == environ.get(name, "") for name in ("SLURM_JOB_ID", "SLURM_RESTART_COUNT"))
    return False

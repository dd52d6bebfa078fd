"""A follower whose leader's machine is gone has its job called back, on Slurm and by the owner's right.

Called when the scheduler ends the followers, which it does once it has given the lost node up: by then it has queued
the job, with a begin time in the future (121 s by default), and the leader, who would see to that, is no more. With a
controller nothing is done here. Time passes in the asyncio loop; the scheduler leaves us KillWait (30 s by default).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from holdfast.adapters.slurm.daemons import answers_not
from holdfast.adapters.slurm.own_job import OwnJob, job_name
from holdfast.errors import LinkError, OrderError
from holdfast.launch.link import read_leader
from holdfast.launch.output import Voice
from holdfast.launch.pods import reporting
from holdfast.launch.uplink import controller_line


async def call_back(job_dir: Path, environ: Mapping[str, str], voice: Voice) -> None:
    """Have the job start as soon as it is queued, if it was requeued without its leader; one follower does it."""
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
        voice.say(f"{job_name(environ)} comes back at the scheduler's pace, about two minutes by default ({error})")
    else:
        voice.say(f"{lost} is lost, and the scheduler has requeued the job; job {recall} calls it back at once")

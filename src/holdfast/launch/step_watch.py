"""A watcher: one small process on each node of the allocation, in a step of its own beside the user's.

Started by the supervisor as `srun --overlap ... python -m holdfast.launch.step_watch FOLDER JOB`. It beats, reads
the telemetry of the node's tasks, ends them when told, and ends them by itself when it is cut off from the supervisor
for a lease's time, so that what runs elsewhere is never doubled. Time passes in the asyncio loop.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

from holdfast.launch.follower import Follower
from holdfast.launch.ground import cancel_all
from holdfast.launch.link import OpenNetwork
from holdfast.launch.options import RunOptions
from holdfast.launch.output import Voice
from holdfast.launch.place import JobPlace, slurm_node
from holdfast.launch.step_slots import ENV_PREFIX, StepSlots
from holdfast.launch.step_tasks import WatchRunner
from holdfast.model.cluster import JobKey

LEADER_AWAY_S = 60.0
"""A watcher whose supervisor does not come back for so long has nothing to watch any more."""


async def _watch(folder: Path, job_id: str) -> int:
    node = slurm_node(os.environ)
    place = JobPlace(job=JobKey(cluster="slurm", id=job_id), job_dir=folder, node=node, node_rank=1, nodes=(node,))
    options = RunOptions(argv=("srun",), is_command=True, follower_wait_s=LEADER_AWAY_S)
    voice = Voice()
    voice.write_to(folder / "logs" / f"watcher-{node}.log")
    prefix = os.environ.get(ENV_PREFIX, "")
    follower = Follower(
        place,
        options,
        network=OpenNetwork(),
        voice=voice,
        lease_s=3.0,
        make_runner=lambda report: WatchRunner(job_id, str(folder), StepSlots(prefix, node, report), report),
    )
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # The scheduler is ending the job, or this step: the tasks hear of that themselves.
        loop.add_signal_handler(signum, follower.dismiss)
    told = asyncio.create_task(_say_when_connected(follower))
    try:
        await follower.run(os.environ)
    finally:
        await cancel_all([told])
    return 0


async def _say_when_connected(follower: Follower) -> None:
    await follower.link.connected.wait()
    follower.voice.note(f"watching {follower.place.node}")


def main() -> None:
    """`python -m holdfast.launch.step_watch FOLDER JOB`."""
    sys.exit(asyncio.run(_watch(Path(sys.argv[1]), sys.argv[2])))


if __name__ == "__main__":
    main()

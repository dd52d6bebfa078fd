"""A process that runs a stage, as the demo does: cluster, controller, job. `test_nothing_left` ends it in every way.

`python stage_process.py FOLDER` says `running` once the job has saved a checkpoint, and ends by itself when its
standard input is closed. SIGINT is Ctrl-C.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from holdfast.drill.clusters import StageSettings
from holdfast.drill.stage import Stage
from holdfast.drill.training import TrainingJob


async def main(folder: Path) -> None:
    settings = StageSettings(folder=folder, nodes=2, spares=1, boot_s=0.1, options=("--tmp-mib", "4"))
    async with Stage(settings) as stage:
        key = await stage.submit(TrainingJob(nodes=2, step_s=0.05))
        await stage.until(key, lambda job: job.attempt is not None and job.attempt.durable_step is not None, limit_s=60)
        print("running", flush=True)
        loop = asyncio.get_running_loop()
        closed = asyncio.Event()
        loop.add_reader(sys.stdin.fileno(), closed.set)
        try:
            await closed.wait()
        finally:
            loop.remove_reader(sys.stdin.fileno())


if __name__ == "__main__":
    try:
        asyncio.run(main(Path(sys.argv[1])))
    except KeyboardInterrupt:
        sys.exit(130)

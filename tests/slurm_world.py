"""A real Slurm with Holdfast's adapter on it, for tests: the lab, the orchestrator, waits with deadlines.

Built on `slurm_fixture`. Used by the contract suite and by the tests of jobs, nodes and the controller on Slurm.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from holdfast.adapters.slurm.client import SlurmOrchestrator
from holdfast.adapters.slurm.settings import SlurmConfig
from holdfast.lab.settings import LabSettings
from holdfast.lab.slurm_lab import SlurmLab
from holdfast.model.cluster import JobKey, JobView, NodeView, WorldView
from slurm_fixture import need_slurm, short_folder

REPLACE = """\
#!{python} -IS
import socket, sys
with socket.socket(socket.AF_UNIX) as link:
    link.settimeout(30)
    link.connect({sock!r})
    link.sendall(b'{{"op": "node", "verb": "replace", "node": "%s"}}\\n' % sys.argv[-1].encode())
    sys.exit(b'"ok":true' not in link.recv(65536).replace(b" ", b""))
"""

SLEEP = "#!/bin/bash\n#SBATCH --requeue\nexec sleep 1000\n"


@contextlib.contextmanager
def small_lab(nodes: int = 3, **more: object) -> Iterator[SlurmLab]:
    """A lab of a few plain nodes, for as long as the block lasts."""
    need_slurm()
    settings = LabSettings(nodes=nodes, boot_s=0.3, **more)  # type: ignore[arg-type]
    with short_folder() as folder, SlurmLab.start(settings, folder) as lab:
        yield lab


def replace_program(lab: SlurmLab) -> Path:
    """A site's program that puts another machine in a node's place."""
    path = lab.folder / "bin" / "replace"
    path.write_text(REPLACE.format(python=sys.executable, sock=f"{lab.folder}/lab.sock"))
    path.chmod(0o755)
    return path


def orchestrator_of(lab: SlurmLab, folder: Path, *, rest: str = "", pull_in_s: int = 1) -> SlurmOrchestrator:
    """The adapter on this lab; what it remembers is kept in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    config = SlurmConfig(replace_program=(str(replace_program(lab)),), rest=rest)
    return SlurmOrchestrator(config, conf=lab.facts.conf, folder=folder, pull_in_s=pull_in_s)


class SlurmWorld:
    """The contract suite's world: a lab and the orchestrator on it."""

    def __init__(self, lab: SlurmLab, folder: Path, **settings: Any) -> None:
        self.lab = lab
        self.orchestrator = orchestrator_of(lab, folder, **settings)

    async def submit(self, *, nodes: int = 1, exclude: tuple[str, ...] = (), script: str = SLEEP, args=()) -> JobKey:
        wishes = [f"--nodes={nodes}", "--exclusive", "--output=/dev/null", *args]
        if exclude:
            wishes.append(f"--exclude={','.join(exclude)}")
        job_id = await asyncio.to_thread(self.lab.sbatch, wishes, script=script)
        world = await self.orchestrator.observe()
        return next(job.key for job in world.jobs if job.key.id == job_id)

    async def drain_as_admin(self, node: str, reason: str) -> None:
        self.lab.run(["scontrol", "update", f"NodeName={node}", "State=DRAIN", f"Reason={reason}"])

    async def processes(self, job: JobKey) -> int:
        return len(processes_of(self.lab, job.id))

    async def lose_scheduler(self) -> None:
        self.lab.daemons.stop("slurmctld", sig=9)

    async def until(self, holds: Callable[[WorldView], object], what: str, limit_s: float = 15.0) -> WorldView:
        """Look until `holds(world)`; fails the test after `limit_s`."""
        deadline = time.monotonic() + limit_s
        while True:
            seen = await self.orchestrator.observe()
            if holds(seen):
                return seen
            left = deadline - time.monotonic()
            assert left > 0, f"not within {limit_s} s: {what}\n{seen}"
            await self.orchestrator.wait_change(min(left, 1.0))

    async def until_job(self, key: JobKey, holds: Callable[[JobView], object], limit_s: float = 15.0) -> JobView:
        seen = await self.until(lambda world: (job := job_in(world, key)) and holds(job), f"job {key}", limit_s)
        found = job_in(seen, key)
        assert found is not None
        return found

    async def until_node(self, name: str, holds: Callable[[NodeView], object], limit_s: float = 15.0) -> NodeView:
        seen = await self.until(lambda world: holds(node_in(world, name)), f"node {name}", limit_s)
        return node_in(seen, name)


def job_in(world: WorldView, key: JobKey) -> JobView | None:
    return next((job for job in world.jobs if job.key == key), None)


def node_in(world: WorldView, name: str) -> NodeView:
    return next(node for node in world.nodes if node.name == name)


def processes_of(lab: SlurmLab, job_id: str) -> list[int]:
    """Tasks of the job on any node of this lab."""
    found = []
    mark, conf = f"SLURM_JOB_ID={job_id}".encode(), f"SLURM_CONF={lab.facts.conf}".encode()
    for place in Path("/proc").iterdir():
        if place.name.isdecimal():
            with contextlib.suppress(OSError):
                environ = (place / "environ").read_bytes().split(b"\0")
                if mark in environ and conf in environ:
                    found.append(int(place.name))
    return found

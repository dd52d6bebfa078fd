"""An embedded cluster with a controller and a training job, brought up and taken down as one thing.

Used by drills, the demo, benchmarks and their tests::

    async with Stage(StageSettings(folder=folder, nodes=4, spares=1)) as stage:
        key = await stage.submit(TrainingJob(nodes=4, workload="gpt"))
        await stage.until(key, lambda job: job.state is JobState.COMPLETED, limit_s=120)

The cluster's daemon ends when this process ends, however that happens, and takes everything that carries its mark with
it: nodes, agents, ranks and the controller. Time is real: it waits for processes to say that they are there.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path

from msgspec import Struct

from holdfast.adapters.journal import open_journal
from holdfast.adapters.local import processes
from holdfast.adapters.local.client import LocalOrchestrator
from holdfast.adapters.local.daemon import RunningCluster, start_cluster
from holdfast.drill.controlled import ControlledStage
from holdfast.drill.training import TrainingJob
from holdfast.errors import LinkError, NotFoundError
from holdfast.model.cluster import JobKey, RecoverySpec
from holdfast.report.gather import ReportData, gather


class StageSettings(Struct, frozen=True, kw_only=True):
    """What is brought up."""

    folder: Path
    """The cluster's folder; made when it is missing, kept when the stage is closed."""
    nodes: int = 3
    spares: int = 1
    policy: Path | None = None
    drill_ok: bool = True
    boot_s: float = 0.3
    """How long a node takes to boot: reboots and replacements cost this much."""
    options: tuple[str, ...] = ()
    """Further options of the cluster's daemon."""
    up_limit_s: float = 30.0


class Stage(ControlledStage):
    """See the module. All methods but `open` need an open stage."""

    def __init__(self, settings: StageSettings) -> None:
        super().__init__(
            settings.folder,
            nodes=settings.nodes,
            spares=settings.spares,
            policy=settings.policy,
            up_limit_s=settings.up_limit_s,
        )
        self.settings = settings
        self._cluster: RunningCluster | None = None

    # --- what there is ---

    @property
    def orchestrator(self) -> LocalOrchestrator:
        """The embedded scheduler; also the breaker of its nodes."""
        return self._up().orchestrator

    @property
    def breaker(self) -> LocalOrchestrator:
        """See ControlledStage."""
        return self.orchestrator

    def job_dir(self, key: JobKey) -> Path:
        """A job's folder: logs, checkpoints, loss log."""
        return self.folder / "jobs" / key.id

    # --- up and down ---

    async def open(self) -> None:
        """Start the cluster, its agents and the controller; return when all nodes are up and the controller is ready.

        Raises:
            LinkError: something did not start; the message holds the end of what it said.
        """
        wanted = self.settings
        options = ("--boot-s", str(wanted.boot_s), *wanted.options)
        self._cluster = await asyncio.to_thread(
            start_cluster,
            self.folder,
            nodes=wanted.nodes,
            spares=wanted.spares,
            drill_ok=wanted.drill_ok,
            options=options,
        )
        await self.start_controller()
        await self._cluster.until_up(limit_s=wanted.up_limit_s)

    async def close(self) -> None:
        """See ControlledStage."""
        await self.stop_controller()
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            await asyncio.to_thread(cluster.end)

    def _controller_words(self) -> list[str]:
        return ["--listen", "127.0.0.1:0"]

    def _mark(self) -> dict[str, str]:
        # The mark makes the cluster's daemon end the controller too, should our own process be killed.
        return {processes.CLUSTER_MARK: str(self.folder)}

    def _up(self) -> RunningCluster:
        if self._cluster is None:
            raise LinkError("the stage is not open")
        return self._cluster

    # --- jobs ---

    async def submit(self, job: TrainingJob, *, recovery: RecoverySpec | None = None) -> JobKey:
        """Queue a training job, open to drills if the cluster is; returns its key."""
        argv = [word.replace("{scratch}", str(self.folder / "nodes" / "node01" / "tmp")) for word in job.argv()]
        view = await self.orchestrator.submit(
            argv,
            nodes=job.nodes,
            name=job.name,
            drill_ok=self.settings.drill_ok,
            recovery=recovery or RecoverySpec(),
            env={
                "PYTHONUNBUFFERED": "1",
                "OMP_NUM_THREADS": "1",
                # PyTorch makes this folder below /tmp otherwise: nothing of a stage lies outside its own.
                "TORCHINDUCTOR_CACHE_DIR": str(self.folder / "cache" / "torchinductor"),
            },
        )
        return view.key

    async def cancel(self, key: JobKey, *, limit_s: float = 30.0) -> None:
        """End a job for good and wait until its nodes are free."""
        with contextlib.suppress(NotFoundError):
            await self.orchestrator.cancel(key.id, who="stage", why="the stage needs its nodes")
        deadline = time.monotonic() + limit_s
        while True:
            world = await self.orchestrator.observe()
            if not any(key.id in node.jobs for node in world.nodes):
                return
            left = deadline - time.monotonic()
            if left <= 0:
                raise LinkError(f"job {key} did not end within {limit_s:.0f} s")
            await self.orchestrator.wait_change(left)


async def read_report(journal: Path, *, title: str, cluster: str, now: float) -> ReportData:
    """Everything that a report shows, from the journal of a controller that may have ended.

    Raises:
        NotFoundError: there is no journal.
        JournalError: it is damaged.
    """
    if not await asyncio.to_thread(journal.exists):
        raise NotFoundError(f"there is no journal {journal}")
    opened = open_journal(f"sqlite:///{journal}")
    try:
        return await gather(opened, title=title, cluster=cluster, now=now)
    finally:
        await opened.close()

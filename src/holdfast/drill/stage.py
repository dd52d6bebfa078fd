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
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from msgspec import Struct

from holdfast.adapters.journal import open_journal
from holdfast.adapters.local import processes
from holdfast.adapters.local.client import LocalOrchestrator
from holdfast.adapters.local.daemon import RunningCluster, start_cluster
from holdfast.drill.eyes import ControllerEyes
from holdfast.drill.training import TrainingJob
from holdfast.errors import LinkError, NotFoundError
from holdfast.model.cluster import JobKey, RecoverySpec
from holdfast.model.records import JobRecord
from holdfast.report.gather import ReportData, gather

_POLL_S = 0.05


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


class Stage:
    """See the module. All methods but `open` need an open stage."""

    def __init__(self, settings: StageSettings) -> None:
        self.settings = settings
        self.folder = settings.folder.absolute()
        self._cluster: RunningCluster | None = None
        self._controller: subprocess.Popen[bytes] | None = None
        self._eyes: ControllerEyes | None = None

    async def __aenter__(self) -> Self:
        try:
            await self.open()
        except BaseException:
            # Also on Ctrl-C half-way up: what was started is ended.
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # --- what there is ---

    @property
    def orchestrator(self) -> LocalOrchestrator:
        """The embedded scheduler; also the breaker of its nodes."""
        return self._up().orchestrator

    @property
    def eyes(self) -> ControllerEyes:
        """The controller's records and events."""
        if self._eyes is None:
            raise LinkError("the stage's controller is not up")
        return self._eyes

    @property
    def journal(self) -> Path:
        """The controller's journal; readable after the end too."""
        return self.folder / "controller" / "journal.db"

    @property
    def controller_pid(self) -> int | None:
        """The controller's process, None while there is none."""
        if self._controller is None or self._controller.poll() is not None:
            return None
        return self._controller.pid

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
        """End everything: the controller first, so that it does not take the end for a fault."""
        await self.stop_controller()
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            await asyncio.to_thread(cluster.end)

    async def start_controller(self) -> None:
        """Start a controller on the cluster's journal; return when it has replayed it and answers."""
        folder = self.folder / "controller"
        folder.mkdir(parents=True, exist_ok=True)
        argv = [sys.executable, "-m", "holdfast.cli.main", "controller", "--dir", str(self.folder)]
        argv += ["--listen", "127.0.0.1:0"]
        if self.settings.policy is not None:
            argv += ["--policy", str(self.settings.policy.absolute())]
        self._controller = self._spawn(argv, folder / "controller.log")
        self._eyes = await self._until_ready(self._controller)

    async def stop_controller(self, *, sig: int = signal.SIGTERM, limit_s: float = 10.0) -> None:
        """End the controller; with SIGKILL as a crash would."""
        eyes, self._eyes = self._eyes, None
        if eyes is not None:
            await eyes.close()
        controller, self._controller = self._controller, None
        if controller is None:
            return
        if controller.poll() is None:
            controller.send_signal(sig)
        try:
            await asyncio.to_thread(controller.wait, limit_s)
        except subprocess.TimeoutExpired:
            controller.kill()
            await asyncio.to_thread(controller.wait)

    def _spawn(self, argv: list[str], log: Path) -> subprocess.Popen[bytes]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "SLURM_"))}
        # The mark makes the cluster's daemon end this process too, should ours be killed.
        env = {**kept, processes.CLUSTER_MARK: str(self.folder)}
        with log.open("ab") as out:
            return subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env, start_new_session=True
            )

    async def _until_ready(self, controller: subprocess.Popen[bytes]) -> ControllerEyes:
        deadline = time.monotonic() + self.settings.up_limit_s
        problem = "it did not write controller.json"
        while controller.poll() is None and time.monotonic() < deadline:
            try:
                eyes = ControllerEyes.of_folder(self.folder, pid=controller.pid)
            except (LinkError, NotFoundError) as error:
                problem = str(error)
            else:
                if await eyes.is_ready():
                    return eyes
                await eyes.close()
            await asyncio.sleep(_POLL_S)
        log = self.folder / "controller" / "controller.log"
        said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
        raise LinkError(f"the controller in {self.folder} did not start: {said[0] if said else problem}")

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

    async def until(self, key: JobKey, true: Callable[[JobRecord], bool], *, limit_s: float) -> JobRecord:
        """Wait until the controller's record of the job is as wished; looked at after every event.

        Raises:
            LinkError: it was not within `limit_s`; says what it was instead.
        """
        deadline = time.monotonic() + limit_s
        seq = 0
        record: JobRecord | None = None
        while (left := deadline - time.monotonic()) > 0:
            with contextlib.suppress(NotFoundError):
                record = await self.eyes.job(key)
                if true(record):
                    return record
            seq = await self.eyes.wait(seq, min(left, 0.5))
        state = record.state.value if record is not None else "unknown to the controller"
        raise LinkError(f"job {key} is {state} after {limit_s:.0f} s")


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

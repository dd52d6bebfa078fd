"""A cluster with a controller and training jobs, brought up and taken down as one thing.

Used by drills, the demo, benchmarks and their tests::

    async with Stage(StageSettings(folder=folder, nodes=4, spares=1)) as stage:
        key = await stage.submit(TrainingJob(nodes=4, workload="gpt"))
        await stage.until(key, lambda job: job.state is JobState.COMPLETED, limit_s=120)

The cluster is an embedded one, a real Slurm or a real Kubernetes; all else is the same. It ends when this process ends,
however that happens, and takes everything that carries its mark with it: nodes, agents, ranks and the controller. Time
is real: it waits for processes to say that they are there.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from msgspec.structs import replace

from holdfast.adapters.journal import open_journal
from holdfast.drill.clusters import CLUSTERS, StageSettings, Up
from holdfast.drill.eyes import ControllerEyes
from holdfast.drill.ports import FaultPort
from holdfast.drill.training import TrainingJob
from holdfast.errors import LinkError, NotFoundError
from holdfast.model.cluster import JobKey
from holdfast.model.events import AgentAttached
from holdfast.model.records import JobRecord
from holdfast.report.gather import ReportData, gather

_POLL_S, _STOP_S = 0.05, 10.0


class Stage:
    """See the module. All methods but `open` need an open stage."""

    def __init__(self, settings: StageSettings) -> None:
        self.folder = settings.folder.resolve()
        self.settings = replace(settings, folder=self.folder)
        self.nodes, self.spares = settings.nodes, settings.spares
        self._kind = CLUSTERS[settings.on]
        self.cluster_name = self._kind.name
        self._limit_s = self._kind.up_limit_s if settings.up_limit_s is None else settings.up_limit_s
        self._controller: subprocess.Popen[bytes] | None = None
        self._eyes: ControllerEyes | None = None
        self._ending = contextlib.AsyncExitStack()
        self._up: Up | None = None

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

    async def open(self) -> None:
        """Start the cluster, its agents and the controller; return when all answer.

        Raises:
            UsageError: the cluster cannot be brought up here; says why.
            LinkError: something did not start; holds the end of what it said.
        """
        boot_s = self._kind.boot_s if self.settings.boot_s is None else self.settings.boot_s
        opening = self._kind.open(self.settings, boot_s, self._limit_s)
        self._up = await self._ending.enter_async_context(opening)
        await self.start_controller()
        if self._up.until_up is not None:
            await self._up.until_up()
        if self._kind.agents:
            await self._until_agents()

    async def close(self) -> None:
        """End everything: the controller first, so that it does not take the end for a fault."""
        await self.stop_controller()
        await self._ending.aclose()

    # --- what there is ---

    @property
    def eyes(self) -> ControllerEyes:
        """The controller's records and events. Raises LinkError while it is not up."""
        if self._eyes is None:
            raise LinkError("the stage's controller is not up")
        return self._eyes

    @property
    def cluster(self) -> Up:
        """The cluster itself."""
        if self._up is None:
            raise LinkError("the stage is not open")
        return self._up

    @property
    def breaker(self) -> FaultPort:
        """Breaks its nodes."""
        return self.cluster.breaker

    @property
    def journal(self) -> Path:
        """The controller's journal; readable after the end too."""
        return self.folder / "controller" / "journal.db"

    @property
    def controller_pid(self) -> int | None:
        """The controller's process, None while there is none."""
        process = self._controller
        return process.pid if process is not None and process.poll() is None else None

    def job_dir(self, key: JobKey) -> Path:
        """A job's folder, on the file system that the nodes share: logs, checkpoints, loss log."""
        return self.folder / "jobs" / key.id

    # --- the controller ---

    async def start_controller(self) -> None:
        """Start a controller on the cluster's journal; return when it has replayed it and answers.

        Raises:
            LinkError: it did not answer in time; says its last word.
        """
        self._controller = self._spawn()
        self._eyes = await self._until_ready(self._controller)

    def _spawn(self) -> subprocess.Popen[bytes]:
        policy = self.settings.policy
        words = [*self.cluster.words, *(["--policy", str(policy.absolute())] if policy is not None else [])]
        folder = self.folder / "controller"
        folder.mkdir(parents=True, exist_ok=True)
        # What of the environment would mislead it is left out.
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "SLURM_"))}
        with (folder / "controller.log").open("ab") as out:
            return subprocess.Popen(
                [sys.executable, "-m", "holdfast.cli.main", "controller", "--dir", str(self.folder), *words],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=kept | self.cluster.environment,
                start_new_session=True,
            )

    async def _until_ready(self, process: subprocess.Popen[bytes]) -> ControllerEyes:
        deadline = time.monotonic() + self._limit_s
        problem = "it did not write controller.json"
        while process.poll() is None and time.monotonic() < deadline:
            try:
                eyes = ControllerEyes.of_folder(self.folder, pid=process.pid)
            except (LinkError, NotFoundError) as error:
                problem = str(error)
            else:
                if await eyes.healthy():
                    return eyes
                await eyes.close()
            await asyncio.sleep(_POLL_S)
        log = self.folder / "controller" / "controller.log"
        said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
        raise LinkError(f"the controller in {self.folder} did not start: {said[0] if said else problem}")

    async def stop_controller(self) -> None:
        """End the controller."""
        eyes, self._eyes = self._eyes, None
        if eyes is not None:
            await eyes.close()
        process, self._controller = self._controller, None
        if process is None:
            return
        if process.poll() is None:
            process.terminate()
        try:
            await asyncio.to_thread(process.wait, _STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            await asyncio.to_thread(process.wait)

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

    async def _until_agents(self) -> None:
        """Wait for an agent of every node. Raises LinkError, which names those that answer."""
        deadline = time.monotonic() + self._limit_s
        seen: set[str] = set()
        while len(seen) < self.nodes + self.spares:
            if time.monotonic() > deadline:
                raise LinkError(f"only the agents of {sorted(seen)} answer; see {self.folder}/nodes/*/agent.log")
            events = await self.eyes.events(kind="agent_attached", limit=1000)
            seen = {event.node for event in events.events if isinstance(event, AgentAttached)}
            await asyncio.sleep(_POLL_S)

    # --- jobs ---

    async def submit(self, job: TrainingJob) -> JobKey:
        """Queue a training job, open to drills; returns its key."""
        return await self.cluster.queue.submit(job.placed(self.cluster.places))

    async def cancel(self, key: JobKey, *, limit_s: float = 30.0) -> None:
        """End a job for good and wait until its nodes are free."""
        await self.cluster.queue.cancel(key.id, limit_s=limit_s)


async def read_report(journal: Path, *, title: str, cluster: str, now: float, job: str = "") -> ReportData:
    """Everything that a report shows, of one job or of all, from the journal of a controller that may have ended.

    Raises:
        NotFoundError: there is no journal.
        JournalError: it is damaged.
    """
    if not await asyncio.to_thread(journal.exists):
        raise NotFoundError(f"there is no journal {journal}")
    opened = await asyncio.to_thread(open_journal, f"sqlite:///{journal}")
    try:
        return await gather(opened, title=title, cluster=cluster, now=now, job=job)
    finally:
        await opened.close()

"""What all stages have in common: a folder, a controller as a process of its own, and waiting for what it knows.

`stage.Stage` (the embedded cluster), `slurm_stage.SlurmStage` and `kubernetes_stage.KubernetesStage` are made of
it; drills, the demo and benchmarks need no more of a stage than this. Time is real: it waits for the controller to
say that it is there.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from holdfast.drill.eyes import ControllerEyes
from holdfast.drill.ports import FaultPort
from holdfast.drill.training import TrainingJob
from holdfast.errors import LinkError, NotFoundError
from holdfast.model.cluster import JobKey, RecoverySpec
from holdfast.model.events import AgentAttached
from holdfast.model.records import JobRecord

_POLL_S = 0.05


class ControlledStage(ABC):
    """A cluster with a controller; see the module. All methods but `open` need an open stage."""

    cluster_name = "local"
    """The cluster's name in job keys and reports."""

    def __init__(
        self, folder: Path, *, nodes: int, spares: int, policy: Path | None = None, up_limit_s: float = 30.0
    ) -> None:
        self.folder = folder.absolute()
        self.nodes = nodes
        self.spares = spares
        self._policy = policy
        self._up_limit_s = up_limit_s
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

    # --- what each kind of stage says for itself ---

    @abstractmethod
    async def open(self) -> None:
        """Bring everything up. Raises LinkError when something did not start; holds the end of what it said."""

    @abstractmethod
    async def close(self) -> None:
        """End everything: the controller first, so that it does not take the end for a fault."""

    @property
    @abstractmethod
    def breaker(self) -> FaultPort:
        """Breaks its nodes."""

    @abstractmethod
    def job_dir(self, key: JobKey) -> Path:
        """A job's folder: logs, checkpoints, loss log."""

    @abstractmethod
    async def submit(self, job: TrainingJob, *, recovery: RecoverySpec | None = None) -> JobKey:
        """Queue a training job that is open to drills; returns its key."""

    @abstractmethod
    async def cancel(self, key: JobKey, *, limit_s: float = 30.0) -> None:
        """End a job for good and wait until its nodes are free."""

    @abstractmethod
    def _controller_words(self) -> list[str]:
        """What `holdfast controller` is told beside `--dir` and `--policy`."""

    @abstractmethod
    def _mark(self) -> dict[str, str]:
        """Environment by which the cluster finds the controller, to end it should this process be killed."""

    # --- what there is ---

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

    # --- the controller ---

    async def start_controller(self) -> None:
        """Start a controller on the cluster's journal; return when it has replayed it and answers."""
        folder = self.folder / "controller"
        folder.mkdir(parents=True, exist_ok=True)
        argv = [sys.executable, "-m", "holdfast.cli.main", "controller", "--dir", str(self.folder)]
        argv += self._controller_words()
        if self._policy is not None:
            argv += ["--policy", str(self._policy.absolute())]
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

    def _spawn(self, argv: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "SLURM_"))}
        with log.open("ab") as out:
            return subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=kept | self._mark(),
                start_new_session=True,
            )

    async def _until_ready(self, controller: subprocess.Popen[bytes]) -> ControllerEyes:
        deadline = time.monotonic() + self._up_limit_s
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

    async def _until_agents(self, limit_s: float) -> None:
        """Every node has a real agent. A fault before it reads its node's kernel log would go unseen.

        Raises:
            LinkError: some do not answer in time; names those that do.
        """
        deadline = time.monotonic() + limit_s
        seen: set[str] = set()
        while len(seen) < self.nodes + self.spares:
            if time.monotonic() > deadline:
                raise LinkError(f"only the agents of {sorted(seen)} answer; see {self.folder}/nodes/*/agent.log")
            events = await self.eyes.client.events(kind="agent_attached", limit=1000)
            seen = {event.node for event in events.events if isinstance(event, AgentAttached)}
            await asyncio.sleep(_POLL_S)

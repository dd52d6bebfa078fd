"""What a stage brings up: the embedded cluster here, Slurm in `slurm_cluster`, Kubernetes in `kubernetes_cluster`.

Made by `stage`, which adds the controller and is the same for all. Time is real.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Literal, Protocol

from msgspec import Struct

from holdfast.adapters.local import processes
from holdfast.adapters.local.daemon import RunningCluster, start_cluster
from holdfast.drill.ports import FaultPort
from holdfast.drill.queues import LocalQueue, Queue
from holdfast.drill.site_settings import SiteConfig


class StageSettings(Struct, frozen=True, kw_only=True):
    """What is brought up."""

    folder: Path
    """The cluster's folder; made when it is missing, kept when the stage is closed. Slurm's name must be short."""
    on: Literal["local", "slurm", "kubernetes"] = "local"
    nodes: int = 3
    spares: int = 1
    """Nodes more than `nodes`; Slurm and Kubernetes themselves make no difference."""
    policy: Path | None = None
    """The controller's; None: the defaults."""
    boot_s: float | None = None
    """How long a node takes to boot: reboots and replacements cost this much. None: the cluster's own."""
    up_limit_s: float | None = None
    """Until the cluster, its agents and the controller answer. None: the cluster's own."""
    options: tuple[str, ...] = ()
    """Further options of the embedded cluster's daemon."""
    accounting: bool = True
    """Slurm's."""


class Cluster(Protocol):
    """A cluster without its controller. All but `open` need an open one."""

    name: str
    """Its name in job keys and reports."""
    boot_s: float
    up_limit_s: float
    """What `StageSettings` stand for when they say nothing."""
    agents: bool
    """Is each node's agent awaited? A fault before it reads its node's kernel log would go unseen."""

    @property
    def queue(self) -> Queue:
        """Where jobs are submitted."""

    @property
    def breaker(self) -> FaultPort:
        """Breaks its nodes."""

    async def open(self, boot_s: float, up_limit_s: float) -> list[str]:
        """Bring it up; returns what `holdfast controller` is told beside its folder and policy.

        Raises:
            UsageError: it cannot be brought up here; says why.
            LinkError: something did not start; holds the end of what it said.
        """

    async def until_up(self, limit_s: float) -> None:
        """Wait until its nodes are up, while a controller watches. Raises LinkError."""

    async def close(self) -> None:
        """End it, also one that came up half-way."""

    def environment(self) -> dict[str, str]:
        """Environment by which it finds the controller, to end that should this process be killed."""

    def places(self) -> dict[str, str]:
        """What stands in a job's words for a node's scratch file system and for a small shared one."""


def in_every_job(folder: Path) -> dict[str, str]:
    """PyTorch makes this folder below /tmp otherwise: nothing of a stage lies outside its own."""
    return {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/cache/torchinductor"}


class EmbeddedCluster:
    """See Cluster."""

    name = "local"
    boot_s, up_limit_s, agents = 0.3, 30.0, False

    def __init__(self, settings: StageSettings) -> None:
        self._settings = settings
        self._running: RunningCluster | None = None
        self.queue = LocalQueue(SiteConfig(env=in_every_job(settings.folder)), settings.folder)
        self.breaker = self.queue.breaker

    async def open(self, boot_s: float, up_limit_s: float) -> list[str]:  # noqa: ARG002 - its nodes boot meanwhile
        """See Cluster."""
        wanted = self._settings
        self._running = await asyncio.to_thread(
            start_cluster,
            wanted.folder,
            nodes=wanted.nodes,
            spares=wanted.spares,
            drill_ok=True,
            options=("--boot-s", str(boot_s), *wanted.options),
        )
        return ["--listen", "127.0.0.1:0"]

    async def until_up(self, limit_s: float) -> None:
        """See Cluster."""
        if self._running is not None:
            await self._running.until_up(limit_s=limit_s)

    async def close(self) -> None:
        """See Cluster."""
        running, self._running = self._running, None
        if running is not None:
            await asyncio.to_thread(running.end)

    def environment(self) -> dict[str, str]:
        """See Cluster."""
        return {processes.CLUSTER_MARK: str(self._settings.folder)}

    def places(self) -> dict[str, str]:
        """See Cluster."""
        return {"{scratch}": f"{self._settings.folder}/nodes/node01/tmp"}

"""A cluster that runs already, with its own controller, as a stage for drills: `holdfast drill run --on site`.

The counterpart of the stages that bring a cluster up. Nothing but the drill's own job is started or ended; faults are
injected inside that job, and on an embedded cluster to its nodes too. Time passes while the controller and the
scheduler answer.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

from msgspec.structs import replace

from holdfast.adapters.kubernetes.api import KubeApi
from holdfast.drill.eyes import ControllerEyes
from holdfast.drill.kinds import Kind, Reach
from holdfast.drill.ports import FaultPort
from holdfast.drill.queues import KubernetesQueue, LocalQueue, Queue, SlurmQueue
from holdfast.drill.scenario import Scenario
from holdfast.drill.site_settings import SiteConfig, SiteSettings
from holdfast.drill.training import TrainingJob
from holdfast.errors import LinkError, NotFoundError, UsageError
from holdfast.model.cluster import JobKey
from holdfast.model.evidence import Remedy
from holdfast.ports import Clock

ANY = 1_000_000
"""Nodes of a site, as far as drills ask: the scheduler says how many there are."""
_KNOWN_S = 60.0
_POLL_S = 0.1


class SiteStage:
    """See the module. All methods but `open` need an open stage."""

    nodes = ANY
    journal: Path | None = None
    """It is the site's; reports are made by `holdfast report`."""

    def __init__(self, settings: SiteSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._eyes: ControllerEyes | None = None
        self._queue: Queue | None = None
        self._ending = contextlib.AsyncExitStack()
        """Each is tried, whatever becomes of the one before it."""
        self._mine: set[JobKey] = set()
        self.breaker: FaultPort | None = None
        """Breaks its nodes; None: faults inside the job only."""
        self.cluster_name = settings.scheduler

    @property
    def eyes(self) -> ControllerEyes:
        """See Stage."""
        if self._eyes is None:
            raise LinkError("the site's controller is not reached")
        return self._eyes

    def job_dir(self, key: JobKey) -> Path:
        """See Stage."""
        return self._settings.folder / key.id

    async def open(self) -> None:
        """Reach the controller and the scheduler, and make the folder of the jobs.

        Raises:
            LinkError: one of them does not answer.
            UsageError: the folder cannot be made.
        """
        settings = self._settings
        try:
            settings.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"[drill.site] folder: {settings.folder} cannot be made here: {error.strerror}") from error
        self._eyes = ControllerEyes(settings.url, settings.token, trust=settings.trust)
        self._ending.push_async_callback(self._eyes.close)
        if not await self._eyes.healthy():
            raise LinkError(f"the controller at {settings.url} does not answer, or does not see its cluster")
        if settings.scheduler == "slurm":
            conf = Path(settings.place) if settings.place else None
            self._queue = SlurmQueue(settings.config, settings.folder, conf)
        elif settings.scheduler == "kubernetes":
            api = await KubeApi.connect(settings.place, settings.kubeconfig)
            self._ending.push_async_callback(api.close)
            self._queue = KubernetesQueue(settings.config, settings.folder, api, settings.cluster, self._name)
        else:
            self._queue = local = LocalQueue(settings.config, Path(settings.place))
            self.breaker = local.breaker

    def _name(self, name: str) -> str:
        return f"{name}-{self._clock.now() * 1000:.0f}"

    async def close(self) -> None:
        """End the jobs that were submitted here, and let go of the site.

        Raises:
            LinkError: a job cannot be ended; all others are.
        """
        if self._queue is not None:
            for key in self._mine:
                self._ending.push_async_callback(self._queue.cancel, key.id)
        self._queue = self.breaker = self._eyes = None
        self._mine = set()
        await self._ending.aclose()

    async def submit(self, job: TrainingJob) -> JobKey:
        """Queue the job; returns its key once the controller sees it.

        Raises:
            LinkError: the scheduler refuses it, or the controller keeps another cluster.
        """
        if self._queue is None:
            raise LinkError("the site is not open")
        name = await self._submitted(self._queue, job)
        deadline = self._clock.monotonic() + _KNOWN_S
        while self._clock.monotonic() < deadline:
            try:
                if found := await self.eyes.jobs(job=name):
                    return found[-1].key
            except NotFoundError:
                pass
            await asyncio.sleep(_POLL_S)
        raise LinkError(f"the controller at {self._settings.url} sees no job {name}: does it keep this cluster?")

    async def _submitted(self, queue: Queue, job: TrainingJob) -> str:
        """Queue it. Ctrl-C meanwhile waits for the scheduler's answer, so that no job is left that nobody ends."""
        asking = asyncio.ensure_future(queue.submit(job))
        try:
            await asyncio.shield(asking)
        finally:
            key = await asking
            self._mine.add(key)
        return key.id

    async def cancel(self, key: JobKey, *, limit_s: float = 60.0) -> None:
        """See Stage."""
        if self._queue is not None:
            await self._queue.cancel(key.id, limit_s=limit_s)
        self._mine = {mine for mine in self._mine if mine.id != key.id}


def lacking_on_site(kind: Kind, settings: SiteSettings) -> str:
    """Why a kind of fault cannot be had on this site; empty when it can."""
    if kind.reach is Reach.SCHEDULER or (kind.reach is Reach.NODE and settings.scheduler != "local"):
        return "breaks more than the job: only on a cluster that is brought up for drills"
    if settings.config.command and (kind.reach is Reach.FILES or kind.needs):
        return "needs the drills' own workload"
    return ""


def fitted(scenario: Scenario, config: SiteConfig) -> Scenario:
    """A scenario as this site can be held to it.

    Whether a job comes back in place or through the queue is the site's policy. A start takes its queue and its image
    along. The steps and the losses of a site's own program are not known here.
    """
    expect, own = scenario.expect, bool(config.command)
    if Remedy.RESTART_IN_PLACE in expect.remedies:
        expect = replace(expect, remedies=tuple(dict.fromkeys((*expect.remedies, Remedy.REQUEUE))))
    if expect.recover_s_max is not None:
        expect = replace(expect, recover_s_max=expect.recover_s_max + config.start_s)
    if own:
        expect = replace(expect, loss_matches=False, job_completes=False)
    needs = replace(
        scenario.job,
        nodes=config.nodes or scenario.job.nodes,
        ranks_per_node=config.ranks_per_node or scenario.job.ranks_per_node,
    )
    return replace(scenario, expect=expect, job=needs)

"""The ways into a cluster's queue: Slurm's, Kubernetes' and the embedded one.

Used by `site` and by the clusters of a stage; a job is submitted and ended with the rights of whoever runs the drill,
by the tools that they have.
Time passes while the scheduler answers and while a job ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Protocol

from msgspec.structs import replace

from holdfast.adapters.kubernetes.api import ApiError, KubeApi
from holdfast.adapters.kubernetes.objects import job_id
from holdfast.adapters.local.client import LocalOrchestrator
from holdfast.adapters.slurm.commands import job_ref
from holdfast.adapters.slurm.tool import Tool
from holdfast.drill.site_settings import SiteConfig
from holdfast.drill.submission import IN_EVERY_JOB, batch_script, comment, container, pytorch_job
from holdfast.drill.training import TrainingJob
from holdfast.errors import LinkError, NotFoundError, OrderError, TemporaryOrderError
from holdfast.model.cluster import ENDED, JobKey, RecoverySpec

_POLL_S = 0.2


class Queue(Protocol):
    """Where a job is submitted. Every call raises LinkError when the scheduler cannot be reached or refuses."""

    async def submit(self, job: TrainingJob) -> JobKey:
        """Queue a job that is open to drills; its id as the controller has it."""

    async def cancel(self, job: str, *, limit_s: float = 60.0) -> None:
        """End a job for good and wait until its nodes are free; one that has ended is no error."""


class SlurmQueue:
    """See Queue. `conf`: slurm.conf; None: as Slurm's own tools find it. `cluster`: its name in keys of jobs."""

    def __init__(self, config: SiteConfig, folder: Path, conf: Path | None, cluster: str = "slurm") -> None:
        self._config, self._folder = config, folder
        self._cluster = cluster
        self._tool = Tool(conf)

    def options(self, job: TrainingJob) -> list[str]:
        """What `sbatch` is told."""
        config = self._config
        options = [f"--nodes={job.nodes}", "--ntasks-per-node=1", f"--job-name={job.name}"]
        options += ["--exclusive", "--requeue", "--open-mode=append"]
        options += [f"--output={self._folder}/slurm-%j.out", f"--comment={comment(job.recovery)}"]
        for name, value in (("partition", config.partition), ("account", config.account)):
            options += [f"--{name}={value}"] if value else []
        return [*options, *config.options]

    async def submit(self, job: TrainingJob) -> JobKey:
        """See Queue."""
        config = self._config
        srun = [f"--container-image={config.image}"] if config.image else []
        srun += [f"--container-mounts={config.mounts}"] if config.mounts else []
        text = batch_script(job.argv(), folder=str(self._folder), exports=config.env, srun=srun)
        with tempfile.NamedTemporaryFile("w", prefix="holdfast-drill-", suffix=".sh") as script:
            script.write(text)
            script.flush()
            try:
                said = await self._tool.text(["sbatch", "--parsable", *self.options(job), script.name], again=False)
            except OrderError as error:
                raise LinkError(str(error)) from error
        return JobKey(self._cluster, job_ref(said.strip().partition(";")[0]))

    async def cancel(self, job: str, *, limit_s: float = 60.0) -> None:
        """See Queue. Killed after it was cancelled, not before: one that only fails is recovered by the controller."""
        async with _limit(limit_s, job):
            while state := await self._state(job):
                if state != "COMPLETING":
                    await self._scancel(job)
                await self._scancel("--signal=KILL", "--full", job)
                await asyncio.sleep(_POLL_S)

    async def _scancel(self, *words: str) -> None:
        with contextlib.suppress(OrderError):
            await self._tool.run(["scancel", *words], again=False)

    async def _state(self, job: str) -> str:
        try:
            return (await self._tool.text(["squeue", "-h", "-j", job, "-o", "%T"])).strip()
        except TemporaryOrderError:
            return "UNKNOWN"  # slurmctld is away: whoever waits asks again
        except OrderError:
            return ""  # forgotten already


class KubernetesQueue:
    """See Queue.

    Args:
        config: what its jobs are like.
        folder: holds the jobs' folders.
        api: the way in.
        cluster: the name by which the controller knows it; empty: the kubeconfig's.
        name: what a job of this name is called, so that no two are called alike.
    """

    def __init__(
        self, config: SiteConfig, folder: Path, api: KubeApi, cluster: str, name: Callable[[str], str]
    ) -> None:
        self._config, self._folder, self._api = config, folder, api
        self._cluster = cluster or api.cluster
        self._name = name

    async def submit(self, job: TrainingJob) -> JobKey:
        """See Queue."""
        config = self._config
        job = replace(job, name=self._name(job.name))
        key = JobKey(self._cluster, job_id("PyTorchJob", config.namespace, job.name))
        folder = self._folder / key.id
        folder.mkdir(parents=True, exist_ok=True)
        image, gpus = config.image or "none", config.gpus_per_node
        pytorch = container(job.argv(), folder=str(folder), image=image, gpus=gpus, env=config.env)
        claim = (config.claim, str(self._folder))
        manifest = pytorch_job(job, key, pytorch, folder=str(folder), claim=claim)
        try:
            await self._api.create(jobs_path(config.namespace), manifest)
        except ApiError as error:
            raise LinkError(str(error)) from error
        return key

    async def cancel(self, job: str, *, limit_s: float = 60.0) -> None:
        """See Queue. Its pods are deleted too, so that its nodes are free at once."""
        namespace, name = self._config.namespace, job.split(".", 2)[2]
        query = {"labelSelector": f"training.kubeflow.org/job-name={name}"}
        pods = f"/api/v1/namespaces/{namespace}/pods"
        async with _limit(limit_s, job):
            await self._api.drop(f"{jobs_path(namespace)}/{name}")
            while found := (await self._api.list_all(pods, query))[0]:
                for pod in found:
                    about = pod["metadata"]
                    await self._api.drop(f"{pods}/{about['name']}", uid=about["uid"], grace_s=1)
                await asyncio.sleep(_POLL_S)


class LocalQueue:
    """See Queue: the embedded cluster in a folder."""

    def __init__(self, config: SiteConfig, cluster_dir: Path) -> None:
        self._config = config
        self.breaker = LocalOrchestrator(cluster_dir / "cluster.sock")

    async def submit(self, job: TrainingJob) -> JobKey:
        """See Queue."""
        env = {"PYTHONUNBUFFERED": "1", **IN_EVERY_JOB, **self._config.env}
        recovery = job.recovery or RecoverySpec()
        view = await self.breaker.submit(
            job.argv(), nodes=job.nodes, name=job.name, drill_ok=True, recovery=recovery, env=env
        )
        return view.key

    async def cancel(self, job: str, *, limit_s: float = 60.0) -> None:
        """See Queue."""
        with contextlib.suppress(NotFoundError, OrderError):
            await self.breaker.cancel(job, who="drill", why="the drill is over")
        async with _limit(limit_s, job):
            while True:
                world = await self.breaker.observe()
                view = next((one for one in world.jobs if one.key.id == job), None)
                if (view is None or view.state in ENDED) and not any(job in node.jobs for node in world.nodes):
                    return
                await self.breaker.wait_change(limit_s)


@contextlib.asynccontextmanager
async def _limit(limit_s: float, job: str) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(limit_s):
            yield
    except TimeoutError:
        raise LinkError(f"job {job} did not end within {limit_s:.0f} s") from None
    except ApiError as error:
        raise LinkError(str(error)) from error


def jobs_path(namespace: str) -> str:
    """Where the API server has PyTorchJobs."""
    return f"/apis/kubeflow.org/v1/namespaces/{namespace}/pytorchjobs"

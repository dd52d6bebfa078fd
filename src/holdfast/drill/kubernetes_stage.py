"""A real Kubernetes control plane with agents, a controller and a training job, brought up and taken down as one thing.

The counterpart of `stage` for `holdfast drill run --on kubernetes` and `holdfast demo --on kubernetes`: the same
drills, the same eyes, but an API server, a scheduler, an operator and the Kubernetes adapter in between. The job is a
PyTorchJob whose pods run `holdfast run`, as a user would write it. The lab and the controller end when this process
ends, however that happens. Time is real.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from holdfast.adapters.kubernetes.api import KubeApi
from holdfast.adapters.kubernetes.objects import job_id
from holdfast.adapters.local import processes
from holdfast.adapters.local.client import LocalOrchestrator
from holdfast.drill.controlled import ControlledStage
from holdfast.drill.queues import end_job, jobs_path
from holdfast.drill.submission import container, pytorch_job
from holdfast.drill.training import TrainingJob
from holdfast.errors import LinkError
from holdfast.lab.kube_lab import KubeLab, KubeLabSettings
from holdfast.model.cluster import JobKey, RecoverySpec

KUBERNETES = "kubernetes-lab"
"""The cluster's name in a Kubernetes lab."""
VERB = """\
#!{python} -IS
import json, socket, sys
with socket.socket(socket.AF_UNIX) as link:
    link.settimeout(120)
    link.connect({sock!r})
    link.sendall(json.dumps({{"op": {verb!r}, "node": sys.argv[-1]}}).encode() + b"\\n")
    sys.exit(not json.loads(link.makefile().readline())["ok"])
"""


class KubernetesStageSettings(Struct, frozen=True, kw_only=True):
    """What is brought up."""

    folder: Path
    """The lab's folder; kept when the stage is closed."""
    nodes: int = 3
    spares: int = 1
    """Nodes more than `nodes`; the scheduler itself makes no difference."""
    policy: Path | None = None
    boot_s: float = 0.5
    up_limit_s: float = 120.0


class KubernetesStage(ControlledStage):
    """See the module. All methods but `open` need an open stage."""

    cluster_name = KUBERNETES

    def __init__(self, settings: KubernetesStageSettings) -> None:
        super().__init__(
            settings.folder.resolve(),
            nodes=settings.nodes,
            spares=settings.spares,
            policy=settings.policy,
            up_limit_s=settings.up_limit_s,
        )
        self.settings = settings
        self._lab: KubeLab | None = None
        self._api: KubeApi | None = None
        self._names: Counter[str] = Counter()

    # --- what there is ---

    @property
    def lab(self) -> KubeLab:
        """The Kubernetes."""
        if self._lab is None:
            raise LinkError("the stage is not open")
        return self._lab

    @property
    def api(self) -> KubeApi:
        """The administrator's way to it."""
        if self._api is None:
            raise LinkError("the stage is not open")
        return self._api

    @property
    def breaker(self) -> LocalOrchestrator:
        """See ControlledStage: the nodes are the embedded cluster's."""
        return self.lab.nodes

    def job_dir(self, key: JobKey) -> Path:
        """A job's folder, on the file system that the nodes share."""
        return self.folder / "jobs" / key.id

    # --- up and down ---

    async def open(self) -> None:
        """Start the lab, an agent on every node, and the controller; return when all answer.

        Raises:
            UsageError: the lab cannot be built here; says why.
            LinkError: something did not start; holds the end of its log.
        """
        wanted = self.settings
        settings = KubeLabSettings(nodes=wanted.nodes + wanted.spares, boot_s=wanted.boot_s)
        self._lab = await asyncio.to_thread(KubeLab.start, settings, self.folder)
        self._api = await KubeApi.connect("", self._lab.kubeconfig)
        await self.start_controller()
        await self._until_agents(wanted.up_limit_s)

    async def close(self) -> None:
        """See ControlledStage."""
        await self.stop_controller()
        api, self._api = self._api, None
        if api is not None:
            await api.close()
        lab, self._lab = self._lab, None
        if lab is not None:
            await asyncio.to_thread(lab.end)

    def _controller_words(self) -> list[str]:
        lab = self.lab
        site = self.folder / "holdfast.toml"
        lines = ["[kubernetes]", f"kubeconfig = {json.dumps(str(lab.kubeconfig))}", f'cluster = "{KUBERNETES}"']
        # Launchers log in by their pods' own tokens; the lab's agents run on its nodes, not in pods, and by the book.
        lines.append('agent_account = "holdfast/holdfast-agent"')
        programs = {verb: json.dumps([str(self._program(verb))]) for verb in ("reboot", "replace")}
        lines += [f"{verb}_program = {words}" for verb, words in programs.items()]
        site.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return ["--cluster", "kubernetes:", "--config", str(site), "--listen", "127.0.0.1:0"]

    def _program(self, verb: str) -> Path:
        """What a site has for it: a power cycle, a call to the provider."""
        path = self.folder / f"{verb}-node"
        path.write_text(VERB.format(python=sys.executable, sock=f"{self.folder}/cluster.sock", verb=verb))
        path.chmod(0o755)
        return path

    def _mark(self) -> dict[str, str]:
        # The mark makes the lab's keeper end the controller too, should our own process be killed.
        return {processes.CLUSTER_MARK: str(self.folder)}

    # --- jobs ---

    async def submit(self, job: TrainingJob, *, recovery: RecoverySpec | None = None) -> JobKey:
        """Queue a training job, open to drills; returns its key."""
        self._names[job.name] += 1
        job = replace(job, name=job.name if self._names[job.name] == 1 else f"{job.name}-{self._names[job.name]}")
        key = JobKey(KUBERNETES, job_id("PyTorchJob", "default", job.name))
        self.job_dir(key).mkdir(parents=True, exist_ok=True)
        await self.api.create(jobs_path("default"), self.manifest(job, key, recovery=recovery))
        return key

    def manifest(self, job: TrainingJob, key: JobKey, *, recovery: RecoverySpec | None = None) -> dict[str, Any]:
        """The PyTorchJob: what a user would write, with the places of this lab."""
        folder = self.job_dir(key)
        places = {"{scratch}": str(self.folder / "nodes" / "node01" / "tmp"), "{shared}": str(self.folder / "shared")}
        argv = job.argv()
        for mark, place in places.items():
            argv = [word.replace(mark, place) for word in argv]
        env = {
            "HOLDFAST_PARTITION": "default",
            "HOLDFAST_CONTROLLER_FILE": f"{self.folder}/controller/controller.json",
            # PyTorch makes this folder below /tmp otherwise: nothing of a stage lies outside its own.
            "TORCHINDUCTOR_CACHE_DIR": f"{self.folder}/cache/torchinductor",
        }
        pytorch = container(argv, folder=str(folder), image="none", gpus=8, env=env)
        return pytorch_job(job, key, pytorch, folder=str(folder), recovery=recovery)

    async def cancel(self, key: JobKey, *, limit_s: float = 30.0) -> None:
        """End a job for good and wait until its nodes are free."""
        await end_job(self.api, key, limit_s=limit_s)

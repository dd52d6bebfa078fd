"""A real Kubernetes control plane with an agent on every node, for a stage: API server, scheduler, operator are real.

Made by `stage`. A job is a PyTorchJob whose pods run `holdfast run`, as a user would write it. The lab and the
controller end when this process ends, however that happens. Time is real.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter

from holdfast.adapters.kubernetes.api import KubeApi
from holdfast.adapters.local import processes
from holdfast.adapters.local.client import LocalOrchestrator
from holdfast.drill.clusters import StageSettings, in_every_job
from holdfast.drill.queues import KubernetesQueue
from holdfast.drill.site_settings import SiteConfig
from holdfast.errors import LinkError
from holdfast.lab.kube_lab import SOCKET, KubeLab, KubeLabSettings
from holdfast.lab.wire import write_program

KUBERNETES = "kubernetes-lab"
"""The cluster's name in a Kubernetes lab."""


class KubernetesCluster:
    """See `clusters.Cluster`."""

    name = KUBERNETES
    boot_s, up_limit_s, agents = 0.5, 120.0, True

    def __init__(self, settings: StageSettings) -> None:
        self._settings = settings
        self._lab: KubeLab | None = None
        self._api: KubeApi | None = None
        self._names: Counter[str] = Counter()

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
        """See Cluster: the nodes are the embedded cluster's."""
        return self.lab.nodes

    @property
    def queue(self) -> KubernetesQueue:
        """See Cluster."""
        folder = self._settings.folder
        env = {
            "HOLDFAST_PARTITION": "default",
            "HOLDFAST_CONTROLLER_FILE": f"{folder}/controller/controller.json",
            **in_every_job(folder),
        }
        config = SiteConfig(env=env, gpus_per_node=8)
        return KubernetesQueue(config, folder / "jobs", self.api, KUBERNETES, self._name)

    def _name(self, name: str) -> str:
        self._names[name] += 1
        return name if self._names[name] == 1 else f"{name}-{self._names[name]}"

    async def open(self, boot_s: float, up_limit_s: float) -> list[str]:  # noqa: ARG002 - the lab has its own limit
        """See Cluster."""
        wanted, folder = self._settings, self._settings.folder
        settings = KubeLabSettings(nodes=wanted.nodes + wanted.spares, boot_s=boot_s)
        self._lab = await asyncio.to_thread(KubeLab.start, settings, folder)
        self._api = await KubeApi.connect("", self._lab.kubeconfig)
        site = folder / "holdfast.toml"
        lines = ["[kubernetes]", f"kubeconfig = {json.dumps(str(self._lab.kubeconfig))}", f'cluster = "{KUBERNETES}"']
        # Launchers log in by their pods' own tokens; the lab's agents run on its nodes, not in pods, and by the book.
        lines.append('agent_account = "holdfast/holdfast-agent"')
        for verb in ("reboot", "replace"):
            # What a site has for it: a power cycle, a call to the provider.
            write_program(folder / f"{verb}-node", folder / SOCKET, op=verb)
            lines.append(f"{verb}_program = {json.dumps([f'{folder}/{verb}-node'])}")
        site.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return ["--cluster", "kubernetes:", "--config", str(site), "--listen", "127.0.0.1:0"]

    async def until_up(self, limit_s: float) -> None:
        """See Cluster: `open` has seen to it."""

    async def close(self) -> None:
        """See Cluster."""
        api, self._api = self._api, None
        if api is not None:
            await api.close()
        lab, self._lab = self._lab, None
        if lab is not None:
            await asyncio.to_thread(lab.end)

    def environment(self) -> dict[str, str]:
        """See Cluster."""
        return {processes.CLUSTER_MARK: str(self._settings.folder)}

    def places(self) -> dict[str, str]:
        """See Cluster."""
        folder = self._settings.folder
        return {"{scratch}": f"{folder}/nodes/node01/tmp", "{shared}": f"{folder}/shared"}

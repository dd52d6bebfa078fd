"""What a stage brings up: the embedded cluster, a real Slurm or a real Kubernetes, each with an agent on every node.

Used by `stage`, which adds the controller and is the same for all. A job is submitted as a user would write it. All of
a cluster ends when this process ends, however that happens. Time is real.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from holdfast.adapters.kubernetes.api import KubeApi
from holdfast.adapters.local import processes
from holdfast.adapters.local.daemon import start_cluster
from holdfast.drill.kinds import SLURM, Kind
from holdfast.drill.ports import FaultPort
from holdfast.drill.queues import KubernetesQueue, LocalQueue, Queue, SlurmQueue
from holdfast.drill.site_settings import SiteConfig
from holdfast.errors import RefusedError
from holdfast.lab.keeper import MARK
from holdfast.lab.kube_lab import SOCKET, KubeLab, KubeLabSettings
from holdfast.lab.settings import LabSettings
from holdfast.lab.slurm_lab import SlurmLab
from holdfast.lab.waiting import wait_until
from holdfast.lab.wire import write_program
from holdfast.os.tls import PLAIN_HTTP

KUBERNETES = "kubernetes-lab"
"""The cluster's name in a Kubernetes lab."""
SHARED_MIB = 32
NEEDS_ROOT = frozenset({"network_cut", "disk_full", "shared_full"})
"""Kinds that need networks, or file systems, that only root can make."""
DAEMON_S = 15.0


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


class Up(Struct, frozen=True, kw_only=True):
    """A cluster that is up, without its controller."""

    queue: Queue
    """Where jobs are submitted."""
    breaker: FaultPort
    """Breaks its nodes."""
    words: list[str]
    """What `holdfast controller` is told beside its folder and policy."""
    environment: dict[str, str]
    """Of the controller: by it the cluster finds and ends the controller, should this process be killed."""
    places: dict[str, str]
    """What stands in a job's words for a node's scratch file system and for a small shared one."""
    until_up: Callable[[], Awaitable[object]] | None = None
    """Waits until its nodes are up, while a controller watches; None: they are. Raises LinkError."""
    lab: Any = None
    """The Slurm or Kubernetes lab."""
    api: Any = None
    """The administrator's way to Kubernetes."""


class Cluster(Struct, frozen=True, kw_only=True):
    """A kind of cluster."""

    name: str
    """In job keys and reports."""
    boot_s: float
    up_limit_s: float
    """What `StageSettings` stand for when they say nothing."""
    agents: bool = True
    """Is each node's agent awaited? A fault before it reads its node's kernel log would go unseen."""
    open: Callable[[StageSettings, float, float], contextlib.AbstractAsyncContextManager[Up]]
    """Brings it up, with `boot_s` and `up_limit_s`, and ends it.

    Raises:
        UsageError: it cannot be brought up here; says why.
        LinkError: something did not start; holds the end of what it said.
    """


def in_every_job(folder: Path) -> dict[str, str]:
    """PyTorch makes this folder below /tmp otherwise: nothing of a stage lies outside its own."""
    return {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/cache/torchinductor"}


@contextlib.asynccontextmanager
async def _embedded(wanted: StageSettings, boot_s: float, up_limit_s: float) -> AsyncIterator[Up]:
    folder = wanted.folder
    running = await asyncio.to_thread(
        start_cluster,
        folder,
        nodes=wanted.nodes,
        spares=wanted.spares,
        drill_ok=True,
        options=("--boot-s", str(boot_s), *wanted.options),
    )
    queue = LocalQueue(SiteConfig(env=in_every_job(folder)), folder)
    try:
        yield Up(
            queue=queue,
            breaker=queue.breaker,
            # The site's own file, with its certificate and its notices, is not for an embedded cluster.
            words=["--config", os.devnull, "--listen", "127.0.0.1:0"],
            environment={processes.CLUSTER_MARK: str(folder)},
            places={"{scratch}": f"{folder}/nodes/node01/tmp"},
            until_up=lambda: running.until_up(limit_s=up_limit_s),
        )
    finally:
        await asyncio.to_thread(running.end)


# --- Slurm ------------------------------------------------------------------------------------------------------------


def lacking_on_slurm(kind: Kind) -> str:
    """Why a kind of fault cannot be had on a Slurm lab of this user; empty when it can."""
    if kind.name in NEEDS_ROOT and os.geteuid() != 0:
        return "needs root on a Slurm lab"
    return kind.lacking(SLURM)


def _free_disk(lab: SlurmLab, node: str) -> None:
    with contextlib.suppress(RefusedError):  # a node that has gone took it along
        lab.node("disk", node, full=False)


def _kill_scheduler(lab: SlurmLab, _: str) -> None:
    # slurmctld writes its state some seconds late; what it forgets of a job's start is not the drill's subject.
    state = lab.folder / "state"
    if lab.facts.settings.dbd and not (state / "assoc_usage").exists():
        # Newer versions do not start again without it, and write it first at an orderly end, or after minutes.
        lab.daemons.stop("slurmctld")
        lab.daemons.start_ctld()
    running = lab.run(["squeue", "-h", "-t", "RUNNING", "-o", "%S"]).split()
    saved = state / "job_state"
    started = max((time.mktime(time.strptime(at, "%Y-%m-%dT%H:%M:%S")) for at in running), default=0.0)
    wait_until(
        lambda: saved.exists() and saved.stat().st_mtime > started, "slurmctld saves its state", limit_s=DAEMON_S
    )
    lab.daemons.stop("slurmctld", sig=signal.SIGKILL)


_SLURM_DEEDS: dict[str, Callable[..., object]] = {
    "kmsg": lambda lab, node, text: lab.kmsg(node, text),
    "power_off": lambda lab, node: lab.crash(node),
    "power_on": lambda lab, node: lab.start_node(node),
    "cut": lambda lab, node: lab.node("cut", node),
    "heal": lambda lab, node: lab.node("heal", node),
    "fill_disk": lambda lab, node: lab.node("disk", node, full=True),
    "free_disk": _free_disk,
    "kill_slurmd": lambda lab, node: lab.kill_slurmd(node),
    "start_slurmd": lambda lab, node: lab.start_node(node),
    "reboot": lambda lab, node: lab.node("reboot", node),
    "kill_scheduler": _kill_scheduler,
    "start_scheduler": lambda lab, _: lab.daemons.start_ctld(),
    "stop_accounting": lambda lab, _: lab.daemons.stop("slurmdbd"),
    "start_accounting": lambda lab, _: lab.daemons.start_dbd(),
    "fill_shared": lambda lab, _: lab.fill_shared(),
    "free_shared": lambda lab, _: lab.free_shared(),
}


class SlurmBreaker:
    """A `FaultPort` for a Slurm lab."""

    deeds: AbstractSet[str] = _SLURM_DEEDS.keys()

    def __init__(self, lab: SlurmLab) -> None:
        self._lab = lab

    async def do(self, deed: str, node: str = "", **facts: Any) -> None:
        """See FaultPort."""
        await asyncio.to_thread(_SLURM_DEEDS[deed], self._lab, node, **facts)


@contextlib.asynccontextmanager
async def _slurm(wanted: StageSettings, boot_s: float, up_limit_s: float) -> AsyncIterator[Up]:
    folder, root = wanted.folder, os.geteuid() == 0
    settings = LabSettings(
        nodes=wanted.nodes + wanted.spares,
        netns=root,
        dbd=wanted.accounting,
        agents=True,
        boot_s=boot_s,
        shared_mib=SHARED_MIB if root else 0,
    )
    lab = await asyncio.to_thread(SlurmLab.start, settings, folder, limit_s=up_limit_s)
    try:
        site = folder / "etc" / "holdfast.toml"
        # A power cycle, as a BMC has it: `scontrol reboot` cannot help a node that does not answer.
        programs = {"reboot_program": "power-cycle", "replace_program": "replace-node"}
        lines = [f"{key} = {json.dumps([f'{folder}/bin/{name}'])}" for key, name in programs.items()]
        site.write_text("\n".join(["[slurm]", *lines]) + "\n", encoding="utf-8")
        exports = {
            "HOLDFAST_CONTROLLER_FILE": f"{folder}/controller/controller.json",
            "HOLDFAST_TOKEN_FILE": f"{folder}/controller/agent-token",
            PLAIN_HTTP: "1",
            **in_every_job(folder),
        }
        if not lab.facts.settings.netns:
            exports["HOLDFAST_NODE_ADDRESS"] = "127.0.0.1"
        # Slurm's tools get almost no environment, and a job has theirs.
        exports |= {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
        conf, listen = lab.facts.conf, f"{lab.facts.ctld_address}:0"
        scratch = lab.node_dir(lab.facts.names[0]) / "tmp"
        yield Up(
            queue=SlurmQueue(SiteConfig(env=exports), folder / "jobs", conf, SLURM),
            breaker=SlurmBreaker(lab),
            words=["--cluster", f"slurm:{conf}", "--config", str(site), "--listen", listen],
            environment={MARK: str(folder), "PATH": lab.env()["PATH"]},
            places={"{scratch}": str(scratch), "{shared}": f"{folder}/shared/job-$SLURM_JOB_ID"},
            lab=lab,
        )
    finally:
        await asyncio.to_thread(lab.end)


# --- Kubernetes -------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def _kubernetes(wanted: StageSettings, boot_s: float, _: float) -> AsyncIterator[Up]:
    folder = wanted.folder  # the lab has its own limit
    settings = KubeLabSettings(nodes=wanted.nodes + wanted.spares, boot_s=boot_s)
    lab = await asyncio.to_thread(KubeLab.start, settings, folder)
    async with contextlib.AsyncExitStack() as ending:
        ending.push_async_callback(asyncio.to_thread, lab.end)
        api = await KubeApi.connect("", lab.kubeconfig)
        ending.push_async_callback(api.close)
        site = folder / "holdfast.toml"
        lines = ["[kubernetes]", f"kubeconfig = {json.dumps(str(lab.kubeconfig))}", f'cluster = "{KUBERNETES}"']
        # Launchers log in by their pods' own tokens; the lab's agents run on its nodes, not in pods, and by the book.
        lines.append('agent_account = "holdfast/holdfast-agent"')
        for verb in ("reboot", "replace"):
            # What a site has for it: a power cycle, a call to the provider.
            write_program(folder / f"{verb}-node", folder / SOCKET, op=verb)
            lines.append(f"{verb}_program = {json.dumps([f'{folder}/{verb}-node'])}")
        site.write_text("\n".join(lines) + "\n", encoding="utf-8")
        env = {
            "HOLDFAST_PARTITION": "default",
            "HOLDFAST_CONTROLLER_FILE": f"{folder}/controller/controller.json",
            **in_every_job(folder),
        }
        names: Counter[str] = Counter()

        def another(name: str) -> str:
            names[name] += 1
            return name if names[name] == 1 else f"{name}-{names[name]}"

        yield Up(
            queue=KubernetesQueue(SiteConfig(env=env, gpus_per_node=8), folder / "jobs", api, KUBERNETES, another),
            breaker=lab.nodes,
            words=["--cluster", "kubernetes:", "--config", str(site), "--listen", "127.0.0.1:0"],
            environment={processes.CLUSTER_MARK: str(folder)},
            places={"{scratch}": f"{folder}/nodes/node01/tmp", "{shared}": f"{folder}/shared"},
            lab=lab,
            api=api,
        )


CLUSTERS = {
    "local": Cluster(name="local", boot_s=0.3, up_limit_s=30.0, agents=False, open=_embedded),
    "slurm": Cluster(name=SLURM, boot_s=0.5, up_limit_s=60.0, open=_slurm),
    "kubernetes": Cluster(name=KUBERNETES, boot_s=0.5, up_limit_s=120.0, open=_kubernetes),
}

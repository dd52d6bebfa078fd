"""A real Kubernetes control plane on this machine, with nodes that run pods as processes, as one thing.

    with KubeLab.start(KubeLabSettings(nodes=4), folder) as lab:
        ...  # lab.kubeconfig, lab.nodes.do("kmsg", "node01", text="NVRM: Xid ..."), lab.stop(API)

`start` with `follow` (the default) makes a lab that ends when this process ends, however that happens; without, it goes
on until `down`. `attach` takes up one that runs. Used by the command line, drills and tests; all methods but those of
`nodes` (the embedded cluster's own client: kernel log, power, network, disk) block. Time: every wait has a deadline.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
from msgspec import Struct

from holdfast.adapters.kubernetes import library
from holdfast.adapters.local import processes
from holdfast.adapters.local.client import LocalOrchestrator
from holdfast.adapters.local.daemon import end_cluster
from holdfast.errors import LinkError, NotFoundError
from holdfast.lab import kube_build, wire
from holdfast.lab.kube_control import PORTS
from holdfast.lab.kube_keeper import FACTS, KubeFacts, KubeSettings
from holdfast.lab.settings import free_range
from holdfast.lab.waiting import start_keeper, wait_until

MODULE = "holdfast.lab.kube_keeper"
SOCKET = "cluster.sock"
UP_S = 420.0
DOWN_S = 60.0
CRDS = Path(__file__).parent / "crds"
"""Definitions that a lab has from the start, see the README beside them."""


class KubeLabSettings(Struct, frozen=True, kw_only=True):
    """What a lab is asked for."""

    nodes: int = 4
    spares: int = 0
    gpus: int = 8
    agents: bool = True
    boot_s: float = 1.0
    drill_ok: bool = True
    port: int = 0
    """First port of six; 0: a free range."""
    node_grace_s: int = 8
    crds: tuple[Path, ...] = (CRDS,)
    """Files, or folders of files, of custom resource definitions."""
    agent_beat_s: float = 0.5


class KubeLab:
    """A lab that runs. Make it by `start` or `attach`."""

    def __init__(self, folder: Path, facts: KubeFacts, process: subprocess.Popen[bytes] | None = None) -> None:
        self.folder = folder
        self.facts = facts
        self.nodes = LocalOrchestrator(folder / SOCKET)
        """Breaks and mends nodes (not the scheduler of this lab: that is Kubernetes)."""
        self._process = process

    @property
    def kubeconfig(self) -> Path:
        """The administrator's."""
        return Path(self.facts.kubeconfig)

    @classmethod
    def start(
        cls,
        settings: KubeLabSettings,
        folder: Path,
        *,
        follow: bool = True,
        say: Callable[[str], None] = lambda _: None,
    ) -> Self:
        """Build what the cache lacks, start everything, and return when every node is registered and ready.

        Raises:
            UsageError: it cannot be built here, or a library is missing; says why.
            LinkError: something did not start; holds the end of its log.
        """
        library.load()
        found = kube_build.binaries(say)
        folder = folder.resolve()
        folder.mkdir(parents=True, exist_ok=True, mode=0o755)
        if wire.is_running(folder, "kube_status", SOCKET):
            return cls.attach(folder)
        _clear(folder)
        files = [f for place in settings.crds for f in (sorted(place.glob("*.json")) if place.is_dir() else [place])]
        kube = KubeSettings(
            binaries=found,
            port=settings.port or free_range(PORTS, os.getpid() * 7),
            crds=tuple(map(str, files)),
            node_grace_s=settings.node_grace_s,
        )
        process = _spawn(settings, kube, folder, follow=follow)
        lab = cls(folder, _facts(folder), process)
        try:
            wait_until(lab.all_ready, "the nodes are not ready", limit_s=UP_S, logs=(folder / "cluster.log",))
        except LinkError:
            lab.end()
            raise
        return lab

    @classmethod
    def attach(cls, folder: Path) -> Self:
        """Take up the lab that runs in this folder. Raises LinkError when none does."""
        folder = folder.resolve()
        if not wire.is_running(folder, "kube_status", SOCKET):
            raise LinkError(f"no lab runs in {folder}; `holdfast lab kubernetes up` starts one")
        return cls(folder, _facts(folder))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        """End it and everything in it."""
        down(self.folder)
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(DOWN_S)

    # --- what there is ---

    def status(self) -> dict[str, Any]:
        """Daemons (pid, last exit code) by name."""
        found: dict[str, Any] = self._ask("kube_status")
        return found

    def node_states(self) -> dict[str, str]:
        """The lab's own view of its nodes: `idle`, `busy`, `off (...)`."""
        world = asyncio.run(self.nodes.observe())
        return {node.name: node.state_text for node in world.nodes}

    def all_ready(self) -> bool:
        """Does the API server call every node of the lab ready?"""
        from holdfast.adapters.kubernetes.api import KubeApi  # noqa: PLC0415 - slow to import

        async def look() -> bool:
            api = await KubeApi.connect("", self.kubeconfig)
            try:
                items, _ = await api.list_all("/api/v1/nodes")
            finally:
                await api.close()
            ready = {
                node["metadata"]["name"]
                for node in items
                for one in (node.get("status") or {}).get("conditions") or []
                if one["type"] == "Ready" and one["status"] == "True" and not blocked(node)
            }
            return ready >= set(self.node_states_names())

        return asyncio.run(look())

    def node_states_names(self) -> list[str]:
        """Names of the lab's nodes."""
        return [place.name for place in sorted((self.folder / "nodes").iterdir()) if not place.name.startswith(".")]

    def node_dir(self, node: str) -> Path:
        """A node's folder. Raises NotFoundError."""
        place = self.folder / "nodes" / node
        if not place.is_dir():
            raise NotFoundError(f"there is no node {node[:64]} in this lab")
        return place

    # --- breaking and mending the control plane ---

    def stop(self, daemon: str, *, sig: int = signal.SIGKILL) -> None:
        """End one of the control plane's daemons; returns when it is gone."""
        self._ask("kube_stop", daemon=daemon, signal=int(sig))

    def run(self, daemon: str) -> None:
        """Start it again; returns when the API server answers."""
        self._ask("kube_start", daemon=daemon)

    def _ask(self, op: str, **facts: Any) -> Any:
        return wire.ask(self.folder, op, limit_s=UP_S, socket_name=SOCKET, **facts)


def blocked(node: dict[str, Any]) -> bool:
    """Does a taint of the node controller still keep pods off? It is lifted a moment after the node is ready."""
    taints = (node.get("spec") or {}).get("taints") or []
    return any(taint["key"].startswith("node.kubernetes.io/") for taint in taints)


def down(folder: Path, *, limit_s: float = DOWN_S) -> bool:
    """End the lab of this folder, whoever started it, and what one that was killed left. False when nothing ran."""
    folder = folder.resolve()
    ran = asyncio.run(end_cluster(folder, module=MODULE, limit_s=limit_s))
    _clear(folder)
    return ran


def _clear(folder: Path) -> None:
    """Drop etcd's records and the nodes' folders, which go with a lab; the controller's folder stays."""
    for sub in ("kube/etcd", "nodes"):
        shutil.rmtree(folder / sub, ignore_errors=True)


def _facts(folder: Path) -> KubeFacts:
    try:
        return msgspec.json.decode((folder / FACTS).read_bytes(), type=KubeFacts)
    except (OSError, msgspec.MsgspecError) as error:
        raise LinkError(f"{folder / FACTS} cannot be read: {error}") from error


def _spawn(settings: KubeLabSettings, kube: KubeSettings, folder: Path, *, follow: bool) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-m", MODULE, "--kube", msgspec.json.encode(kube, enc_hook=str).decode()]
    argv += ["--dir", str(folder), "--name", "lab", "--nodes", str(settings.nodes), "--spares", str(settings.spares)]
    argv += ["--gpus-per-node", str(settings.gpus), "--boot-s", str(settings.boot_s)]
    argv += ["--agent-beat-s", str(settings.agent_beat_s)]
    argv += ["--drill-ok"] * settings.drill_ok + ["--no-agents"] * (not settings.agents)
    log = folder / "cluster.log"
    log.unlink(missing_ok=True)
    environment = {**os.environ, processes.CLUSTER_MARK: str(folder)}
    try:
        return start_keeper(argv, log, environment, follow=follow, limit_s=UP_S)
    except LinkError:
        down(folder)
        raise

"""The process that a Kubernetes lab descends from: control plane, kubelets, nodes with agents, and its socket.

Run as `python -m holdfast.lab.kube_keeper --dir LAB --nodes 4 ...` by `kube_lab`. It is an embedded cluster whose
nodes take their work from a real API server: nodes, agents, kernel logs and breakers are the embedded cluster's own,
and so is the socket (`LAB/cluster.sock`), with a few operations more. It ends on SIGTERM, or with the process that it
follows, and takes everything along; the daemons die with it even if it is killed. A daemon that ends unasked is not
started again. Time: daemons are awaited with deadlines.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import psutil
from msgspec import Struct

from holdfast.adapters.kubernetes.api import ApiError, KubeApi
from holdfast.adapters.local import cluster, node_init, processes
from holdfast.adapters.local.cluster import Cluster, ClusterSettings
from holdfast.adapters.local.protocol import encode_error
from holdfast.errors import HoldfastError, LinkError, NotFoundError, PermanentOrderError, UsageError
from holdfast.lab.kube_build import KubeBinaries
from holdfast.lab.kube_control import API, CONTROLLERS, DAEMONS, ETCD, ControlPlane
from holdfast.lab.kube_kubelet import Kubelets
from holdfast.lab.kube_logs import serve_logs
from holdfast.lab.kube_operator import Operator
from holdfast.lab.waiting import ends

if TYPE_CHECKING:
    from aiohttp.web import AppRunner

UP_S = 400.0
POLL_S = 0.05
STOP_S = 20.0
FACTS = "kube.json"
RECORDS_BYTES = 2 << 30
"""At most so much memory for etcd's records; a small lab's take some 150 MiB."""
SPARE_BYTES = 4 << 30


class KubeFacts(Struct, frozen=True, kw_only=True):
    """The contents of `kube.json`: what an attached lab needs to know."""

    version: str
    server: str
    kubeconfig: str
    port: int


class KubeSettings(Struct, frozen=True, kw_only=True):
    """What the keeper is told beside the embedded cluster's own settings."""

    binaries: KubeBinaries
    port: int
    crds: tuple[str, ...] = ()
    """Files of custom resource definitions (JSON or YAML) to install."""
    node_grace_s: int = 8


class KubeCluster(Cluster):
    """See the module."""

    def __init__(self, settings: ClusterSettings, kube: KubeSettings) -> None:
        super().__init__(settings)
        self._kube = kube
        self.plane = ControlPlane(
            folder=settings.folder / "kube", binaries=kube.binaries, port=kube.port, node_grace_s=kube.node_grace_s
        )
        self._pids: dict[str, int] = {}
        self._codes: dict[str, int] = {}
        self._kubelets: Kubelets | None = None
        self._operator: Operator | None = None
        self._logs: AppRunner | None = None
        self._api: KubeApi | None = None

    # --- what nodes say: their tasks are containers here ---

    def task_started(self, node: str, task: str, pid: int, at: float) -> None:
        """Nothing hangs on it: a container counts as running from its order on."""

    def task_ended(self, node: str, task: str, code: int | None, sig: int | None, at: float) -> None:  # noqa: ARG002
        """See NodeEvents."""
        if self._kubelets is not None:
            self._kubelets.task_ended(task, code, sig)

    def task_gone(self, node: str, task: str) -> None:  # noqa: ARG002 - a task's id says it all
        """See NodeEvents."""
        if self._kubelets is not None:
            self._kubelets.task_gone(task)

    def node_lost(self, node: str, evidence: str) -> None:  # noqa: ARG002 - nobody here is told why
        """See NodeEvents."""
        self.kill_strays()
        if self._kubelets is not None:
            self._kubelets.node_lost(node)

    def changed(self) -> None:
        """See NodeEvents."""
        super().changed()
        if self._kubelets is not None:
            self._kubelets.nodes_changed()

    def kill_strays(self) -> None:
        """As an embedded cluster, but the control plane's daemons are no strays."""

        def strays() -> list[int]:
            known = [node.pid for node in self.fleet.nodes.values() if node.pid]
            return node_init.descendants(os.getpid(), node_init.process_table(), skip=[*known, *self._pids.values()])

        processes.end_all(strays, limit_s=1.0)

    def _reap(self) -> None:
        for pid, code in node_init.reaped():
            for daemon, known in list(self._pids.items()):
                if known == pid:
                    del self._pids[daemon]
                    self._codes[daemon] = code

    # --- the control plane ---

    async def start_daemon(self, name: str) -> None:
        """Start one, unless it runs. Raises LinkError."""
        if name in self._pids:
            return
        log = self.plane.log(name)
        environment = {**os.environ, processes.CLUSTER_MARK: str(self.settings.folder)}
        environment["PATH"] = f"{environment.get('PATH', os.defpath)}:/usr/sbin:/sbin"
        argv = self.plane.argv(name)
        try:
            self._pids[name] = node_init.spawn(argv, env=environment, cwd=str(self.plane.folder), out=str(log))
        except OSError as error:
            raise LinkError(f"{name} cannot be started: {error}") from error

    async def stop_daemon(self, name: str, sig: int = signal.SIGTERM) -> None:
        """End one and wait until it is gone."""
        pid = self._pids.get(name)
        if pid is None:
            return
        node_init.send_signal([pid], sig)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                await processes.watch_process(pid)
                return
        node_init.send_signal([pid], signal.SIGKILL)
        await processes.watch_process(pid)

    async def _until(self, true: Callable[[], Awaitable[object]], what: str, daemon: str) -> None:
        log = self.plane.log(daemon)
        try:
            async with asyncio.timeout(UP_S):
                while True:
                    with contextlib.suppress(LinkError, ApiError, OSError):
                        if await true():
                            return
                    if daemon not in self._pids:
                        raise LinkError(f"{daemon} ended with {self._codes.get(daemon)}{ends(log)}")
                    await asyncio.sleep(POLL_S)
        except TimeoutError as error:
            raise LinkError(f"{what}: not within {UP_S:g} s{ends(log)}") from error

    async def until_ready(self) -> None:
        """Return when the API server answers for itself and its storage."""
        await self._until(lambda: asyncio.to_thread(self.plane.certificate.exists), "no certificate", API)
        if self._api is None:
            self._api = await KubeApi.connect("", self.plane.kubeconfig)
        api = self._api
        await self._until(lambda: api.raw("GET", "/readyz", limit_s=5.0), "the API server is not ready", API)

    async def start_plane(self) -> None:
        """Start all of it; return when pods can be made.

        Raises:
            LinkError: a daemon did not come up; holds the end of its log.
        """
        await asyncio.to_thread(self.plane.write_files)
        await self.start_daemon(ETCD)
        await self.start_daemon(API)
        await self.until_ready()
        for name in DAEMONS[2:]:
            await self.start_daemon(name)
        api = self.api
        account = "/api/v1/namespaces/default/serviceaccounts/default"
        await self._until(lambda: api.get(account), "no default service account", CONTROLLERS)
        for file in self._kube.crds:
            await install_crds(api, Path(file))

    @property
    def api(self) -> KubeApi:
        """The administrator's way in."""
        if self._api is None:
            raise LinkError("the API server is not up")
        return self._api

    # --- life ---

    async def run(self) -> None:
        """As an embedded cluster, with the control plane up first and down last."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGCHLD, self._reap)
        try:
            await self.start_plane()
            self._kubelets = Kubelets(
                self.api, self.fleet.nodes, gpus=self.settings.node.gpus, logs_port=self.plane.logs_port
            )
            await self._serve_logs(self._kubelets)
            self._operator = Operator(self.api)
            self._keep(self._kubelets.run())
            self._keep(self._operator.run())
            self._write_kube_facts()
            await super().run()
        except HoldfastError as error:
            sys.stderr.write(f"holdfast kubernetes lab: {error}\n")
            raise SystemExit(1) from error
        finally:
            await self._end_plane()

    async def _serve_logs(self, kubelets: Kubelets) -> None:
        plane = self.plane
        try:
            self._logs = await serve_logs(
                kubelets.log_of, plane.logs_port, certificate=plane.certificate, key=plane.key
            )
        except OSError as error:
            raise LinkError(f"the kubelets' port {plane.logs_port} cannot be opened: {error}") from error

    async def _end_plane(self) -> None:
        if self._logs is not None:
            await self._logs.cleanup()
        if self._kubelets is not None:
            await self._kubelets.close()
        if self._api is not None:
            await self._api.close()
        for name in reversed(DAEMONS):
            await self.stop_daemon(name, signal.SIGKILL)  # its records go with the folder
        processes.end_all(lambda: processes.marked(self.settings.folder))

    def _write_kube_facts(self) -> None:
        facts = KubeFacts(
            version=self._kube.binaries.version,
            server=self.plane.server,
            kubeconfig=str(self.plane.kubeconfig),
            port=self._kube.port,
        )
        (self.settings.folder / FACTS).write_bytes(msgspec.json.format(msgspec.json.encode(facts), indent=2))

    # --- the socket's further operations ---

    async def _answer(self, line: bytes) -> bytes:
        try:
            told = json.loads(line)
        except ValueError:
            told = {}
        op = told.get("op", "") if isinstance(told, dict) else ""
        if not str(op).startswith("kube_"):
            return await super()._answer(line)
        try:
            result = await self._operate(op, told)
        except HoldfastError as error:
            return encode_error(error)
        except ApiError as error:
            return encode_error(PermanentOrderError(str(error)))
        return json.dumps({"ok": True, "result": result}).encode() + b"\n"

    async def _operate(self, op: str, told: dict[str, Any]) -> Any:
        if op == "kube_status":
            return {name: {"pid": self._pids.get(name, 0), "code": self._codes.get(name)} for name in DAEMONS}
        name = str(told.get("daemon", ""))
        if name not in DAEMONS:
            raise NotFoundError(f"there is no daemon {name[:40]!r} here: {', '.join(DAEMONS)}")
        if op == "kube_stop":
            await self.stop_daemon(name, int(told.get("signal", signal.SIGTERM)))
            return "ended"
        if op == "kube_start":
            await self.start_daemon(name)
            if name in {API, ETCD} and {API, ETCD} <= self._pids.keys():
                await self.until_ready()
            return "up"
        raise UsageError(f"`{op[:40]}` is no operation of a lab")


async def install_crds(api: KubeApi, file: Path) -> None:
    """Create the definitions in this file and wait until each is served. One that is there already is fine.

    Raises:
        LinkError: one was not accepted.
    """
    import yaml  # noqa: PLC0415 - only here

    text = await asyncio.to_thread(file.read_text, encoding="utf-8")
    for found in filter(None, yaml.load_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))):
        about = found["metadata"]
        about.pop("creationTimestamp", None)
        found.pop("status", None)
        path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        try:
            await api.create(path, found)
        except ApiError as error:
            if not error.conflict:
                raise LinkError(f"{file.name}: the API server does not take {about['name']}: {error}") from error
        group, version = found["spec"]["group"], found["spec"]["versions"][0]["name"]
        plural = found["spec"]["names"]["plural"]
        async with asyncio.timeout(UP_S):
            while True:
                try:
                    await api.get(f"/apis/{group}/{version}/{plural}", {"limit": "1"})
                    break
                except ApiError:
                    await asyncio.sleep(POLL_S)


def keep_in_memory(records: Path) -> bool:
    """Have this process and all below it see a file system in memory here, which goes when the last of them ends.

    Etcd waits for the disk at each write, and a lab's disk is whatever else runs on this machine: an order would take
    seconds that no cluster whose etcd has a disk of its own takes. Returns False, and changes nothing, where memory is
    short or this user may not mount.
    """
    if psutil.virtual_memory().available < SPARE_BYTES or not node_init.own_mounts():
        return False
    records.mkdir(exist_ok=True)
    return node_init.mount_tmpfs(records, RECORDS_BYTES)


def parse(argv: Sequence[str]) -> tuple[ClusterSettings, KubeSettings]:
    """Read the keeper's command line: a `--kube JSON`, and what an embedded cluster takes."""
    if argv[:1] != ["--kube"]:
        raise UsageError("the keeper is started by `holdfast lab kubernetes up`")
    return cluster.parse(argv[2:]), msgspec.json.decode(
        argv[1].encode(), type=KubeSettings, dec_hook=lambda kind, text: kind(text)
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the keeper in the foreground; one per folder."""
    settings, kube = parse(sys.argv[1:] if argv is None else argv)
    (settings.folder / "kube").mkdir(parents=True, exist_ok=True)

    async def run() -> None:
        keep_in_memory(settings.folder / "kube" / "etcd")
        await KubeCluster(settings, kube).run()

    return cluster.hold(settings.folder, run, "lab kubernetes")


if __name__ == "__main__":
    sys.exit(main())

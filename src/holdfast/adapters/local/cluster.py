"""The embedded cluster's daemon: owns nodes and jobs, answers its socket, ends everything when it ends.

Run as `python -m holdfast.adapters.local.cluster --dir DIR --nodes 4 --spares 1`, by `holdfast cluster up`, the demo,
the lab and the tests (through `daemon.start_cluster`). It goes on when a controller dies. It ends on SIGTERM, SIGINT,
`shutdown`, or when the process named by `--parent-pid` ends, and takes everything that it ever started with it: its
nodes' first processes are subreapers, it is one itself, and last it looks for its mark in every process's environment.
If it is killed with SIGKILL, each node's first process sees its socket close and kills its node.

Time: one asyncio loop without threads; a tick every 0.2 s notices silence and healed cuts, all else is pushed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from holdfast import __version__
from holdfast.adapters.local import node_init, processes
from holdfast.adapters.local.breakers import break_it
from holdfast.adapters.local.fleet import Fleet, view_of
from holdfast.adapters.local.jobs import JobBook
from holdfast.adapters.local.nodes import NodeSettings
from holdfast.adapters.local.protocol import (
    LINE_BYTES_MAX,
    AddNode,
    AnyRequest,
    Breaker,
    Cancel,
    Changed,
    JobRequest,
    Jobs,
    NodeRequest,
    Nodes,
    Observe,
    Observed,
    Shutdown,
    Submit,
    WaitChange,
    decode_request,
    encode_error,
    encode_result,
)
from holdfast.errors import HoldfastError, RefusedError, TemporaryOrderError
from holdfast.model.cluster import WorldView
from holdfast.os.files import locked, write_whole
from holdfast.os.tls import CA_NAME
from holdfast.os.unix_sockets import socket_address

TICK_S = 0.2
DONE_ORDERS_MAX = 10_000
"""Order ids remembered; an order is looked at again within minutes, never after so many others."""


class ClusterSettings(Struct, frozen=True, kw_only=True):
    """What a cluster is started with."""

    folder: Path
    name: str
    controller_file: Path
    """Where a controller's address appears; it may come, go and change."""
    nodes: int = 4
    spares: int = 0
    node: NodeSettings = NodeSettings()
    parent_pid: int = 0
    ready_fd: int = -1
    """Descriptor to write a line to as soon as the socket answers."""


class ClusterFacts(Struct, frozen=True, kw_only=True):
    """The contents of `cluster.json`. `pid` is 0 when the cluster is down."""

    name: str
    pid: int
    socket: str
    nodes: tuple[str, ...]
    epoch: int
    """How often a cluster was started in this folder."""
    started_at: float
    drill_ok: bool
    version: str = __version__


class Cluster:
    """The embedded scheduler."""

    def __init__(self, settings: ClusterSettings) -> None:
        self.settings = settings
        self.fleet = Fleet(settings.folder / "nodes", settings.node, self)
        self.version = 1
        self._news = asyncio.Event()
        self._stopping = asyncio.Event()
        self._schedule_due = False
        self._done: dict[str, Any] = {}
        self._in_flight: dict[str, asyncio.Task[Any]] = {}
        self._background: set[asyncio.Task[Any]] = set()
        self._connections: set[asyncio.Task[Any]] = set()
        self.jobs = JobBook(
            cluster=settings.name,
            folder=settings.folder / "jobs",
            nodes=self.fleet.nodes,
            env={"HOLDFAST_CONTROLLER_FILE": str(settings.controller_file)},
            changed=self.changed,
        )

    # --- NodeEvents ---

    def changed(self) -> None:
        """Wake observers now, and the scheduler once, after what is going on has ended."""
        self.version += 1
        self._news.set()
        self._news = asyncio.Event()
        if not self._schedule_due:
            self._schedule_due = True
            asyncio.get_running_loop().call_soon(self._schedule)

    def task_started(self, node: str, task: str, pid: int, at: float) -> None:
        """See NodeEvents."""
        self.jobs.task_started(node, task, pid, at)

    def task_ended(self, node: str, task: str, code: int | None, sig: int | None, at: float) -> None:
        """See NodeEvents."""
        self.jobs.task_ended(node, task, code, sig, at)

    def task_gone(self, node: str, task: str) -> None:
        """See NodeEvents."""
        self.jobs.task_gone(node, task)

    def node_lost(self, node: str, evidence: str) -> None:
        """See NodeEvents. What the dead node's first process held is now this process's own child: end it."""
        self.kill_strays()
        self.jobs.node_lost(node, evidence)

    def _schedule(self) -> None:
        self._schedule_due = False
        if not self._stopping.is_set():
            self.jobs.schedule()

    # --- life ---

    async def run(self) -> None:
        """Bring the nodes up, serve until told to stop, end everything."""
        folder = self.settings.folder
        loop = asyncio.get_running_loop()
        for sig in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(sig, self._stopping.set)
        loop.add_signal_handler(signal.SIGCHLD, self._reap)
        if self.settings.parent_pid:
            self._keep(self._follow_parent(self.settings.parent_pid))
        try:
            for number in range(1, self.settings.nodes + self.settings.spares + 1):
                self.fleet.add(f"node{number:02d}", spare=number > self.settings.nodes)
            with socket_address(folder / "cluster.sock") as address:
                before = os.umask(0o177)  # from its first moment on, the socket is this user's alone
                server = await asyncio.start_unix_server(self._serve, path=address, limit=LINE_BYTES_MAX)
                os.umask(before)
            self._write_facts(os.getpid())
            if self.settings.ready_fd >= 0:
                os.write(self.settings.ready_fd, b"ready\n")
                os.close(self.settings.ready_fd)
            ticking = asyncio.create_task(self._tick())
            await self._stopping.wait()
            ticking.cancel()
            server.close()
        finally:
            await self._end()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            for node in list(self.fleet.nodes.values()):
                node.tick()

    async def _follow_parent(self, pid: int) -> None:
        await processes.watch_process(pid)
        self._stopping.set()

    async def _end(self) -> None:
        self._stopping.set()
        running = [job for job in self.jobs.jobs.values() if job.running]
        for job in running:
            self.jobs.cancel(Cancel(job=job.id, why="the cluster is shut down"))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):  # launchers may say goodbye; ranks die with them in any case
                for job in running:
                    await self.jobs.until_over(job)
        for task in (*self._background, *self._connections):
            task.cancel()
        await asyncio.gather(*(node.shut_down(2.0) for node in self.fleet.nodes.values()))
        self.kill_strays()
        left = processes.end_all(lambda: processes.marked(self.settings.folder))
        (self.settings.folder / "cluster.sock").unlink(missing_ok=True)
        self._write_facts(0)
        if left:
            sys.stderr.write(f"holdfast cluster: these processes would not end: {left}\n")

    def kill_strays(self) -> None:
        """End children of this process that are no node's first process: they fell to it when their node died."""

        def strays() -> list[int]:
            known = [node.pid for node in self.fleet.nodes.values() if node.pid]
            return node_init.descendants(os.getpid(), node_init.process_table(), skip=known)

        processes.end_all(strays, limit_s=1.0)

    def _reap(self) -> None:
        for _ in node_init.reaped():
            pass

    def _keep(self, work: Awaitable[Any]) -> asyncio.Task[Any]:
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task

    def _write_facts(self, pid: int) -> None:
        path = self.settings.folder / "cluster.json"
        try:
            epoch = msgspec.json.decode(path.read_bytes(), type=ClusterFacts).epoch
        except (FileNotFoundError, msgspec.MsgspecError):
            epoch = 0
        facts = ClusterFacts(
            name=self.settings.name,
            pid=pid,
            socket=str(self.settings.folder / "cluster.sock"),
            nodes=tuple(self.fleet.nodes),
            epoch=epoch + (1 if pid else 0),
            started_at=time.time(),
            drill_ok=self.settings.node.drill_ok,
        )
        write_whole(path, msgspec.json.format(msgspec.json.encode(facts), indent=2))

    # --- the socket ---

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        me = asyncio.current_task()
        if me is not None:
            self._connections.add(me)
        try:
            while line := await reader.readline():
                writer.write(await self._answer(line))
                await writer.drain()
        except (ConnectionError, ValueError, asyncio.CancelledError):
            pass  # the caller left, or sent an endless line, or the cluster ends
        finally:
            writer.close()
            if me is not None:
                self._connections.discard(me)

    async def _answer(self, line: bytes) -> bytes:
        try:
            return encode_result(await self._once(decode_request(line)))
        except HoldfastError as error:
            return encode_error(error)
        except OSError as error:
            return encode_error(TemporaryOrderError(f"the cluster could not do it: {error}"))

    async def _once(self, request: AnyRequest) -> Any:
        """One order id, one effect: a repeated order gets the answer that it had, or waits for the one under way."""
        if not request.order:
            return await self._do(request)
        if request.order in self._done:
            return self._done[request.order]
        task = self._in_flight.get(request.order)
        if task is None:
            task = self._in_flight[request.order] = self._keep(self._do(request))
            task.add_done_callback(lambda _: self._in_flight.pop(request.order, None))
        result = await asyncio.shield(task)
        self._done[request.order] = result
        while len(self._done) > DONE_ORDERS_MAX:
            self._done.pop(next(iter(self._done)))
        return result

    async def _do(self, request: AnyRequest) -> Any:
        if isinstance(request, Breaker):
            if not self.settings.node.drill_ok:
                raise RefusedError("this cluster was not started open to drills (`--drill-ok`)")
            return await break_it(request, self.fleet.find(request.node))
        if isinstance(request, NodeRequest):
            return await self.fleet.carry_out(request)
        if isinstance(request, JobRequest):
            return await self.jobs.carry_out(request)
        match request:
            case Submit():
                return self.jobs.view(self.jobs.submit(request))
            case Jobs():
                return self.world().jobs
            case Nodes():
                return self.world().nodes
            case AddNode():
                return view_of(self.fleet.add(request.name or self.fleet.free_name(), spare=request.spare))
            case Observe():
                return Observed(version=self.version, world=self.world())
            case WaitChange():
                return await self._wait_change(request)
            case Shutdown():
                asyncio.get_running_loop().call_later(0.01, self._stopping.set)
                return "shutting down"

    async def _wait_change(self, request: WaitChange) -> Changed:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(request.timeout_s):
                while self.version <= request.after:
                    await self._news.wait()
        return Changed(version=self.version, changed=self.version > request.after)

    def world(self) -> WorldView:
        """One snapshot of everything."""
        return WorldView(
            cluster=self.settings.name,
            at=time.time(),
            jobs=tuple(self.jobs.view(job) for job in self.jobs.jobs.values()),
            nodes=tuple(view_of(node) for node in self.fleet.nodes.values()),
        )


def base_environment(folder: Path) -> dict[str, str]:
    """What nodes inherit from the daemon: its environment without other clusters' marks, with this one's."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "SLURM_"))}
    return {**kept, processes.CLUSTER_MARK: str(folder)}


def parse(argv: Sequence[str]) -> ClusterSettings:
    """Read the daemon's command line."""
    parser = argparse.ArgumentParser(prog="holdfast-cluster", description="The embedded cluster's daemon.")
    parser.add_argument("--dir", required=True, type=Path)
    parser.add_argument("--name", default="")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--spares", type=int, default=0)
    parser.add_argument("--gpus-per-node", type=int, default=8)
    parser.add_argument("--drill-ok", action="store_true", help="open to breakers: power_off, cut, kmsg and others")
    parser.add_argument("--boot-s", type=float, default=1.0)
    parser.add_argument("--silent-after-s", type=float, default=3.0)
    parser.add_argument("--tmp-mib", type=int, default=32, help="size of each node's own scratch tmpfs; 0: none")
    parser.add_argument("--controller-file", type=Path, help="default: DIR/controller/controller.json")
    parser.add_argument("--agent-beat-s", type=float, default=0.5)
    parser.add_argument("--emulated-devices", action="store_true", help="agents give their nodes emulated GPUs")
    parser.add_argument("--agent-poll-s", type=float, default=2.0, help="between two looks at the emulated GPUs")
    parser.add_argument("--no-agents", action="store_true")
    parser.add_argument("--parent-pid", type=int, default=0, help="end when this process ends")
    parser.add_argument("--ready-fd", type=int, default=-1, help="write a line here when the socket answers")
    args = parser.parse_args(argv)
    folder = args.dir.resolve()
    file = args.controller_file or folder / "controller" / "controller.json"
    agent = [sys.executable, "-m", "holdfast.agent", "--controller-file", str(file), "--beat-s", str(args.agent_beat_s)]
    if args.emulated_devices:
        agent += ["--emulated-devices", "--poll-s", str(args.agent_poll_s)]
    node = NodeSettings(
        boot_s=args.boot_s,
        silent_after_s=args.silent_after_s,
        tmp_bytes=args.tmp_mib << 20,
        gpus=args.gpus_per_node,
        drill_ok=args.drill_ok,
        agent_argv=() if args.no_agents else tuple(agent),
        env=base_environment(folder),
        ca_file=file.absolute().with_name(CA_NAME),
        first={"PATH": "devices/bin", "LD_LIBRARY_PATH": "devices/lib"} if args.emulated_devices else {},
    )
    return ClusterSettings(
        folder=folder,
        name=args.name or folder.name,
        controller_file=file,
        nodes=args.nodes,
        spares=args.spares,
        node=node,
        parent_pid=args.parent_pid,
        ready_fd=args.ready_fd,
    )


def hold(folder: Path, run: Callable[[], Coroutine[Any, Any, None]], what: str = "cluster") -> int:
    """Run a daemon of this folder in the foreground, unless one does. `what`: its name on the command line."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o755)  # a controller refuses one that a group may write
    for sub in ("nodes", "jobs", "controller"):
        (folder / sub).mkdir(exist_ok=True)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(locked(folder / "cluster.lock"))
        except BlockingIOError:
            sys.stderr.write(f"holdfast {what}: one runs in {folder} already; `holdfast {what} down` ends it\n")
            return 69
        except OSError as error:
            sys.stderr.write(f"holdfast {what}: the lock {folder / 'cluster.lock'} cannot be taken: {error.strerror}\n")
            return 69
        (folder / "cluster.sock").unlink(missing_ok=True)
        node_init.become_subreaper()
        asyncio.run(run())
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the daemon in the foreground; one per folder."""
    settings = parse(sys.argv[1:] if argv is None else argv)

    async def run() -> None:
        await Cluster(settings).run()

    return hold(settings.folder, run)


if __name__ == "__main__":
    sys.exit(main())

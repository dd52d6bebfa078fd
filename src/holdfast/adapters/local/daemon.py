"""Starting the embedded cluster's daemon as a process of its own, and making sure that it ends.

Used by `holdfast cluster up`, the demo, the lab and the tests. Time: `start_cluster` waits for the daemon's own word on
a pipe; `RunningCluster.end` gives it `limit_s` to end everything and kills it otherwise (its nodes then end).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from holdfast.adapters.local import node_init, processes
from holdfast.adapters.local.client import LocalOrchestrator
from holdfast.errors import LinkError
from holdfast.os.daemons import start_daemon

MODULE = "holdfast.adapters.local.cluster"


class RunningCluster:
    """A daemon that this process started."""

    def __init__(self, folder: Path, process: subprocess.Popen[bytes]) -> None:
        self.folder = folder
        self.process = process
        self.orchestrator = LocalOrchestrator(folder / "cluster.sock")

    @property
    def socket(self) -> Path:
        """Where the scheduler listens."""
        return self.folder / "cluster.sock"

    @property
    def controller_file(self) -> Path:
        """Where the agents look for the controller's address."""
        return self.folder / "controller" / "controller.json"

    async def until_up(self, *, limit_s: float = 20.0) -> None:
        """Return when every node is up. Raises LinkError when one is not within `limit_s`."""
        deadline = time.monotonic() + limit_s
        while True:
            world = await self.orchestrator.observe()
            down = [node.name for node in world.nodes if node.alive is not True]
            if not down:
                return
            left = deadline - time.monotonic()
            if left <= 0 or self.process.poll() is not None:
                raise LinkError(f"{down[0]} did not come up; see {self.folder}/nodes/{down[0]}/node.log")
            await self.orchestrator.wait_change(left)

    def end(self, *, limit_s: float = 8.0) -> list[int]:
        """End the cluster. Returns pids that carry its mark and would not end: none, unless something is very wrong."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(limit_s)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        return processes.end_all(lambda: processes.marked(self.folder))


def start_cluster(
    folder: Path,
    *,
    nodes: int = 4,
    spares: int = 0,
    drill_ok: bool = False,
    agents: bool = True,
    follow: bool = True,
    options: Sequence[str] = (),
    limit_s: float = 15.0,
) -> RunningCluster:
    """Start a daemon for this folder and return when its socket answers (its nodes may still be booting).

    Args:
        folder: the cluster's folder; made when it is missing.
        nodes: ordinary nodes.
        spares: nodes that are used only when the ordinary ones do not suffice.
        drill_ok: open to breakers.
        agents: run an agent on every node.
        follow: the daemon ends when this process ends, however that happens.
        options: further options of the daemon, such as `("--boot-s", "0.2")`.
        limit_s: longest wait for its first word.

    Raises:
        LinkError: the daemon did not start; the message holds the end of what it said.
    """
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True, mode=0o755)
    argv = [sys.executable, "-m", MODULE, "--dir", str(folder)]
    argv += ["--nodes", str(nodes), "--spares", str(spares)]
    argv += ["--drill-ok"] * drill_ok + ["--no-agents"] * (not agents)
    argv += ["--parent-pid", str(os.getpid())] * follow + list(options)
    log = folder / "cluster.log"
    process, ready = start_daemon(argv, log, limit_s=limit_s)
    if not ready:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1.0)
        RunningCluster(folder, process).end()
        said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
        raise LinkError(f"the embedded cluster in {folder} did not start: {said[0] if said else 'it said nothing'}")
    return RunningCluster(folder, process)


class _Facts(Struct):
    """What is read of `cluster.json`."""

    pid: int = 0


def daemon_pid(folder: Path, module: str = MODULE) -> int:
    """Pid of the daemon that runs in this folder, 0 when none does. `module`: its program."""
    try:
        pid = msgspec.json.decode((folder / "cluster.json").read_bytes(), type=_Facts).pid
    except (OSError, msgspec.MsgspecError):
        return 0
    # The file outlives a daemon that was killed, and its pid may be another program's by now.
    command = processes.command_of(pid)
    return pid if module in command and str(folder) in command else 0


async def end_cluster(folder: Path, *, module: str = MODULE, limit_s: float = 10.0) -> bool:
    """End the cluster that runs in this folder, whoever started it, and whatever an earlier one left running.

    Args:
        folder: the cluster's folder, resolved.
        module: the daemon's program.
        limit_s: then the daemon is killed.

    Returns:
        False when nothing ran.

    Raises:
        LinkError: something of it would not end.
    """
    pid = daemon_pid(folder, module)
    if pid:
        node_init.send_signal([pid], signal.SIGTERM)
        try:
            await asyncio.wait_for(processes.watch_process(pid), limit_s)
        except TimeoutError:
            node_init.send_signal([pid], signal.SIGKILL)
            await processes.watch_process(pid)
    ran = bool(pid) or bool(processes.marked(folder))
    left = processes.end_all(lambda: processes.marked(folder))
    if left:
        raise LinkError(f"these processes of the cluster in {folder} would not end: {left}")
    return ran

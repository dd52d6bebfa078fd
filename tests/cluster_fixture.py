"""An embedded cluster for integration tests, with a real controller process when asked; ended whatever happens.

    async with embedded_cluster(tmp_path, nodes=2) as cluster:
        job = await cluster.orchestrator.submit(["sleep", "60"], nodes=2)
        await cluster.until_job(job.key.id, SchedulerState.RUNNING)

`tests/` is on the path (pyproject.toml): `from cluster_fixture import embedded_cluster`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

from holdfast.adapters.local.daemon import RunningCluster, start_cluster
from holdfast.adapters.local.link import NodeLink
from holdfast.adapters.local.processes import marked
from holdfast.model.cluster import JobView, NodeView, SchedulerState, WorldView

TEST_OPTIONS = ("--boot-s", "0.1", "--silent-after-s", "1.5", "--tmp-mib", "4")


class TestCluster:
    """A running embedded cluster with waits that have deadlines."""

    __test__ = False

    def __init__(self, running: RunningCluster) -> None:
        self.running = running
        self.orchestrator = running.orchestrator
        self.folder = running.folder
        self.controller: subprocess.Popen[bytes] | None = None

    async def until(self, holds: Callable[[WorldView], Any], what: str = "", limit_s: float = 10.0) -> WorldView:
        """Wait until `holds(world)` is true; fails the test after `limit_s` with the last world seen."""
        deadline = time.monotonic() + limit_s
        while True:
            world = await self.orchestrator.observe()
            if holds(world):
                return world
            left = deadline - time.monotonic()
            if left <= 0:
                raise AssertionError(f"not within {limit_s} s: {what or holds}\n{world}")
            await self.orchestrator.wait_change(left)

    async def until_job(self, job_id: str, *states: SchedulerState, limit_s: float = 10.0) -> JobView:
        """Wait until the job is in one of these states."""
        world = await self.until(lambda w: job_of(w, job_id).state in states, f"job {job_id} {states}", limit_s)
        return job_of(world, job_id)

    async def until_node(self, name: str, holds: Callable[[NodeView], bool], limit_s: float = 10.0) -> NodeView:
        """Wait until the node is as wanted."""
        world = await self.until(lambda w: holds(node_of(w, name)), f"node {name}", limit_s)
        return node_of(world, name)

    def node_dir(self, name: str) -> Path:
        return self.folder / "nodes" / name

    def link(self, name: str) -> NodeLink:
        return NodeLink(self.node_dir(name))

    def left(self) -> list[int]:
        """Live processes that this cluster started."""
        return marked(self.folder)

    # --- the controller's process ---

    def start_controller(self, *, policy: Path | str | None = None, argv: Sequence[str] = ()) -> None:
        """Start `holdfast controller` on this cluster's folder; it finds the socket there."""
        command = [*argv] or [sys.executable, "-m", "holdfast.cli.main", "controller", "--dir", str(self.folder)]
        command += ["--listen", "127.0.0.1:0"]
        if policy is not None:
            command += ["--policy", str(policy)]
        with (self.folder / "controller" / "stdout.log").open("ab") as log:
            self.controller = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    async def start_controller_and_wait(self, *, policy: Path | str | None = None, limit_s: float = 20.0) -> None:
        """`start_controller`, then wait for its `controller.json`."""
        self.start_controller(policy=policy)
        deadline = time.monotonic() + limit_s
        while not self.running.controller_file.exists():
            assert self.controller is not None
            code = self.controller.poll()
            said = (self.folder / "controller" / "stdout.log").read_text()[-2000:]
            assert code is None, f"the controller ended with {code}: {said}"
            assert time.monotonic() < deadline, f"the controller did not come up: {said}"
            await asyncio.sleep(0.02)

    def kill_controller(self) -> None:
        """SIGKILL the controller."""
        if self.controller is not None:
            self.controller.kill()
            self.controller.wait()

    def end(self) -> None:
        if self.controller is not None and self.controller.poll() is None:
            self.controller.terminate()
            try:
                self.controller.wait(5)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.controller.pid, signal.SIGKILL)
                self.controller.wait()
        left = self.running.end()
        assert left == [], f"processes left behind: {left}"


@contextlib.asynccontextmanager
async def embedded_cluster(
    folder: Path,
    *,
    nodes: int = 2,
    spares: int = 0,
    agents: bool | None = None,
    controller: bool = False,
    policy: Path | str | None = None,
    drill_ok: bool = True,
    options: Sequence[str] = (),
) -> AsyncIterator[TestCluster]:
    """Start a cluster below `folder` and end it with everything in it, also when the test fails.

    Args:
        folder: usually pytest's `tmp_path`; the cluster's own folder is `<folder>/cluster`.
        nodes: ordinary nodes.
        spares: nodes used only when the ordinary ones do not suffice.
        agents: run agents; default: only with a controller, because each costs most of a second of processor time.
        controller: start a real `holdfast controller` too and wait for its `controller.json`.
        policy: the controller's policy file.
        drill_ok: open to breakers.
        options: further options of the daemon; they come after this module's quick defaults.
    """
    running = start_cluster(
        folder / "cluster",
        nodes=nodes,
        spares=spares,
        drill_ok=drill_ok,
        agents=controller if agents is None else agents,
        options=[*TEST_OPTIONS, *options],
    )
    cluster = TestCluster(running)
    try:
        await running.until_up()
        if controller:
            await cluster.start_controller_and_wait(policy=policy)
        yield cluster
    finally:
        cluster.end()


def job_of(world: WorldView, job_id: str) -> JobView:
    return next(job for job in world.jobs if job.key.id == job_id)


def node_of(world: WorldView, name: str) -> NodeView:
    return next(node for node in world.nodes if node.name == name)

"""The launcher and the cluster's controller: events forwarded in order, orders that come back with beats."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

import pytest
from tests.launch.conftest import Launched, counter

from holdfast.adapters.clock import SystemClock
from holdfast.adapters.memory import MemoryJournal, MemoryNotifier, MemoryOrchestrator, MemoryStore
from holdfast.api import ApiServer
from holdfast.controller import Controller
from holdfast.decide.engine import Engine
from holdfast.model import events as e
from holdfast.model.cluster import JobKey, JobView, NodeView, RecoverySpec, SchedulerState
from holdfast.model.policy import PolicySet

pytestmark = pytest.mark.cluster

KEY = JobKey("here", "31")
ENV = {"HOLDFAST_JOB_ID": "31", "HOLDFAST_CLUSTER": "here", "HOLDFAST_NODELIST": "node01", "HOLDFAST_NODE_RANK": "0"}


class Cluster:
    """A controller with its API on loopback, over a world that holds one running job."""

    def __init__(self) -> None:
        clock = SystemClock()
        job = JobView(
            key=KEY,
            name="count",
            state=SchedulerState.RUNNING,
            nodes=("node01",),
            recovery=RecoverySpec(),
            want_nodes=1,
        )
        node = NodeView(name="node01", alive=True, boot_id="b", instance_id="i", jobs=("31",))
        self.world = MemoryOrchestrator(clock, cluster="here", jobs=[job], nodes=[node])
        self.journal = MemoryJournal(MemoryStore())

        def engine(state: bytes | None) -> Engine:
            return Engine(PolicySet()) if state is None else Engine.restore(state, PolicySet())

        self.controller = Controller(
            self.journal, engine, self.world, [], [MemoryNotifier()], clock, holder="controller@test"
        )
        self.server = ApiServer(self.controller)

    async def __aenter__(self) -> Self:
        self._running = asyncio.create_task(self.controller.run())
        await asyncio.wait_for(self.controller.ready.wait(), 10)
        await self.server.__aenter__()
        return self

    async def __aexit__(self, *problem: object) -> None:
        await self.server.__aexit__(*problem)
        self.controller.stop()
        await asyncio.wait_for(self._running, 10)

    async def until(self, fits: Callable[[e.AnyEvent], bool], limit_s: float = 20.0) -> e.AnyEvent:
        async with asyncio.timeout(limit_s):
            after = 0
            while not self.controller.ended:
                for event in await self.controller.events_after(after, wait_s=limit_s):
                    after = event.seq
                    if fits(event):
                        return event
        raise AssertionError("the controller ended")

    async def heard(self) -> list[e.AnyEvent]:
        return [event for event in await self.journal.events(limit=10_000) if event.source == "launcher:31"]


async def ended(run: Launched, limit_s: float = 30.0) -> int:
    deadline = time.monotonic() + limit_s
    while run.popen.poll() is None and time.monotonic() < deadline:
        await asyncio.sleep(0.02)
    return run.wait(1)


def test_a_controller_that_comes_late_hears_everything_in_order(launched, tmp_path: Path):
    """Spooled while nobody is there; the address is found when its file appears; samples come with the beats."""
    address = tmp_path / "controller.json"

    async def case() -> None:
        env = {**ENV, "HOLDFAST_CONTROLLER_FILE": str(address)}
        run = launched("--nproc-per-node", "2", *counter(tmp_path, steps=250), node="node01", env=env)
        await asyncio.to_thread(run.wait_event, "checkpoint_saved")
        async with Cluster() as cluster:
            (tmp_path / "c.new").write_text(json.dumps({"url": cluster.server.url, "pid": 1}))
            (tmp_path / "c.new").rename(address)
            await cluster.until(lambda event: isinstance(event, e.LauncherAttached))
            assert await ended(run) == 0
            sent = [event for event in run.events() if event.source == "launcher:31"]
            assert [event.id for event in await cluster.heard()] == [event.id for event in sent]
            assert isinstance(sent[-1], e.LauncherLapsed)
            assert (sent[-1].left, sent[-1].exit_code) == (True, 0)
            await asyncio.sleep(1.1)
            points = await cluster.journal.samples("step", "job:31(0)/rank:*")
            assert {point.subject for point in points} == {"job:31(0)/rank:0", "job:31(0)/rank:1"}

    asyncio.run(case())


def test_an_evacuation_is_saved_and_leaves_with_85(launched, tmp_path: Path):
    """A person's word at the controller reaches the ranks within a beat; they save, and the launcher says so."""

    async def case() -> None:
        async with Cluster() as cluster:
            env = {**ENV, "HOLDFAST_CONTROLLER": cluster.server.url}
            args = counter(tmp_path, steps=5000, step_s=0.02)
            run = launched("--nproc-per-node", "2", *args, node="node01", env=env)
            await cluster.until(lambda event: isinstance(event, e.FirstStepDone))
            asked_at = time.monotonic()
            await cluster.controller.submit(
                e.OperatorCommand(
                    id="op1",
                    at=time.time(),
                    source="operator:mei",
                    command=e.Command.EVACUATE,
                    who="mei",
                    node="node01",
                )
            )
            assert await ended(run) == 85
            assert time.monotonic() - asked_at < 6.0
            over = await cluster.until(lambda event: isinstance(event, e.AttemptEnded))
            assert over.exit_code == 85
            saved = [event for event in await cluster.heard() if isinstance(event, e.CheckpointSaved) and event.durable]
            assert saved[-1].step == over.last_step

    asyncio.run(case())


def test_a_restart_in_place_needs_no_controller_but_tells_it(launched, tmp_path: Path):
    """Both engines make the same moves; only the launcher's acts, and the cluster's journal has the incident too."""
    import os
    import signal

    async def case() -> None:
        async with Cluster() as cluster:
            env = {**ENV, "HOLDFAST_CONTROLLER": cluster.server.url}
            run = launched("--nproc-per-node", "2", *counter(tmp_path, steps=400), node="node01", env=env)
            await cluster.until(lambda event: isinstance(event, e.CheckpointSaved) and event.durable)
            os.kill(await asyncio.to_thread(run.rank_pid, 1, 0), signal.SIGSEGV)
            again = await cluster.until(lambda event: isinstance(event, e.AttemptStarted) and event.attempt == 1)
            assert again.in_place == 1
            assert await ended(run) == 0
            await cluster.until(lambda event: isinstance(event, e.LauncherLapsed))
            (incident,) = await cluster.journal.incidents()
            assert (incident.diagnosis.cause, incident.outcome) == ("exit.signal.11", "recovered")
            kinds = {type(order).__name__ for order in cluster.world.asked}
            assert not kinds & {"RequeueHeld", "StopAttempt", "RestartInPlace", "QuarantineNode"}

    asyncio.run(case())

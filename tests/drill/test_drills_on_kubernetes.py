"""Recovery on a real Kubernetes control plane, end to end: agents, controller, operator, launchers in pods."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.adapters.kubernetes.api import ApiError
from holdfast.adapters.local.processes import marked
from holdfast.drill.clusters import StageSettings
from holdfast.drill.faults import DRILL_FOLDER
from holdfast.drill.stage import Stage
from holdfast.drill.training import TrainingJob, counter_losses, largest_difference, read_losses
from holdfast.errors import LinkError
from holdfast.failpoint import command
from holdfast.model.cluster import JobKey
from holdfast.model.records import IncidentRecord, JobRecord, JobState
from kube_fixture import compact

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]
LIMIT_S = 400.0
HEALTH = "holdfast.dev/node-health-status"
PODS = "/api/v1/namespaces/default/pods"
XID = "NVRM: Xid (PCI:0000:b9:00): {}, pid=1, NVLink: fatal error detected on link 6(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0)"


@contextlib.asynccontextmanager
async def stage_of(nodes: int, spares: int) -> AsyncIterator[Stage]:
    """A stage in a folder of its own; nothing is left running."""
    with tempfile.TemporaryDirectory(prefix="hf-kube-") as name:
        folder = Path(name)
        settings = StageSettings(
            folder=folder, on="kubernetes", nodes=nodes, spares=spares, boot_s=0.2, up_limit_s=LIMIT_S
        )
        async with Stage(settings) as stage:
            yield stage
        assert marked(folder) == []


async def training(stage: Stage, job: TrainingJob) -> tuple[JobKey, JobRecord]:
    key = await stage.submit(job)
    return key, await stage.until(key, lambda record: record.durable_step >= 10, limit_s=LIMIT_S)


async def health(stage: Stage, node: str, value: str) -> float:
    """Wait for the node's label; how long it took."""
    begun = time.monotonic()
    async with asyncio.timeout(LIMIT_S):
        while True:
            with contextlib.suppress(LinkError, ApiError):
                found = await stage.cluster.api.get(f"/api/v1/nodes/{node}")
                if found["metadata"]["labels"].get(HEALTH) == value and found["spec"].get("unschedulable"):
                    assert any(taint["key"] == HEALTH for taint in found["spec"]["taints"])
                    return time.monotonic() - begun
            await asyncio.sleep(0.01)


def of_node(incidents: list[IncidentRecord], rule: str) -> list[IncidentRecord]:
    return [one for one in incidents if any(rule in finding.rule for finding in one.findings)]


def test_an_xid_marks_its_node_and_the_job_trains_on_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    """A rank's death is mended in its pods; then Xid 74: marked for replacement, and the job goes on without the node,
    its losses as if nothing had been. All that its launcher tells the controller it tells by its pod's own token.
    """

    async def body() -> None:
        async with stage_of(2, 1) as stage:
            job = TrainingJob(nodes=2, step_s=0.05)
            key, record = await training(stage, job)
            await all_well(stage)
            pods = {pod["metadata"]["uid"] for pod in (await stage.cluster.api.list_all(PODS))[0]}
            kill_rank(stage, key, 1)
            record = await stage.until(
                key, lambda now: now.attempts[-1].in_place == 1 and now.state is JobState.WATCHING, limit_s=LIMIT_S
            )
            assert record.view.restart_count == 0
            assert {pod["metadata"]["uid"] for pod in (await stage.cluster.api.list_all(PODS))[0]} == pods
            node = record.view.nodes[-1]
            await stage.breaker.do("kmsg", node, text=XID.format(74))
            took = await health(stage, node, "UnschedulablePendingReplacement")
            after = await stage.until(
                key, lambda now: now.view.restart_count == 1 and now.state is JobState.WATCHING, limit_s=LIMIT_S
            )
            assert node not in after.view.nodes
            assert len(of_node(await stage.eyes.incidents(), "xid.74")) == 1
            await health_back(stage, node)
            assert largest_difference(read_losses(stage.job_dir(key)), counter_losses(job, 10_000)) == 0.0
            with capsys.disabled():
                print(f"\n  marked {took:.2f} s after the line")

    asyncio.run(body())


async def all_well(stage: Stage) -> None:
    """Nodes that nothing ever befell are labelled so, since this controller acts."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            nodes = (await stage.cluster.api.list_all("/api/v1/nodes"))[0]
            if {one["metadata"]["labels"].get(HEALTH) for one in nodes} == {"Schedulable"}:
                return
            await asyncio.sleep(0.05)


def kill_rank(stage: Stage, key: JobKey, rank: int) -> None:
    """Have a rank killed by signal 9, by its launcher in the pod."""
    folder = stage.job_dir(key) / DRILL_FOLDER
    folder.mkdir(exist_ok=True)
    (folder / ".new").write_text(command.encode(command.FaultCommand("k", "kill9", (rank,), attempt=0)))
    (folder / ".new").rename(folder / command.command_name("k"))


async def health_back(stage: Stage, node: str) -> None:
    """The node is repaired, checked and returned; while its machine is replaced there is no Node of its name."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            with contextlib.suppress(LinkError, ApiError):
                found = await stage.cluster.api.get(f"/api/v1/nodes/{node}")
                if found["metadata"]["labels"].get(HEALTH) == "Schedulable" and not found["spec"].get("unschedulable"):
                    return
            await asyncio.sleep(0.05)


@pytest.mark.parametrize(
    ("away_s", "forgets"),
    [
        pytest.param(6.0, True, id="6s-compacted"),
        pytest.param(60.0, False, id="60s", marks=pytest.mark.soak),
        pytest.param(60.0, True, id="60s-compacted", marks=pytest.mark.soak),
    ],
)
def test_an_api_server_that_is_away_in_the_middle_of_a_recovery_costs_time_only(away_s: float, forgets: bool) -> None:
    """Killed as soon as the node is marked, every watch expired when it is back: one incident, restart and reboot."""

    async def body() -> None:
        async with stage_of(2, 1) as stage:
            key, record = await training(stage, TrainingJob(nodes=2, step_s=0.05))
            node = record.view.nodes[-1]
            await stage.breaker.do("kmsg", node, text=XID.format(73))
            await health(stage, node, "UnschedulablePendingReboot")
            await asyncio.to_thread(stage.cluster.lab.stop, "kube-apiserver")
            if forgets:
                await asyncio.to_thread(compact, stage.cluster.lab)
            await asyncio.sleep(away_s)
            await asyncio.to_thread(stage.cluster.lab.run, "kube-apiserver")
            after = await stage.until(
                key, lambda now: now.view.restart_count >= 1 and now.state is JobState.WATCHING, limit_s=LIMIT_S
            )
            await health_back(stage, node)
            assert after.view.restart_count == 1
            boots = list((stage.folder / "nodes" / node).glob("kmsg.*"))
            assert len(boots) == 1, "each boot puts the kernel log of the one before away"
            found = await stage.eyes.incidents()
            assert len(of_node(found, "xid.73")) == 1
            async with asyncio.timeout(LIMIT_S):
                while any(not one.closed_at for one in of_node(await stage.eyes.incidents(), "xid.73")):
                    await asyncio.sleep(0.1)

    asyncio.run(body())

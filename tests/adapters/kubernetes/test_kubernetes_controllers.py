"""`holdfast controller` as a process on a real API server: two with clocks five minutes apart; what failed pods said."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.adapters.journal.reading_postgres import PostgresReading
from holdfast.adapters.kubernetes.api import stamp
from holdfast.lab.kube_lab import KubeLab
from holdfast.model import events as e
from holdfast.model.cluster import JobKey, SchedulerState
from holdfast.model.evidence import Domain, Finding, Place, Remedy, Role
from holdfast.model.records import JobState
from kube_controllers import CLUSTER, LIMIT_S, Replica, leader, until
from kube_fixture import PYTORCH, admin
from kube_world import KubeWorld, pytorch_job, template
from postgres_fixture import Postgres

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]


class Seen:
    """Everything that the API server tells of pods and nodes, from now on."""

    def __init__(self) -> None:
        self.pods: dict[str, str] = {}
        """Uid -> name."""
        self.machines: dict[str, set[str]] = {}

    async def follow(self, lab: KubeLab) -> None:
        async with admin(lab) as api, asyncio.TaskGroup() as group:
            for path in ("/api/v1/nodes", "/api/v1/namespaces/default/pods"):
                items, version = await api.list_all(path)
                for item in items:
                    self.take(item)
                group.create_task(self._watch(api, path, version))

    async def _watch(self, api: object, path: str, version: str) -> None:
        async for event in api.watch(path, version, for_s=900):  # type: ignore[attr-defined]
            if event.type not in {"BOOKMARK", "DELETED"}:
                self.take(event.object)

    def take(self, found: dict) -> None:
        about, provider = found["metadata"], found["spec"].get("providerID", "")
        if provider:
            self.machines.setdefault(about["name"], set()).add(provider)
        elif not provider and "containers" in found["spec"]:
            self.pods[about["uid"]] = about["name"]


@contextlib.asynccontextmanager
async def following(seen: Seen, lab: KubeLab) -> AsyncIterator[None]:
    task = asyncio.create_task(seen.follow(lab))
    try:
        yield
        assert not task.done(), "the test's own watch broke"
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def xid(node: str) -> e.FindingSeen:
    seen = Finding(
        id=f"xid-{node}", rule="nvidia.xid.74", at=time.time(), domain=Domain.HARDWARE, role=Role.ROOT,
        remedy=Remedy.REPLACE, place=Place(node=node, gpu=3),
    )  # fmt: skip
    return e.FindingSeen(id=f"seen-{node}", at=time.time(), finding=seen)


@pytest.mark.parametrize("how", [signal.SIGSTOP, pytest.param(signal.SIGKILL, marks=pytest.mark.soak)])
def test_replicas_with_clocks_five_minutes_apart_restart_a_job_once(
    kube_lab: KubeLab, tmp_path: Path, postgres: Postgres, how: signal.Signals
) -> None:
    """The leader stalls, or dies, when the node is marked; the other goes on: one incident, restart and replacement."""
    url = postgres.schema_url()

    async def body() -> None:
        world = KubeWorld(kube_lab, tmp_path / "eyes", cluster=CLUSTER)
        replicas: list[Replica] = []
        seen = Seen()
        try:
            async with following(seen, kube_lab):
                for name, ahead_s in (("a", 150.0), ("b", -150.0)):
                    replicas.append(Replica(tmp_path / name, ahead_s, kube_lab, url))
                key = await world.submit(nodes=2, **{"holdfast.dev/auto-resume": "true"})
                job = await world.until_job(key, lambda view: view.state is SchedulerState.RUNNING)
                first, epoch = await leader(replicas)
                node = job.nodes[-1]

                async def knows() -> bool:
                    async with first.client() as client:
                        return any(one.view.state is SchedulerState.RUNNING for one in await client.jobs(job=str(key)))

                await until(knows, "the leader knows the job", replicas)
                async with first.client() as client:
                    await client.ingest(f"agent:{node}", [xid(node)])
                await world.until_node(node, lambda view: view.drain_reason.startswith("[holdfast]"))
                first.process.send_signal(how)
                heir, _ = await leader([one for one in replicas if one is not first], epoch)
                if how is signal.SIGSTOP:
                    first.process.send_signal(signal.SIGCONT)
                    # It believes that it leads, and is told otherwise by the journal.
                    assert await asyncio.to_thread(first.process.wait, LIMIT_S) == 70
                again = await world.until_job(
                    key, lambda view: view.restart_count >= 1 and view.state is SchedulerState.RUNNING
                )
                assert (again.restart_count, node in again.nodes) == (1, False)

                async def replaced() -> bool:
                    return len(seen.machines[node]) > 1

                await until(replaced, "the node is another machine", replicas)
                assert heir.process.poll() is None
            assert len(seen.machines[node]) == 2, "replaced once"
            ours = [name for name in seen.pods.values() if name.startswith(f"{job.name}-")]
            assert len(ours) == 4, f"two pods, and two again: {seen.pods}"
            await judge(url, node, key)
        finally:
            await world.orchestrator.close()
            for one in replicas:
                one.end()

    asyncio.run(body())


async def judge(url: str, node: str, key: JobKey) -> None:
    """By the journal: one incident of this fault, one controller after the other, no order twice.

    One whose outcome is not known is sent again under its own id, which has no further effect: it is the same order.
    """
    reading = PostgresReading(url)
    incidents, entries = await reading.incidents(), await reading.entries(limit=100_000)
    await reading.close()
    about = [one for one in incidents if any(finding.rule == "nvidia.xid.74" for finding in one.findings)]
    assert [(one.nodes, one.jobs) for one in about] == [([node], [key])]
    epochs = [one.event.epoch for one in entries if isinstance(one.event, e.ControllerStarted)]
    assert epochs == sorted(set(epochs))
    assert len(epochs) >= 2
    orders = {order.id: order for one in entries for order in one.orders}
    given = [(type(order).__name__, getattr(order, "node", "")) for order in orders.values()]
    for kind in ("QuarantineNode", "ReplaceNode"):
        assert given.count((kind, node)) == 1, given
    assert sum(kind == "RequeueHeld" for kind, _ in given) == 1, given


PODS = "/api/v1/namespaces/default/pods"
FAILS = """\
echo 'step 12 loss 3.1'
echo 'torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 128.00 MiB. GPU 3 has a total capacity of 79.11 GiB'
exit 1
"""


def test_what_a_failed_pod_said_is_the_diagnosis(kube_lab: KubeLab, tmp_path: Path) -> None:
    """No launcher, no agent: the pod's own log says why, is kept as evidence, and the job's Events tell it."""

    async def body() -> None:
        replica = Replica(tmp_path / "a", 0.0, kube_lab)
        try:
            await leader([replica])
            async with admin(kube_lab) as api, replica.client() as client:
                job = pytorch_job("oom", template(["/bin/sh", "-c", FAILS]), **{"holdfast.dev/auto-resume": "true"})
                await api.create(PYTORCH, job)

                async def judged() -> object:
                    found = [one for one in await client.incidents() if any("oom" in job.id for job in one.jobs)]
                    return next((one for one in found if one.diagnosis is not None), None)

                incident = await until(judged, "the failed job has a diagnosis", [replica])
                assert incident.diagnosis.cause == "torch.cuda.oom", replica.log.read_text()[-3000:]
                (seen,) = [one for one in incident.findings if one.rule == "torch.cuda.oom"]
                assert "128.00 MiB" in seen.evidence[0].text
                assert (seen.evidence[0].file, seen.attempt) == ("oom-master-0/main", 0)

                async def told() -> object:
                    events, _ = await api.list_all("/api/v1/namespaces/default/events")
                    ours = [one for one in events if one.get("reportingComponent") == "holdfast"]
                    kinds = {one["involvedObject"]["kind"] for one in ours if "no memory left" in one["message"]}
                    return kinds >= {"PyTorchJob", "Pod"}

                await until(told, "Events of the job and its pod say so", [replica])
                await killed_for_memory(api, client, replica)
        finally:
            replica.end()

    asyncio.run(body())


async def killed_for_memory(api: Any, client: Any, replica: Replica) -> None:
    """A launcher that goes with its container can tell nothing: the kubelet's word is the cause."""
    pod = template(["holdfast", "run", "train.py"], HOLDFAST_JOB_ID="x")
    pod["spec"]["nodeName"] = "without-a-kubelet"
    await api.create(PYTORCH, pytorch_job("memory", pod, **{"holdfast.dev/auto-resume": "true"}))

    async def made() -> object:
        return [one for one in (await api.list_all(PODS))[0] if one["metadata"]["name"] == "memory-master-0"]

    await until(made, "the job's pod", [replica])
    end = {"exitCode": 137, "reason": "OOMKilled", "finishedAt": stamp(), "startedAt": stamp()}
    container = {"name": "main", "image": "none", "imageID": "", "restartCount": 0, "ready": False}
    status = {"phase": "Failed", "containerStatuses": [{**container, "state": {"terminated": end}}]}
    await api.patch(f"{PODS}/memory-master-0/status", {"status": status})

    async def judged() -> object:
        found = [one for one in await client.incidents() if any("memory" in job.id for job in one.jobs)]
        return next((one for one in found if one.diagnosis is not None), None)

    incident = await until(judged, "the killed job has a diagnosis", [replica])
    assert incident.diagnosis.cause == "oom.kubernetes", replica.log.read_text()[-3000:]


def test_a_job_that_was_given_up_stays_so_when_the_controller_begins_anew(kube_lab: KubeLab, tmp_path: Path) -> None:
    """Another job that fails after the restart is judged and given up as well: by then the first would have been."""
    asks = {"holdfast.dev/auto-resume": "true", "holdfast.dev/max-restarts": "1", "holdfast.dev/max-in-place": "0"}

    async def given_up(name: str, replica: Replica) -> None:
        async with replica.client() as client:

            async def holds() -> bool:
                jobs = {one.view.name: one for one in await client.jobs()}
                return name in jobs and jobs[name].state is JobState.GIVEN_UP

            await until(holds, f"{name} is given up", [replica])

    async def body() -> None:
        replica = Replica(tmp_path / "a", 0.0, kube_lab)
        try:
            _, epoch = await leader([replica])
            async with admin(kube_lab) as api:
                for name in ("first", "second"):
                    await api.create(PYTORCH, pytorch_job(name, template(["/bin/sh", "-c", FAILS]), **asks))
                    await given_up(name, replica)
                    if name == "first":
                        before = (await api.get(f"{PYTORCH}/first"))["metadata"]["uid"]
                        replica.process.terminate()
                        assert await asyncio.to_thread(replica.process.wait, LIMIT_S) == 0
                        replica = Replica(tmp_path / "a", 0.0, kube_lab)
                        await leader([replica], epoch)
                about = (await api.get(f"{PYTORCH}/first"))["metadata"]
                assert (about["uid"], about["annotations"]["holdfast.dev/restart-count"]) == (before, "1")
                assert "holdfast.dev/given-up" in about["annotations"]
            await given_up("first", replica)
            async with replica.client() as client:
                about_first = [one for one in await client.incidents() if any("first" in job.id for job in one.jobs)]
            assert len(about_first) == 1, about_first
        finally:
            replica.end()

    asyncio.run(body())


HEALTH = "holdfast.dev/node-health-status"
ASKED = "UnschedulablePendingReplacement"


async def labels_of(lab: KubeLab, node: str, first: str, seen: list[str]) -> None:
    """Each value that the node's health label has, in order, from `first` on: what was there before is not of this test."""

    def take(about: dict[str, Any]) -> None:
        value = (about.get("labels") or {}).get(HEALTH)
        if about.get("name") == node and value and (seen or value == first) and [value] != seen[-1:]:
            seen.append(value)

    async with admin(lab) as api:
        nodes, version = await api.list_all("/api/v1/nodes")
        for one in nodes:
            take(one["metadata"])
        async for event in api.watch("/api/v1/nodes", version, for_s=900):
            take(event.object["metadata"])


def test_a_label_moves_the_job_has_the_node_replaced_and_lets_it_back(kube_lab: KubeLab, tmp_path: Path) -> None:
    """The job leaves at once, the label stays until the repair, and a pod's checks count though an agent named the machine."""
    settings = 'check_template = "default/passes"'
    replica = Replica(tmp_path / "a", 0.0, kube_lab, settings=settings)
    templates = "/api/v1/namespaces/default/podtemplates"

    async def body() -> None:
        world = KubeWorld(kube_lab, tmp_path / "eyes", cluster=CLUSTER)
        seen: list[str] = []
        watching: asyncio.Task[None] | None = None
        async with admin(kube_lab) as api, contextlib.AsyncExitStack() as stack:
            passes = template(["true"])
            del passes["spec"]["containers"][0]["resources"]
            await api.create(templates, {"metadata": {"name": "passes"}, "template": passes})
            stack.push_async_callback(api.delete, f"{templates}/passes")
            stack.push_async_callback(world.orchestrator.close)
            await leader([replica])
            key = await world.submit(**{"holdfast.dev/auto-resume": "true"})
            job = await world.until_job(key, lambda view: view.state is SchedulerState.RUNNING)
            (node,) = job.nodes
            before = await world.until_node(node, lambda view: view.instance_id)
            watching = asyncio.create_task(labels_of(kube_lab, node, ASKED, seen))
            async with replica.client() as client:
                machine = before.instance_id.removeprefix("k8s:lab://")
                attached = e.AgentAttached(
                    id="attached", at=time.time(), node=node, boot_id="b", instance_id=machine, source=f"agent:{node}"
                )
                await client.ingest(f"agent:{node}", [attached])

                async def knows() -> bool:
                    return any(one.view.state is SchedulerState.RUNNING for one in await client.jobs(job=str(key)))

                await until(knows, "the controller knows the job", [replica])
            begun = time.monotonic()
            await api.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": {HEALTH: ASKED}}})
            again = await world.until_job(
                key, lambda view: view.restart_count == 1 and view.state is SchedulerState.RUNNING
            )
            assert node not in again.nodes
            assert time.monotonic() - begun < 60.0
            after = await world.until_node(
                node, lambda view: view.instance_id != before.instance_id and view.alive and not view.drained
            )
            assert not after.asked
            async with asyncio.timeout(60):
                while seen[-1:] != ["Schedulable"]:
                    await asyncio.sleep(0.05)
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            assert [value for value in seen if value != "Unschedulable"] == [ASKED, "Schedulable"]

    try:
        asyncio.run(body())
    finally:
        replica.end()

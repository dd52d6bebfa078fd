"""Nodes on a real API server: whose word holds, what a drain respects, how repairs show, what `describe` would show."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from tests.validate import kube_job

from holdfast.adapters.kubernetes.asks import HYPERPOD
from holdfast.adapters.kubernetes.check_pod import pod_name
from holdfast.adapters.kubernetes.notices import EventNotifier
from holdfast.adapters.kubernetes.objects import DRAIN_REASON, FAULT
from holdfast.errors import PermanentOrderError, TemporaryOrderError
from holdfast.lab.kube_lab import KubeLab
from holdfast.model import orders as o
from holdfast.model.cluster import RecoverySpec, SchedulerState
from holdfast.model.evidence import Remedy, Severity
from kube_fixture import JOBS, RECORDS, admin
from kube_world import NOBODY, KubeWorld, batch_job, template

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]
HEALTH = "holdfast.dev/node-health-status"
PODS = "/api/v1/namespaces/default/pods"
BUDGETS = "/apis/policy/v1beta1/namespaces/default/poddisruptionbudgets"
DAEMON_SETS = "/apis/apps/v1/namespaces/default/daemonsets"


async def shown(lab: KubeLab, node: str) -> tuple[str | None, bool, list[str]]:
    """Health label, cordon, and keys of our taints, as the API server has them."""
    async with admin(lab) as api:
        found = await api.get(f"/api/v1/nodes/{node}")
    taints = [taint["key"] for taint in found["spec"].get("taints") or [] if taint["key"].startswith("holdfast.dev/")]
    return found["metadata"]["labels"].get(HEALTH), bool(found["spec"].get("unschedulable")), taints


async def condition(lab: KubeLab, node: str) -> dict[str, str]:
    """Our condition of the node, as the API server has it."""
    async with admin(lab) as api:
        found = (await api.get(f"/api/v1/nodes/{node}"))["status"]["conditions"]
    return next((one for one in found if one["type"] == FAULT), {})


def quarantine(repair: Remedy) -> o.QuarantineNode:
    return o.QuarantineNode(id="q", cause=1, node="node01", why="Xid 74: NVLink", repair=repair)


@pytest.mark.parametrize(
    ("repair", "label"),
    [
        (Remedy.REPLACE, "UnschedulablePendingReplacement"),
        (Remedy.REBOOT, "UnschedulablePendingReboot"),
        (Remedy.NONE, "Unschedulable"),
    ],
)
def test_the_mark_says_which_repair_is_to_come_and_goes_with_it(
    kube_lab: KubeLab, tmp_path: Path, repair: Remedy, label: str
) -> None:
    """Label, cordon and taint come together and are not taken for a person's order; a return leaves `Schedulable`."""

    async def body() -> None:
        world = KubeWorld(kube_lab, tmp_path)
        try:
            await world.orchestrator.execute(quarantine(repair))
            assert await shown(kube_lab, "node01") == (label, True, [HEALTH])
            fault = await condition(kube_lab, "node01")
            assert (fault["status"], fault["reason"], fault["message"]) == ("True", label, "[holdfast] Xid 74: NVLink")
            assert (await world.until_node("node01", lambda node: node.drained)).asked == ""
            await world.orchestrator.execute(o.ReturnNode(id="r", cause=2, node="node01"))
            assert await shown(kube_lab, "node01") == ("Schedulable", False, [])
            fault = await condition(kube_lab, "node01")
            assert (fault["status"], fault["reason"], fault["message"]) == ("False", "Schedulable", "no fault is known")
        finally:
            await world.orchestrator.close()

    asyncio.run(body())


def test_a_label_that_a_person_writes_is_an_order(kube_lab: KubeLab, tmp_path: Path) -> None:
    """Also over a mark of ours that says otherwise."""

    async def body() -> None:
        world = KubeWorld(kube_lab, tmp_path)
        try:
            await world.orchestrator.execute(quarantine(Remedy.REBOOT))
            async with admin(kube_lab) as api:
                body = {"metadata": {"labels": {HEALTH: "UnschedulablePendingReplacement"}}}
                await api.patch("/api/v1/nodes/node01", body)
            assert (await world.until_node("node01", lambda node: node.asked)).asked == "replace"
        finally:
            await world.orchestrator.close()

    asyncio.run(body())


def test_a_persons_uncordon_ends_our_quarantine_and_our_taint_with_it(kube_lab: KubeLab, tmp_path: Path) -> None:
    """`kubectl uncordon` lifts the cordon alone: the taint that would keep work off is ours to take away."""

    async def body() -> None:
        world = KubeWorld(kube_lab, tmp_path)
        try:
            await world.orchestrator.execute(quarantine(Remedy.REPLACE))
            async with admin(kube_lab) as api:
                await api.patch("/api/v1/nodes/node01", {"spec": {"unschedulable": None}})
            await world.until_node("node01", lambda node: not node.drained)
            async with asyncio.timeout(300):
                while await shown(kube_lab, "node01") != ("Schedulable", False, []):
                    await world.orchestrator.observe()
                    await asyncio.sleep(0.05)
        finally:
            await world.orchestrator.close()

    asyncio.run(body())


def test_hyperpods_manifest_runs_where_nobody_else_calls_nodes_schedulable(kube_lab: KubeLab, tmp_path: Path) -> None:
    """Its annotations and node selector as they are: not before Holdfast may label, and not on a cordoned node."""

    async def body() -> None:
        world = KubeWorld(kube_lab, tmp_path, kind="Job", prefix=HYPERPOD)
        asks = {f"{HYPERPOD}/enable-job-auto-resume": "true", f"{HYPERPOD}/job-max-retry-count": "2"}
        try:
            await world.drain_as_admin("node02", "maintenance")
            async with admin(kube_lab) as api:
                pod = template(["sleep", "1000"], grace_s=1, policy="OnFailure")
                pod["spec"]["nodeSelector"] = {f"{HYPERPOD}/node-health-status": "Schedulable"}
                await api.create(JOBS, batch_job("selects", pod, **asks))
                seen = await world.until(
                    lambda view: any(job.name == "selects" and "FailedScheduling" in job.reason for job in view.jobs),
                    "it waits",
                )
                (job,) = [one for one in seen.jobs if one.name == "selects"]
                assert job.recovery == RecoverySpec(enabled=True, max_requeues=2)
                world.orchestrator.may_mark = lambda _: True
                await world.until_job(job.key, lambda view: view.state is SchedulerState.RUNNING)
                assert await called_well(api) <= {"node01", "node03"}
                await api.patch("/api/v1/nodes/node02", {"spec": {"unschedulable": None}})
                async with asyncio.timeout(300):
                    while await called_well(api) != {"node01", "node02", "node03"}:
                        await world.orchestrator.observe()
                        await asyncio.sleep(0.05)
        finally:
            await world.orchestrator.close()

    asyncio.run(body())


async def called_well(api: Any) -> set[str]:
    nodes = (await api.list_all("/api/v1/nodes"))[0]
    health = f"{HYPERPOD}/node-health-status"
    return {one["metadata"]["name"] for one in nodes if one["metadata"]["labels"].get(health) == "Schedulable"}


def test_before_a_repair_training_pods_leave_first(kube_lab: KubeLab, tmp_path: Path) -> None:
    """What they may need to end in order is asked to leave only when they have."""

    async def body() -> None:
        world = KubeWorld(kube_lab, tmp_path, kind="Job")
        seen: list[tuple[str, str]] = []

        async def watch(api: Any, version: str) -> None:
            async for event in api.watch(PODS, version):
                about = event.object["metadata"]
                name = "proxy" if about["name"] == "proxy" else "training"
                ended = event.type == "DELETED" or event.object["status"]["phase"] in {"Failed", "Succeeded"}
                if ended or about.get("deletionTimestamp"):
                    seen.append((name, "gone" if ended else "told"))

        async with admin(kube_lab) as api, admin(kube_lab) as eyes:
            try:
                stubborn = ["sh", "-c", "trap '' TERM; while :; do sleep 0.1; done"]
                pod = template(stubborn, exclude=("node02", "node03"), grace_s=1)
                await api.create(JOBS, batch_job("training", pod))
                running = ("training", SchedulerState.RUNNING)
                await world.until(lambda view: running in {(job.name, job.state) for job in view.jobs}, "it runs")
                await api.create(PODS, service_pod("proxy"))
                while (await api.get(f"{PODS}/proxy"))["status"]["phase"] != "Running":
                    await asyncio.sleep(0.05)
                _, version = await api.list_all(PODS)
                watching = asyncio.create_task(watch(eyes, version))
                await world.orchestrator.execute(quarantine(Remedy.REBOOT))
                node = await world.until_node("node01", lambda view: view.drained)
                order = o.RebootNode(id="b", cause=3, node="node01", boot_id=node.boot_id, why="Xid 73")
                assert await world.orchestrator.execute(order) == "rebooted"
                async with asyncio.timeout(300):
                    while ("proxy", "gone") not in seen:
                        await asyncio.sleep(0.05)
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
                assert seen.index(("training", "gone")) < seen.index(("proxy", "told"))
            finally:
                await world.orchestrator.close()

    asyncio.run(body())


def service_pod(name: str) -> dict[str, Any]:
    """A pod that is nobody's training, on node01."""
    pod = template(["sleep", "1000"], grace_s=1)
    del pod["spec"]["containers"][0]["resources"]
    pod["spec"]["nodeName"] = "node01"
    return {"metadata": {"name": name, "labels": {"app": name}}, **pod}


def test_a_repair_waits_for_what_a_budget_protects_and_leaves_daemons_alone(kube_lab: KubeLab, tmp_path: Path) -> None:
    """Pods leave by the eviction API; one that a budget keeps delays the repair; a DaemonSet's pod stays."""

    async def body() -> None:
        world = KubeWorld(kube_lab, tmp_path)
        async with admin(kube_lab) as api:
            try:
                await _prepare(api)
                await world.orchestrator.execute(quarantine(Remedy.REBOOT))
                node = await world.until_node("node01", lambda view: view.drained)
                order = o.RebootNode(id="b", cause=3, node="node01", boot_id=node.boot_id, why="Xid 73")
                task = asyncio.create_task(world.orchestrator.execute(order))
                await _until_gone(api, "free")
                assert not task.done()
                names = {pod["metadata"]["name"] for pod in (await api.list_all(PODS))[0]}
                assert "kept" in names
                assert any(name.startswith("everywhere") for name in names)
                await api.delete(f"{BUDGETS}/kept")
                assert await task == "rebooted"
                label, cordoned, _ = await shown(kube_lab, "node01")
                assert (label, cordoned) == ("Unschedulable", True)
            finally:
                for path in (BUDGETS, DAEMON_SETS):
                    await api.call("DELETE", path, body={"kind": "DeleteOptions", "propagationPolicy": "Background"})
                await world.orchestrator.close()

    asyncio.run(body())


async def _prepare(api: Any) -> None:
    for name in ("free", "kept"):
        await api.create(PODS, service_pod(name))
    rule = {"minAvailable": 1, "selector": {"matchLabels": {"app": "kept"}}}
    await api.create(BUDGETS, {"metadata": {"name": "kept"}, "spec": rule})
    labels = {"app": "everywhere"}
    pod = template(["sleep", "1000"], policy="Always", grace_s=1)
    del pod["spec"]["containers"][0]["resources"]
    everywhere = {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, **pod}}
    await api.create(DAEMON_SETS, {"metadata": {"name": "everywhere"}, "spec": everywhere})
    async with asyncio.timeout(300):
        while True:
            pods = (await api.list_all(PODS))[0]
            there = [p for p in pods if p["spec"].get("nodeName") == "node01" and p["status"]["phase"] == "Running"]
            budget = await api.get(f"{BUDGETS}/kept")
            if len(there) == 3 and (budget.get("status") or {}).get("currentHealthy") == 1:
                return
            await asyncio.sleep(0.1)


async def _until_gone(api: Any, name: str) -> None:
    async with asyncio.timeout(300):
        while True:
            if name not in {pod["metadata"]["name"] for pod in (await api.list_all(PODS))[0]}:
                return
            await asyncio.sleep(0.05)


def test_a_node_without_a_machine_and_a_program_cannot_be_replaced(kube_lab: KubeLab, tmp_path: Path) -> None:
    """It says what is missing; a node that is not there any more is not asked about."""

    async def body() -> None:
        world = KubeWorld(kube_lab, tmp_path, **NOBODY, repair_limit_s=5.0)
        try:
            await world.orchestrator.observe()
            with pytest.raises(PermanentOrderError, match=r"no cluster\.x-k8s\.io/machine"):
                await world.orchestrator.execute(o.ReplaceNode(id="p", cause=1, node="node01", why="x"))
            assert not world.orchestrator.can(o.RebootNode(id="b", cause=1, node="node01"))
        finally:
            await world.orchestrator.close()

    asyncio.run(body())


def test_an_outside_repairer_is_waited_for_with_a_limit(kube_lab: KubeLab, tmp_path: Path) -> None:
    """Only marked: somebody else swaps the machine, and the order is done when another one answers."""

    async def body() -> None:
        world = KubeWorld(kube_lab, tmp_path, **NOBODY, repair_by_label=True, repair_limit_s=300.0)
        hasty = KubeWorld(kube_lab, tmp_path, **NOBODY, repair_by_label=True, repair_limit_s=0.5)
        try:
            await world.orchestrator.execute(quarantine(Remedy.NONE))
            before = await world.until_node("node01", lambda view: view.drained)
            order = o.ReplaceNode(id="p", cause=1, node="node01", instance_id=before.instance_id, why="Xid 74")
            with pytest.raises(TemporaryOrderError, match="not within"):
                await hasty.orchestrator.execute(order)
            task = asyncio.create_task(world.orchestrator.execute(order))
            async with asyncio.timeout(300):
                while (await shown(kube_lab, "node01"))[0] != "UnschedulablePendingReplacement":
                    await asyncio.sleep(0.05)
            await kube_lab.nodes.execute(o.ReplaceNode(id="outside", cause=1, node="node01"))
            assert await task == "another machine"
            after = await world.until_node("node01", lambda view: view.drained)
            assert after.instance_id != before.instance_id
            assert after.drain_reason == "[holdfast] Xid 74: NVLink"
        finally:
            await world.orchestrator.close()
            await hasty.orchestrator.close()

    asyncio.run(body())


def test_a_controller_killed_while_a_machine_is_replaced_is_succeeded_by_one_that_knows(
    kube_lab: KubeLab, tmp_path: Path
) -> None:
    """The cluster itself keeps what the node was: the next controller marks the new machine, and nothing is left over."""

    async def body() -> None:
        first = KubeWorld(kube_lab, tmp_path / "a", **NOBODY, repair_by_label=True, repair_limit_s=300.0)
        heir = KubeWorld(kube_lab, tmp_path / "b", **NOBODY, repair_by_label=True, repair_limit_s=300.0)
        try:
            await first.orchestrator.execute(quarantine(Remedy.REPLACE))
            before = await first.until_node("node01", lambda view: view.drained)
            order = o.ReplaceNode(id="p", cause=1, node="node01", instance_id=before.instance_id, why="Xid 74")
            task = asyncio.create_task(first.orchestrator.execute(order))
            async with admin(kube_lab) as api, asyncio.timeout(300):
                while not (await api.list_all(RECORDS, {"labelSelector": "holdfast.dev/put-away=true"}))[0]:
                    await asyncio.sleep(0.05)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                await first.orchestrator.close()
                await kube_lab.nodes.execute(o.ReplaceNode(id="outside-later", cause=1, node="node01"))
                await heir.until_node("node01", lambda view: view.instance_id != before.instance_id)
                assert await heir.orchestrator.execute(order) == "another machine"
                node = await heir.until_node("node01", lambda view: view.drain_reason.startswith("[holdfast]"))
                assert node.drain_reason == "[holdfast] Xid 74: NVLink"
                assert (await api.list_all(RECORDS, {"labelSelector": "holdfast.dev/put-away=true"}))[0] == []
            assert await heir.orchestrator.execute(order) == "it is another machine already"
        finally:
            await first.orchestrator.close()
            await heir.orchestrator.close()

    asyncio.run(body())


CHECKS = "echo $NODE is looked at; exit $(cat {verdict})"


def test_a_repaired_node_is_checked_by_a_pod_on_it_before_it_takes_work(kube_lab: KubeLab, tmp_path: Path) -> None:
    """Rebooted, then `InProgress` while the pod runs past the cordon; only a pod that ends well is a passed check."""
    verdict = tmp_path / "verdict"

    async def body() -> None:
        settings = {"replace_program": (), "repair_limit_s": 300.0, "check_template": "default/checks"}
        world = KubeWorld(kube_lab, tmp_path, **settings)
        order = o.ValidateNode(id="v1", cause=3, node="node01")
        try:
            async with admin(kube_lab) as api:
                pod = template(["/bin/sh", "-c", CHECKS.format(verdict=verdict)], NODE="node01")
                pod["spec"]["tolerations"] = [{"operator": "Exists"}]
                with pytest.raises(TemporaryOrderError, match="check_template: default/checks"):
                    await world.orchestrator.execute(order)
                templates = "/api/v1/namespaces/default/podtemplates"
                await api.create(templates, {"metadata": {"name": "checks"}, "template": pod})
                await world.orchestrator.execute(quarantine(Remedy.REBOOT))
                before = await world.until_node("node01", lambda view: view.drained)
                await world.orchestrator.execute(o.RebootNode(id="b", cause=2, node="node01", boot_id=before.boot_id))
                for code, said in ((2, "exit code 2"), (1, "exit code 1"), (0, "")):
                    verdict.write_text(str(code))
                    order = o.ValidateNode(id=f"v{code}", cause=3, node="node01")
                    if said:
                        with pytest.raises(PermanentOrderError, match=f"{said}.*node01 is looked at"):
                            await world.orchestrator.execute(order)
                    else:
                        assert await world.orchestrator.execute(order) == "node01 is looked at"
                    assert (await shown(kube_lab, "node01"))[:2] == ("Unschedulable", True)
                    node = await api.get("/api/v1/nodes/node01")
                    assert node["metadata"]["labels"]["holdfast.dev/deep-health-check-status"] == "InProgress"
                await world.orchestrator.execute(o.ReturnNode(id="r", cause=4, node="node01"))
                node = await api.get("/api/v1/nodes/node01")
                assert node["metadata"]["labels"]["holdfast.dev/deep-health-check-status"] == "Passed"
                assert await shown(kube_lab, "node01") == ("Schedulable", False, [])
                await api.delete(f"{templates}/checks")
        finally:
            await world.orchestrator.close()

    asyncio.run(body())


@pytest.mark.soak
def test_a_check_pod_that_somebody_deletes_is_no_word_about_its_node_and_none_is_left_behind(
    kube_lab: KubeLab, tmp_path: Path
) -> None:
    """Who deletes it has its containers killed: that is tried again. Who stops waiting leaves it to the next order."""

    async def body() -> None:
        world = KubeWorld(kube_lab, tmp_path, check_template="default/long")
        first, second = (o.ValidateNode(id=name, cause=1, node="node01") for name in ("first", "second"))
        templates = "/api/v1/namespaces/default/podtemplates"
        async with admin(kube_lab) as api:
            try:
                pod = template(["sleep", "1000"], grace_s=1)
                await api.create(templates, {"metadata": {"name": "long"}, "template": pod})
                task = asyncio.create_task(world.orchestrator.execute(first))
                await _until_pod(world, pod_name(first), "Running")
                await api.delete(f"{PODS}/{pod_name(first)}")
                with pytest.raises(TemporaryOrderError, match="deleted"):
                    await task
                task = asyncio.create_task(world.orchestrator.execute(second))
                await _until_pod(world, pod_name(second), "Running")
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                assert "deletionTimestamp" not in (await api.get(f"{PODS}/{pod_name(second)}"))["metadata"]
                order = o.ReturnNode(id="r", cause=2, node="node01")
                assert await world.orchestrator.execute(order) == "in service already"
                await _until_pod(world, pod_name(second), "")
            finally:
                await api.delete(f"{templates}/long")
                await world.orchestrator.close()

    asyncio.run(body())


async def _until_pod(world: KubeWorld, name: str, phase: str) -> None:
    """Until the adapter's own copy shows the pod so; empty: there is none."""
    looks = await world.orchestrator.connect()

    def holds() -> bool | None:
        pods = [pod for pod in looks.pods.items.values() if pod.metadata.name == name]
        return ([pod.status.phase for pod in pods] == ([phase] if phase else [])) or None

    await looks.until(holds, f"{name} is not {phase or 'gone'}", limit_s=300.0)


def test_notices_are_events_of_the_job_and_the_node_and_the_same_one_counts_up(
    kube_lab: KubeLab, tmp_path: Path
) -> None:
    """What `kubectl describe` finds: by involved object, with a reason and a count."""

    async def body() -> None:
        world = KubeWorld(kube_lab, tmp_path)
        try:
            key = await world.submit()
            await world.until_job(key, lambda job: job.state is SchedulerState.RUNNING)
            notice = o.Notify(
                id="n", cause=1, topic="i1", severity=Severity.WARNING, title="it restarts", text="Xid 74", job=key
            )
            notifier = EventNotifier(world.orchestrator)
            for _ in range(2):
                await notifier.send(notice)
            await notifier.send(o.Notify(id="m", cause=1, topic="i1", title="node01 is back", node="node01"))
            async with admin(kube_lab) as api:
                events = (await api.list_all("/api/v1/namespaces/default/events"))[0]
            mine = [e for e in events if e.get("reportingComponent") == "holdfast"]
            ours = {e["reason"]: e for e in mine if e["involvedObject"]["kind"] != "Pod"}
            assert ours["ItRestarts"]["count"] == 2
            assert ours["ItRestarts"]["involvedObject"]["kind"] == "PyTorchJob"
            assert (ours["ItRestarts"]["type"], ours["ItRestarts"]["message"]) == ("Warning", "it restarts: Xid 74")
            about = {(e["involvedObject"]["kind"], e["reason"]) for e in mine}
            assert ("Pod", "ItRestarts") in about
            assert ours["Node01IsBack"]["involvedObject"] == {
                "apiVersion": "v1",
                "kind": "Node",
                "name": "node01",
                "uid": "node01",
            }
        finally:
            await world.orchestrator.close()

    asyncio.run(body())


def test_an_admins_reason_is_shown_as_it_stands(kube_lab: KubeLab, tmp_path: Path) -> None:
    """The annotation is a place for people's reasons, too."""

    async def body() -> None:
        world = KubeWorld(kube_lab, tmp_path)
        try:
            await world.drain_as_admin("node01", "memory swap")
            async with admin(kube_lab) as api:
                node = await api.get("/api/v1/nodes/node01")
            assert node["metadata"]["annotations"][DRAIN_REASON] == "memory swap"
            assert await world.orchestrator.execute(quarantine(Remedy.REBOOT)) == (
                "cordoned already by somebody else (memory swap)"
            )
        finally:
            await world.orchestrator.close()

    asyncio.run(body())


# --- are they fit? ---


@pytest.mark.soak
def test_the_validation_job_of_the_example_ends_and_names_the_node_that_computes_wrong_sums(
    kube_lab: KubeLab, tmp_path: Path
) -> None:
    """One pod on each of three nodes; the Job fails because a node is not fit, and the leading pod's log says which."""
    (tmp_path / "sitecustomize.py").write_text(kube_job.SUMS)
    how, pods = asyncio.run(kube_job.ended(kube_lab, kube_job.job(tmp_path, bad="node02")))
    said = (tmp_path / "0" / "log").read_text()
    whole = f"{kube_job.logs(tmp_path)}\n{pods}"
    assert how == "Failed", whole
    assert f"not fit: node02 ({kube_job.NODES} nodes: software, cpu, network, " in said, whole
    assert "node02: FAIL cpu.correct: it computes wrong sums" in said, whole
    assert not re.search(r"^node0[13]: FAIL", said, re.MULTILINE), whole


@pytest.mark.soak
def test_the_validation_job_of_the_example_completes_on_healthy_nodes(kube_lab: KubeLab, tmp_path: Path) -> None:
    """It is complete, and the leading pod's log says that all are fit."""
    how, pods = asyncio.run(kube_job.ended(kube_lab, kube_job.job(tmp_path, bad="none")))
    assert how == "Complete", f"{kube_job.logs(tmp_path)}\n{pods}"
    said = (tmp_path / "0" / "log").read_text()
    assert re.search(rf"^fit.* \({kube_job.NODES} nodes: software, cpu, network, ", said, re.MULTILINE), said

"""The adapter while the API server fails, forgets, or is fought over: on a real one."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast.adapters.kubernetes import put_away
from holdfast.adapters.kubernetes.api import ApiError, KubeApi
from holdfast.adapters.kubernetes.looks import Store
from holdfast.adapters.kubernetes.objects import KINDS, LINEAGE, Workload
from holdfast.errors import LinkError
from holdfast.lab.kube_lab import KubeLab
from holdfast.model import orders as o
from holdfast.model.cluster import SchedulerState
from kube_fixture import CONFIG_MAPS, JOBS, RECORDS, admin, compact
from kube_world import KubeWorld, batch_job, job_in, orchestrator_of, template

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]
S = SchedulerState
LIMIT_S = 300.0


async def until(true: Any, what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not true():
        assert time.monotonic() < deadline, f"not within {LIMIT_S} s: {what}"
        await asyncio.sleep(0.02)


def test_what_was_missed_behind_an_expired_version_is_made_good_by_a_new_list(kube_lab: KubeLab) -> None:
    """A watch is away while things come and go, and etcd forgets its past: 410, one new list, the copy is right."""

    async def body() -> None:
        async with admin(kube_lab) as api, admin(kube_lab) as eyes:
            for name in ("old", "kept"):
                await api.create(CONFIG_MAPS, {"metadata": {"name": name, "labels": {"mark": "410"}}})
            store: Store[Any] = Store(eyes, CONFIG_MAPS, dict, lambda: None, query={"labelSelector": "mark=410"})

            def names() -> list[str]:
                return sorted(item["metadata"]["name"] for item in store.items.values())

            watching = asyncio.create_task(store.run())
            await until(lambda: names() == ["kept", "old"], "the first list")
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            await api.delete(f"{CONFIG_MAPS}/old")
            await api.create(CONFIG_MAPS, {"metadata": {"name": "new", "labels": {"mark": "410"}}})
            await asyncio.to_thread(compact, kube_lab)
            await asyncio.to_thread(kube_lab.stop, "kube-apiserver")
            await asyncio.to_thread(kube_lab.run, "kube-apiserver")
            watching = asyncio.create_task(store.run())
            await until(lambda: names() == ["kept", "new"], "the new list")
            assert (store.relists, store.broken) == (2, "")
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    asyncio.run(body())


def test_an_expired_version_comes_as_an_error_in_a_stream_that_began_well(kube_lab: KubeLab) -> None:
    """HTTP 200, then an ERROR event with 410 inside: it is raised as what it is."""

    async def body() -> None:
        async with admin(kube_lab) as api:
            _, version = await api.list_all("/api/v1/nodes")
            for _ in range(3):
                await api.patch("/api/v1/nodes/node01", {"metadata": {"labels": {"holdfast.dev/x": str(time.time())}}})
            await asyncio.to_thread(compact, kube_lab)
            await asyncio.to_thread(kube_lab.stop, "kube-apiserver")
            await asyncio.to_thread(kube_lab.run, "kube-apiserver")
            with pytest.raises(ApiError) as told:
                async for _ in api.watch("/api/v1/nodes", version, for_s=5):
                    pass
            assert told.value.expired

    asyncio.run(body())


def test_an_absent_server_is_asked_patiently_and_never_taken_for_an_empty_cluster(
    kube_lab: KubeLab, tmp_path: Path
) -> None:
    """Away for some seconds: every look says so, few requests are made, and afterwards the job is as it was."""

    async def body() -> None:
        world = KubeWorld(kube_lab, tmp_path)
        try:
            key = await world.submit()
            before = await world.until_job(key, lambda job: job.state is S.RUNNING)
            await world.lose_scheduler()
            asked = world.orchestrator.api.requests
            begun = time.monotonic()
            while time.monotonic() - begun < 6.0:
                with pytest.raises(LinkError):
                    await world.orchestrator.observe()
                await world.orchestrator.wait_change(0.5)
            per_store = (world.orchestrator.api.requests - asked) / len((await world.orchestrator.connect()).stores())
            assert per_store < 12, "a growing pause between tries"
            await asyncio.to_thread(kube_lab.run, "kube-apiserver")
            deadline = time.monotonic() + LIMIT_S
            while True:
                with contextlib.suppress(LinkError):
                    if (after := job_in(await world.orchestrator.observe(), key)) is not None:
                        break
                assert time.monotonic() < deadline
                await asyncio.sleep(0.1)
            assert (after.state, after.restart_count, after.nodes) == (S.RUNNING, 0, before.nodes)
        finally:
            await world.orchestrator.close()

    asyncio.run(body())


@pytest.mark.parametrize("kind", ["PyTorchJob", "Job"])
def test_two_controllers_at_once_restart_a_job_once(kube_lab: KubeLab, tmp_path: Path, kind: str) -> None:
    """Both carry out the same requeue and release at the same moment: one restart, one job, its pods once."""

    async def body() -> None:
        world = KubeWorld(kube_lab, tmp_path / "a", kind=kind)
        other = orchestrator_of(kube_lab, tmp_path / "b")
        try:
            key = await world.submit(nodes=2)
            job = await world.until_job(key, lambda seen: seen.state is S.RUNNING and len(seen.nodes) == 2)
            await other.observe()
            requeue = o.RequeueHeld(id="r", cause=1, job=key, restart_count=0, why="Xid 74")
            release = o.ReleaseJob(id="l", cause=1, job=key, epoch=2)
            for order in (requeue, release):
                await asyncio.gather(world.orchestrator.execute(order), other.execute(order), return_exceptions=True)
            again = await world.until_job(key, lambda seen: seen.state is S.RUNNING and len(seen.nodes) == 2)
            assert (again.restart_count, job.restart_count) == (1, 0)
            live = [pod for pod in await world.pods(key) if pod["status"]["phase"] == "Running"]
            async with admin(kube_lab) as api:
                kept, _ = await api.list_all(RECORDS, {"labelSelector": "holdfast.dev/put-away=true"})
            assert (len(live), kept) == (2, [])
        finally:
            await world.orchestrator.close()
            await other.close()

    asyncio.run(body())


def test_a_controller_killed_while_a_job_is_made_anew_loses_nothing(kube_lab: KubeLab, tmp_path: Path) -> None:
    """Between deletion and creation the job is held in a ConfigMap: another controller sees it and carries on."""

    async def body() -> None:
        async with admin(kube_lab) as api:
            notes = {"holdfast.dev/restart-count": "1", "holdfast.dev/held": "Xid 74", LINEAGE: "the-first-uid"}
            manifest = batch_job("lost", template(["sleep", "1000"]), **notes)
            manifest["metadata"] |= {"namespace": "default", "uid": "the-last-uid"}
            lost = Workload(kind=KINDS["Job"], version="v1", manifest=manifest)
            await put_away.write(api, put_away.record_of(lost, manifest, put_away.NAMESPACE))
            world = KubeWorld(kube_lab, tmp_path, kind="Job")
            try:
                seen = await world.until(lambda w: any(job.name == "lost" for job in w.jobs), "the kept job")
                held = next(job for job in seen.jobs if job.name == "lost")
                assert (held.state, held.restart_count) == (S.HELD, 1)
                await world.orchestrator.execute(o.ReleaseJob(id="l", cause=1, job=held.key, epoch=2))
                again = await world.until_job(held.key, lambda job: job.state is S.RUNNING)
                made = await api.get(f"{JOBS}/lost")
                assert (again.restart_count, made["metadata"]["annotations"][LINEAGE]) == (1, "the-first-uid")
            finally:
                await world.orchestrator.close()

    asyncio.run(body())


def test_a_role_that_may_not_is_told_which_verb_it_lacks(kube_lab: KubeLab) -> None:
    """403 names the verb and the way out, and is no reason to try again."""

    async def body() -> None:
        async with admin(kube_lab) as api:
            path = "/api/v1/namespaces/default/serviceaccounts/default/token"
            body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": []}}
            token = (await api.create(path, body))["status"]["token"]
        config = json.loads(kube_lab.kubeconfig.read_text())
        config["users"][0]["user"] = {"token": token}
        file = kube_lab.folder / "weak-kubeconfig"
        file.write_text(json.dumps(config))
        weak = await KubeApi.connect("", file)
        try:
            with pytest.raises(ApiError) as told:
                await weak.patch("/api/v1/nodes/node01", {"metadata": {"labels": {"a": "b"}}})
            error = told.value.as_order_error()
            assert "cannot patch resource" in str(error)
            assert "give the controller's role this verb" in str(error)
        finally:
            await weak.close()

    asyncio.run(body())

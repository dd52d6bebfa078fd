"""JobSet, TrainJob, MPIJob and jobs of a queue on a real API server: held in their own way, and back elsewhere."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from holdfast.lab.kube_lab import KubeLab
from holdfast.model import orders as o
from holdfast.model.cluster import SchedulerState
from kube_fixture import PYTORCH, admin
from kube_kinds import PATHS, install, manifest, operators
from kube_world import KubeWorld, pytorch_job, template

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]
S = SchedulerState


@pytest.mark.parametrize("kind", ["JobSet", "TrainJob", "MPIJob"])
def test_jobs_of_every_kind_are_held_and_come_back_elsewhere(kube_lab: KubeLab, tmp_path: Path, kind: str) -> None:
    """Suspended in the kind's own way until no pod is left; again without the excluded node, restarted once, same owner."""

    async def body() -> None:
        await install(kube_lab)
        world = KubeWorld(kube_lab, tmp_path)
        pod = template(["sleep", "1000"])
        try:
            async with operators(kube_lab, pod), admin(kube_lab) as api:
                notes = {"annotations": {"holdfast.dev/auto-resume": "true"}, "labels": {"team": "a"}}
                await api.create(PATHS[kind], manifest(kind, "kinds", pod, nodes=2, **notes))
                seen = await world.until(lambda w: any(job.name == "kinds" for job in w.jobs), "the job")
                (found,) = [job for job in seen.jobs if job.name == "kinds" or job.name.startswith("kinds-")]
                assert found.key.id == f"default.{kind.lower()}.kinds", "what was made for it is part of it"
                job = await world.until_job(found.key, lambda view: view.state is S.RUNNING)
                assert (len(job.nodes), job.want_nodes) == (2, 2)
                bad = job.nodes[0]
                requeue = o.RequeueHeld(id="r", cause=1, job=job.key, restart_count=0, why="Xid 74")
                assert await world.orchestrator.execute(requeue) == "stopped and held (1 restarts)"
                await world.until_job(job.key, lambda view: view.state is S.HELD)
                await world.orchestrator.execute(o.SetExcluded(id="x", cause=1, job=job.key, nodes=(bad,)))
                await world.orchestrator.execute(
                    o.ReleaseJob(id="l", cause=1, job=job.key, epoch=2, restore_step_max=7)
                )
                again = await world.until_job(job.key, lambda view: view.state is S.RUNNING)
                assert (again.restart_count, len(again.nodes), bad in again.nodes) == (1, 2, False)
                made = await api.get(f"{PATHS[kind]}/kinds")
                assert made["metadata"]["labels"]["team"] == "a"
                assert '"HOLDFAST_RESTORE_STEP", "value": "7"' in json.dumps(made)
        finally:
            await world.orchestrator.close()

    asyncio.run(body())


def test_a_job_of_a_queue_is_started_by_its_queue_alone(kube_lab: KubeLab, tmp_path: Path) -> None:
    """It waits while the queue has it suspended; a restart gives it back to the queue, which admits it again."""

    async def body() -> None:
        world = KubeWorld(kube_lab, tmp_path)
        path = f"{PYTORCH}/queued"
        try:
            async with admin(kube_lab) as api:
                job = pytorch_job("queued", template(["sleep", "1000"]))
                job["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "training"}
                job["spec"]["runPolicy"] = {"suspend": True}
                await api.create(PYTORCH, job)
                seen = await world.until(lambda w: any(job.name == "queued" for job in w.jobs), "the job")
                key = next(job.key for job in seen.jobs if job.name == "queued")
                for restarts in (0, 1):
                    waiting = await world.until_job(key, lambda view: view.state is S.PENDING and view.reason)
                    assert (waiting.reason, waiting.restart_count) == ("waits in its queue", restarts)
                    await api.patch(path, {"spec": {"runPolicy": {"suspend": False}}})  # it is admitted
                    await world.until_job(key, lambda view: view.state is S.RUNNING)
                    requeue = o.RequeueHeld(id=f"r{restarts}", cause=1, job=key, restart_count=restarts, why="Xid 74")
                    await world.orchestrator.execute(requeue)
                    await world.until_job(key, lambda view: view.state is S.HELD)
                    await world.orchestrator.execute(o.ReleaseJob(id=f"l{restarts}", cause=1, job=key, epoch=2))
        finally:
            await world.orchestrator.close()

    asyncio.run(body())

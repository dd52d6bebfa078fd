"""A real Kubernetes control plane for tests, with nodes that run pods as processes; see `holdfast.lab.kube_lab`.

    def test_something(kube_lab: KubeLab) -> None: ...

`kube_lab` has three nodes without agents and is shared by a module's tests; each test gets it whole and without jobs.
Its programs are built on first use (about five minutes of two cores) and kept in ~/.cache/holdfast. Where they cannot be
built the tests fail and say why in one line: they are never left out.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.adapters.kubernetes.api import ApiError, KubeApi
from holdfast.errors import LinkError, UsageError
from holdfast.lab.kube_control import DAEMONS
from holdfast.lab.kube_lab import KubeLab, KubeLabSettings
from holdfast.lab.waiting import wait_until

NODES = 3
JOBS = "/apis/batch/v1/namespaces/default/jobs"
PYTORCH = "/apis/kubeflow.org/v1/namespaces/default/pytorchjobs"
PODS = "/api/v1/namespaces/default/pods"
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
RECORDS = "/api/v1/namespaces/holdfast/configmaps"
"""Where the adapter keeps jobs put away and nodes whose machine is replaced."""
SETTLE_S = 300.0


@contextlib.contextmanager
def running_lab(**settings: Any) -> Iterator[KubeLab]:
    """A lab for as long as the block lasts; its folder goes with it."""
    folder = Path(tempfile.mkdtemp(prefix="hf-kube-"))
    try:
        with KubeLab.start(KubeLabSettings(**settings), folder) as lab:
            yield lab
    except UsageError as error:
        pytest.fail(str(error), pytrace=False)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def _module_kube_lab() -> Iterator[KubeLab]:
    with running_lab(nodes=NODES, agents=False, boot_s=0.2) as lab:
        yield lab


@pytest.fixture
def kube_lab(_module_kube_lab: KubeLab) -> Iterator[KubeLab]:
    """The module's lab; mended after the test."""
    yield _module_kube_lab
    mend(_module_kube_lab)


@contextlib.asynccontextmanager
async def admin(lab: KubeLab) -> AsyncIterator[KubeApi]:
    """The administrator's way in."""
    api = await KubeApi.connect("", lab.kubeconfig)
    try:
        yield api
    finally:
        await api.close()


def mend(lab: KubeLab) -> None:
    """Daemons up, nodes on and whole, no jobs, nothing cordoned."""
    for daemon in DAEMONS:
        lab.run(daemon)
    asyncio.run(_mend(lab))
    wait_until(lab.all_ready, "the nodes are not ready", limit_s=SETTLE_S, logs=(lab.folder / "cluster.log",))


async def _mend(lab: KubeLab) -> None:
    world = await lab.nodes.observe()
    for node in world.nodes:
        await lab.nodes.do("heal", node.name)
        await lab.nodes.do("power_on", node.name)
    async with admin(lab) as api:
        for path in (JOBS, PYTORCH, CONFIG_MAPS, RECORDS):
            await api.call("DELETE", path, body={"kind": "DeleteOptions", "propagationPolicy": "Background"})
        async with asyncio.timeout(SETTLE_S):
            # Jobs are asked for first: what makes pods anew must be gone when no pod is seen.
            while await _count(api, JOBS, PYTORCH) or await _pods(api):
                await asyncio.sleep(0.05)
        for node in (await api.list_all("/api/v1/nodes"))[0]:
            await _clean(api, node)


async def _count(api: KubeApi, *paths: str) -> int:
    return sum([len((await api.list_all(path))[0]) for path in paths])


async def _pods(api: KubeApi) -> int:
    """How many pods there are, each asked to go."""
    pods, _ = await api.list_all(PODS)
    for pod in pods:
        # What a garbage collector would do in half a minute.
        with contextlib.suppress(ApiError, LinkError):
            await api.delete(f"{PODS}/{pod['metadata']['name']}", grace_s=1)
    return len(pods)


async def _clean(api: KubeApi, node: dict[str, Any]) -> None:
    about = node["metadata"]
    ours = ("holdfast.dev/", "sagemaker.amazonaws.com/")
    labels = {key: None for key in about.get("labels") or {} if key.startswith(ours)}
    notes = {key: None for key in about.get("annotations") or {} if key.startswith(ours)}
    taints = [taint for taint in node["spec"].get("taints") or [] if not taint["key"].startswith(ours)]
    body = {
        "metadata": {"labels": labels, "annotations": notes},
        "spec": {"unschedulable": None, "taints": taints or None},
    }
    await api.patch(f"/api/v1/nodes/{about['name']}", body)


def compact(lab: KubeLab) -> None:
    """Drop etcd's history: resourceVersions from before are expired as soon as the API server starts anew."""
    argv = ["etcdctl", f"--endpoints=http://127.0.0.1:{lab.facts.port + 1}"]
    env = {**os.environ, "ETCDCTL_API": "3"}
    status = [*argv, "endpoint", "status", "--write-out=json"]
    told = json.loads(subprocess.run(status, env=env, check=True, capture_output=True, timeout=30).stdout)
    revision = str(told[0]["Status"]["header"]["revision"])
    subprocess.run([*argv, "compact", revision], env=env, check=True, capture_output=True, timeout=30)

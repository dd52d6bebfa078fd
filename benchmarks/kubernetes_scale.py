"""What a controller costs at rest on a Kubernetes of 500 nodes and 5,000 pods, and how long a new list of all takes.

    .venv/bin/python benchmarks/kubernetes_scale.py [--nodes 500] [--pods 5000] [--rest-s 60]

A real API server with hollow nodes and pods (objects only; controller manager and scheduler are ended, so that nothing
changes by itself), and a real `holdfast controller` beside it. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from holdfast.adapters.kubernetes.api import KubeApi
from holdfast.adapters.kubernetes.looks import Looks
from holdfast.lab.kube_control import CONTROLLERS, SCHEDULER
from holdfast.lab.kube_lab import KubeLab, KubeLabSettings
from kube_hollow import CONTAINER, HollowCluster

JOBS = 50


async def fill(api: KubeApi, nodes: int, pods: int) -> None:
    """Make the hollow cluster: the pods belong to `JOBS` jobs."""
    owners = []
    for number in range(JOBS):
        template = {"spec": {"restartPolicy": "Never", "containers": [CONTAINER]}}
        notes = {"holdfast.dev/auto-resume": "true"}
        spec = {"parallelism": pods // JOBS, "template": template}
        body = {"metadata": {"name": f"train-{number}", "annotations": notes}, "spec": spec}
        made = (await api.create("/apis/batch/v1/namespaces/default/jobs", body))["metadata"]
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": made["name"], "uid": made["uid"], "controller": True}
        owners.append(owner)
    await HollowCluster(api, nodes).fill(pods, owners)


async def relists(lab: KubeLab, times: int) -> list[float]:
    """Seconds for a new list of everything, parsed and ready to be looked at."""
    found = []
    for _ in range(times):
        api = await KubeApi.connect("", lab.kubeconfig)
        looks = Looks(api)
        begun = time.monotonic()
        await looks.start()
        while any(store.broken for store in looks.stores()):
            await looks.wait(looks.version, 5.0)
        found.append(time.monotonic() - begun)
        await looks.close()
        await api.close()
    return found


def rest(lab: KubeLab, folder: Path, seconds: float) -> dict[str, float]:
    """Run a controller and watch it do nothing."""
    config = folder / "holdfast.toml"
    config.write_text(f'[kubernetes]\nkubeconfig = "{lab.kubeconfig}"\ncluster = "scale"\n')
    argv = [sys.executable, "-m", "holdfast.cli.main", "controller", "--dir", str(folder), "--config", str(config)]
    argv += ["--cluster", "kubernetes:", "--listen", "127.0.0.1:0"]
    with (folder / "controller.log").open("wb") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log, env={**os.environ})
    try:
        ready = folder / "controller" / "controller.json"
        while not ready.exists():
            if process.poll() is not None:
                raise SystemExit((folder / "controller.log").read_text()[-2000:])
            time.sleep(0.2)
        time.sleep(30.0)
        found = psutil.Process(process.pid)
        before, begun = found.cpu_times(), time.monotonic()
        time.sleep(seconds)
        after = found.cpu_times()
        spent = after.user + after.system - before.user - before.system
        return {"cpu_percent": 100 * spent / (time.monotonic() - begun), "rss_mib": found.memory_info().rss / 2**20}
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def main() -> None:
    """Bring it up, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--pods", type=int, default=5000)
    parser.add_argument("--rest-s", type=float, default=60.0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hf-scale-") as name:
        folder = Path(name)
        with KubeLab.start(KubeLabSettings(nodes=0, agents=False), folder / "lab") as lab:
            for daemon in (CONTROLLERS, SCHEDULER):
                lab.stop(daemon)

            async def make() -> None:
                api = await KubeApi.connect("", lab.kubeconfig)
                try:
                    await fill(api, args.nodes, args.pods)
                finally:
                    await api.close()

            begun = time.monotonic()
            asyncio.run(make())
            filled_s = time.monotonic() - begun
            lists = asyncio.run(relists(lab, 7))
            told = {"nodes": args.nodes, "pods": args.pods, "filled_s": filled_s, **rest(lab, folder, args.rest_s)}
            told |= {"relist_s_best": min(lists), "relist_s_median": sorted(lists)[len(lists) // 2]}
            print(json.dumps(told, indent=2))


if __name__ == "__main__":
    main()

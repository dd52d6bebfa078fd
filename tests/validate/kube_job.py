"""The Job of examples/kubernetes/validate-job.yaml on a real control plane of three nodes whose pods are processes.

The lab's version is older than indexed jobs: each pod takes its index by making a folder, as the first that can. Its
kubelet knows neither images nor secrets nor names of pods: command, secret and address are written into the Job.
"""

from __future__ import annotations

import asyncio
import shlex
import socket
import sys
from pathlib import Path
from typing import Any

import yaml

from holdfast.lab.kube_lab import KubeLab
from kube_fixture import JOBS, admin

MANIFEST = Path(__file__).resolve().parents[2] / "examples" / "kubernetes" / "validate-job.yaml"
SUMS = "import math\nright = math.fsum\nmath.fsum = lambda values: right(values) * (1 + 2**-50)\n"
NODES = 3
END_S = 400.0
PODS = "/api/v1/namespaces/default/pods"
INDEX = """
i=0
until mkdir {folder}/$i 2>/dev/null; do i=$((i+1)); [ $i -lt {nodes} ] || exit 9; done
[ "$NODE_NAME" = "{bad}" ] && export PYTHONPATH={folder}
export JOB_COMPLETION_INDEX=$i
exec {python} -m holdfast "$@" > {folder}/$i/log 2>&1
"""


def job(folder: Path, *, bad: str) -> dict[str, Any]:
    """The example's Job for this lab; the node `bad` computes wrong sums."""
    (made,) = (one for one in yaml.safe_load_all(MANIFEST.read_text()) if one["kind"] == "Job")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    made["spec"] |= {"completions": NODES, "parallelism": NODES}
    del made["spec"]["completionMode"]
    (container,) = made["spec"]["template"]["spec"]["containers"]
    given = {
        "--suite": "network,cpu,software",
        "--leader": f"127.0.0.1:{port}",
        "--expect": str(NODES),
        "--storage": str(folder),
    }
    heads = [word.partition("=")[0] for word in container["args"]]
    assert given.keys() <= set(heads)
    args = [f"{head}={given[head]}" if head in given else word
            for head, word in zip(heads, container["args"], strict=True)]  # fmt: skip
    script = INDEX.format(folder=shlex.quote(str(folder)), nodes=NODES, bad=bad, python=shlex.quote(sys.executable))
    container |= {"command": ["/bin/sh", "-c", script, "pod"], "args": args}
    secret = next(one for one in container["env"] if one["name"] == "HOLDFAST_VALIDATE_SECRET")
    secret |= {"value": "a secret of this test alone"}
    del secret["valueFrom"]
    return made


async def ended(lab: KubeLab, body: dict[str, Any]) -> tuple[str, str]:
    """Make the Job and wait for its end; returns `Complete` or `Failed`, and what became of each pod."""
    async with admin(lab) as api:
        await api.create(JOBS, body)
        async with asyncio.timeout(END_S):
            while True:
                found = await api.get(f"{JOBS}/{body['metadata']['name']}")
                for one in (found.get("status") or {}).get("conditions") or []:
                    if one["status"] == "True" and one["type"] in {"Complete", "Failed"}:
                        pods, _ = await api.list_all(PODS)
                        told = [
                            f"{pod['metadata']['name']} on {pod['spec'].get('nodeName')}: {pod['status']}"
                            for pod in pods
                        ]
                        return str(one["type"]), "\n".join([str(one), *told])
                await asyncio.sleep(0.1)


def logs(folder: Path) -> str:
    """What every pod has said, by index."""
    return "\n".join(f"--- {log.parent.name}\n{log.read_text()}" for log in sorted(folder.glob("*/log")))

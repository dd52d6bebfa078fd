"""W2: HyperPod on EKS: labels, kernel log, PyTorchJob with auto-resume, log rules, on a real Kubernetes control plane.

All is done by kubectl and seen through it. See `eks_site` for what is emulated.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.walks.eks_site import DEEP, HEALTH, Site, eks_site

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

TRAINER = Path(__file__).parents[2] / "examples" / "megatron" / "pretrain_gpt.py"
MINUTE_S = 60.0
JOB = """\
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata:
  name: {name}
  annotations:
    sagemaker.amazonaws.com/enable-job-auto-resume: "true"
    sagemaker.amazonaws.com/job-max-retry-count: "2"
spec:
  pytorchReplicaSpecs:
    Worker:
      replicas: 2
      restartPolicy: OnFailure
      template:
        spec:
          nodeSelector:
            sagemaker.amazonaws.com/node-health-status: Schedulable
          containers:
          - name: pytorch
            image: my-registry/megatron:24.09
            command:
            - torchrun
            - --nproc_per_node=1
            - --nnodes=2
            - --rdzv_id={name}
            - --rdzv_backend=c10d
            - --rdzv_endpoint=127.0.0.1:{port}
            - --rdzv_conf=timeout=1800,last_call_timeout=5
            - --local_addr=127.0.0.1
            - {trainer}
            - --train-iters=100000
            - --iteration-s=0.05
            - --save-interval=1
            - --save={folder}
            - --load={folder}
            env:
            - {{name: PATH, value: "{path}"}}
            - {{name: OMP_NUM_THREADS, value: "1"}}
            resources:
              limits:
                nvidia.com/gpu: 8
"""
_PORTS = iter(range(33001, 33100))


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with eks_site(nodes=4) as running:
        yield running


class Training:
    """A user's job on the site."""

    def __init__(self, site: Site, name: str) -> None:
        self.site, self.name = site, name
        self.saves = site.folder / "fsx" / name
        self.saves.mkdir(parents=True)
        path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
        text = JOB.format(name=name, port=next(_PORTS), trainer=TRAINER, folder=self.saves, path=path)
        site.kubectl("apply", "-f", "-", given=text)

    def iteration(self) -> int:
        """The newest saved one, by the file that Megatron keeps."""
        file = self.saves / "latest_checkpointed_iteration.txt"
        return int(file.read_text() or 0) if file.exists() else 0

    def trains(self, beyond: int = 0, off: tuple[str, ...] = ()) -> list[str]:
        """Wait until it saves iterations beyond this one, on nodes that are not among `off`; returns the nodes."""

        def found() -> list[str]:
            nodes = self.site.running_on(self.name)
            well = len(nodes) == 2 and not set(nodes) & set(off) and self.iteration() > beyond
            return nodes if well else []

        return list(self.site.until(found, f"{self.name} trains beyond {beyond}, not on {off}"))

    def delete(self) -> None:
        self.site.kubectl("delete", "pytorchjob", self.name, "--wait=false")
        self.site.until(lambda: not self.site.pods(self.name), f"no pods of {self.name}")


@pytest.mark.walk("W2.1")
def test_a_label_by_hand_moves_the_job_and_has_the_node_repaired(site: Site) -> None:
    """PendingReboot, then PendingReplacement: the job trains on elsewhere at once, from its newest iteration.

    Each node is booted anew or another machine within a minute, passes its checks and is `Schedulable` again; the job's
    own retries are not used up by it.
    """
    job = Training(site, "by-label")
    nodes = job.trains(beyond=5)
    for value, key in (("UnschedulablePendingReboot", "bootID"), ("UnschedulablePendingReplacement", "machineID")):
        victim = nodes[1]
        before = site.nodes()[victim]["status"]["nodeInfo"][key]
        begun = time.monotonic()
        site.kubectl("label", "node", victim, f"{HEALTH}={value}", "--overwrite")
        site.until(lambda: victim not in site.running_on(job.name), "the job leaves", limit_s=MINUTE_S)
        left = time.monotonic() - begun

        def is_another(victim: str = victim, before: str = before, key: str = key) -> bool:
            node = site.nodes().get(victim)
            return node is not None and node["status"].get("nodeInfo", {}).get(key, before) != before

        site.until(is_another, f"another {key}", limit_s=MINUTE_S)
        anew = time.monotonic() - begun
        at = job.iteration()
        nodes = job.trains(beyond=at + 5)
        trains = time.monotonic() - begun
        site.until(lambda victim=victim: site.health(victim) == "Schedulable", "Schedulable again")
        print(
            f"{value}: left {left:.1f} s, anew {anew:.1f} s, trains {trains:.1f} s, back {time.monotonic() - begun:.1f} s"
        )
        assert site.nodes()[victim]["metadata"]["labels"][DEEP] == "Passed"
    (about,) = (one for one in site.objects("pytorchjobs") if one["metadata"]["name"] == job.name)
    print(about["metadata"]["annotations"])
    print(site.kubectl("describe", "pytorchjob", job.name)[-3000:])
    job.delete()

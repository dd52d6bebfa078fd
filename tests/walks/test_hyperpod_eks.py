"""W2: HyperPod on EKS: labels, kernel log, PyTorchJob with auto-resume, log rules, on a real Kubernetes control plane.

All is done by kubectl and seen through it. See `eks_site` for what is emulated.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.walks.eks_site import DEEP, HEALTH, Site, eks_site
from tests.walks.login_node import free_port

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
        text = JOB.format(name=name, port=free_port(), trainer=TRAINER, folder=self.saves, path=path)
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

    def runs(self, off: tuple[str, ...]) -> list[str]:
        """Wait until both of its pods run, not on these nodes; returns theirs."""

        def found() -> list[str]:
            nodes = self.site.running_on(self.name)
            return nodes if len(nodes) == 2 and not set(nodes) & set(off) else []

        return list(self.site.until(found, f"{self.name} runs, not on {off}", limit_s=MINUTE_S))

    def is_unschedulable(self) -> bool:
        """Does one of its pods wait for a node?"""
        pods = self.site.pods(self.name).values()
        waiting = [pod["status"] for pod in pods if pod["status"].get("phase") == "Pending"]
        return any(one.get("reason") == "Unschedulable" for status in waiting for one in status.get("conditions", []))

    def object(self) -> dict[str, Any]:
        """The PyTorchJob."""
        return json.loads(self.site.kubectl("get", "pytorchjob", self.name, "-o", "json"))

    def described(self) -> list[tuple[str, str]]:
        """Reason and message of each Event that `kubectl describe` shows."""
        _, _, events = self.site.kubectl("describe", "pytorchjob", self.name).partition("\nEvents:\n")
        return re.findall(r"^  (?:Normal|Warning) +(\w+) .* holdfast +(.*)$", events, re.MULTILINE)

    def says(self) -> str:
        """What its pods print."""
        return "".join(self.site.says(pod) for pod in self.site.pods(self.name))

    def delete(self) -> None:
        self.site.kubectl("delete", "pytorchjob", self.name, "--wait=false")
        self.site.until(lambda: not self.site.pods(self.name), f"no pods of {self.name}")


def machine(site: Site, node: str, key: str) -> str:
    """`bootID` or `machineID`, as the node's kubelet says; empty while there is no such node."""
    found = site.nodes().get(node, {})
    return str(found.get("status", {}).get("nodeInfo", {}).get(key, ""))


def becomes_another(site: Site, node: str, key: str, before: str) -> None:
    """Within a minute the node has booted anew, or is another machine."""
    site.until(lambda: machine(site, node, key) not in {"", before}, f"{node}: another {key}", limit_s=MINUTE_S)


def is_back(site: Site, node: str) -> None:
    """The node has passed its checks and takes work."""
    site.until(lambda: site.health(node) == "Schedulable", f"{node} Schedulable")
    labels = site.nodes()[node]["metadata"]["labels"]
    assert labels[DEEP] == "Passed", labels


@pytest.mark.walk("W2.1")
def test_a_label_by_hand_moves_the_job_and_has_the_node_repaired(site: Site) -> None:
    """PendingReboot, then PendingReplacement: the job leaves at once and trains on elsewhere, from its newest iteration.

    Each node is booted anew, or another machine, within a minute, passes its checks and is `Schedulable` again.
    """
    job = Training(site, "by-label")
    nodes = job.trains(beyond=2)
    for value, key in (("UnschedulablePendingReboot", "bootID"), ("UnschedulablePendingReplacement", "machineID")):
        victim = nodes[1]
        before = machine(site, victim, key)
        begun = time.monotonic()
        site.kubectl("label", "node", victim, f"{HEALTH}={value}", "--overwrite")
        nodes = job.runs(off=(victim,))
        moved_s = time.monotonic() - begun
        becomes_another(site, victim, key, before)
        print(f"{value}: moved in {moved_s:.1f} s, another {key} in {time.monotonic() - begun:.1f} s")
        is_back(site, victim)
        print(f"Schedulable in {time.monotonic() - begun:.1f} s")
    at = job.iteration()
    job.trains(beyond=at)
    (loaded,) = set(re.findall(r"successfully loaded checkpoint from .* at iteration (\d+)", job.says()))
    assert 2 < int(loaded) <= at
    job.delete()


@pytest.mark.walk("W2.2")
def test_an_xid_in_var_log_messages_becomes_a_label(site: Site) -> None:
    """Root appends Xid 73: PendingReboot; 74: PendingReplacement; within a minute, and the nodes come back well.

    An old line does nothing, in either form of time. Without the preset in agent.toml a fresh line does nothing.
    """
    plain, rebooted, replaced, _ = site.nodes()
    for node in (rebooted, replaced):
        site.give(node, "etc/holdfast/agent.toml", 'preset = "hyperpod-eks"\n')
    long_ago = time.time() - 86400
    site.append(plain, syslog(74))
    site.append(rebooted, syslog(74, long_ago), iso(74, long_ago), syslog(74).replace("kernel:", "mytool:"))
    for node, xid, value, key in (
        (rebooted, 73, "UnschedulablePendingReboot", "bootID"),
        (replaced, 74, "UnschedulablePendingReplacement", "machineID"),
    ):
        before = machine(site, node, key)
        with site.watching(node) as seen:
            begun = time.monotonic()
            site.append(node, syslog(xid) if xid == 73 else iso(xid))
            site.until(lambda seen=seen, value=value: value in seen(), f"{value} on {node}", limit_s=MINUTE_S)
            print(f"Xid {xid}: {value} in {time.monotonic() - begun:.1f} s")
            becomes_another(site, node, key, before)
            is_back(site, node)
            print(f"Schedulable in {time.monotonic() - begun:.1f} s: {seen()}")
        assert [one for one in seen() if "Pending" in one] == [value]
    assert {site.health(node) for node in (plain, rebooted, replaced)} == {"Schedulable"}
    assert site.found() == {(rebooted, "nvidia.xid.73"), (replaced, "nvidia.xid.74")}


def syslog(xid: int, at: float | None = None) -> str:
    """As rsyslog writes it by default."""
    stamp = time.strftime("%b %e %H:%M:%S", time.localtime(at))
    return f"{stamp} ip-10-1-2-3 kernel: [1234.567890] NVRM: Xid (PCI:0000:b9:00): {xid}, pid=42, name=python, Ch 1"


def iso(xid: int, at: float | None = None) -> str:
    """As newer distributions have rsyslog write it."""
    stamp = datetime.fromtimestamp(time.time() if at is None else at, UTC).isoformat()
    return f"{stamp} ip-10-1-2-3 kernel: NVRM: Xid (PCI:0000:b9:00): {xid}, pid=42, name=python, Ch 1"


@pytest.mark.walk("W2.3")
def test_a_pytorchjob_comes_back_twice_and_is_given_up_at_the_third_fault(site: Site) -> None:
    """Three nodes with Xid 74, one after another: other nodes, other nodes, given up; each told as an Event of the job.

    While no node is free the pods are Pending, and they start when one is.
    """
    job = Training(site, "llama")
    nodes = job.trains(beyond=2)
    free = sorted(set(site.nodes()) - set(nodes))
    site.kubectl("cordon", *free)
    site.xid(nodes[1], 74)
    site.until(job.is_unschedulable, "a pod is Pending, since no node is free")
    print(site.kubectl("get", "pods"))
    at = job.iteration()
    site.kubectl("uncordon", *free)
    left = [nodes[1]]
    for _ in range(2):
        nodes = job.trains(beyond=at, off=(left[-1],))
        at = job.iteration()
        left.append(nodes[1])
        site.xid(nodes[1], 74)

    def given_up() -> str:
        return str(job.object()["metadata"]["annotations"].get("holdfast.dev/given-up", ""))

    site.until(given_up, "given up")
    site.until(lambda: not site.running_on(job.name), "nothing of it runs")
    assert given_up().startswith("2 requeues"), given_up()
    events = job.described()
    print(site.kubectl("describe", "pytorchjob", job.name).partition("\nEvents:\n")[2])
    told = [(reason, message.partition(" ")[0]) for reason, message in events]
    name = f"default.pytorchjob.{job.name}"
    assert [one for one in told if one[0] == "RequeuedHeld"] == [("RequeuedHeld", f"{name}({n})") for n in (0, 1)]
    released = [(reason, attempt) for reason, attempt in told if reason.startswith("ReleasedWithout")]
    assert [attempt for _, attempt in released] == [f"{name}(0)", f"{name}(1)"]
    assert all(node.capitalize() in reason for node, (reason, _) in zip(left, released, strict=False)), (left, released)
    assert ("WasGivenUp", f"{name}(2)") in told
    job.delete()


MONITORED = """\
import os, sys, time

attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
print("Experiment configuration: llama3-8b", flush=True)
for step in range(1, 9):
    rate = 70 if attempt == 0 and step > 3 else 90
    print(f"{{'training_loss_step': {2 / step:.3f}, 'samples/sec': {rate}.5}}", flush=True)
    time.sleep(0.2)
if attempt == 1:
    print("optimizer exploded", flush=True)
if attempt < 3:
    time.sleep(600)
print("training done", flush=True)
"""
RULES = r"""apiVersion: sagemaker.amazonaws.com/v1
kind: HyperPodPyTorchJob
spec:
  logMonitoringConfiguration:
  - name: JobStart
    logPattern: ".*Experiment configuration.*"
    expectedStartCutOffInSeconds: 120
  - name: Steps
    logPattern: ".*'training_loss_step': (\\d+(\\.\\d+)?).*"
    expectedRecurringFrequencyInSeconds: 4
    stopPattern: ".*training done.*"
  - name: Throughput
    logPattern: ".*'samples/sec': (\\d+(\\.\\d+)?).*"
    metricThreshold: 80
    operator: lteq
    metricEvaluationDataPoints: 3
  - name: Boom
    logPattern: ".*optimizer exploded.*"
    faultOnMatch: true
"""


@pytest.mark.walk("W2.4")
def test_log_rules_of_a_real_job_pass_through_all_five_states(site: Site) -> None:
    """Each rule's states stand in `kubectl logs`; SLOW, FAULTED and HANGING start the training anew, and it ends well.

    The health labels are columns of `kubectl get nodes -L`.
    """
    folder = site.folder / "fsx" / "monitored"
    folder.mkdir(parents=True)
    (folder / "train.py").write_text(MONITORED)
    (folder / "job.yaml").write_text(RULES)
    job = yaml.safe_load(JOB.format(name="monitored", port=0, trainer="", folder="", path=""))
    replica = job["spec"]["pytorchReplicaSpecs"].pop("Worker")
    container = replica["template"]["spec"]["containers"][0]
    container["command"] = ["holdfast", "run", "--log-rules", f"{folder}/job.yaml", "--nproc-per-node", "1"]
    container["command"] += ["--standbys", "0", f"{folder}/train.py"]
    container["env"] = [
        {"name": "PATH", "value": f"{Path(sys.executable).parent}:/usr/bin:/bin"},
        {"name": "HOLDFAST_JOB_ID", "value": "default.pytorchjob.monitored"},
        {"name": "HOLDFAST_CLUSTER", "value": "hyperpod"},
        {"name": "HOLDFAST_JOB_DIR", "value": str(folder)},
        {"name": "HOLDFAST_NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
    ]
    job["spec"]["pytorchReplicaSpecs"]["Master"] = {**replica, "replicas": 1}
    site.kubectl("apply", "-f", "-", given=yaml.safe_dump(job))
    site.until(lambda: "training done" in site.says("monitored-master-0"), "training done")
    said = site.says("monitored-master-0")
    print(said)
    states: dict[str, list[str]] = {}
    for rule, state in re.findall(r'^\[holdfast\] Log rule "(\w+)" is (\w+)', said, re.MULTILINE):
        states.setdefault(rule, []).append(state)
    begun = ["WAITING", "HEALTHY"]
    assert states == {
        "JobStart": begun * 4,
        "Steps": [*begun * 3, "HANGING", *begun],
        "Throughput": [*begun, "SLOW", *begun * 3],
        "Boom": ["WAITING", "WAITING", "FAULTED", "WAITING", "WAITING"],
    }
    site.until(lambda: "Succeeded" in site.kubectl("get", "pytorchjob", "monitored"), "Succeeded")
    table = site.kubectl("get", "nodes", "-L", f"{HEALTH},{DEEP}")
    print(table)
    head, *rows = table.splitlines()
    assert head.split()[-2:] == ["NODE-HEALTH-STATUS", "DEEP-HEALTH-CHECK-STATUS"]
    assert {row.split()[5] for row in rows} == {"Schedulable"}

"""What objects of Kubernetes mean: views of jobs and nodes, and the words that people write on them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.adapters.kubernetes.asks import Vocabulary, wish_of
from holdfast.adapters.kubernetes.objects import (
    DRAIN_REASON,
    HEALTH_SET,
    KINDS,
    Node,
    Pod,
    Workload,
    is_unmarked,
    job_id,
    job_view,
    node_view,
    seconds,
)
from holdfast.model.cluster import JobKey, RecoverySpec, SchedulerState

S = SchedulerState
KEY = JobKey("k", "default.pytorchjob.llama")
WORDS = Vocabulary()


def pytorch(notes: dict[str, str] | None = None, *, workers: int = 1, **more: Any) -> Workload:
    """A PyTorchJob of a master and workers."""
    replicas = {"Master": {"replicas": 1, "template": {"spec": {}}}, "Worker": {"replicas": workers, "template": {}}}
    spec = {"pytorchReplicaSpecs": replicas, **more.pop("spec", {})}
    about = {"name": "llama", "namespace": "default", "uid": "u1", "annotations": notes or {}, **more.pop("about", {})}
    return Workload(kind=KINDS["PyTorchJob"], version="v1", manifest={"metadata": about, "spec": spec, **more})


def pod(name: str, node: str = "n1", phase: str = "Running", **status: Any) -> Pod:
    """A pod as the API server sends it."""
    told = {
        "metadata": {"name": name, "uid": name, "creationTimestamp": None},
        "spec": {"nodeName": node},
        "status": {"phase": phase, **status},
    }
    return msgspec.convert(told, Pod)


def ended(code: int, reason: str = "Error") -> dict[str, Any]:
    """Container statuses of a pod whose container ended so."""
    state = {"terminated": {"exitCode": code, "reason": reason}}
    return {"containerStatuses": [{"name": "main", "state": state, "restartCount": 0}]}


def view(job: Workload, *pods: Pod, begun: bool = False):
    return job_view(job, pods, KEY, begun=begun)


def test_a_job_runs_once_all_its_pods_do():
    """A first pod alone is no start; later a missing one does not make a running job a waiting one."""
    both = pod("m", "n1"), pod("w", "n2")
    assert view(pytorch(), both[0], pod("w", "", "Pending")).state is S.PENDING
    assert (view(pytorch(), *both).state, view(pytorch(), *both).nodes) == (S.RUNNING, ("n1", "n2"))
    assert view(pytorch(), both[0], pod("w", "", "Pending"), begun=True).state is S.RUNNING


def test_held_means_that_none_of_its_pods_is_left():
    """While a pod ends the job is completing; afterwards it is held, and shows no nodes."""
    job = pytorch({"holdfast.dev/held": "Xid 74", "holdfast.dev/restart-count": "2"})
    assert view(job, pod("m")).state is S.COMPLETING
    over = view(job, pod("m", phase="Failed"))
    assert (over.state, over.restart_count, over.nodes) == (S.HELD, 2, ())


def test_a_suspension_is_a_persons_unless_a_queue_is_named():
    """Suspended without our note: a person holds it; with Kueue's label it only waits for its turn."""
    asleep = {"spec": {"runPolicy": {"suspend": True}}}
    assert view(pytorch(**asleep)).state is S.HELD
    assert view(pytorch(**asleep, about={"labels": {"kueue.x-k8s.io/queue-name": "team"}})).state is S.PENDING


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ({"reason": "NodeLost"}, S.NODE_FAIL),
        (
            {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}]},
            S.PREEMPTED,
        ),
        ({}, S.FAILED),
    ],
)
def test_a_failed_jobs_pods_say_whose_failure_it_was(status: dict[str, Any], state: SchedulerState):
    """A lost node and a preemption are not the program's."""
    failed = {"status": {"conditions": [{"type": "Failed", "status": "True", "reason": "PyTorchJobFailed"}]}}
    assert view(pytorch(**failed), pod("m", phase="Failed", **status)).state is state


def test_the_exit_code_is_of_the_pod_that_began_it():
    """137 and 143 are how the others are ended; an out-of-memory kill is named."""
    failed = {"status": {"conditions": [{"type": "Failed", "status": "True"}]}}
    pods = [pod("w0", phase="Failed", **ended(143)), pod("w1", phase="Failed", **ended(3))]
    assert view(pytorch(**failed), *pods).exit_code == 3
    killed = view(pytorch(**failed), pod("w0", phase="Failed", **ended(137, "OOMKilled")))
    assert (killed.exit_code, killed.reason) == (137, "w0: OOMKilled (137)")


def test_why_a_pod_is_not_scheduled_is_told():
    """FailedScheduling is the job's reason while it waits."""
    waits = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
    found = view(pytorch(), pod("m", "", "Pending", conditions=[waits]))
    assert (found.state, found.reason) == (S.PENDING, "m: FailedScheduling: 0/3 nodes")


def test_a_container_that_its_kubelet_starts_again_and_again_is_told():
    """With `restartPolicy: OnFailure` the pod looks as if it ran: how often and after what is the job's reason."""
    last = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
    again = {"name": "main", "state": {"running": {}}, "lastState": last, "restartCount": 3}
    found = view(pytorch(workers=0), pod("m", containerStatuses=[again]))
    words = "main was started again by its kubelet 3 times, last after OOMKilled (137)"
    assert (found.state, found.reason) == (S.RUNNING, f"m: {words}")


def test_both_vocabularies_ask_for_recovery_and_ours_goes_before():
    """HyperPod's annotations work unchanged; a number of ours holds where both stand."""
    theirs = {
        "sagemaker.amazonaws.com/enable-job-auto-resume": "true",
        "sagemaker.amazonaws.com/job-max-retry-count": "2",
    }
    assert wish_of(theirs).recovery == RecoverySpec(max_requeues=2)
    assert wish_of({**theirs, "holdfast.dev/max-restarts": "5"}).recovery == RecoverySpec(max_requeues=5)
    assert wish_of({"holdfast.dev/auto-resume": "false"}).recovery == RecoverySpec(enabled=False)
    assert wish_of({"app": "x"}).recovery is None


@pytest.mark.parametrize(
    ("notes", "words"),
    [
        ({"sagemaker.amazonaws.com/enable-auto-resume": "true"}, "enable-job-auto-resume is, exactly so"),
        ({"holdfast.dev/Auto-Resume": "true"}, "holdfast.dev/auto-resume is, exactly so"),
        ({"holdfast.dev/auto-resume": "True"}, "must be 'true' or 'false'"),
        ({"sagemaker.amazonaws.com/job-max-retry-count": "two"}, "not a count"),
    ],
)
def test_what_is_nearly_right_has_no_effect_and_is_said(notes: dict[str, str], words: str):
    """A near miss would otherwise be found out too late."""
    wish = wish_of(notes)
    assert wish.recovery is None
    assert [words in warning for warning in wish.warnings] == [True]


def node(labels: dict[str, str] | None = None, notes: dict[str, str] | None = None, **spec: Any) -> Node:
    """A node as the API server sends it."""
    ready = {"type": "Ready", "status": spec.pop("ready", "True"), "lastHeartbeatTime": "2026-01-01T00:00:00Z"}
    info = {"bootID": "b1", "machineID": "m1", "systemUUID": "s1"}
    capacity = spec.pop("capacity", {"nvidia.com/gpu": "8"})
    told = {
        "metadata": {"name": "n1", "uid": "u", "labels": labels, "annotations": notes},
        "spec": spec,
        "status": {"conditions": [ready], "nodeInfo": info, "capacity": capacity},
    }
    return msgspec.convert(told, Node)


def test_a_node_is_named_by_machine_and_boot_and_silence_is_not_death():
    """Unknown is not known; only the provider's word, as a taint, says that a machine does not run."""
    seen = node_view(node(), jobs=["b", "a"], words=WORDS)
    assert (seen.alive, seen.boot_id, seen.instance_id, seen.gpus, seen.jobs) == (
        True,
        "k8s:b1",
        "k8s:s1",
        8,
        ("a", "b"),
    )
    assert node_view(node(ready="Unknown"), jobs=(), words=WORDS).alive is None
    off = [{"key": "node.cloudprovider.kubernetes.io/shutdown", "effect": "NoSchedule"}]
    assert node_view(node(ready="Unknown", taints=off), jobs=(), words=WORDS).alive is False


def test_whose_cordon_it_is():
    """Ours has our prefix in the annotation; one without any is a person's."""
    ours = node_view(node(notes={DRAIN_REASON: "[holdfast] Xid 74"}, unschedulable=True), jobs=(), words=WORDS)
    theirs = node_view(node(unschedulable=True), jobs=(), words=WORDS)
    assert (ours.drained, ours.drain_reason) == (True, "[holdfast] Xid 74")
    assert (theirs.drained, theirs.drain_reason) == (True, "cordoned")


@pytest.mark.parametrize(
    ("found", "unmarked"),
    [
        (node(), True),
        (node(labels={"holdfast.dev/node-health-status": "Schedulable"}), True),
        (node(labels={"sagemaker.amazonaws.com/node-health-status": "Unschedulable"}), False),
        (node(notes={HEALTH_SET: "Schedulable"}), False),
        (node(unschedulable=True), False),
        (node(ready="False"), False),
        (node(ready="Unknown"), False),
        (node(capacity={"cpu": "8", "memory": "9Gi"}), False),
        (node(capacity={"nvidia.com/gpu": "0"}), False),
        (node(capacity={"aws.amazon.com/neurondevice": "16"}), True),
    ],
    ids=["new", "other prefix", "marked", "taken away", "cordoned", "not ready", "silent", "no GPU", "none", "neuron"],
)
def test_which_nodes_are_to_be_called_well(found: Node, unmarked: bool):
    """Those to train on that are up and about which nothing was said; a label that a person took away stays away."""
    assert is_unmarked(found, Vocabulary(prefix="sagemaker.amazonaws.com")) is unmarked


@pytest.mark.parametrize(("value", "asked"), [("Reboot", "reboot"), ("Replacement", "replace")])
@pytest.mark.parametrize("prefix", ["holdfast.dev", "sagemaker.amazonaws.com"])
def test_a_label_that_a_person_writes_is_an_order_and_our_own_is_none(value: str, asked: str, prefix: str):
    """What we wrote ourselves is remembered beside it."""
    label = {f"{prefix}/node-health-status": f"UnschedulablePending{value}"}
    words = Vocabulary(prefix=prefix)
    assert node_view(node(label), jobs=(), words=words).asked == asked
    ours = {HEALTH_SET: f"UnschedulablePending{value}"}
    assert node_view(node(label, ours), jobs=(), words=words).asked == ""


def test_a_label_that_is_nearly_an_order_is_none_and_is_said():
    """Case matters, as it does to those who read the label."""
    seen = node_view(node({WORDS.health: "UnschedulablePendingreboot"}), jobs=(), words=WORDS)
    assert (seen.asked, len(seen.warnings)) == ("", 1)
    assert "UnschedulablePendingReboot would, exactly so" in seen.warnings[0]


def test_ids_and_times():
    """An id is one job's alone; a time of the API is Unix seconds, and none is zero."""
    assert job_id("PyTorchJob", "team-a", "llama.v2") == "team-a.pytorchjob.llama.v2"
    assert (seconds("1970-01-01T00:01:00Z"), seconds(None), seconds("soon")) == (60.0, 0.0, 0.0)

"""What is written to Kubernetes: marks of nodes, and jobs that are held, resumed and made anew."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from holdfast.adapters.kubernetes import patches
from holdfast.adapters.kubernetes.asks import Vocabulary
from holdfast.adapters.kubernetes.objects import DRAIN_REASON, EXCLUDED, HEALTH_SET, HELD, KINDS, LINEAGE, Workload

NOW = "2026-01-01T00:00:00Z"
WORDS = Vocabulary(prefix="sagemaker.amazonaws.com")
ASKED = {WORDS.health: "UnschedulablePendingReplacement"}
NODE = {
    "metadata": {"name": "n1", "uid": "u1", "resourceVersion": "7", "labels": {}, "annotations": {}},
    "spec": {"taints": [{"key": "team", "effect": "NoSchedule"}]},
}


def test_a_quarantine_is_label_taint_cordon_and_details_in_one_patch():
    """HyperPod's vocabulary by prefix; other taints stay; the patch holds for this very state of the node only."""
    patch = patches.quarantine(NODE, WORDS, why="Xid 74: NVLink (link 6)", repair="replace", now=NOW)
    labels, notes = patch["metadata"]["labels"], patch["metadata"]["annotations"]
    assert labels["sagemaker.amazonaws.com/node-health-status"] == "UnschedulablePendingReplacement"
    assert labels["sagemaker.amazonaws.com/fault-reasons"] == "Xid_74__NVLink__link_6"
    assert notes[DRAIN_REASON] == "[holdfast] Xid 74: NVLink (link 6)"
    detail = json.loads(notes["sagemaker.amazonaws.com/fault-details"])[-1]
    assert detail == {"timestamp": NOW, "type": "Xid", "reason": "replace", "message": "Xid 74: NVLink (link 6)"}
    ours = {"key": "sagemaker.amazonaws.com/node-health-status", "value": "Unschedulable", "effect": "NoSchedule"}
    assert patch["spec"] == {"unschedulable": True, "taints": [*NODE["spec"]["taints"], ours]}
    assert (patch["metadata"]["resourceVersion"], patch["metadata"]["uid"]) == ("7", "u1")


def test_a_return_takes_all_of_it_away_again():
    """Nothing of ours stays but the word that it is schedulable."""
    marked = copy.deepcopy(NODE)
    patch = patches.quarantine(NODE, WORDS, why="Xid 74", repair="reboot", now=NOW)
    marked["spec"] |= patch["spec"]
    back = patches.returned(marked, WORDS)
    assert back["spec"] == {"unschedulable": None, "taints": NODE["spec"]["taints"]}
    assert back["metadata"]["labels"]["sagemaker.amazonaws.com/node-health-status"] == "Schedulable"
    assert back["metadata"]["annotations"][DRAIN_REASON] is None


def test_a_node_that_somebody_said_something_of_is_not_called_well_over_it():
    """It was looked at a moment ago: a mark, a cordon, or a label that somebody took away since then holds."""
    health = "sagemaker.amazonaws.com/node-health-status"
    assert patches.schedulable(NODE, WORDS)["metadata"]["labels"] == {health: "Schedulable"}
    for about, spec in (
        ({"labels": {health: "Unschedulable"}}, {}),
        ({"annotations": {HEALTH_SET: "Schedulable"}}, {}),
        ({}, {"unschedulable": True}),
    ):
        changed = {"metadata": {**NODE["metadata"], **about}, "spec": {**NODE["spec"], **spec}}
        patch = patches.schedulable(changed, WORDS)
        assert (patch["metadata"]["labels"], patch["metadata"]["annotations"], patch["spec"]) == ({}, {}, {})


def test_a_condition_keeps_the_time_since_which_it_holds():
    """Said again with another reason, the time of its last change is left as the server has it."""
    said = {"is_fault": True, "reason": "Unschedulable", "message": "Xid 74", "now": NOW}
    (first,) = patches.condition(**said, is_new=True)["status"]["conditions"]
    (again,) = patches.condition(**said, is_new=False)["status"]["conditions"]
    assert (first["type"], first["status"], first["lastTransitionTime"]) == ("HoldfastFault", "True", NOW)
    assert "lastTransitionTime" not in again


def batch(notes: dict[str, str], **spec: Any) -> Workload:
    """A Job as the API server shows it, with what the server added."""
    labels = {"controller-uid": "u", "job-name": "j", "team": "a"}
    template = {"metadata": {"labels": dict(labels)}, "spec": {"containers": [{"name": "c", "env": []}]}}
    manifest = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": "j",
            "namespace": "default",
            "uid": "u",
            "resourceVersion": "9",
            "creationTimestamp": NOW,
            "labels": dict(labels),
            "annotations": notes,
            "ownerReferences": [{"kind": "CronJob", "name": "nightly", "uid": "c"}],
        },
        "spec": {"parallelism": 0, "selector": {"matchLabels": {"controller-uid": "u"}}, "template": template, **spec},
        "status": {"failed": 1},
    }
    return Workload(kind=KINDS["Job"], version="v1", manifest=manifest)


def test_a_job_made_anew_keeps_name_owner_labels_and_lineage_and_nothing_of_the_servers():
    """Its own selector would claim the old pods; how many pods it had is restored; it starts off the excluded nodes."""
    notes = {HELD: "x", EXCLUDED: "n1,n2", "holdfast.dev/parallelism": "4", "holdfast.dev/restart-count": "3"}
    made = patches.remade(batch(notes), restore_step=120)
    about, spec = made["metadata"], made["spec"]
    assert "uid" not in about
    assert "resourceVersion" not in about
    assert "status" not in made
    assert about["ownerReferences"][0]["name"] == "nightly"
    assert (about["labels"], spec["template"]["metadata"]["labels"]) == ({"team": "a"}, {"team": "a"})
    assert (spec["parallelism"], "selector" in spec, about["annotations"][LINEAGE]) == (4, False, "u")
    assert HELD not in about["annotations"]
    env = {entry["name"]: entry["value"] for entry in spec["template"]["spec"]["containers"][0]["env"]}
    assert env == {"HOLDFAST_RESTART_COUNT": "3", "HOLDFAST_RESTORE_STEP": "120"}
    terms = spec["template"]["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    fields = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in ("n1", "n2")]
    assert terms == {"nodeSelectorTerms": [{"matchFields": fields}]}


def test_an_exclusion_is_added_to_each_of_the_owners_alternatives_and_taken_away_again():
    """Terms are alternatives: one without our rule would let the job back onto the node."""
    own = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a"]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [dict(own), dict(own)]}}
    job = batch({EXCLUDED: "n1"})
    job.manifest["spec"]["template"]["spec"]["affinity"] = {"nodeAffinity": required}
    made = patches.remade(job, restore_step=None)
    terms = made["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    kept = terms["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert [len(term["matchFields"]) for term in kept] == [1, 1]
    again = Workload(kind=job.kind, version="v1", manifest=made)
    made["metadata"]["annotations"][EXCLUDED] = ""
    free = patches.remade(again, restore_step=None)
    assert free["spec"]["template"]["spec"]["affinity"]["nodeAffinity"] == required


def test_resuming_sets_to_null_what_must_not_stay():
    """A merge patch leaves alone what it does not name: an exclusion that has ended is named."""
    field = {"key": "metadata.name", "operator": "NotIn", "values": ["n1"]}
    terms = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    replica = {"replicas": 1, "template": {"spec": {"containers": [{"name": "c"}], "affinity": affinity}}}
    about = {"name": "t", "uid": "u", "resourceVersion": "1", "annotations": {HELD: "x"}}
    spec = {"pytorchReplicaSpecs": {"Master": replica}, "runPolicy": {"suspend": True}}
    job = Workload(kind=KINDS["PyTorchJob"], version="v1", manifest={"metadata": about, "spec": spec})
    patch = patches.resumed(job, restore_step=None)
    assert patch["spec"]["runPolicy"] == {"suspend": False}
    assert patch["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["affinity"] is None
    assert patch["metadata"]["annotations"] == {HELD: None}


def test_a_job_of_a_queue_is_given_back_to_it_suspended():
    """Kueue admits it again; we do not start it past its queue."""
    job = batch({HELD: "x"}, suspend=True)
    job.manifest["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "team"
    assert patches.remade(job, restore_step=None)["spec"]["suspend"] is True
    plain = batch({HELD: "x"}, suspend=True)
    assert patches.remade(plain, restore_step=None)["spec"]["suspend"] is False


@pytest.mark.parametrize(("labels", "left"), [({}, "UnschedulablePendingReboot"), (ASKED, ASKED[WORDS.health])])
def test_a_persons_order_by_label_stays_while_the_node_is_marked(labels: dict[str, str], left: str):
    """Another repair that a person asked for is not overwritten, nor taken for our own word."""
    node = {"metadata": {"resourceVersion": "1", "uid": "u", "labels": labels}, "spec": {}}
    made = patches.quarantine(node, WORDS, why="Xid 74", repair="reboot", now="now")["metadata"]
    assert made["labels"][WORDS.health] == left
    assert made["annotations"].get("holdfast.dev/node-health-set") == (None if labels else left)
    marked = {"resourceVersion": "2", "uid": "u", "labels": ASKED, "annotations": {}}
    over = patches.retired({"metadata": marked, "spec": {}}, WORDS, why="x", now="now")["metadata"]
    assert over["labels"][WORDS.health] == "Unschedulable"
    assert over["annotations"]["holdfast.dev/node-health-set"] == "Unschedulable"


def test_a_train_jobs_pods_are_kept_off_nodes_by_a_patch_of_its_runtime():
    """Under our own name beside others'; with nothing to exclude ours goes; the trainer hears of the restart."""
    theirs = {"manager": "kueue.x-k8s.io/manager", "trainingRuntimeSpec": {}}
    spec = {"runtimeRef": {"name": "torch"}, "trainer": {"numNodes": 2}, "suspend": True, "runtimePatches": [theirs]}
    status = {"jobsStatus": [{"name": "node"}, {"name": "initializer"}]}
    about = {"name": "t", "namespace": "default", "uid": "u", "annotations": {"holdfast.dev/excluded": "n1"}}
    found = Workload(
        kind=KINDS["TrainJob"], version="v1alpha1", manifest={"metadata": about, "spec": spec, "status": status}
    )
    made = patches.remade(found, restore_step=None)
    other, ours = made["spec"]["runtimePatches"]
    parts = ours["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    assert (other, ours["manager"], [part["name"] for part in parts]) == (
        theirs,
        "holdfast.dev/controller",
        ["node", "initializer"],
    )
    affinity = parts[0]["template"]["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term["matchFields"] == [{"key": "metadata.name", "operator": "NotIn", "values": ["n1"]}]
    assert {"name": "HOLDFAST_RESTART_COUNT", "value": "0"} in made["spec"]["trainer"]["env"]
    assert (made["spec"]["suspend"], "status" in made) == (False, False)
    made["metadata"] |= {"uid": "v", "annotations": {}}
    free = patches.remade(Workload(kind=KINDS["TrainJob"], version="v1alpha1", manifest=made), restore_step=None)
    assert free["spec"]["runtimePatches"] == [theirs]


def test_the_count_of_pods_is_noted_once_by_whoever_comes_first():
    """A Job without `suspend` that two controllers hold at once keeps its number of pods."""
    manifest: dict[str, Any] = {
        "metadata": {"name": "j", "namespace": "default", "uid": "u", "resourceVersion": "1", "annotations": {}},
        "spec": {"parallelism": 2, "template": {}},
    }
    job = Workload(kind=KINDS["Job"], version="v1", manifest=manifest)
    first = patches.without_pods(job)
    assert (first["metadata"]["annotations"][patches.PARALLELISM], first["spec"]) == ("2", {"parallelism": 0})
    held = copy.deepcopy(manifest)
    held["metadata"]["annotations"] = {patches.PARALLELISM: "2"}
    held["spec"]["parallelism"] = 0
    second = patches.without_pods(Workload(kind=KINDS["Job"], version="v1", manifest=held))
    assert second["metadata"]["annotations"][patches.PARALLELISM] == "2"

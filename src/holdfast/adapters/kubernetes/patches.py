"""What Holdfast writes: patches of nodes and jobs, and jobs made anew. Pure.

Only fields that are Holdfast's own are touched, or ones that an order is about (`unschedulable`, `suspend`, the node
affinity of a job that is restarted). Lists are replaced as a whole by a merge patch, so each patch carries the
resourceVersion that it was made from and is refused if somebody changed the object meanwhile. Times come in as text.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from holdfast.adapters.kubernetes.asks import (
    HOLDFAST,
    PENDING,
    SCHEDULABLE,
    UNSCHEDULABLE,
    Vocabulary,
)
from holdfast.adapters.kubernetes.objects import (
    DRAIN_REASON,
    EXCLUDED,
    FAULT,
    FIRST_CREATED,
    HEALTH_SET,
    HELD,
    LINEAGE,
    PARALLELISM,
    PREFIX,
    RESTARTS,
    Kind,
    Workload,
    at,
    templates,
)

Json = dict[str, Any]
MANAGER = f"{HOLDFAST}/controller"
"""Who we are in a TrainJob's patches of its runtime."""
TRAINER_JOB = "node"
"""FIELD: the replicated job of a training runtime that holds the trainer, before the status names any."""
DETAILS_MAX = 10
LABEL_MAX = 63
_SERVERS_OWN = (
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "generation",
    "managedFields",
    "selfLink",
    "deletionTimestamp",
)
_JOBS_OWN = ("controller-uid", "job-name", "batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-name")
"""Labels that the job controller puts into a template; a second job with them would claim the first one's pods."""


# --- nodes ---


def _marked(node: Json, labels: Json, annotations: Json, spec: Json) -> Json:
    """A merge patch of this very state of the node; None in it removes a key."""
    about = {"resourceVersion": node["metadata"]["resourceVersion"], "uid": node["metadata"]["uid"]}
    return {"metadata": {**about, "labels": labels, "annotations": annotations}, "spec": spec}


def _taints(node: Json, words: Vocabulary, *, with_ours: bool) -> list[Json] | None:
    others = [taint for taint in node["spec"].get("taints") or [] if taint["key"] != words.health]
    # FIELD: <prefix>/node-health-status=Unschedulable:NoSchedule
    ours = [{"key": words.health, "value": UNSCHEDULABLE, "effect": "NoSchedule"}] if with_ours else []
    return [*others, *ours] or None


def label_value(text: str) -> str:
    """Text as a label's value: letters, digits, `-`, `_`, `.`, at most 63; a colon is not legal there."""
    plain = "".join(letter if letter.isascii() and (letter.isalnum() or letter in "-_.") else "_" for letter in text)
    return plain[:LABEL_MAX].strip("-_.")


def quarantine(node: Json, words: Vocabulary, *, why: str, repair: str, now: str, reason: str = "") -> Json:
    """Cordon, taint and mark.

    Args:
        node: as it is.
        words: the site's keys.
        why: for people, and for `drain-reason` behind our prefix.
        repair: `reboot`, `replace`, or nothing.
        now: timestamp.
        reason: in place of `PREFIX why`.
    """
    health = PENDING.get(repair, UNSCHEDULABLE)
    marked = {HEALTH_SET: health}
    asked = (node["metadata"].get("labels") or {}).get(words.health)
    ours = (node["metadata"].get("annotations") or {}).get(HEALTH_SET)
    if asked in PENDING.values() and asked not in {ours, health}:
        health, marked = str(asked), {}  # an order of a person's that nobody has taken up yet
    labels = {words.health: health, words.types: label_value(_type_of(why)), words.reasons: label_value(why)}
    fault = {"timestamp": now, "type": _type_of(why), "reason": repair or "fault", "message": why[:500]}
    annotations = {
        DRAIN_REASON: reason or f"{PREFIX} {why}",
        **marked,
        words.details: json.dumps([*_details(node, words), fault][-DETAILS_MAX:]),
    }
    spec = {"unschedulable": True, "taints": _taints(node, words, with_ours=True)}
    return _marked(node, labels, annotations, spec)


def _type_of(why: str) -> str:
    head = why.split(maxsplit=1)[0] if why.split() else "fault"
    return head.rstrip(":,") or "fault"


def _details(node: Json, words: Vocabulary) -> list[Json]:
    try:
        found = json.loads((node["metadata"].get("annotations") or {}).get(words.details, "[]"))
    except ValueError:
        return []
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def in_checks(node: Json, words: Vocabulary) -> Json:
    """Repaired, and not yet proven."""
    labels = {words.health: UNSCHEDULABLE, words.deep: "InProgress"}
    return _marked(node, labels, {HEALTH_SET: UNSCHEDULABLE}, {})


def retired(node: Json, words: Vocabulary, *, why: str, now: str) -> Json:
    """Out of service for a person."""
    patch = quarantine(node, words, why=why, repair="", now=now, reason=f"{PREFIX} retired: {why}")
    patch["metadata"]["labels"] |= {words.health: UNSCHEDULABLE, words.deep: "Failed"}
    patch["metadata"]["annotations"][HEALTH_SET] = UNSCHEDULABLE
    return patch


def returned(node: Json, words: Vocabulary, *, uncordon: bool = True) -> Json:
    """In service: nothing of ours is left but the word that it is well."""
    labels: Json = {words.health: SCHEDULABLE, words.types: None, words.reasons: None}
    if words.deep in (node["metadata"].get("labels") or {}):
        labels[words.deep] = "Passed"
    annotations: Json = {DRAIN_REASON: None, HEALTH_SET: SCHEDULABLE, words.details: None}
    spec: Json = {"taints": _taints(node, words, with_ours=False)}
    if uncordon:
        spec["unschedulable"] = None
    return _marked(node, labels, annotations, spec)


def schedulable(node: Json, words: Vocabulary) -> Json:
    """The word that a node is well, for selectors that wait for it; nothing where something else is said by now."""
    about = node["metadata"]
    is_told = words.health in (about.get("labels") or {}) or HEALTH_SET in (about.get("annotations") or {})
    if is_told or node["spec"].get("unschedulable"):
        return _marked(node, {}, {}, {})
    return _marked(node, {words.health: SCHEDULABLE}, {HEALTH_SET: SCHEDULABLE}, {})


def condition(*, is_fault: bool, reason: str, message: str, now: str, is_new: bool) -> Json:
    """A strategic patch of a node's status: the one condition that is ours. `is_new`: its status has just changed."""
    ours = {"type": FAULT, "status": str(is_fault), "reason": reason, "message": message, "lastHeartbeatTime": now}
    return {"status": {"conditions": [{**ours, **({"lastTransitionTime": now} if is_new else {})}]}}


# --- jobs ---


def annotated(job: Workload, annotations: Mapping[str, str | None], **more: Any) -> Json:
    """A merge patch of this very state of the job."""
    about = {"resourceVersion": job.about["resourceVersion"], "uid": job.uid}
    return {"metadata": {**about, "annotations": dict(annotations)}, **more}


def suspension(kind: Kind, *, on: bool) -> Json:
    """The part of a patch that suspends or resumes."""
    value: Any = on
    for name in reversed(kind.suspend):
        value = {name: value}
    found: Json = value
    return found


def hold(job: Workload, *, why: str, restarts: int) -> Json:
    """Keep it from running, in the way of its kind; the restart is counted in the same breath."""
    notes = {HELD: why or "restart", RESTARTS: str(restarts), LINEAGE: job.lineage}
    if FIRST_CREATED not in job.annotations and job.about.get("creationTimestamp"):
        notes[FIRST_CREATED] = job.about["creationTimestamp"]
    return annotated(job, notes, **suspension(job.kind, on=True))


def without_pods(job: Workload) -> Json:
    """For a Job of a version that knows no `suspend` (before 1.21): no pods, and how many there were."""
    count = at(job.manifest, ("spec", "parallelism"))
    noted = job.annotations.get(PARALLELISM, "") if count == 0 else ""  # another controller was first
    return annotated(job, {PARALLELISM: noted or str(count or 1)}, spec={"parallelism": 0})


def is_suspended(job: Workload) -> bool:
    """Did it take? A field that the server does not know is dropped without a word."""
    return job.suspended or (job.kind.name == "Job" and at(job.manifest, ("spec", "parallelism")) == 0)


def resumed(job: Workload, *, restore_step: int | None) -> Json:
    """Let a job whose templates may be changed run again, off the excluded nodes."""
    manifest = copy.deepcopy(job.manifest)
    _prepare(job.kind, manifest, restarts=job.restarts, restore_step=restore_step)
    name = job.kind.replicas
    changed = {name: _replacing(job.manifest["spec"][name], manifest["spec"][name])} if name else {}
    patch = annotated(job, {HELD: None}, spec=changed)
    return _merged(patch, suspension(job.kind, on=job.queued))


def remade(job: Workload, *, restore_step: int | None) -> Json:
    """The job as it is to be made anew: same name, owner, labels and notes; without what the server gave it."""
    manifest = copy.deepcopy(job.manifest)
    about = manifest["metadata"]
    for key in _SERVERS_OWN:
        about.pop(key, None)
    notes = about.setdefault("annotations", {})
    notes[LINEAGE] = job.lineage
    notes.setdefault(FIRST_CREATED, job.about.get("creationTimestamp") or "")
    _prepare(job.kind, manifest, restarts=job.restarts, restore_step=restore_step)
    manifest.pop("status", None)
    notes.pop(HELD, None)
    kept = notes.pop(PARALLELISM, None)
    if job.kind.name == "Job":
        _without_servers_selector(manifest)
        if kept is not None:
            manifest["spec"]["parallelism"] = int(kept)
    if at(manifest, job.kind.suspend) is not None or job.queued:
        manifest = _merged(manifest, suspension(job.kind, on=job.queued))
    return manifest


def _without_servers_selector(manifest: Json) -> None:
    spec = manifest["spec"]
    if spec.get("manualSelector"):
        return
    spec.pop("selector", None)
    for labels in (manifest["metadata"].get("labels") or {}, at(spec, ("template", "metadata", "labels")) or {}):
        for key in _JOBS_OWN:
            labels.pop(key, None)


def _prepare(kind: Kind, manifest: Json, *, restarts: int, restore_step: int | None) -> None:
    """Restart count, the checkpoint to load, and the nodes to keep off, in every pod template."""
    excluded = [name for name in (manifest["metadata"].get("annotations") or {}).get(EXCLUDED, "").split(",") if name]
    variables = {
        "HOLDFAST_RESTART_COUNT": str(restarts),
        "HOLDFAST_RESTORE_STEP": None if restore_step is None else str(restore_step),
    }
    if kind.name == "TrainJob":
        _patch_runtime(manifest, excluded, variables)
        return
    for _, template in templates(kind, manifest):
        if template:
            _keep_off(template, excluded)
            for container in at(template, ("spec", "containers")) or []:
                container["env"] = _with(container.get("env") or [], variables)


def _with(entries: Sequence[Json], variables: Mapping[str, str | None]) -> list[Json]:
    kept = [entry for entry in entries if entry["name"] not in variables]
    return [*kept, *({"name": name, "value": value} for name, value in variables.items() if value is not None)]


def _patch_runtime(manifest: Json, nodes: Sequence[str], variables: Mapping[str, str | None]) -> None:
    """A TrainJob's pods are its runtime's: what is ours of them stands in a patch of the runtime, by our name."""
    spec = manifest["spec"]
    trainer = spec.setdefault("trainer", {})
    trainer["env"] = _with(trainer.get("env") or [], variables)
    others = [one for one in spec.get("runtimePatches") or [] if one.get("manager") != MANAGER]
    status = (manifest.get("status") or {}).get("jobsStatus") or []
    names = [one["name"] for one in status] or [TRAINER_JOB]
    template: Json = {"spec": {}}
    _keep_off(template, nodes)
    ours = [{"name": name, "template": {"spec": {"template": template}}} for name in names] if nodes else []
    if ours:
        spec["runtimePatches"] = [
            *others,
            {"manager": MANAGER, "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": ours}}}},
        ]
    elif others:
        spec["runtimePatches"] = others
    else:
        spec.pop("runtimePatches", None)


def _keep_off(template: Json, nodes: Iterable[str]) -> None:
    """Rule these nodes out by `matchFields`, which is ours; an owner's rules go by labels (`matchExpressions`)."""
    ours = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in nodes]
    affinity = template["spec"].setdefault("affinity", {})
    node_affinity = affinity.setdefault("nodeAffinity", {})
    required = node_affinity.setdefault("requiredDuringSchedulingIgnoredDuringExecution", {})
    terms = required.get("nodeSelectorTerms") or [{}]
    for term in terms:
        fields = [one for one in term.get("matchFields") or [] if one.get("operator") != "NotIn"]
        term.pop("matchFields", None)
        if fields or ours:
            term["matchFields"] = [*fields, *ours]
    required["nodeSelectorTerms"] = [term for term in terms if term]
    # An empty rule would match no node at all.
    if not required["nodeSelectorTerms"]:
        del node_affinity["requiredDuringSchedulingIgnoredDuringExecution"]
    if not node_affinity:
        del affinity["nodeAffinity"]
    if not affinity:
        del template["spec"]["affinity"]


def _replacing(old: Json, new: Json) -> Json:
    """`new` as a merge patch of `old`: a key that is no longer there is set to null, or it would stay."""
    found: Json = dict.fromkeys(old.keys() - new.keys())
    for key, value in new.items():
        was = old.get(key)
        found[key] = _replacing(was, value) if isinstance(value, dict) and isinstance(was, dict) else value
    return found


def _merged(base: Json, more: Json) -> Json:
    """`more` put into `base`, objects merged, everything else replaced."""
    found = dict(base)
    for key, value in more.items():
        old = found.get(key)
        found[key] = _merged(old, value) if isinstance(value, dict) and isinstance(old, dict) else value
    return found

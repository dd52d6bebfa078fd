"""Kubernetes' objects as Holdfast reads them: only the fields that it needs, and the views made of them. Pure.

`looks` decodes into these, `patches` and `client` read them. Nodes and pods are small structs, since there are many;
workloads stay plain JSON, since their shapes differ. What differs between kinds of workload stands in one table,
`KINDS`. Written for 1.20 to 1.36: a field that a version does not have is empty. Time stands still here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct

from holdfast.adapters.kubernetes.asks import HOLDFAST, Vocabulary, asked_of_node, wish_of
from holdfast.model.cluster import JobKey, JobView, NodeView, SchedulerState
from holdfast.model.machine import MachineId

Json = dict[str, Any]
S = SchedulerState
PREFIX = "[holdfast]"
"""Begins the reason of every cordon that Holdfast sets; only such are lifted again."""

HELD = f"{HOLDFAST}/held"
RESTARTS = f"{HOLDFAST}/restart-count"
EXCLUDED = f"{HOLDFAST}/excluded"
GIVEN_UP = f"{HOLDFAST}/given-up"
LINEAGE = f"{HOLDFAST}/lineage"
GENERATION = f"{HOLDFAST}/generation"
FIRST_CREATED = f"{HOLDFAST}/first-created"
PARALLELISM = f"{HOLDFAST}/parallelism"
DRAIN_REASON = f"{HOLDFAST}/drain-reason"
"""Why a node is cordoned, by whom: ours begins with `PREFIX`."""
HEALTH_SET = f"{HOLDFAST}/node-health-set"
"""The health label that we wrote: another value on the node is a person's."""
FAULT = "HoldfastFault"
"""The node's condition that is ours: `True` while we keep it out of service."""
KUEUE = "kueue.x-k8s.io/queue-name"
LIVE = frozenset({"Pending", "Running", "Unknown", ""})


class Owner(Struct, frozen=True, rename="camel"):
    """An owner reference."""

    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None


class Meta(Struct, frozen=True, rename="camel"):
    """An object's metadata, without its resourceVersion: what differs in nothing else has not changed."""

    name: str
    namespace: str = ""
    uid: str = ""
    deletion_timestamp: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[Owner] | None = None


class Condition(Struct, frozen=True, rename="camel"):
    """A condition, without the heartbeat that changes with every report."""

    type: str
    status: str = ""
    reason: str = ""
    message: str = ""


class Taint(Struct, frozen=True, rename="camel", omit_defaults=True):
    """A taint."""

    key: str
    effect: str
    value: str = ""


class NodeSpec(Struct, frozen=True, rename="camel"):
    """What is wanted of a node."""

    unschedulable: bool | None = None
    taints: list[Taint] | None = None
    provider_id: str = msgspec.field(default="", name="providerID")


class NodeInfo(Struct, frozen=True, rename="camel"):
    """Machine and boot."""

    machine_id: str = msgspec.field(default="", name="machineID")
    system_uuid: str = msgspec.field(default="", name="systemUUID")
    boot_id: str = msgspec.field(default="", name="bootID")


class NodeStatus(Struct, frozen=True, rename="camel"):
    """What a kubelet and the node controller say."""

    conditions: list[Condition] | None = None
    node_info: NodeInfo | None = None
    capacity: dict[str, str] | None = None


class Node(Struct, frozen=True, rename="camel"):
    """A node."""

    metadata: Meta
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class Terminated(Struct, frozen=True, rename="camel"):
    """How a container ended."""

    exit_code: int = 0
    signal: int | None = None
    reason: str = ""
    finished_at: str | None = None


class ContainerState(Struct, frozen=True, rename="camel"):
    """A container now."""

    terminated: Terminated | None = None


class ContainerStatus(Struct, frozen=True, rename="camel"):
    """A container."""

    name: str
    restart_count: int = 0
    state: ContainerState | None = None
    last_state: ContainerState | None = None


class PodSpec(Struct, frozen=True, rename="camel"):
    """Where it was bound."""

    node_name: str = ""
    priority: int | None = None


class PodStatus(Struct, frozen=True, rename="camel"):
    """What became of it."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    start_time: str | None = None
    conditions: list[Condition] | None = None
    container_statuses: list[ContainerStatus] | None = None


class Pod(Struct, frozen=True, rename="camel"):
    """A pod."""

    metadata: Meta
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def live(self) -> bool:
        """Something of it runs, or will."""
        return self.status.phase in LIVE

    @property
    def owner(self) -> Owner | None:
        """Its controller."""
        owners = self.metadata.owner_references or []
        return next((owner for owner in owners if owner.controller), owners[0] if owners else None)


class Kind(Struct, frozen=True, kw_only=True):
    """A kind of workload."""

    name: str
    group: str
    versions: tuple[str, ...]
    """Known ones, the best first; discovery says which are served."""
    plural: str
    replicas: str = ""
    """Field of `spec` that maps replica types to their specs (Kubeflow)."""
    suspend: tuple[str, ...] = ("spec", "suspend")
    mutable: bool = False
    """Its pod templates may be changed; pods made afterwards are made of them."""

    def path(self, version: str, namespace: str = "", name: str = "") -> str:
        """Its collection, in one namespace or in all, or one object of it."""
        where = f"/namespaces/{namespace}" if namespace else ""
        return f"/apis/{self.group}/{version}{where}/{self.plural}{'/' if name else ''}{name}"


def _kubeflow(name: str, plural: str, replicas: str, versions: tuple[str, ...] = ("v1",)) -> Kind:
    return Kind(
        name=name,
        group="kubeflow.org",
        versions=versions,
        plural=plural,
        replicas=replicas,
        suspend=("spec", "runPolicy", "suspend"),
        mutable=True,
    )


KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind(name="Job", group="batch", versions=("v1",), plural="jobs"),
        _kubeflow("PyTorchJob", "pytorchjobs", "pytorchReplicaSpecs"),
        _kubeflow("MPIJob", "mpijobs", "mpiReplicaSpecs", ("v1", "v2beta1")),
        _kubeflow("JAXJob", "jaxjobs", "jaxReplicaSpecs"),
        _kubeflow("TFJob", "tfjobs", "tfReplicaSpecs"),
        _kubeflow("XGBoostJob", "xgboostjobs", "xgbReplicaSpecs"),
        _kubeflow("PaddleJob", "paddlejobs", "paddleReplicaSpecs"),
        Kind(name="JobSet", group="jobset.x-k8s.io", versions=("v1alpha2", "v1alpha1"), plural="jobsets"),
        Kind(name="TrainJob", group="trainer.kubeflow.org", versions=("v1alpha1",), plural="trainjobs"),
    )
}


def seconds(text: str | None) -> float:
    """A timestamp of the API as Unix seconds; 0.0 for none."""
    if not text:
        return 0.0
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0.0


# --- workloads ---


class Workload(Struct, kw_only=True, frozen=True):
    """A training job of whatever kind. `put_away`: only its manifest is kept, while it is held or made anew."""

    kind: Kind
    version: str
    manifest: Json
    put_away: bool = False

    @property
    def about(self) -> Json:
        """Its metadata."""
        found: Json = self.manifest["metadata"]
        return found

    @property
    def uid(self) -> str:
        """The object's."""
        return str(self.about.get("uid", ""))

    @property
    def namespace(self) -> str:
        """Its own."""
        return str(self.about.get("namespace", "default"))

    @property
    def name(self) -> str:
        """Its own."""
        return str(self.about["name"])

    @property
    def id(self) -> str:
        """How Holdfast calls it: namespace, kind, name."""
        return job_id(self.kind.name, self.namespace, self.name)

    @property
    def path(self) -> str:
        """Where the API has it."""
        return self.kind.path(self.version, self.namespace, self.name)

    @property
    def annotations(self) -> dict[str, str]:
        """Its own."""
        return self.about.get("annotations") or {}

    @property
    def lineage(self) -> str:
        """What stays when it is made anew under its name: the first object's uid."""
        return self.annotations.get(LINEAGE) or self.uid

    @property
    def restarts(self) -> int:
        """How often we restarted it."""
        return count_of(self.annotations.get(RESTARTS))

    @property
    def held(self) -> bool:
        """We keep it from running."""
        return self.put_away or HELD in self.annotations

    @property
    def suspended(self) -> bool:
        """Somebody keeps it from running."""
        return bool(at(self.manifest, self.kind.suspend))

    @property
    def queued(self) -> bool:
        """Kueue decides when it runs."""
        return KUEUE in (self.about.get("labels") or {})


def job_id(kind: str, namespace: str, name: str) -> str:
    """`default.pytorchjob.llama`: a namespace and a kind hold no dot, so it is one job's alone."""
    return f"{namespace}.{kind.lower()}.{name}"


def count_of(text: str | None) -> int:
    """A count in an annotation; 0 when it is none."""
    return int(text) if text is not None and text.isdecimal() else 0


def at(manifest: Json, path: Sequence[str]) -> Any:
    """The value at this path; None when something on the way is missing."""
    found: Any = manifest
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    return found


def templates(kind: Kind, manifest: Json) -> Iterator[tuple[int, Json]]:
    """Each pod template with the number of pods made of it."""
    spec = manifest.get("spec") or {}
    if kind.replicas:
        for replica in (spec.get(kind.replicas) or {}).values():
            yield int(replica.get("replicas", 1)), replica.setdefault("template", {})
    elif kind.name == "JobSet":
        for part in spec.get("replicatedJobs") or []:
            inner = (part.get("template") or {}).get("spec") or {}
            yield int(part.get("replicas", 1)) * int(inner.get("parallelism", 1)), inner.setdefault("template", {})
    elif kind.name == "Job":
        kept = (manifest["metadata"].get("annotations") or {}).get(PARALLELISM)
        wanted = spec.get("parallelism", 1) if kept is None else count_of(kept)
        yield int(wanted if wanted is not None else 1), spec.setdefault("template", {})
    elif kind.name == "TrainJob":
        yield int((spec.get("trainer") or {}).get("numNodes", 1)), {}


def own_exclusions(template: Json) -> list[str]:
    """Nodes that the owner's own affinity rules out by host name."""
    found: list[str] = []
    for term in _terms(template):
        for wish in term.get("matchExpressions") or []:
            if wish.get("key") == "kubernetes.io/hostname" and wish.get("operator") == "NotIn":
                found += wish.get("values") or []
    return found


def _terms(template: Json) -> list[Json]:
    path = ("spec", "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")
    found: list[Json] = at(template, path) or []
    return found


def ended(manifest: Json) -> tuple[SchedulerState | None, str]:
    """The state that its conditions say it ended in, and their words; None while it has not ended."""
    for one in (manifest.get("status") or {}).get("conditions") or []:
        if one.get("status") != "True":
            continue
        words = ": ".join(filter(None, (one.get("reason", ""), one.get("message", ""))))
        if one["type"] in {"Complete", "Completed", "Succeeded"}:
            return S.COMPLETED, words
        if one["type"] == "Failed":
            return (S.TIMEOUT if one.get("reason") == "DeadlineExceeded" else S.FAILED), words
    return None, ""


def job_view(job: Workload, pods: Sequence[Pod], key: JobKey, *, begun: bool) -> JobView:
    """The job, for the engine. `begun`: all its pods have been seen running since it was last held."""
    wish = wish_of(job.annotations)
    made = list(templates(job.kind, job.manifest))
    live = [pod for pod in pods if pod.live]
    state, words = _state(job, live, want=sum(count for count, _ in made), begun=begun)
    over = state in {S.COMPLETED, S.FAILED, S.TIMEOUT, S.NODE_FAIL, S.PREEMPTED, S.CANCELLED}
    if state is S.FAILED:
        state = _blame(pods) or state
    worst = _worst(pods) if over else None
    bound = [pod for pod in (pods if over else live) if pod.spec.node_name]
    excluded = [name for name in job.annotations.get(EXCLUDED, "").split(",") if name]
    for _, template in made:
        excluded += own_exclusions(template)
    first = job.annotations.get(FIRST_CREATED) or job.about.get("creationTimestamp")
    started = [seconds(pod.status.start_time) for pod in bound if pod.status.start_time]
    runs = state in {S.RUNNING, S.COMPLETING} or over
    conditions = [one for pod in pods for one in pod.status.conditions or []]
    return JobView(
        key=key,
        name=job.name,
        user=job.namespace,
        project=job.namespace,
        partition=job.namespace,
        state=state,
        restart_count=job.restarts,
        nodes=tuple(dict.fromkeys(pod.spec.node_name for pod in bound)) if runs else (),
        excluded=tuple(dict.fromkeys(excluded)),
        want_nodes=sum(count for count, _ in made) or 1,
        exit_code=worst.exit_code if worst is not None else (0 if state is S.COMPLETED else None),
        signal=worst.signal if worst is not None else None,
        reason="; ".join(filter(None, (words, *_reasons(pods)))),
        lacks_nodes=state is S.PENDING and any(map(_unschedulable, conditions)),
        recovery=wish.recovery,
        drill_ok=wish.drill_ok,
        job_dir=wish.job_dir,
        submitted_at=seconds(first),
        started_at=min(started, default=0.0) if runs else 0.0,
        ended_at=seconds((job.manifest.get("status") or {}).get("completionTime")) if over else 0.0,
        warnings=wish.warnings,
    )


def _state(job: Workload, live: Sequence[Pod], *, want: int, begun: bool) -> tuple[SchedulerState, str]:
    if GIVEN_UP in job.annotations:
        return (S.COMPLETING if live else S.CANCELLED), job.annotations[GIVEN_UP]
    if job.held:
        return (S.COMPLETING if live else S.HELD), job.annotations.get(HELD, "")
    if job.about.get("deletionTimestamp"):
        return (S.COMPLETING if live else S.CANCELLED), "it is being deleted"
    state, words = ended(job.manifest)
    if state is not None:
        return (S.COMPLETING if live and state is not S.COMPLETED else state), words
    if job.suspended:
        if live:
            return S.COMPLETING, "suspended"
        return (S.PENDING, "waits in its queue") if job.queued else (S.HELD, "suspended by a person")
    running = sum(1 for pod in live if pod.status.phase == "Running" and pod.metadata.deletion_timestamp is None)
    return (S.RUNNING if running >= max(1, want) or (begun and running) else S.PENDING), ""


def _blame(pods: Sequence[Pod]) -> SchedulerState | None:
    """A failure that was not the program's own."""
    for pod in pods:
        conditions = {one.type: one for one in pod.status.conditions or [] if one.status == "True"}
        disrupted = conditions.get("DisruptionTarget")
        reason = pod.status.reason or (disrupted.reason if disrupted is not None else "")
        if reason in {"NodeLost", "NodeShutdown", "Shutdown", "DeletionByPodGC", "DeletionByTaintManager"}:
            return S.NODE_FAIL
        if reason in {"Preempting", "PreemptionByScheduler", "PreemptionByKubeScheduler"}:
            return S.PREEMPTED
    return None


def _worst(pods: Sequence[Pod]) -> Terminated | None:
    bad = [end for pod in pods for end in ends(pod) if end.exit_code != 0]
    # 143 is how the others end when they are told to; the one that began it ended otherwise.
    return next((end for end in bad if end.exit_code not in {143, 137}), bad[0] if bad else None)


def ends(pod: Pod) -> Iterator[Terminated]:
    """How its containers ended, of those that have."""
    for container in pod.status.container_statuses or []:
        if container.state is not None and container.state.terminated is not None:
            yield container.state.terminated


def _reasons(pods: Sequence[Pod]) -> list[str]:
    """What is known of pods that do not do well, a line each, at most three."""
    found: list[str] = []
    for pod in pods:
        said = [pod.status.reason] if pod.status.reason and pod.status.phase == "Failed" else []
        said += [f"{end.reason} ({end.exit_code})" for end in ends(pod) if end.reason not in {"Completed", "Error", ""}]
        for one in pod.status.conditions or []:
            if _unschedulable(one):
                said.append(f"FailedScheduling: {one.message}")
            if one.type == "DisruptionTarget" and one.status == "True":
                said.append(one.reason)
        said += _started_again(pod)
        if said:
            found.append(f"{pod.metadata.name}: {', '.join(dict.fromkeys(said))}"[:300])
    return found[:3]


def _unschedulable(condition: Condition) -> bool:
    """Has no node room for the pod?"""
    return condition.type == "PodScheduled" and condition.status == "False" and condition.reason == "Unschedulable"


def _started_again(pod: Pod) -> Iterator[str]:
    """What a kubelet does by itself where `restartPolicy` has it (OnFailure): the pod only looks as if it ran."""
    for container in pod.status.container_statuses or []:
        last = container.last_state.terminated if container.last_state is not None else None
        if pod.live and container.restart_count and last is not None:
            how = f"{last.reason or 'its end'} ({last.exit_code})"
            yield f"{container.name} was started again by its kubelet {container.restart_count} times, last after {how}"


# --- nodes ---

GONE_TAINTS = frozenset({"node.cloudprovider.kubernetes.io/shutdown", "node.kubernetes.io/out-of-service"})
"""What says that a machine does not run: the provider's word, or a person's."""


def alive_of(node: Node) -> bool | None:
    """Does it run? A silent kubelet says nothing about that."""
    if any(taint.key in GONE_TAINTS for taint in node.spec.taints or []):
        return False
    ready = next((one for one in node.status.conditions or [] if one.type == "Ready"), None)
    return True if ready is not None and ready.status in {"True", "False"} else None


def drain_reason(node: Node) -> str:
    """Why it is cordoned; empty when it is not."""
    if not node.spec.unschedulable:
        return ""
    return (node.metadata.annotations or {}).get(DRAIN_REASON) or "cordoned"


def is_ours(node: Node) -> bool:
    """Did we cordon it?"""
    return drain_reason(node).startswith(PREFIX)


ACCELERATORS = ("nvidia.com/", "amd.com/", "gpu.intel.com/", "habana.ai/", "aws.amazon.com/neuron", "google.com/tpu")
"""How resources begin that a node to train on has."""


def is_unmarked(node: Node, words: Vocabulary) -> bool:
    """Well as far as is known, to train on, and without a word about its health, which nobody took away either."""
    about = node.metadata
    if words.health in (about.labels or {}) or HEALTH_SET in (about.annotations or {}) or node.spec.unschedulable:
        return False
    ready = any(one.type == "Ready" and one.status == "True" for one in node.status.conditions or [])
    trains = any(key.startswith(ACCELERATORS) and count != "0" for key, count in (node.status.capacity or {}).items())
    return ready and trains and alive_of(node) is True


def machine_of(node: Node) -> MachineId:
    """Names the machine itself."""
    info = node.status.node_info or NodeInfo()
    return MachineId(node.spec.provider_id or info.system_uuid or info.machine_id or node.metadata.uid, "k8s")


def boot_of(node: Node) -> str:
    """Names the boot; empty before its kubelet has said so."""
    info = node.status.node_info
    return f"k8s:{info.boot_id}" if info is not None and info.boot_id else ""


def node_view(node: Node, *, jobs: Iterable[str], words: Vocabulary, topology: str = "") -> NodeView:
    """The node, for the engine."""
    labels = node.metadata.labels or {}
    asked, warnings = asked_of_node(labels, node.metadata.annotations or {}, words, set_by_us=HEALTH_SET)
    ready = next((one for one in node.status.conditions or [] if one.type == "Ready"), None)
    state = "no word yet" if ready is None else {"True": "Ready", "False": "NotReady"}.get(ready.status, "Unknown")
    return NodeView(
        name=node.metadata.name,
        group=labels.get(f"{HOLDFAST}/group") or labels.get("node.kubernetes.io/instance-type", ""),
        alive=alive_of(node),
        drained=bool(node.spec.unschedulable),
        drain_reason=drain_reason(node),
        boot_id=boot_of(node),
        instance_id=str(machine_of(node)),
        jobs=tuple(sorted(jobs)),
        spare=labels.get(f"{HOLDFAST}/spare") == "true",
        gpus=count_of((node.status.capacity or {}).get("nvidia.com/gpu")),
        topology=topology or _topology(labels),
        state_text=f"{state}{', SchedulingDisabled' if node.spec.unschedulable else ''}",
        asked=asked,
        moves_jobs=bool(asked),
        warnings=warnings,
    )


def _topology(labels: Mapping[str, str]) -> str:
    names = ("topology.kubernetes.io/zone", "topology.kubernetes.io/rack", "topology.k8s.aws/network-node-layer-3")
    return "/".join(filter(None, (labels.get(name, "") for name in names)))

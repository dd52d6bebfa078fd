"""What a kubelet makes of a pod: the command line and environment of a container, and the pod's status. Pure.

`kube_kubelet` calls this. Images, mounts (but for tokens, `kube_token`) and probes are left out: a container is its
command, run on this machine.
Times come in as text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from holdfast.errors import UsageError

Json = dict[str, Any]
ADDRESS = "127.0.0.1"
_FIELD = re.compile(r"^metadata\.(labels|annotations)\['([^']+)'\]$")
_NAMED = re.compile(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)")


class Run(Struct, kw_only=True):
    """One container of a pod on its node."""

    name: str
    task: str = ""
    """Id of the task that runs it now; empty: none has been started, or it has ended."""
    restarts: int = 0
    started: str = ""
    ended: str = ""
    code: int | None = None
    signal: int | None = None
    waits: str = ""
    """Why it does not run: `ContainerCreating`, `CrashLoopBackOff`, `CreateContainerError`."""
    words: str = ""
    last: Json | None = None
    """How the run before ended."""

    @property
    def over(self) -> bool:
        """It has ended, and none of it runs."""
        return self.code is not None or self.signal is not None


def field(pod: Json, path: str) -> str:
    """The downward API: one field of the pod as text. Raises UsageError for one that there is not."""
    about = pod["metadata"]
    named = _FIELD.match(path)
    if named is not None:
        return str((about.get(named[1]) or {}).get(named[2], ""))
    plain = {
        "metadata.name": about["name"],
        "metadata.namespace": about["namespace"],
        "metadata.uid": about["uid"],
        "spec.nodeName": pod["spec"].get("nodeName", ""),
        "spec.serviceAccountName": pod["spec"].get("serviceAccountName", ""),
        "status.podIP": ADDRESS,
        "status.podIPs": ADDRESS,
        "status.hostIP": ADDRESS,
    }
    if path not in plain:
        raise UsageError(f"fieldRef {path} is not known to this kubelet")
    return str(plain[path])


def environment(pod: Json, container: Json) -> dict[str, str]:
    """The container's variables in order; `$(NAME)` in a value means one that stands before it."""
    found: dict[str, str] = {"HOSTNAME": pod["metadata"]["name"]}
    for entry in container.get("env") or []:
        source = entry.get("valueFrom") or {}
        if "fieldRef" in source:
            found[entry["name"]] = field(pod, source["fieldRef"]["fieldPath"])
        elif source and not any(part.get("optional") for part in source.values() if isinstance(part, dict)):
            raise UsageError(f"env {entry['name']}: {', '.join(source)} is not known to this kubelet")
        else:
            found[entry["name"]] = expand(entry.get("value", ""), found)
    return found


def expand(text: str, variables: Mapping[str, str]) -> str:
    """`$(NAME)` replaced by the variable; an unknown one stays as it is, `$$` is one dollar."""

    def put(hit: re.Match[str]) -> str:
        return "$" if hit[0] == "$$" else variables.get(hit[1], hit[0])

    return _NAMED.sub(put, text)


def command(container: Json, variables: Mapping[str, str]) -> list[str]:
    """The command line. Raises UsageError when there is none: this kubelet has no image to take it from."""
    words = [*(container.get("command") or []), *(container.get("args") or [])]
    if not container.get("command"):
        raise UsageError(f"container {container['name']} names no command, and there is no image here to have one")
    return [expand(word, variables) for word in words]


def grace_of(pod: Json) -> float:
    """Seconds between SIGTERM and SIGKILL: as its deletion asked, else as its spec says."""
    asked = pod["metadata"].get("deletionGracePeriodSeconds")
    return float(asked if asked is not None else pod["spec"].get("terminationGracePeriodSeconds", 30))


def again(pod: Json, run: Run) -> bool:
    """Does the kubelet start this container once more?"""
    policy = pod["spec"].get("restartPolicy", "Always")
    return policy == "Always" or (policy == "OnFailure" and (run.code != 0 or run.signal is not None))


def status(pod: Json, runs: list[Run], *, started: str, lost: str = "") -> Json:
    """The pod's status as a merge patch. `lost`: why its node no longer has it."""
    phase = phase_of(pod, runs, lost=lost)
    ready = phase == "Running" and all(run.task and not run.over for run in runs)
    conditions = [
        {"type": kind, "status": "True" if true else "False", "lastTransitionTime": started}
        for kind, true in (("Initialized", True), ("Ready", ready), ("ContainersReady", ready), ("PodScheduled", True))
    ]
    body: Json = {
        "phase": phase,
        "startTime": started,
        "hostIP": ADDRESS,
        "podIP": ADDRESS,
        "podIPs": [{"ip": ADDRESS}],
        "conditions": conditions,
        "containerStatuses": [_container(pod, run) for run in runs],
    }
    if lost:
        body |= {"reason": "NodeLost" if "gone" in lost else "Error", "message": lost}
    return {"status": body}


def phase_of(pod: Json, runs: list[Run], *, lost: str = "") -> str:
    """Pending, Running, Succeeded or Failed."""
    if lost:
        return "Failed"
    if all(run.over and not again(pod, run) for run in runs) and runs:
        return "Succeeded" if all(run.code == 0 and run.signal is None for run in runs) else "Failed"
    return "Running" if any(run.started for run in runs) else "Pending"


def _container(pod: Json, run: Run) -> Json:
    image = next((c.get("image", "") for c in pod["spec"]["containers"] if c["name"] == run.name), "")
    state: Json
    if run.waits:
        state = {"waiting": {"reason": run.waits, "message": run.words}, "running": None, "terminated": None}
    elif run.over:
        state = {"terminated": terminated(run), "running": None, "waiting": None}
    else:
        state = {"running": {"startedAt": run.started}, "waiting": None, "terminated": None}
    found: Json = {
        "name": run.name,
        "image": image,
        "imageID": "",
        "ready": bool(run.task) and not run.over,
        "started": bool(run.task) and not run.over,
        "restartCount": run.restarts,
        "state": {kind: value for kind, value in state.items() if value is not None},
    }
    if run.last is not None:
        found["lastState"] = {"terminated": run.last}
    if run.task or run.over:
        found["containerID"] = f"process://{pod['metadata']['uid']}.{run.name}.{run.restarts}"
    return found


def terminated(run: Run) -> Json:
    """How it ended: a signal counts as 128 more, as a shell has it."""
    code = run.code if run.code is not None else 128 + (run.signal or 0)
    reason = "Completed" if code == 0 else "Error"
    found: Json = {"exitCode": code, "reason": reason, "startedAt": run.started or run.ended, "finishedAt": run.ended}
    if run.signal:
        found["signal"] = run.signal
    return found

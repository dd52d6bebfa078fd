"""The training job of a drill as each scheduler takes it: a batch script, or a PyTorchJob, as a user would write it.

Called by the stages that bring a cluster up and by `site`, which uses one that runs already. Pure; no time passes.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from holdfast.adapters.kubernetes.asks import HOLDFAST
from holdfast.adapters.kubernetes.reviews import AUDIENCE
from holdfast.drill.training import TrainingJob
from holdfast.launch.pods import TOKEN_FILE
from holdfast.model.cluster import JobKey, RecoverySpec

IN_EVERY_JOB = {"HOLDFAST_DRILL_OK": "1", "OMP_NUM_THREADS": "1"}


def comment(recovery: RecoverySpec | None) -> str:
    """The comment of a job on Slurm: it asks for recovery, and is open to drills."""
    asked: dict[str, object] = {"drill_ok": True}
    if recovery is not None:
        asked |= {"enabled": True} | msgspec.to_builtins(recovery)
    return json.dumps({"holdfast": asked})


def batch_script(
    words: Sequence[str], *, folder: str, exports: Mapping[str, str] | None = None, srun: Sequence[str] = ()
) -> str:
    """The batch script.

    Args:
        words: what runs on every node; one that holds `$SLURM_JOB_ID` is filled in by the shell.
        folder: holds the jobs' folders, on a file system that all nodes share.
        exports: environment of the job.
        srun: further options of its one step.
    """
    said = " ".join(f'"{word}"' if "$SLURM_JOB_ID" in word else shlex.quote(word) for word in words)
    values = IN_EVERY_JOB | {"PYTHONUNBUFFERED": "1"} | dict(exports or {})
    lines = ["#!/bin/bash", *(f"export {name}={shlex.quote(value)}" for name, value in values.items())]
    lines += [f"export HOLDFAST_JOB_DIR={shlex.quote(folder)}/$SLURM_JOB_ID"]
    lines += ['mkdir -p "$HOLDFAST_JOB_DIR" && cd "$HOLDFAST_JOB_DIR" || exit 1']
    lines += [f"srun --kill-on-bad-exit=1 {shlex.join(srun) + ' ' if srun else ''}{said}"]
    return "\n".join(lines) + "\n"


def asked_for(recovery: RecoverySpec | None) -> dict[str, str]:
    """The annotations of a job on Kubernetes: it asks for recovery, and is open to drills."""
    names = {"enabled": "auto-resume", "max_requeues": "max-restarts", "max_in_place": "max-in-place"}
    found = {"auto-resume": "true", "drill-ok": "true"}
    for name, value in msgspec.to_builtins(recovery or RecoverySpec()).items():
        found[names.get(name, name)] = value if isinstance(value, str) else json.dumps(value)
    return {f"{HOLDFAST}/{name}": value for name, value in found.items()}


def container(words: Sequence[str], *, folder: str, image: str, gpus: int, env: Mapping[str, str]) -> dict[str, Any]:
    """The one container of a pod of the job. `folder`: the job's, on a volume that its pods share."""
    fields = {"HOLDFAST_NODE": "spec.nodeName", "HOLDFAST_NODE_ADDRESS": "status.podIP"}
    values = IN_EVERY_JOB | {"HOLDFAST_JOB_DIR": folder, "HOLDFAST_TOKEN_FILE": str(TOKEN_FILE)} | dict(env)
    named: list[dict[str, Any]] = [{"name": name, "value": value} for name, value in values.items()]
    named += [{"name": n, "valueFrom": {"fieldRef": {"fieldPath": path}}} for n, path in fields.items()]
    return {
        "name": "pytorch",
        "image": image,
        "command": list(words),
        "workingDir": folder,
        "env": named,
        "resources": {"limits": {"nvidia.com/gpu": str(gpus)}} if gpus else {},
        "volumeMounts": [{"name": "holdfast", "mountPath": str(TOKEN_FILE.parent), "readOnly": True}],
    }


def pytorch_job(
    job: TrainingJob,
    key: JobKey,
    pytorch: dict[str, Any],
    *,
    folder: str,
    claim: tuple[str, str] = ("", ""),
) -> dict[str, Any]:
    """The PyTorchJob.

    Args:
        job: its name, its nodes, the recovery that it asks for.
        key: as the controller knows it.
        pytorch: the container of each pod.
        folder: the job's.
        claim: a PersistentVolumeClaim and where it is mounted; empty: none.
    """
    token = {"serviceAccountToken": {"path": TOKEN_FILE.name, "audience": AUDIENCE, "expirationSeconds": 3600}}
    volumes: list[dict[str, Any]] = [{"name": "holdfast", "projected": {"sources": [token]}}]
    where = [{"name": "HOLDFAST_JOB_ID", "value": key.id}, {"name": "HOLDFAST_CLUSTER", "value": key.cluster}]
    where.append({"name": "HOLDFAST_JOB_NAME", "value": job.name})
    one = pytorch | {"env": [*where, *pytorch["env"]]}
    if claim[0]:
        volumes.append({"name": "jobs", "persistentVolumeClaim": {"claimName": claim[0]}})
        one["volumeMounts"] = [*one["volumeMounts"], {"name": "jobs", "mountPath": claim[1]}]
    pod = {"spec": {"containers": [one], "terminationGracePeriodSeconds": 5, "volumes": volumes}}
    replicas: dict[str, Any] = {"Master": {"replicas": 1, "restartPolicy": "Never", "template": pod}}
    if job.nodes > 1:
        replicas["Worker"] = {"replicas": job.nodes - 1, "restartPolicy": "Never", "template": pod}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": job.name, "annotations": {**asked_for(job.recovery), f"{HOLDFAST}/job-dir": folder}},
        "spec": {"pytorchReplicaSpecs": replicas},
    }

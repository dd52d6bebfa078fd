"""Where this launcher is: job, node, allocation. Read once from the environment of the scheduler that started it.

`HOLDFAST_*` (embedded cluster, a pod, or by hand) comes before `SLURM_*`; without either it is one machine on its own.
In a pod of several the nodes of the others are learnt through the job's folder, see `pods`.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct, structs

from holdfast.errors import UsageError
from holdfast.launch.pods import number, peers
from holdfast.model.cluster import JobKey


class JobPlace(Struct, frozen=True, kw_only=True):
    """The job's key and folder, and this launcher's part in its allocation."""

    job: JobKey
    job_dir: Path
    node: str
    node_rank: int = 0
    nodes: tuple[str, ...]
    node_dir: Path | None = None
    address: str = "127.0.0.1"
    restart_count: int = 0
    restore_step: int | None = None
    name: str = ""
    user: str = ""
    partition: str = ""
    drill_ok: bool = False

    @property
    def is_leader(self) -> bool:
        """Node rank 0."""
        return self.node_rank == 0

    @property
    def source(self) -> str:
        """Name of this job's launcher in events."""
        return f"launcher:{self.job}"

    def logs(self, attempt: int) -> Path:
        """Folder of an attempt's logs."""
        return self.job_dir / "logs" / f"attempt-{attempt}"


def read_place(environ: Mapping[str, str], *, job_dir: str, nnodes: int) -> JobPlace:
    """Find out where we are.

    Args:
        environ: the launcher's environment.
        job_dir: `--job-dir`, empty when not given.
        nnodes: `--nnodes`, 0 when not given.

    Raises:
        UsageError: the environment contradicts itself or `--nnodes`.
    """
    if environ.get("HOLDFAST_JOB_ID"):
        place = _from_holdfast(environ, job_dir)
    elif environ.get("SLURM_JOB_ID"):
        place = _from_slurm(environ, job_dir)
    else:
        place = _alone(environ, job_dir)
    place = _completed(environ, place)
    if nnodes > len(place.nodes):
        raise UsageError(f"--nnodes {nnodes}: this allocation has {len(place.nodes)} ({','.join(place.nodes)})")
    if not 0 <= place.node_rank < len(place.nodes):
        raise UsageError(f"node rank {place.node_rank} is outside the allocation of {len(place.nodes)} nodes")
    return place


def _number(environ: Mapping[str, str], key: str, default: int) -> int:
    text = environ.get(key, "").strip()
    if not text:
        return default
    if not text.lstrip("-").isdecimal():
        raise UsageError(f"{key}={text!r} must be a whole number")
    return int(text)


def _completed(environ: Mapping[str, str], place: JobPlace) -> JobPlace:
    """With what does not depend on the scheduler."""
    node_dir = environ.get("HOLDFAST_NODE_DIR", "")
    has_limit = bool(environ.get("HOLDFAST_RESTORE_STEP", "").strip())
    return structs.replace(
        place,
        node_dir=Path(node_dir) if node_dir else None,
        restore_step=_number(environ, "HOLDFAST_RESTORE_STEP", 0) if has_limit else None,
        user=environ.get("USER", "") or environ.get("LOGNAME", ""),
        drill_ok=environ.get("HOLDFAST_DRILL_OK", "") == "1",
    )


def _from_holdfast(environ: Mapping[str, str], job_dir: str) -> JobPlace:
    node = environ.get("HOLDFAST_NODE") or socket.gethostname()
    folder = job_dir or environ.get("HOLDFAST_JOB_DIR") or f"holdfast-run-{environ['HOLDFAST_JOB_ID']}"
    restarts = _number(environ, "HOLDFAST_RESTART_COUNT", 0)
    nodes = tuple(part for part in environ.get("HOLDFAST_NODELIST", "").split(",") if part)
    pods = None if nodes else peers(environ, Path(folder).absolute(), node=node, restart=restarts)
    nodes = (pods[1] if pods is not None else nodes) or (node,)
    rank = pods[0] if pods is not None else _number(environ, "HOLDFAST_NODE_RANK", _index(nodes, node))
    key = JobKey(
        cluster=environ.get("HOLDFAST_CLUSTER", "local"),
        id=environ["HOLDFAST_JOB_ID"],
        generation=_number(environ, "HOLDFAST_GENERATION", 1),
    )
    return JobPlace(
        job=key,
        job_dir=Path(folder).absolute(),
        node=node,
        node_rank=rank,
        nodes=nodes,
        address=environ.get("HOLDFAST_NODE_ADDRESS", "127.0.0.1"),
        restart_count=restarts,
        name=environ.get("HOLDFAST_JOB_NAME", ""),
        partition=environ.get("HOLDFAST_PARTITION", ""),
    )


def _index(nodes: tuple[str, ...], node: str) -> int:
    return nodes.index(node) if node in nodes else 0


def _from_slurm(environ: Mapping[str, str], job_dir: str) -> JobPlace:
    """Inside an allocation: under `srun` one launcher per node, in the bare batch script one on the batch host."""
    from ClusterShell.NodeSet import NodeSet  # noqa: PLC0415 - only Slurm folds its lists of nodes

    listed = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST") or ""
    nodes = tuple(NodeSet(listed)) if listed else ()
    in_step = environ.get("SLURM_STEP_ID", "").isdecimal() and "SLURM_NODEID" in environ
    if not in_step or not nodes:
        # The batch script's own shell: srun was not used, so there is this node alone.
        nodes, rank = (slurm_node(environ),), 0
    else:
        rank = _number(environ, "SLURM_NODEID", 0)
    submit = environ.get("SLURM_SUBMIT_DIR", ".")
    folder = job_dir or environ.get("HOLDFAST_JOB_DIR") or f"{submit}/holdfast-run-{environ['SLURM_JOB_ID']}"
    address = environ.get("HOLDFAST_NODE_ADDRESS") or ("127.0.0.1" if len(nodes) == 1 else slurm_node(environ))
    return slurm_place(environ, Path(folder).absolute(), nodes, rank=rank, address=address)


def slurm_node(environ: Mapping[str, str]) -> str:
    """This node, as Slurm calls it."""
    return environ.get("SLURMD_NODENAME") or socket.gethostname().partition(".")[0]


def slurm_place(
    environ: Mapping[str, str], folder: Path, nodes: tuple[str, ...], *, address: str, rank: int = 0
) -> JobPlace:
    """A place in an allocation of Slurm's. Raises UsageError."""
    return JobPlace(
        job=JobKey(
            cluster=environ.get("SLURM_CLUSTER_NAME", "slurm"),
            id=environ["SLURM_JOB_ID"],
            generation=_number(environ, "HOLDFAST_GENERATION", 1),
        ),
        job_dir=folder,
        node=slurm_node(environ),
        node_rank=rank,
        nodes=nodes,
        address=address,
        restart_count=_number(environ, "SLURM_RESTART_COUNT", 0),
        name=environ.get("SLURM_JOB_NAME", ""),
        user=environ.get("USER", "") or environ.get("LOGNAME", ""),
        partition=environ.get("SLURM_JOB_PARTITION", ""),
    )


def _alone(environ: Mapping[str, str], job_dir: str) -> JobPlace:
    _refuse_part_of_a_job(environ)
    given = job_dir or environ.get("HOLDFAST_JOB_DIR", "")
    started = time.strftime("%Y%m%d-%H%M%S")
    # A folder that is given again goes on with the same job: its attempts and epochs continue.
    job_id = Path(given).absolute().name if given else f"{started}-{secrets.token_hex(2)}"
    node = environ.get("HOLDFAST_NODE") or socket.gethostname().partition(".")[0]
    return JobPlace(
        job=JobKey(cluster=environ.get("HOLDFAST_CLUSTER", "here"), id=job_id),
        job_dir=Path(given or f"holdfast-run-{job_id}").absolute(),
        node=node,
        nodes=(node,),
        restart_count=_number(environ, "HOLDFAST_RESTART_COUNT", 0),
    )


def _refuse_part_of_a_job(environ: Mapping[str, str]) -> None:
    """One of several pods that cannot know its job would train alone, and so would each of the others."""
    for count, rank in (("HOLDFAST_NNODES", ""), ("PET_NNODES", "PET_NODE_RANK")):
        nodes = number(environ, (count,))
        if nodes is not None and nodes > 1 and (not rank or environ.get(rank)):
            raise UsageError(
                f"{count}={nodes}, but HOLDFAST_JOB_ID is not set: give all {nodes} launchers the same HOLDFAST_JOB_ID "
                f"and HOLDFAST_JOB_DIR, and each its own {rank or 'HOLDFAST_NODE_RANK'}; to run on this node alone, "
                f"unset {count}"
            )


def telemetry_root(place: JobPlace, token: str) -> tuple[Path, bool]:
    """Folder for this node's slots, and whether it is ours to delete at the end.

    In the embedded cluster the node's own folder; elsewhere memory (/dev/shm), because slots are mapped and written at
    every step and the job's folder is often on a network file system.
    """
    if place.node_dir is not None:
        return place.node_dir / "telemetry" / place.job.id, False
    shm = Path("/dev/shm")  # noqa: S108 - the folder below is private to this user
    if shm.is_dir() and os.access(shm, os.W_OK):
        return shm / f"holdfast-{os.getuid()}-{place.job.id}-{place.node}-{token}", True
    return place.job_dir / "telemetry" / place.node, False

"""What a launcher in a pod finds out by itself: which nodes the job's pods are on, and the way to the controller.

Kubernetes tells a pod of its own node only, so the pods tell each other. `place` calls `peers` inside a pod that knows
its rank and how many there are, but not the others. Each writes its node's
name into the job's folder, which all share, below the restart that it belongs to, and waits until all have. A pod that
is started again finds the others' names there at once. Time passes while pods are scheduled: up to half an hour, as
long as the field has its rendezvous wait while nodes are replaced.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path

from holdfast.errors import LinkError, UsageError
from holdfast.os.files import write_whole
from holdfast.os.tls import CA_FILE

FOLDER = "pods"
POLL_S = 0.05
LIMIT_S = 1800.0
NAMES_MAX = 253
COUNTS = ("HOLDFAST_NNODES", "PET_NNODES")
RANKS = ("HOLDFAST_NODE_RANK", "PET_NODE_RANK", "JOB_COMPLETION_INDEX")
"""Ours, the one of Kubeflow's operator, the one of an Indexed Job; the first that is set holds."""
TOKEN_FILE = Path("/var/run/secrets/holdfast/token")
"""Where a pod's manifest mounts its token for the audience `holdfast` (docs/kubernetes.md)."""
SERVICE = "http://holdfast.holdfast.svc:8470"
"""The Service of deploy/kubernetes: the controller that leads; by https where `ca.crt` is mounted beside the token."""


def reporting(environ: Mapping[str, str], token_file: Path = TOKEN_FILE) -> dict[str, str]:
    """The environment with the way to the controller filled in, where a token for it is mounted and none is named."""
    found = dict(environ)
    if not found.get("HOLDFAST_TOKEN_FILE") and token_file.is_file():
        found["HOLDFAST_TOKEN_FILE"] = str(token_file)
        if not found.get("HOLDFAST_CONTROLLER") and not found.get("HOLDFAST_CONTROLLER_FILE"):
            found["HOLDFAST_CONTROLLER"] = SERVICE
            ca_file = token_file.with_name("ca.crt")
            if ca_file.is_file():
                found["HOLDFAST_CONTROLLER"] = SERVICE.replace("http:", "https:")
                found.setdefault(CA_FILE, str(ca_file))
    return found


def number(environ: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    """The first of these variables that holds a whole number."""
    found = (environ.get(name, "").strip() for name in names)
    return next((int(text) for text in found if text.isdecimal()), None)


def peers(
    environ: Mapping[str, str], folder: Path, *, node: str, restart: int, limit_s: float = LIMIT_S
) -> tuple[int, tuple[str, ...]] | None:
    """This pod's node rank and the nodes of all pods by rank; None where one pod is all there is.

    Args:
        environ: the launcher's.
        folder: the job's, shared between nodes.
        node: the name of this pod's node.
        restart: which restart of the job this is.
        limit_s: how long the others may take to come.

    Raises:
        UsageError: ranks do not fit the count, or two pods share a node.
        LinkError: not all came.
    """
    count, rank = number(environ, COUNTS), number(environ, RANKS)
    if count is None or count < 2 or rank is None:
        return None
    if rank >= count:
        raise UsageError(f"this pod's node rank is {rank}, and there are {count} pods")
    place = folder / FOLDER / str(restart)
    place.mkdir(parents=True, exist_ok=True)
    write_whole(place / str(rank), node.encode())
    deadline = time.monotonic() + limit_s
    while True:
        names = [_read(place / str(other)) for other in range(count)]
        if all(names):
            break
        if time.monotonic() > deadline:
            missing = ", ".join(str(other) for other, name in enumerate(names) if not name)
            raise LinkError(f"after {limit_s:g} s the pods of rank {missing} have not come ({place})")
        time.sleep(POLL_S)
    if len(set(names)) < count:
        raise UsageError(f"two pods of this job share a node ({', '.join(names)}): give each pod all GPUs of its node")
    return rank, tuple(names)


def _read(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text(encoding="utf-8")[:NAMES_MAX].strip()
    return ""

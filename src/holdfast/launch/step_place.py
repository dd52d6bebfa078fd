"""Where `holdfast srun` is: the allocation, the step's own folder in the job's, and the numbers to go on with.

A job's script may run several steps. Each invocation has a folder `step-N` with its journal; after a requeue the script
runs again, and its N-th invocation goes on in the same folder. Attempts and epochs count on over all of them.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path

from holdfast.adapters.slurm.daemons import NodeAddress
from holdfast.adapters.slurm.output import node_names
from holdfast.adapters.slurm.own_job import JobFacts
from holdfast.errors import UsageError, UserError
from holdfast.launch.epoch import newest_attempt, raise_epoch, read_epoch
from holdfast.launch.folder import unusable
from holdfast.launch.place import JobPlace, slurm_node, slurm_place

EXCLUDED_FILE = "excluded"
_STEPS_MAX = 10_000


def check_allocation(environ: Mapping[str, str]) -> None:
    """Refuse what is no place for a supervised step.

    Raises:
        UsageError: no allocation, or a heterogeneous one.
    """
    if not environ.get("SLURM_JOB_ID"):
        raise UsageError(
            "holdfast srun --auto-resume=1 needs an allocation: call it in a script of sbatch, or in salloc"
        )
    if environ.get("SLURM_HET_SIZE"):
        raise UsageError("holdfast srun --auto-resume=1 does not support heterogeneous jobs; run their steps with srun")


def allocated_nodes(environ: Mapping[str, str], facts: JobFacts | None) -> tuple[str, ...]:
    """The nodes that the job has now: it may have shrunk since its script began.

    Raises:
        UsageError: nothing says which.
    """
    nodes = facts.nodes if facts is not None and facts.nodes else node_names(environ.get("SLURM_JOB_NODELIST", ""))
    if not nodes:
        raise UsageError("SLURM_JOB_NODELIST names no nodes: this is no allocation that steps can run in")
    return nodes


def claim_folder(root: Path, restart_count: int) -> Path:
    """This invocation's folder: the first that no invocation of this run of the script has taken.

    Raises:
        FolderError: the folder cannot be made or written.
        UsageError: too many steps.
    """
    try:
        for number in range(_STEPS_MAX):
            folder = root / f"step-{number}"
            (folder / "logs").mkdir(parents=True, exist_ok=True)
            try:
                os.close(os.open(folder / f"claimed-{restart_count}", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            except FileExistsError:
                continue
            return folder
    except OSError as error:
        raise unusable(root, error) from error
    raise UsageError(f"{root}: {_STEPS_MAX} steps have been run from this script")


def floor_of(root: Path, own: Path) -> int:
    """The largest number of an attempt that the job's other steps have used; the own epoch file is raised to theirs."""
    attempt, epoch = -1, 0
    for folder in root.glob("step-*"):
        try:
            epoch = max(epoch, read_epoch(folder))
        except (OSError, UserError):
            continue
        if folder != own:
            attempt = max(attempt, newest_attempt(folder))
    if epoch:
        try:
            raise_epoch(own, epoch)
        except OSError as error:
            raise unusable(root, error) from error
    return attempt


def note_excluded(folder: Path, nodes: Iterable[str]) -> None:
    """Write down which nodes this step is kept off, for the other steps of the job."""
    with contextlib.suppress(OSError):
        (folder / EXCLUDED_FILE).write_text("".join(f"{node}\n" for node in sorted(nodes)), encoding="utf-8")


def excluded_before(root: Path) -> frozenset[str]:
    """Nodes that any step of the job was kept off."""
    found: set[str] = set()
    for path in root.glob(f"step-*/{EXCLUDED_FILE}"):
        with contextlib.suppress(OSError):
            found.update(path.read_text(encoding="utf-8").split())
    return frozenset(found)


def step_place(
    environ: Mapping[str, str], folder: Path, nodes: tuple[str, ...], addresses: Mapping[str, NodeAddress]
) -> JobPlace:
    """The supervisor's place. In salloc it may run on a machine outside the allocation."""
    known = addresses.get(slurm_node(environ))
    return slurm_place(environ, folder, nodes, address=known.address if known is not None else socket.gethostname())

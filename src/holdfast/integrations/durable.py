"""Makes a checkpoint that some framework has written durable before it is reported as such.

Called by the integrations right after a save, on the rank that wrote it. Most frameworks leave their files in the page
cache: a node that loses power then loses a checkpoint that was said to be saved.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from holdfast import telemetry

__all__ = ["report_saved", "sync_tree"]


def sync_tree(path: Path) -> None:
    """Sync every file below `path`, or the file itself, and the folders that name them.

    Raises:
        OSError: something is not there or cannot be synced.
    """
    files = [p for p in path.rglob("*") if p.is_file()] if path.is_dir() else [path]
    folders = {p.parent for p in files} | {path.parent} | ({path} if path.is_dir() else set())
    for target in (*files, *sorted(folders)):
        fd = os.open(target, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def report_saved(path: str | os.PathLike[str], step: int, *more: str | os.PathLike[str]) -> None:
    """Sync a local checkpoint and tell Holdfast that it is durable; one that cannot be synced is only staged.

    Args:
        path: its folder or file.
        step: completed steps that it holds.
        more: further files of it.
    """
    if not telemetry.enabled():
        return
    place = ""
    try:
        for one in (path, *more):
            place = os.fspath(one)
            # What is written to an object store by its client is on disk there when the client returns.
            if "://" not in place:
                sync_tree(Path(place))
    except OSError as error:
        sys.stderr.write(f"holdfast.integrations: the checkpoint {place} is not known to be on disk: {error}\n")
        telemetry.checkpoint(step, durable=False)
        return
    telemetry.checkpoint(step, durable=True)

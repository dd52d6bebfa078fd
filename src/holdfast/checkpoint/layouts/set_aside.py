"""Takes a bad checkpoint out of its framework's way, so that the framework's own resume takes the one before it.

Called by `checkpoints repair` and by the launcher before it starts ranks. A bad one, or each of its files where it is
files of ranks, is renamed to `bad-...`, never deleted; where the framework keeps a tracker, it is made to name the
newest good one. Nothing waits; no clock.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from pathlib import Path

from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.files import fsync_folder, rename_bad
from holdfast.checkpoint.layouts.frameworks import DEEPSPEED_TRACKER, MEGATRON_TRACKER, ForeignCheckpoint


def set_aside(
    checkpoints: Sequence[ForeignCheckpoint], bad: Sequence[ForeignCheckpoint], spoilt: Sequence[Path] = ()
) -> list[tuple[str, Path]]:
    """Rename the bad ones and point the tracker at the newest good one.

    Args:
        checkpoints: all of one folder, newest first, as `recognise` gives them.
        bad: those of them that must not be loaded.
        spoilt: damaged copies in good ones; without them their framework takes another copy.

    Returns:
        (old name, where it lies now) of each that was renamed; of several files the first.

    Raises:
        CheckpointError: the folder cannot be written.
    """
    names = {found.name for found in bad}
    good = [found for found in checkpoints if found.name not in names]
    renamed: list[tuple[str, Path]] = []
    try:
        # The tracker first: killed between the two, the framework finds a good one named and the bad one still there.
        if bad and good:
            _point_at(good[0], checkpoints)
        for found in bad:
            paths = [path for path in (found.files if found.label else (found.path,)) if path.exists()]
            kept = [rename_bad(path) for path in paths]
            if kept:
                renamed.append((found.name, kept[0]))
        renamed += [(path.name, rename_bad(path)) for path in spoilt]
    except OSError as error:
        raise CheckpointError(f"{checkpoints[0].path.parent} cannot be put in order: {error}") from error
    return renamed


def _point_at(good: ForeignCheckpoint, checkpoints: Sequence[ForeignCheckpoint]) -> None:
    """Write the tracker anew when it names another one than the newest good checkpoint."""
    trackers = {"megatron": (MEGATRON_TRACKER, str(good.step)), "deepspeed": (DEEPSPEED_TRACKER, good.name)}
    if good.layout not in trackers or checkpoints[0].path == good.path:
        return
    name, content = trackers[good.layout]
    path = good.path.parent / name
    if path.is_file() and path.read_text(errors="replace").strip() == content:
        return
    draft = path.with_name(f".{name}-{secrets.token_hex(4)}")
    with draft.open("w") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    fsync_folder(path.parent)

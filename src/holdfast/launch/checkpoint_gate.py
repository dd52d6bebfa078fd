"""Before ranks start: is what they are about to load good? For frameworks that do not verify their checkpoints.

Called by the leader once the attempts before are fenced (`holdfast run --checkpoints DIR`). Checkpoints of
holdfast.checkpoint are left to their own `restore`, which verifies on every rank. Waits for the disk only: the newest
checkpoint is read in full when that is cheap, otherwise its files and sizes are checked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

FULL_BYTES_MAX = 2 << 30
"""Read in full up to this size: about two seconds from the page cache or a fast disk, far less than any start-up."""


class Gate(Struct, frozen=True):
    """What was found and done."""

    says: tuple[str, ...] = ()
    """Sentences for the job's owner; empty when there was nothing to do."""
    resumes_from: int | None = None
    """Step of the checkpoint that the framework will find, None when it is not known."""
    set_aside: tuple[str, ...] = ()
    """Names of checkpoints that were renamed to `bad-...`."""


async def before_start(folder: str, restore_step: int | None, say: Callable[[str], None]) -> int | None:
    """Look, and say what was done; nothing when no folder is known. The attempts before are fenced: nobody writes.

    Returns:
        The step that every rank is told to load (`HOLDFAST_RESTORE_STEP`): that of the checkpoint which was found good,
        else `restore_step`.
    """
    if not folder:
        return restore_step
    gate = await asyncio.to_thread(look_before_start, Path(folder), restore_step=restore_step)
    for sentence in gate.says:
        say(f"checkpoints: {sentence}")
    return restore_step if gate.resumes_from is None else gate.resumes_from


def look_before_start(folder: Path, *, restore_step: int | None, full_bytes_max: int = FULL_BYTES_MAX) -> Gate:
    """Set aside what must not be loaded, newest first, until one is good; never raises.

    Args:
        folder: where the job's framework saves.
        restore_step: the newest step that may be loaded; later ones are mistrusted (they hold bad numbers, say).
        full_bytes_max: largest checkpoint that is read in full.
    """
    from holdfast.checkpoint import CheckpointError, scan  # noqa: PLC0415 - keeps the launcher's start light

    try:
        if not folder.is_dir() or scan(folder):
            return Gate()
        return _look(folder, restore_step, full_bytes_max)
    except (CheckpointError, OSError) as error:
        return Gate((f"the checkpoints in {folder} could not be checked: {error}",))


def _look(folder: Path, restore_step: int | None, full_bytes_max: int) -> Gate:
    from holdfast.checkpoint import layouts  # noqa: PLC0415 - as above

    # What its framework has not published yet it will not load, and another process may still be writing it.
    everything = layouts.recognise(folder)
    found = [one for one in everything if one.unfinished is None or one.unfinished.kind != "not_published"]
    says: list[str] = []
    bad: list[layouts.ForeignCheckpoint] = []
    good = None
    spoilt: tuple[Path, ...] = ()
    for one in found:
        if restore_step is not None and one.step is not None and one.step > restore_step:
            says.append(f"{one.name} is set aside: nothing newer than step {restore_step} is to be loaded")
        else:
            verdict = layouts.verify_foreign(one, full=one.size <= full_bytes_max)
            if verdict.ok:
                good, spoilt = one, verdict.spoilt
                says += [
                    f"{path.parent.name}/{path.name} is damaged: set aside, there is another copy" for path in spoilt
                ]
                break
            says.append(f"{verdict.sentence}: set aside")
        bad.append(one)
    if bad or spoilt:
        done = layouts.set_aside(found, bad, spoilt)
        says.append(f"the job resumes from {good.name}" if good else "no checkpoint can be trusted")
        return Gate(tuple(says), good.step if good else None, tuple(name for name, _ in done))
    return Gate((), good.step if good else None)

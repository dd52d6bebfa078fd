"""Put a folder of checkpoints in order: quarantine what is bad, and fetch it again from a mirror that has it good.

Called by the `checkpoints repair` command and by whoever wants the first place whole again; a running
job needs none of it, since its restore does the same for the one checkpoint it takes. Every file is read
once; nothing waits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.fence import Fence
from holdfast.checkpoint.store import CheckpointInfo, CheckpointStore, scan, verify


@dataclass(frozen=True, slots=True)
class Repair:
    """What was done about one bad checkpoint.

    Args:
        name: the checkpoint.
        problem: what was wrong with it, as a sentence.
        kept_as: where the bad one lies now, None when the folder cannot be written.
        fetched_from: the mirror it was copied back from, None when no mirror has it good.
    """

    name: str
    problem: str
    kept_as: Path | None
    fetched_from: Path | None


def repair(folder: Path | str, mirrors: Sequence[Path | str] = ()) -> list[Repair]:
    """Verify every checkpoint of a folder in full, and replace the bad ones from mirrors.

    Raises:
        CheckpointError: the folder cannot be read.
    """
    root = Path(folder)
    store = CheckpointStore(root, mirrors=mirrors, fence=Fence(None, 0))
    done: list[Repair] = []
    for info in scan(root):
        verdict = verify(info.path)
        if verdict.ok:
            continue
        kept_as = store.quarantine(info)
        fetched_from = None if kept_as is None else _fetch(store, info)
        done.append(Repair(info.name, verdict.sentence, kept_as, fetched_from))
    return done


def _fetch(store: CheckpointStore, info: CheckpointInfo) -> Path | None:
    for mirror in store.mirrors:
        if not verify(mirror / info.name).ok:
            continue
        try:
            store.copy(mirror / info.name, store.folder)
        except (OSError, CheckpointError):
            # The next mirror may be whole; what this attempt left is hidden and swept by the next writer.
            continue
        return mirror
    return None

"""The `shared` suite: a folder seen from all nodes. Steps that the fleet runs one after another on every node.

`make`: everyone tries to create one file exclusively (one must win) and writes a file of its own. `count`: everyone
raises one counter under a lock; an increment that is lost shows that locks do not hold between nodes. `read`: everyone
reads what all others wrote, and the counter: stale data shows. Time: bounded waits for locks, else the storage's own.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from pathlib import Path

from holdfast.os.files import text_of
from holdfast.validate.registry import Options
from holdfast.validate.results import Item, Verdict, failed

ROUNDS = 10
LOCK_S = 60.0
PAUSE_S = 0.005
ADVICE = "mount the file system with locks and close-to-open consistency (NFS: no `nolock`; Lustre: `flock`)"


def _mine(folder: Path, node: str) -> Path:
    return folder / f"said-{node}"


def make(options: Options) -> list[Item]:
    """The first step: says whether this node won."""
    folder = Path(options.shared)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        os.close(os.open(folder / "one", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        won = 1.0
    except FileExistsError:
        won = 0.0
    path = _mine(folder, options.node)
    with path.with_suffix(".part").open("w", encoding="utf-8") as file:
        file.write(options.token + options.node)
        file.flush()
        os.fsync(file.fileno())
    path.with_suffix(".part").rename(path)
    return [Item(name="shared.won", value=won, unit="exclusive creations")]


def count(options: Options) -> list[Item]:
    """The second step."""
    path = Path(options.shared) / "counter"
    fd = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    begin = time.monotonic()
    try:
        for _ in range(ROUNDS):
            if not _lock(fd, begin + LOCK_S):
                why = f"it got no lock on {path} within {LOCK_S:g} s"
                return [failed("shared.lock", why, ADVICE)]
            value = int(os.pread(fd, 32, 0) or b"0")
            os.pwrite(fd, f"{value + 1:031d}\n".encode(), 0)
            os.fsync(fd)
            fcntl.lockf(fd, fcntl.LOCK_UN)
    except OSError as error:
        why = f"{path}: {error.strerror}"
        return [failed("shared.lock", why, ADVICE)]
    finally:
        os.close(fd)
    return [Item(name="shared.lock_s", value=(time.monotonic() - begin) / ROUNDS, unit="s per locked write")]


def _lock(fd: int, until: float) -> bool:
    while time.monotonic() < until:
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(PAUSE_S)
        else:
            return True
    return False


def read(options: Options) -> list[Item]:
    """The last step: what the others wrote, and the counter."""
    folder = Path(options.shared)
    missing = [node for node in options.peers if text_of(_mine(folder, node)) != options.token + node]
    if missing:
        items = [failed("shared.seen", f"files of {', '.join(missing[:4])} are missing or old here", ADVICE)]
    else:
        items = [Item(name="shared.seen", text=f"files of {len(options.peers)} nodes")]
    told = text_of(folder / "counter")
    expected = ROUNDS * len(options.peers)
    counted = int(told) if told.isdigit() else -1
    counter = Item(name="shared.counter", text=str(counted), expected=str(expected))
    if counted != expected:
        why = f"{expected - counted} of {expected} locked writes were lost or are not seen here"
        counter = counter.judged(Verdict.FAIL, why, ADVICE)
    return [*items, counter]


def forget(options: Options) -> list[Item]:
    """Remove the folder, on one node."""
    folder = Path(options.shared)
    if folder.name.startswith(".holdfast-shared-"):
        shutil.rmtree(folder, ignore_errors=True)
    return []

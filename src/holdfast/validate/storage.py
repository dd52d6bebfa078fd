"""The `storage` suite: write, fsync, read back, metadata, the pattern of a checkpoint of many ranks. A step.

Everything is written in a folder of its own that is removed at the end, also after an error; a killed step leaves it,
named `.holdfast-validate-*`, and the next run removes what is older than an hour. Time: that of the storage; a quick
run moves about 100 MB, a deep one 2 GB.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

from holdfast.validate.registry import Options
from holdfast.validate.results import Item, failed

BLOCK = 1 << 20
QUICK_BYTES, DEEP_BYTES = 32 << 20, 1 << 30
QUICK_FILES, DEEP_FILES = 200, 2000
RANKS = 4
FSYNCS = 20
PREFIX = ".holdfast-validate-"
STALE_S = 3600.0
ADVICE = "look at the mount, at other jobs' load and at the server's health; `holdfast check disk-* mount-*`"


@contextlib.contextmanager
def own_folder(parent: Path) -> Iterator[Path]:
    """A folder that is removed, and the removal of what killed runs left."""
    for old in parent.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            if time.time() - old.stat().st_mtime > STALE_S:
                shutil.rmtree(old)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def pattern(rank: int, block: int) -> bytes:
    """A block that no other rank or place has."""
    return hashlib.sha256(f"{rank}:{block}".encode()).digest() * (BLOCK // 32)


def write(path: Path, rank: int, blocks: int) -> float:
    """Write and fsync; returns seconds."""
    start = time.perf_counter()
    with path.open("wb", buffering=0) as file:
        for block in range(blocks):
            file.write(pattern(rank, block))
        os.fsync(file.fileno())
    return time.perf_counter() - start


def read(path: Path, rank: int, blocks: int) -> tuple[float, int]:
    """Read back past the page cache where the kernel lets us; returns seconds and the number of wrong blocks."""
    wrong, took = 0, 0.0
    with path.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        for block in range(blocks):
            start = time.perf_counter()
            data = file.read(BLOCK)
            took += time.perf_counter() - start
            wrong += data != pattern(rank, block)
    return took, wrong


def synced(folder: Path) -> float:
    """Median seconds of a 4 KiB write with fsync."""
    took = []
    fd = os.open(folder / "sync", os.O_CREAT | os.O_WRONLY, 0o600)
    try:
        for _ in range(FSYNCS):
            start = time.perf_counter()
            os.write(fd, b"\xa5" * 4096)
            os.fsync(fd)
            took.append(time.perf_counter() - start)
    finally:
        os.close(fd)
    return median(took)


def metadata_rate(folder: Path, files: int) -> float:
    """Files per second that are made, renamed, looked at and removed."""
    start = time.perf_counter()
    for number in range(files):
        path = folder / f"meta-{number}.part"
        path.touch()
        final = path.rename(folder / f"meta-{number}")
        final.stat()
        final.unlink()
    return files / (time.perf_counter() - start)


def many_ranks(folder: Path, ranks: int, blocks: int) -> tuple[float, int]:
    """As a sharded checkpoint: each rank its own file, renamed into place; then all are read. MB/s, wrong blocks."""
    start = time.perf_counter()

    def save(rank: int) -> None:
        part = folder / f"shard-{rank}.part"
        write(part, rank, blocks)
        part.rename(folder / f"shard-{rank}")

    with ThreadPoolExecutor(ranks) as pool:
        list(pool.map(save, range(ranks)))
    rate = ranks * blocks * BLOCK / 1e6 / (time.perf_counter() - start)
    return rate, sum(read(folder / f"shard-{rank}", rank, blocks)[1] for rank in range(ranks))


def measure(options: Options) -> list[Item]:
    """The step."""
    parent = Path(options.storage or tempfile.gettempdir())
    blocks = (DEEP_BYTES if options.deep else QUICK_BYTES) // BLOCK
    try:
        with own_folder(parent) as folder:
            took = write(folder / "data", 0, blocks)
            back, wrong = read(folder / "data", 0, blocks)
            sync_s = synced(folder)
            rate = metadata_rate(folder, DEEP_FILES if options.deep else QUICK_FILES)
            shards, lost = many_ranks(folder, RANKS, max(1, blocks // RANKS))
    except OSError as error:
        why = f"{parent}: {error.strerror or error}"
        return [failed("storage.usable", why, "free space, remount or repair it", text=str(parent))]
    megabytes = blocks * BLOCK / 1e6
    return [
        Item(name="storage.usable", text=str(parent)),
        _whole(wrong + lost),
        Item(name="storage.write", value=megabytes / took, unit="MB/s with fsync", better="higher", advice=ADVICE),
        Item(name="storage.read", value=megabytes / max(back, 1e-9), unit="MB/s", better="higher", advice=ADVICE),
        Item(name="storage.fsync", value=sync_s * 1e3, unit="ms per 4 KiB", better="lower", advice=ADVICE),
        Item(name="storage.metadata", value=rate, unit="files/s", better="higher", advice=ADVICE),
        Item(name="storage.checkpoint", value=shards, unit=f"MB/s, {RANKS} ranks", better="higher", advice=ADVICE),
    ]


def _whole(wrong: int) -> Item:
    if not wrong:
        return Item(name="storage.correct", text="what was read is what was written")
    why = "what was read is not what was written"
    advice = "do not save checkpoints here; check the device's log and its memory"
    return failed("storage.correct", why, advice, text=f"{wrong} blocks differ")

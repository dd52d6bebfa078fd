"""Files written, hashed and made durable: the lowest layer of the checkpoint store.

Called by the store and by whoever writes a checkpoint's content. Hashes are computed while writing,
so a checkpoint is read once only when it is verified or restored. No waiting, no clock.
"""

import contextlib
import errno
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from stat import S_ISREG
from types import TracebackType
from typing import BinaryIO, Self

import xxhash

from holdfast.checkpoint.manifest import FileEntry

BAD = "bad-"
"""Begins the name of a checkpoint that must not be loaded and is kept for a person."""

CHUNK = 4 << 20
"""Bytes hashed per read: large enough to drown call overhead, small enough to stay in the L2/L3 cache."""

# Dirty pages are pushed out this often, so that the final fsync is short and memory stays bounded.
FLUSH_EVERY = 64 << 20


def open_file(path: Path) -> BinaryIO:
    """An ordinary file to read. A folder of somebody else may hold pipes and devices by known names, which never end.

    Raises:
        OSError: it cannot be read, or is something else.
    """
    opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not is_ordinary(opened):
        os.close(opened)
        raise OSError(errno.EINVAL, "it is no ordinary file", str(path))
    return os.fdopen(opened, "rb")


def is_ordinary(opened: int) -> bool:
    """Whether this is an open file, and neither pipe, device nor folder."""
    return S_ISREG(os.fstat(opened).st_mode)


class HashingFile:
    """A new file that knows its size and xxh3-128 hash when it is closed.

    Offers `write` and `flush`, which is what `torch.save`, `pickle.dump` and `json` writers ask for.
    The content is on disk (fsync) when the `with` block ends without an error.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        self._hash = xxhash.xxh3_128()
        self._size = 0
        self._unflushed = 0

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Append; returns the number of bytes, always all of them.

        Raises:
            OSError: the disk is full or gone.
        """
        view = memoryview(data).cast("B")
        self._hash.update(view)
        done = 0
        while done < len(view):
            done += os.write(self._fd, view[done : done + (64 << 20)])
        self._size += done
        self._unflushed += done
        if self._unflushed >= FLUSH_EVERY:
            os.fdatasync(self._fd)
            self._unflushed = 0
        return done

    def flush(self) -> None:
        """Nothing is buffered here; present because writers call it."""

    def entry(self, root: Path) -> FileEntry:
        """Size and hash, under the file's path relative to the checkpoint's folder."""
        return FileEntry(self._path.relative_to(root).as_posix(), self._size, str(self._hash.hexdigest()))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                os.fsync(self._fd)
        finally:
            os.close(self._fd)


def hash_file(path: Path) -> tuple[int, str]:
    """(bytes, xxh3-128 in hexadecimal) of a file, read in one pass.

    Raises:
        OSError: it cannot be read.
    """
    hasher = xxhash.xxh3_128()
    size = 0
    for chunk in _chunks(path):
        hasher.update(chunk)
        size += len(chunk)
    return size, str(hasher.hexdigest())


def copy_hashed(source: Path, target: Path) -> tuple[int, str]:
    """Copy a file durably and return (bytes, hash) of what was copied, for comparison with the manifest.

    Raises:
        OSError: either side failed.
    """
    with HashingFile(target) as out:
        for chunk in _chunks(source):
            out.write(chunk)
        entry = out.entry(target.parent)
    return entry.size, entry.xxh3_128


def fsync_folder(folder: Path) -> None:
    """Make names created, renamed or removed in a folder durable.

    Some file systems (CIFS, some FUSE) answer EINVAL for folders; there nothing more can be done.
    """
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in {errno.EINVAL, errno.ENOTSUP}:
            raise
    finally:
        os.close(fd)


def rename_bad(path: Path) -> Path:
    """Give a checkpoint, a folder or a file, a free name that begins with `BAD`; returns where it lies now.

    Raises:
        OSError: the place cannot be written.
    """
    target = path.with_name(f"{BAD}{path.name}")
    while target.exists():
        target = path.with_name(f"{BAD}{path.name}-{secrets.token_hex(2)}")
    path.rename(target)
    fsync_folder(target.parent)
    return target


def is_full(error: OSError) -> bool:
    """True when the error says that there is no room: device full, quota used up, or file size limit."""
    return error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def _chunks(path: Path) -> Iterator[memoryview]:
    buffer = memoryview(bytearray(CHUNK))
    with path.open("rb", buffering=0) as file:
        with contextlib.suppress(OSError, AttributeError):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
        while count := file.readinto(buffer):
            yield buffer[:count]

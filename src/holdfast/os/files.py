"""Writes small files as a whole: a reader sees all of a file, or the one before."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(path: Path, data: bytes, *, mode: int = 0o666, durable: bool = False) -> None:
    """Replace a file.

    Args:
        path: the file; its folder exists.
        data: all of it.
        mode: its permission bits, of which the umask takes away.
        durable: it is on disk when this returns.

    Raises:
        OSError: it cannot be written; the one before still stands.
    """
    staged = path.with_name(f".{path.name}.new")
    staged.unlink(missing_ok=True)
    with os.fdopen(os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    staged.replace(path)

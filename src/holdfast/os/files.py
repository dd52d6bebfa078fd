"""Small files: written as a whole, so that a reader sees all of one or the one before, and read without a complaint."""

from __future__ import annotations

import os
from pathlib import Path

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
"""Another one after each boot of this machine."""


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


def text_of(path: Path) -> str:
    """A small file of the kernel or the system, stripped; empty when it is not there or cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""

"""Where `holdfast.toml` is looked for, and whose counts. A launcher looks here before it loads what reads it.

A file that is named by `--config` or `HOLDFAST_CONFIG`, the user's own and the site's are taken as they are. The one in
the working folder is named by nobody: it counts only where it belongs to the user or to root, and nobody else can write
it. A command that passes one over says so once, on standard error.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Mapping
from pathlib import Path

FILE_NAME = "holdfast.toml"
SITE_FOLDER = Path("/etc/holdfast")
_told: set[tuple[Path, str]] = set()


def named_file(option: Path | None = None, *, environ: Mapping[str, str] | None = None) -> Path | None:
    """The file that the user names by option or environment; None: it is looked for."""
    known = os.environ if environ is None else environ
    named = option or (Path(known["HOLDFAST_CONFIG"]) if known.get("HOLDFAST_CONFIG") else None)
    return named.expanduser() if named is not None else None


def places(option: Path | None = None, *, environ: Mapping[str, str] | None = None) -> list[Path]:
    """Where `holdfast.toml` is looked for, in order. A place named by option or environment is the only one."""
    known = os.environ if environ is None else environ
    named = named_file(option, environ=known)
    if named is not None:
        return [named]
    own = Path(known["XDG_CONFIG_HOME"]) if known.get("XDG_CONFIG_HOME") else Path("~/.config").expanduser()
    return [Path(FILE_NAME), own / "holdfast" / FILE_NAME, SITE_FOLDER / FILE_NAME]


def is_found(file: Path | None) -> bool:
    """Is this the file of the working folder, as `places` names it?"""
    return file == Path(FILE_NAME)


def read_found(path: Path) -> bytes | None:
    """What the file of the working folder holds; None where it does not count, which is said.

    What is judged is what is read: the file is opened once, and a link's own owner counts, too.

    Raises:
        OSError: it cannot be read, or is not there.
    """
    link = path.lstat()
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        why = _whose(link, os.fstat(handle))
        if not why:
            with os.fdopen(os.dup(handle), "rb") as file:
                return file.read()
    finally:
        os.close(handle)
    _tell(path, why)
    return None


def _whose(link: os.stat_result, file: os.stat_result) -> str:
    """Why a file does not count, and what to do; empty: it counts."""
    mine = {0, os.geteuid()}
    if not stat.S_ISREG(file.st_mode):
        return "it is no ordinary file: remove it"
    for one, what in ((link, "its link" if stat.S_ISLNK(link.st_mode) else "it"), (file, "it")):
        if one.st_uid not in mine:
            return f"{what} belongs to another user (uid {one.st_uid}): name it by --config if you trust it"
    if file.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "others may write it: chmod go-w it, or name it by --config if you trust it"
    return ""


def _tell(path: Path, why: str) -> None:
    whole = path.absolute()
    if (whole, why) not in _told:
        _told.add((whole, why))
        sys.stderr.write(f"holdfast: {whole} is passed over: {why}\n")

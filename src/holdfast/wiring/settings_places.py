"""Where `holdfast.toml` is looked for, and whose counts. A launcher looks here before it loads what reads it.

A file that is named by `--config` or `HOLDFAST_CONFIG`, the user's own and the site's are taken as they are. The one in
the working folder is named by nobody: it counts only where it and its folder belong to the user or to root, and nobody
else can write it or exchange it there. A command that passes one over says so once, on standard error.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Mapping
from pathlib import Path

from holdfast.os.files import foreign, open_regular

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
    own = [folder / "holdfast" / FILE_NAME for folder in _own_folder(known)]
    return [Path(FILE_NAME), *own, SITE_FOLDER / FILE_NAME]


def _own_folder(known: Mapping[str, str]) -> list[Path]:
    """The folder of the user's settings; none where the user has no home, as in a container that nobody knows."""
    if known.get("XDG_CONFIG_HOME"):
        return [Path(known["XDG_CONFIG_HOME"])]
    try:
        return [Path("~/.config").expanduser()]
    except RuntimeError:
        return []


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
    if not stat.S_ISREG(path.stat().st_mode):
        _tell(path, "it is no ordinary file: remove it")
        return None
    with os.fdopen(open_regular(path), "rb") as file:
        why = not_mine(link, os.fstat(file.fileno()), path.parent.stat())
        if not why:
            return file.read()
    _tell(path, f"{why}, or name it by --config if you trust it")
    return None


def not_mine(link: os.stat_result, file: os.stat_result, folder: os.stat_result) -> str:
    """Why a file of the working folder may be the word of others, and what to do; empty: it counts.

    In a sticky folder, such as /tmp, others put files of their own only, or a second name of mine.
    """
    for one, what in ((link, "its link" if stat.S_ISLNK(link.st_mode) else "it"), (file, "it"), (folder, "its folder")):
        if one.st_uid not in {0, os.geteuid()}:
            return f"{what} belongs to another user (uid {one.st_uid}): copy it to a folder of your own"
    if foreign(file):
        return "others may write it: chmod go-w it"
    if not foreign(folder):
        return ""
    if not folder.st_mode & stat.S_ISVTX:
        return "others may exchange it: chmod go-w its folder"
    return "it has a second name: copy it to a folder of your own" if file.st_nlink > 1 else ""


def _tell(path: Path, why: str) -> None:
    whole = path.absolute()
    if (whole, why) not in _told:
        _told.add((whole, why))
        sys.stderr.write(f"holdfast: {whole} is passed over: {why}\n")

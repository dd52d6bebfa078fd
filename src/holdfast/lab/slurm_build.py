"""A Slurm built from a source tarball that the user has, and kept in the cache by its version.

For `holdfast lab slurm up --prefix`, beside the distribution's own. Called by the command line. Nothing is downloaded.
Time: a build takes minutes of two cores; one at a time on a machine, others wait for it.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from holdfast.errors import NotFoundError, UsageError
from holdfast.lab import packages
from holdfast.lab.settings import cache_folder
from holdfast.lab.waiting import run_step
from holdfast.os.files import locked

TOOLS = {"gcc": "gcc", "make": "make", "tar": "tar", "bzip2": "bzip2"}
"""Program -> the Debian package that holds it."""
HEADERS = {
    "munge.h": "libmunge-dev",
    "json-c/json.h": "libjson-c-dev",
    "http_parser.h": "libhttp-parser-dev",
    "yaml.h": "libyaml-dev",
    "mariadb/mysql.h": "libmariadb-dev",
}
"""Without one of them Slurm is built all the same, but lacks what a lab needs: munge, slurmrestd, accounting."""
INCLUDE = Path("/usr/include")
DONE = "complete"
_run = partial(run_step, "Slurm is not built")


def prefix_of(version: str) -> Path:
    """Where a build of this version is installed: `bin`, `sbin`, `lib`, `include`.

    Root's lies outside root's home: jobs of other users load Slurm's libraries, too.
    """
    return cache_folder("slurm", shared=True) / version


def tarball(version: str, folder: Path) -> Path:
    """The source tarball of this version in the folder, by the names that the project and Debian give it.

    Raises:
        NotFoundError: there is none.
    """
    names = [f"slurm-{version}.tar.bz2", f"slurm-{version}.tar.gz", f"slurm-wlm_{version}.orig.tar.gz"]
    found = next((folder / name for name in names if (folder / name).is_file()), None)
    if found is None:
        raise NotFoundError(f"{folder} holds none of {', '.join(names)}: name the tarball by --source")
    return found


def build(version: str, source: Path | None, say: Callable[[str], None]) -> Path:
    """Build this version unless the cache has it; returns the prefix for `holdfast lab slurm up --prefix`.

    Args:
        version: as its META file has it, such as 24.11.5.
        source: the tarball; None: looked for in the working folder.
        say: gets progress, one line at a time.

    Raises:
        NotFoundError: there is no such tarball.
        UsageError: a compiler or a header is missing, or the tarball is of another version; says what to do.
        LinkError: the build failed; holds the end of its log.
    """
    if re.fullmatch(r"\d+\.\d+\.\d+", version) is None:
        raise UsageError(f"{version}: write the whole version, such as 24.11.5")
    prefix = prefix_of(version)
    prefix.parent.mkdir(parents=True, exist_ok=True)
    lock = prefix.parent / "lock"
    with locked(lock, wait_s=None, on_wait=lambda: say("another build is under way: waiting for it")):
        if (prefix / DONE).exists():
            return prefix
        source = (source if source is not None else tarball(version, Path.cwd())).resolve()
        if not source.is_file():
            raise NotFoundError(f"--source {source}: there is no such file")
        _check_tools()
        shutil.rmtree(prefix, ignore_errors=True)
        log = prefix.parent / f"{version}.log"
        log.unlink(missing_ok=True)
        say(f"building Slurm {version} from {source}: about five minutes of two cores, once; the log is {log}")
        with tempfile.TemporaryDirectory(prefix="holdfast-slurm-") as made:
            _build(version, source, Path(made), log)
        (prefix / DONE).touch()
    return prefix


def _build(version: str, source: Path, folder: Path, log: Path) -> None:
    prefix = prefix_of(version)
    _run(["tar", "-xf", str(source), "-C", str(folder), "--strip-components=1"], log)
    meta = folder / "META"
    said = re.search(r"(?m)^\s*Version:\s*(\S+)", meta.read_text(encoding="utf-8") if meta.is_file() else "")
    if said is None or said[1] != version:
        raise UsageError(f"{source} is {f'Slurm {said[1]}' if said else 'not a source of Slurm'}, not {version}")
    words = [f"--prefix={prefix}", f"--sysconfdir={prefix}/etc", "--enable-multiple-slurmd", "--disable-static"]
    words += ["--disable-dependency-tracking", "--disable-x11", "CFLAGS=-O1"]
    _run(["./configure", *words], log, cwd=folder)
    # Neither documents nor contributions: only what runs, and the headers that a SPANK plugin is built against.
    _run(["make", f"-j{os.cpu_count() or 1}", "-C", "src"], log, cwd=folder)
    _run(["make", "-C", "src", "install-strip"], log, cwd=folder)
    _run(["make", "install-pkgincludeHEADERS"], log, cwd=folder)


def _check_tools() -> None:
    missing = packages.missing(TOOLS, os.environ.get("PATH", os.defpath))
    wanted = [TOOLS[tool] for tool in missing]
    headers = [header for header in HEADERS if not (INCLUDE / header).exists()]
    if missing or headers:
        needed = packages.advice([*wanted, *(HEADERS[header] for header in headers)])
        raise UsageError(f"building Slurm needs {', '.join([*missing, *headers])}; {needed}")

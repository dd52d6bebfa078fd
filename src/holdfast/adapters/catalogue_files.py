"""Rule files and the compiled catalogue on disk: what `detect/` must not read itself.

Called once by agents, launchers and `holdfast explain` when they start. The cache holds one file per catalogue
content, library version and processor; a torn one is ignored and written anew, atomically. What stands in it runs in
this process: one that others may have written is not loaded, and none is written into a folder of theirs.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import stat
import tempfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from holdfast.detect.catalogue import Catalogue, load_catalogue
from holdfast.detect.database import check_cores, compile_database
from holdfast.detect.matcher import Matcher
from holdfast.detect.meaning import packaged, packaged_sources
from holdfast.errors import ConfigError
from holdfast.os.files import foreign, open_regular, read_bounded

RULES_MAX = 16 << 20
_MAGIC = b"holdfast-matcher-1\n"


def site_sources(folders: Sequence[str | Path]) -> dict[str, bytes]:
    """The `*.toml` files of the site's folders, in the order given, then by name.

    Raises:
        ConfigError: a folder or file cannot be read.
    """
    sources: dict[str, bytes] = {}
    for folder in folders:
        path = Path(folder)
        try:
            found = sorted(path.glob("*.toml")) if path.is_dir() else [path]
            for file in found:
                sources[str(file)] = read_bounded(file, RULES_MAX)
        except OSError as error:
            raise ConfigError(f"cannot read rules: {error.strerror}", file=str(path)) from error
    return sources


def read_catalogue(site_folders: Sequence[str | Path] = ()) -> Catalogue:
    """The packaged catalogue with the site's rules on top.

    Raises:
        ConfigError: as `load_catalogue` does; or Hyperscan refuses an expression of the site's rules.
    """
    site = site_sources(site_folders)
    read = load_catalogue(packaged_sources() | site)
    try:
        check_cores(rule for rule in read.scanned if rule.file in site)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    packaged()  # Asked for in a hurry, when something has failed: its files are parsed here and now.
    return read


def default_cache_folder() -> Path:
    """`$XDG_CACHE_HOME/holdfast`, else `~/.cache/holdfast`, else a folder of this user below the temporary one."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if base:
        return Path(base) / "holdfast"
    with contextlib.suppress(RuntimeError):
        return Path.home() / ".cache" / "holdfast"
    return Path(tempfile.gettempdir()) / f"holdfast-{os.getuid()}"


def read_matcher(catalogue: Catalogue, cache_folder: str | Path | None = None) -> Matcher:
    """A matcher for this catalogue, from the cache when that is good, else compiled (about 0.3 s) and cached.

    Args:
        catalogue: what to compile.
        cache_folder: where; None for the default. A folder that cannot be written only costs the time.

    Raises:
        ConfigError: Hyperscan refuses an expression.
    """
    folder = Path(cache_folder) if cache_folder is not None else default_cache_folder()
    path = folder / f"matcher-{_key(catalogue)}.hs"
    cached = _read(path)
    if cached is not None:
        # The cache's own hash was right, so a refusal means another library version or processor: compile anew.
        with contextlib.suppress(ValueError):
            return Matcher(catalogue, cached)
    try:
        data = compile_database(catalogue)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    _write(path, data)
    return Matcher(catalogue, data)


def is_ours(opened: int) -> bool:
    """Whether an open file is ours or root's, and nobody else may write it."""
    return not foreign(os.fstat(opened))


def is_own_folder(folder: Path) -> bool:
    """Whether it is a folder of ours or root's. Raises OSError."""
    found = folder.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid in {0, os.geteuid()}


def _key(catalogue: Catalogue) -> str:
    machine = f"{catalogue.digest}|{metadata.version('hyperscan')}|{platform.machine()}|{_cpu_flags()}"
    return hashlib.blake2b(machine.encode(), digest_size=12).hexdigest()


def _cpu_flags() -> str:
    """The processor's vector extensions: home folders are shared between machines of several kinds."""
    with contextlib.suppress(OSError), Path("/proc/cpuinfo").open(encoding="ascii", errors="replace") as info:
        for line in info:
            if line.startswith(("flags", "Features")):
                words = set(line.split())
                return ",".join(sorted(words & {"ssse3", "avx2", "avx512bw", "avx512vbmi", "asimd", "sve"}))
    return ""


def _read(path: Path) -> bytes | None:
    try:
        with os.fdopen(open_regular(path, below=path.parent), "rb") as file:
            if not is_ours(file.fileno()):
                return None
            data = file.read()
    except OSError:
        return None
    head = len(_MAGIC) + 32
    body = data[head:]
    whole = data.startswith(_MAGIC) and hashlib.blake2b(body, digest_size=32).digest() == data[len(_MAGIC) : head]
    return body if whole else None


def _write(path: Path, body: bytes) -> None:
    data = _MAGIC + hashlib.blake2b(body, digest_size=32).digest() + body
    # The cache only saves time: a read-only home folder or a full disk must not keep anyone from a diagnosis.
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not is_own_folder(path.parent):
            return
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".matcher-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            Path(name).replace(path)
        except OSError:
            Path(name).unlink(missing_ok=True)

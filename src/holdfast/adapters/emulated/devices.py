"""Makes the folder of a node's emulated GPUs: builds the NVML library once, writes the state, puts the commands there.

The agent of an embedded node calls `prepare` when it starts, the tests and drills do, and the lab can. Building takes
about half a second and is kept in the user's cache by the hash of the source. No other time passes here.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from holdfast.adapters.emulated import layout
from holdfast.errors import UsageError
from holdfast.os.files import foreign, write_whole
from holdfast.os.programs import Command, run_blocking

SOURCE = Path(__file__).with_name("nvml.c")
LIBRARY = "libnvidia-ml.so.1"
COMMANDS = {"nvidia-smi": "smi", "dcgmi": "dcgmi"}
BUILD_LIMIT_S = 60.0
_IDENTITY = "machine"

_SCRIPT = """\
#!{python} -IS
# Emulated: shows the GPUs of {folder}, which no hardware is behind.
import sys
sys.path.insert(0, {source!r})
from pathlib import Path
from holdfast.adapters.emulated.{module} import main
sys.exit(main(sys.argv[1:], Path({folder!r})))
"""


def compiler() -> str:
    """Path of the C compiler, empty when there is none."""
    return next((path for name in ("gcc", "cc", "clang") if (path := shutil.which(name))), "")


def build() -> Path:
    """The library in the user's cache folder, built when this source was never built here.

    Raises:
        UsageError: there is no C compiler, or it refuses the source.
    """
    source = SOURCE.read_bytes()
    folder = _cache()
    built = folder / f"emulated-nvml-{hashlib.blake2b(source, digest_size=8).hexdigest()}.so"
    if built.exists() and not foreign(built.stat()):
        return built
    found = compiler()
    if not found:
        raise UsageError(
            "emulated GPUs need a C compiler to build their NVML library: install gcc, or go on without them"
        )
    folder.mkdir(parents=True, exist_ok=True)
    fresh = folder / f".{built.name}.{os.getpid()}"
    argv = (found, "-shared", "-fPIC", "-O1", "-o", str(fresh), str(SOURCE), "-ldl")
    ran = run_blocking(Command(argv=argv), BUILD_LIMIT_S)
    if ran.code != 0:
        why = f"it did not end within {BUILD_LIMIT_S:g} s" if ran.hung else ran.err.strip()[:200]
        raise UsageError(f"the emulated NVML library could not be built by {found}: {why}")
    fresh.chmod(0o755)  # whatever the umask: one that a group may write would be built again each time
    fresh.replace(built)
    return built


def prepare(folder: Path, gpus: Sequence[tuple[str, str]], *, machine: str = "", booted: str = "") -> Path:
    """Make or refresh the folder of a node's emulated GPUs; returns the path of the state.

    Args:
        folder: where; made when it is missing.
        gpus: `(PCI address, UUID)` of each.
        machine: identity of the machine: another one than before has other GPUs, without history.
        booted: boot id: after another boot, volatile counters are zero again.

    Raises:
        UsageError: see `build`.
    """
    library = build()
    for name in ("lib", "bin"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    link = folder / "lib" / LIBRARY
    if not (link.is_symlink() and link.resolve() == library.resolve()):
        link.unlink(missing_ok=True)
        link.symlink_to(library)
    package_root = str(Path(__file__).resolve().parents[3])
    for command, module in COMMANDS.items():
        path = folder / "bin" / command
        path.write_text(
            _SCRIPT.format(python=sys.executable, source=package_root, module=module, folder=str(folder)),
            encoding="utf-8",
        )
        path.chmod(0o755)
    state, mark = folder / "state", folder / _IDENTITY
    known = mark.read_text(encoding="utf-8").split("\n") if mark.exists() and state.exists() else ["", ""]
    if known[0] != machine or not state.exists():
        write_whole(state, layout.fresh(list(gpus)))
    elif known[1:2] != [booted]:
        with layout.Devices(state) as devices:
            devices.reset()
    mark.write_text(f"{machine}\n{booted}\n", encoding="utf-8")
    return state


def environment(folder: Path, base: dict[str, str]) -> dict[str, str]:
    """`base` with the folder's library and commands in front of all others."""
    first = {"PATH": "bin", "LD_LIBRARY_PATH": "lib"}
    return base | {name: ":".join(filter(None, (str(folder / part), base.get(name)))) for name, part in first.items()}


def root_of(node_dir: Path | None) -> Path:
    """Where /sys and /proc of a node are: an embedded node may have a `sys` folder of its own."""
    return node_dir if node_dir is not None and (node_dir / "sys").is_dir() else Path("/")


def _cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME", "") or (str(Path.home() / ".cache") if os.environ.get("HOME") else "")
    if base:
        return Path(base) / "holdfast"
    # Others may write to the temporary folder: only one that is ours alone may hold code that we load.
    folder = Path(tempfile.gettempdir()) / f"holdfast-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    facts = folder.lstat()
    if facts.st_uid != os.getuid() or facts.st_mode & 0o077 or not stat.S_ISDIR(facts.st_mode):
        raise UsageError(
            f"{folder} belongs to somebody else: set HOME or XDG_CACHE_HOME for the emulated GPUs' library"
        )
    return folder

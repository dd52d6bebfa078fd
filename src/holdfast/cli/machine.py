"""What this machine offers Holdfast: the facts behind `holdfast doctor`. Reads the machine, changes nothing.

Each check answers at once or within its own time limit; a missing tool is "not here", never an error.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import socket
import sys
from collections.abc import Callable
from enum import StrEnum
from functools import partial
from importlib import metadata, util
from pathlib import Path

from msgspec import Struct

from holdfast.lab.packages import advice, missing_packages, search_path
from holdfast.os.files import text_of
from holdfast.os.programs import Command, run_blocking
from holdfast.validate import scheduler

TOOL_LIMIT_S = 5.0
DISK_LOW_BYTES = 2 * 1024**3
FILES_LOW = 4096


class State(StrEnum):
    """How a check ended."""

    OK = "ok"
    MISSING = "missing"
    """Something works less well, or not at all, without it; the advice says how to get it."""
    ABSENT = "not here"
    """Belongs to machines of another kind; nothing to do."""
    BROKEN = "broken"
    """Holdfast cannot do its work."""


class Fact(Struct, frozen=True):
    """One line of the doctor's word."""

    name: str
    state: State
    found: str
    serves: str
    """What it is for."""
    advice: str = ""


def package(name: str) -> str:
    """Version of an installed distribution, empty when it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def tool(argv: list[str]) -> str | None:
    """First line that the tool prints, None when it is not on the PATH, empty when it fails or hangs."""
    if shutil.which(argv[0]) is None:
        return None
    ran = run_blocking(Command(argv=tuple(argv)), TOOL_LIMIT_S)
    lines = (ran.out or ran.err).strip().splitlines()
    return lines[0][:60] if ran.code == 0 and lines else ""


Found = tuple[State, str] | tuple[State, str, str]
"""How a check ended, what it found, and what to do about it."""


def python() -> Found:
    """The interpreter."""
    state = State.OK if sys.version_info >= (3, 11) else State.BROKEN
    return state, sys.version.split()[0], "install Python 3.11 or later"


def torch() -> Found:
    """PyTorch, without importing it."""
    version = package("torch")
    if not version or util.find_spec("torch") is None:
        return State.MISSING, "not installed", "pip install torch"
    return State.OK, version


def hyperscan() -> Found:
    """The matcher's engine; it needs SSSE3 on x86."""
    try:
        import hyperscan as engine  # noqa: PLC0415 - it loads a native library that may not fit this processor
    except ImportError as error:
        return State.BROKEN, str(error)[:60], "pip install hyperscan"
    return State.OK, str(getattr(engine, "__version__", package("hyperscan")))


def py_spy() -> Found:
    """Stacks of ranks without telemetry."""
    path = shutil.which("py-spy") or shutil.which("py-spy", path=str(Path(sys.executable).parent))
    if path is None:
        return State.MISSING, "not found", "pip install py-spy"
    level = text_of(Path("/proc/sys/kernel/yama/ptrace_scope")) or "0"
    if level in {"0", "1"} or os.geteuid() == 0:
        return State.OK, package("py-spy")
    return State.MISSING, f"ptrace_scope is {level}", "sysctl kernel.yama.ptrace_scope=1"


def inotify() -> Found:
    """How many files can be watched without polling."""
    watches = int(text_of(Path("/proc/sys/fs/inotify/max_user_watches")) or 0)
    if not watches:
        return State.MISSING, "none", "files are polled instead"
    state = State.OK if watches >= 8192 else State.MISSING
    return state, f"{watches} watches", "sysctl fs.inotify.max_user_watches=65536"


def kernel_log() -> Found:
    """Xid lines come from here."""
    for path in (Path("/dev/kmsg"), Path("/var/log/kern.log"), Path("/var/log/messages")):
        if path.exists() and os.access(path, os.R_OK):
            return State.OK, str(path)
    return State.MISSING, "not readable", "run the agent as root or in group adm"


def disk() -> Found:
    """Room for journals and logs."""
    free = shutil.disk_usage(Path.home()).free
    state = State.OK if free >= DISK_LOW_BYTES else State.MISSING
    return state, f"{free / 1024**3:.1f} GiB free at {Path.home()}", "free some space"


def open_files() -> Found:
    """A controller with thousands of agents holds many sockets."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    state = State.OK if hard == resource.RLIM_INFINITY or hard >= FILES_LOW else State.MISSING
    return state, f"{soft} (up to {hard})", "raise LimitNOFILE"


def loopback() -> Found:
    """The controller listens here by default."""
    with contextlib.closing(socket.socket()) as listener:
        try:
            listener.bind(("127.0.0.1", 0))
        except OSError as error:
            return State.BROKEN, str(error), "bring up lo"
        return State.OK, f"port {listener.getsockname()[1]} was free"


def namespaces() -> Found:
    """Cut-off and powered-off nodes of the Slurm lab are network namespaces."""
    if os.geteuid() == 0 and shutil.which("ip"):
        return State.OK, "root and ip"
    return State.ABSENT, "needs root and iproute2"


def slurm() -> Found:
    """Slurm's commands, and a cluster behind them."""
    version = tool(["sinfo", "--version"])
    if version:
        return State.OK, version
    if version is None:
        return State.ABSENT, "sinfo is not on the PATH"
    return State.ABSENT, f"{slurm_version() or 'its commands are here'}, but no cluster is configured"


def slurm_version() -> str:
    """Of the installed daemons: without slurm.conf Slurm's commands do not say theirs. Empty where there are none."""
    daemons = (
        shutil.which(name, path=search_path(os.environ.get("PATH", os.defpath))) for name in ("slurmctld", "slurmd")
    )
    found = next(filter(None, daemons), None)
    return (tool([found, "-V"]) or "") if found is not None else ""


def slurm_lab() -> Found:
    """The programs of `holdfast lab slurm`."""
    programs, wanted = missing_packages(os.environ.get("PATH", os.defpath), dbd=True)
    if not programs:
        kind = "with a network per node" if os.geteuid() == 0 else "plain: --netns needs root"
        return State.OK, f"{slurm_version()}, {kind}"
    return State.MISSING, f"no {', '.join(programs)}", advice(wanted)


def program(*argv: str) -> Found:
    """A tool that says its version, or the like."""
    line = tool([*argv])
    if line is None:
        return State.ABSENT, f"{argv[0]} is not on the PATH"
    if not line:
        return State.MISSING, f"{' '.join(argv)} failed", f"see why `{' '.join(argv)}` fails"
    return State.OK, line


def lost_nodes() -> Found:
    """Whether Slurm is set so that a job outlives a node that it loses."""
    ran = run_blocking(Command(argv=("scontrol", "show", "config")), TOOL_LIMIT_S)
    if ran.code:
        return State.ABSENT, "no Slurm answers here"
    bad = scheduler.lost_nodes(ran.out)
    if not bad:
        return State.OK, "leave their jobs, which go on"
    return State.MISSING, "; ".join(item.why for item in bad), "; ".join(item.advice for item in bad)


STACKS = "stacks of ranks without telemetry"
CHECKS: tuple[tuple[str, str, Callable[[], Found]], ...] = (
    ("python", "everything", python),
    ("torch", "the demo's job, checkpoints", torch),
    ("hyperscan", "reading logs", hyperscan),
    ("py-spy", STACKS, py_spy),
    ("inotify", "seeing log lines at once", inotify),
    ("kernel log", "GPU, memory and disk faults", kernel_log),
    ("disk", "journals, logs", disk),
    ("open files", "a controller of thousands of agents", open_files),
    ("loopback", "launchers, controller", loopback),
    ("network namespaces", "`holdfast lab slurm up --netns`", namespaces),
    ("Slurm lab", "`holdfast lab slurm`, drills on Slurm", slurm_lab),
    ("nvidia-smi", "GPU facts", partial(program, "nvidia-smi", "--query-gpu=name", "--format=csv,noheader")),
    ("dcgm", "GPU diagnostics", partial(program, "dcgmi", "--version")),
    ("slurm", "jobs and nodes on Slurm", slurm),
    ("munge", "authentication on Slurm", partial(program, "munge", "--version")),
    ("kubectl", "jobs and nodes on Kubernetes", partial(program, "kubectl", "version", "--client")),
    ("lost nodes", "jobs on Slurm that outlive one", lost_nodes),
    ("systemd", "running the agent as a service", partial(program, "systemctl", "--version")),
)
"""Name, what it serves, and what looks."""


def facts() -> list[Fact]:
    """All checks, in the order of the page."""
    made = []
    for name, serves, check in CHECKS:
        state, found, *more = check()
        made.append(Fact(name, state, found, serves, *more))
    return made

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
from importlib import metadata, util
from pathlib import Path

from msgspec import Struct

from holdfast.lab.packages import advice, missing_packages
from holdfast.os.programs import Command, run_blocking

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


def python() -> Fact:
    """The interpreter."""
    version = sys.version.split()[0]
    state = State.OK if sys.version_info >= (3, 11) else State.BROKEN
    return Fact("python", state, version, "everything", "install Python 3.11 or later")


def torch() -> Fact:
    """PyTorch, without importing it."""
    version = package("torch")
    if not version or util.find_spec("torch") is None:
        return Fact("torch", State.MISSING, "not installed", "the demo's job, checkpoints", "pip install torch")
    return Fact("torch", State.OK, version, "the demo's job, checkpoints")


def hyperscan() -> Fact:
    """The matcher's engine; it needs SSSE3 on x86."""
    try:
        import hyperscan as engine  # noqa: PLC0415 - it loads a native library that may not fit this processor

        found = str(getattr(engine, "__version__", package("hyperscan")))
    except ImportError as error:
        return Fact("hyperscan", State.BROKEN, str(error)[:60], "reading logs", "pip install hyperscan")
    return Fact("hyperscan", State.OK, found, "reading logs")


def py_spy() -> Fact:
    """Stacks of ranks without telemetry."""
    path = shutil.which("py-spy") or shutil.which("py-spy", path=str(Path(sys.executable).parent))
    if path is None:
        return Fact("py-spy", State.MISSING, "not found", "stacks of ranks without telemetry", "pip install py-spy")
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    level = scope.read_text(encoding="ascii").strip() if scope.exists() else "0"
    if level in {"0", "1"} or os.geteuid() == 0:
        return Fact("py-spy", State.OK, package("py-spy"), "stacks of ranks without telemetry")
    return Fact("py-spy", State.MISSING, f"ptrace_scope is {level}", "stacks", "sysctl kernel.yama.ptrace_scope=1")


def inotify() -> Fact:
    """How many files can be watched without polling."""
    limit = Path("/proc/sys/fs/inotify/max_user_watches")
    if not limit.exists():
        return Fact("inotify", State.MISSING, "none", "seeing log lines at once", "files are polled instead")
    watches = int(limit.read_text(encoding="ascii"))
    state = State.OK if watches >= 8192 else State.MISSING
    return Fact(
        "inotify", state, f"{watches} watches", "seeing log lines at once", "sysctl fs.inotify.max_user_watches=65536"
    )


def kernel_log() -> Fact:
    """Xid lines come from here."""
    for path in (Path("/dev/kmsg"), Path("/var/log/kern.log"), Path("/var/log/messages")):
        if path.exists() and os.access(path, os.R_OK):
            return Fact("kernel log", State.OK, str(path), "GPU, memory and disk faults")
    return Fact(
        "kernel log",
        State.MISSING,
        "not readable",
        "GPU, memory and disk faults",
        "run the agent as root or in group adm",
    )


def disk() -> Fact:
    """Room for journals and logs."""
    free = shutil.disk_usage(Path.home()).free
    state = State.OK if free >= DISK_LOW_BYTES else State.MISSING
    return Fact("disk", state, f"{free / 1024**3:.1f} GiB free at {Path.home()}", "journals, logs", "free some space")


def open_files() -> Fact:
    """A controller with thousands of agents holds many sockets."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    state = State.OK if hard == resource.RLIM_INFINITY or hard >= FILES_LOW else State.MISSING
    return Fact(
        "open files", state, f"{soft} (up to {hard})", "a controller of thousands of agents", "raise LimitNOFILE"
    )


def loopback() -> Fact:
    """The controller listens here by default."""
    with contextlib.closing(socket.socket()) as listener:
        try:
            listener.bind(("127.0.0.1", 0))
        except OSError as error:
            return Fact("loopback", State.BROKEN, str(error), "launchers, controller", "bring up lo")
        return Fact("loopback", State.OK, f"port {listener.getsockname()[1]} was free", "launchers, controller")


def namespaces() -> Fact:
    """Cut-off and powered-off nodes of the Slurm lab are network namespaces."""
    if os.geteuid() == 0 and shutil.which("ip"):
        return Fact("network namespaces", State.OK, "root and ip", "`holdfast lab slurm up --netns`")
    return Fact("network namespaces", State.ABSENT, "needs root and iproute2", "`holdfast lab slurm up --netns`")


def slurm() -> Fact:
    """Slurm's commands, and a cluster behind them."""
    version = tool(["sinfo", "--version"])
    if version:
        return Fact("slurm", State.OK, version, "jobs and nodes on Slurm")
    # Without slurm.conf the commands do not even say their version.
    found = "sinfo is not on the PATH" if version is None else "its commands are here, but no cluster is configured"
    return Fact("slurm", State.ABSENT, found, "jobs and nodes on Slurm")


def slurm_lab() -> Fact:
    """The programs of `holdfast lab slurm`."""
    programs, wanted = missing_packages(os.environ.get("PATH", os.defpath), dbd=True)
    serves = "`holdfast lab slurm`, drills on Slurm"
    if not programs:
        how = "with a network per node" if os.geteuid() == 0 else "plain: --netns needs root"
        return Fact("Slurm lab", State.OK, how, serves)
    return Fact("Slurm lab", State.MISSING, f"no {', '.join(programs)}", serves, advice(wanted))


def _tool_fact(name: str, argv: list[str], serves: str) -> Callable[[], Fact]:
    def check() -> Fact:
        line = tool(argv)
        if line is None:
            return Fact(name, State.ABSENT, f"{argv[0]} is not on the PATH", serves)
        if not line:
            return Fact(name, State.MISSING, f"{' '.join(argv)} failed", serves, f"see why `{' '.join(argv)}` fails")
        return Fact(name, State.OK, line, serves)

    return check


CHECKS: tuple[Callable[[], Fact], ...] = (
    python,
    torch,
    hyperscan,
    py_spy,
    inotify,
    kernel_log,
    disk,
    open_files,
    loopback,
    namespaces,
    slurm_lab,
    _tool_fact("nvidia-smi", ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], "GPU facts"),
    _tool_fact("dcgm", ["dcgmi", "--version"], "GPU diagnostics"),
    slurm,
    _tool_fact("munge", ["munge", "--version"], "authentication on Slurm"),
    _tool_fact("kubectl", ["kubectl", "version", "--client"], "jobs and nodes on Kubernetes"),
    _tool_fact("systemd", ["systemctl", "--version"], "running the agent as a service"),
)


def facts() -> list[Fact]:
    """All checks, in the order of the page."""
    return [check() for check in CHECKS]

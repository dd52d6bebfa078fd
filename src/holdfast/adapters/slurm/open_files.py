"""Which files Slurm jobs of this node write their output to: found from what their processes have open.

The agent asks, once a second; slurmctld is not asked. A job's processes are those below its slurmstepd, whose title
(`slurmstepd: [4711.batch]`) is believed only of root or of our own user, since a user may write any title. Their stdout
and stderr count, whatever an `srun` or a slurmstepd writes to, and files of theirs with a log's name: a step's
`--output=%x_%j_<date>.log` is found by that too. A job that a Holdfast launcher supervises is left to it; on the other
nodes of a `holdfast srun` its watcher shows that. Several slurmd on one machine, of one cluster or of several that have
given a job the same number, are told apart by what the tasks' environment says.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from holdfast.telemetry.writer import ENV_DIR

PROC = Path("/proc")
_TITLE = re.compile(r"slurmstepd: \[([0-9]+)\.(\w+)\]")
_LOGS = (".log", ".out", ".err", ".txt")
_NOT_OUTPUT = ("/dev/", "/proc/", "/sys/", "/run/")
_LAUNCHERS = ("holdfast", "holdfast.cli.main", "holdfast.cli.entry", "holdfast.launch", "holdfast.launch.step_watch")
FILES_MAX = 64
"""Files followed per job."""
_SLOT_PLACES = ("/dev/shm/", "/run/", "/tmp/")  # noqa: S108 - where a node's own memory and disk are: no look may hang
_SLOT_FOLDERS_MAX = 4


class OpenJob(Struct, frozen=True, kw_only=True):
    """A job with processes on this node."""

    job_id: str
    cluster: str = ""
    restart_count: int = 0
    users: frozenset[int] = frozenset()
    """Numbers of the users whose processes they are; a program that runs as root in a user's job does not count."""
    node: str = ""
    """Node that the processes say they are on: several share a machine in a lab."""
    has_launcher: bool = False
    """Its output is read by the launcher itself."""
    files: tuple[str, ...] = ()
    telemetry: tuple[str, ...] = ()
    """Folders of telemetry slots that its processes name; none of a job with a launcher, which reads them itself."""
    writers: frozenset[int] = frozenset()
    """Processes that name one, each by the number that it knows itself by: that of its own namespace."""


class _Origin(Struct, frozen=True, order=True):
    """Where a step says that it runs."""

    cluster: str = ""
    node: str = ""
    conf: str = ""
    """The slurm.conf of its environment, where it has one: two clusters on one machine may bear one name."""


class _Process(Struct):
    pid: int
    parent: int
    uid: int
    words: tuple[str, ...]


def open_jobs(proc: Path = PROC, conf: str | None = None) -> list[OpenJob]:
    """The jobs of this machine and the files that they write.

    Args:
        proc: where the kernel shows its processes.
        conf: our own slurm.conf, by default as the environment has it: among jobs of one cluster's name and one number
            on one node, those of another slurm.conf are left out.
    """
    if not _has_steps(proc):
        return []
    processes = {process.pid: process for process in _processes(proc)}
    children: dict[int, list[int]] = {}
    for process in processes.values():
        children.setdefault(process.parent, []).append(process.pid)
    trusted = {0, os.geteuid()}
    stepds: dict[str, list[int]] = {}
    for process in processes.values():
        title = _TITLE.match(" ".join(process.words)) if process.uid in trusted else None
        if title is not None:
            stepds.setdefault(title.group(1), []).append(process.pid)
    ours = os.environ.get("SLURM_CONF", "") if conf is None else conf
    return [
        _job(proc, job_id, (origin, among), processes, children)
        for job_id, pids in sorted(stepds.items())
        for origin, among in sorted(_by_origin(proc, job_id, pids, children, ours).items())
    ]


def _by_origin(
    proc: Path, job_id: str, stepds: list[int], children: Mapping[int, list[int]], ours: str
) -> dict[_Origin, list[int]]:
    """The job's slurmstepd by where they run. One that does not say it goes with the others, when those agree."""
    found: dict[_Origin, list[int]] = {}
    for pid in stepds:
        told = next((env for below in _below([pid], children) if (env := _environ(proc, below, job_id))), {})
        words = (told.get(name, "") for name in ("SLURM_CLUSTER_NAME", "SLURMD_NODENAME", "SLURM_CONF"))
        found.setdefault(_Origin(*words), []).append(pid)
    for origin in list(found):
        fuller = [
            other
            for other in found
            if other != origin
            and origin.cluster in {"", other.cluster}
            and origin.node in {"", other.node}
            and origin.conf in {"", other.conf}
        ]
        if len(fuller) == 1:
            found[fuller[0]] += found.pop(origin)
    own = {(origin.cluster, origin.node) for origin in found if ours and origin.conf == ours}
    return {
        origin: pids
        for origin, pids in found.items()
        if origin.conf in {"", ours} or (origin.cluster, origin.node) not in own
    }


def _has_steps(proc: Path) -> bool:
    for entry in os.scandir(proc):
        if entry.name.isdecimal():
            with contextlib.suppress(OSError):
                if (proc / entry.name / "comm").read_bytes().startswith(b"slurmstepd"):
                    return True
    return False


def _job(
    proc: Path,
    job_id: str,
    where: tuple[_Origin, list[int]],
    processes: Mapping[int, _Process],
    children: Mapping[int, list[int]],
) -> OpenJob:
    origin, stepds = where
    tree = list(_below(stepds, children))
    environ = next((told for pid in tree if (told := _environ(proc, pid, job_id))), {})
    launcher = False
    files: dict[tuple[int, int], str] = {}
    for pid in tree:
        process = processes[pid]
        launcher = launcher or any(os.path.basename(w) in _LAUNCHERS for w in process.words[:6])  # noqa: PTH119 - words
        for descriptor, path, identity in _written(proc, pid):
            tool = process.words[:1] and os.path.basename(process.words[0]) == "srun"  # noqa: PTH119 - a word of argv
            if descriptor in {1, 2} or tool or path.endswith(_LOGS):
                files.setdefault(identity, path)
    for pid in stepds:
        for _, path, identity in _written(proc, pid):
            if "slurmd" not in os.path.basename(path):  # noqa: PTH119 - its own log
                files.setdefault(identity, path)
    restarts = environ.get("SLURM_RESTART_COUNT", "0")
    telemetry, writers = ((), frozenset()) if launcher else _telemetry(proc, tree, job_id)
    return OpenJob(
        job_id=job_id,
        cluster=origin.cluster,
        restart_count=int(restarts) if restarts.isdecimal() else 0,
        users=frozenset({processes[pid].uid for pid in tree} - {0}) or frozenset({0}),
        node=origin.node,
        has_launcher=launcher,
        files=tuple(sorted(files.values())[:FILES_MAX]),
        telemetry=telemetry,
        writers=writers,
    )


def _telemetry(proc: Path, tree: list[int], job_id: str) -> tuple[tuple[str, ...], frozenset[int]]:
    """Folders of slots that the job's processes name, and which processes those are; see `OpenJob`."""
    folders: dict[str, None] = {}
    writers: set[int] = set()
    for pid in tree:
        folder = os.path.normpath(_environ(proc, pid, job_id).get(ENV_DIR, ""))
        if folder.startswith(_SLOT_PLACES):
            folders[folder] = None
            writers.add(_own_number(proc, pid))
    return tuple(folders)[:_SLOT_FOLDERS_MAX], frozenset(writers)


def _below(roots: list[int], children: Mapping[int, list[int]]) -> Iterator[int]:
    waiting = [child for root in roots for child in children.get(root, ())]
    while waiting:
        pid = waiting.pop()
        yield pid
        waiting += children.get(pid, ())


def _processes(proc: Path) -> Iterator[_Process]:
    for entry in os.scandir(proc):
        if not entry.name.isdecimal():
            continue
        place = proc / entry.name
        # Processes come and go while one looks.
        with contextlib.suppress(OSError, ValueError, IndexError):
            parent = int((place / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()[1])
            words = (place / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
            yield _Process(int(entry.name), parent, place.stat().st_uid, tuple(word for word in words if word))


def _own_number(proc: Path, pid: int) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        status = (proc / str(pid) / "status").read_text(encoding="utf-8", errors="replace")
        return int(status.partition("\nNSpid:")[2].partition("\n")[0].split()[-1])
    return pid


def _environ(proc: Path, pid: int, job_id: str) -> dict[str, str]:
    with contextlib.suppress(OSError):
        raw = (proc / str(pid) / "environ").read_bytes().decode("utf-8", "replace").split("\0")
        found = dict(pair.split("=", 1) for pair in raw if "=" in pair)
        if found.get("SLURM_JOB_ID") == job_id:
            return found
    return {}


def _written(proc: Path, pid: int) -> Iterator[tuple[int, str, tuple[int, int]]]:
    """Descriptor, path and identity of each regular file that the process has open for writing.

    A process in a container names files as it sees them: under that name this machine has another one, or none.
    """
    with contextlib.suppress(OSError):
        for entry in os.scandir(proc / str(pid) / "fd"):
            with contextlib.suppress(OSError, ValueError):
                path = str(Path(entry.path).readlink())
                if not path.startswith("/") or path.startswith(_NOT_OUTPUT) or path.endswith(" (deleted)"):
                    continue
                found = Path(entry.path).stat()
                info = (proc / str(pid) / "fdinfo" / entry.name).read_text(encoding="ascii")
                flags = int(info.partition("flags:")[2].split()[0], 8)
                if stat.S_ISREG(found.st_mode) and flags & os.O_ACCMODE != os.O_RDONLY:
                    identity = found.st_dev, found.st_ino
                    if (here := seen_here(path, proc / str(pid) / "root", identity)) is not None:
                        yield int(entry.name), here, identity


def seen_here(path: str, root: Path, identity: tuple[int, int]) -> str | None:
    """The name under which this machine has the file that a process with this root names so; None: it has none."""
    for name in (path, f"{root}{path}"):
        with contextlib.suppress(OSError):
            found = Path(name).stat()
            if (found.st_dev, found.st_ino) == identity:
                return name
    return None

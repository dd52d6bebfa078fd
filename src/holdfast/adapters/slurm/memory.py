"""What the adapter must remember between looks and over restarts, because Slurm does not tell it.

Slurm uses ids again and resets the submit time at every requeue, so a job's generation is remembered: it goes on while
the restart count grows, and another owner, name or script begins the next. So does a later submit time without a
greater count, after the id was out of sight. A job that was submitted no later is the same one, whatever was hidden
meanwhile, or forgotten by a slurmctld that was killed before it had saved a requeue. Beside it stand which exclusions
are ours, when the last run was ended, and how often a node's machine was replaced. One line of JSON per change,
appended; read whole at the start, newest last. Times are Unix seconds.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import structlog
from msgspec import Struct
from msgspec.structs import replace

from holdfast.adapters.slurm.asks import ACTIONS, PREFIX
from holdfast.adapters.slurm.node_output import SlurmNode
from holdfast.adapters.slurm.output import SlurmJob
from holdfast.errors import ConfigError
from holdfast.os.files import write_whole

KEPT_MAX = 50_000
"""Jobs remembered; the oldest are forgotten first."""
FILE = "slurm-jobs.jsonl"
MODE = 0o600
"""Of the file: Slurm may hide users and scripts from each other (PrivateData)."""
OUT_OF_SERVICE = frozenset(
    {"DOWN", "DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING", "ERROR", "UNKNOWN", "FUTURE", "MAINT"}
    | {"REBOOT", "REBOOT_ISSUED", "REBOOT_REQUESTED", "POWERED_DOWN", "POWERING_DOWN", "POWERING_UP", "POWER_DOWN"}
)
"""States beside which a node's reason is about now."""

_log = structlog.get_logger("holdfast.slurm")


class JobEntry(Struct, omit_defaults=True):
    """What is remembered of a job id."""

    id: str
    generation: int = 1
    user: str = ""
    name: str = ""
    command: str = ""
    restarts: int = 0
    gone: bool = False
    """Slurm no longer knows the id, or said how the job ended."""
    ours: tuple[str, ...] = ()
    """Nodes in its ExcNodeList that we put there."""
    ended_at: float = 0.0
    """When its last run was seen to be over, after we ended it."""
    released: int = -1
    """Restart count of the run that we released last, until that is seen to have failed."""
    released_at: float = 0.0
    ran: bool = False
    """That run was seen running."""
    submitted_at: float = 0.0
    """As Slurm told it last: never smaller for another job under this id."""
    lost: int = 0
    """Requeues that Slurm made and forgot; counted in `restarts`."""
    over: str = ""
    """Slurm's word for its end, empty while it has none."""
    over_at: float = 0.0
    away: bool = False
    """The last complete look did not show it."""


def _names(entry: JobEntry) -> tuple[str, str, str]:
    return entry.user, entry.name, entry.command


def _is_another(entry: JobEntry, job: SlurmJob) -> bool:
    """Has the id been used again?"""
    if _names(entry) != (job.user, job.name, job.command):
        return True
    if not entry.submitted_at or not job.submitted_at:
        return entry.gone or job.restart_count < entry.restarts
    if job.submitted_at <= entry.submitted_at:
        return False
    unseen = entry.gone or entry.away
    return job.restart_count < entry.restarts or (unseen and job.restart_count == entry.restarts)


class NodeEntry(Struct, omit_defaults=True):
    """What is remembered of a node name."""

    node: str
    machine: int = 1
    """Counts the machines that have answered to the name."""
    boot_at: float = 0.0
    """Boot time by which its newest boot is known."""
    answered_at: float = 0.0
    """Start of the slurmd that answered after our last repair."""
    stale_at: float = 0.0
    """When the reason was set that it still bore while it was in service."""
    partitions: tuple[str, ...] = ()
    """Those that it was in when it was fenced; empty while it is not."""
    comment: str = ""
    """What its comment was before ours."""
    stale_comment: str = ""
    """Our comment, which it still bore after a person took it back into service."""


class _Line(Struct, omit_defaults=True):
    job: JobEntry | None = None
    node: NodeEntry | None = None


class Memory:
    """See the module.

    Args:
        folder: where the file is kept; None: nothing outlives this process.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.jobs: dict[str, JobEntry] = {}
        self.nodes: dict[str, NodeEntry] = {}
        self._live: set[str] = set()
        self._path = folder / FILE if folder is not None else None
        self._lines = 0
        if self._path is not None and self._path.exists():
            self._load(self._path)

    def _load(self, path: Path) -> None:
        decoder = msgspec.json.Decoder(_Line)
        try:
            path.chmod(MODE)  # of a version that left it open to all
            raw = path.read_bytes().splitlines()
        except OSError as error:
            raise ConfigError(f"cannot be read: {error.strerror}", file=str(path)) from error
        for text in raw:
            try:
                line = decoder.decode(text)
            except msgspec.MsgspecError:
                continue  # the last line of a controller that was killed while it wrote
            if line.job is not None:
                self.jobs.pop(line.job.id, None)
                self.jobs[line.job.id] = line.job
            if line.node is not None:
                self.nodes[line.node.node] = line.node
        self._live = {job_id for job_id, entry in self.jobs.items() if not entry.gone}
        self._lines = len(raw)
        self._compact()

    def _compact(self) -> None:
        while len(self.jobs) > KEPT_MAX:
            del self.jobs[next(iter(self.jobs))]
        if self._path is None or self._lines <= 2 * (len(self.jobs) + len(self.nodes)) + 1000:
            return
        lines = [_Line(job=job) for job in self.jobs.values()] + [_Line(node=node) for node in self.nodes.values()]
        write_whole(self._path, b"".join(msgspec.json.encode(line) + b"\n" for line in lines), mode=MODE)
        self._lines = len(lines)

    def _write(self, line: _Line) -> None:
        if self._path is None:
            return
        try:
            with os.fdopen(os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, MODE), "ab") as file:
                file.write(msgspec.json.encode(line) + b"\n")
        except OSError as error:
            # The rules above come to the same answers from a fresh look, but for ids that are used again.
            _log.warning("what is remembered of Slurm's jobs cannot be written", file=str(self._path), why=str(error))
        self._lines += 1
        if self._lines > 4 * KEPT_MAX:
            self._compact()

    def keep(self, entry: JobEntry | NodeEntry) -> None:
        """An entry was changed."""
        self._write(_Line(job=entry) if isinstance(entry, JobEntry) else _Line(node=entry))

    def seen(self, job: SlurmJob) -> JobEntry:
        """The entry of a job that Slurm shows, with its generation."""
        entry = self.jobs.get(job.id)
        if entry is None or _is_another(entry, job):
            made = entry.generation + 1 if entry is not None else 1
            entry = JobEntry(job.id, made, job.user, job.name, job.command, job.restart_count)
        elif not job.states:
            return entry  # it is out of sight
        elif job.restart_count != entry.restarts:
            entry.restarts = max(entry.restarts, job.restart_count)
        elif not entry.away and not entry.gone and job.submitted_at <= entry.submitted_at:
            return entry
        entry.away = entry.gone = False
        entry.submitted_at = max(entry.submitted_at, job.submitted_at)
        self.jobs.pop(job.id, None)
        self.jobs[job.id] = entry
        self._live.add(job.id)
        self.keep(entry)
        return entry

    def corrected(self, job: SlurmJob) -> SlurmJob:
        """The job with a restart count that never falls.

        A slurmctld that is killed within moments of a requeue has not saved it: the job is shown as before, with the
        smaller count and the earlier submit time. Its budget is not given back.
        """
        entry = self.jobs.get(job.id)
        if entry is None or _names(entry) != (job.user, job.name, job.command):
            return job
        count = job.restart_count + entry.lost
        if count < entry.restarts and 0 < job.submitted_at <= entry.submitted_at:
            _log.warning("slurmctld has forgotten a requeue of the job: it still counts", job=job.id)
            entry.lost, count = entry.restarts - job.restart_count, entry.restarts
            self.keep(entry)
        known = replace(job, restart_count=count)
        return job if _is_another(entry, known) else known

    def note_end(self, job: SlurmJob, over: str) -> None:
        """Keep how it ended, or (with an empty word) that it has not."""
        entry = self.seen(job)
        if entry.over != over:
            entry.over, entry.over_at = over, job.ended_at if over else 0.0
            if over and over != "COMPLETED":
                entry.released, entry.ran = -1, False
            self.keep(entry)

    def missing(self, shown: set[str]) -> list[JobEntry]:
        """Entries of jobs that a complete look did not show and that were there before."""
        return [self.jobs[job_id] for job_id in sorted(self._live - shown) if job_id in self.jobs]

    def note_away(self, entry: JobEntry) -> None:
        """A complete look did not show it, and nobody said how it ended."""
        if not entry.away:
            entry.away = True
            self.keep(entry)

    def forget(self, entry: JobEntry) -> None:
        """Slurm no longer knows it: what is submitted later under this id is another job."""
        entry.gone = True
        self._live.discard(entry.id)
        self.keep(entry)

    def without_stale(self, node: SlurmNode) -> SlurmNode:
        """The node without a reason that no longer holds.

        RESUME leaves the reason standing until the node's next allocation (23.11 and later), and what Slurm itself sets
        down or drains meanwhile keeps it. A reason that a node bore while it was in service explains nothing later.
        """
        if not node.reason or not node.reason_at:
            return node
        if not node.states & OUT_OF_SERVICE:
            entry = self.node(node.name)
            if entry.stale_at != node.reason_at:
                entry.stale_at = node.reason_at
                self.keep(entry)
        elif node.name not in self.nodes or self.nodes[node.name].stale_at != node.reason_at:
            return node
        return replace(node, reason="", reason_at=0.0, was_resumed=True)

    def own_reason(self, node: SlurmNode) -> SlurmNode:
        """The node with our reason, which stands in its comment where we marked it in HyperPod's words.

        A person who took it back into service left that comment standing: it explains nothing later.
        """
        if not node.comment.startswith(PREFIX):
            return node
        entry = self.node(node.name)
        if not node.states & OUT_OF_SERVICE:
            if entry.stale_comment != node.comment:
                entry.stale_comment = node.comment
                self.keep(entry)
            return node
        is_own = node.reason in ACTIONS and node.comment != entry.stale_comment
        return replace(node, reason=node.comment) if is_own else node

    def node(self, name: str) -> NodeEntry:
        """The entry of a node, made when there is none."""
        return self.nodes.setdefault(name, NodeEntry(name))

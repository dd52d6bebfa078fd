"""What a schedule left behind: the lines that the jobs' own processes wrote, what Slurm says at the end, what was broken.

Nothing of Holdfast is imported: `checker.py` judges by these alone.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

TASK = """\
# One task: says when it starts, that it lives, and when it ends. Called as: task LOG NODE STEPS FAILS
log=$1 who="${SLURM_RESTART_COUNT:-0} ${HOLDFAST_ATTEMPT:-0} $2 ${SLURM_PROCID:-0}"
say() { echo "$1 $who $EPOCHREALTIME" >>"$log"; }
exec {never}<> <(:)
say start
for ((i = 0; i < $3; i++)); do read -rt 0.1 -u "$never"; say beat; done
case $4 in always) say fail; exit 3 ;; once) [ "${SLURM_RESTART_COUNT:-0}" != 0 ] || { say fail; exit 3; } ;; esac
say end
"""
BEAT_S = 0.1
FINAL = {"COMPLETED", "FAILED", "NODE_FAIL", "CANCELLED", "TIMEOUT", "BOOT_FAIL", "OUT_OF_MEMORY", "DEADLINE"}


@dataclass(frozen=True)
class Line:
    """`start`, `beat`, `fail` or `end` of one task."""

    did: str
    attempt: tuple[int, int]
    """(SLURM_RESTART_COUNT, the launcher's own count)."""
    node: str
    rank: int
    at: float
    """Unix seconds; all nodes are on one machine."""


def read_lines(text: str) -> list[Line]:
    """In the order of their times; a line that was cut off is left out."""
    found = []
    for words in (line.split() for line in text.splitlines()):
        if len(words) == 6:
            did, restart, attempt, node, rank, at = words
            found.append(Line(did, (int(restart), int(attempt)), node, int(rank), float(at)))
    return sorted(found, key=lambda line: line.at)


@dataclass(frozen=True)
class Ran:
    """One job."""

    id: str
    name: str
    ranks: int
    limit: int
    fails: bool
    requeue: bool
    """Slurm refuses to run a job again that has ended under `--no-requeue`, whoever asks."""
    submitted_at: float
    lines: tuple[Line, ...] = ()
    state: str = ""
    """Slurm's last word; empty: neither slurmctld nor accounting know how the job ended."""
    restarts: int = 0

    def __str__(self) -> str:
        turns = [line for index, line in enumerate(self.lines) if line.did != "beat" or self._is_last(index)]
        story = ", ".join(f"{line.did} {line.attempt} {line.node}/{line.rank} {line.at % 1000:.2f}" for line in turns)
        return f"job {self.id} {self.name} {self.state} restarts {self.restarts}: {story}"

    def _is_last(self, index: int) -> bool:
        line = self.lines[index]
        return not any((one.attempt, one.rank) == (line.attempt, line.rank) for one in self.lines[index + 1 :])


@dataclass(frozen=True)
class Broken:
    """A fault that was in force from `began` to `ended`, by the machine's clock."""

    kind: str
    node: str
    began: float
    ended: float
    saved_at: float = 0.0
    """Of `slurmctld killed...`: how old the state is that the next one reads."""


@dataclass(frozen=True)
class Evidence:
    """All of one schedule."""

    jobs: tuple[Ran, ...]
    broken: tuple[Broken, ...]
    fenced: tuple[str, ...] = ()
    """Nodes that Holdfast ordered to be fenced."""
    drained: tuple[str, str] = ("", "")
    """The administrator's: node, reason."""
    drained_at: float = 0.0
    nodes: dict[str, tuple[str, str]] = field(default_factory=dict)
    """State and reason of each node at the end, as `scontrol show node` has them."""
    unrest: str = ""
    """What did not come to rest within the limit."""
    slurmd_timeout_s: float = 6.0

    def __str__(self) -> str:
        faults = [
            f"{fault.kind} {fault.node} {fault.began % 1000:.2f} to {fault.ended % 1000:.2f}, saved {fault.saved_at % 1000:.2f}"
            for fault in self.broken
        ]
        nodes = [
            f"{name} {state} {reason}" for name, (state, reason) in self.nodes.items() if state != "IDLE" or reason
        ]
        return "\n    ".join([*map(str, self.jobs), *faults, *nodes, f"fenced {self.fenced}, drained {self.drained}"])


def affected(fault: Broken, jobs: Iterable[Ran]) -> list[str]:
    """Ids of the jobs that a fault touched: that had a task on the node, or something to hear from the daemon.

    A daemon touches a job that starts, ends or fails while it is away, or waits for its start when it goes.
    """
    hit = []
    for job in jobs:
        if fault.node:
            there = [line for line in job.lines if line.node == fault.node and line.at < fault.began]
            touched = bool(there) and there[-1].did in {"start", "beat"}
        else:
            turns = [line for line in job.lines if line.did != "beat"]
            before = [line for line in turns if line.at < fault.began]
            waits = not before or (before[-1].did == "fail" and len(before) < len(turns))
            touched = waits or any(fault.began <= line.at <= fault.ended for line in turns)
        if touched:
            hit.append(job.id)
    return hit


def fences(journal: Path, since: float) -> tuple[str, ...]:
    """Nodes that were ordered to be fenced since then, read raw from the controller's journal."""
    with contextlib.closing(sqlite3.connect(f"file:{journal}?mode=ro", uri=True, timeout=30.0)) as opened:
        asked = "SELECT DISTINCT node FROM orders WHERE kind = 'quarantine_node' AND issued_at >= ?"
        return tuple(sorted(row[0] for row in opened.execute(asked, (since,))))

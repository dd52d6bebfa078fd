"""How much a finding explains: kinds of evidence, from a warning to a machine that says it is broken. Pure.

`diagnosis` chooses the root by these; what a rule's kind of evidence is follows from its id, severity and domain.
"""

from __future__ import annotations

from enum import IntEnum

from holdfast.decide.waits import WAITS
from holdfast.model.evidence import Domain, Finding, Severity

_OWN_DEATHS = frozenset({"exit.signal.11", "exit.signal.7", "exit.signal.4", "exit.signal.8"})
_VAGUE = (
    "exit.",
    "process.killed",
    "process.terminated_by_signal",
    "process.exited",
    "torch.elastic.",
    "slurm.task.",
    "slurm.container_failed",
    "slurm.spank",
    "slurm.launch_failed",
    "python.interrupt",
    "deepspeed.exit",
    "mpi.abort",
    "mpi.exited",
    "torch.dataloader.crashed",
    "torch.dataloader.killed",
    "generic.",
    "composer.killed",
    "python.spawned.killed",
    "composer.exited",
)
_SPECIFIC_ELASTIC = ("torch.elastic.failed.segfault",)
_PEER_WORDS = (
    "connection", "peer", "nccl", "gloo", "tcpstore", "socket", "broken pipe", "timed out", "timeout", "rendezvous",
    "process group", "processgroup", "store", "eof",
)  # fmt: skip
GENERIC_EXCEPTIONS = ("python.exception", "python.traceback")
_PEER_TYPES = ("Runtime", "Connection", "Timeout", "Dist", "EOF", "BrokenPipe", "OSError", "Socket", "Child")


class Weight(IntEnum):
    """Kinds of candidates; the heavier explains the lighter."""

    WARNING = 0
    """Counts only when a time-out points back at it."""
    SYMPTOM = 1
    """A time-out or hang: says that something is wrong, not what."""
    EXIT = 2
    """An exit code or a kill without a reason."""
    SIGNAL = 3
    """A death that is the rank's own: a segmentation fault and its like."""
    SPECIFIC = 4
    """An error that names its cause."""
    LOST = 5
    """A node is gone."""
    HARDWARE = 6
    """A machine says that it is broken."""


def weight_of(finding: Finding) -> Weight:
    """The kind of evidence that a root-role finding is."""
    rule = finding.rule
    if rule == "node.lost":
        return Weight.LOST
    if rule.startswith(WAITS):
        return Weight.SYMPTOM
    if finding.severity in {Severity.INFO, Severity.WARNING}:
        return Weight.WARNING
    if rule in _OWN_DEATHS or rule in {
        "slurm.task.segfault",
        "python.spawned.signal",
        "process.segfault",
        "python.fatal.segfault",
        "process.busfault",
    }:
        return Weight.SIGNAL
    if rule.startswith(_SPECIFIC_ELASTIC):
        return Weight.SIGNAL
    if rule.startswith(_VAGUE):
        return Weight.EXIT
    if finding.domain is Domain.HARDWARE:
        return Weight.HARDWARE
    if rule.startswith(GENERIC_EXCEPTIONS) and _speaks_of_peers(finding):
        return Weight.EXIT
    return Weight.SPECIFIC


def _speaks_of_peers(finding: Finding) -> bool:
    """An exception that the catalogue does not know, whose words are those of a rank that lost another."""
    if not finding.captures.get("type", "").rpartition(".")[2].startswith(_PEER_TYPES):
        return False
    message = finding.captures.get("message", "").lower()
    return any(word in message for word in _PEER_WORDS)

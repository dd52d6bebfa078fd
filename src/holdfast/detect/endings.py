"""What comes after a log has said that the work is done: processes that end, and what they lose of each other. Pure.

Only such is set aside: a final model that could not be saved, or an evaluation that fails, is a failure of its own.
"""

from __future__ import annotations

from holdfast.model.evidence import Domain, Finding, Role

_ENDS = (
    "exit.",
    "process.",
    "generic.abort",
    "generic.exit",
    "torch.elastic.",
    "torch.dataloader.killed",
    "torch.dataloader.crashed",
    "torch.store",
    "slurm.task.",
    "slurm.step",
    "mpi.",
    "deepspeed.exit",
    "composer.killed",
    "composer.exited",
    "python.spawned.killed",
    "python.interrupt",
    "python.fatal",
    "python.spawned",
    "python.ray",
    "nccl.",
    "gloo.",
    "rccl.",
    "cuda.",
)
"""Rules, by the beginnings of their names, that tell how a process ended or that others were no longer there."""
_EXCEPTIONS = ("python.exception", "python.traceback", "generic.error", "generic.traceback")
_PARTING_TYPES = ("Connection", "BrokenPipe", "EOF", "Timeout", "Dist", "Cancelled", "Shutdown", "SystemExit", "Socket")
_PARTING_WORDS = (
    "connection", "broken pipe", "peer", "process group", "processgroup", "tcpstore", "nccl", "gloo", "socket",
    "closed", "shut down", "shutdown", "shutting down", "interpreter", "killed by signal", "terminated",
    "sigterm", "atexit",
)  # fmt: skip


def is_parting(finding: Finding) -> bool:
    """Whether the finding is what processes leave behind when they end, and not a failure of its own."""
    if finding.role is Role.CASCADE or finding.domain in {Domain.NETWORK, Domain.OPERATOR}:
        return True
    if finding.rule.startswith(_ENDS):
        return True
    if not finding.rule.startswith(_EXCEPTIONS):
        return False
    if finding.captures.get("type", "").rpartition(".")[2].startswith(_PARTING_TYPES):
        return True
    told = f"{finding.captures.get('message', '')} {finding.summary}".lower()
    return any(word in told for word in _PARTING_WORDS)

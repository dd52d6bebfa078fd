"""When a log says how something ended and not why: its verdict is `unknown`, with the candidates.

`detect.explain` asks here at the end. A bare "Killed" is the kernel's doing for memory, the scheduler's, or a person's;
a link that went down is a cause only of what came after it. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.model.evidence import Diagnosis, Finding, Role, Severity

_ENDED_FROM_OUTSIDE = ("process.killed", "slurm.task.killed", "process.terminated", "exit.signal.15", "exit.code.143")
_SAID_BY_RAY = "process.killed.ray"
_OWN_FAULTS = frozenset({"4", "6", "7", "8", "11", "SIGILL", "SIGABRT", "SIGBUS", "SIGFPE", "SIGSEGV"})
"""Signals that a process brings on itself."""
_LAUNCHER_SAYS = (
    "torch.elastic.failed",
    "exit.signal.9",
    "deepspeed.exit.signal",
    "mpi.exited",
    "composer.killed",
    "python.spawned.killed",
)
"""A launcher that saw the process die of the signal names a rank; a bare word of the shell names nothing."""
_LASTING = frozenset({"kernel.link_down"})
"""Warnings that are trouble when nothing says that they passed."""
WHO_KILLED = (
    "No line says who ended it: the kernel or the cgroup for memory (see the node's kernel log), the scheduler (see "
    "its accounting), or a person."
)


def ended_without_reason(diagnosis: Diagnosis, findings: Sequence[Finding]) -> bool:
    """Whether all that is told is a bare "Killed" or "Terminated"."""
    if not diagnosis.cause.startswith(_ENDED_FROM_OUTSIDE) or diagnosis.cause == _SAID_BY_RAY:
        return False
    if any(f.rule == diagnosis.cause and f.captures.get("signal") in _OWN_FAULTS for f in findings):
        return False
    return not any(f.rule.startswith(_LAUNCHER_SAYS) for f in findings)


def lasting_warnings(findings: Sequence[Finding], passed: frozenset[str]) -> list[Finding]:
    """Warnings of a root's kind that did not pass by themselves.

    Args:
        findings: those that the job did not survive.
        passed: ids of findings that a later line takes back.
    """
    return [
        f
        for f in findings
        if f.rule in _LASTING and f.role is Role.ROOT and f.severity is Severity.WARNING and f.id not in passed
    ]

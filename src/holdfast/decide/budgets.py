"""Retries: counted per job, per fingerprint and per node since the last progress, and the crash-loop rule.

The engine charges a restart when it is ordered and resets all counts when the job has made real progress. Fan-out (the
same trouble reported by many ranks of one attempt) is never charged, because charging goes by restarts, not by
findings. No time passes here.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from holdfast.model.cluster import RecoverySpec
from holdfast.model.evidence import Diagnosis, Remedy, Role
from holdfast.model.policy import Limits, Policy, Trouble
from holdfast.model.records import AttemptRecord, Broke, IncidentRecord, JobRecord

_NODE = "node:"
EXEMPT = frozenset({Trouble.HARDWARE, Trouble.NODE_LOST, Trouble.NETWORK, Trouble.PLATFORM, Trouble.BAD_NUMBERS})
"""Troubles whose recurrence says nothing about the job: another node may fail in the same way. Bad numbers have their
own way of going on (one checkpoint further back). All of them still use up the job's budgets."""


class Verdict(Struct, frozen=True):
    """What the fingerprint's history says."""

    stop: bool = False
    """Crash loop: no further restart."""
    climb: bool = False
    """Not the same rung again: take the next one."""
    why: str = ""


def limits_of(policy: Policy, spec: RecoverySpec | None) -> Limits:
    """The policy's limits with the numbers that the job's owner set."""
    limits = policy.limits
    if spec is None or (spec.max_requeues is None and spec.max_in_place is None):
        return limits
    return Limits(
        max_in_place=limits.max_in_place if spec.max_in_place is None else spec.max_in_place,
        max_requeues=limits.max_requeues if spec.max_requeues is None else spec.max_requeues,
        max_same_fingerprint=limits.max_same_fingerprint,
        max_restarts_per_node=limits.max_restarts_per_node,
    )


def fingerprint_of(diagnosis: Diagnosis) -> str:
    """What recurrence is measured by."""
    return diagnosis.fingerprint or diagnosis.cause


def where(attempt: AttemptRecord | None, incident: IncidentRecord) -> Broke:
    """Where this attempt broke, by the incident's evidence."""
    if attempt is None:
        return Broke()
    named = {
        finding.place.node
        for finding in incident.findings
        if finding.attempt == attempt.number and finding.role is Role.ROOT and finding.place.node
    }
    return Broke(tuple(sorted(named)), attempt.last_step)


def _times(job: JobRecord, diagnosis: Diagnosis, broke: Broke) -> int:
    """How often this crash has been answered with a restart since the last progress.

    What broke on other nodes, and further on than the time before, is another crash of its kind: on thousands of nodes
    two ranks may die of signal 11 between two checkpoints and have nothing to do with each other. A loop comes no
    further, or names the same node again. Such crashes go on using up the job's restarts and requeues.
    """
    name = fingerprint_of(diagnosis)
    before = job.broke.get(name)
    if before is not None and before.nodes and broke.nodes and not set(before.nodes) & set(broke.nodes):
        further = before.step is not None and broke.step is not None and broke.step > before.step
        if further:
            return 0
    return job.spent.get(name, 0)


def judge(job: JobRecord, limits: Limits, trouble: Trouble, diagnosis: Diagnosis, broke: Broke) -> Verdict:
    """Has the same root cause come back without progress?

    The owner's own code (application) stops at `max_same_fingerprint`. For a hang or an unknown cause the next rung is
    tried once before that, since other nodes may cure it.
    """
    if trouble in EXEMPT:
        return Verdict()
    times = _times(job, diagnosis, broke) + 1
    if times < limits.max_same_fingerprint:
        return Verdict()
    why = f"{diagnosis.clause} came {times} times with no progress in between"
    if trouble in {Trouble.APPLICATION, Trouble.STORAGE} or times > limits.max_same_fingerprint:
        return Verdict(stop=True, why=f"crash loop: {why}")
    return Verdict(climb=True, why=why)


def charge(
    job: JobRecord,
    remedy: Remedy,
    diagnosis: Diagnosis | None,
    broke: Broke,
    nodes: Iterable[str] = (),
    *,
    attempt: AttemptRecord | None = None,
) -> None:
    """Count one restart of `attempt`, which broke there; `nodes`: to which it is charged as well."""
    if attempt is not None:
        job.charged = (attempt.restart_count, attempt.number)
    if remedy is Remedy.RESTART_IN_PLACE:
        job.in_place += 1
    else:
        job.requeues += 1
    if diagnosis is not None:
        name = fingerprint_of(diagnosis)
        job.spent[name] = _times(job, diagnosis, broke) + 1
        job.broke[name] = broke
    for node in nodes:
        job.spent[_NODE + node] = job.spent.get(_NODE + node, 0) + 1


def refund(job: JobRecord, diagnosis: Diagnosis | None, nodes: Iterable[str] = ()) -> None:
    """A restart in place that was charged never came about: what its attempt did counts as before."""
    job.in_place = max(0, job.in_place - 1)
    job.charged = (job.charged[0], job.charged[1] - 1)
    names = [_NODE + node for node in nodes]
    if diagnosis is not None:
        names.append(fingerprint_of(diagnosis))
    for name in names:
        left = job.spent.get(name, 0) - 1
        if left > 0:
            job.spent[name] = left
        else:
            job.spent.pop(name, None)


def node_overdrawn(job: JobRecord, limits: Limits, nodes: Iterable[str]) -> list[str]:
    """Of these nodes, those that have cost the job too many restarts: excluded even on thin evidence."""
    return [node for node in nodes if job.spent.get(_NODE + node, 0) + 1 >= limits.max_restarts_per_node]


def reset(job: JobRecord) -> bool:
    """Progress was made: forget all counts. True when there was something to forget."""
    had = bool(job.in_place or job.requeues or job.spent)
    job.in_place = 0
    job.requeues = 0
    job.rung = 0
    if job.spent:
        job.spent, job.broke = {}, {}
    return had

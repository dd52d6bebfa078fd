"""Judges one schedule from outside evidence: no job lost, none twice at once, none past its limit, no healthy node
fenced, no drain of an administrator touched. Shares no code with Holdfast.

Slurm's own losses are told from ours: a slurmctld that is killed forgets what it had not saved yet. A job that was
submitted, started or ended after the last save and before the kill is not judged by the first two rules, nor a drain
that was made then.
"""

from __future__ import annotations

from itertools import pairwise

from .record import FINAL, Evidence, Ran, affected

OURS = "[holdfast]"
CLOCK_S = 0.5
"""A state file is as new as its content within this."""


def was_forgotten(at: float, seen: Evidence) -> bool:
    """May a slurmctld that was killed have forgotten what happened then?"""
    return any(
        fault.saved_at - CLOCK_S <= at <= fault.began + CLOCK_S
        for fault in seen.broken
        if fault.kind.startswith("slurmctld killed")
    )


def is_slurms_own(job: Ran, seen: Evidence) -> bool:
    """May a turn of this job have been forgotten?"""
    turns = [job.submitted_at, *(line.at for line in job.lines if line.did != "beat")]
    return any(was_forgotten(at, seen) for at in turns)


def no_job_is_lost(seen: Evidence) -> list[str]:
    """Each job has completed, has used its requeues up, or asked for no recovery and was hit or failed."""
    # What Slurm forgot it may also leave behind: a job in its own hold, a node drained for "Duplicate jobid".
    forgot = any(is_slurms_own(job, seen) for job in seen.jobs)
    complaints = [f"not at rest: {seen.unrest}"] if seen.unrest and not forgot else []
    hit = {name for fault in seen.broken for name in affected(fault, seen.jobs)}
    for job in seen.jobs:
        if is_slurms_own(job, seen):
            continue
        if job.state not in FINAL:
            complaints.append(f"job {job.id} is {job.state or 'unknown to Slurm'}")
        elif job.state == "COMPLETED":
            last = max((line.attempt for line in job.lines), default=(0, 0))
            done = {line.rank for line in job.lines if line.did == "end" and line.attempt == last}
            if len(done) != job.ranks:
                complaints.append(f"job {job.id} completed, and ranks {sorted(done)} of {job.ranks} did their work")
        elif not job.requeue and not job.restarts and (job.fails or job.id in hit):
            continue
        elif job.restarts < job.limit or (not job.limit and not job.fails and job.id not in hit):
            complaints.append(f"job {job.id} is {job.state} after {job.restarts} of {job.limit} requeues")
    return complaints


def none_runs_twice_at_once(seen: Evidence) -> list[str]:
    """The first line of an attempt comes after the last one of the attempt before."""
    complaints = []
    for job in seen.jobs:
        if is_slurms_own(job, seen):
            continue
        attempts = sorted({line.attempt for line in job.lines})
        spans = [[line.at for line in job.lines if line.attempt == attempt] for attempt in attempts]
        for (earlier, before), (later, after) in pairwise(zip(attempts, spans, strict=True)):
            if min(after) < max(before):
                both = max(before) - min(after)
                complaints.append(f"job {job.id}: attempts {earlier} and {later} ran at once for {both:.2f} s")
        starts = [(line.attempt, line.rank) for line in job.lines if line.did == "start"]
        if len(starts) != len(set(starts)):
            complaints.append(f"job {job.id}: a rank of one attempt started twice")
    return complaints


def none_is_requeued_past_its_limit(seen: Evidence) -> list[str]:
    """Slurm itself never runs a job again that failed by itself: each such start was asked for by Holdfast."""
    complaints = []
    for job in seen.jobs:
        failed = {line.attempt for line in job.lines if line.did == "fail"}
        again = sum(any(line.attempt > attempt for line in job.lines) for attempt in failed)
        if again > job.limit:
            complaints.append(f"job {job.id} failed and was run again {again} times; its limit is {job.limit}")
    return complaints


def no_healthy_node_is_fenced(seen: Evidence) -> list[str]:
    """A node may be fenced that was switched off, or did not answer for half of SlurmdTimeout or longer."""
    sick = {
        fault.node
        for fault in seen.broken
        if fault.kind == "node off" or fault.ended - fault.began >= seen.slurmd_timeout_s / 2
    }
    marked = {node for node, (_, reason) in seen.nodes.items() if reason.startswith(OURS)}
    return [f"{node} was fenced and had no fault" for node in sorted({*seen.fenced, *marked} - sick)]


def no_drain_of_an_administrator_is_touched(seen: Evidence) -> list[str]:
    """The node is still drained, for the same reason."""
    node, reason = seen.drained
    if not node or was_forgotten(seen.drained_at, seen):
        return []
    state, said = seen.nodes.get(node, ("", ""))
    if "DRAIN" in state and said.startswith(reason):
        return []
    return [f'{node} was drained by an administrator for "{reason}" and is {state} for "{said}"']


RULES = (
    no_job_is_lost,
    none_runs_twice_at_once,
    none_is_requeued_past_its_limit,
    no_healthy_node_is_fenced,
    no_drain_of_an_administrator_is_touched,
)


def judge(seen: Evidence) -> list[str]:
    """Complaints of all rules."""
    return [complaint for rule in RULES for complaint in rule(seen)]

"""Which rung is taken for which trouble, what the counts of retries say, and how far policy lets it go.

`recovery.py` asks `choose` when an attempt is over (and for a first guess before); `repair.py` asks `repair_rungs`. A
rung that cannot work here, or whose budget is used up, is passed over with its reason. A restart is charged when it is
ordered; all counts are reset by progress (`charge` and `reset_budgets` of `records/job.py`). The same trouble reported
by many ranks of one attempt is never charged, because charging goes by restarts. Choice from facts: nothing is ordered
or written here, and no time passes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from msgspec import Struct

from holdfast.model.cluster import RecoverySpec
from holdfast.model.evidence import Diagnosis, Domain, Finding, Remedy, Role
from holdfast.model.policy import Limits, Mode, NodeRules, Policy, Trouble
from holdfast.model.records import AttemptRecord, Broke, IncidentRecord, JobRecord

R = Remedy
NODE_RUNGS = frozenset({R.QUARANTINE, R.RESET_GPU, R.REBOOT, R.REPLACE, R.RETIRE})
REPAIRS = frozenset({R.RESET_GPU, R.REBOOT, R.REPLACE, R.RETIRE})
JOB_RUNGS = frozenset({R.RESTART_IN_PLACE, R.EVACUATE, R.REQUEUE, R.STOP, R.NOTIFY})
RESTART_ME = "exit.restart_me"
"""A job that saved and stopped because it was asked to, or asks for a restart by exit code 85."""
OPERATOR = "operator."
"""Prefix of causes that are a person's word."""
LAUNCHER_LOST = "launcher.lost"
START_TIMEOUT = "start.timeout"
DOMAIN_LOST = "node.lost.domain"
"""A switch, a rack or a power feed has failed under its nodes."""
_BY_PREFIX = (
    ("hang.", Trouble.HANG),
    ("hyperpod.hang", Trouble.HANG),
    ("straggler.", Trouble.STRAGGLER),
    ("loss.", Trouble.BAD_NUMBERS),
    ("node.lost", Trouble.NODE_LOST),
    (RESTART_ME, Trouble.PLATFORM),
    (OPERATOR, Trouble.PLATFORM),
    (LAUNCHER_LOST, Trouble.PLATFORM),
    (START_TIMEOUT, Trouble.PLATFORM),
)
_BY_DOMAIN = {
    Domain.HARDWARE: Trouble.HARDWARE,
    Domain.NETWORK: Trouble.NETWORK,
    Domain.STORAGE: Trouble.STORAGE,
    Domain.PLATFORM: Trouble.PLATFORM,
    Domain.OPERATOR: Trouble.PLATFORM,
    Domain.APPLICATION: Trouble.APPLICATION,
    Domain.UNKNOWN: Trouble.UNKNOWN,
}
NODE_KEY = "node:"
NODE_TROUBLES = frozenset({Trouble.HARDWARE, Trouble.NODE_LOST})
"""Troubles of nodes, which a job leaves."""
EXEMPT = frozenset({Trouble.HARDWARE, Trouble.NODE_LOST, Trouble.NETWORK, Trouble.PLATFORM, Trouble.BAD_NUMBERS})
"""Troubles whose recurrence says nothing about the job: another node may fail in the same way. Bad numbers have their
own way of going on (one checkpoint further back). All of them still use up the job's budgets."""
WOULD = {
    Remedy.RESTART_IN_PLACE: "restarted in place",
    Remedy.EVACUATE: "asked to save and stop",
    Remedy.REQUEUE: "requeued",
    Remedy.STOP: "given up",
    Remedy.QUARANTINE: "quarantined",
    Remedy.RESET_GPU: "repaired by a GPU reset",
    Remedy.REBOOT: "repaired by a reboot",
    Remedy.REPLACE: "replaced",
    Remedy.RETIRE: "retired",
}
"""What would have been done (observe), said of a job or node: `n2 would have been quarantined`."""


def trouble(cause: str, domain: Domain) -> Trouble:
    """The ladder that a cause belongs to: by its rule's family, else by its domain."""
    for prefix, kind in _BY_PREFIX:
        if cause.startswith(prefix):
            return kind
    return _BY_DOMAIN[domain]


def trouble_of(what: Finding | Diagnosis) -> Trouble:
    """As `trouble`, of a finding or a diagnosis."""
    return trouble(what.rule if isinstance(what, Finding) else what.cause, what.domain)


class Facts(Struct, frozen=True):
    """What is true of the job when a rung is chosen."""

    launcher: bool = False
    """A launcher holds the allocation and can restart inside it."""
    enough_nodes: bool = True
    """The allocation still has as many good nodes as an attempt needs."""
    swap: bool = False
    """The bad node can be left inside the allocation: a spare of its own stands by, and the launcher decides."""
    leave_node: bool = False
    """A node of the allocation must be left (hardware, node lost, evacuation)."""
    alive: bool = True
    """The attempt still runs."""
    in_queue: bool = False
    """It is back in the queue already, so a requeue costs nothing more."""
    evacuated: bool = False
    """It has saved and stopped for this incident."""
    asked: bool = False
    """A person wished for this, or it left its node in time: no failure, so it costs no retry."""
    moved: bool = True
    """The attempt completed at least one step."""
    broke: Broke = Broke()
    """Where the attempt broke."""


class Choice(Struct, frozen=True):
    """A rung and why; `passed` are the rungs that were passed over, with reasons."""

    remedy: Remedy
    why: str = ""
    passed: tuple[str, ...] = ()


def choose(job: JobRecord, policy: Policy, diagnosis: Diagnosis, facts: Facts) -> Choice:
    """The rung of the job's ladder to take now."""
    kind = trouble_of(diagnosis)
    limits = limits_of(policy, job.view.recovery)
    ladder = [rung for rung in policy.ladders.get(kind, ()) if rung in JOB_RUNGS]
    if not ladder:
        return Choice(R.NONE, f"the ladder for {kind} troubles does nothing to jobs")
    verdict = verdict_of(job, limits, kind, diagnosis, facts.broke)
    if verdict.stop and R.STOP in ladder:
        spent = R.REQUEUE in ladder and bool(_refusal(R.REQUEUE, job, limits, facts, verdict))
        # Whether the evidence shows a loop may hang on a line read in time; that the limit is reached does not.
        return Choice(R.STOP, f"{verdict.why}, and {_requeues(job)}, which is the limit" if spent else verdict.why)
    if diagnosis.restart_helps is False and diagnosis.confidence >= 0.9 and not facts.moved and R.STOP in ladder:
        return Choice(R.STOP, f"{diagnosis.clause}: a restart does not mend that")
    passed: list[str] = []
    for rung in ladder:
        if rung is R.REQUEUE and facts.swap and job.in_place < limits.max_in_place:
            return Choice(R.RESTART_IN_PLACE, "a spare node of its allocation takes the bad one's place", tuple(passed))
        refusal = _refusal(rung, job, limits, facts, verdict)
        if not refusal:
            plain = f"policy stops jobs with {kind} troubles" if rung is R.STOP else ""
            return Choice(rung, passed[-1] if passed else plain, tuple(passed))
        passed.append(refusal)
    return Choice(R.NONE, passed[-1], tuple(passed))


def _refusal(rung: Remedy, job: JobRecord, limits: Limits, facts: Facts, verdict: Verdict) -> str:
    """Why a rung is passed over; empty: it can be taken."""
    if rung is R.RESTART_IN_PLACE:
        if facts.in_queue or facts.evacuated:
            return "it has left its allocation"
        if not facts.launcher:
            return "no launcher holds its allocation, so it cannot be restarted in place"
        if facts.leave_node and not facts.enough_nodes:
            return "too few good nodes are left in its allocation"
        if job.in_place >= limits.max_in_place:
            return f"{_counted(job.in_place, 'restart')} in place with no progress in between"
        if verdict.climb:
            return verdict.why
    elif rung is R.EVACUATE:
        if facts.evacuated or facts.in_queue:
            return "it has saved and stopped already"
        if not (facts.alive and facts.launcher):
            return "nothing runs that could save a checkpoint"
    elif rung is R.REQUEUE and job.requeues >= limits.max_requeues and not facts.asked:
        return f"{_requeues(job)} with no progress in between, which is the limit"
    return ""


def _requeues(job: JobRecord) -> str:
    return _counted(job.requeues, "requeue")


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def repair_rungs(
    rules: NodeRules, *, always_replace: bool, lemon: bool, hint: Remedy, gpu: str, lost: bool
) -> list[Remedy]:
    """The repairs to try on a node, in order.

    Args:
        rules: the policy of its group.
        always_replace: never reset or reboot.
        lemon: it has failed too often: a person must look at it.
        hint: what the catalogue says about the fault.
        gpu: the GPU at fault, if one is known; without it a reset makes no sense.
        lost: the node does not run, so nothing can be reset on it.
    """
    ladder = list(rules.ladder)
    if R.RETIRE not in ladder:
        ladder.append(R.RETIRE)
    if lemon:
        return [R.RETIRE]
    if always_replace:
        return [rung for rung in ladder if rung not in {R.RESET_GPU, R.REBOOT}]
    if lost or not gpu:
        ladder = [rung for rung in ladder if rung is not R.RESET_GPU]
    if rules.follow_hint and hint in ladder:
        ladder = ladder[ladder.index(hint) :]
    return ladder


def wants_node(finding: Finding) -> bool:
    """Is this a fault of the node it names, so that the node must be fenced?"""
    if not finding.place.node:
        return False
    return finding.domain is Domain.HARDWARE or finding.remedy in NODE_RUNGS or finding.rule.startswith("node.lost")


def disturbs_jobs(finding: Finding) -> bool:
    """Must jobs leave the node at once? A hint of plain QUARANTINE drains: running work goes on."""
    return finding.remedy is not R.QUARANTINE or finding.rule.startswith("node.lost")


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


def where_broke(attempt: AttemptRecord | None, incident: IncidentRecord) -> Broke:
    """Where this attempt broke, by the incident's evidence."""
    if attempt is None:
        return Broke()
    named = {
        finding.place.node
        for finding in incident.findings
        if finding.attempt == attempt.number and finding.role is Role.ROOT and finding.place.node
    }
    return Broke(tuple(sorted(named)), attempt.last_step)


def times_answered(job: JobRecord, diagnosis: Diagnosis, broke: Broke) -> int:
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


def verdict_of(job: JobRecord, limits: Limits, trouble: Trouble, diagnosis: Diagnosis, broke: Broke) -> Verdict:
    """Has the same root cause come back without progress?

    The owner's own code (application) stops at `max_same_fingerprint`. For a hang or an unknown cause the next rung is
    tried once before that, since other nodes may cure it.
    """
    if trouble in EXEMPT:
        return Verdict()
    times = times_answered(job, diagnosis, broke) + 1
    if times < limits.max_same_fingerprint:
        return Verdict()
    why = f"{diagnosis.clause} came {times} times with no progress in between"
    if trouble in {Trouble.APPLICATION, Trouble.STORAGE} or times > limits.max_same_fingerprint:
        return Verdict(stop=True, why=f"crash loop: {why}")
    return Verdict(climb=True, why=why)


def node_overdrawn(job: JobRecord, limits: Limits, nodes: Iterable[str]) -> list[str]:
    """Of these nodes, those that have cost the job too many restarts: excluded even on thin evidence."""
    return [node for node in nodes if job.spent.get(NODE_KEY + node, 0) + 1 >= limits.max_restarts_per_node]


def mode_of(policy: Policy, overrides: Mapping[str, Mapping[str, Mode]], group: str, rung: Remedy) -> Mode:
    """The mode that holds for a rung: override (group and rung, group, rung, all), then the policy's."""
    if overrides:
        for name in (group, "") if group else ("",):
            spoken = overrides.get(name)
            if spoken:
                for key in (str(rung), ""):
                    if key in spoken:
                        return spoken[key]
    return policy.mode_for(rung)


def set_mode(overrides: dict[str, dict[str, Mode]], group: str, rung: str, mode: Mode) -> None:
    """Keep a person's word. Without a rung it replaces what was said about single rungs of that group."""
    if not rung:
        overrides[group] = {"": mode}
    else:
        overrides.setdefault(group, {})[rung] = mode

"""What should be changed? Proposals derived from a report's data by rules that are listed in the docs.

Called by the executive summary and by every form of report. Each rule looks at figures and gives nothing, or a proposal
with its evidence and, where it can be computed, the gain to expect. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import Struct

from holdfast.decide.waits import waited_s
from holdfast.model.cluster import JobKey
from holdfast.model.evidence import Domain, Role
from holdfast.model.records import IncidentRecord, JobRecord, Mark
from holdfast.report.figures import is_failure
from holdfast.report.fleet import Fleet, failures_of
from holdfast.report.interval import IntervalAdvice
from holdfast.report.timeline import PHASE_NAMES, phase_totals, span

NCCL_TIMEOUT_S = 600.0
"""PyTorch's default time-out of an NCCL collective: a fault that is noticed this late was hidden by it."""


class Proposal(Struct, frozen=True):
    """One thing to change."""

    rule: str
    what: str
    evidence: str
    gain: str


Found = tuple[str, str, str]
"""What to change, the evidence and the gain."""


class Facts(Struct, frozen=True):
    """What the rules look at, beside the fleet's figures."""

    counted: Sequence[IncidentRecord]
    """Incidents that opened in the span."""
    intervals: Sequence[IntervalAdvice]
    """Of each job that saves checkpoints."""
    job_of: Mapping[JobKey, JobRecord]


class Rule(Struct, frozen=True):
    """A rule of the list in the docs."""

    name: str
    when: str
    look: Callable[[Facts, Fleet], Iterable[Found]]


def proposals(facts: Facts, fleet: Fleet) -> list[Proposal]:
    """What all rules find, in the order of the list."""
    return [Proposal(rule.name, *found) for rule in RULES for found in rule.look(facts, fleet)]


def _interval(facts: Facts, _: Fleet) -> Iterable[Found]:
    for advice in facts.intervals:
        if advice.is_off and not advice.drills and advice.best_s is not None and advice.actual_s is not None:
            yield (
                f"save job {advice.job} every {advice.best_s:.0f} s instead of every {advice.actual_s:.0f} s",
                advice.says,
                _interval_gain(advice),
            )


def _interval_gain(advice: IntervalAdvice) -> str:
    if advice.loss_actual is None or advice.loss_best is None:
        return ""
    return f"{100 * (advice.loss_actual - advice.loss_best):.1f} % of the job's time"


def _slowest(facts: Facts, _: Fleet) -> Iterable[Found]:
    """The phase on which most of the recoveries' time goes, when it is more than half.

    Left out are those that needed another try: their marks are those of the last one, so that a phase holds the others.
    """
    real = [i for i in facts.counted if i.outcome == "recovered" and is_failure(i) and _tries(facts, i) == 1]
    total = phase_totals(real)
    del total[PHASE_NAMES[Mark.PROVEN]]
    whole = sum(total.values())
    if whole <= 0 or len(real) < 2:
        return
    name, seconds = max(total.items(), key=lambda item: item[1])
    if seconds > whole / 2:
        yield (
            SPEEDUPS.get(name, f'look at the phase "{name}"'),
            f'"{name}" took {seconds:.1f} of {whole:.1f} s ({100 * seconds / whole:.0f} %) of {len(real)} recoveries',
            f"up to {seconds / len(real):.1f} s per recovery",
        )


def _tries(facts: Facts, incident: IncidentRecord) -> int:
    """Attempts that were started until it had recovered."""
    before, after = incident.attempt_before, incident.attempt_after
    if before is None or after is None:
        return 0
    job = facts.job_of.get(incident.jobs[0]) if incident.jobs and after > before + 1 else None
    if job is None:
        return 1
    return sum(1 for attempt in job.attempts if before < attempt.number <= after and attempt.started_at)


SPEEDUPS = {
    "detect": "give the scripts telemetry (two lines), so that a hang is found in step times",
    "diagnose": "shorten waits.settle_s and waits.stacks_s of the policy",
    "stop": "shorten waits.stop_grace_s: the ranks of a broken attempt have nothing to save",
    "requeue": "pull the begin time of a requeued job in, and let jobs keep spares in their allocation",
    "release": "look at the scheduler: holding, excluding and releasing a job takes long",
    "wait for a node": "keep more spares: jobs waited for nodes",
    "start": "keep images and environments on local disks, and use warm standbys (--preload)",
    "first step": "make loading lighter: warm standbys, checkpoints from the local tier, compiled graphs cached",
}


def _spares(facts: Facts, _: Fleet) -> Iterable[Found]:
    waited = [w for i in facts.counted if (w := _wait_for_nodes(i)) > 60.0]
    if waited:
        yield (
            "keep one more spare node",
            f"{len(waited)} recoveries waited more than a minute for nodes, the longest {max(waited) / 60:.0f} min",
            f"{sum(waited) / 3600:.1f} hours of waiting",
        )


def _wait_for_nodes(incident: IncidentRecord) -> float:
    """Seconds from its release to the scheduler's start."""
    return span(incident, Mark.RELEASED, Mark.PLACED) or 0.0


def _lemons(_: Facts, fleet: Fleet) -> Iterable[Found]:
    for name, offences in fleet.lemons:
        if offences >= 3:
            yield (
                f"take {name} out of the cluster for good",
                f"it was fenced {offences} times within 28 days",
                f"about {offences} failures in 28 days",
            )


def _false(_: Facts, fleet: Fleet) -> Iterable[Found]:
    if fleet.fenced >= 5 and fleet.false_alarms * 5 > fleet.fenced:
        yield (
            "let the rules that fenced these nodes only advise ([modes] quarantine = advise) until they are mended",
            f"{fleet.false_alarms} of {fleet.fenced} fenced nodes came back without any repair",
            f"{fleet.false_alarms} nodes not fenced",
        )


def _hidden(facts: Facts, _: Fleet) -> Iterable[Found]:
    # The attempt is looked up only where its start can matter: a year has 100,000 incidents.
    old = [incident for incident in facts.counted if unseen_s(incident) >= NCCL_TIMEOUT_S]
    unseen = [(incident, unseen_s(incident, _began(facts, incident))) for incident in old]
    late = [(incident, seconds) for incident, seconds in unseen if seconds >= NCCL_TIMEOUT_S]
    names, minutes = ", ".join(incident.id for incident, _ in late[:5]), NCCL_TIMEOUT_S / 60
    if late:
        yield (
            "switch hang detection on for these jobs ([hang] enabled) and give their scripts telemetry",
            f"{len(late)} faults were noticed only {minutes:.0f} minutes or more after they happened: {names}",
            f"{sum(seconds for _, seconds in late) / 3600:.1f} hours of detection",
        )


def _began(facts: Facts, incident: IncidentRecord) -> float:
    """When the attempt began that it ended; 0 when that is not known."""
    job = facts.job_of.get(incident.jobs[0]) if incident.jobs else None
    attempt = job.numbered(incident.attempt_before) if job is not None else None
    return attempt.started_at if attempt is not None else 0.0


def unseen_s(incident: IncidentRecord, started_at: float = 0.0) -> float:
    """Seconds for which a fault had lasted when it was detected.

    A time-out, or a hang, is dated by the moment at which it was reported; what it says of how long it had waited by
    then is counted from there, but not from before the attempt's start (`started_at`, Unix seconds).
    """
    detected = incident.marks.get(Mark.DETECTED)
    if detected is None:
        return 0.0
    began = incident.marks.get(Mark.FAULT, detected)
    for finding in incident.findings:
        if finding.role in {Role.ROOT, Role.CASCADE} and (waited := waited_s(finding)) > 0.0:
            began = min(began, max(started_at, finding.at - waited))
    return max(0.0, detected - began)


def _unknown(facts: Facts, fleet: Fleet) -> Iterable[Found]:
    unknown = sum(1 for incident in failures_of(facts.counted) if not _has_cause(incident))
    if unknown * 5 > max(fleet.failures, 4):
        yield (
            "add rules for what these jobs print (holdfast explain, holdfast catalogue test)",
            f"{unknown} of {fleet.failures} failures have no known cause",
            "",
        )


def _has_cause(incident: IncidentRecord) -> bool:
    """Does the diagnosis say more than how a process ended?"""
    found = incident.diagnosis
    if found is None or found.cause == "unknown":
        return False
    return not (found.domain is Domain.UNKNOWN and found.cause.startswith("exit."))


RULES: tuple[Rule, ...] = (
    Rule(
        "checkpoint-interval",
        "a job saves more than twice as often, or as rarely, as loses least, and none of its failures was a drill",
        _interval,
    ),
    Rule(
        "slowest-phase",
        "one phase takes more than half of the time of two recoveries or more, each at the first try",
        _slowest,
    ),
    Rule("spares", "a released job waited more than a minute until the scheduler had nodes for it", _spares),
    Rule("lemon", "a node was fenced three times or more within 28 days", _lemons),
    Rule("false-alarms", "of five or more fenced nodes more than every fifth came back without a repair", _false),
    Rule(
        "hidden-by-time-out",
        "a fault was noticed ten minutes or more after it happened, as its finding or its time-out tells",
        _hidden,
    ),
    Rule(
        "unknown-causes",
        "more than every fifth failure, and one at least, has no known cause: how its processes ended alone is none",
        _unknown,
    ),
)
"""All rules; the docs list is generated from it."""

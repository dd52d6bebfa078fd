"""Did Holdfast do what the scenario expects? Pure: what was seen goes in, checks with expected and actual come out.

Called by the runner when a drill is over. Times are Unix seconds of one machine or of nodes whose clocks agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from msgspec import Struct, field

from holdfast.drill.kinds import Reach
from holdfast.drill.scenario import Scenario
from holdfast.model.evidence import Diagnosis, Remedy
from holdfast.model.orders import (
    AnyOrder,
    CancelTimer,
    CaptureStacks,
    Notify,
    OrderStatus,
    StartTimer,
)
from holdfast.model.records import IncidentRecord, JobState, Mark, OrderRecord

HARMLESS: tuple[type[AnyOrder], ...] = (Notify, StartTimer, CancelTimer, CaptureStacks)
"""Orders that change nothing for the job and its nodes."""
_REFUSED = frozenset({OrderStatus.OBSERVED, OrderStatus.REJECTED, OrderStatus.EXPIRED, OrderStatus.WITHDRAWN})


class Fired(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What was hit, where and when: the truth that the diagnosis is held against."""

    at: float
    node: str = ""
    rank: int | None = None
    step: int | None = None
    detail: str = ""


class Seen(Struct, kw_only=True):
    """Everything that was seen of one drill, from the fault to the end of the watch."""

    fired: Fired | None
    incidents: list[IncidentRecord] = field(default_factory=list)
    """Incidents opened since, about this job or the node that was hit; oldest first."""
    orders: list[OrderRecord] = field(default_factory=list)
    """Orders issued since."""
    attempts_before: int = 0
    attempts_after: int = 0
    job_state: JobState = JobState.WATCHING
    step_s: float = 0.0
    """Median step time before the fault; 0: not known."""
    loss_difference: float | None = None
    """Largest difference to an undisturbed run at the compared steps; None: not compared."""
    node_healthy: bool | None = None
    """Whether the node that was hit takes work again; None: not asked."""
    problem: str = ""
    """Why the drill could not be carried out at all."""


class Check(Struct, frozen=True):
    """One expectation and what came of it."""

    name: str
    passed: bool
    expected: str
    actual: str


def drill_incident(incidents: Sequence[IncidentRecord], drill: str, scenario: Scenario) -> IncidentRecord | None:
    """The incident that the drill's fault led to: marked so, else the first with an expected cause, else the first."""
    for incident in incidents:
        if drill and incident.drill == drill:
            return incident
    for incident in incidents:
        found = incident.diagnosis
        if found and any(fnmatchcase(found.cause, cause) for cause in scenario.expect.causes):
            return incident
    return incidents[0] if incidents else None


def judge(scenario: Scenario, seen: Seen, incident: IncidentRecord | None) -> list[Check]:
    """All checks of a drill; it has passed when every check has. Nothing seen where something was expected fails."""
    if seen.problem:
        return [Check("carried out", passed=False, expected="the fault is injected", actual=seen.problem)]
    expect = scenario.expect
    checks: list[Check] = []
    if expect.must_not_act:
        deeds = ", ".join(str(type(record.order).__struct_config__.tag) for record in acts(seen.orders))
        checks.append(Check("does not act", not deeds, "no order but notices", deeds or "none"))
    elif scenario.definition.reach is not Reach.NOTHING:
        checks += _cause_checks(scenario, seen, incident)
        checks += _time_checks(scenario, seen, incident)
    if expect.must_not_act or expect.attempt_goes_on:
        before, after = seen.attempts_before, seen.attempts_after
        checks.append(Check("attempt goes on", after == before, f"attempt {before}", f"attempt {after}"))
    if expect.node_returns:
        actual = "healthy" if seen.node_healthy else "out of service"
        checks.append(Check("node returns", bool(seen.node_healthy), "healthy", actual))
    if expect.job_completes:
        done = JobState.COMPLETED
        checks.append(Check("job completes", seen.job_state is done, done.value, seen.job_state.value))
    if expect.loss_matches:
        checks.append(_loss(seen, is_left_alone=expect.must_not_act))
    return checks


def _loss(seen: Seen, *, is_left_alone: bool) -> Check:
    """A run that is left alone did no step twice: where no reference can be computed, it is the undisturbed run."""
    same = seen.loss_difference == 0.0 or (is_left_alone and seen.loss_difference is None)
    actual = "not compared" if seen.loss_difference is None else f"difference {seen.loss_difference:g}"
    if is_left_alone and seen.loss_difference is None:
        actual = "no step was done twice, no loss is NaN"
    return Check("loss", same, "as without the fault", actual)


def acts(orders: Sequence[OrderRecord]) -> list[OrderRecord]:
    """Orders that change something for the job or a node, and were not only recorded or turned down."""
    return [record for record in orders if not isinstance(record.order, HARMLESS) and record.status not in _REFUSED]


def _cause_checks(scenario: Scenario, seen: Seen, incident: IncidentRecord | None) -> list[Check]:
    expect = scenario.expect
    found = incident.diagnosis if incident else None
    checks: list[Check] = []
    if expect.causes:
        cause = found.cause if found else "none"
        passed = found is not None and any(fnmatchcase(cause, pattern) for pattern in expect.causes)
        checks.append(Check("cause", passed, " or ".join(expect.causes), cause))
    if expect.domains:
        domain = found.domain.value if found else "none"
        checks.append(Check("domain", domain in expect.domains, " or ".join(expect.domains), domain))
    if expect.suspect:
        checks.append(_suspect_check(expect.suspect, seen.fired, found))
    if expect.remedies:
        taken = _remedies(seen, incident)
        passed = any(remedy in taken for remedy in expect.remedies)
        checks.append(Check("remedy", passed, " or ".join(expect.remedies), ", ".join(taken) or "none"))
    return checks


def _remedies(seen: Seen, incident: IncidentRecord | None) -> list[Remedy]:
    taken = list(incident.remedies) if incident else []
    for record in seen.orders:
        of_incident = incident is not None and record.order.incident in ("", incident.id)
        if of_incident and record.order.remedy is not Remedy.NONE and record.status not in _REFUSED:
            taken.append(record.order.remedy)
    return list(dict.fromkeys(taken))


def _suspect_check(what: str, fired: Fired | None, found: Diagnosis | None) -> Check:
    nodes = found.nodes if found else ()
    ranks = found.ranks if found else ()
    actual = ", ".join([*nodes, *(f"rank {rank}" for rank in ranks)]) or "nobody"
    if fired is None:
        return Check("suspect", passed=False, expected=f"the {what}", actual="nothing was hit")
    if what == "none":
        return Check("suspect", not nodes, "no node", actual)
    if what == "node":
        return Check("suspect", nodes[:1] == (fired.node,), fired.node, actual)
    return Check("suspect", ranks[:1] == (fired.rank,), f"rank {fired.rank}", actual)


def _time_checks(scenario: Scenario, seen: Seen, incident: IncidentRecord | None) -> list[Check]:
    expect = scenario.expect
    marks = incident.marks if incident else {}
    start = seen.fired.at if seen.fired else 0.0
    checks: list[Check] = []
    if expect.detect_s_max is not None or expect.detect_steps_max is not None:
        limit = (expect.detect_s_max or 0.0) + (expect.detect_steps_max or 0.0) * seen.step_s
        checks.append(_within("detected in time", start, marks.get(Mark.DETECTED), limit))
    if expect.recover_s_max is not None:
        checks.append(_within("recovered in time", start, marks.get(Mark.PROVEN), expect.recover_s_max))
    if expect.lost_steps_max is not None:
        lost, most = incident.lost_steps if incident else None, expect.lost_steps_max
        actual = "not known" if lost is None else str(lost)
        checks.append(Check("lost steps", lost is not None and lost <= most, f"at most {most}", actual))
    return checks


def _within(name: str, start: float, end: float | None, limit: float) -> Check:
    took = None if end is None else end - start
    actual = "never" if took is None else f"{took:.2f} s"
    return Check(name, took is not None and took <= limit, f"at most {limit:.1f} s", actual)

"""Verdicts: was each objective of the policy's `[slo]` met? With the arithmetic, so that nobody has to believe it.

Called by every form of report. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from msgspec import Struct

from holdfast.decide.waits import waited_share
from holdfast.model.policy import Slo
from holdfast.model.records import IncidentRecord, Mark
from holdfast.report.figures import Accounting, is_counted, is_failure, opened_in, spread, was_ordered
from holdfast.report.series import Throughput
from holdfast.report.tables import short
from holdfast.report.timeline import spans

MONTH_S = 30 * 86400.0


class Verdict(Struct, frozen=True):
    """One objective."""

    objective: str
    target: str
    measured: str
    passed: bool | None
    """None: nothing happened that it could be judged by."""
    arithmetic: str

    @property
    def word(self) -> str:
        """`PASS`, `FAIL` or `no data`."""
        return "no data" if self.passed is None else "PASS" if self.passed else "FAIL"


def judge(
    slo: Slo,
    *,
    incidents: Sequence[IncidentRecord],
    accounts: Sequence[Accounting],
    throughputs: Sequence[Throughput],
    since: float = 0.0,
    until: float = inf,
) -> list[Verdict]:
    """Every objective that is set, in the order of the policy.

    Args:
        slo: what the policy asks for.
        incidents: of the report's jobs, also from before the span; those that were only observed,
            or that a person ordered, are left out.
        accounts: where the jobs' wall time in the span went, one for each job.
        throughputs: training speed before and after, one for each incident.
        since: begin of the span, Unix seconds: incidents are judged in the span in which they opened, but availability
            by all time without training in it.
        until: its end.
    """
    faults = [i for i in incidents if is_counted(i) and not was_ordered(i)]
    lived = [i for i in faults if i.outcome != "observed"]
    real = opened_in(lived, since, until)
    found = []
    if slo.detect_s:
        found.append(_within("detect", slo.detect_s, spans(opened_in(faults, since, until), Mark.FAULT, Mark.DETECTED)))
    if slo.recover_s:
        found.append(_recovery(slo.recover_s, real))
    if slo.availability:
        found.append(_availability(slo.availability, sum(down_s(i, since, until) for i in lived), accounts))
    if slo.performance_loss:
        found.append(_performance(slo.performance_loss, throughputs))
    return found


def _within(objective: str, limit_s: float, values: Sequence[float | None]) -> Verdict:
    found = spread(values)
    target = f"p95 <= {limit_s:g} s"
    if found.p95 is None:
        return Verdict(objective, target, "-", None, "no incident has both marks")
    passed = found.p95 <= limit_s
    sign = "<=" if passed else ">"
    return Verdict(
        objective, target, f"{found.p95:.3f} s", passed, f"p95 of n={found.n}: {found.p95:.3f} s {sign} {limit_s:g} s"
    )


def _recovery(limit_s: float, real: Sequence[IncidentRecord]) -> Verdict:
    """A job that was given up did not recover in time, however quick the others were."""
    stopped = [i for i in real if is_failure(i)]
    verdict = _within("recover", limit_s, spans(stopped, Mark.FAULT, Mark.FIRST_STEP))
    lost = sum(1 for incident in stopped if incident.outcome == "given_up")
    if not lost:
        return verdict
    share = 100.0 * lost / len(stopped)
    text = f"{lost} of {len(stopped)} ({share:.1f} %) were given up"
    passed = verdict.passed is True and share <= 5.0
    arithmetic = f"{text}; {verdict.arithmetic}" if verdict.passed is not None else text
    return Verdict("recover", verdict.target, verdict.measured, passed, arithmetic)


def _availability(percent: float, down_s: float, accounts: Sequence[Accounting]) -> Verdict:
    """Time from each fault to the first new step, against the time that the jobs were there."""
    target = f">= {percent:g} %"
    wall_s = sum(account.wall_s for account in accounts)
    if wall_s <= 0:
        return Verdict("availability", target, "-", None, "no job ran")
    measured = 100.0 * max(0.0, 1.0 - down_s / wall_s)
    budget_s = wall_s * (1.0 - percent / 100.0)
    month_min = MONTH_S * (1.0 - percent / 100.0) / 60.0
    arithmetic = (
        f"1 - {down_s:.1f} s down / {wall_s:.1f} s of job time = {measured:.3f} %; the budget of this time is"
        f" {budget_s:.1f} s, of a month {month_min:.1f} min"
    )
    return Verdict("availability", target, f"{measured:.3f} %", down_s <= budget_s, arithmetic)


def down_s(incident: IncidentRecord, since: float, until: float) -> float:
    """Seconds of a span in which the jobs of an incident could not train; to its end when no new step came."""
    if incident.attempt_before is None:
        return 0.0
    fault = incident.marks.get(Mark.FAULT, incident.opened_at)
    again = incident.marks.get(Mark.FIRST_STEP) or incident.closed_at or fault
    begin, end = max(since, fault), min(until, again)
    return (end - begin) * still_share(incident) * (len(incident.jobs) or 1) if end > begin else 0.0


def still_share(incident: IncidentRecord) -> float:
    """Share of an incident's time for which its jobs stood still; with a straggler that is what the others waited."""
    cause = incident.diagnosis.cause if incident.diagnosis is not None else ""
    if not cause.startswith("straggler.") or Mark.STOPPED in incident.marks:
        return 1.0
    return max((waited_share(finding) for finding in incident.findings), default=0.0)


def _performance(percent: float, throughputs: Sequence[Throughput]) -> Verdict:
    target = f"loss <= {percent:g} %"
    known = [(one.loss_percent, one) for one in throughputs if one.loss_percent is not None]
    if not known:
        return Verdict("performance", target, "-", None, "throughput was not measured on both sides of any incident")
    worst, one = max(known, key=lambda item: item[0])
    sign = "<=" if worst <= percent else ">"
    rates = f"{short(one.after or 0.0)} / {short(one.before or 0.0)} {one.unit}"
    arithmetic = f"worst of n={len(known)} ({one.incident}): 1 - {rates} = {worst:.1f} % {sign} {percent:g} %"
    return Verdict("performance", target, f"{worst:.1f} %", worst <= percent, arithmetic)

"""A report over simulated months beside the simulation's own truth, which was written down by other code from the world itself."""

from __future__ import annotations

from statistics import fmean
from typing import Any

import msgspec
import pytest

from holdfast.model.records import IncidentRecord
from holdfast.report.attempts import earlier
from holdfast.report.gather import ReportData
from holdfast.sim.options import DAY_S, JobPlan, SimOptions
from holdfast.sim.record import Happening, SimResult
from holdfast.sim.run import simulate

pytestmark = pytest.mark.timeout(900)
CHECKPOINT_S = 4 * 3600.0
PLAN = SimOptions(
    seed=6,
    nodes=10,
    spares=2,
    jobs=(JobPlan(nodes=8, work_s=500 * DAY_S, checkpoint_s=CHECKPOINT_S, save_s=10.0),),
    fault_s=20 * DAY_S,
    failures=100.0,
)
"""Twenty days of eight nodes that fail often: about twenty failures."""


def both(plan: SimOptions) -> tuple[SimResult, ReportData]:
    result = simulate(plan)
    told = [entry.event for entry in result.entries()]
    jobs = [msgspec.structs.replace(job, attempts=[*earlier(job, told), *job.attempts]) for job in result.jobs]
    made = ReportData("t", "sim", result.ended_at, jobs, result.nodes, result.incidents, since=result.started_at)
    return result, made


def times(truth: list[Happening], what: str) -> dict[int, float]:
    """Attempt -> when this happened to it, of those that did not end because the work was done."""
    return {int(h.detail): h.at for h in truth if h.what == what and h.who != "completed"}


def compare(result: SimResult, made: ReportData) -> None:
    """Everything that is compared; no figure is left to luck, so that any seed will do."""
    compare_failures(result, made)
    compare_times(result, made)
    compare_seconds(result, made)


def compare_failures(result: SimResult, made: ReportData) -> None:
    """Each attempt that the world saw end early was ended by an incident, or was a retry inside one.

    A retry that ends before it has saved anything belongs to the trouble that it came out of, which is one failure.
    """
    start, end = times(result.truth, "attempt_started"), times(result.truth, "attempt_ended")
    broken = set(start) & set(end)
    failures = [i for i in made.incidents if i.attempt_before is not None and i.outcome != "observed"]
    assert made.fleet.failures == len(failures)
    assert {i.attempt_before for i in failures} <= broken
    saved = [h.at for h in result.truth if h.what == "checkpoint"]
    for retry in sorted(broken - {i.attempt_before for i in failures}):
        assert not any(start[retry] < at < end[retry] for at in saved), f"attempt {retry} had proven itself"
        assert any(holds(i, retry, start[retry]) for i in failures), f"no incident holds attempt {retry}"
    [truth] = result.ledgers
    assert len(made.jobs[0].attempts) == len(times(result.truth, "attempt_started")) == truth.attempts


def holds(incident: IncidentRecord, attempt: int, at: float) -> bool:
    """Did this attempt begin while the incident was open, behind the one that it ended?"""
    before = incident.attempt_before
    return (
        before is not None
        and before < attempt
        and incident.opened_at <= at
        and (not incident.closed_at or at <= incident.closed_at)
    )


def compare_times(result: SimResult, made: ReportData) -> None:
    """MTTR and MTBF from raw events: first evidence, else what opened the incident, to the first step of the new attempt.
    A hang is as old as it says."""
    raw: list[dict[str, Any]] = [msgspec.to_builtins(entry.event) for entry in result.entries()]
    first = {e["attempt"]: e["at"] for e in raw if e["event"] == "first_step_done"}
    seen = {
        e["finding"]["id"]: (e["finding"].get("at") or e["at"])
        - float(e["finding"].get("captures", {}).get("stuck_s", 0))
        for e in raw
        if e["event"] == "finding_seen"
    }
    opened = {e["seq"]: e["at"] for e in raw}
    back = []
    for incident in made.incidents:
        if incident.outcome == "recovered" and incident.attempt_after in first:
            known = [seen[finding.id] for finding in incident.findings if finding.id in seen]
            fault = min(known) if known else opened[int(incident.id.removeprefix("ic").partition(".")[0])]
            back.append(first[incident.attempt_after] - fault)
    assert made.totals.mttr.n == len(back) > 0
    assert made.totals.mttr.mean == pytest.approx(fmean(back), abs=1e-3)
    starts = {e["attempt"]: e["at"] for e in raw if e["event"] == "attempt_started"}
    ends: dict[int, float] = {}
    for event in raw:
        if event["event"] == "attempt_ended":
            ends.setdefault(event["attempt"], event["at"])
    following = sorted(starts.values())
    up = sum(
        ends.get(n, min((at for at in following if at > begin), default=result.ended_at)) - begin
        for n, begin in starts.items()
    )
    assert made.totals.mtbf_s is not None
    assert made.totals.mtbf_s * made.fleet.failures == pytest.approx(up, rel=0.001)


def compare_seconds(result: SimResult, made: ReportData) -> None:
    """Where the time went, beside the world's ledger.

    Nobody tells a report of the seconds that a save holds a step, or that a straggler takes. What was trained after the
    last checkpoint of all was not computed again, so that the report counts it; the world does not. Steps are told now
    and then, not each: hence 3 % of what was computed again.
    """
    [truth], [found] = result.ledgers, made.accounts
    untold = truth.badput["save"] + truth.badput["slow"] + truth.badput["stall"]
    spread = 0.03 * truth.badput["recompute"] + 60.0
    more = found.productive_s - truth.productive_s - untold
    assert -spread <= more <= CHECKPOINT_S + spread
    assert found.wall_s == pytest.approx(truth.wall_s, abs=120.0)
    assert found.badput["load"] == pytest.approx(truth.badput["load"], rel=0.05)
    lost = found.badput["detect"] + found.badput["stop"] + found.badput["restart"]
    assert lost == pytest.approx(truth.badput["stop"] + truth.badput["start"] + truth.badput["queue"], rel=0.1, abs=180)


def test_twenty_days_agree_with_the_worlds_own_ledger() -> None:
    """Failures, attempts, MTTR, MTBF, and every kind of second."""
    compare(*both(PLAN))


@pytest.mark.soak
@pytest.mark.parametrize("seed", [1, 3, 5, 9, 12])
def test_twenty_days_of_other_seeds_agree_too(seed: int) -> None:
    """3, 5 and 9 have retries that failed inside an incident; in 5 the job is given up."""
    compare(*both(msgspec.structs.replace(PLAN, seed=seed)))


@pytest.mark.soak
def test_a_simulated_year_agrees_with_the_worlds_own_ledger() -> None:
    """The same over a year of the same cluster at a fifth of the failure rate, as long as its job lives."""
    compare(*both(msgspec.structs.replace(PLAN, seed=1, fault_s=365 * DAY_S, failures=20.0)))

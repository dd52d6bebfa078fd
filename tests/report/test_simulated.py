"""A report over simulated months beside the simulation's own truth, which was written down by other code from the world itself."""

from __future__ import annotations

from statistics import fmean
from typing import Any

import msgspec
import pytest

from holdfast.report.gather import ReportData
from holdfast.sim.options import DAY_S, JobPlan, SimOptions
from holdfast.sim.record import SimResult
from holdfast.sim.run import simulate

PLAN = SimOptions(
    seed=5,
    nodes=10,
    spares=2,
    jobs=(JobPlan(nodes=8, work_s=500 * DAY_S, checkpoint_s=4 * 3600.0, save_s=10.0),),
    fault_s=20 * DAY_S,
    failures=100.0,
)
"""Twenty days of eight nodes that fail often: about twenty failures."""


def both(plan: SimOptions) -> tuple[SimResult, ReportData]:
    result = simulate(plan)
    made = ReportData("t", "sim", result.ended_at, result.jobs, result.nodes, result.incidents, since=result.started_at)
    return result, made


def compare(result: SimResult, made: ReportData) -> None:
    """Counts as the world knows them, times from raw events, shares of time beside the ledger's."""
    [truth] = result.ledgers
    raw: list[dict[str, Any]] = [msgspec.to_builtins(entry.event) for entry in result.entries()]
    assert made.fleet.failures == pytest.approx(truth.failures, abs=max(1, 0.05 * truth.failures))
    assert len(made.jobs[0].attempts) == sum(h.what == "attempt_started" for h in result.truth) == truth.attempts
    assert made.totals.ettr == pytest.approx(truth.ettr, abs=0.015)
    assert made.accounts[0].wall_s == pytest.approx(truth.wall_s, rel=0.01)
    assert made.totals.badput["load"] == pytest.approx(truth.badput["load"], rel=0.05)
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
    assert made.totals.mtbf_s * made.fleet.failures == pytest.approx(up, rel=0.01)
    first = {e["attempt"]: e["at"] for e in raw if e["event"] == "first_step_done"}
    seen = {e["finding"]["id"]: (e["finding"].get("at") or e["at"]) for e in raw if e["event"] == "finding_seen"}
    back = [
        first[incident.attempt_after] - min(seen[finding.id] for finding in incident.findings if finding.id in seen)
        for incident in made.incidents
        if incident.outcome == "recovered" and incident.attempt_after in first
    ]
    assert made.totals.mttr.n == pytest.approx(len(back), abs=1)
    assert made.totals.mttr.mean == pytest.approx(fmean(back), rel=0.25)


def test_twenty_days_agree_with_the_worlds_own_ledger() -> None:
    """Failures, attempts, ETTR, load, up time and recovery."""
    compare(*both(PLAN))


@pytest.mark.soak
def test_a_simulated_year_agrees_with_the_worlds_own_ledger() -> None:
    """The same over a year of the same cluster at a tenth of the failure rate."""
    compare(*both(msgspec.structs.replace(PLAN, fault_s=365 * DAY_S, failures=20.0)))

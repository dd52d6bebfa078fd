"""Figures of a report: every second belongs to one category, and totals match simple sums done here by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.model.cluster import JobKey, JobView
from holdfast.model.evidence import Diagnosis, Domain
from holdfast.model.records import AttemptRecord, IncidentRecord, JobRecord, Mark
from holdfast.report.figures import account, spread, totals
from holdfast.report.timeline import seconds_by_phase, span, timeline

KEY = JobKey("lab", "7")


def a_job(*attempts: AttemptRecord) -> JobRecord:
    return JobRecord(key=KEY, view=JobView(KEY), attempts=list(attempts))


def first() -> AttemptRecord:
    return AttemptRecord(0, started_at=100.0, first_step_at=110.0, first_step=1, last_step=41, ended_at=151.5)


def second() -> AttemptRecord:
    return AttemptRecord(
        1, started_at=152.0, first_step_at=155.0, first_step=31, resumed_from=30, last_step=71, ended_at=195.0
    )


def the_incident() -> IncidentRecord:
    return IncidentRecord(
        id="i-1",
        opened_at=151.0,
        jobs=[KEY],
        attempt_before=0,
        attempt_after=1,
        step_before=41,
        step_resumed=30,
        closed_at=170.0,
        outcome="recovered",
        diagnosis=Diagnosis(cause="exit.signal.11", domain=Domain.APPLICATION),
        marks={
            Mark.FAULT: 150.0,
            Mark.DETECTED: 151.0,
            Mark.STOPPED: 151.5,
            Mark.DIAGNOSED: 151.2,
            Mark.STARTED: 152.0,
            Mark.FIRST_STEP: 155.0,
            Mark.PROVEN: 170.0,
        },
    )


def test_every_second_of_a_job_is_accounted_for_once() -> None:
    """Start-up 10 s, 40 s training, 1 s detect, 0.5 s stop, 0.5 s restart, 3 s load, 10 of 40 later intervals again."""
    got = account(a_job(first(), second()), [the_incident()], now=999.0)
    assert got.wall_s == pytest.approx(95.0)
    assert got.badput == pytest.approx(
        {"startup": 10.0, "detect": 1.0, "stop": 0.5, "restart": 0.5, "load": 3.0, "recompute": 10.0, "other": 0.0}
    )
    assert got.productive_s == pytest.approx(70.0)
    assert (got.steps_kept, got.steps_lost) == (71, 11)
    assert got.ettr == pytest.approx(70 / 95)
    assert got.goodput_percent == pytest.approx(100 * 70 / 85)


def test_a_job_that_still_runs_is_counted_up_to_now() -> None:
    """Without an end the wall time runs to `now`."""
    running = AttemptRecord(0, started_at=100.0, first_step_at=110.0, first_step=1, last_step=5)
    got = account(a_job(running), [], now=130.0)
    assert (got.wall_s, got.productive_s, got.badput["startup"]) == (30.0, 20.0, 10.0)


def test_a_job_without_attempts_has_no_time() -> None:
    """Nothing started, nothing to account for."""
    assert account(a_job(), [], now=1.0).ettr is None


def test_totals_name_every_figure() -> None:
    """MTTD 1 s, MTTR 5 s, time to proof 20 s; two up-times over one failure give MTBF."""
    got = totals([a_job(first(), second())], [the_incident()], now=999.0)
    assert (got.mttd.mean, got.mttr.mean, got.mttp.mean) == (1.0, 5.0, 20.0)
    assert got.mtbf_s == pytest.approx(51.5 + 43.0)
    assert (got.by_cause, got.by_domain) == ({"exit.signal.11": 1}, {"application": 1})
    assert (got.incidents, got.recovered, got.open, got.steps_lost) == (1, 1, 0, 11)


def test_incidents_that_were_only_observed_are_not_failures() -> None:
    """In observe mode nothing was done: the record is kept but no figure counts it."""
    seen = the_incident()
    seen.outcome = "observed"
    assert totals([], [seen], now=1.0).incidents == 0


@given(
    st.lists(
        st.tuples(*[st.floats(0, 100)] * 4, st.integers(0, 50), st.integers(0, 50)),
        min_size=1,
        max_size=6,
    )
)
def test_parts_always_add_up_to_the_wall_time(rows: list[tuple[float, float, float, float, int, int]]) -> None:
    """Whatever is missing or out of order, productive time and badput sum to the wall time and none is negative."""
    attempts, incidents, at = [], [], 1000.0
    for number, (gap, load, run, detect, start_step, steps) in enumerate(rows):
        began = at + gap
        end = began + load + run
        attempts.append(
            AttemptRecord(
                number,
                started_at=began,
                first_step_at=began + load,
                first_step=start_step,
                last_step=start_step + steps,
                ended_at=end,
            )
        )
        incidents.append(
            IncidentRecord(
                id=f"i{number}",
                opened_at=end,
                jobs=[KEY],
                attempt_before=number,
                marks={Mark.FAULT: end - detect, Mark.DETECTED: end},
            )
        )
        at = end
    got = account(a_job(*attempts), incidents, now=at)
    assert got.productive_s + sum(got.badput.values()) == pytest.approx(got.wall_s)
    assert min(got.productive_s, *got.badput.values()) >= -1e-6


def test_spread_uses_the_nearest_rank() -> None:
    """Of 20 values the 95th percentile is the 19th smallest."""
    assert spread([float(n) for n in range(1, 21)]).p95 == 19.0
    assert spread([None]).n == 0


def test_phases_add_up_and_name_the_slowest() -> None:
    """Phases are cut in order of time, so a diagnosis written before the stop comes before it."""
    got = timeline(the_incident())
    assert [(p.name, round(p.seconds, 3)) for p in got.phases] == [
        ("detect", 1.0),
        ("diagnose", 0.2),
        ("stop", 0.3),
        ("start", 0.5),
        ("first step", 3.0),
        ("prove", 15.0),
    ]
    assert (got.total_s, got.slowest) == (20.0, "prove")
    assert sum(p.seconds for p in got.phases) == pytest.approx(got.total_s)


def test_a_span_with_a_missing_end_is_unknown() -> None:
    """No mark, no number."""
    assert span(the_incident(), Mark.FAULT, Mark.ISOLATED) is None


def test_the_quick_cut_of_phases_is_the_timelines() -> None:
    """Seconds by phase without the rest of a timeline are the same seconds."""
    incident = the_incident()
    assert seconds_by_phase(incident) == pytest.approx(
        {phase.name: phase.seconds for phase in timeline(incident).phases}
    )

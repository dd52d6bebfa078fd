"""Figures of a report: every second belongs to one category, and totals match simple sums done here by hand."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.report.histories import a_year

from holdfast.model.cluster import JobKey, JobView
from holdfast.model.evidence import Diagnosis, Domain
from holdfast.model.policy import Slo
from holdfast.model.records import AttemptRecord, IncidentRecord, JobRecord, Mark
from holdfast.report.figures import CATEGORIES, account, is_failure, opened_in, spread, totals
from holdfast.report.gather import ReportData, gather
from holdfast.report.interval import advise
from holdfast.report.tables import badput_rows, short
from holdfast.report.timeline import phase_totals, seconds_by_phase, span, spans, timeline
from holdfast.report.trace import Told, trace

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
    assert got.steps_lost == 11
    assert got.ettr == pytest.approx(70 / 95)
    assert got.goodput_percent == pytest.approx(100 * 70 / 85)


def test_a_jobs_start_begins_with_its_nodes() -> None:
    """Nodes at 96, its launcher's first word at 100, its first step at 110: 14 s of start-up, 4 s of them the image's."""
    placed = AttemptRecord(0, placed_at=96.0, started_at=100.0, first_step_at=110.0, first_step=1, last_step=5)
    got = account(a_job(placed), [], now=130.0)
    assert (got.wall_s, got.productive_s, got.badput["startup"], got.image_load_s) == (34.0, 20.0, 14.0, 4.0)
    cut = account(a_job(placed), [], now=130.0, since=98.0)
    assert (cut.wall_s, cut.badput["startup"], cut.image_load_s) == (32.0, 12.0, 2.0)
    assert badput_rows(totals([a_job(placed)], [], 130.0))[0] == ("startup", "14.0 s (image load 4.0 s)")


def test_a_job_that_still_runs_is_counted_up_to_now() -> None:
    """Without an end the wall time runs to `now`."""
    running = AttemptRecord(0, started_at=100.0, first_step_at=110.0, first_step=1, last_step=5)
    got = account(a_job(running), [], now=130.0)
    assert (got.wall_s, got.productive_s, got.badput["startup"]) == (30.0, 20.0, 10.0)


def test_a_job_that_tells_no_steps_is_in_no_ratio() -> None:
    """Up for 51.5 and 43 s between 100 and 195: whether it trained is not known, that it stood still from 150 to 152 is."""
    silent = a_job(
        AttemptRecord(0, started_at=100.0, ended_at=151.5), AttemptRecord(1, started_at=152.0, ended_at=195.0)
    )
    got = account(silent, [the_incident()], now=999.0)
    assert (got.ettr, got.goodput_percent, got.productive_s, got.untold_s) == (None, None, 0.0, 50.0 + 43.0)
    assert {name: value for name, value in got.badput.items() if value} == {"detect": 1.0, "stop": 0.5, "restart": 0.5}
    told = a_job(first(), second())
    told.key = JobKey("lab", "8")
    both = totals([silent, told], [the_incident()], now=999.0)
    assert both.ettr == totals([told], [], now=999.0).ettr
    assert both.mtbf_s == pytest.approx(2 * 94.5)


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


def test_incidents_of_mode_observe_are_counted_without_a_recovery() -> None:
    """What would have been done is written down: a fault that was found, by cause, and no attempt's end as it went on."""
    seen = the_incident()
    seen.outcome, seen.would = "observed", ["7 would have been requeued"]
    seen.marks.pop(Mark.STOPPED, None)
    got = totals([a_job(first())], [seen], now=1.0)
    assert (got.incidents, got.recovered, got.mttd.n, got.mttr.n) == (1, 0, 1, 0)
    assert got.by_cause == {"exit.signal.11": 1}
    assert not is_failure(seen)
    seen.marks[Mark.STOPPED] = 160.0
    assert is_failure(seen)


Rows = list[tuple[float, float, float, float, int, int]]
ROWS = st.lists(
    st.tuples(*[st.floats(0, 100)] * 4, st.integers(0, 50), st.integers(0, 50)),
    min_size=1,
    max_size=6,
)


def a_history(rows: Rows) -> tuple[JobRecord, list[IncidentRecord], float]:
    """A job whose attempts each end with an incident, its incidents, and the end of the last one."""
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
    return a_job(*attempts), incidents, at


@given(ROWS)
def test_parts_always_add_up_to_the_wall_time(rows: Rows) -> None:
    """Whatever is missing or out of order, productive time and badput sum to the wall time and none is negative."""
    job, incidents, at = a_history(rows)
    got = account(job, incidents, now=at)
    assert got.productive_s + sum(got.badput.values()) == pytest.approx(got.wall_s)
    assert min(got.productive_s, *got.badput.values()) >= -1e-6


@given(ROWS, st.lists(st.floats(900.0, 2400.0), min_size=3, max_size=3), st.booleans(), st.sets(st.integers(0, 5)))
def test_two_spans_side_by_side_are_the_span_of_both(
    rows: Rows, cuts: list[float], runs_on: bool, untold: set[int]
) -> None:
    """Every figure over [a, m] plus that over [m, b] is the one over [a, b], wherever the cuts lie in the history."""
    job, incidents, at = a_history(rows)
    for attempt in job.attempts:
        if attempt.number in untold or (runs_on and attempt is job.attempts[-1]):
            attempt.ended_at = 0.0
    begin, middle, end = sorted(cuts)
    now = at + 10.0
    ahead, behind, whole = (
        account(job, incidents, now, since=since, until=until)
        for since, until in ((begin, middle), (middle, end), (begin, end))
    )
    for name in ("wall_s", "productive_s", "up_s", "steps_lost"):
        assert getattr(ahead, name) + getattr(behind, name) == pytest.approx(getattr(whole, name), abs=1e-6), name
    for name in CATEGORIES:
        assert ahead.badput[name] + behind.badput[name] == pytest.approx(whole.badput[name], abs=1e-6), name
    for got in (ahead, behind, whole):
        assert got.productive_s + sum(got.badput.values()) == pytest.approx(got.wall_s, abs=1e-6)
    counted = [*opened_in(incidents, begin, middle), *opened_in(incidents, middle, end)]
    assert counted == opened_in(incidents, begin, end)


HOUR = 3600.0
DAY = 24 * HOUR
BEGAN = 1_700_000_000.0
NOW = BEGAN + 90 * DAY
FAILED_AFTER = (15, 25, 35, 45, 55, 65, 75, 85)
"""Days."""


class Ninety:
    """A job of 90 days on two nodes with eight failures, one every ten days, and an hour for each step.

    Each: detected 1 h after the fault, stopped 2 h, started 3 h, the first step 4 h after it, 11 steps done again.
    """

    def __init__(self) -> None:
        begins = [BEGAN, *(BEGAN + day * DAY + 3 * HOUR for day in FAILED_AFTER)]
        faults = [BEGAN + day * DAY for day in FAILED_AFTER]
        attempts, step = [], 1
        for number, (begin, end) in enumerate(zip(begins, [*faults, NOW], strict=True)):
            last = step + round((end - begin) / HOUR) - 1
            ended_at = end + 2 * HOUR if end < NOW else 0.0
            attempts.append(
                AttemptRecord(
                    number, started_at=begin, first_step_at=begin + HOUR, first_step=step, last_step=last, ended_at=ended_at
                )
            )  # fmt: skip
            step = last - 10
        self.job = JobRecord(key=KEY, view=JobView(KEY, want_nodes=2), attempts=attempts)
        self.found = [
            IncidentRecord(
                id=f"i-{number}",
                opened_at=fault + HOUR,
                closed_at=fault + 5 * HOUR,
                outcome="recovered",
                jobs=[KEY],
                attempt_before=number,
                attempt_after=number + 1,
                marks={Mark.FAULT: fault, Mark.DETECTED: fault + HOUR, Mark.FIRST_STEP: fault + 4 * HOUR},
            )
            for number, fault in enumerate(faults)
        ]

    async def jobs(self, **_: Any) -> list[JobRecord]:
        return [self.job]

    async def incidents(self, **_: Any) -> list[IncidentRecord]:
        return self.found[::-1]

    async def nodes(self, **_: Any) -> list[Any]:
        return []

    orders = events = nodes

    async def samples(self, *_: Any, **__: Any) -> list[Any]:
        return []


def over(since: float, until: float = 0.0) -> ReportData:
    return asyncio.run(gather(Ninety(), title="t", cluster="lab", now=NOW, since=since, until=until))


@pytest.mark.parametrize("until", [0.0, BEGAN + 60 * DAY])
def test_thirty_days_of_ninety_by_hand(until: float) -> None:
    """Three failures in 720 h, of which each costs 1 h to detect, stop, restart, load and 10 h again; so the month before."""
    data = over((until or NOW) - 30 * DAY, until)
    [got] = data.accounts
    hours = {name: value / HOUR for name, value in got.badput.items()}
    assert hours == pytest.approx(
        {"startup": 0, "detect": 3, "stop": 3, "restart": 3, "load": 3, "recompute": 30, "other": 0}, abs=1e-6
    )
    assert (got.wall_s / HOUR, got.up_s / HOUR, got.productive_s / HOUR) == pytest.approx((720, 717, 678))
    assert (data.totals.incidents, data.totals.recovered, data.fleet.failures) == (3, 3, 3)
    assert data.totals.mtbf_s == data.fleet.mtbf_s == pytest.approx(717 / 3 * HOUR)
    assert data.totals.ettr == data.fleet.ettr == pytest.approx(678 / 720)
    assert data.totals.goodput_percent == pytest.approx(100 * 678 / 720)
    assert (data.totals.steps_lost, data.fleet.cost.lost) == (33, pytest.approx(2 * 42))
    data.slo = Slo(availability=99.0)
    assert data.verdicts[0].measured == f"{100 * (1 - 12 / 720):.3f} %"
    advice = advise(data.jobs[0], data.counted, durable=[], saves_s=[], up_s=data.accounts[0].up_s)
    assert (advice.failures, advice.mtbf_s) == (3, pytest.approx(717 / 3 * HOUR))
    assert sum(part.value for part in trace(data, "MTBF", Told()).parts) == pytest.approx(717 * HOUR)
    assert sum(part.value for part in trace(data, "ETTR", Told()).parts) == pytest.approx(678 * HOUR)
    assert sum(part.value for part in trace(data, "lost steps", Told()).parts) == 33
    assert sum(part.value for part in trace(data, "GPU hours lost", Told()).parts) == pytest.approx(84)


def test_the_whole_history_is_bounded_by_nothing() -> None:
    """2160 h, eight failures, an hour of start-up, and MTBF as it was always counted."""
    data = over(0.0)
    assert (data.accounts[0].wall_s / HOUR, data.totals.badput["startup"] / HOUR) == pytest.approx((2160, 1))
    assert data.totals.mtbf_s == pytest.approx((2160 - 8) / 8 * HOUR)
    assert data.totals.steps_lost == 88


def test_an_incident_that_is_open_across_a_boundary_counts_once() -> None:
    """Cut half an hour after it was detected: a failure of the span before, whose time is shared out over both."""
    cut = BEGAN + 85 * DAY + 1.5 * HOUR
    before, after = over(cut - DAY, cut), over(cut)
    assert [len(data.incidents) for data in (before, after)] == [1, 1]
    assert (
        [data.fleet.failures for data in (before, after)]
        == [data.totals.incidents for data in (before, after)]
        == [1, 0]
    )
    lost = [{name: v / HOUR for name, v in data.totals.badput.items() if v > 1e-6} for data in (before, after)]
    assert lost[0] == pytest.approx({"detect": 1.0, "stop": 0.5})
    assert lost[1] == pytest.approx({"stop": 0.5, "restart": 1.0, "load": 1.0, "recompute": 10.0})
    assert [data.totals.steps_lost for data in (before, after)] == [0, 11]
    before.slo = after.slo = Slo(availability=99.0)
    wall = [data.accounts[0].wall_s / HOUR for data in (before, after)]
    assert wall == pytest.approx([24.0, 118.5])
    shown = [data.verdicts[0].measured for data in (before, after)]
    assert shown == [f"{100 * (1 - down / whole):.3f} %" for down, whole in zip((1.5, 2.5), wall, strict=True)]


def test_a_span_before_a_job_began_knows_nothing_of_it() -> None:
    """No job, no time, no failure."""
    data = over(BEGAN - 30 * DAY, BEGAN)
    assert (data.jobs, data.incidents, data.accounts, data.totals.ettr) == ([], [], [], None)


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


def test_many_incidents_at_once_give_what_each_one_gives() -> None:
    """Spans and sums of phases over a year are those of its incidents, one by one."""
    _, _, found = a_year(4, incidents=300)
    for end in (Mark.DETECTED, Mark.FIRST_STEP, Mark.NODE_RETURNED):
        assert spans(found, Mark.FAULT, end) == [span(incident, Mark.FAULT, end) for incident in found]
    totals = phase_totals(found)
    for name, seconds in totals.items():
        assert seconds == pytest.approx(sum(seconds_by_phase(incident).get(name, 0.0) for incident in found))
    assert sum(totals.values()) == pytest.approx(sum(timeline(incident).total_s for incident in found))


@pytest.mark.parametrize(
    ("value", "shown"), [(0.51961, "0.5196"), (942.49, "942.5"), (10_090.4, "10090"), (12_040_000.0, "12040000")]
)
def test_a_large_figure_is_written_out(value: float, shown: str) -> None:
    """Tokens per second of a large job are no powers of ten."""
    assert short(value) == shown

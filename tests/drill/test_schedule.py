"""The calendar of drills: when each is due in its own zone, quiet hours, limits, and what counts as worse."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from holdfast.drill.schedule import Regression, Schedule, check, is_quiet, limit_s, next_due, regressions
from holdfast.errors import UsageError

TOKYO = ZoneInfo("Asia/Tokyo")
NIGHTLY = Schedule(name="nightly", drills=("kill9",), at="03:00", zone="Asia/Tokyo")


def tokyo(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=TOKYO).timestamp()


def test_it_is_due_at_its_hour_in_its_zone() -> None:
    """The same day when the hour is to come, the next day when it has gone by, on its own days only."""
    assert next_due(NIGHTLY, tokyo("2026-11-21T02:59")) == tokyo("2026-11-21T03:00")
    assert next_due(NIGHTLY, tokyo("2026-11-21T03:01")) == tokyo("2026-11-22T03:00")
    mondays = structs.replace(NIGHTLY, days=("mon",))
    assert next_due(mondays, tokyo("2026-11-21T00:00")) == tokyo("2026-11-23T03:00")


def test_quiet_days_are_passed_over() -> None:
    """A freeze over the holidays; a schedule that always falls into quiet hours is never due."""
    frozen = structs.replace(NIGHTLY, quiet=("2026-12-24..2027-01-02",))
    assert next_due(frozen, tokyo("2026-12-23T04:00")) == tokyo("2027-01-03T03:00")
    assert next_due(structs.replace(NIGHTLY, quiet=("02:00-04:00",)), 0.0) is None


def test_a_change_of_clocks_moves_nothing() -> None:
    """Three o'clock in New York is three o'clock on either side of the change."""
    york = structs.replace(NIGHTLY, zone="America/New_York")
    zone = ZoneInfo("America/New_York")
    at = datetime(2026, 10, 30, 12, tzinfo=zone).timestamp()
    for _ in range(4):
        due = next_due(york, at)
        assert due is not None
        assert datetime.fromtimestamp(due, zone).strftime("%H:%M") == "03:00"
        at = due + 1


@pytest.mark.parametrize(
    ("clock", "quiet"), [("21:59", False), ("22:00", True), ("23:59", True), ("05:59", True), ("06:00", False)]
)
def test_quiet_hours_may_cross_midnight(clock: str, quiet: bool) -> None:
    """From 22:00 until 06:00, the end not included."""
    night = structs.replace(NIGHTLY, quiet=("22:00-06:00",))
    assert is_quiet(night, tokyo(f"2026-11-21T{clock}")) is quiet


def test_a_run_ends_when_it_begins_to_be_quiet() -> None:
    """An hour is allowed, and twenty minutes are left."""
    day = structs.replace(NIGHTLY, quiet=("08:00-20:00",))
    assert limit_s(day, tokyo("2026-11-21T07:40")) == 20 * 60
    assert limit_s(day, tokyo("2026-11-21T03:00")) == 3600


@given(st.floats(1.7e9, 1.9e9), st.sampled_from(["", "22:00-06:00", "2026-01-01..2026-12-31"]))
def test_what_is_due_is_never_quiet_nor_past(after: float, quiet: str) -> None:
    """Whatever the moment: the next run is not before it and not in quiet hours."""
    one = structs.replace(NIGHTLY, at="12:30", quiet=(quiet,) if quiet else ())
    due = next_due(one, after)
    assert due is not None
    assert due >= after
    assert not is_quiet(one, due)


@pytest.mark.parametrize(
    ("field", "value", "part"),
    [
        ("at", "3:00", 'at = "3:00" is no time of day'),
        ("at", "24:00", "is no time of day"),
        ("zone", "Asia/Tokio", "is no time zone"),
        ("quiet", ("22-6",), "is neither 22:00-06:00 nor"),
        ("quiet", ("2026-12-24..",), "is neither"),
        ("drills", (), "name a drill"),
        ("name", "../x", "folder's name"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(field: str, value: object, part: str) -> None:
    """It names the schedule and the form to write."""
    with pytest.raises(UsageError) as caught:
        check(structs.replace(NIGHTLY, **{field: value}))
    assert part in str(caught.value)
    check(NIGHTLY)


def run_of(**fields: object) -> dict[str, object]:
    drill = {"name": "kill9", "skipped": False, "passed": True, "reason": "", "detect_s": 1.0, "recover_s": 10.0}
    return {"drills": [drill | fields]}


def test_what_is_worse_is_told() -> None:
    """Failed after it passed; slower by more than the share; a little slower, faster, or skipped is no matter."""
    assert regressions(run_of(), run_of(), slower_by=0.5) == []
    assert regressions(run_of(), run_of(passed=False, reason="cause: x"), slower_by=0.5) == [
        Regression("kill9", "passed", "yes", "cause: x")
    ]
    assert regressions(run_of(), run_of(recover_s=15.1), slower_by=0.5) == [
        Regression("kill9", "recover_s", "10.00 s", "15.10 s")
    ]
    assert regressions(run_of(detect_s=0.01), run_of(detect_s=0.2), slower_by=0.5) == []
    assert regressions(run_of(), run_of(recover_s=14.9, detect_s=0.1), slower_by=0.5) == []
    assert regressions(run_of(passed=False), run_of(passed=False), slower_by=0.5) == []
    assert regressions(run_of(), run_of(skipped=True, passed=False), slower_by=0.5) == []
    assert regressions({}, run_of(passed=False), slower_by=0.5) == []

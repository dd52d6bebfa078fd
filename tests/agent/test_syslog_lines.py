"""Of a file that syslog writes only the kernel's fresh lines count: in both forms of time, over new year and zones."""

import time
from datetime import UTC, datetime

import pytest

from holdfast.agent.syslog_lines import CARRY_MAX, HISTORY_S, KernelLines, Reading, written_at

XID = b"NVRM: Xid (PCI:0000:b9:00): 74, pid=1, NVLink: fatal error"


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


@pytest.fixture(params=["UTC", "America/New_York", "Asia/Tokyo"])
def zone(request, monkeypatch):
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    ("now", "stamp", "away_s"),
    [
        ("2026-11-25T07:12:03", "2026-11-25T07:12:01", 2),
        ("2027-01-01T00:00:02", "2026-12-31T23:59:58", 4),
        ("2026-12-31T23:59:58", "2027-01-01T00:00:02", -4),
        ("2028-03-01T00:00:00", "2028-02-29T00:00:00", 86400),
        ("2027-03-01T00:00:00", "2026-11-05T00:00:00", 116 * 86400),
    ],
)
def test_a_time_without_year_and_zone_is_the_nearest_local_one(zone, now, stamp, away_s):
    """`Nov 25 07:12:01` of a machine in any zone, also around new year and with a day of one digit."""
    local = datetime.fromisoformat(stamp)
    line = f"{local:%b} {local.day:2d} {local:%H:%M:%S} node07 kernel: ".encode() + XID
    then = datetime.fromisoformat(now).timestamp()
    found = written_at(line, then)
    assert found is not None
    assert abs(then - found - away_s) <= (3600 if away_s > 86400 else 0), "daylight saving lies between some of them"


def test_the_hour_that_comes_twice_is_the_nearer_one(monkeypatch):
    """When clocks go back, 01:30 is read as the one that lies closer to now."""
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        for utc in ("2026-11-01T05:30:00", "2026-11-01T06:30:00"):
            assert written_at(b"Nov  1 01:30:00 n1 kernel: " + XID, at(utc) + 5) == at(utc)
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    ("stamp", "utc"),
    [
        (b"2026-11-25T07:12:01.123456+00:00", "2026-11-25T07:12:01.123456"),
        (b"2026-11-25T07:12:01Z", "2026-11-25T07:12:01"),
        (b"2026-11-25T16:12:01,5+0900", "2026-11-25T07:12:01.500"),
        (b"<4>2026-11-25T02:12:01-05:00", "2026-11-25T07:12:01"),
    ],
)
def test_iso_times(stamp, utc):
    """With Z or an offset, with fractions, behind a priority."""
    assert written_at(stamp + b" ip-10-1-2-3 kernel: " + XID, at(utc)) == pytest.approx(at(utc))


@pytest.mark.parametrize(
    "line",
    [
        b"Nov 25 07:12:01 n1 mytool: " + XID,
        b"Nov 25 07:12:01 n1 mytool[12]: kernel: " + XID,
        b"Nov 31 07:12:01 n1 kernel: " + XID,
        b"Foo 25 07:12:01 n1 kernel: " + XID,
        b"kernel: " + XID,
        XID,
        b"",
    ],
)
def test_what_is_not_the_kernels_or_has_no_time_does_not_count(line):
    """Another program's words, a day that there is not, no stamp."""
    assert written_at(line, at("2026-11-25T07:12:03")) is None


def test_old_lines_are_history_unless_nobody_read_them():
    """More than ten minutes ago: history. While no agent was there: news, since nobody has told it."""
    now = at("2026-11-25T12:00:00")

    def line(ago_s: float) -> bytes:
        stamp = datetime.fromtimestamp(now - ago_s, UTC).isoformat()
        return f"{stamp} n1 kernel: ".encode() + XID

    ages = (5.0, HISTORY_S - 1, HISTORY_S + 1, 3 * 3600.0, 86400.0, -30.0)
    first = KernelLines(Reading(started=now))
    assert [first.is_fresh(line(age), now) for age in ages] == [True, True, False, False, False, True]
    after_a_gap = KernelLines(Reading(started=now - 60, away_since=now - 4 * 3600))
    assert [after_a_gap.is_fresh(line(age), now) for age in ages] == [True, True, True, True, False, True]
    after_a_boot = KernelLines(Reading(started=now - 60, away_since=now - 4 * 3600, booted_at=now - 90))
    assert [after_a_boot.is_fresh(line(age), now) for age in ages] == [True, False, False, False, False, True]


def test_what_does_not_count_is_blanked_in_place():
    """Torn lines wait for their end, others keep their length, and a line without end is let go."""
    now = at("2026-11-25T07:12:03")
    fresh = b"2026-11-25T07:12:01Z n1 kernel: " + XID + b"\n"
    data = b"2026-11-25T07:12:01Z n1 sshd[7]: hello\n" + fresh
    lines = KernelLines(Reading(started=now))
    out = lines.sieve(data[:60], now)
    assert (out, lines.pending) == (b" " * 38 + b"\n", 21)
    out += lines.sieve(data[60:], now)
    assert (len(out), out.strip() + b"\n", lines.pending) == (len(data), fresh, 0)
    assert len(lines.sieve(b"x" * (CARRY_MAX + 1), now)) == CARRY_MAX + 1
    assert lines.pending == 0


def test_a_line_of_last_year_is_not_taken_for_one_that_is_to_come(zone):
    """A file that is never rotated: `Dec 30`, read in November, is eleven months old and no news."""
    now = at("2026-11-25T12:00:00")
    for stamp in ("Dec 30", "Jun  2", "Nov 27"):
        line = f"{stamp} 12:00:00 n1 kernel: ".encode() + XID
        assert not KernelLines(Reading(started=now)).is_fresh(line, now), stamp
    assert not KernelLines(Reading(started=now)).is_fresh(b"2027-03-01T12:00:00Z n1 kernel: " + XID, now)


def test_the_end_of_an_endless_line_is_no_line_of_its_own():
    """What a program writes behind 64 KiB of its own line does not pass for the kernel's."""
    now = at("2026-11-25T07:12:03")
    fresh = b"2026-11-25T07:12:01Z n1 kernel: " + XID + b"\n"
    lines = KernelLines(Reading(started=now))
    start = b"2026-11-25T07:12:01Z n1 mytool: " + b"x" * CARRY_MAX
    out = lines.sieve(start, now) + lines.sieve(fresh, now)
    assert len(out) == len(start + fresh)
    assert not out.strip()
    assert lines.sieve(fresh, now) == fresh

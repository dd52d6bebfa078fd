"""The efficiency page over a journal that the real engine wrote, each figure worked out again from its events alone.

Five weeks with three failures at chosen times; nothing here uses the code that it checks: sums, means, a sort.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from statistics import fmean

import pytest
from tests.cockpit.history import DAY_S, FAULTS, NOW, SINCE, Desk, Recorded, history
from tests.cockpit.served import run
from tests.decide.play import KEY

from holdfast.adapters.memory import MemoryJournal, MemoryStore
from holdfast.cockpit.efficiency import Efficiency, Figures
from holdfast.cockpit.pages import Page
from holdfast.cockpit.rendering import parts
from holdfast.errors import JournalError, NotFoundError
from holdfast.model import events as e
from holdfast.model.records import JobRecord
from holdfast.report.tables import seconds


@pytest.fixture(scope="module")
def play() -> Recorded:
    return history()


@pytest.fixture(scope="module")
def made(play: Recorded) -> tuple[Figures, dict[str, dict], str]:
    """Figures, charts by name, and the page's part as HTML."""
    kept: list = []

    async def work() -> None:
        desk, there = Desk(play), asyncio.Event()
        await desk.write()
        efficiency = Efficiency(desk, there.set)  # type: ignore[arg-type]
        page = Page.parse("efficiency?days=30&price=2.5")
        await efficiency.page(page)
        await there.wait()
        values = await efficiency.page(page)
        charts = {name: efficiency.chart(page, name) for name in ("failures", "times")}
        with pytest.raises(NotFoundError):
            efficiency.chart(page, "nothing")
        html = parts("efficiency.html", values)["figures"]
        kept.append((values["found"], charts, html))
        efficiency.stop()

    run(work)
    return kept[0]


# --- the same, from the events ---


def of(play: Recorded, kind: type) -> list:
    return [event for event in play.events if isinstance(event, kind)]


def faults(play: Recorded) -> list[float]:
    return [event.finding.at for event in of(play, e.FindingSeen)]


def detects(play: Recorded) -> list[float]:
    return [event.received_at - event.finding.at for event in of(play, e.FindingSeen)]


def repairs(play: Recorded) -> list[float]:
    """From each fault to the first step after it."""
    firsts = [event.at for event in of(play, e.FirstStepDone)]
    return [min(at for at in firsts if at > fault) - fault for fault in faults(play)]


def runs(play: Recorded) -> list[tuple[float, float]]:
    """Begin and end of each attempt; the last one lasts to now."""
    begins = [event.at for event in of(play, e.AttemptStarted)]
    ends = [event.at for event in of(play, e.AttemptEnded)]
    return list(zip(begins, [*ends, NOW], strict=True))


def up(play: Recorded, begin: float, end: float) -> float:
    """Seconds within a span in which an attempt ran."""
    return sum(max(0.0, min(end, last) - max(begin, first)) for first, last in runs(play))


def weeks(play: Recorded) -> list[tuple[float, float, list[int]]]:
    """Begin, end, and the numbers of the failures of each."""
    found = []
    begin = SINCE
    while begin < NOW:
        end = min(begin + 7 * DAY_S, NOW)
        detected = [fault + late for fault, late in zip(faults(play), detects(play), strict=True)]
        found.append((begin, end, [n for n, at in enumerate(detected) if begin <= at < end]))
        begin += 7 * DAY_S
    return found


def table(figures: Figures, key: str) -> list[tuple[str, ...]]:
    return [row for section in figures.tables if section.key == key for row in section.rows]


def test_the_history_is_what_the_test_thinks(play: Recorded) -> None:
    """Three failures, four attempts, the last of which runs."""
    assert len(faults(play)) == 3
    assert len(of(play, e.AttemptStarted)) == 4
    assert len(of(play, e.AttemptEnded)) == 3
    assert detects(play) == pytest.approx([one[1] for one in FAULTS], abs=0.1)
    assert play.j.key == KEY


def test_mttd_mttr_and_mtbf_of_each_week(play: Recorded, made: tuple) -> None:
    """The table of weeks and both charts: a week without a failure has a rate of 0 and no means; the last is short."""
    figures, charts, html = made
    rows = table(figures, "weeks")
    assert len(rows) == len(weeks(play)) == 5
    rates, mttd, mttr, mtbf = [], [], [], []
    for number, (begin, end, failed) in enumerate(weeks(play)):
        rates.append(1000.0 * len(failed) / (4 * (end - begin) / DAY_S))
        mttd.append(fmean(detects(play)[n] for n in failed) if failed else None)
        mttr.append(fmean(repairs(play)[n] for n in failed) if failed else None)
        mtbf.append(up(play, begin, end) / len(failed) if failed else None)
        told = (seconds(mttd[-1]), seconds(mttr[-1]), seconds(mtbf[-1]))
        assert rows[number] == (f"{number + 1}", f"{len(failed)}", f"{rates[-1]:.4g}", *told)
    assert [len(failed) for _, _, failed in weeks(play)] == [2, 0, 0, 1, 0]
    assert mttd[1] is None
    bars, line = charts["failures"]["data"]
    assert bars["x"] == line["x"] == [round(begin * 1000) for begin, _, _ in weeks(play)]
    assert bars["y"] == pytest.approx(rates)
    assert line["y"] == [one and pytest.approx(one / 3600.0) for one in mtbf]
    detect, again = charts["times"]["data"]
    assert detect["y"] == [one and pytest.approx(one, abs=1e-3) for one in mttd]
    assert again["y"] == [one and pytest.approx(one, abs=1e-3) for one in mttr]
    assert {"bar", "circle", "diamond"} == {
        one.get("marker", {}).get("symbol", one["type"]) for chart in charts.values() for one in chart["data"]
    }, "no two series of a chart differ by colour alone"
    for heading in ("MTTD", "MTTR", "MTBF"):
        assert f">{heading}</th>" in html


def test_figures_of_the_whole_span(play: Recorded, made: tuple) -> None:
    """MTTD, MTTR, MTBF in the table of the fleet, and the share of the time in which it trained for good."""
    figures, _, html = made
    told = dict(row[:2] for row in table(figures, "fleet"))
    assert told["failures that ended an attempt"] == "3"
    assert told["MTTD"].startswith(f"{seconds(fmean(detects(play)))} (n=3, median {seconds(30.0)}, p95 {seconds(40.0)}")
    assert told["MTTR"].startswith(f"{seconds(fmean(repairs(play)))} (n=3")
    assert told["MTBF"] == seconds(up(play, SINCE, NOW) / 3)
    # Every second of the span is in an attempt, or lost between a fault and the first step after it; a part of the
    # following attempt computes again what was lost: 50 steps of the 50 + n that it has told of.
    ettr = float(told["ETTR"])
    lost = sum(repairs(play)) + sum(again(play))
    assert ettr == pytest.approx((NOW - SINCE - lost) / (NOW - SINCE), abs=1e-4)
    assert figures.totals[0][1] in html


def downs(play: Recorded) -> list[float]:
    """From the last checkpoint before each fault, or the span's begin, to the first step after it."""
    saves = [event.received_at for event in of(play, e.CheckpointSaved)]
    firsts = [event.at for event in of(play, e.FirstStepDone)]
    return [
        min(at for at in firsts if at > fault) - max(SINCE, *(at for at in saves if at < fault), 0.0)
        for fault in faults(play)
    ]


def again(play: Recorded) -> list[float]:
    """Seconds of each attempt but the first that went into steps done before, by its own mean pace."""
    found = []
    reached = 0
    starts = of(play, e.FirstStepDone)
    for number, (first, (_, end)) in enumerate(zip(starts, runs(play), strict=True)):
        told = [
            event.step for event in of(play, e.StepReached) + of(play, e.CheckpointSaved) if event.attempt == number
        ]
        last = max([first.step, *told])
        fault = faults(play)[number] if number < len(FAULTS) else end
        if number:
            repeated = min(reached, last) - first.step
            found.append((fault - first.at) * repeated / (last - first.step))
        reached = max(reached, last)
    return found


def test_downtime_by_phase_by_cause_and_by_job(play: Recorded, made: tuple) -> None:
    """Seconds from fault to seen are `detect`; every phase's sum and share, and the cause's median and p95."""
    figures, _, _ = made
    phases = {row[0]: row[1:] for row in table(figures, "downtime")}
    count, total, share, median, p95, longest = phases["detect"]
    assert (count, total) == ("3", seconds(sum(detects(play))))
    assert (median, p95, longest) == (seconds(30.0), seconds(40.0), seconds(40.0))
    proofs = [event.at for event in of(play, e.CheckpointSaved)]
    whole = sum(min(at for at in proofs if at > fault) - fault for fault in faults(play))
    assert share == f"{100 * sum(detects(play)) / whole:.1f} %"
    assert sum(float(row[2].removesuffix(" %")) for row in phases.values()) == pytest.approx(100.0, abs=0.5)
    ((cause, n, found, late, training, _),) = table(figures, "by-cause")
    assert (cause, n) == ("exit.signal.11", "3")
    assert (found, late) == (seconds(30.0), seconds(40.0))
    assert training == seconds(sorted(repairs(play))[1])
    ((job, _, kept, wall, _, where),) = table(figures, "by-job")
    assert (job, wall) == ("7", seconds(NOW - SINCE))
    down = sum(downs(play))
    assert kept == f"{100 * (NOW - SINCE - down) / (NOW - SINCE):.1f} %"
    assert "recompute" in where


# --- figures that are kept ---


class Gated(MemoryJournal):
    """A journal that is slow, or cannot be read, from now on."""

    def __init__(self, store: MemoryStore) -> None:
        super().__init__(store)
        self.gate = asyncio.Event()
        self.gate.set()
        self.broken = ""

    async def jobs(self, *, job: str | Sequence[str] = "") -> list[JobRecord]:
        await self.gate.wait()
        if self.broken:
            raise JournalError(self.broken)
        return await super().jobs(job=job)


class Ticking:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.at = NOW

    def now(self) -> float:
        return self.at


def said(values: dict) -> str:
    """The page's part as text without markup."""
    html = re.sub(r"</?time[^>]*>", "", parts("efficiency.html", values)["figures"])
    return " ".join(re.sub(r"<[^>]*>", " ", html).split())


async def told(there: asyncio.Event) -> None:
    """The page was told that something changed."""
    async with asyncio.timeout(30):
        await there.wait()
    there.clear()


async def kept(play: Recorded) -> tuple[Desk, Gated, Efficiency, asyncio.Event]:
    """An efficiency page whose figures have been made once."""
    desk, there = Desk(play), asyncio.Event()
    desk.clock = Ticking()  # type: ignore[assignment]
    desk.journal = journal = Gated(MemoryStore())
    await desk.write()
    efficiency = Efficiency(desk, there.set)  # type: ignore[arg-type]
    await efficiency.page(ASKED)
    await told(there)
    return desk, journal, efficiency, there


ASKED = Page.parse("efficiency?days=30")


def test_kept_figures_say_how_old_they_are(play: Recorded) -> None:
    """Fresh: their age alone. After three days: a notice with it, until newer ones are there, which have none."""

    async def work() -> None:
        desk, journal, efficiency, there = await kept(play)
        desk.clock.at = NOW + 60.0
        young = said(await efficiency.page(ASKED))
        assert ", 60 s ago." in young
        assert "old" not in young.partition("As of")[0]
        journal.gate.clear()
        desk.clock.at = NOW + 3 * DAY_S
        old = said(await efficiency.page(ASKED))
        assert "These figures are 3 d old. Newer ones are being gathered" in old
        assert ", 3 d ago." in old
        journal.gate.set()
        await told(there)
        new = said(await efficiency.page(ASKED))
        assert ", 0 s ago." in new
        assert "old" not in new.partition("As of")[0]
        efficiency.stop()

    run(work)


def test_a_journal_that_cannot_be_read_is_told_and_asked_again_later(play: Recorded) -> None:
    """The page says why there are no newer figures, keeps the old ones with their age, and does not ask at every look."""

    async def work() -> None:
        desk, journal, efficiency, there = await kept(play)
        desk.clock.at = NOW + 2 * 3600.0
        journal.broken = "the disk is gone"
        await efficiency.page(ASKED)
        await told(there)
        text = said(await efficiency.page(ASKED))
        assert "New figures could not be made: the disk is gone. Those below are old." in text
        assert ", 2 h ago." in text
        journal.broken = ""
        assert "could not be made" in said(await efficiency.page(ASKED)), "not again within half a minute"
        desk.clock.at += 31.0
        await efficiency.page(ASKED)
        await told(there)
        assert "could not be made" not in said(await efficiency.page(ASKED))
        efficiency.stop()

    run(work)

"""Failures are divided by the time for which nodes were observed: the answer does not depend on the span asked for."""

from __future__ import annotations

import asyncio

import pytest
from tests.cockpit.history import Desk, Recorded

from holdfast.model import events as e
from holdfast.report.gather import ReportData, gather

HOUR_S, DAY_S = 3600.0, 86400.0
BEGIN = 1_790_000_000.0
NOW = BEGIN + HOUR_S
CRASHES_S = (600.0, 1800.0)


def an_hour() -> Recorded:
    """A controller that has seen four nodes for an hour, with two failures."""
    play = Recorded()
    play.now = BEGIN
    play.running()
    for number, at in enumerate(CRASHES_S):
        play.now = BEGIN + at
        play.crash(number)
        play.restart_in_place(number + 1)
        play.first_step(number + 1, 10 * number + 1)
        play.checkpoint(number + 1, 10 * number + 5)
    return play


def asked(play: Recorded, *, since: float, now: float = NOW, until: float = 0.0, legacy: bool = False) -> ReportData:
    """The report's data over a journal that the real engine wrote."""

    async def work() -> ReportData:
        desk = Desk(play)
        await desk.write()
        made = await gather(desk.journal, title="", cluster="", now=now, since=since, until=until)
        for node in made.nodes if legacy else ():
            node.first_seen_at = 0.0
        return made

    return asyncio.run(work())


@pytest.fixture(scope="module")
def play() -> Recorded:
    return an_hour()


@pytest.mark.parametrize("legacy", [False, True], ids=["as today", "records from before first_seen_at"])
@pytest.mark.parametrize("span_s", [HOUR_S, DAY_S, 30 * DAY_S, 3650 * DAY_S, None])
def test_the_rate_is_the_same_whatever_span_is_asked_for(play: Recorded, span_s: float | None, legacy: bool) -> None:
    """Two failures of four nodes in an hour, asked for with an hour, a day, 30 days, ten years, and with no span."""
    fleet = asked(play, since=NOW - span_s if span_s else 0.0, legacy=legacy).fleet
    assert (fleet.failures, fleet.nodes) == (2, 4)
    # The play's clock moves by milliseconds between its events, so the nodes are not seen at the very same moment.
    assert fleet.node_days == pytest.approx(4 / 24, rel=1e-3)
    assert fleet.per_1000_node_days == pytest.approx(1000 * 2 / (4 / 24), rel=1e-3)
    assert sum(week.node_days for week in fleet.weeks) == pytest.approx(fleet.node_days)


def test_a_span_from_before_has_no_rate(play: Recorded) -> None:
    """Last month nothing was observed: no rate, rather than a rate of 0; and no trend out of weeks without nodes."""
    before = asked(play, since=BEGIN - 30 * DAY_S, until=BEGIN - DAY_S).fleet
    assert (before.failures, before.nodes, before.node_days, before.per_1000_node_days) == (0, 0, 0.0, None)
    month = asked(play, since=NOW - 30 * DAY_S).fleet
    assert [week.per_1000_node_days is None for week in month.weeks] == [True] * 4 + [False]
    assert month.trend_percent_per_week is None


def test_a_node_that_left_counts_until_then(play: Recorded) -> None:
    """One of the four leaves after three quarters of the hour, and is in no span behind that."""
    left = an_hour()
    left.now = BEGIN + 0.75 * HOUR_S
    left.do(e.NodeVanished, node="n4")
    fleet = asked(left, since=BEGIN - DAY_S).fleet
    assert (fleet.nodes, fleet.node_days * 24) == (4, pytest.approx(3.75, rel=1e-3))
    later = asked(left, since=BEGIN + 0.8 * HOUR_S).fleet
    assert (later.nodes, later.node_days * 24) == (3, pytest.approx(3 * 0.2, rel=1e-3))

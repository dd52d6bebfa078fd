"""`holdfast report --trace` over a long history: as much is read and shown as a terminal has room for."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest
from tests.report.histories import a_year, events_of

from holdfast.cli.report_trace import read_trace, show_trace, trace_form
from holdfast.model.events import AnyEvent
from holdfast.model.records import Mark
from holdfast.report.gather import ReportData
from holdfast.report.terminal import ROWS_MAX
from holdfast.report.trace import FIGURES, Trace
from holdfast.report.words import ENGLISH


class Recorded:
    """A year's events, and whose were asked for."""

    def __init__(self, data: ReportData) -> None:
        said = [(incident, event) for incident in data.incidents for event in events_of(incident)]
        said.sort(key=lambda pair: pair[1].received_at)
        self.rows = [(i, msgspec.structs.replace(event, seq=seq)) for seq, (i, event) in enumerate(said, 1)]
        self.asked: set[str] = set()

    async def events(self, *, after: int = 0, limit: int = 1000, **where: Any) -> list[AnyEvent]:
        [(kind, name)] = where.items()
        self.asked.add(name)
        found = [e for i, e in self.rows if (i.id if kind == "incident" else str(i.jobs[0])) == name and e.seq > after]
        return found[:limit]


@pytest.fixture(scope="module")
def data() -> ReportData:
    jobs, nodes, incidents = a_year(3, incidents=160, nodes=80, jobs=80)
    incidents.sort(key=lambda incident: incident.opened_at)
    return ReportData("t", "sim", incidents[-1].opened_at + 86400.0, jobs, nodes, incidents, since=1.0)


def follow(data: ReportData, figure: str, *, whole: bool) -> tuple[Trace, Recorded]:
    recorded = Recorded(data)
    return asyncio.run(read_trace(recorded, data, figure, whole=whole)), recorded


@pytest.mark.parametrize("figure", FIGURES)
def test_a_terminal_shows_sixty_points_with_their_events(
    figure: str, data: ReportData, capsys: pytest.CaptureFixture[str]
) -> None:
    """No more incidents or jobs are read than that, what is shown is what the whole has, and the rest is counted."""
    part, recorded = follow(data, figure, whole=False)
    full, _ = follow(data, figure, whole=True)
    assert len(recorded.asked) <= 2 * ROWS_MAX

    def points(found: Trace) -> list[tuple[str, object]]:
        return [(part.of, point) for part in found.parts for point in part.points]

    assert points(part)[:ROWS_MAX] == points(full)[:ROWS_MAX]
    assert (part.value, part.arithmetic, len(part.parts)) == (full.value, full.arithmetic, len(full.parts))
    show_trace(part, ENGLISH)
    left = len(points(full)) - ROWS_MAX
    assert (f"{left} points more, of {len(full.parts)} parts in all" in capsys.readouterr().out) == (left > 0)


def test_each_mark_of_the_whole_names_its_own_event(data: ReportData) -> None:
    """As it was said, by the incident and the mark; a node's fencing and return were said by nobody here."""
    found, recorded = follow(data, "incidents", whole=True)
    seqs = {event.id: event.seq for _, event in recorded.rows}
    said = {
        Mark.FAULT: "seen", Mark.DETECTED: "seen", Mark.STOPPED: "ended", Mark.STARTED: "started",
        Mark.FIRST_STEP: "first", Mark.PROVEN: "saved",
    }  # fmt: skip
    for part in found.parts:
        for point in part.points:
            kind = said.get(Mark(point.name))
            assert point.seq == (seqs[f"{part.of}.{kind}"] if kind else 0), (part.of, point)
    form = json.loads(msgspec.json.encode(trace_form(found)))
    assert [one["of"] for one in form["parts"]] == [i.id for i in data.incidents]

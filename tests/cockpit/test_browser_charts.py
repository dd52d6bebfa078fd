"""What only a browser can tell: that charts are drawn, that times are the viewer's, that a state is never a colour alone."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from playwright.async_api import Page
from tests.cockpit.browsing import WAIT_MS, becomes, chromium, context, needs_chromium, ready
from tests.cockpit.served import KEY, Served, nodes_of, run, served
from tests.controller.cases import until

from holdfast.api import Role
from holdfast.cockpit.pages import Page as Asked
from holdfast.model import events as e
from holdfast.model.evidence import Domain, Finding, Place, Remedy
from holdfast.model.evidence import Role as FindingRole
from holdfast.ports import Sample

pytestmark = [needs_chromium, pytest.mark.timeout(600)]
ZONES = ("Asia/Kolkata", "America/New_York")
"""Half an hour beside the others, and one with another time in summer."""
ADVISE = 'mode = "advise"\n'
"""A node that is found bad stays so: nobody has it repaired."""
CHARTS = {
    "/jobs/7": {"steps": ".scatterlayer .js-line, .scatterlayer .point", "loss": ".scatterlayer .js-line",
                "ranks": ".heatmaplayer image"},
    "/nodes/n1": {"temperature": ".scatterlayer .js-line"},
    "/validation/n1": {"cpu.memory": ".scatterlayer .js-line"},
    "/efficiency": {"failures": ".barlayer .point path", "times": ".scatterlayer .point"},
}  # fmt: skip
"""Path -> chart -> what Plotly draws for it."""


async def measured(house: Served) -> float:
    """A job that has told of its steps, losses, step times, a checkpoint and a crash; a node's temperature, and one that
    is fenced. Returns the time of the first sample."""
    begin = time.time() - 600.0
    on = {"source": "launcher:7", "job": KEY}
    crash = Finding(
        id="f1", rule="exit.signal.11", at=begin + 300, domain=Domain.APPLICATION, role=FindingRole.ROOT, job=KEY,
        attempt=0, place=Place(node="n1", rank=1), remedy=Remedy.RESTART_IN_PLACE, fingerprint="exit.signal.11",
    )  # fmt: skip
    for event in (
        e.LauncherAttached(id="la", at=begin, restart_count=0, nodes=("n1", "n2"), **on),
        e.AttemptStarted(id="as", at=begin, attempt=0, epoch=1, nodes=("n1", "n2"), **on),
        e.FirstStepDone(id="fs", at=begin, attempt=0, step=1, **on),
        e.CheckpointSaved(id="cs", at=begin + 30, attempt=0, step=30, durable=True, **on),
        e.FindingSeen(id="fi", at=begin + 300, source="launcher:7", finding=crash),
        e.AttemptEnded(id="ae", at=begin + 301, attempt=0, signal=11, stopped=True, **on),
        e.AttemptStarted(id="at", at=begin + 302, attempt=1, epoch=2, in_place=1, nodes=("n1", "n2"), **on),
        e.FirstStepDone(id="ft", at=begin + 310, attempt=1, step=31, resumed_from=30, **on),
    ):
        await house.controller.submit(event)
    await house.fault("n4")
    rows = [Sample("gpu_temp", "node:n1", begin + n, 60.0 + n % 7) for n in range(300)]
    for n in range(3):
        rows += [
            Sample("validate.verdict", "node:n1", begin + n, 1.0),
            Sample("validate.figure", "node:n1/cpu.memory", begin + n, 50.0 + n),
        ]
    for attempt, rank, n in product(range(2), range(4), range(100)):
        subject, at = f"job:7({attempt})/rank:{rank}", begin + 311 * attempt + n
        rows += [
            Sample("step", subject, at, 31.0 * attempt + n + 1),
            Sample("loss", subject, at, 3.0 / (n + 1)),
            Sample("step_s", subject, at, 1.0 + rank / 10.0 + (n == 70)),
        ]
    await house.controller.journal.add_samples(rows)
    return begin


def test_charts_are_drawn_and_times_are_the_viewers(tmp_path: Path) -> None:
    """Every chart of the job's, the node's and the efficiency page has lines, bars or cells on the screen; in two zones
    times, charts and the foot of the page are the zone's, UTC is on hover; every state is a word or a letter."""

    async def work() -> None:
        async with served(tmp_path, nodes=nodes_of(6), policy=ADVISE) as house, chromium() as browser:
            begin = await measured(house)
            await until(lambda: house.cockpit.fleet.nodes["n4"].state != "healthy")
            await gathered(house)
            async with context(browser, house, Role.VIEWER, timezone_id=ZONES[0]) as (_, page, _watched):
                await ready(page, "/")
                await words(page)
                await charted(page, "/efficiency", ZONES[0])
                said = await charted(page, "/jobs/7", ZONES[0])
                assert said["loss"]["title"] == "step"
                shows(said["steps"], ZONES[0], begin)
            async with context(browser, house, Role.VIEWER, timezone_id=ZONES[1], width=390) as (_, page, _watched):
                shows((await charted(page, "/nodes/n1", ZONES[1]))["temperature"], ZONES[1], begin)

    run(work)


async def gathered(house: Served) -> None:
    """The efficiency page's figures are made behind it: when they are there, the page has them at once."""
    async with asyncio.timeout(WAIT_MS / 1000):
        while (await house.cockpit.efficiency.page(Asked.parse("efficiency")))["found"] is None:
            await asyncio.sleep(0.02)


async def charted(page: Page, path: str, zone: str) -> dict[str, dict[str, Any]]:
    """Open a page, and wait for all of its charts."""
    await ready(page, path)
    found = {name: await drawn(page, name, what) for name, what in CHARTS[path].items()}
    await zoned(page, zone)
    return found


def shows(chart: dict[str, Any], zone: str, begin: float) -> None:
    """Its first point stands at the zone's time, the axis names the zone, and UTC is told on hover."""
    there = datetime.fromtimestamp(begin, ZoneInfo(zone)).replace(tzinfo=UTC).timestamp()
    assert chart["shown"] == pytest.approx(there * 1000.0, abs=1.0), "what Plotly takes for UTC is the zone's"
    assert zone_name(chart["title"]) == zone
    assert chart["hover"] == datetime.fromtimestamp(begin, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


async def drawn(page: Page, name: str, what: str) -> dict[str, Any]:
    """Wait for a chart; it must have marks with a size, within its place. Returns facts of its first series."""
    chart = f"document.querySelector('[data-chart*=\"chart={name}\"]')"
    await becomes(page, f"{chart}?.dataset.drawn === 'yes'")
    sizes = await page.evaluate(
        f"[...{chart}.querySelectorAll('{what}')].map(one => one.getBoundingClientRect()).map(b => [b.width, b.height])"
    )
    assert sizes, (name, "nothing is drawn")
    assert any(wide > 1 or high > 1 for wide, high in sizes), (name, sizes)
    facts: dict[str, Any] = await page.evaluate(
        f"(chart => ({{shown: chart.calcdata[0][0].x, hover: String(chart.data[0].customdata?.[0]), "
        "title: chart.layout.xaxis.title?.text ?? '', "
        "over: chart.querySelector('.main-svg').getBoundingClientRect().bottom - chart.getBoundingClientRect().bottom"
        f"}}))({chart})"
    )
    assert facts["over"] <= 1, (name, "hangs over what follows", facts["over"])
    return facts


def zone_name(title: str) -> str:
    """Browsers keep Kolkata's old name."""
    return title.partition("(")[2].rstrip(")").replace("Calcutta", "Kolkata")


async def zoned(page: Page, zone: str) -> None:
    """Each full time on the page is that of the zone, and says UTC when it is pointed at."""
    shown = await page.evaluate(
        """zone => [...document.querySelectorAll('time[data-style="full"]')].map(one => [one.dataset.at, one.title,
        new Intl.DateTimeFormat(undefined, {timeZone: zone, year: "numeric", month: "2-digit", day: "2-digit",
            hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false})
            .formatToParts(new Date(one.dataset.at * 1000)).filter(part => part.type !== "literal")
            .every(part => one.textContent.includes(part.value)), one.textContent])""",
        zone,
    )
    for at, title, has_all, text in shown:
        there = datetime.fromtimestamp(float(at), ZoneInfo(zone))
        assert has_all, (text, there)
        assert there.strftime(":%M:%S") in text, (text, there)
        utc = datetime.fromtimestamp(float(at), UTC)
        assert title.startswith(utc.strftime("%Y-%m-%d %H:%M:%S")), title
        assert title.endswith(" UTC")
    assert (await page.inner_text("#zone")).replace("Calcutta", "Kolkata") == zone


async def words(page: Page) -> None:
    """Whatever a colour says stands there as a word or a letter, too: in tables, on cards and in the grid of nodes."""
    bare = await page.evaluate(
        """[...document.querySelectorAll('.state, .banner, .cards li, li.bad')]
        .filter(one => !/[a-z]{2}/i.test(one.textContent)).map(one => one.outerHTML)"""
    )
    assert bare == []
    cells = await page.evaluate(
        "[...document.querySelectorAll('#grid .c')].map(one => [one.classList[1], one.textContent, one.title])"
    )
    letters = {state: letter for state, letter, _ in cells}
    assert letters.pop("healthy", "") == ""
    assert letters, "one node is not healthy"
    assert all(letters.values())
    assert len(set(letters.values())) == len(letters)
    assert all(f": {state}" in title for state, _, title in cells)

"""Validations on the cockpit: what a known history in the journal becomes on the pages and in the charts."""

from __future__ import annotations

import html
import random
import re
import time
from pathlib import Path

import httpx
from tests.cockpit.served import run, served
from tests.cockpit.test_pages import PAYLOADS, check

from holdfast.api import Role
from holdfast.ports import Sample
from holdfast.validate.history import VERDICT, samples_of
from holdfast.validate.results import Item, NodeResult, Run, Verdict

DAY = 86400.0
RATE = "gpu.matmul.bfloat16"
DRIVERS = ("550.54", "560.35")
CHANGED = 8
"""The first day with the second driver."""


def measured(day: int, begin: float, *, more: tuple[Item, ...] = ()) -> Run:
    """A run of a day: 790 TFLOP/s with the old driver, 700 with the new one, a steady memory, both within a hundredth."""
    new = day >= CHANGED
    draw = random.Random(day)
    level = 700.0 if new else 790.0
    slow = {"verdict": Verdict.WARN, "why": "11% below", "advice": "look at its clocks"} if new else {}
    items = (
        Item(name=RATE, value=level * draw.gauss(1, 0.003), unit="TFLOP/s", better="higher",
             expected="790 or more", source="h100-sxm", **slow),
        Item(name="cpu.memory", value=50.0 * draw.gauss(1, 0.003), unit="GB/s", better="higher"),
        Item(name="software.driver.nvidia", text=DRIVERS[new], same=True),
    )  # fmt: skip
    return Run(id=f"v{day}", at=begin + day * DAY, nodes=(NodeResult(node="n1", items=(*items, *more)),))


def text_of(page: httpx.Response) -> str:
    check(page.text)
    return html.unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page.text)))


def test_a_change_after_a_driver_update_stands_on_the_nodes_page(tmp_path: Path) -> None:
    """Newest verdict by suite with measured, expected and advice; the change with the driver; a line with its mark."""
    begin = time.time() - 20 * DAY
    runs = [measured(day, begin) for day in range(14)]

    async def work() -> None:
        async with served(tmp_path) as house, house.browser(Role.VIEWER) as http:
            for one in runs:
                await house.controller.journal.add_samples(samples_of(one))
            assert 'href="/validation/n1"' in (await http.get("/nodes/n1")).text
            assert re.search(r"n1 warn", text_of(await http.get("/validation")))
            said = text_of(await http.get("/validation/n1"))
            newest = runs[-1].nodes[0].items[0]
            assert f"{RATE} warn {newest.shown} 790 or more (h100-sxm) 11% below; look at its clocks" in said
            assert "warn in the newest of 14 runs" in said
            assert f"{RATE} changed from 79" in said
            assert "with nvidia 550.54 -> 560.35" in said
            assert f"cpu.memory pass {runs[-1].nodes[0].items[1].shown}" in said
            assert f"software.driver.nvidia pass {DRIVERS[1]}" in said
            figure = (await http.get("/validation/n1", params={"chart": RATE})).json()
            (line,) = figure["data"]
            assert line["x"] == [round(one.at * 1000.0, 1) for one in runs]
            assert line["y"] == [one.nodes[0].items[0].value for one in runs]
            (mark,) = figure["layout"]["shapes"]
            assert mark["x0"] == mark["x1"] == round(runs[CHANGED].at * 1000.0, 1)
            steady = (await http.get("/validation/n1", params={"chart": "cpu.memory"})).json()
            assert (len(steady["data"]), steady["layout"]["shapes"]) == (1, [])
            own = text_of(await http.get("/validation/n1", params={"suite": "cpu"}))
            assert "cpu.memory" in own.partition("Trends")[2]
            assert RATE not in own.partition("Trends")[2]

    run(work)


def test_each_suite_shows_its_own_newest_run(tmp_path: Path) -> None:
    """A run of other suites leaves what was said of this one; a node that was lost is said to be until its next run."""
    now = time.time()
    first = Run(id="a", at=now - 300, nodes=(NodeResult(node="n1", items=(Item(name="cpu.rate", text="first"),)),))
    lost = Run(id="b", at=now - 200, nodes=(NodeResult(node="n1", lost="its line ended"),))
    bad = Item(name="storage.write", value=3.0, unit="MB/s", verdict=Verdict.FAIL, why="slow", advice="look at it")
    third = Run(id="c", at=now - 100, nodes=(NodeResult(node="n1", items=(bad,)),))

    async def work() -> None:
        async with served(tmp_path) as house, house.browser(Role.VIEWER) as http:
            said = text_of(await http.get("/validation/n1"))
            assert "No run of it is kept here" in said
            assert (await http.get("/validation/nobody")).status_code == 404
            for one, words, not_words in (
                (first, ("cpu.rate pass first",), ("its line ended",)),
                (lost, ("lost fail - - its line ended; see its console", "cpu.rate pass first"), ()),
                (third, ("storage.write fail 3 MB/s - slow; look at it", "cpu.rate pass first"), ("its line ended",)),
            ):
                await house.controller.journal.add_samples(samples_of(one))
                said = text_of(await http.get("/validation/n1"))
                assert all(word in said for word in words), said
                assert not any(word in said for word in not_words), said
            assert (await http.get("/validation/n1", params={"chart": "storage.write"})).json()["data"] == []

    run(work)


def test_hostile_words_of_a_node_stay_text(tmp_path: Path) -> None:
    """Payloads in names, values, reasons and advice; samples of nobody's making are left out."""
    items = tuple(
        Item(
            name=f"cpu.{n}{text[:40]}", text=text, why=text, advice=text, value=1.0 if n % 2 else None, better="higher"
        )
        for n, text in enumerate(PAYLOADS)
    )

    async def work() -> None:
        async with served(tmp_path) as house, house.browser(Role.VIEWER) as http:
            now = time.time()
            for number in range(2):
                one = Run(id="x", at=now - 90 + 60 * number, nodes=(NodeResult(node="n1", items=items),))
                await house.controller.journal.add_samples(samples_of(one))
            odd = [
                Sample("validate.told", f"node:n1/cpu/{end}", now, 1.0) for end in ("", "1.1={", "x.1=[]", "1.1=[[]]")
            ]
            await house.controller.journal.add_samples([*odd, Sample(VERDICT, "node:n1", now, 77.0)])
            page = await http.get("/validation/n1")
            check(page.text)
            assert "<script>window" not in page.text
            assert "__subclasses__() %}{{x}}" in html.unescape(page.text)
            check((await http.get("/validation", params={"q": PAYLOADS[0]})).text)
            for item in ("*", "", "cpu.*", PAYLOADS[0]):
                assert (await http.get("/validation/n1", params={"chart": item})).status_code == 200

    run(work)

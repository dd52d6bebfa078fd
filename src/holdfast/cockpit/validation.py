"""Pages about validations: the newest word about each node, and one node's suites, runs and trends with their charts.

What `holdfast validate` kept in the controller's own journal is shown, with the reports' own judgement and plots.
Called by `cockpit.py` (pages) and `routes.py` (charts). Times are the runs' begins; trends are of the last year, and
found in a thread, because they compare every run with every other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from holdfast.cockpit.pages import Page, Slice, Values, natural, sliced
from holdfast.controller import Controller
from holdfast.errors import NotFoundError
from holdfast.ports import Sample
from holdfast.report.validation import RUNS_MIN, plots_of
from holdfast.validate.history import FACT, FIGURE, VERDICT, Trend, trends
from holdfast.validate.latest import VERDICTS, read_latest, suite_of
from holdfast.validate.results import SEVERITY, Verdict

YEAR_S = 366 * 86400.0
FLEET_S = 30 * 86400.0
"""The list of nodes looks back so far."""
POINTS = 200
"""The newest runs of a figure that a trend is judged from and drawn of."""
PLOTS = 12
"""On one page; a suite's own page has more of it."""
RUNS = 20


class Ran(Struct, frozen=True):
    """One run about one node."""

    node: str
    at: float
    verdict: Verdict


class Validations:
    """See the module."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    async def page(self, page: Page) -> Values:
        """Of one node; without a name of all."""
        return await self._node(page) if page.name else await self._fleet(page)

    async def chart(self, node: str, item: str) -> dict[str, Any]:
        """One figure of a node over time, with a mark where it changed; empty without two runs."""
        if not item or item.endswith("*"):
            return {"data": [], "layout": {}}
        figures = await self._samples(FIGURE, f"node:{node}/{item}")
        facts = await self._samples(FACT, f"node:{node}/*")
        found = plots_of(await asyncio.to_thread(_trends, [*figures, *facts]))
        return {"data": found[0]["data"], "layout": found[0]["layout"]} if found else {"data": [], "layout": {}}

    async def _fleet(self, page: Page) -> Values:
        after = self._controller.clock.now() - FLEET_S
        newest = {
            one.node: one for one in _runs(await self._controller.journal.samples(VERDICT, "node:*", after=after))
        }
        words = page.ask("q").casefold().split()
        rows = [one for one in newest.values() if all(word in one.node.casefold() for word in words)]
        rows.sort(key=lambda one: (-SEVERITY[one.verdict], natural(one.node)))
        shown: Slice = sliced(rows, page)
        return {"node": "", "rows": shown, "q": page.ask("q"), "days": round(FLEET_S / 86400)}

    async def _node(self, page: Page) -> Values:
        name, asked = page.name, page.ask("suite")
        ran = _runs(await self._samples(VERDICT, f"node:{name}"))
        if not ran and not await self._controller.journal.nodes(node=name):
            raise NotFoundError(f"there is no node {name!r}")
        words = await read_latest(self._controller.journal, name, after=self._since())
        samples = [*await self._samples(FIGURE, f"node:{name}/*"), *await self._samples(FACT, f"node:{name}/*")]
        found = [one for one in await asyncio.to_thread(_trends, samples) if len(one.points) >= RUNS_MIN]
        suites = sorted({suite_of(one.item) for one in found})
        chosen = [one for one in found if not asked or suite_of(one.item) == asked]
        chosen.sort(key=lambda one: (not one.told, one.item))
        return {
            "node": name,
            "suites": words,
            "runs": list(reversed(ran))[:RUNS],
            "run_total": len(ran),
            "told": [one for one in found if one.told],
            "plots": chosen[: PLOTS if not asked else None],
            "more": 0 if asked else max(0, len(chosen) - PLOTS),
            "plot_suites": suites,
            "asked": asked,
        }

    async def _samples(self, series: str, subject: str) -> list[Sample]:
        return await self._controller.journal.samples(series, subject, after=self._since())

    def _since(self) -> float:
        return self._controller.clock.now() - YEAR_S


def _runs(samples: Sequence[Sample]) -> list[Ran]:
    """Runs in order of time; a severity that this version does not know is left out."""
    return [
        Ran(one.subject.removeprefix("node:"), one.at, VERDICTS[int(one.value)])
        for one in samples
        if one.value in VERDICTS
    ]


def _trends(samples: Sequence[Sample]) -> list[Trend]:
    """Of the newest runs of each figure."""
    kept: list[Sample] = []
    count: dict[str, int] = {}
    for one in sorted(samples, key=lambda sample: -sample.at):
        if one.series == FIGURE:
            count[one.subject] = count.get(one.subject, 0) + 1
        if one.series != FIGURE or count[one.subject] <= POINTS:
            kept.append(one)
    return trends(kept)

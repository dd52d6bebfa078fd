"""The cockpit as one thing that `holdfast controller` puts beside its API: made from a controller and a token book.

`async with cockpit:` loads the board, follows the controller, and ends every open page at the end. Time passes by the
controller's clock and, between two looks at its health, by the loop's.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from holdfast.api.auth import TokenBook
from holdfast.cockpit import charts, rendering
from holdfast.cockpit.board import Board
from holdfast.cockpit.drills import NONE, DrillRoom
from holdfast.cockpit.efficiency import Efficiency
from holdfast.cockpit.live import Cells, Hub, Parts
from holdfast.cockpit.pages import Page, Pages
from holdfast.cockpit.sessions import SessionBook
from holdfast.cockpit.settings import SettingsPage
from holdfast.cockpit.validation import Validations
from holdfast.cockpit.what_if import Replayer
from holdfast.controller import Controller
from holdfast.controller.fleet import Fleet
from holdfast.drill.calendar import Calendar

CHARTED = frozenset({"job", "node", "validation", "efficiency"})
"""Kinds of pages that have charts."""
HEALTH_S = 0.5
"""Between two looks at the controller's own health, which changes without an event when the disk refuses."""


class Cockpit:
    """See the module.

    Args:
        controller: runs in the same loop.
        tokens: who is let in; empty: everyone, as `local`.
        presets: texts of policy presets by name, to ask what they would have done.
        drills: folder for results of drills that are run from the page.
        calendar: drills that are run by a calendar, and where their results are.
        sessions: file that keeps people logged in over a restart; None: they log in again.
    """

    def __init__(
        self,
        controller: Controller,
        tokens: TokenBook,
        presets: Mapping[str, str] | None = None,
        *,
        drills: Path,
        calendar: Calendar = NONE,
        sessions: Path | None = None,
    ) -> None:
        self.controller = controller
        self.fleet = Fleet()
        self.board = Board(self.fleet, presets)
        self.sessions = SessionBook(tokens, controller.clock, sessions)
        self.hub = Hub(self._make, self._cells, lambda: self.controller.seq)
        self.pages = Pages(controller, self.board)
        self.replayer = Replayer(controller, presets or {})
        self.settings = SettingsPage(controller, self.board, presets or {})
        self.efficiency = Efficiency(
            controller,
            lambda: self.hub.changed(frozenset({"efficiency"}), notable=True),
            lambda: self.board.policies,
        )
        self.drills = DrillRoom(
            drills,
            controller.clock,
            lambda: self.hub.changed(frozenset({"drills"}), notable=False),
            controller.submit,
            calendar,
        )
        self.pages.add("settings", "settings.html", self.settings.page)
        self.pages.add("efficiency", "efficiency.html", self.efficiency.page)
        self.validations = Validations(controller)
        self.pages.add("drills", "drills.html", self.drills.page)
        self.pages.add("validation", "validation.html", self.validations.page)
        self.ready = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self.board.on_change = self.hub.changed
        self.fleet.readers.append(self.board.take)
        await self.fleet.follow(self.controller)
        await self.board.load(self.controller.journal)
        self._task = asyncio.create_task(self._watch_health(), name="cockpit")
        self.ready.set()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.fleet.leave()
        self.hub.close()
        self.sessions.save()
        self.efficiency.stop()
        await self.drills.stop()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def chart(self, page: Page, chart: str) -> dict[str, Any]:
        """The data of a chart of one of the pages that are `CHARTED`."""
        match page.kind, chart:
            case "job", "ranks":
                return await charts.ranks(self.controller, page.name)
            case "job", "loss":
                return await charts.losses(self.controller, page.name)
            case "job", _:
                incidents = [line.id for line in self.fleet.incidents_of(job=page.name)]
                return await charts.steps(self.controller, page.name, incidents)
            case "node", _:
                return await charts.temperature(self.controller, page.name)
            case "validation", _:
                return await self.validations.chart(page.name, chart)
            case _:
                return self.efficiency.chart(page, chart)

    async def _watch_health(self) -> None:
        last = self.pages.health()
        while True:
            await asyncio.sleep(HEALTH_S)
            now = self.pages.health()
            if now != last:
                last = now
                self.hub.all_changed()

    async def _make(self, page: str, since: int) -> tuple[Parts, Cells]:
        """What `live.py` sends of a page."""
        asked = Page.parse(page)
        template, values = await self.pages.values(asked)
        made = rendering.parts(template, values) | rendering.parts("layout.html", values)
        return made, self._cells(page, since)

    def _cells(self, page: str, since: int) -> Cells:
        if page != "overview":
            return {}
        nodes, changed_at = self.fleet.nodes, self.board.changed_at
        return {name: rendering.cell(nodes[name]) for name, seq in changed_at.items() if seq > since}

"""The efficiency page: what the fleet's time went into, as the reports define it, without holding up the controller.

The report room's figures are used as they are. They read every record of the journal, so they are made in the
background, kept for a while by what was asked, and the page fills itself when they are there. Kept figures say how old
they are. Called by `cockpit.py`. Times are the controller's clock; months are UTC.
"""

from __future__ import annotations

import asyncio
from calendar import monthrange
from collections import OrderedDict
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import structlog
from msgspec import Struct

from holdfast.cockpit.pages import Page, Values
from holdfast.controller import Controller
from holdfast.errors import HoldfastError, NotFoundError
from holdfast.model.policy import PolicySet
from holdfast.model.records import IncidentRecord
from holdfast.report.figures import cause_of, spread
from holdfast.report.fleet import Economics, Week
from holdfast.report.gather import ReportData, gather
from holdfast.report.plots import BLUE, RED, SKY, over_time, scatter
from holdfast.report.sections import sections
from holdfast.report.tables import Section, badput_rows, percent, seconds, total_rows
from holdfast.report.timeline import seconds_by_phase

DAY_S = 86400.0
SPANS = (1, 7, 30, 90)
KEPT_S = 300.0
"""Figures this old are made anew when somebody looks; the old ones are shown meanwhile, with a notice."""
RETRY_S = 30.0
"""Between two attempts to make figures when the journal cannot be read."""
KEPT = 12
WAIT_S = 0.05
"""A page waits this long for figures, so that a small journal's are there at once."""
JOBS = 50
_log = structlog.get_logger("holdfast.cockpit")


class Asked(Struct, frozen=True):
    """What a person wants to see."""

    days: int = 30
    month: str = ""
    """`2026-11` in place of days."""
    price: float = 0.0
    minutes: float = 30.0
    spares: int = 0

    @classmethod
    def of(cls, page: Page) -> Asked:
        """From the address; what makes no sense falls back."""
        days = page.ask("days")
        month = page.ask("month")
        return cls(
            days=int(days) if days.isdecimal() and len(days) < 5 and 0 < int(days) <= 3660 else 30,
            month=month if _begin(month) is not None else "",
            price=_number(page.ask("price"), 0.0),
            minutes=_number(page.ask("minutes"), 30.0),
            spares=int(_number(page.ask("spares"), 0.0)),
        )

    def span(self, now: float) -> tuple[float, float]:
        """Begin and end in Unix seconds; an end of 0 is now."""
        begin = _begin(self.month)
        if begin is None:
            return now - self.days * DAY_S, 0.0
        moment = datetime.fromtimestamp(begin, UTC)
        end = begin + monthrange(moment.year, moment.month)[1] * DAY_S
        return begin, end if end < now else 0.0


class Figures(Struct, frozen=True):
    """What the page shows."""

    made_at: float
    totals: list[tuple[str, str, str]]
    badput: list[tuple[str, str]]
    tables: list[Section]
    trend: tuple[Week, ...]


class Efficiency:
    """The figures by what was asked.

    Args:
        controller: whose journal is read.
        changed: is called when figures are there that somebody waits for.
        policies: says when a restart succeeded.
    """

    def __init__(
        self, controller: Controller, changed: Callable[[], None], policies: Callable[[], PolicySet] = PolicySet
    ) -> None:
        self._controller = controller
        self._changed = changed
        self._policies = policies
        self._kept: OrderedDict[Asked, Figures] = OrderedDict()
        self._making: dict[Asked, asyncio.Task[None]] = {}
        self._failed_at = -RETRY_S
        self._why = ""
        """Why the newest attempt to make figures failed; empty: it did not."""
        self._one = asyncio.Lock()

    async def page(self, page: Page) -> Values:
        """The page's values; `found` is None while the figures are being made, `is_old` when newer ones are needed."""
        asked = Asked.of(page)
        now = self._controller.clock.now()
        may_try = not self._why or now - self._failed_at > RETRY_S
        if self._is_old(asked, now) and asked not in self._making and may_try:
            task = self._making[asked] = asyncio.create_task(self._make(asked), name="efficiency")
            task.add_done_callback(lambda _: self._making.pop(asked, None))
            await asyncio.wait([task], timeout=WAIT_S)
        return {
            "asked": asked,
            "found": self._kept.get(asked),
            "is_old": self._is_old(asked, now),
            "why": self._why,
            "now": now,
            "spans": SPANS,
            "months": _months(now),
        }

    def _is_old(self, asked: Asked, now: float) -> bool:
        found = self._kept.get(asked)
        return found is None or now - found.made_at > KEPT_S

    def chart(self, page: Page, name: str) -> dict[str, Any]:
        """A trend by week as a figure: `failures` (rate and MTBF) or `times` (MTTD and MTTR); empty until it is there.

        Raises:
            NotFoundError: there is no such chart.
        """
        if name not in CHARTS:
            raise NotFoundError(f"there is no chart {name!r} here")
        found = self._kept.get(Asked.of(page))
        weeks = found.trend if found is not None else ()
        if len(weeks) < 2:
            return {"data": [], "layout": {}}
        return _failures_by_week(weeks) if name == "failures" else _times_by_week(weeks)

    def stop(self) -> None:
        """Make nothing more."""
        for task in self._making.values():
            task.cancel()

    async def _make(self, asked: Asked) -> None:
        # One at a time: each reads every job and incident.
        async with self._one:
            now = self._controller.clock.now()
            since, until = asked.span(now)
            try:
                data = await gather(
                    self._controller.journal,
                    title="",
                    cluster="",
                    now=now,
                    since=since,
                    until=until,
                    with_series=False,
                    with_details=False,
                )
                data.policies = self._policies()
                data.economics = Economics(gpu_hour=asked.price, person_minutes=asked.minutes, spare_nodes=asked.spares)
                # In a thread: over thousands of jobs this takes longer than the controller may stand still.
                found = await asyncio.to_thread(_figures, data, now)
            except HoldfastError as error:
                _log.warning("figures could not be made", why=str(error))
                self._why, self._failed_at = str(error), now
                self._changed()
                return
            self._why = ""
            self._kept[asked] = found
            self._kept.move_to_end(asked)
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
            self._changed()


def _figures(data: ReportData, now: float) -> Figures:
    tables = [section for section in sections(data, "fleet") if section.key != "published"]
    return Figures(
        made_at=now,
        totals=total_rows(data.totals, data.words),
        badput=badput_rows(data.totals, data.words),
        tables=[*tables[:2], downtime(data.counted), by_cause(data.counted), by_job(data), *tables[2:]],
        trend=data.fleet.weeks,
    )


CHARTS = ("failures", "times")


def _failures_by_week(weeks: Sequence[Week]) -> dict[str, Any]:
    x = [round(week.begins_at * 1000) for week in weeks]
    hours = [None if week.mtbf_s is None else week.mtbf_s / 3600.0 for week in weeks]
    rates = [week.per_1000_node_days for week in weeks]
    return _trend(
        {"type": "bar", "name": "failures per 1000 node-days", "x": x, "y": rates, "marker": {"color": SKY}},
        _line("MTBF (h)", x, hours, RED, "circle") | {"yaxis": "y2"},
        units=("per 1000 node-days", "h"),
    )


def _times_by_week(weeks: Sequence[Week]) -> dict[str, Any]:
    x = [round(week.begins_at * 1000) for week in weeks]
    return _trend(
        _line("MTTD (s)", x, [week.mttd_s for week in weeks], BLUE, "diamond"),
        _line("MTTR (s)", x, [week.mttr_s for week in weeks], RED, "circle") | {"yaxis": "y2"},
        units=("MTTD, s", "MTTR, s"),
    )


def _line(name: str, x: Sequence[int], y: Sequence[float | None], colour: str, mark: str) -> dict[str, Any]:
    looks = {"line": {"color": colour}, "marker": {"symbol": mark, "size": 9}}
    return scatter("lines+markers", x, y, name=name, **looks)


def _trend(*traces: dict[str, Any], units: tuple[str, str]) -> dict[str, Any]:
    """Two series over the weeks' begins, the second one with a scale of its own on the right."""
    layout = over_time(
        {"title": {"text": units[0]}, "rangemode": "tozero"},
        right=60,
        yaxis2={"title": {"text": units[1]}, "overlaying": "y", "side": "right", "rangemode": "tozero"},
        legend={"orientation": "h", "y": -0.25},
    )
    return {"data": list(traces), "layout": layout}


PHASES = {
    "detect": "detect",
    "diagnose": "decide",
    "isolate": "isolate",
    "stop": "stop",
    "requeue": "requeue",
    "release": "wait for nodes",
    "start": "start",
    "first step": "load, first step",
    "prove": "recompute until proven",
}


def downtime(incidents: Sequence[IncidentRecord]) -> Section:
    """Where recoveries spend their time: seconds of each phase over all incidents that ended an attempt."""
    told = [seconds_by_phase(one) for one in incidents if one.attempt_before is not None and not one.drill]
    whole = sum(sum(one.values()) for one in told)
    rows = []
    for phase, name in PHASES.items():
        found = spread(one[phase] for one in told if phase in one)
        if found.n:
            total = sum(one.get(phase, 0.0) for one in told)
            share = f"{100 * total / whole:.1f} %" if whole > 0 else "-"
            cells = (seconds(total), share, seconds(found.median), seconds(found.p95), seconds(found.maximum))
            rows.append((name, f"{found.n}", *cells))
    heads = ("phase", "n", "in all", "share", "median", "p95", "longest")
    intro = "Of every incident that ended an attempt; drills are left out."
    return Section("downtime", "Downtime by phase", intro, heads, tuple(rows), frozenset(heads[1:]))


def by_cause(incidents: Sequence[IncidentRecord]) -> Section:
    """Time to detect and to train again, by cause."""
    groups: dict[str, list[dict[str, float]]] = {}
    for one in incidents:
        if one.attempt_before is not None and not one.drill:
            groups.setdefault(cause_of(one), []).append(seconds_by_phase(one))
    rows = []
    for cause, told in sorted(groups.items(), key=lambda item: -len(item[1]))[:20]:
        detect = spread(one["detect"] for one in told if "detect" in one)
        repair = spread(sum(v for k, v in one.items() if k != "prove") for one in told if "first step" in one)
        cells = (seconds(detect.median), seconds(detect.p95), seconds(repair.median), seconds(repair.p95))
        rows.append((cause, f"{len(told)}", *cells))
    heads = ("cause", "n", "detect: median", "p95", "training again: median", "p95 ")
    return Section("by-cause", "Times by cause", "", heads, tuple(rows), frozenset(heads[1:]))


def by_job(data: ReportData) -> Section:
    """ETTR and training-time efficiency of each job, those that lost most first."""
    both = zip(data.accounts, data.training_times, strict=True)
    told = sorted(both, key=lambda one: one[0].productive_s - one[0].wall_s)[:JOBS]
    rows = []
    for one, trained in told:
        if one.wall_s <= 0:
            continue
        shares = ("-" if one.ettr is None else f"{100 * one.ettr:.2f} %", percent(trained.efficiency))
        lost = sorted(((value, name) for name, value in one.badput.items() if value > 0), reverse=True)[:3]
        where = ", ".join(f"{name} {seconds(value)}" for value, name in lost) or "-"
        rows.append((one.job, *shares, seconds(one.wall_s), seconds(one.wall_s - one.productive_s), where))
    heads = ("job", "ETTR", "training-time efficiency", "wall time", "lost", "mostly to")
    return Section("by-job", "Jobs that lost most time", "", heads, tuple(rows), frozenset(heads[1:5]))


def _begin(month: str) -> float | None:
    try:
        return datetime.strptime(month, "%Y-%m").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None


def _months(now: float) -> list[str]:
    """The last twelve, newest first."""
    moment = datetime.fromtimestamp(now, UTC)
    count = moment.year * 12 + moment.month - 1
    return [f"{(count - back) // 12}-{(count - back) % 12 + 1:02d}" for back in range(12)]


def _number(text: str, otherwise: float) -> float:
    try:
        value = float(text)
    except ValueError:
        return otherwise
    return value if 0 <= value < 1e9 else otherwise

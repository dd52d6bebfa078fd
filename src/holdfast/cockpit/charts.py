"""Charts as Plotly figures in plain data: steps and losses of a job, step times by rank, temperature of a node.

The reports' own gathering and plots are used, over one job only. Called by `routes.py`. Times are those of the samples,
in Unix milliseconds, which Plotly shows in the viewer's zone; what is long is thinned, so that a phone can hold it.
"""

from __future__ import annotations

from statistics import median
from typing import Any

from holdfast.controller import Controller
from holdfast.errors import NotFoundError
from holdfast.model.records import JobRecord
from holdfast.ports import Sample
from holdfast.report.gather import ReportData, read_series
from holdfast.report.plots import RED, loss_plot, over_time, scatter, step_plot
from holdfast.report.series import Point

POINTS_MAX = 1_500
"""Of one line."""
RANKS_MAX = 64
COLUMNS = 160
ATTEMPTS = 12
"""The newest ones are drawn."""
WINDOW_S = 6 * 3600.0


async def steps(controller: Controller, name: str, incidents: list[str]) -> dict[str, Any]:
    """Step over wall time: attempts, durable checkpoints, incidents."""
    return step_plot(await _gathered(controller, name, incidents[:50]), name)


async def losses(controller: Controller, name: str) -> dict[str, Any]:
    """Loss over step, a line per attempt: what was computed again lies on what was there before."""
    made = loss_plot(await _gathered(controller, name, []), name)
    made["layout"]["height"] = 300
    made["layout"]["legend"]["y"] = -0.35
    return made


async def _gathered(controller: Controller, name: str, incidents: list[str]) -> ReportData:
    """The newest attempts of a job, thinned, and these incidents of it: a chart costs what the job has."""
    record = await _job(controller, name)
    record.attempts = record.attempts[-ATTEMPTS:]
    found = [one for ident in incidents for one in await controller.journal.incidents(incident=ident)]
    series = await read_series(controller.journal, record)
    for kept in (series.steps, series.losses):
        for attempt, points in kept.items():
            kept[attempt] = thinned(points)
    series.checkpoints = thinned(series.checkpoints)
    found.sort(key=lambda one: one.opened_at)
    return ReportData("", "", controller.clock.now(), [record], [], found, {name: series})


async def ranks(controller: Controller, name: str) -> dict[str, Any]:
    """Seconds per step of each rank of the newest attempt, as a heat map; the slowest ranks when there are many."""
    record = await _job(controller, name)
    if record.attempt is None:
        return {"data": [], "layout": {}}
    subject = f"job:{record.key}({record.attempt.number})/rank:"
    after = controller.clock.now() - WINDOW_S
    samples = await controller.journal.samples("step_s", f"{subject}*", after=after)
    by_rank: dict[int, list[Sample]] = {}
    for sample in samples:
        text = sample.subject.removeprefix(subject)
        if text.isdecimal():
            by_rank.setdefault(int(text), []).append(sample)
    if not by_rank:
        return {"data": [], "layout": {}}
    slowest = sorted(by_rank, key=lambda rank: -max(one.value for one in by_rank[rank]))[:RANKS_MAX]
    shown = sorted(slowest)
    first, last = min(one.at for one in samples), max(one.at for one in samples)
    # No more columns than a rank has samples: else every other one would be empty.
    columns = max(1, min(COLUMNS, round(median(len(by_rank[rank]) for rank in shown)) - 1))
    width = max((last - first) / columns, 0.001)
    grid: list[list[float | None]] = [[None] * (columns + 1) for _ in shown]
    for row, rank in enumerate(shown):
        for one in by_rank[rank]:
            column = round((one.at - first) / width)
            grid[row][column] = max(one.value, grid[row][column] or 0.0)
    return {
        "data": [
            {
                "type": "heatmap",
                "x": [round((first + width * column) * 1000.0) for column in range(columns + 1)],
                "y": [f"rank {rank}" for rank in shown],
                "z": grid,
                "colorscale": "Cividis",
                "colorbar": {"title": {"text": "s"}},
                "hovertemplate": "%{y}: %{z:.3f} s<extra></extra>",
            }
        ],
        "layout": over_time({"type": "category"}, left=70),
    }


async def temperature(controller: Controller, node: str) -> dict[str, Any]:
    """Degrees of the hottest GPU of a node, over the last hours."""
    samples = await controller.journal.samples("gpu_temp", f"node:{node}", after=controller.clock.now() - WINDOW_S)
    points = thinned([Point(one.at, one.value) for one in samples])
    line = scatter(
        "lines",
        [round(point.x * 1000.0) for point in points],
        [point.y for point in points],
        line={"color": RED, "width": 2},
        hovertemplate="%{y:.0f} C<extra></extra>",
    )
    return {"data": [line] if points else [], "layout": over_time({"title": {"text": "C"}})}


def thinned(points: list[Point]) -> list[Point]:
    """Every so many-th point, and the last one."""
    if len(points) <= POINTS_MAX:
        return points
    every = -(-len(points) // POINTS_MAX)
    return [*points[:-1:every], points[-1]]


async def _job(controller: Controller, name: str) -> JobRecord:
    found = await controller.journal.jobs(job=name)
    if not found:
        raise NotFoundError(f"there is no job {name!r}")
    return found[-1]

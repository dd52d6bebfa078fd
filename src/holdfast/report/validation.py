"""A validation as one HTML page or as Markdown, and the history of figures as plots. Called by `cli.validate_pages`.

The page opens from disk without a network (Plotly's packaged script is inside). Text from nodes is escaped. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from holdfast import __version__
from holdfast.report.html import plotly_script
from holdfast.report.plots import BLUE, RED, scatter
from holdfast.report.templating import plain, render
from holdfast.report.words import ENGLISH
from holdfast.validate.history import Trend
from holdfast.validate.results import Item, NodeResult, Run, Verdict, number

PLOTS_MAX = 60
RUNS_MIN = 2


class Row(Struct, frozen=True):
    """One figure across the nodes."""

    item: str
    unit: str
    values: tuple[tuple[str, str, str], ...]
    """Node, what it measured, verdict."""


def render_html(run: Run, found: Sequence[Trend], *, script: str | None = None) -> str:
    """The page of a run. `script` replaces Plotly's packaged script (tests hand in an empty one)."""
    plots = plots_of(found)
    return render(
        "validation.html",
        ENGLISH,
        None,
        run=run,
        problems=problems(run),
        rows=rows(run),
        trends=[trend for trend in found if trend.told],
        plots=plots,
        plotly="" if not plots else plotly_script() if script is None else script,
        version=__version__,
    )


def render_history(found: Sequence[Trend]) -> str:
    """The page of a history alone."""
    at = max((point.at for trend in found for point in trend.points), default=0.0)
    return render_html(Run(id="history", at=at), found)


def problems(run: Run) -> list[tuple[NodeResult, Item]]:
    """What is wrong, the worst first."""
    found = [(node, item) for node in run.nodes for item in node.items if item.verdict in {Verdict.WARN, Verdict.FAIL}]
    found += [
        (node, Item(name="lost", verdict=Verdict.FAIL, why=node.lost, advice="see its console and its kernel log"))
        for node in run.nodes
        if node.lost
    ]
    return sorted(found, key=lambda one: (one[1].verdict is not Verdict.FAIL, one[0].node, one[1].name))


def rows(run: Run) -> list[Row]:
    """Every item with what each node measured, or why it is not applicable there."""
    units: dict[str, str] = {}
    for measured in (item for node in run.nodes for item in node.items if item.measured):
        units[measured.name] = units.get(measured.name) or measured.unit
    return [
        Row(
            name,
            unit,
            tuple(
                (node.node, number(item.value) if item.value is not None else _words(item), item.verdict.value)
                for node in run.nodes
                if (item := node.item(name)) is not None
            ),
        )
        for name, unit in units.items()
    ]


def _words(item: Item) -> str:
    return f"not applicable: {item.why}" if item.verdict is Verdict.ABSENT and item.why else item.text


def plots_of(found: Sequence[Trend]) -> list[dict[str, Any]]:
    """A plot for each item that several runs measured: a line for each node, a mark at each change."""
    by_item: dict[str, list[Trend]] = {}
    for trend in found:
        if len(trend.points) >= RUNS_MIN:
            by_item.setdefault(trend.item, []).append(trend)
    # What has something to tell comes first; a page has room for so many.
    order = sorted(by_item, key=lambda item: (not any(trend.told for trend in by_item[item]), item))
    return [_plot(item, by_item[item]) for item in order[:PLOTS_MAX]]


def _plot(item: str, found: Sequence[Trend]) -> dict[str, Any]:
    traces = [
        scatter(
            "lines+markers",
            [round(point.at * 1000.0, 1) for point in trend.points],
            [point.value for point in trend.points],
            name=trend.node,
        )
        for trend in found
    ]
    shapes = [
        {
            "type": "line",
            "xref": "x",
            "yref": "paper",
            "x0": round(trend.changed_at * 1000.0, 1),
            "x1": round(trend.changed_at * 1000.0, 1),
            "y0": 0,
            "y1": 1,
            "line": {"color": RED, "dash": "dot"},
        }
        for trend in found
        if trend.changed_at
    ]
    layout = {
        "margin": {"l": 60, "r": 20, "t": 20, "b": 40},
        "height": 300,
        "colorway": [BLUE],
        "xaxis": {"type": "date"},
        "yaxis": {"rangemode": "tozero"},
        "shapes": shapes,
        "showlegend": len(found) > 1,
    }
    if len(found) > 1:
        del layout["colorway"]
    return {"item": item, "told": [trend.told for trend in found if trend.told], "data": traces, "layout": layout}


def render_markdown(run: Run, found: Sequence[Trend]) -> str:
    """The run for an issue, a wiki or a mail."""
    head = "fit" if run.verdict is not Verdict.FAIL else f"not fit: {', '.join(map(plain, run.blamed))}"
    out = [f"# Validation {plain(run.id)}: {head}", ""]
    out.append(f"{len(run.nodes)} nodes, suites {', '.join(run.suites)}, {run.seconds:.0f} s, Holdfast {__version__}.")
    found_bad = problems(run)
    if found_bad:
        out += ["", "| node | verdict | item | why | advice |", "|---|---|---|---|---|"]
        for node, item in found_bad:
            words = (node.node, item.verdict.value, item.name, item.why or item.shown, item.advice)
            out.append("| " + " | ".join(plain(word) for word in words) + " |")
    told = [*run.rounds, *run.notes, *(f"{trend.node}: {trend.told}" for trend in found if trend.told)]
    out += ["", *(f"- {plain(line)}" for line in told)] if told else []
    out += ["", "## Figures", "", "| item | unit | " + " | ".join(plain(node.node) for node in run.nodes) + " |"]
    out.append("|---|---|" + "---|" * len(run.nodes))
    for row in rows(run):
        by_node = {node: value for node, value, _ in row.values}
        cells = [plain(by_node.get(node.node, "")) for node in run.nodes]
        out.append(f"| {plain(row.item)} | {plain(row.unit)} | " + " | ".join(cells) + " |")
    return "\n".join(out) + "\n"

"""`holdfast stragglers`: who kept the others waiting in a recorded stretch of training."""

from __future__ import annotations

import json as plain_json
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import msgspec
import typer
from jinja2 import Environment
from rich.console import Console
from rich.progress import track
from rich.table import Table

from holdfast.adapters.log_files import STDIN
from holdfast.adapters.step_traces import Row, read_rows
from holdfast.cli import screen
from holdfast.detect.straggler import Recording, Straggler, record, stragglers_of
from holdfast.errors import EXIT_FAILED, EXIT_OK, UserError

ALIKE = 0.02
"""Whole step times that differ by less between the ranks of a step say nothing of who is slow."""
SHOWN_RANKS = 512
SHOWN_STEPS = 1000
"""A page's heat map has at most so many rows and columns: the slowest ranks, the last steps."""


class Slow(msgspec.Struct, frozen=True):
    """One straggler. `slowdown`: its work divided by its peers'. `until_step`: None when it was slow to the end."""

    kind: str
    ranks: tuple[int, ...]
    node: str
    stage: int | None
    slowdown: float
    found_step: int
    until_step: int | None


class Found(msgspec.Struct, frozen=True):
    """What `--json` prints."""

    steps: int
    ranks: int
    nodes: int
    stages: int
    stragglers: list[Slow]
    note: str = ""


def stragglers(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            help="Recordings: CSV, JSON, JSON lines, Parquet, PyTorch profiler traces (.gz, .zst too), or -."
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the documented JSON form.")] = False,
    html: Annotated[Path | None, typer.Option(help="Also write a page with a heat map of ranks and steps.")] = None,
) -> None:
    """Name the ranks, nodes and pipeline stages that others waited for in a recorded stretch of training.

    Exit code 0: nobody is slow. 1: somebody is.
    """
    paths = files or ([STDIN] if not sys.stdin.isatty() else [])
    if not paths:
        raise UserError("name a recording, or - for standard input: holdfast stragglers rank*.pt.trace.json.gz")
    recording = record(_rows(paths))
    found = judged(recording)
    if html is not None:
        screen.save(html, page(recording, found))
    if json:
        screen.say_json(found)
    else:
        _show(found, Console(highlight=False))
    raise typer.Exit(EXIT_FAILED if found.stragglers else EXIT_OK)


def _rows(paths: list[str]) -> Iterator[Row]:
    hidden = len(paths) < 2 or not sys.stderr.isatty()
    for path in track(paths, "reading", console=Console(stderr=True), transient=True, disable=hidden):
        yield from read_rows(path)


def judged(recording: Recording) -> Found:
    """Who is slow, and from when to when."""
    told = stragglers_of(recording.steps, recording.layout)
    layout = recording.layout
    slow: list[Slow] = []
    for index, one in enumerate(told):
        if one.cleared:
            continue
        until = next((later.step for later in told[index + 1 :] if later.cleared and _is_same(one, later)), None)
        stage = layout.stages.get(one.ranks[0]) if one.kind == "rank" else one.stage
        slow.append(Slow(one.kind, one.ranks, one.node, stage, one.slowdown, one.step, until))
    nodes, stages = len(set(layout.nodes.values())), len(set(layout.stages.values()))
    return Found(len(recording.steps), len(recording.ranks), nodes, stages, slow, _note(recording))


def _is_same(one: Straggler, other: Straggler) -> bool:
    return one.kind == other.kind and (one.node == other.node if one.kind == "node" else one.ranks == other.ranks)


def _note(recording: Recording) -> str:
    """Why a recording can tell little, or nothing."""
    if len(recording.ranks) < 3:
        return f"{len(recording.ranks)} ranks: at least three are needed to tell who stands out"
    if len(recording.steps) < 3:
        return f"{len(recording.steps)} steps: at least three are needed"
    if recording.has_waits:
        return ""
    spreads = [
        (max(times) - min(times)) / median(times)
        for samples in recording.steps.values()
        if len(samples) > 1 and median(times := [sample.step_s for sample in samples]) > 0
    ]
    if spreads and median(spreads) < ALIKE:
        return (
            "every rank's steps take the same time, as they do when the quick wait for the slow: without `wait_s` (the "
            "seconds of a step in collectives) nobody can be told from the others"
        )
    return ""


def _show(found: Found, console: Console) -> None:
    where = f"{found.ranks} ranks, {found.steps} steps"
    if not found.stragglers:
        console.print(f"[bold green]nobody[/] is slow ({where})" if not found.note else f"cannot be told ({where})")
    else:
        table = Table(box=None, pad_edge=False)
        for heading in ("slow", "ranks", "node", "slowdown", "found at step", "until step"):
            table.add_column(heading)
        for one in found.stragglers:
            what = one.kind if one.stage is None else f"stage {one.stage}"
            until = "the end" if one.until_step is None else str(one.until_step)
            what = f"rank of {what}" if one.kind == "rank" and one.stage is not None else what
            table.add_row(what, _span(one.ranks), one.node or "-", f"{one.slowdown:.2f}", str(one.found_step), until)
        console.print(table)
        console.print(f"{len(found.stragglers)} found in {where}")
    if found.note:
        console.print(found.note, markup=False)


def _span(ranks: tuple[int, ...]) -> str:
    if len(ranks) > 2 and ranks == tuple(range(ranks[0], ranks[-1] + 1)):
        return f"{ranks[0]}-{ranks[-1]}"
    return ", ".join(map(str, ranks))


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Holdfast: stragglers</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a; }
h1 { font-size: 1.4rem; } table { border-collapse: collapse; } td, th { padding: .25rem .75rem; text-align: left; }
</style></head><body>
<h1>{% if found.stragglers %}{{ found.stragglers | length }} slow among {{ found.ranks }} ranks{% else %}Nobody is slow
among {{ found.ranks }} ranks{% endif %} in {{ found.steps }} steps</h1>
{% if found.note %}<p>{{ found.note }}</p>{% endif %}
{% if found.stragglers %}<table><tr><th>slow</th><th>ranks</th><th>node</th><th>slowdown</th><th>found at step</th>
<th>until step</th></tr>
{% for one in found.stragglers %}<tr><td>{% if one.kind == "rank" %}rank
{% if one.stage is not none %} of stage {{ one.stage }}{% endif %}
{% elif one.kind == "stage" %}stage {{ one.stage }}{% else %}node{% endif %}</td>
<td>{{ one.ranks | join(", ") }}</td><td>{{ one.node or "-" }}</td><td>{{ "%.2f" | format(one.slowdown) }}</td>
<td>{{ one.found_step }}</td><td>{{ "the end" if one.until_step is none else one.until_step }}</td></tr>
{% endfor %}</table>{% endif %}
<p>Work of each rank in each step, divided by the median of its stage: 1 is as quick as the others.{{ left_out }}</p>
<div id="map"></div>
<script>{{ script }}</script>
<script>Plotly.newPlot("map", {{ data }}, {{ layout }}, {responsive: true});</script>
</body></html>
"""


def page(recording: Recording, found: Found) -> str:
    """A self-contained page: the table and a heat map."""
    from markupsafe import Markup  # noqa: PLC0415 - as the next: only who asks for a page pays for it

    from holdfast.report.html import plotly_script  # noqa: PLC0415

    steps = sorted(recording.steps)[-SHOWN_STEPS:]
    ratios: dict[int, dict[int, float]] = {}
    for step in steps:
        groups: dict[int, list[tuple[int, float]]] = {}
        for sample in recording.steps[step]:
            work = sample.step_s - (sample.wait_s or 0.0)
            groups.setdefault(recording.layout.stages.get(sample.rank, 0), []).append((sample.rank, work))
        whole = median(work for group in groups.values() for _, work in group)
        for group in groups.values():
            # A stage of fewer than three ranks has no middle of its own, as in the judgement.
            middle = median(work for _, work in group) if min(map(len, groups.values())) >= 3 else whole
            for rank, work in group:
                ratios.setdefault(rank, {})[step] = round(work / middle, 3) if middle > 0 else 1.0
    slowest = sorted(ratios, key=lambda rank: -median(ratios[rank].values()))[:SHOWN_RANKS]
    shown = sorted(slowest)
    data: list[dict[str, Any]] = [
        {
            "type": "heatmap",
            "x": steps,
            "y": [f"rank {rank}" for rank in shown],
            "z": [[ratios[rank].get(step) for step in steps] for rank in shown],
            "colorscale": "Cividis",
            "zmin": 0.9,
            "zmax": 1.5,
            "colorbar": {"title": {"text": "times the median"}},
            "hovertemplate": "%{y}, step %{x}: %{z:.2f} times the median<extra></extra>",
        }
    ]
    layout = {
        "height": max(320, min(1400, 120 + 14 * len(shown))),
        "margin": {"l": 80, "r": 10, "t": 10, "b": 50},
        "xaxis": {"title": {"text": "step"}},
        "yaxis": {"type": "category", "autorange": "reversed"},
    }
    left = len(ratios) - len(shown)
    return (
        Environment(autoescape=True)
        .from_string(_PAGE)
        .render(
            found=found,
            left_out=f" The slowest {len(shown)} ranks are shown." if left else "",
            script=Markup(plotly_script()),  # noqa: S704 - Plotly's own packaged script
            data=Markup(_in_script(data)),  # noqa: S704 - numbers, and texts made here
            layout=Markup(_in_script(layout)),  # noqa: S704 - as above
        )
    )


def _in_script(value: object) -> str:
    return plain_json.dumps(value).replace("<", "\\u003c")

"""Plots of a report as Plotly figures in plain data (no Plotly import: the page brings its packaged script). Pure.

Colours are Okabe and Ito's set, which people with colour-blindness can tell apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.model.records import IncidentRecord, Mark
from holdfast.report.figures import cause_of
from holdfast.report.gather import ReportData
from holdfast.report.series import JobSeries, Point
from holdfast.report.words import Words

BLUE, ORANGE, GREEN, RED, PURPLE, SKY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9"
ATTEMPT_COLOURS = (BLUE, GREEN, PURPLE, SKY, ORANGE)


def _moment(at: float) -> float:
    """Milliseconds since the epoch. Plotly shows such numbers in the viewer's zone: a report makes them texts."""
    return round(at * 1000.0, 1)


def scatter(
    mode: str, x: Sequence[float], y: Sequence[float | None], *, name: str = "", **looks: Any
) -> dict[str, Any]:
    """A line or marks."""
    return {"type": "scatter", "mode": mode, **({"name": name} if name else {}), "x": x, "y": y, **looks}


def over_time(y: dict[str, Any], *, left: int = 50, right: int = 10, **more: Any) -> dict[str, Any]:
    """Layout of a small chart; `y` is its axis."""
    margin = {"l": left, "r": right, "t": 10, "b": 40}
    return {"height": 300, "margin": margin, "xaxis": {"type": "date"}, "yaxis": y, **more}


def step_plot(data: ReportData, job: str) -> dict[str, Any]:
    """Step over wall time: a line per attempt, a band from fault to first step per incident, marks for checkpoints."""
    series = data.series.get(job, JobSeries())
    say = data.words.say
    traces: list[dict[str, Any]] = []
    for number, points in series.steps.items():
        made = scatter(
            "lines",
            [_moment(point.x) for point in points],
            [point.y for point in points],
            name=f"{job}({number})",
            line={"color": ATTEMPT_COLOURS[number % len(ATTEMPT_COLOURS)], "width": 2.5},
            hovertemplate=say("step") + " %{y}<br>%{x|%H:%M:%S.%L}<extra>%{fullData.name}</extra>",
        )
        traces.append(made | {"type": "scattergl" if len(points) > 5000 else "scatter"})
    if series.checkpoints:
        traces.append(
            scatter(
                "markers",
                [_moment(point.x) for point in series.checkpoints],
                [point.y for point in series.checkpoints],
                name=say("durable checkpoint"),
                marker={"symbol": "diamond", "size": 8, "color": ORANGE},
                hovertemplate=say("durable checkpoint") + ": " + say("step") + " %{y}<extra></extra>",
            )
        )
    incidents = [i for i in data.incidents if any(str(key) == job for key in i.jobs)]
    shapes = [band for incident in incidents for band in _bands(incident)]
    notes = [note for number, incident in enumerate(incidents, 1) for note in _note(number, incident)]
    figure = _figure(traces, x=say("time"), y=say("step"), shapes=shapes, annotations=notes, x_type="date")
    if data.words.language != "en":  # Plotly writes months by their English names
        figure["layout"]["xaxis"]["tickformatstops"] = [
            {"dtickrange": [None, 60_000], "value": "%H:%M:%S"},
            {"dtickrange": [60_000, 86_400_000], "value": "%m-%d %H:%M"},
            {"dtickrange": [86_400_000, None], "value": "%Y-%m-%d"},
        ]
    if data.read_at:  # a span that is over: what came after it is in the series, too
        figure["layout"]["xaxis"]["range"] = [_moment(data.since), _moment(data.made_at)]
    return _shifted(figure, data.words)


def _shifted(figure: dict[str, Any], words: Words) -> dict[str, Any]:
    """For a zone other than UTC every moment is moved by what that zone is ahead, and the axis names it."""
    if words.zone == "UTC":
        return figure

    def move(moment: float) -> float:
        return moment + 1000.0 * words.offset_s(moment / 1000.0)

    for one in figure["data"]:
        one["x"] = [move(moment) for moment in one["x"]]
    if "range" in figure["layout"]["xaxis"]:
        figure["layout"]["xaxis"]["range"] = [move(moment) for moment in figure["layout"]["xaxis"]["range"]]
    for shape in figure["layout"]["shapes"]:
        shape |= {"x0": move(shape["x0"]), "x1": move(shape["x1"])}
    for note in figure["layout"]["annotations"]:
        note["x"] = move(note["x"])
    figure["layout"]["xaxis"]["title"]["text"] += f" ({words.zone})"
    return figure


def loss_plot(data: ReportData, job: str) -> dict[str, Any]:
    """Loss over step, the undisturbed run as a broad line behind it: equal runs lie on each other."""
    series = data.series.get(job, JobSeries())
    say = data.words.say
    traces: list[dict[str, Any]] = []
    if data.reference_losses:
        traces.append(_line(say("undisturbed run"), data.reference_losses, "rgba(128,128,128,0.45)", 8, say("step")))
    traces += _by_attempt(data, job, series.losses)
    return _figure(traces, x=say("step"), y=say("training loss"))


def accuracy_plot(data: ReportData, job: str) -> dict[str, Any]:
    """Accuracy over step, for jobs that tell one."""
    traces = _by_attempt(data, job, data.series.get(job, JobSeries()).accuracies)
    return _figure(traces, x=data.words.say("step"), y=data.words.say("accuracy"))


def _by_attempt(data: ReportData, job: str, kept: Mapping[int, list[Point]]) -> list[dict[str, Any]]:
    """A line for each attempt that ran in the span."""
    lived = {attempt.number for record in data.jobs if str(record.key) == job for attempt in data.lived(record)}
    step = data.words.say("step")
    return [
        _line(f"{job}({number})", points, ATTEMPT_COLOURS[number % len(ATTEMPT_COLOURS)], 2, step)
        for number, points in kept.items()
        if points and number in lived
    ]


def _line(name: str, points: list[Point], colour: str, width: int, step: str) -> dict[str, Any]:
    return scatter(
        "lines",
        [point.x for point in points],
        [point.y for point in points],
        name=name,
        line={"color": colour, "width": width},
        hovertemplate=step + " %{x}: %{y:.4f}<extra>" + name + "</extra>",
    )


def _bands(incident: IncidentRecord) -> list[dict[str, Any]]:
    start = incident.marks.get(Mark.FAULT)
    end = incident.marks.get(Mark.FIRST_STEP) or incident.marks.get(Mark.CLOSED)
    if start is None or end is None:
        return []
    return [
        {
            "type": "rect",
            "xref": "x",
            "yref": "paper",
            "x0": _moment(start),
            "x1": _moment(max(end, start)),
            "y0": 0,
            "y1": 1,
            "fillcolor": RED,
            "opacity": 0.18,
            "line": {"width": 0},
            "layer": "below",
        }
    ]


def _note(number: int, incident: IncidentRecord) -> list[dict[str, Any]]:
    start = incident.marks.get(Mark.FAULT)
    if start is None:
        return []
    return [
        {
            "x": _moment(start),
            "y": 1.0,
            "xref": "x",
            "yref": "paper",
            "text": f"{number}: {_plain(cause_of(incident))}",
            "showarrow": False,
            "xanchor": "left",
            "yanchor": "bottom",
            "textangle": -20,
            "font": {"size": 11},
        }
    ]


def _plain(text: str) -> str:
    """Plotly reads a little HTML in annotations: names from outside must not be markup there."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _figure(
    traces: list[dict[str, Any]],
    *,
    x: str,
    y: str,
    shapes: list[dict[str, Any]] | None = None,
    annotations: list[dict[str, Any]] | None = None,
    x_type: str = "linear",
) -> dict[str, Any]:
    return {
        "data": traces,
        "layout": {
            "margin": {"l": 60, "r": 20, "t": 70 if annotations else 20, "b": 50},
            "height": 420,
            "xaxis": {"title": {"text": x}, "type": x_type, "zeroline": False},
            "yaxis": {"title": {"text": y}, "rangemode": "tozero" if x_type == "date" else "normal", "zeroline": False},
            "legend": {"orientation": "h", "y": -0.22},
            "shapes": shapes or [],
            "annotations": annotations or [],
            "hovermode": "closest",
        },
    }

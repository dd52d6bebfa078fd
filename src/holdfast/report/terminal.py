"""The report in a terminal, with Rich: a timeline table per incident, totals, and each incident's story.

Called by `holdfast report`, `holdfast incident`, the demo and drills. Text from outside is never read as markup.
"""

from __future__ import annotations

from rich import box
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from holdfast.model.records import IncidentRecord
from holdfast.report.figures import Totals
from holdfast.report.gather import ReportData
from holdfast.report.tables import badput_rows, cause, offsets, seconds, suspects, total_rows
from holdfast.report.timeline import timeline


def timeline_table(incidents: list[IncidentRecord]) -> Table:
    """One column per incident, one row per point of the timeline: fits 80 columns with four incidents."""
    table = Table(box=box.SIMPLE_HEAD, title="Seconds after the fault", title_justify="left", pad_edge=False)
    table.add_column("")
    for number, incident in enumerate(incidents, 1):
        heading = incident.diagnosis.cause if incident.diagnosis else "not diagnosed"
        table.add_column(Text(f"{number}: {heading}"), justify="right", overflow="fold")
    columns = [offsets(incident) for incident in incidents]
    for row in zip(*columns, strict=True):
        table.add_row(Text(row[0][0]), *(Text(value) for _, value in row))
    table.add_row("slowest", *(Text(timeline(incident).slowest or "-") for incident in incidents))
    table.add_row("lost steps", *("-" if i.lost_steps is None else str(i.lost_steps) for i in incidents))
    table.add_row("outcome", *(Text(i.outcome or "open", style=_style(i)) for i in incidents))
    return table


def totals_table(totals: Totals) -> Table:
    """Figures with their meaning, and where time was lost."""
    table = Table(box=box.SIMPLE_HEAD, title="Totals", title_justify="left", show_header=False, pad_edge=False)
    for name, value, meaning in total_rows(totals):
        table.add_row(name, Text(value, style="bold"), Text(meaning, style="dim"))
    lost = ", ".join(f"{name} {value}" for name, value in badput_rows(totals))
    table.add_row("time lost", Text(lost or "-"), "")
    return table


def story_panel(number: int, incident: IncidentRecord) -> Panel:
    """What happened, in sentences."""
    lines = list(incident.story)
    if incident.diagnosis and incident.diagnosis.story:
        lines.insert(0, incident.diagnosis.story)
    body = Text("\n".join(lines) or "no story")
    span = seconds(timeline(incident).total_s)
    return Panel(
        body,
        title=Text(f"{number}. {cause(incident)}"),
        subtitle=Text(f"suspects: {suspects(incident)}; fault to proof {span}"),
        title_align="left",
        subtitle_align="right",
        border_style=_style(incident),
    )


def render(data: ReportData) -> RenderableType:
    """The whole report."""
    parts: list[RenderableType] = [Text(data.title, style="bold")]
    parts.extend(Text(f"Note: {note}", style="dim") for note in data.notes)
    parts.extend(timeline_table(data.incidents[start : start + 4]) for start in range(0, len(data.incidents), 4))
    if not data.incidents:
        parts.append(Text("No incidents."))
    parts.append(totals_table(data.totals))
    parts.extend(story_panel(number, incident) for number, incident in enumerate(data.incidents, 1))
    return Group(*parts)


def show(data: ReportData, console: Console | None = None) -> None:
    """Print the report."""
    (console or Console()).print(render(data))


def _style(incident: IncidentRecord) -> str:
    if incident.outcome == "recovered":
        return "green"
    return "yellow" if not incident.outcome else "red"

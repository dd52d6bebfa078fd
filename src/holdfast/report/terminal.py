"""The report in a terminal, with Rich: a timeline table per incident, totals, and each incident's story.

Called by `holdfast report`, `holdfast incident`, the demo and drills. Text from outside is never read as markup.
"""

from __future__ import annotations

from rich import box
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from holdfast.model.records import IncidentRecord, Mark
from holdfast.report.figures import Totals
from holdfast.report.gather import ReportData
from holdfast.report.sections import sections
from holdfast.report.single import incident_sections
from holdfast.report.tables import Section, badput_rows, cause, offsets, seconds, spoken, suspects, total_rows
from holdfast.report.timeline import timeline
from holdfast.report.words import ENGLISH, Words


def timeline_table(incidents: list[IncidentRecord], words: Words = ENGLISH) -> Table:
    """One column per incident, one row per point of the timeline: fits 80 columns with four incidents."""
    table = Table(box=box.SIMPLE_HEAD, title=words.say("Seconds after the fault"), title_justify="left", pad_edge=False)
    table.add_column("")
    for number, incident in enumerate(incidents, 1):
        heading = incident.diagnosis.cause if incident.diagnosis else words.say("not diagnosed")
        table.add_column(Text(f"{number}: {heading}"), justify="right", overflow="fold")
    columns = [offsets(incident, words) for incident in incidents]
    for row in zip(*columns, strict=True):
        table.add_row(Text(row[0][0]), *(Text(value) for _, value in row))
    table.add_row(words.say("slowest"), *(Text(words.say(timeline(incident).slowest or "-")) for incident in incidents))
    table.add_row(words.say("lost steps"), *("-" if i.lost_steps is None else str(i.lost_steps) for i in incidents))
    table.add_row(words.say("outcome"), *(Text(words.say(i.outcome or "open"), style=_style(i)) for i in incidents))
    return table


def totals_table(totals: Totals, words: Words = ENGLISH) -> Table:
    """Figures with their meaning, and where time was lost."""
    table = Table(
        box=box.SIMPLE_HEAD, title=words.say("Totals"), title_justify="left", show_header=False, pad_edge=False
    )
    for name, value, meaning in total_rows(totals, words):
        table.add_row(name, Text(value, style="bold"), Text(meaning, style="dim"))
    lost = ", ".join(f"{name} {value}" for name, value in badput_rows(totals, words))
    table.add_row(words.say("time lost"), Text(lost or "-"), "")
    return table


ROWS_MAX = 60
"""A longer table is cut in a terminal: nobody scrolls through it, and every other form has all of it."""


def section_table(section: Section, words: Words = ENGLISH) -> RenderableType:
    """One table of `sections`, with its introduction; of a long one the first `ROWS_MAX` rows, of weeks the newest."""
    table = Table(box=box.SIMPLE_HEAD, title=section.title, title_justify="left", pad_edge=False)
    for heading in section.headings:
        table.add_column(heading, justify="right" if heading in section.numbers else "left", overflow="fold")
    shown = section.rows[-ROWS_MAX:] if section.key == "weeks" else section.rows[:ROWS_MAX]
    for row in shown:
        table.add_row(*(Text(value, style=_WORDS.get(value, "")) for value in row))
    said = [section.intro] if section.intro else []
    if left := len(section.rows) - len(shown):
        said.append(words.say(f"{left} rows more: they stand in the other forms (-o FILE.html, .csv, .md or --json)."))
    return Group(table, *(Text(line, style="dim") for line in said)) if said else table


_WORDS = {"PASS": "green", "FAIL": "red", "合格": "green", "不合格": "red"}


def story_panel(number: int, incident: IncidentRecord, words: Words = ENGLISH) -> Panel:
    """What happened, in sentences."""
    lines = [words.tell(line, incident.opened_at) for line in incident.story]
    if incident.diagnosis and incident.diagnosis.story:
        lines.insert(0, words.explain(incident.diagnosis.story))
    body = Text("\n".join(lines) or words.say("no story"))
    proof = f"fault to proof {seconds(timeline(incident).total_s)}" if Mark.PROVEN in incident.marks else "not proven"
    return Panel(
        body,
        title=Text(f"{number}. {words.say(cause(incident))}"),
        subtitle=Text(f"{words.say(f'suspects: {suspects(incident)}')}; {words.say(proof)}"),
        title_align="left",
        subtitle_align="right",
        border_style=_style(incident),
    )


def render(data: ReportData, kind: str = "full") -> RenderableType:
    """The whole report, or its fleet's figures or summary."""
    say = data.words.say
    parts: list[RenderableType] = [Text(say(data.title), style="bold")]
    parts.extend(Text(say(f"Note: {note}"), style="dim") for note in data.notes)
    tables = sections(data, kind)
    if kind != "full":
        return Group(*parts, *(section_table(section, data.words) for section in tables))
    parts.extend(section_table(section, data.words) for section in tables if section.key == "executive")
    parts.extend(
        timeline_table(data.incidents[start : start + 4], data.words) for start in range(0, len(data.incidents), 4)
    )
    if not data.incidents:
        parts.append(Text(say("No incidents.")))
    parts.append(totals_table(data.totals, data.words))
    parts.extend(section_table(section, data.words) for section in tables if section.key != "executive")
    for number, incident in enumerate(data.incidents, 1):
        parts.append(story_panel(number, incident, data.words))
        if data.incident:
            own = (spoken(section, data.words) for section in incident_sections(data, incident))
            parts.extend(section_table(section, data.words) for section in own)
    return Group(*parts)


def show(data: ReportData, console: Console | None = None, kind: str = "full") -> None:
    """Print the report."""
    (console or Console()).print(render(data, kind))


def _style(incident: IncidentRecord) -> str:
    if incident.outcome == "recovered":
        return "green"
    return "yellow" if not incident.outcome else "red"

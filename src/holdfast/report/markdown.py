"""The report as Markdown, for an issue, a wiki or a mail. Pure; text from outside is escaped."""

from __future__ import annotations

from holdfast.report.gather import ReportData
from holdfast.report.tables import badput_rows, cause, offsets, suspects, total_rows, utc
from holdfast.report.timeline import timeline

_SPECIAL = str.maketrans({c: "\\" + c for c in "\\`*_{}[]<>#|"})


def plain(text: str) -> str:
    """Text from outside as text: no markup, one line."""
    return " ".join(text.translate(_SPECIAL).split())


def render_markdown(data: ReportData) -> str:
    """The whole report."""
    out = [f"# {plain(data.title)}", "", f"Cluster {plain(data.cluster)}, made {utc(data.made_at)}.", ""]
    out += [f"> {plain(note)}" for note in data.notes]
    out += ["", "| figure | value | meaning |", "|---|---|---|"]
    out += [f"| {name} | {value} | {meaning} |" for name, value, meaning in total_rows(data.totals)]
    lost = badput_rows(data.totals)
    if lost:
        out += ["", "Time lost: " + ", ".join(f"{name} {value}" for name, value in lost) + "."]
    for number, incident in enumerate(data.incidents, 1):
        cut = timeline(incident)
        out += ["", f"## {number}. {plain(cause(incident))}", ""]
        out += [f"{incident.id}; suspects: {plain(suspects(incident))}; outcome: {incident.outcome or 'open'}."]
        if incident.diagnosis and incident.diagnosis.story:
            out += ["", plain(incident.diagnosis.story)]
        rows = offsets(incident)
        out += ["", "| " + " | ".join(name for name, _ in rows) + " |", "|" + "---|" * len(rows)]
        out += ["| " + " | ".join(value for _, value in rows) + " |"]
        out += ["", f"Slowest phase: {cut.slowest or '-'}.", ""]
        out += [f"{index}. {plain(line)}" for index, line in enumerate(incident.story, 1)]
    return "\n".join(out) + "\n"

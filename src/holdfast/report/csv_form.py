"""The report as CSV (RFC 4180): one row for each incident, or each row of a section. For spreadsheets and notebooks.

A report of one incident has its row, then its tables one after another, as those of the fleet.

Pure. Times are Unix seconds, durations seconds; an unknown value is empty. What could be taken for a formula by a
spreadsheet is quoted with an apostrophe, since causes and stories may hold words from a log.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence

from holdfast.model.records import IncidentRecord, Mark
from holdfast.report.figures import cause_of, domain_of
from holdfast.report.gather import ReportData
from holdfast.report.sections import sections
from holdfast.report.single import incident_sections
from holdfast.report.tables import spoken
from holdfast.report.timeline import timeline

_FORMULA = re.compile(r"[\s\ufeff\x00-\x1f]*[=+@\-\uff1d\uff0b\uff20\uff0d]|[\t\r\n]")
"""Full-width signs, too, which spreadsheets of East Asia take for the plain ones. Blanks before a sign do not help."""
_NUMBER = re.compile(r"[+-]?\d[\d.,]*([eE][+-]?\d+)?( ?%)?|-")
"""A sign by itself stands for an unknown value."""

HEADINGS = (
    "incident", "jobs", "nodes", "cause", "domain", "confidence", "outcome", "drill", "opened_at", "closed_at",
    *(f"{mark.value}_at" for mark in Mark if mark is not Mark.CLOSED),
    "total_s", "slowest_phase", "step_before", "step_resumed", "lost_steps",
)  # fmt: skip


def render_csv(data: ReportData, kind: str = "full") -> str:
    """Incidents (`full`), or the tables of the fleet, the summary or the one incident one after another."""
    rows: list[Sequence[object]] = []
    tables = sections(data, kind)
    if kind == "full":
        rows = [HEADINGS, *(_row(incident) for incident in data.incidents)]
        if not data.incident:
            return csv_lines(rows)
        tables = [spoken(one, data.words) for i in data.incidents for one in incident_sections(data, i)] + tables
    for section in tables:
        rows.append(("section", *section.headings))
        rows.extend((section.key, *row) for row in section.rows)
    return csv_lines(rows)


def _row(incident: IncidentRecord) -> tuple[object, ...]:
    found = incident.diagnosis
    cut = timeline(incident)
    return (
        incident.id,
        " ".join(str(key) for key in incident.jobs),
        " ".join(incident.nodes),
        cause_of(incident),
        domain_of(incident),
        found.confidence if found else "",
        incident.outcome or "open",
        incident.drill,
        incident.opened_at,
        incident.closed_at or "",
        *(incident.marks.get(mark, "") for mark in Mark if mark is not Mark.CLOSED),
        cut.total_s,
        cut.slowest,
        "" if incident.step_before is None else incident.step_before,
        "" if incident.step_resumed is None else incident.step_resumed,
        "" if incident.lost_steps is None else incident.lost_steps,
    )


def csv_lines(rows: Iterable[Sequence[object]]) -> str:
    """Rows as CSV; nothing in them can become a spreadsheet's formula."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\r\n")
    writer.writerows([_safe(value) for value in row] for row in rows)
    return out.getvalue()


def _safe(value: object) -> object:
    return f"'{value}" if isinstance(value, str) and _FORMULA.match(value) and not _NUMBER.fullmatch(value) else value

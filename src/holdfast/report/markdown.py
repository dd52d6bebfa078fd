"""The report as Markdown, for an issue, a wiki or a mail: the template `report.md`. Text from outside is escaped."""

from __future__ import annotations

from pathlib import Path

from holdfast.report.gather import ReportData
from holdfast.report.html import parts
from holdfast.report.templating import render


def render_markdown(data: ReportData, kind: str = "full", *, templates: Path | None = None) -> str:
    """The whole report, or its fleet's figures or summary. Raises as `templating.render`."""
    text = render("report.md", data.words, templates, **parts(data, kind))
    return text.rstrip("\n") + "\n"

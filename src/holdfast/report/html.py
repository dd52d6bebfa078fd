"""The report as one HTML file that opens from disk without a network, or as Markdown: both from templates.

Plotly's packaged script is put inside the page. Text from outside is escaped by Jinja (autoescape), in Markdown by
`templating.plain`, and reaches scripts only as JSON that Jinja made safe.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any

from holdfast import __version__
from holdfast.report.definitions import DEFINITIONS
from holdfast.report.gather import ReportData
from holdfast.report.phase_colours import NUMBERS, css
from holdfast.report.plots import accuracy_plot, loss_plot, step_plot
from holdfast.report.sections import sections
from holdfast.report.single import incident_sections, slowest
from holdfast.report.tables import badput_rows, offsets, spoken, total_rows
from holdfast.report.templating import render
from holdfast.report.timeline import timeline


def plotly_script() -> str:
    """Plotly's packaged script (MIT licence), about 4.8 MB."""
    return (files("plotly") / "package_data" / "plotly.min.js").read_text(encoding="utf-8")


def parts(data: ReportData, kind: str) -> dict[str, Any]:
    """What a template is given, beside `words`: all in the report's language, rows as plain strings."""
    incidents = [
        {
            "record": incident,
            "timeline": timeline(incident),
            "offsets": offsets(incident, data.words),
            "sections": [spoken(section, data.words) for section in incident_sections(data, incident)],
            "slowest": data.words.say(slowest(data, incident)),
        }
        for incident in (data.incidents if kind == "full" else ())
    ]
    return {
        "data": data,
        "kind": kind,
        "incidents": incidents,
        "totals": total_rows(data.totals, data.words),
        "badput": badput_rows(data.totals, data.words),
        "sections": sections(data, kind),
        "definitions": DEFINITIONS,
        "phase_css": css(),
        "tone": NUMBERS,
        "version": __version__,
    }


def render_html(
    data: ReportData, *, kind: str = "full", script: str | None = None, templates: Path | None = None
) -> str:
    """The whole page. `script` replaces Plotly's packaged script (tests hand in an empty one).

    Raises:
        ConfigError: see `templating.render`.
    """
    jobs = [
        {
            "record": job,
            "name": str(job.key),
            "steps": step_plot(data, str(job.key)),
            "loss": loss_plot(data, str(job.key)),
            "accuracy": accuracy_plot(data, str(job.key)),
            "attempts": data.lived(job),
        }
        for job in (data.jobs if kind == "full" else ())
    ]
    plotly = "" if kind != "full" else plotly_script() if script is None else script
    return render("report.html", data.words, templates, jobs=jobs, plotly=plotly, **parts(data, kind))


def render_markdown(data: ReportData, kind: str = "full", *, templates: Path | None = None) -> str:
    """The same as Markdown, for an issue, a wiki or a mail: the template `report.md`. Raises as `render_html`."""
    text = render("report.md", data.words, templates, **parts(data, kind))
    return text.rstrip("\n") + "\n"

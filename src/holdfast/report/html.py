"""The report as one HTML file that opens from disk without a network: Plotly's packaged script is put inside.

Text from outside is escaped by Jinja (autoescape) and reaches scripts only as JSON that Jinja made safe.
"""

from __future__ import annotations

from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from holdfast import __version__
from holdfast.report.definitions import DEFINITIONS
from holdfast.report.gather import ReportData
from holdfast.report.plots import loss_plot, step_plot
from holdfast.report.tables import badput_rows, cause, offsets, seconds, suspects, total_rows, utc
from holdfast.report.timeline import timeline


def plotly_script() -> str:
    """Plotly's packaged script (MIT licence), about 4.8 MB."""
    return (files("plotly") / "package_data" / "plotly.min.js").read_text(encoding="utf-8")


def render_html(data: ReportData, *, script: str | None = None) -> str:
    """The whole page. `script` replaces Plotly's packaged script (tests hand in an empty one)."""
    environment = Environment(
        loader=PackageLoader("holdfast.report"),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(seconds=seconds, utc=utc, cause=cause, suspects=suspects)
    jobs = [
        {
            "record": job,
            "name": str(job.key),
            "steps": step_plot(data, str(job.key)),
            "loss": loss_plot(data, str(job.key)),
        }
        for job in data.jobs
    ]
    incidents = [
        {"record": incident, "timeline": timeline(incident), "offsets": offsets(incident)}
        for incident in data.incidents
    ]
    return environment.get_template("report.html").render(
        data=data,
        jobs=jobs,
        incidents=incidents,
        totals=total_rows(data.totals),
        badput=badput_rows(data.totals),
        definitions=DEFINITIONS,
        version=__version__,
        plotly=plotly_script() if script is None else script,
    )

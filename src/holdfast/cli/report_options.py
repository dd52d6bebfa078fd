"""The options of `holdfast report`, by name. Used by `report` alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ClusterDir = Annotated[
    Path | None, typer.Option("--dir", metavar="CLUSTER_DIR", help="Read the journal in this cluster's folder.")
]
Job = Annotated[str, typer.Option("--job", metavar="ID", help="Only this job.")]
IncidentId = Annotated[str, typer.Option("--incident", metavar="ID", help="Only this incident.")]
Last = Annotated[str, typer.Option("--last", metavar="TIME", help="Only what lived then: 12h, 30d, 4w.")]
Month = Annotated[
    str, typer.Option("--month", metavar="YYYY-MM", help="Only what lived in this month of the report's zone.")
]
Compare = Annotated[
    bool, typer.Option("--compare", help="Set the span of --last or --month beside the one before it (--kind fleet).")
]
PolicyFile = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Objectives ([slo]) from this policy. Default: the journal's.")
]
GpuHour = Annotated[float, typer.Option(metavar="PRICE", min=0.0, help="Price of a GPU-hour.")]
HoldfastHour = Annotated[
    float, typer.Option(metavar="PRICE", min=0.0, help="Price of an hour of what Holdfast runs on, for the cost.")
]
PersonMinutes = Annotated[
    float, typer.Option(min=0.0, help="How long a person on call takes to restart a job, to compare with.")
]
SpareNodes = Annotated[int, typer.Option(min=0, help="Nodes kept free as spares, for the cost.")]
Prometheus = Annotated[
    str, typer.Option(metavar="URL", help="Ask this Prometheus which alerts fired (--kind summary).")
]
Figure = Annotated[
    str,
    typer.Option(
        "--trace",
        metavar="FIGURE",
        help="Follow a figure to events: MTTD, MTTR, MTTP, MTBF, ETTR, goodput, lost-steps, incidents, recovered, "
        "failures, trained-again, automatic, resubmitted, given-up, fenced, false-alarms, failure-rate, availability, "
        "GPU-hours-lost, GPU-hours-saved.",
    ),
]
Zone = Annotated[str, typer.Option(metavar="ZONE", help="Times in this zone, such as Asia/Tokyo. Default: UTC.")]
Language = Annotated[str, typer.Option(metavar="en|ja", help="Language of the report. Default: en.")]
Templates = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Your own report.html or report.md, in place of the shipped ones.")
]
Output = Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write to this file.")]
AsJson = Annotated[bool, typer.Option("--json", help="Same as --format json.")]

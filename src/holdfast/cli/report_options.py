"""The options of `holdfast report`. Used by `report` alone."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.options import ConfigOption, JournalOption, OptionSet, UrlOption


class Format(StrEnum):
    """Forms of a report."""

    TERMINAL = "terminal"
    JSON = "json"
    MD = "md"
    HTML = "html"
    CSV = "csv"
    PDF = "pdf"


class Kind(StrEnum):
    """What is reported."""

    FULL = "full"
    FLEET = "fleet"
    SUMMARY = "summary"


class ReportOptions(OptionSet, frozen=True):
    """What is to be reported, from where, and in which form."""

    kind: Annotated[
        Kind, typer.Option(help="Incidents and jobs; the fleet's figures; or one page for those who decide.")
    ] = Kind.FULL
    journal: JournalOption = None
    cluster_dir: Annotated[
        Path | None, typer.Option("--dir", metavar="CLUSTER_DIR", help="Read the journal in this cluster's folder.")
    ] = None
    url: UrlOption = None
    job: Annotated[str, typer.Option(metavar="ID", help="Only this job, as `holdfast job` takes it.")] = ""
    incident: Annotated[str, typer.Option(metavar="ID", help="Only this incident.")] = ""
    last: Annotated[str, typer.Option(metavar="TIME", help="Only what lived then: 12h, 30d, 4w.")] = ""
    month: Annotated[
        str, typer.Option(metavar="YYYY-MM", help="Only what lived in this month of the report's zone.")
    ] = ""
    compare: Annotated[
        bool,
        typer.Option("--compare", help="Set the span of --last or --month beside the one before it (--kind fleet)."),
    ] = False
    policy: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Objectives ([slo]) from this policy. Default: the journal's.")
    ] = None
    gpu_hour: Annotated[float, typer.Option(metavar="PRICE", min=0.0, help="Price of a GPU-hour.")] = 0.0
    holdfast_hour: Annotated[
        float, typer.Option(metavar="PRICE", min=0.0, help="Price of an hour of what Holdfast runs on, for the cost.")
    ] = 0.0
    person_minutes: Annotated[
        float, typer.Option(min=0.0, help="How long a person on call takes to restart a job, to compare with.")
    ] = 30.0
    spare_nodes: Annotated[int, typer.Option(min=0, help="Nodes kept free as spares, for the cost.")] = 0
    prometheus: Annotated[
        str, typer.Option(metavar="URL", help="Ask this Prometheus which alerts fired (--kind summary).")
    ] = ""
    figure: Annotated[
        str,
        typer.Option(
            "--trace",
            metavar="FIGURE",
            help="Follow a figure to events: MTTD, MTTR, MTTP, MTBF, ETTR, goodput, lost-steps, incidents, recovered, "
            "failures, trained-again, automatic, resubmitted, given-up, fenced, false-alarms, failure-rate, "
            "availability, GPU-hours-lost, GPU-hours-saved.",
        ),
    ] = ""
    zone: Annotated[str, typer.Option(metavar="ZONE", help="Times in this zone, such as Asia/Tokyo. Default: UTC.")] = (
        ""
    )
    language: Annotated[str, typer.Option(metavar="en|ja", help="Language of the report. Default: en.")] = ""
    templates: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Your own report.html or report.md, in place of the shipped ones."),
    ] = None
    form: Annotated[Format | None, typer.Option("--format", help="Default: by the suffix of FILE, else terminal.")] = (
        None
    )
    output: Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write to this file.")] = None
    json: Annotated[bool, typer.Option("--json", help="Same as --format json.")] = False
    config: ConfigOption = None

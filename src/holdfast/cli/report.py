"""`holdfast report`: timelines, MTTD, MTTR, goodput from a live controller or from the journal of a dead one.

`--dir CLUSTER_DIR` reads the journal in that folder, so it works after the controller has gone. Progress goes to
standard error while a large journal is read.
"""

from __future__ import annotations

import os
import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress

from holdfast.cli import screen
from holdfast.cli.absent import missing
from holdfast.cli.config import ConfigOption, JournalOption, UrlOption
from holdfast.cli.records import Records, Where, read
from holdfast.errors import NotFoundError, UsageError, UserError
from holdfast.report.gather import ReportData, gather

ROWS_MAX = 1000
"""As many incidents as the API gives at once."""
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_LAST = re.compile(r"(\d{1,6})([smhdw])")


class Format(StrEnum):
    """Forms of a report."""

    TERMINAL = "terminal"
    JSON = "json"
    MD = "md"
    HTML = "html"


BY_SUFFIX = {".json": Format.JSON, ".md": Format.MD, ".html": Format.HTML, ".htm": Format.HTML}


def report(
    *,
    journal: JournalOption = None,
    cluster_dir: Annotated[
        Path | None, typer.Option("--dir", metavar="CLUSTER_DIR", help="Read the journal in this cluster's folder.")
    ] = None,
    url: UrlOption = None,
    job: Annotated[str, typer.Option("--job", metavar="ID", help="Only this job.")] = "",
    incident: Annotated[str, typer.Option("--incident", metavar="ID", help="Only this incident.")] = "",
    last: Annotated[str, typer.Option("--last", metavar="TIME", help="Only what lived then: 12h, 30d, 4w.")] = "",
    form: Annotated[
        Format | None, typer.Option("--format", help="Default: by the suffix of FILE, else terminal.")
    ] = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write to this file.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Same as --format json.")] = False,
    config: ConfigOption = None,
) -> None:
    """Report incidents with their phases, and MTTD, MTTR, MTBF, ETTR, goodput. Definitions: docs/definitions.md."""
    if json and form not in {None, Format.JSON}:
        raise UsageError(f"--json and --format {form} name two forms: give one of them")
    chosen = Format.JSON if json else form or BY_SUFFIX.get(output.suffix if output else "", Format.TERMINAL)
    at = screen.now()
    since = at - parse_last(last) if last else 0.0
    where = _where(cluster_dir, url, journal, config)

    async def collect(records: Records) -> ReportData:
        await _check_names(records, job, incident)
        with Progress(
            *Progress.get_default_columns(),
            console=screen.error_console(),
            transient=True,
            disable=not screen.stderr_is_terminal(),
        ) as bar:
            task = bar.add_task("reading", total=None)
            return await gather(
                records,
                title="Holdfast report" + (f", last {last}" if last else ""),
                cluster="",
                now=at,
                job=job,
                incident=incident,
                since=since,
                on_job=lambda done, of: bar.update(task, completed=done, total=of),
            )

    data = read(where, collect)
    clusters = sorted({record.key.cluster for record in data.jobs})
    if where.journal is None and len(data.incidents) == ROWS_MAX:
        data.notes.append(f"Only the newest {ROWS_MAX} incidents were read; --journal reads all of them.")
    data.cluster = ", ".join(clusters) or (cluster_dir.name if cluster_dir is not None else "unknown")
    if output is not None:
        _write(output, _text(data, chosen))
    elif chosen is Format.TERMINAL:
        from holdfast.report.terminal import show  # noqa: PLC0415 - each form loads only what it needs

        show(data, screen.console())
    else:
        typer.echo(_text(data, chosen), nl=chosen is Format.JSON)


def parse_last(text: str) -> float:
    """Seconds of `90s`, `45m`, `12h`, `30d`, `4w`.

    Raises:
        UsageError: anything else.
    """
    match = _LAST.fullmatch(text.strip())
    if match is None or int(match[1]) == 0:
        raise UsageError(f'--last "{text}" is not a time: write a number and s, m, h, d or w, such as 30d')
    return float(int(match[1]) * SECONDS[match[2]])


def _where(cluster_dir: Path | None, url: str | None, journal: str | None, config: Path | None) -> Where:
    """A folder is read from its journal when it has one: its controller may be dead."""
    if cluster_dir is None:
        return Where(None, url, journal, config)
    if url is not None or journal is not None:
        raise UsageError("--dir, --url and --journal name different sources: give one of them")
    if not os.path.isdir(cluster_dir):  # noqa: PTH112 - Path.is_dir raises where a folder above may not be read
        raise NotFoundError(f"--dir: there is no folder {cluster_dir}")
    for path in (cluster_dir / "controller" / "journal.db", cluster_dir / "journal.db"):
        if os.path.exists(path):  # noqa: PTH110 - as above
            return Where(journal=str(path))
    return Where(cluster_dir, None, None, config)


async def _check_names(records: Records, job: str, incident: str) -> None:
    if job:
        known = [str(record.key) for record in await records.jobs()]
        if job not in known:
            raise missing("job", job, known)
    if incident and not await records.incidents(incident=incident):
        raise missing("incident", incident, [record.id for record in await records.incidents()])


def _text(data: ReportData, form: Format) -> str:
    """The report as text; each form's module is loaded only when it is asked for."""
    if form is Format.JSON:
        from holdfast.report.json_form import render_json  # noqa: PLC0415 - see above

        return render_json(data)
    if form is Format.MD:
        from holdfast.report.markdown import render_markdown  # noqa: PLC0415 - see above

        return screen.printable(render_markdown(data))
    if form is Format.HTML:
        from holdfast.report.html import render_html  # noqa: PLC0415 - see above

        return render_html(data)
    import io  # noqa: PLC0415 - see above

    from holdfast.report.terminal import show  # noqa: PLC0415 - see above

    out = io.StringIO()
    show(data, screen.PlainConsole(file=out, width=100, force_terminal=False))
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text if text.endswith("\n") else text + "\n", encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error
    screen.say(f"{path}", err=True)

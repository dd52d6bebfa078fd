"""`holdfast report`: timelines, MTTD, MTTR, goodput from a live controller or from the journal of a dead one.

`--dir CLUSTER_DIR` reads the journal in that folder, so it works after the controller has gone. Progress goes to
standard error while a large journal is read.
"""

from __future__ import annotations

import gc
import io
import os
import re
from collections.abc import Mapping
from pathlib import Path

import typer
from msgspec import Struct

from holdfast.cli import screen
from holdfast.cli.answer import taking
from holdfast.cli.house_style import house_style
from holdfast.cli.options import Where
from holdfast.cli.pdf import print_pdf
from holdfast.cli.records import Records, job_named, notes_of, policies_of, read, writer_of
from holdfast.cli.report_options import Format, Kind, ReportOptions
from holdfast.cli.report_trace import figure_named, read_trace, show_trace, trace_form
from holdfast.drill.calendar import checked, held
from holdfast.errors import NotFoundError, UsageError, UserError
from holdfast.model.events import DrillFired
from holdfast.report.csv_form import render_csv
from holdfast.report.fleet import Economics
from holdfast.report.gather import ReportData, gather
from holdfast.report.json_form import render_json
from holdfast.report.terminal import show
from holdfast.report.trace import Trace
from holdfast.report.words import Words
from holdfast.wiring.settings import load_settings

ROWS_MAX = 1000
"""As many incidents as the API gives at once."""
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_MONTH = re.compile(r"(19[789]\d|2\d{3})-(\d\d)")
_LAST = re.compile(r"(\d{1,6})([smhdw])")


_FILES: tuple[Format, ...] = tuple(form for form in Format if form is not Format.TERMINAL)
BY_SUFFIX: Mapping[str, Format] = {".htm": Format.HTML, **{f".{form}": form for form in _FILES}}


class Asked(Struct, frozen=True):
    """The options, and what follows from them."""

    given: ReportOptions
    form: Format
    now: float
    since: float
    until: float
    """End of the span, Unix seconds; 0: now."""
    figure: str
    """A figure to follow to its events; empty: the report itself."""
    words: Words
    templates: Path | None
    alerts_of: tuple[str, str]
    """A Prometheus's address, and what named it; empty: none is asked."""


@taking
def report(given: ReportOptions) -> None:
    """Report incidents with their phases, and MTTD, MTTR, MTBF, ETTR, goodput. Definitions: docs/definitions.md."""
    last, month = given.last, given.month
    if given.compare and not (last or month):
        raise UsageError("--compare needs --last TIME or --month YYYY-MM: it sets the span beside the one before it")
    if last and month:
        raise UsageError("--last and --month name two spans: give one of them")
    if given.json and given.form not in {None, Format.JSON}:
        raise UsageError(f"--json and --format {given.form} name two forms: give one of them")
    suffix = given.output.suffix if given.output is not None else ""
    at = screen.now()
    where = _where(given)
    words, templates = house_style(given.zone, given.language, given.templates, given.config)
    since, until = (at - parse_last(last), 0.0) if last else parse_month(month, words, at) if month else (0.0, 0.0)
    alerts_of = _prometheus(given.prometheus, given.kind, given.config)
    asked = Asked(
        given=given,
        form=Format.JSON if given.json else given.form or BY_SUFFIX.get(suffix, Format.TERMINAL),
        now=at,
        since=since,
        until=until,
        figure=figure_named(given.figure) if given.figure else "",
        words=words,
        templates=templates,
        alerts_of=alerts_of,
    )
    _make(where, asked)


def _make(where: Where, asked: Asked) -> None:
    # A year's records live until the command ends: looking through them for garbage is a fifth of its time.
    gc.disable()
    try:
        data, followed = read(where, lambda records: _collect(records, asked))
        clusters = sorted({record.key.cluster for record in data.jobs})
        if where.journal is None and len(data.incidents) == ROWS_MAX:
            data.notes.append(f"Only the newest {ROWS_MAX} incidents were read; --journal reads all of them.")
        data.cluster = ", ".join(clusters) or (
            folder.name if (folder := asked.given.cluster_dir) is not None else "unknown"
        )
        _tell(data, followed, asked)
    finally:
        gc.enable()


def _tell(data: ReportData, followed: Trace | None, asked: Asked) -> None:
    chosen, kind, output, templates = asked.form, asked.given.kind, asked.given.output, asked.templates
    if followed is not None:
        _tell_trace(followed, data, chosen, output)
    elif output is not None:
        _write(output, chosen, data, kind, templates)
    elif chosen is Format.TERMINAL:
        show(data, screen.console(), kind)
    elif chosen is Format.PDF:
        raise UsageError("a PDF goes to a file: give -o FILE.pdf")
    else:
        typer.echo(_text(data, chosen, kind, templates), nl=chosen is Format.JSON)


def _tell_trace(found: Trace, data: ReportData, chosen: Format, output: Path | None) -> None:
    if output is not None or chosen not in {Format.TERMINAL, Format.JSON}:
        raise UsageError("--trace prints to the terminal, or as --json: leave -o and other forms out")
    if chosen is Format.JSON:
        screen.say_json(trace_form(found))
        return
    show_trace(found, data.words)
    for note in data.notes:
        screen.say(f"holdfast: {note}", err=True)


def _prometheus(url: str, kind: Kind, config: Path | None) -> tuple[str, str]:
    """The address and who said it: the option, or `[report] prometheus`, which other kinds pass over."""
    if url:
        if kind is not Kind.SUMMARY:
            raise UsageError("--prometheus is asked for the summary's coverage: give --kind summary")
        return url, "--prometheus"
    found = load_settings(config).config.report.prometheus if kind is Kind.SUMMARY else ""
    return found, "[report] prometheus" if found else ""


async def _collect(records: Records, asked: Asked) -> tuple[ReportData, Trace | None]:
    """Read everything, with a bar on standard error while a large journal is read."""
    given = asked.given
    job = str((await job_named(records, given.job)).key) if given.job else ""
    if given.incident and not await records.incidents(incident=given.incident):
        raise screen.missing("incident", given.incident, [record.id for record in await records.incidents()])
    with screen.progress() as bar:
        task = bar.add_task("reading", total=None)

        async def span(begin: float, end: float) -> ReportData:
            return await gather(
                records,
                title=TITLES[given.kind]
                + (f", last {given.last}" if given.last else f", month {given.month}" if given.month else ""),
                cluster="",
                now=asked.now,
                job=job,
                incident=given.incident,
                since=begin,
                until=end,
                with_series=given.kind is Kind.FULL and not asked.figure,
                with_details=given.kind is not Kind.FLEET and not asked.figure,
                on_job=lambda done, of: bar.update(task, completed=done, total=of),
            )

        found = await span(asked.since, asked.until)
        found.economics = given.fill(Economics)
        found.policies = await policies_of(records, given.policy)
        found.slo = found.policies.site.slo
        if given.compare:
            before = parse_month(given.month, asked.words, asked.now, back=1)[0] if given.month else 0.0
            found.former = await span(before or max(0.0, 2 * asked.since - asked.now), asked.since)
        found.words = asked.words
        if asked.alerts_of[0]:
            from holdfast.cli.report_alerts import alerts_or_note  # noqa: PLC0415 - only where one is asked

            found.alerts, why = await alerts_or_note(*asked.alerts_of, found.fleet.since, found.made_at)
            found.notes += [why] if why else []
        followed = (
            await read_trace(records, found, asked.figure, whole=asked.form is Format.JSON) if asked.figure else None
        )
        if found.events:
            found.notes += drills_cut_short(given.config, found, asked.now)
        found.notes += [*writer_of(records, asked.now), *notes_of(records)]
        return found, followed


TITLES = {Kind.FULL: "Holdfast report", Kind.FLEET: "Holdfast fleet report", Kind.SUMMARY: "Holdfast summary"}


def parse_last(text: str) -> float:
    """Seconds of `90s`, `45m`, `12h`, `30d`, `4w`.

    Raises:
        UsageError: anything else.
    """
    match = _LAST.fullmatch(text.strip())
    if match is None or int(match[1]) == 0:
        raise UsageError(f'--last "{text}" is not a time: write a number and s, m, h, d or w, such as 30d')
    return float(int(match[1]) * SECONDS[match[2]])


def parse_month(text: str, words: Words, now: float, *, back: int = 0) -> tuple[float, float]:
    """Begin and end of `2026-11` in the report's zone, Unix seconds; an end of 0: the month is not over.

    Args:
        text: year and month.
        words: whose zone says when it begins.
        now: Unix seconds.
        back: so many months earlier.

    Raises:
        UsageError: no month, or one that has not begun.
    """
    match = _MONTH.fullmatch(text.strip())
    number = int(match[1]) * 12 + int(match[2]) - 1 - back if match is not None else 0
    if match is None or not 1 <= int(match[2]) <= 12:
        raise UsageError(f'--month "{text}" is not a month: write year and month, such as 2026-11')
    begin, end = (words.month(*divmod(place, 12)) for place in (number, number + 1))
    if begin >= now:
        raise UsageError(f"--month {text} has not begun yet")
    return begin, end if end <= now else 0.0


def _where(given: ReportOptions) -> Where:
    """A folder is read from its journal when it has one: its controller may be dead."""
    folder = given.cluster_dir
    if folder is not None:
        if given.url is not None or given.journal is not None:
            raise UsageError("--dir, --url and --journal name different sources: give one of them")
        if not os.path.isdir(folder):  # noqa: PTH112 - Path.is_dir raises where a folder above may not be read
            raise NotFoundError(f"--dir: there is no folder {folder}")
        for path in (folder / "controller" / "journal.db", folder / "journal.db"):
            if os.path.exists(path):  # noqa: PTH110 - as above
                return Where(journal=str(path))
    return given.fill(Where)


def _text(data: ReportData, form: Format, kind: Kind, templates: Path | None) -> str:
    """The report as text; each form's module is loaded only when it is asked for."""
    if form is Format.JSON:
        return render_json(data, kind)
    if form in {Format.MD, Format.HTML}:
        from holdfast.report.html import render_html, render_markdown  # noqa: PLC0415 - brings a large script along

        if form is Format.HTML:
            return render_html(data, kind=kind, templates=templates)
        return screen.printable(render_markdown(data, kind, templates=templates))
    if form is Format.CSV:
        return render_csv(data, kind)

    out = io.StringIO()
    show(data, screen.PlainConsole(file=out, width=100, force_terminal=False), kind)
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


def _write(path: Path, form: Format, data: ReportData, kind: Kind, templates: Path | None) -> None:
    try:
        if form is Format.PDF:
            print_pdf(_text(data, Format.HTML, kind, templates), path)
        else:
            text = _text(data, form, kind, templates)
            screen.save(path, text if text.endswith("\n") else text + "\n")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error
    screen.say(f"{path}", err=True)


def drills_cut_short(config: Path | None, data: ReportData, now: float) -> list[str]:
    """A sentence for each aborted run of `[[drill.schedule]]` that had injected faults into this cluster.

    A drill's process that is killed leaves nothing in the journal but what it had injected. Its folder tells: no
    results, and no word of why. Times are Unix seconds.
    """
    fired = [event for event in data.events if isinstance(event, DrillFired)]
    if not fired:
        return []
    settings = load_settings(config)
    found = settings.config.drill
    try:
        calendar = checked(found.schedule, settings.path(found.results))
    except UsageError:
        return []  # `holdfast drill schedule` says what is wrong with it
    told = []
    for one in calendar.schedules:
        for run in held(calendar, one, now, most=1000):
            end = run.started_at + one.limit_min * 60.0
            names = [event.drill for event in fired if run.started_at <= event.at <= end]
            if run.state == "aborted" and names:
                told.append(
                    f"Drill run {one.name} of {data.words.time(run.started_at)} did not come to its end"
                    f" ({run.detail or 'aborted'}): of it {', '.join(names[:8])} had been injected, and what"
                    " they broke may not have been undone."
                )
    return told

"""`holdfast report --trace FIGURE`: a number followed to the events it came from.

Called by `report`. Reads the records, then the events of those incidents or jobs that the figure is made of.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

import msgspec
from rich.text import Text

from holdfast.cli import screen
from holdfast.cli.json_forms import form
from holdfast.cli.records import Records
from holdfast.errors import UsageError
from holdfast.model.toml_lines import did_you_mean
from holdfast.report.gather import ReportData, events_of
from holdfast.report.terminal import ROWS_MAX
from holdfast.report.trace import FIGURES, Source, Told, Trace, trace, wanted
from holdfast.report.words import Words


def figure_named(text: str) -> str:
    """The figure that a person means; case, dashes and underscores do not matter.

    Raises:
        UsageError: none of that name can be followed.
    """
    plain = text.strip().casefold().replace("-", " ").replace("_", " ")
    for figure in FIGURES:
        if figure.casefold() == plain:
            return figure
    raise UsageError(f'--trace "{text}" is no figure that can be followed{did_you_mean(text, FIGURES)}')


async def read_trace(records: Records, data: ReportData, figure: str, *, whole: bool) -> Trace:
    """The figure of this report with its events; unless `whole`, with those of the parts that a terminal shows."""
    incidents, jobs = wanted(data, figure)
    if not whole:
        incidents, jobs = incidents[:ROWS_MAX], jobs[:ROWS_MAX]
    told = Told()
    for name in sorted({str(job.key) for job in jobs} | {str(key) for i in incidents for key in i.jobs}):
        told.add(name, await events_of(records, job=name))
    for incident in incidents:
        told.add(incident.id, await events_of(records, incident=incident.id))
    return trace(data, figure, told)


def show_trace(found: Trace, words: Words) -> None:
    """The formula, the arithmetic, then a line for each point with its event."""
    out = screen.console()
    value = "-" if found.value is None else f"{found.value:.4g} {'' if found.unit == 'ratio' else found.unit}".rstrip()
    out.print(Text(f"{found.figure} = {value}", style="bold"))
    out.print(Text(f"{found.formula}\n{found.arithmetic}"))
    table = screen.table("of", "value", "point", "time", "event", right=("value",))
    rows = ((part, number, point) for part in found.parts for number, point in enumerate(part.points))
    for part, number, point in islice(rows, ROWS_MAX):
        first, step = number == 0, "" if point.step is None else f" (step {point.step})"
        table.add_row(
            Text(screen.clean(part.of) if first else ""), f"{part.value:.3f}" if first else "",
            point.name + step, words.time(point.at), Text(_event(point)),
        )  # fmt: skip
    out.print(table)
    if left := sum(1 for _ in rows):
        out.print(Text(f"{left} points more, of {len(found.parts)} parts in all: --json has them.", style="dim"))


def _event(point: Source) -> str:
    if not point.seq:
        return "not in this journal" if point.at else "-"
    return screen.clean(f"{point.seq} {point.event} of {point.source or 'the controller'}")


def trace_form(found: Trace) -> dict[str, Any]:
    """`{version, figure, value, unit, formula, arithmetic, parts}`; the parts as they are."""
    return form(**msgspec.structs.asdict(found))

"""`holdfast incident ID --timeline` and `--similar`: everything that was said about it, and others like it.

Called by `cluster_views`. Reads once.
"""

from __future__ import annotations

from pathlib import Path

from rich.console import RenderableType
from rich.table import Table

from holdfast.cli import screen
from holdfast.cli.cluster_tables import for_people
from holdfast.cli.json_forms import form
from holdfast.cli.records import Records
from holdfast.controller.fleet import incident_line
from holdfast.errors import UsageError
from holdfast.model.events import AnyEvent
from holdfast.model.records import IncidentRecord
from holdfast.report.csv_form import csv_lines
from holdfast.report.merged import AROUND_S, Line, merged, narrowed
from holdfast.report.similar import Similar, similar
from holdfast.report.tables import seconds, utc
from holdfast.report.words import Words

PAGE = 1000


async def read_lines(records: Records, incident: IncidentRecord, only: str) -> list[Line]:
    """The merged timeline, narrowed as `merged.narrowed` does it."""
    found: dict[int, AnyEvent] = {}
    wanted = [{"incident": incident.id}, *({"job": str(key)} for key in incident.jobs)]
    wanted += [{"node": name} for name in incident.nodes]
    for where in wanted:
        after = 0
        while page := await records.events(after=after, limit=PAGE, **where):
            found |= {event.seq: event for event in page}
            after = page[-1].seq
            if page[-1].at > (incident.closed_at or float("inf")) + AROUND_S:
                break
    orders = for_people(await records.orders(incident=incident.id))
    return narrowed(merged(incident, [found[seq] for seq in sorted(found)], orders), only)


def lines_table(incident: IncidentRecord, lines: list[Line], words: Words) -> Table:
    """One row for each line."""
    headings = (f"time ({words.zone})", "s", "said by", "source", "event", "place", "what", "seq")
    rows = (
        (
            words.clock(line.at),
            f"{line.at - incident.opened_at:+.3f}",
            line.origin,
            line.source + (f" (shift {line.shifted_s:+.1f} s)" if line.shifted_s else ""),
            line.kind,
            line.place,
            screen.clean(line.text)[:300],
            line.seq,
        )
        for line in lines
    )
    return screen.table(*headings, rows=rows, right=("s", "seq"))


def write_lines(path: Path, incident: IncidentRecord, lines: list[Line], words: Words) -> None:
    """Export them: .csv (times in Unix seconds), .json, or .md.

    Raises:
        UsageError: another suffix.
        UserError: it cannot be written.
    """
    if path.suffix == ".csv":
        heads = Line.__struct_fields__
        text = csv_lines([heads, *([getattr(line, name) for name in heads] for line in lines)])
    elif path.suffix == ".json":
        text = screen.pretty(form(incident=incident.id, lines=lines)).decode() + "\n"
    elif path.suffix == ".md":
        text = _as_markdown(incident, lines, words)
    else:
        raise UsageError(f"-o {path}: write to a file that ends in .csv, .json or .md")
    screen.save(path, text)
    screen.say(f"{path}", err=True)


def _as_markdown(incident: IncidentRecord, lines: list[Line], words: Words) -> str:
    from holdfast.report.templating import plain  # noqa: PLC0415 - as above

    out = [f"# {plain(incident.id)}", "", "| time | s | said by | source | event | place | what | seq |"]
    out.append("|---|---:|---|---|---|---|---|---:|")
    for line in lines:
        told = (line.origin, line.source, line.kind, line.place, screen.clean(line.text))
        cells = [words.time(line.at), f"{line.at - incident.opened_at:+.3f}", *map(plain, told), f"{line.seq}"]
        out.append("| " + " | ".join(cells) + " |")
    return "\n".join(out) + "\n"


async def read_similar(records: Records, incident: IncidentRecord) -> list[Similar]:
    """Others like it, of all that the journal holds."""
    return similar(incident_line(incident), map(incident_line, await records.incidents(limit=100_000)))


def similar_table(found: list[Similar]) -> RenderableType:
    """One row for each."""
    if not found:
        return "Nothing like it is known."
    rows = (
        (
            one.incident,
            utc(one.opened_at)[:19],
            "fingerprint" if one.is_same_fingerprint else "cause",
            ", ".join(one.remedies) or None,
            one.outcome,
            seconds(one.recovered_s),
        )
        for one in found
    )
    return screen.table("incident", "when", "alike by", "tried", "outcome", "trained again after", rows=rows)

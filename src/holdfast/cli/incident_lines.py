"""`holdfast incident ID --timeline` and `--similar`: everything that was said about it, and others like it.

Called by `cluster_views`. Reads once and prints once.
"""

from __future__ import annotations

from typing import Any

import msgspec
from rich.text import Text

from holdfast.cli import screen
from holdfast.cli.records import Records
from holdfast.model.events import AnyEvent
from holdfast.model.records import IncidentRecord
from holdfast.report.merged import AROUND_S, Line, merged
from holdfast.report.similar import Similar, similar
from holdfast.report.tables import seconds, utc

VERSION = 1
PAGE = 1000


async def read_lines(records: Records, incident: IncidentRecord, only: str) -> list[Line]:
    """The merged timeline, narrowed to lines whose source or kind begins with `only`."""
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
    lines = merged(incident, [found[seq] for seq in sorted(found)])
    return [line for line in lines if line.source.startswith(only) or line.kind.startswith(only)]


def show_lines(incident: IncidentRecord, lines: list[Line]) -> None:
    """One row for each event."""
    table = screen.table("time (UTC)", "s", "source", "event", "place", "what", "seq", right=("s", "seq"))
    for line in lines:
        shift = f" (shift {line.shifted_s:+.1f} s)" if line.shifted_s else ""
        table.add_row(
            utc(line.at)[11:-4],
            f"{line.at - incident.opened_at:+.3f}",
            Text(screen.clean(f"{line.source}{shift}")),
            line.kind,
            Text(screen.clean(line.place)),
            Text(screen.clean(line.text)[:300]),
            str(line.seq),
        )
    screen.console().print(table)


def lines_form(incident: IncidentRecord, lines: list[Line]) -> dict[str, Any]:
    """`{version, incident, lines: [...]}`."""
    return {"version": VERSION, "incident": incident.id, "lines": msgspec.to_builtins(lines)}


async def read_similar(records: Records, incident: IncidentRecord) -> list[Similar]:
    """Others like it, of all that the journal holds."""
    return similar(incident, await records.incidents(limit=100_000))


def show_similar(found: list[Similar]) -> None:
    """One row for each."""
    if not found:
        screen.say("Nothing like it is known.")
        return
    table = screen.table("incident", "when", "alike by", "tried", "outcome", "trained again after")
    for one in found:
        table.add_row(
            one.incident,
            utc(one.opened_at)[:19],
            "fingerprint" if one.is_same_fingerprint else "cause",
            ", ".join(one.remedies) or "-",
            one.outcome,
            seconds(one.recovered_s),
        )
    screen.console().print(table)


def similar_form(incident: IncidentRecord, found: list[Similar]) -> dict[str, Any]:
    """`{version, incident, similar: [...]}`."""
    return {"version": VERSION, "incident": incident.id, "similar": msgspec.to_builtins(found)}

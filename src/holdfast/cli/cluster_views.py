"""`holdfast jobs`, `job ID`, `nodes`, `incidents`, `incident ID`: what the controller (or a journal) knows.

Each reads once and prints once; `--json` prints the forms of docs/json-forms.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from holdfast.cli import screen
from holdfast.cli.answer import Answer, answering
from holdfast.cli.cluster_tables import (
    brakes_view,
    for_people,
    incident_page,
    incidents_table,
    job_page,
    jobs_table,
    nodes_view,
)
from holdfast.cli.house_style import house_style
from holdfast.cli.incident_lines import (
    lines_table,
    read_lines,
    read_similar,
    similar_table,
    write_lines,
)
from holdfast.cli.json_forms import brake_form, form, incident_page_form, incident_row, job_form, job_row, node_row
from holdfast.cli.options import OptionSet, Where
from holdfast.cli.records import Records, job_named, launcher_gone, policies_of, read
from holdfast.errors import RefusedError, UsageError
from holdfast.model.events import AnyEvent
from holdfast.model.records import SHOWN_STATES, BrakeRecord, IncidentRecord, JobRecord, NodeRecord, OrderRecord
from holdfast.model.toml_lines import did_you_mean
from holdfast.report.merged import Line
from holdfast.report.saves import Save, saves_of
from holdfast.report.similar import Similar
from holdfast.report.training_time import TrainingTime, proof_of, training_time

INCIDENTS_MAX = 1000


@answering
def jobs(
    *,
    where: Where,
) -> Answer:
    """List jobs and the state of their recovery."""
    found = read(where, lambda records: records.jobs())
    return Answer(
        lambda: form(jobs=[job_row(job) for job in found]),
        lambda: [jobs_table(found, screen.now()) if found else "No jobs."],
    )


@answering
def job(
    job_id: Annotated[
        str,
        typer.Argument(
            metavar="ID", help="As `holdfast jobs` shows it: 1778, 1778(1), 1778#2, or an array's task, 12_2."
        ),
    ],
    *,
    where: Where,
) -> Answer:
    """Show one job: attempts and how they ended, saves, incidents, what it waits for, its story."""

    async def look(
        records: Records,
    ) -> tuple[JobRecord, list[IncidentRecord], list[OrderRecord], list[Save], TrainingTime, str]:
        record = await job_named(records, job_id)
        incidents = await records.incidents(job=str(record.key))
        orders = await records.orders(job=str(record.key))
        trained = training_time(record, screen.now(), proof_of(record, await policies_of(records)))
        gone = launcher_gone(records, record, screen.now())
        return record, incidents, for_people(orders), await _saves(records, str(record.key)), trained, gone

    record, incidents, orders, saves, trained, gone = read(where, look)
    return Answer(
        lambda: form(job=job_form(record, incidents, orders, saves, trained)),
        lambda: [job_page(record, incidents, orders, saves, screen.now(), trained, launcher=gone)],
    )


async def _saves(records: Records, job: str) -> list[Save]:
    """All saves of a job, newest first."""
    told: list[AnyEvent] = []
    while some := await records.events(after=told[-1].seq if told else 0, job=job, kind="checkpoint_saved"):
        told += some
    return saves_of(told)


@answering
def nodes(
    *,
    every: Annotated[bool, typer.Option("--all", help="A row for every node, however many there are.")] = False,
    state: Annotated[str | None, typer.Option(metavar="STATE", help="Only nodes in this state.")] = None,
    where: Where,
) -> Answer:
    """List nodes and their state. Many nodes are folded by group and state: `node[0001-1990]`."""
    known = SHOWN_STATES
    if state is not None and state not in known:
        raise UsageError(f'--state "{state}" is not a state of a node{did_you_mean(state, known)}')

    async def look(records: Records) -> tuple[list[NodeRecord], list[BrakeRecord]]:
        try:
            return await records.nodes(), await records.brakes()
        except RefusedError:  # a token with a scope: the brakes are the whole cluster's
            return await records.nodes(), []

    found, brakes = read(where, look)
    chosen = [node for node in found if state in {None, node.shown}]
    none = f"No nodes in state {state}." if state else "No nodes."
    return Answer(
        lambda: form(nodes=[node_row(node) for node in chosen], brakes=[brake_form(brake) for brake in brakes]),
        lambda: [nodes_view(chosen, brakes, screen.now(), every=every) if chosen else none],
    )


@answering
def brakes(*, where: Where) -> Answer:
    """List the brakes of quarantine, and what rests on one reporter's word."""
    found = read(where, lambda records: records.brakes())
    none = "No group is known."
    return Answer(
        lambda: form(brakes=[brake_form(brake) for brake in found]),
        lambda: brakes_view(found, screen.now()) if found else [none],
    )


@answering
def incidents(
    *,
    open_only: Annotated[bool, typer.Option("--open", help="Only those that are not over.")] = False,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="The newest N.")] = 50,
    where: Where,
) -> Answer:
    """List incidents, newest first."""
    found = read(where, lambda records: records.incidents(open_only=open_only, limit=limit + 1))
    more, found = len(found) > limit, found[:limit]
    none = "No open incidents." if open_only else "No incidents."
    left = [Text(f"Only the newest {limit} are shown: --limit N shows more.")] if more else []
    return Answer(
        lambda: form(incidents=[incident_row(incident) for incident in found]),
        lambda: [incidents_table(found, screen.now()), *left] if found else [none],
    )


class IncidentOptions(OptionSet, frozen=True):
    """Which view of an incident."""

    timeline: Annotated[
        bool, typer.Option("--timeline", help="Every event about it, of all machines, by one clock.")
    ] = False
    only: Annotated[
        str,
        typer.Option(
            metavar="TEXT,...",
            help="Of --timeline: who said it (kernel, application, scheduler, agent, launcher, controller, person), "
            "sources, events or places that begin so.",
        ),
    ] = ""
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="Write --timeline to this file: .csv, .json or .md."),
    ] = None
    zone: Annotated[
        str, typer.Option(metavar="ZONE", help="Of --timeline: times in this zone. Default: holdfast.toml's, else UTC.")
    ] = ""
    alike: Annotated[bool, typer.Option("--similar", help="Has this happened before, and what helped?")] = False


@answering
def incident(
    incident_id: Annotated[str, typer.Argument(metavar="ID", help="As `holdfast incidents` shows it.")],
    *,
    given: IncidentOptions,
    where: Where,
) -> Answer | None:
    """Show one incident: timeline, diagnosis, evidence, orders and their outcomes, story."""
    if given.timeline and given.alike:
        raise UsageError("--timeline and --similar are two views: give one of them")
    if given.only and not given.timeline:
        raise UsageError("--only narrows --timeline: give both")
    if (given.output is not None or given.zone) and not given.timeline:
        raise UsageError("-o and --zone are for --timeline: give it too")
    words = house_style(given.zone, "", None, where.config)[0] if given.timeline else None

    async def look(records: Records) -> tuple[IncidentRecord, list[Line], list[Similar], list[OrderRecord]]:
        found = await records.incidents(incident=incident_id)
        if not found:
            known = [record.id for record in await records.incidents(limit=INCIDENTS_MAX)]
            raise screen.missing("incident", incident_id, known)
        lines = await read_lines(records, found[0], given.only) if given.timeline else []
        alike = await read_similar(records, found[0]) if given.alike else []
        plain = not given.timeline and not given.alike
        return found[0], lines, alike, for_people(await records.orders(incident=incident_id)) if plain else []

    record, lines, alike, orders = read(where, look)
    if words is not None:
        if given.output is not None:
            write_lines(given.output, record, lines, words)
            return None
        return Answer(lambda: form(incident=record.id, lines=lines), lambda: [lines_table(record, lines, words)])
    if given.alike:
        return Answer(lambda: form(incident=record.id, similar=alike), lambda: [similar_table(alike)])
    return Answer(
        lambda: form(incident=incident_page_form(record, orders)),
        lambda: [incident_page(record, orders, screen.now())],
    )

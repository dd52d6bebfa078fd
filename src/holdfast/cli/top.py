"""`holdfast top`: the overview in a terminal, kept up to date until Ctrl-C.

It asks the controller's API; between two pictures it waits there for the next event, so that a fault shows at once,
but draws at most once a second. `--once` prints one picture, for scripts and pipes. When the line is lost the last
picture stays, and says so.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Annotated

import typer
from msgspec import Struct
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from holdfast.cli import screen
from holdfast.cli.cluster_tables import incidents_table, jobs_table, nodes_view, orders_table
from holdfast.cli.json_forms import Form, fields_of, form
from holdfast.cli.options import ConfigOption, DirOption, JsonOption, UrlOption
from holdfast.client import AsyncClient, State
from holdfast.errors import LinkError
from holdfast.model.orders import OrderStatus
from holdfast.model.records import JobRecord, JobState, NodeState, OrderRecord
from holdfast.wiring.settings import Link, find_controller

PACE_S = 1.0
ROWS = 10
_OVER = frozenset({JobState.COMPLETED, JobState.CANCELLED, JobState.GIVEN_UP})
_CALM = frozenset({JobState.WATCHING, *_OVER})


class Picture(Struct, frozen=True):
    """What is drawn."""

    state: State
    proposed: list[OrderRecord]
    at: float
    lost: str = ""
    """Why the controller cannot be reached; the rest is from before."""


def top(
    *,
    once: Annotated[bool, typer.Option("--once", help="Print it once and end.")] = False,
    cluster_dir: DirOption = None,
    url: UrlOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """The overview in a terminal: what is wrong, what is done about it, and how the nodes are. Ctrl-C ends it."""
    link = find_controller(cluster_dir=cluster_dir, url=url, config=config)
    if json:
        screen.say_json(picture_form(asyncio.run(_look(link))))
    elif once:
        screen.console().print(drawn(asyncio.run(_look(link))))
    else:
        asyncio.run(_follow(link))


async def _look(link: Link) -> Picture:
    async with AsyncClient(link.url, link.token, trust=link.trust) as client:
        return await _ask(client)


async def _ask(client: AsyncClient) -> Picture:
    state = await client.state()
    orders = await client.orders(pending_only=True, limit=1000)
    return Picture(state, [one for one in orders if one.status is OrderStatus.PROPOSED], screen.now())


async def _follow(link: Link) -> None:
    async with AsyncClient(link.url, link.token, trust=link.trust) as client:
        picture = await _ask(client)
        with Live(drawn(picture), console=screen.console(), screen=True, auto_refresh=False) as live:
            while True:
                await asyncio.sleep(PACE_S)
                try:
                    await client.events(after=picture.state.seq, wait_s=10.0, limit=1)
                    picture = await _ask(client)
                except LinkError as error:
                    picture = Picture(picture.state, picture.proposed, screen.now(), str(error))
                live.update(drawn(picture), refresh=True)


def drawn(picture: Picture) -> RenderableType:
    """The whole picture; 80 columns suffice."""
    state, at = picture.state, picture.at
    open_now = [one for one in state.incidents if not one.closed_at]
    parts: list[RenderableType] = [_head(picture), Text()]
    parts.append(incidents_table(open_now[:ROWS], at) if open_now else Text("No incident is open.", style="green"))
    if picture.proposed:
        parts += [Text(), Text("Waiting for your word: holdfast approve ID", style="bold yellow")]
        parts.append(orders_table(picture.proposed[:ROWS], at))
    jobs = _shown(state.jobs)
    if jobs:
        parts += [Text(), jobs_table(jobs, at)]
    parts += [Text(), nodes_view(state.nodes, state.brakes, at)]
    return Group(*parts)


def _head(picture: Picture) -> Text:
    health, nodes = picture.state.health, Counter(node.shown for node in picture.state.nodes)
    said = Text("Holdfast ", style="bold")
    if picture.lost:
        said.append(f"line lost, this is old: {screen.clean(picture.lost)}  ", style="bold red")
    elif health.failing:
        said.append(f"journal failing: {screen.clean(health.failing)}  ", style="bold red")
    elif health.blind:
        said.append("blind: the scheduler cannot be read  ", style="bold red")
    else:
        said.append("well  ", style="green")
    said.append(f"event {picture.state.seq}  ", style="dim")
    recovering = sum(1 for job in picture.state.jobs if job.state not in _CALM)
    said.append(f"jobs recovering {recovering}  ", style="yellow" if recovering else "")
    for name, count in sorted(nodes.items()):
        said.append(f"{name} {count}  ", style=screen.STYLES.get(name, "yellow"))
    return said


def _shown(jobs: list[JobRecord]) -> list[JobRecord]:
    """Those in recovery first, then the newest that go on."""
    alive = [job for job in jobs if job.state not in _OVER]
    alive.sort(key=lambda job: (job.state in _CALM, -job.since))
    return alive[:ROWS]


def picture_form(picture: Picture) -> Form:
    """The stable JSON form (docs/json-forms.md)."""
    state = picture.state
    return form(
        seq=state.seq,
        health=fields_of(state.health, "ok failing blind"),
        nodes={name.value: sum(1 for node in state.nodes if node.state is name) for name in NodeState},
        jobs=dict(sorted(Counter(job.state.value for job in state.jobs).items())),
        open_incidents=[
            {
                "id": one.id,
                "cause": one.diagnosis.cause if one.diagnosis is not None else None,
                "opened_at": one.opened_at,
                "jobs": list(map(str, one.jobs)),
                "nodes": one.nodes,
            }
            for one in state.incidents
            if not one.closed_at
        ],
        proposed_orders=[one.order.id for one in picture.proposed],
        brakes_tripped=[brake.group for brake in state.brakes if brake.tripped_at],
    )

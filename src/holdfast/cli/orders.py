"""`holdfast orders`, `approve ID`, `reject ID`: what the engine wants done, and a person's word where it asks for one.

In mode `advise` an order waits as `proposed` until somebody approves or rejects it, or it lapses.
"""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from holdfast.cli import json_forms, screen
from holdfast.cli.cluster_tables import for_people, orders_table
from holdfast.cli.config import ConfigOption, DirOption, JournalOption, JsonOption, UrlOption
from holdfast.cli.operate import operate
from holdfast.cli.records import Where, read
from holdfast.model.events import Command
from holdfast.model.orders import OrderStatus

WAITING = (OrderStatus.PROPOSED, OrderStatus.PENDING)

IdArgument = Annotated[str, typer.Argument(metavar="ID", help="The order, as `holdfast orders` shows it.")]


def orders(
    *,
    every: Annotated[bool, typer.Option("--all", help="Also those that are over, and the engine's timers.")] = False,
    limit: Annotated[int, typer.Option("--limit", min=1, metavar="N", help="The newest N.")] = 200,
    cluster_dir: DirOption = None,
    url: UrlOption = None,
    journal: JournalOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """List orders that wait: proposed ones first, then those under way. `--all` lists every order."""
    found = read(Where(cluster_dir, url, journal, config), lambda records: records.orders(limit=limit))
    if not every:
        found = for_people([record for record in found if record.status in WAITING])
        found.sort(key=lambda record: WAITING.index(record.status))
    if json:
        screen.say_json(json_forms.orders_form(found))
        return
    if not found:
        screen.say("No orders." if every else "No orders wait. `holdfast orders --all` lists those that are over.")
        return
    out = screen.console()
    out.print(orders_table(found, screen.now()))
    if any(record.status is OrderStatus.PROPOSED for record in found):
        out.print(Text("Proposed orders wait for you: holdfast approve ID, holdfast reject ID --why TEXT"))


def approve(
    order_id: IdArgument,
    *,
    why: Annotated[str, typer.Option("--why", metavar="TEXT", help="Kept in the journal.")] = "",
    cluster_dir: DirOption = None,
    url: UrlOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Approve a proposed order. It is checked against a fresh look at the world before it runs."""
    operate(Where(cluster_dir, url, None, config), Command.APPROVE, order=order_id, why=why, json=json)


def reject(
    order_id: IdArgument,
    *,
    why: Annotated[str, typer.Option("--why", metavar="TEXT", help="The reason: kept in the journal.")],
    cluster_dir: DirOption = None,
    url: UrlOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Reject a proposed order: it will not run."""
    operate(Where(cluster_dir, url, None, config), Command.REJECT, order=order_id, why=why, json=json)

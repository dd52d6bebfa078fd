"""`holdfast orders`, `approve ID`, `reject ID`: what the engine wants done, and a person's word where it asks for one.

In mode `advise` an order waits as `proposed` until somebody approves or rejects it, or it lapses.
"""

from __future__ import annotations

from typing import Annotated

import typer
from rich.text import Text

from holdfast.cli import json_forms, screen
from holdfast.cli.answer import Answer, answering
from holdfast.cli.cluster_tables import for_people, orders_table
from holdfast.cli.operate import operate
from holdfast.cli.options import ControllerOptions, Where
from holdfast.cli.records import read
from holdfast.cli.remote import ROWS_MAX
from holdfast.model.events import Command
from holdfast.model.orders import WAITING, OrderStatus

IdArgument = Annotated[str, typer.Argument(metavar="ID", help="The order, as `holdfast orders` shows it.")]


@answering
def orders(
    *,
    every: Annotated[bool, typer.Option("--all", help="Also those that are over, and the engine's timers.")] = False,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="The newest N.")] = 200,
    where: Where,
) -> Answer:
    """List orders that wait: proposed ones first, then those under way. `--all` lists every order."""
    rows = limit if every else max(limit, ROWS_MAX)
    found = read(where, lambda records: records.orders(pending_only=not every, limit=rows))
    if not every:
        found = sorted(for_people(found), key=lambda record: WAITING.index(record.status))[:limit]
    none = "No orders." if every else "No orders wait. `holdfast orders --all` lists those that are over."
    proposed = any(record.status is OrderStatus.PROPOSED and not record.is_approved for record in found)
    hint = Text("Proposed orders wait for you: holdfast approve ID, holdfast reject ID --why TEXT")
    return Answer(
        lambda: json_forms.form(orders=[json_forms.order_form(record) for record in found]),
        lambda: [orders_table(found, screen.now()), *([hint] if proposed else [])] if found else [none],
    )


@answering
def approve(
    order_id: IdArgument,
    *,
    why: Annotated[str, typer.Option(metavar="TEXT", help="Kept in the journal.")] = "",
    withdraw: Annotated[bool, typer.Option("--withdraw", help="Take back your approval while others miss.")] = False,
    at: ControllerOptions,
) -> Answer:
    """Approve a proposed order. It is checked against a fresh look at the world before it runs.

    Where the policy asks for several people (`[trust] approvals`), it runs with the last one's approval.
    """
    return operate(at, Command.WITHDRAW if withdraw else Command.APPROVE, order=order_id, why=why)


@answering
def reject(
    order_id: IdArgument,
    *,
    why: Annotated[str, typer.Option(metavar="TEXT", help="The reason: kept in the journal.")],
    at: ControllerOptions,
) -> Answer:
    """Reject a proposed order: it will not run."""
    return operate(at, Command.REJECT, order=order_id, why=why)

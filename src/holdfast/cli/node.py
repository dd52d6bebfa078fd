"""`holdfast node ...`: show one node, or tell the controller what to do with it and why.

Every word of a person is an event in the journal, with who said it and why; the engine turns it into orders under
the policy (a node that is in use is drained before it is repaired).
"""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli import json_forms, screen
from holdfast.cli.answer import Answer, answering, group
from holdfast.cli.cluster_tables import for_people, node_page
from holdfast.cli.operate import operate
from holdfast.cli.options import ControllerOptions, Where
from holdfast.cli.records import Records, read
from holdfast.model.events import Command
from holdfast.model.records import IncidentRecord, NodeRecord, OrderRecord

app = group("Show or steer one node: drain, return, reboot, replace.")

ORDERS_MAX = 20

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The node, as `holdfast nodes` shows it.")]
WhyOption = Annotated[
    str, typer.Option("--why", metavar="TEXT", help="The reason: kept in the journal, shown to everyone.")
]


@app.command()
@answering
def show(
    name: NameArgument,
    *,
    where: Where,
) -> Answer:
    """Show one node: state, why, incidents, orders, its story."""

    async def look(records: Records) -> tuple[NodeRecord, list[IncidentRecord], list[OrderRecord]]:
        found = await records.nodes(node=name)
        if not found:
            raise screen.missing("node", name, [record.name for record in await records.nodes()])
        incidents = await records.incidents(node=name)
        orders = await records.orders(node=name)
        return found[0], incidents, for_people(orders)

    record, incidents, orders = read(where, look)
    return Answer(
        lambda: json_forms.form(node=json_forms.node_form(record, incidents, orders)),
        lambda: [node_page(record, incidents, orders[:ORDERS_MAX], screen.now())],
    )


def _command(word: Command, help_line: str) -> None:
    """Make the subcommand of one operator command; they differ only in their word."""

    def run(name: NameArgument, *, why: WhyOption, at: ControllerOptions) -> Answer:
        return operate(at, word, node=name, why=why)

    run.__doc__ = help_line
    app.command(word.value.replace("_", "-"))(answering(run))


_command(Command.DRAIN, "Take a node out of service. No new work goes there, running work may end.")
_command(Command.RETURN, "Let a node take work again.")
_command(Command.REBOOT, "Reboot a node, once it is drained.")
_command(Command.REPLACE, "Have another machine take a drained node's place.")
_command(Command.CONFIRM_HEALTHY, "Say that a suspect node is fine. Its evidence so far no longer counts.")

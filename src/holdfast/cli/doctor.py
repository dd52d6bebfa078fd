"""`holdfast doctor`: what of this machine Holdfast can use, and what is missing. Changes nothing."""

from __future__ import annotations

from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from holdfast.cli import screen
from holdfast.cli.certificates import certificates
from holdfast.cli.exporters import of_prometheus, on_this_machine
from holdfast.cli.machine import State, facts
from holdfast.errors import EXIT_FAILED

STYLES = {State.OK: "green", State.MISSING: "yellow", State.ABSENT: "dim", State.BROKEN: "red"}


def doctor(
    *,
    json: Annotated[
        bool, typer.Option("--json", help="Print the facts as JSON: name, state, found, serves, advice.")
    ] = False,
    prometheus: Annotated[
        str,
        typer.Option(
            metavar="URL",
            help="Ask this Prometheus, too: are node, DCGM, Slurm and Holdfast's own exporters scraped, do they "
            "answer, "
            "how fresh and of which version are they, are the rules loaded, is remote_write keeping up?",
        ),
    ] = "",
) -> None:
    """Say what of this machine Holdfast can use, what is missing, why it matters and how to get it.

    Exit code 1 only when something is broken: Holdfast cannot work without it, or it was asked for and does not answer.
    """
    found = [*facts(), *certificates(), *on_this_machine(), *(of_prometheus(prometheus) if prometheus else ())]
    if json:
        screen.say_json(found)
    else:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for heading in ("", "state", "found", "serves"):
            table.add_column(heading, overflow="fold")
        for fact in found:
            table.add_row(fact.name, Text(fact.state, style=STYLES[fact.state]), Text(fact.found), fact.serves)
        console = Console()
        console.print(table)
        for fact in found:
            if fact.state in {State.MISSING, State.BROKEN} and fact.advice:
                console.print(Text(f"{fact.name}: {fact.advice}"))
    if any(fact.state is State.BROKEN for fact in found):
        raise typer.Exit(EXIT_FAILED)

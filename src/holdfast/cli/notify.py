"""`holdfast notify test`: sends one notice to each destination of `[notify]` and says what came of it."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import typer

from holdfast.adapters.notify.routing import Message, check
from holdfast.adapters.notify.services import AppriseDeliverer
from holdfast.cli.answer import Answer, answering
from holdfast.cli.json_forms import form
from holdfast.cli.options import ConfigOption
from holdfast.errors import EXIT_FAILED, ConfigError, HoldfastError, UsageError
from holdfast.model.evidence import Severity
from holdfast.wiring.settings import load_settings

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Notices to people: try the destinations.")


@app.callback()
def group() -> None:
    """Notices to people: try the destinations."""


@app.command("test")
@answering
def send_test(
    *,
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="One destination. Default: all.")] = "",
    config: ConfigOption = None,
) -> Answer:
    """Send a test notice, now, whatever the hour and the routing. Exit code 1 when a destination did not take it."""
    settings = load_settings(config)
    check(settings.config.notify)
    chosen = [one for one in settings.config.notify.to if name in {"", one.name}]
    if not chosen:
        known = ", ".join(one.name for one in settings.config.notify.to)
        if name:
            raise UsageError(f"no destination {name!r}: [[notify.to]] has {known or 'none'}")
        raise ConfigError("no destination is named: write [[notify.to]]", file=str(settings.file or "holdfast.toml"))
    message = Message("test", Severity.INFO, "Test of Holdfast's notices", "If you read this, notices reach you.")
    results: list[dict[str, Any]] = []
    for one in chosen:
        why = ""
        try:
            asyncio.run(AppriseDeliverer(settings.config.notify.allow).deliver(one, message, ""))
        except HoldfastError as error:
            why = str(error)
        results.append({"name": one.name, "taken": not why, "why": why})
    return Answer(
        lambda: form(destinations=results),
        lambda: [f"{row['name']}: {'taken' if row['taken'] else row['why']}" for row in results],
        0 if all(row["taken"] for row in results) else EXIT_FAILED,
    )

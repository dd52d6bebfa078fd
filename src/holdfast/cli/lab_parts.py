"""What the commands of both labs have in common. Used by `lab` and `lab_kubernetes`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.answer import Answer
from holdfast.lab.settings import cache_folder

VERSION = 1

NodeArgument = Annotated[str, typer.Argument(metavar="NODE", help="Name of the node: node03.")]


def lab_folder(given: Path | None, name: str) -> Path:
    """The lab's folder: what was given, else the one of this name in the user's cache."""
    return (given or cache_folder(name)).expanduser().resolve()


def ended(what: str, folder: Path, *, ran: bool) -> Answer:
    """What became of `down`."""
    said = f"{what} in {folder} is down" if ran else f"no {what} ran in {folder}"
    return Answer(lambda: {"version": VERSION, "dir": str(folder), "ran": ran}, lambda: [said])


def environment(found: dict[str, str]) -> Answer:
    """Variables as a shell reads them."""
    return Answer(
        lambda: {"version": VERSION, "env": found},
        lambda: [f"export {name}={shlex.quote(value)}" for name, value in found.items()],
    )

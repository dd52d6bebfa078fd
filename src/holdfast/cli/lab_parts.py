"""What the commands of both labs have in common. Used by `lab` and `lab_kubernetes`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.lab.settings import cache_folder

NodeArgument = Annotated[str, typer.Argument(metavar="NODE", help="Name of the node: node03.")]


def group(about: str) -> typer.Typer:
    """Commands under one word."""
    return typer.Typer(help=about, no_args_is_help=True, rich_markup_mode=None, add_completion=False)


def lab_folder(given: Path | None, name: str) -> Path:
    """The lab's folder: what was given, else the one of this name in the user's cache."""
    return (given or cache_folder(name)).expanduser().resolve()

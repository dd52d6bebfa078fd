"""`holdfast notify-slurm`: a script of Slurm's tells the controller that something changed.

Slurm calls it as EpilogSlurmctld, from strigger or from a jobcomp script, and waits for it, so it ends at once and
with 0 whatever happens: a controller that is away must not make Slurm drain nodes or hold jobs. No time passes here.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from holdfast.adapters.slurm.push import push
from holdfast.errors import EXIT_UNAVAILABLE, LinkError


def notify_slurm(
    *,
    cluster_dir: Annotated[
        Path, typer.Option("--dir", metavar="DIR", help="The controller's folder, as its own --dir.")
    ],
    strict: Annotated[bool, typer.Option("--strict", help="End with 69 when no controller listens.")] = False,
) -> None:
    """Have the controller look at Slurm now: for EpilogSlurmctld, strigger and jobcomp scripts."""
    try:
        push(cluster_dir / "controller", os.environ.get("SLURM_JOB_ID", ""))
    except LinkError as error:
        if strict:
            typer.echo(f"holdfast: {error}", err=True)
            raise typer.Exit(EXIT_UNAVAILABLE) from error

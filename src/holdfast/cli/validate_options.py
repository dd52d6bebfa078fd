"""The options of `holdfast validate`. Read by `cli.validate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.options import OptionSet
from holdfast.validate.session import JOIN_S

SECRET = "HOLDFAST_VALIDATE_SECRET"  # noqa: S105 - the name of a variable
SEVERAL = "Comma separated, or given several times."

JournalUrl = Annotated[
    str,
    typer.Option(
        "--journal",
        metavar="URL",
        help="Journal that keeps the history; `none`: none. Default: validate.db in ~/.local/share/holdfast.",
    ),
]


class ValidateOptions(OptionSet, frozen=True):
    """What is to be validated, where, and what is left behind."""

    suite: Annotated[list[str] | None, typer.Option(metavar="NAME", help=f"Suites; `all`. {SEVERAL}")] = None
    deep: Annotated[bool, typer.Option("--deep", help="Longer and harder: stress, more data, compilation.")] = False
    nodes: Annotated[
        str, typer.Option(metavar="NODES", help="Call srun on `all` idle nodes, a number of nodes or a list.")
    ] = ""
    partition: Annotated[str, typer.Option(metavar="NAME", help="For --nodes.")] = ""
    baseline: Annotated[
        str, typer.Option(metavar="NAME|FILE", help="What to compare with; `none`. Default: what matches the node.")
    ] = ""
    learn: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a baseline from this run's healthy nodes.")
    ] = None
    storage: Annotated[str, typer.Option(metavar="DIR", help="Folder that the storage suite uses.")] = ""
    shared: Annotated[str, typer.Option(metavar="DIR", help="Folder that all nodes see, to test it.")] = ""
    device: Annotated[str, typer.Option(metavar="NAME", help="torch device of the gpu suite.")] = ""
    nccl_tests: Annotated[str, typer.Option(metavar="DIR", help="Where nccl-tests were built.")] = ""
    rendezvous_s: Annotated[float, typer.Option(metavar="S", help="torchrun's rendezvous time-out of your jobs.")] = 0.0
    replacement_s: Annotated[
        float, typer.Option(metavar="S", help="How long the replacement of a node takes here.")
    ] = 1800.0
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Folder of the run, seen by all nodes. Default: holdfast-validate-ID."),
    ] = None
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the interrupted run in --out.")] = False
    report: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Also write FILE: .html, .md, .json or .csv. Several times."),
    ] = None
    journal: JournalUrl = ""
    leader: Annotated[
        str, typer.Option(metavar="HOST:PORT", help=f"Without srun: the leader; the secret is in {SECRET}.")
    ] = ""
    expect: Annotated[int, typer.Option(metavar="N", help="Without srun: how many nodes.", min=1)] = 1
    join_s: Annotated[float, typer.Option(metavar="S", help="How long nodes may take to join.")] = JOIN_S
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress; print problems only.")] = False

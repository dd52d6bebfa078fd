"""The options of `holdfast validate`, a type each. Read by `cli.validate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

SECRET = "HOLDFAST_VALIDATE_SECRET"  # noqa: S105 - the name of a variable
SEVERAL = "Comma separated, or given several times."

Suites = Annotated[list[str] | None, typer.Option("--suite", metavar="NAME", help=f"Suites; `all`. {SEVERAL}")]
Deep = Annotated[bool, typer.Option("--deep", help="Longer and harder: stress, more data, compilation.")]
Nodes = Annotated[
    str, typer.Option("--nodes", metavar="NODES", help="Call srun on `all` idle nodes, a number of nodes or a list.")
]
Partition = Annotated[str, typer.Option("--partition", metavar="NAME", help="For --nodes.")]
BaselineName = Annotated[
    str,
    typer.Option(
        "--baseline", metavar="NAME|FILE", help="What to compare with; `none`. Default: what matches the node."
    ),
]
Learn = Annotated[
    Path | None, typer.Option("--learn", metavar="FILE", help="Write a baseline from this run's healthy nodes.")
]
Storage = Annotated[str, typer.Option("--storage", metavar="DIR", help="Folder that the storage suite uses.")]
Shared = Annotated[str, typer.Option("--shared", metavar="DIR", help="Folder that all nodes see, to test it.")]
Device = Annotated[str, typer.Option("--device", metavar="NAME", help="torch device of the gpu suite.")]
NcclTests = Annotated[str, typer.Option("--nccl-tests", metavar="DIR", help="Where nccl-tests were built.")]
RendezvousS = Annotated[
    float, typer.Option("--rendezvous-s", metavar="S", help="torchrun's rendezvous time-out of your jobs.")
]
ReplacementS = Annotated[
    float, typer.Option("--replacement-s", metavar="S", help="How long the replacement of a node takes here.")
]
Out = Annotated[
    Path | None,
    typer.Option("--out", metavar="DIR", help="Folder of the run, seen by all nodes. Default: holdfast-validate-ID."),
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the interrupted run in --out.")]
Reports = Annotated[
    list[Path] | None,
    typer.Option("--report", metavar="FILE", help="Also write FILE: .html, .md, .json or .csv. Several times."),
]
LeaderAddress = Annotated[
    str, typer.Option("--leader", metavar="HOST:PORT", help=f"Without srun: the leader; the secret is in {SECRET}.")
]
Expect = Annotated[int, typer.Option("--expect", metavar="N", help="Without srun: how many nodes.", min=1)]
JoinS = Annotated[float, typer.Option("--join-s", metavar="S", help="How long nodes may take to join.")]
JournalUrl = Annotated[
    str,
    typer.Option(
        "--journal",
        metavar="URL",
        help="Journal that keeps the history; `none`: none. Default: validate.db in ~/.local/share/holdfast.",
    ),
]

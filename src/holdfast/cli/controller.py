"""`holdfast controller`: its options; `wiring.controller` runs it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.options import ConfigOption
from holdfast.errors import UsageError
from holdfast.wiring.settings import service_settings

PORT = 8470
LEASE_S = 10.0

JournalUrlOption = Annotated[
    str,
    typer.Option(
        metavar="URL",
        envvar="HOLDFAST_JOURNAL",
        help="Journal: sqlite:///FILE or postgresql://USER@HOST/DATABASE. Default: sqlite in DIR/controller.",
    ),
]
ElectOption = Annotated[
    str, typer.Option(metavar="kubernetes:NAMESPACE/NAME", help="Lead only while this Lease is held, too.")
]


def controller(
    *,
    cluster_dir: Annotated[
        Path, typer.Option("--dir", metavar="DIR", help="Folder of the cluster; its own files go to DIR/controller.")
    ],
    cluster: Annotated[
        str,
        typer.Option(
            help="The cluster to keep: slurm:[SLURM_CONF], kubernetes:[CONTEXT] or local:SOCKET. "
            "Default: the embedded cluster in DIR."
        ),
    ] = "",
    config: ConfigOption = None,
    policy: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Policy file (TOML); read again on SIGHUP.", exists=False)
    ] = None,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where the API listens; port 0 takes a free one.")
    ] = f"127.0.0.1:{PORT}",
    journal: JournalUrlOption = "",
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Token book (role name sha256). Default: one is made in DIR/controller."),
    ] = None,
    lease_s: Annotated[
        float, typer.Option(min=1.0, max=300.0, help="A standby may take over this long after our last word.")
    ] = LEASE_S,
    standby: Annotated[
        bool, typer.Option("--standby", help="While another controller leads, wait for its lease to end.")
    ] = False,
    elect: ElectOption = "",
    log_json: Annotated[bool, typer.Option("--log-json", help="Write the log as JSON lines.")] = False,
) -> None:
    """Run the controller: judge what is reported, bring jobs back, keep bad nodes out."""
    from holdfast.wiring.controller import Options, keep, log_to_stderr  # noqa: PLC0415 - all that a controller is made of

    log_to_stderr(as_json=log_json)
    folder = cluster_dir.absolute() / "controller"
    host, port = parse_listen(listen)
    settings = service_settings(config)
    options = Options(
        folder=folder,
        cluster=cluster or settings.config.cluster or f"local:{cluster_dir.absolute() / 'cluster.sock'}",
        policy=policy or settings.path(settings.config.policy),
        settings=settings,
        host=host,
        port=port,
        journal=journal or f"sqlite:///{folder / 'journal.db'}",
        token_file=token_file,
        lease_s=lease_s,
        standby=standby,
        elect=elect,
        pod=os.environ.get("HOLDFAST_POD", ""),
    )
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise UsageError(f"--dir {cluster_dir}: cannot be made: {error.strerror}") from error
    keep(options)


def parse_listen(text: str) -> tuple[str, int]:
    """`HOST:PORT` or `[HOST]:PORT`.

    Raises:
        UsageError: it is something else.
    """
    host, mark, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not mark or not host or not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"--listen {text!r}: write HOST:PORT, such as 127.0.0.1:{PORT}; port 0 takes a free one")
    return host, int(port)

"""`holdfast controller`: its options; `wiring.controller` runs it."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.answer import taking
from holdfast.cli.options import ConfigOption, OptionSet
from holdfast.errors import RefusedError, UsageError
from holdfast.os.files import foreign
from holdfast.os.listeners import host_and_port
from holdfast.wiring.settings import service_settings

PORT = 8470
LEASE_S = 10.0


class ControllerChoices(OptionSet, frozen=True):
    """The options of `holdfast controller`, as `wiring.controller.Options` has them."""

    cluster_dir: Annotated[
        Path, typer.Option("--dir", metavar="DIR", help="Folder of the cluster; its own files go to DIR/controller.")
    ]
    cluster: Annotated[
        str,
        typer.Option(
            help="The cluster to keep: slurm:[SLURM_CONF], kubernetes:[CONTEXT] or local:SOCKET. "
            "Default: the embedded cluster in DIR."
        ),
    ] = ""
    config: ConfigOption = None
    policy: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Policy file (TOML); read again on SIGHUP.", exists=False)
    ] = None
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where the API listens; port 0 takes a free one.")
    ] = f"127.0.0.1:{PORT}"
    journal: Annotated[
        str,
        typer.Option(
            metavar="URL",
            envvar="HOLDFAST_JOURNAL",
            help="Journal: sqlite:///FILE or postgresql://USER@HOST/DATABASE. Default: sqlite in DIR/controller.",
        ),
    ] = ""
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Token book (role name sha256). Default: one is made in DIR/controller."),
    ] = None
    lease_s: Annotated[
        float, typer.Option(min=1.0, max=300.0, help="A standby may take over this long after our last word.")
    ] = LEASE_S
    standby: Annotated[
        bool, typer.Option("--standby", help="While another controller leads, wait for its lease to end.")
    ] = False
    elect: Annotated[
        str, typer.Option(metavar="kubernetes:NAMESPACE/NAME", help="Lead only while this Lease is held, too.")
    ] = ""
    log_json: Annotated[bool, typer.Option("--log-json", help="Write the log as JSON lines.")] = False


@taking
def controller(given: ControllerChoices) -> None:
    """Run the controller: judge what is reported, bring jobs back, keep bad nodes out."""
    from holdfast.wiring.controller import Options, keep, log_to_stderr  # noqa: PLC0415 - all that a controller is made of

    log_to_stderr(as_json=given.log_json)
    folder = given.cluster_dir.absolute() / "controller"
    host, port = parse_listen(given.listen)
    settings = service_settings(given.config)
    cluster = given.cluster or settings.config.cluster or f"local:{given.cluster_dir.absolute() / 'cluster.sock'}"
    options = given.fill(
        Options,
        folder=folder,
        cluster=cluster,
        policy=given.policy or settings.path(settings.config.policy),
        settings=settings,
        host=host,
        port=port,
        journal=given.journal or f"sqlite:///{folder / 'journal.db'}",
        pod=os.environ.get("HOLDFAST_POD", ""),
    )
    _own_folder(given.cluster_dir, folder)
    keep(options)


def _own_folder(cluster_dir: Path, folder: Path) -> None:
    """Make the controller's folder, where nobody else may exchange what it reads.

    A pod's volume is its containers' alone, whoever owns it and whatever its mode.

    Raises:
        UsageError: a folder cannot be made.
        RefusedError: one belongs to another user, or others may write into it.
    """
    try:
        cluster_dir.mkdir(parents=True, exist_ok=True, mode=0o755)
        folder.mkdir(exist_ok=True, mode=0o700)
        if folder.stat().st_uid == os.geteuid():  # perhaps made for a group
            folder.chmod(folder.stat().st_mode & ~(stat.S_IWGRP | stat.S_IWOTH) & 0o7777)
        found = [] if os.environ.get("KUBERNETES_SERVICE_HOST") else [(cluster_dir, cluster_dir.stat())]
        found += [(folder, folder.stat())]
    except OSError as error:
        raise UsageError(f"--dir {cluster_dir}: cannot be made: {error.strerror}") from error
    for place, seen in found:
        if seen.st_uid not in {0, os.geteuid()}:
            raise RefusedError(
                f"--dir {cluster_dir}: {place} {foreign(seen)}: run the controller as that user, or chown it"
            )
        if why := foreign(seen):
            raise RefusedError(
                f"--dir {cluster_dir}: {place} {why}, who could exchange the journal: chmod go-w {place}"
            )


def parse_listen(text: str) -> tuple[str, int]:
    """`HOST:PORT` or `[HOST]:PORT`.

    Raises:
        UsageError: it is something else.
    """
    found = host_and_port(text)
    if found is None:
        raise UsageError(f"--listen {text!r}: write HOST:PORT, such as 127.0.0.1:{PORT}; port 0 takes a free one")
    return found

"""`holdfast agent`: the agent of a node, usually started by systemd on every node of a real cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.agent.process import DEFAULT_KERNEL_LOG, DEFAULT_STATE, AgentOptions, run_agent
from holdfast.cli.answer import taking
from holdfast.cli.options import AgentConfigOption, OptionSet
from holdfast.os.tls import CA_FILE, CERT_FILE, MUNGE, PLAIN_HTTP, Trust, named_socket


class AgentChoices(OptionSet, frozen=True):
    """The options of `holdfast agent`, as `AgentOptions` has them."""

    controller: Annotated[
        str, typer.Option(metavar="URL", envvar="HOLDFAST_CONTROLLER", help="The controller's address.")
    ] = ""
    controller_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="controller.json to follow, in place of --controller.")
    ] = None
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", envvar="HOLDFAST_TOKEN_FILE", help="File that holds this agent's token."),
    ] = None
    ca_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", envvar=CA_FILE, help="Certificate authority of the controller's certificate."),
    ] = None
    cert_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", envvar=CERT_FILE, help="This node's certificate and key, for a controller that asks."
        ),
    ] = None
    plain_http: Annotated[
        bool,
        typer.Option("--plain-http", envvar=PLAIN_HTTP, help="Send the token over plain HTTP beyond this machine."),
    ] = False
    munge: Annotated[
        str,
        typer.Option(
            metavar="1|SOCKET", envvar=MUNGE, help="Log in by munge in place of a token: 1, or munged's socket."
        ),
    ] = ""
    node: Annotated[str, typer.Option(metavar="NAME", help="Name of this node; default: its short host name.")] = ""
    kernel_log: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help=f"Kernel log to read. Default: {DEFAULT_KERNEL_LOG}, else journald, else the system's log files.",
        ),
    ] = None
    state_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help=f"Spool and bookmark. Default: {DEFAULT_STATE}.")
    ] = None
    rules: Annotated[
        list[Path] | None, typer.Option(metavar="DIR", help="Further rules for logs; may be given several times.")
    ] = None
    beat_s: Annotated[float, typer.Option(min=0.05, help="Seconds between two beats.")] = 10.0
    drill_ok: Annotated[bool, typer.Option("--drill-ok", help="This node may be broken on purpose.")] = False
    config: AgentConfigOption = None
    metrics: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Serve /metrics and /healthz here. Default: agent.toml's.")
    ] = None
    checks: Annotated[bool, typer.Option("--checks/--no-checks", help="Run the health checks.")] = True
    node_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="An embedded node's folder; its facts are in node.json.")
    ] = None


@taking
def agent(given: AgentChoices) -> None:
    """Run the agent of this node: read its logs, check its health, beat, validate it when the controller asks.

    SIGHUP has agent.toml read again.
    """
    trust = Trust(given.ca_file, given.cert_file, given.plain_http, named_socket(given.munge))
    address = "" if given.controller_file is not None else given.controller
    run_agent(given.fill(AgentOptions, controller=address, trust=trust, rules=tuple(given.rules or ())))

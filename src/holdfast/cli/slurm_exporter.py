"""`holdfast slurm-exporter`: serves a Slurm cluster's figures to Prometheus until it is told to end."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Annotated

import typer
from prometheus_client import CollectorRegistry, start_http_server

from holdfast.adapters.slurm.figures import SlurmCollector, look
from holdfast.cli.controller import parse_listen
from holdfast.errors import UsageError

PORT = 9472


def slurm_exporter(
    *,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where /metrics is served; port 0 takes a free one.")
    ] = f"127.0.0.1:{PORT}",
    conf: Annotated[
        Path | None, typer.Option(metavar="SLURM_CONF", help="Default: the one that Slurm's tools find.")
    ] = None,
) -> None:
    """Serve jobs by state, waiting and running times, pending ages and node states; one squeue and sinfo a look."""
    host, port = parse_listen(listen)
    registry = CollectorRegistry()
    registry.register(SlurmCollector(lambda: look(conf)))
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise UsageError(f"--listen {listen}: {error.strerror or error}") from error
    end = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: end.set())
    typer.echo(f"http://{host}:{server.server_port}/metrics")
    end.wait()
    server.shutdown()
    server.server_close()
    thread.join(5)

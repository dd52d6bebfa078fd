"""Talking to a controller: typed, over HTTP. It stands at the floor of the adapters.

`AsyncClient` and `Client` (the same for code without a loop) are in `http.py`; `Reporter` and its `Spool`, by which
agents and launchers deliver events through a controller's absence, in `reporter.py`; `rows`, which makes tables of
records, in `rows.py`; `Trust`, whom a client believes, is of `os/tls.py`.
"""

from __future__ import annotations

from holdfast.client.http import AsyncClient, Client
from holdfast.client.reporter import ClientSource, Reporter, Spool
from holdfast.client.rows import rows
from holdfast.model.answers import CommandAnswer as Commanded
from holdfast.model.answers import EventsAnswer as Events
from holdfast.model.answers import StateAnswer as State
from holdfast.os.tls import Trust

__all__ = [
    "AsyncClient",
    "Client",
    "ClientSource",
    "Commanded",
    "Events",
    "Reporter",
    "Spool",
    "State",
    "Trust",
    "rows",
]

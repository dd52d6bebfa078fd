"""Talking to a controller: typed, over HTTP. It stands at the floor of the adapters.

`AsyncClient` and `Client` (the same for code without a loop) are in `http.py`; `Reporter` and its `Spool`, by which
agents and launchers deliver events through a controller's absence, in `reporter.py`; `rows`, which makes tables of
records, in `rows.py`.
"""

from __future__ import annotations

from holdfast.client.http import AsyncClient, Client, Commanded, Events, State
from holdfast.client.reporter import ClientSource, Reporter, Spool
from holdfast.client.rows import rows

__all__ = ["AsyncClient", "Client", "ClientSource", "Commanded", "Events", "Reporter", "Spool", "State", "rows"]

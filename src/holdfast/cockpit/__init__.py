"""The cockpit: pages that show within five seconds what is wrong, what Holdfast does about it and why, and take a word.

`board.py` keeps in memory what the pages show of the whole fleet, `live.py` sends changes to open pages, `pages.py`
gathers one page's parts, `routes.py` serves them, `sessions.py` knows who looks, `deeds.py` takes orders with a reason.
`wiring/controller.py` puts it beside the API. Pages are made on the server; without JavaScript they still can be read.
"""

from __future__ import annotations

from holdfast.cockpit.cockpit import Cockpit
from holdfast.cockpit.routes import router

__all__ = ["Cockpit", "router"]

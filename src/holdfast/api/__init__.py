"""The controller's HTTP API under `/v1`, `/healthz` and `/metrics`: `server.py` makes and serves it.

It only translates: every judgement is the controller's, every stored fact the journal's. `cli/` starts it.
"""

from __future__ import annotations

from holdfast.api.auth import Identity, Role, TokenBook
from holdfast.api.server import ApiServer

__all__ = ["ApiServer", "Identity", "Role", "TokenBook"]

"""The API's application: routes, guards, error forms, size limits. Called by `server.py` and by tests."""

from __future__ import annotations

from litestar import Litestar, Router
from litestar.datastructures import State
from litestar.exceptions import HTTPException
from litestar.openapi import OpenAPIConfig
from litestar.openapi.spec import Components, SecurityScheme

from holdfast import __version__
from holdfast.api import routes_ingest, routes_state, routes_watch
from holdfast.api.auth import TokenBook
from holdfast.api.problems import on_bug, on_http, on_ours
from holdfast.controller import Controller
from holdfast.errors import HoldfastError

BODY_MAX = 8 * 1024 * 1024
"""Bytes of one request. A batch of 1000 findings with their log lines stays below 2 MiB."""


def make_app(controller: Controller, tokens: TokenBook | None = None) -> Litestar:
    """The application over a running controller. Without tokens everyone is an operator: loopback only."""
    return Litestar(
        [
            Router("/v1", route_handlers=[*routes_ingest.HANDLERS, *routes_state.HANDLERS]),
            *routes_watch.HANDLERS,
        ],
        state=State({"controller": controller, "tokens": tokens if tokens is not None else TokenBook()}),
        exception_handlers={HTTPException: on_http, HoldfastError: on_ours, Exception: on_bug},
        request_max_body_size=BODY_MAX,
        logging_config=None,
        openapi_config=OpenAPIConfig(
            title="Holdfast",
            version=__version__,
            path="/schema",
            components=Components(security_schemes={"token": SecurityScheme(type="http", scheme="bearer")}),
            security=[{"token": []}],
        ),
    )

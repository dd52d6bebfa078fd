"""The API's application: routes, guards, error forms, size limits. Called by `server.py` and by tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from litestar import Litestar, Request, Response, Router
from litestar.datastructures import State
from litestar.exceptions import HTTPException, PermissionDeniedException
from litestar.types import ControllerRouterHandler
from prometheus_client.registry import Collector

from holdfast.api import docs_page, routes_watch
from holdfast.api.auth import Reviewer, Sessions, TokenBook
from holdfast.api.authority import Refusals
from holdfast.api.limits import LimitGate, Limits
from holdfast.api.metrics import Tally
from holdfast.api.problems import on_bug, on_deep, on_http, on_ours
from holdfast.api.whole import WholeState
from holdfast.controller import Controller
from holdfast.controller.fleet import Fleet
from holdfast.errors import HoldfastError

BODY_MAX = 8 * 1024 * 1024
"""Bytes of one request. A batch of 1000 findings with their log lines stays below 2 MiB."""
FORM_TYPES = ("application/x-www-form-urlencoded", "multipart/form-data", "text/plain")
"""What a page of another site can have a browser send without asking first."""


def make_app(
    controller: Controller,
    tokens: TokenBook | None = None,
    pages: Sequence[ControllerRouterHandler] = (),
    *,
    sessions: Sessions | None = None,
    limits: Limits | None = None,
    fleet: Fleet | None = None,
    tally: Tally | None = None,
    collectors: Sequence[Collector] = (),
    reviewer: Reviewer | None = None,
) -> Litestar:
    """The application over a running controller, with `pages` beside the API.

    Without tokens everyone is an operator: loopback only. `sessions` lets in people whom the pages have logged in.
    `fleet` and `tally` must be told of the controller's commits by whoever made them; `collectors` give more figures.
    `reviewer` lets in agents by their ServiceAccount tokens.
    """
    return Litestar(
        [
            Router("/v1", route_handlers=docs_page.ROUTES, before_request=_from_here, after_request=_closed),
            *routes_watch.HANDLERS,
            *docs_page.HANDLERS,
            *pages,
        ],
        state=State(
            {
                "controller": controller,
                "tokens": tokens if tokens is not None else TokenBook(),
                "sessions": sessions,
                "reviewer": reviewer,
                "limits": LimitGate(limits),
                "fleet": fleet if fleet is not None else Fleet(),
                "tally": tally if tally is not None else Tally(),
                "collectors": tuple(collectors),
                "whole": WholeState(controller),
                "refusals": Refusals(),
            }
        ),
        exception_handlers={
            HTTPException: on_http,
            HoldfastError: on_ours,
            RecursionError: on_deep,
            Exception: on_bug,
        },
        request_max_body_size=BODY_MAX,
        logging_config=None,
        openapi_config=None,
    )


async def _from_here(request: Request[Any, Any, Any]) -> None:
    """Refuse what a page of another site has a visitor's browser send: a server without tokens knows no other proof."""
    if request.method in {"GET", "HEAD", "OPTIONS"}:
        return
    origin = request.headers.get("origin", "")
    if origin and urlsplit(origin).netloc != request.headers.get("host", ""):
        raise PermissionDeniedException("this request was made by a page of another site")
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() in FORM_TYPES:
        raise HTTPException(detail="send the body as application/json", status_code=415)


async def _closed(response: Response[Any]) -> Response[Any]:
    """Answers are for their reader alone, and never a page."""
    response.headers.setdefault("Cache-Control", "no-store")
    response.headers.setdefault("X-Content-Type-Options", "nosniff")
    response.headers.setdefault("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
    return response

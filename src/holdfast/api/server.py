"""The API's application, served inside the controller's own asyncio loop by Granian's embedded server.

Handlers run in the loop, so they see the controller without a lock; the HTTP work is done in Granian's own thread
(`listener.py`).
`wiring/controller.py` and tests call it. Beyond loopback it refuses to listen without tokens.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import structlog
from litestar import Litestar, Request, Response, Router
from litestar.datastructures import State
from litestar.exceptions import HTTPException, PermissionDeniedException
from litestar.types import ControllerRouterHandler
from prometheus_client.registry import Collector

from holdfast.api import body_wait, docs_page, routes_watch
from holdfast.api.auth import Reviewer, Sessions, TokenBook
from holdfast.api.authority import Refusals
from holdfast.api.body_wait import within_time
from holdfast.api.exchange import Exchange
from holdfast.api.limits import LimitGate, Limits
from holdfast.api.listener import Listener
from holdfast.api.local_door import LocalDoor, local_identity
from holdfast.api.metrics import Tally
from holdfast.api.operate import follow_book
from holdfast.api.problems import on_bug, on_deep, on_http, on_ours
from holdfast.api.whole import WholeState
from holdfast.controller import Controller
from holdfast.controller.fleet import Fleet
from holdfast.errors import HoldfastError, LinkError, RefusedError
from holdfast.os.tls import TlsFiles, is_loopback

_log = structlog.get_logger("holdfast.api")

BODY_MAX = 8 * 1024 * 1024
"""Bytes of one request. A batch of 1000 findings with their log lines stays below 2 MiB."""
FORM_TYPES = ("application/x-www-form-urlencoded", "multipart/form-data", "text/plain")
"""What a page of another site can have a browser send without asking first."""


class ApiServer:
    """An async context: inside it, the API is served at `url`.

    Args:
        controller: runs in the same loop.
        host: address to listen on.
        port: 0 takes a free one.
        tokens: who is let in; None or an empty book lets in everyone, on loopback only.
        pages: route handlers beside the API's own: the cockpit's.
        sessions: people whom these pages have logged in.
        limits: how much one client may ask for.
        collectors: more figures for `/metrics`.
        reviewer: lets in agents by their ServiceAccount tokens.
        exchange: gives tokens for munge credentials.
        open_metrics: `/metrics` names jobs without a token, too.
        fleet: the cockpit's, or one of its own; it follows the controller while the API is served.
        tls: the certificate that it is served with; None: plain HTTP.
        socket: the Unix socket at which users of this machine are let in without a token; None: none.

    Raises:
        RefusedError: an address beyond loopback without tokens.
        UsageError: the address is not one of this machine, or is taken.
        ConfigError: the certificate cannot be served with.
    """

    def __init__(
        self,
        controller: Controller,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        tokens: TokenBook | None = None,
        pages: Sequence[ControllerRouterHandler] = (),
        sessions: Sessions | None = None,
        limits: Limits | None = None,
        collectors: Sequence[Collector] = (),
        reviewer: Reviewer | None = None,
        exchange: Exchange | None = None,
        open_metrics: bool = False,
        fleet: Fleet | None = None,
        tls: TlsFiles | None = None,
        socket: Path | None = None,
    ) -> None:
        if not tokens and not is_loopback(host):
            raise RefusedError(
                f"refusing to listen on {host} without tokens: give --token-file, or listen on 127.0.0.1"
            )
        self._controller = controller
        self._fleet = fleet if fleet is not None else Fleet()
        self._tally = Tally()
        self._book: asyncio.Task[None] | None = None
        state = {
            "controller": controller,
            "tokens": tokens if tokens is not None else TokenBook(),
            "sessions": sessions,
            "reviewer": reviewer,
            "exchange": exchange,
            "local": local_identity,
            "limits": LimitGate(limits),
            "open_metrics": open_metrics,
            "fleet": self._fleet,
            "tally": self._tally,
            "collectors": tuple(collectors),
            "whole": WholeState(controller),
            "refusals": Refusals(),
        }
        routes = Router("/v1", route_handlers=docs_page.ROUTES, before_request=_from_here, after_request=_closed)
        self.app = Litestar(
            [routes, *routes_watch.HANDLERS, *docs_page.HANDLERS, *pages],
            state=State(state),
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
        """The application that is served."""
        served = within_time(self.app, body_wait.BODY_WAIT_S)
        self._listener = Listener(served, host, port, tls)
        self._door = LocalDoor(served, socket) if socket is not None else None

    @property
    def url(self) -> str:
        """Where clients of this machine reach it, with the actual port."""
        return self._listener.url

    async def __aenter__(self) -> Self:
        self._listener.reserve()
        self._controller.listeners.append(self._tally.take)
        async with contextlib.AsyncExitStack() as undo:
            undo.push_async_callback(self._stop)
            await self._fleet.follow(self._controller)
            self._tally.known(line.id for line in self._fleet.incidents.values() if line.is_open)
            await self._listener.open()
            await self._open_door()
            if tokens := self.app.state.tokens:
                self._book = asyncio.create_task(follow_book(self._controller, self._fleet, tokens), name="token book")
            undo.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stop()

    async def _open_door(self) -> None:
        if self._door is None:
            return
        try:
            await self._door.open()
        except (LinkError, RefusedError) as error:  # the port serves all the same
            _log.warning("no socket for users of this machine", why=str(error))

    async def _stop(self) -> None:
        if self._door is not None:
            await self._door.close()
        if self._book is not None:
            self._book.cancel()
            await asyncio.wait([self._book])
        await self._listener.close()
        self._fleet.leave()
        if self._tally.take in self._controller.listeners:
            self._controller.listeners.remove(self._tally.take)


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

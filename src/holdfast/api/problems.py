"""Errors as `application/problem+json` (RFC 9457): one clear sentence, never a traceback. Used by `server.py`."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import structlog
from litestar import Request, Response
from litestar.exceptions import HTTPException, ValidationException

from holdfast.errors import (
    EngineError,
    HoldfastError,
    JournalError,
    LinkError,
    NotFoundError,
    RefusedError,
    StaleError,
    UserError,
    WireError,
)
from holdfast.model.answers import Problem

_log = structlog.get_logger("holdfast.api")
MEDIA_TYPE = "application/problem+json"

_STATUS: tuple[tuple[type[HoldfastError], int], ...] = (
    (NotFoundError, 404),
    (RefusedError, 403),
    (StaleError, 412),
    (UserError, 400),
    (WireError, 400),
    (EngineError, 409),
    (LinkError, 503),
    (JournalError, 503),
)


def problem(status: int, detail: str, headers: dict[str, str] | None = None) -> Response[Problem]:
    """An error's response."""
    body = Problem(HTTPStatus(status).phrase, status, detail)
    return Response(body, status_code=status, media_type=MEDIA_TYPE, headers=headers)


def on_http(_request: Request[Any, Any, Any], error: HTTPException) -> Response[Problem] | Response[None]:
    """What the framework refuses: unknown route, missing token, wrong parameter, body too large."""
    if error.status_code == 304:
        return Response(None, status_code=304, headers=dict(error.headers or {}))
    detail = error.detail
    if isinstance(error, ValidationException) and isinstance(error.extra, list):
        said = [f"{one.get('key', '')}: {one.get('message', '')}" for one in error.extra if isinstance(one, dict)]
        detail = "; ".join(said) or detail
    return problem(error.status_code, detail, dict(error.headers or {}))


def on_ours(_request: Request[Any, Any, Any], error: HoldfastError) -> Response[Problem]:
    """What Holdfast refuses."""
    status = next((code for kind, code in _STATUS if isinstance(error, kind)), 500)
    return problem(status, str(error), {"Retry-After": "1"} if status == 503 else None)


def on_deep(_request: Request[Any, Any, Any], _error: RecursionError) -> Response[Problem]:
    """A body whose brackets nest deeper than any form of ours."""
    return problem(400, "the body nests too deep")


def on_bug(request: Request[Any, Any, Any], error: Exception) -> Response[Problem]:
    """Anything else is our bug: the log has the traceback, the answer only says so."""
    _log.error("a request broke the API", path=request.url.path, exc_info=error)
    return problem(500, "internal error; the controller's log says more")

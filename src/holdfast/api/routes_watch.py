"""What watches the controller: `/healthz` and `/livez` for probes, `/metrics` for Prometheus. No token is needed.

Without one, `/metrics` names no job, unless `[api] open_metrics` of holdfast.toml says so.
"""

from __future__ import annotations

import asyncio
from typing import Any

from litestar import Request, Response, get
from litestar.datastructures import State
from msgspec import structs
from prometheus_client import CollectorRegistry, generate_latest

from holdfast.api.auth import Role, is_guess, who
from holdfast.api.metrics import ControllerCollector
from holdfast.api.newest import DOUBT_S, check_newest, doubt
from holdfast.controller import Health
from holdfast.errors import JournalError

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@get("/livez", tags=["watch"])
async def livez(state: State) -> dict[str, bool | list[str]]:
    """200 while the controller's loop answers, whatever it can reach: starting it anew would not help.

    `blind` says that the cluster cannot be read, `unseen` which kinds of jobs cannot.
    """
    health = state.controller.health()
    return {"ok": True, "standby": False, "blind": health.blind, "unseen": list(health.unseen)}


@get("/healthz", tags=["watch"])
async def healthz(state: State) -> Response[Health]:
    """200 when the controller leads, sees the cluster and can write its journal; 503 with the reason otherwise."""
    health: Health = state.controller.health()
    try:
        why = await doubt(state.controller)
    except JournalError as error:
        why = str(error)
    if why:
        health = structs.replace(health, ok=False, failing=health.failing or why)
    return Response(health, status_code=200 if health.ok else 503)


@get("/metrics", tags=["watch"])
async def metrics(request: Request[Any, Any, State], state: State) -> Response[bytes]:
    """Figures of the controller as Prometheus text; those of single jobs with the token of a viewer who sees all.

    503 once another leads. While the journal cannot tell, the figures of this process alone.
    """
    try:
        async with asyncio.timeout(DOUBT_S):
            await check_newest(state.controller)
        is_newest = True
    except (JournalError, TimeoutError):
        is_newest = False
    identity = who(request)
    if identity is None and is_guess(request.headers.get("authorization", "")):
        state.limits.count_refusal(request)
    names_jobs = state.open_metrics or (identity is not None and identity.may(Role.VIEWER) and not identity.sees)
    registry = CollectorRegistry()
    registry.register(
        ControllerCollector(
            state.controller, state.fleet, state.tally, state.limits, names_jobs=names_jobs, is_newest=is_newest
        )
    )
    for collector in state.collectors:
        registry.register(collector)
    return Response(generate_latest(registry), media_type=CONTENT_TYPE)


HANDLERS = [healthz, livez, metrics]

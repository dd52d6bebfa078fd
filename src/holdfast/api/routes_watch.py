"""What watches the controller: `/healthz` and `/livez` for probes, `/metrics` for Prometheus. No token is needed."""

from __future__ import annotations

from litestar import Response, get
from litestar.datastructures import State
from prometheus_client import CollectorRegistry, generate_latest

from holdfast.api.metrics import ControllerCollector
from holdfast.controller import Health

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
    """200 when the controller is ready, sees the cluster and can write its journal; 503 with the reason otherwise."""
    health = state.controller.health()
    return Response(health, status_code=200 if health.ok else 503)


@get("/metrics", tags=["watch"])
async def metrics(state: State) -> Response[bytes]:
    """Figures of the controller as Prometheus text."""
    registry = CollectorRegistry()
    registry.register(ControllerCollector(state.controller, state.fleet, state.tally, state.limits))
    for collector in state.collectors:
        registry.register(collector)
    return Response(generate_latest(registry), media_type=CONTENT_TYPE)


HANDLERS = [healthz, livez, metrics]

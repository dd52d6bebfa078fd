"""Asks Prometheus for a report's span. Called by `report`."""

from __future__ import annotations

from holdfast.adapters.prometheus import Prometheus
from holdfast.report.alerts import Alerts, firings

METRICS = {
    "GPU": ("holdfast_gpu_temperature_celsius", "DCGM_FI_DEV_GPU_TEMP"),
    "network": ("holdfast_network_bytes_total", "node_network_receive_bytes_total"),
}
"""Of what kind of metric a node has any: Holdfast's agent's own, or the usual exporter's."""


async def read_alerts(url: str, said_by: str, begin: float, end: float) -> Alerts:
    """What fired and what was scraped from `begin` to `end`, Unix seconds.

    Raises:
        UsageError: not an address.
        LinkError: nobody answers there, or no Prometheus.
    """
    async with Prometheus(url, said_by=said_by) as there:
        series, step_s = await there.firing(begin, end)
        up = await there.up(begin, end)
        having = {kind: await there.instances(metrics, begin, end) for kind, metrics in METRICS.items()}
    return Alerts(url, firings(series, step_s), up, having)

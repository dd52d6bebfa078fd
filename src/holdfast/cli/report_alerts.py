"""Asks Prometheus for a report's span. Called by `report`."""

from __future__ import annotations

from holdfast.adapters.prometheus import Prometheus, shown
from holdfast.errors import LinkError
from holdfast.report.alerts import Alerts, firings

OPTION = "--prometheus"
"""What names a Prometheus that must answer; one of the settings may be away."""
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
    return Alerts(shown(url), firings(series, step_s), up, having)


async def alerts_or_note(url: str, said_by: str, begin: float, end: float) -> tuple[Alerts | None, str]:
    """As `read_alerts`; where the settings named a Prometheus that is away, a note in place of the alerts.

    Raises:
        UsageError: not an address.
        LinkError: the option named one that is away.
    """
    try:
        return await read_alerts(url, said_by, begin, end), ""
    except LinkError as error:
        if said_by == OPTION:
            raise
        return None, f"The alerts are not measured: {error}"

"""What watches the controller itself: `/healthz` for probes, `/metrics` for Prometheus. No token is needed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from litestar import Response, get
from litestar.datastructures import State
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric

from holdfast import __version__
from holdfast.controller import Controller, Health
from holdfast.controller.figures import BOUNDS_S

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@get("/healthz", tags=["watch"])
async def healthz(state: State) -> Response[Health]:
    """200 when the controller is ready, sees the cluster and can write its journal; 503 with the reason otherwise."""
    health = state.controller.health()
    return Response(health, status_code=200 if health.ok else 503)


@get("/metrics", tags=["watch"])
async def metrics(state: State) -> Response[bytes]:
    """Figures of the controller as Prometheus text."""
    registry = CollectorRegistry()
    registry.register(_Figures(state.controller))
    return Response(generate_latest(registry), media_type=CONTENT_TYPE)


class _Figures:
    """Reads the controller's figures at each scrape; nothing is counted twice."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def collect(self) -> Iterator[Metric]:
        """All families."""
        yield InfoMetricFamily("holdfast_build", "Version of Holdfast.", value={"version": __version__})
        yield from self._gauges()
        yield from self._counters()

    def _gauges(self) -> Iterator[Metric]:
        health, figures = self._controller.health(), self._controller.figures
        for name, text, value in (
            ("holdfast_ready", "1 once the journal is replayed.", health.ready),
            ("holdfast_journal_failing", "1 while the journal cannot be written.", bool(health.failing)),
            ("holdfast_watch_blind", "1 while the orchestrator cannot be read.", health.blind),
            ("holdfast_watch_last_look_seconds", "Unix time of the last look at the orchestrator.", health.looked_at),
            ("holdfast_journal_seq", "Sequence number of the newest event.", health.seq),
            ("holdfast_lease_epoch", "Fencing epoch of the lease.", health.epoch),
            ("holdfast_queue_events", "Events that wait to be stored.", health.queue),
            ("holdfast_orders_waiting", "Orders that wait or run.", health.orders),
        ):
            yield GaugeMetricFamily(name, text, value=float(value))
        for name, text, states in (
            ("holdfast_jobs", "Jobs by state of their recovery.", figures.jobs),
            ("holdfast_nodes", "Nodes by state of their recovery.", figures.nodes),
        ):
            family = GaugeMetricFamily(name, text, labels=["state"])
            for state, count in sorted(Counter(states.values()).items()):
                family.add_metric([state], count)
            yield family

    def _counters(self) -> Iterator[Metric]:
        figures = self._controller.figures
        for name, text, label, counts in (
            ("holdfast_events", "Events stored, by kind.", "kind", figures.events),
            ("holdfast_orders", "Orders given, by kind.", "kind", figures.orders),
            ("holdfast_order_outcomes", "Outcomes of orders.", "outcome", figures.outcomes),
        ):
            family = CounterMetricFamily(name, text, labels=[label])
            for value, count in sorted(counts.items()):
                family.add_metric([value], count)
            yield family
        yield CounterMetricFamily("holdfast_duplicates", "Events that were stored already.", value=figures.duplicates)
        yield CounterMetricFamily("holdfast_refused", "Events that the engine refused.", value=figures.refused)
        yield CounterMetricFamily("holdfast_beats", "Beats heard.", value=self._controller.presence.beats)
        buckets, total = [], 0
        for bound, count in zip([*map(str, BOUNDS_S), "+Inf"], figures.append_buckets, strict=True):
            total += count
            buckets.append((bound, total))
        appends = HistogramMetricFamily("holdfast_journal_append_seconds", "Time of one transaction.")
        appends.add_metric([], buckets, figures.append_s)
        yield appends


HANDLERS = [healthz, metrics]

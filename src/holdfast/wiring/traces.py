"""Wires `[traces]`: each incident that closes is sent to a collector by OTLP over HTTP, as one trace.

Called by `holdfast controller`. OpenTelemetry's own batch processor keeps what waits (bounded) and sends it from its
own thread, so that recovery never waits for a collector. Time passes only at the end, while the rest is sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from holdfast import __version__
from holdfast.errors import ConfigError, UsageError
from holdfast.model.records import IncidentRecord
from holdfast.report.spans import Span, spans
from holdfast.wiring.settings import TracesConfig

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter

    from holdfast.controller import Controller
    from holdfast.ports import Entry

FROM_ENVIRONMENT = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
"""OpenTelemetry's own variables: the exporter reads them where no endpoint is given."""
NANO = 1_000_000_000
SEND_MS = 1000
END_S = 5.0
"""So long the controller's end waits for the collector to take what is left."""
END_THREAD = "holdfast-traces-end"
TOLD_MAX = 10_000

_log = structlog.get_logger("holdfast.controller")


class IncidentTraces:
    """Sends closed incidents; `take` is a listener of the controller.

    Args:
        exporter: where spans go.
        cluster: the cluster's name.
    """

    def __init__(self, exporter: SpanExporter, cluster: str = "") -> None:
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 - an extra
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415 - as above

        named = {"service.name": "holdfast-controller", "service.version": __version__}
        self._resource = Resource.create(named)
        self._processor = BatchSpanProcessor(exporter, schedule_delay_millis=SEND_MS)
        self._cluster = cluster
        self._told: OrderedDict[str, None] = OrderedDict()

    def take(self, entries: Sequence[Entry]) -> None:
        """Send what a commit has closed; an incident is sent once."""
        for entry in entries:
            for incident in entry.touched.incidents:
                if incident.closed_at and incident.id not in self._told:
                    self._told[incident.id] = None
                    self._send(incident)
        while len(self._told) > TOLD_MAX:
            self._told.popitem(last=False)

    def _send(self, incident: IncidentRecord) -> None:
        cluster = self._cluster or (incident.jobs[0].cluster if incident.jobs else "")
        for span in spans(incident, cluster):
            self._processor.on_end(readable(span, self._resource))

    async def close(self) -> None:
        """Send what is left, for at most `END_S`; what the collector has not taken by then is given up."""
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        shutdown: Callable[[], object] = self._processor.shutdown

        def end() -> None:
            shutdown()
            with contextlib.suppress(RuntimeError):  # the loop has ended: nobody waits any more
                loop.call_soon_threadsafe(done.set)

        # The loop's own threads are waited for at its end, as long as OpenTelemetry waits for a collector that is away.
        threading.Thread(target=end, name=END_THREAD, daemon=True).start()
        try:
            async with asyncio.timeout(END_S):
                await done.wait()
        except TimeoutError:
            _log.warning("the collector has not taken the last traces", waited_s=END_S)


def readable(span: Span, resource: object) -> ReadableSpan:
    """The span as OpenTelemetry's exporters take it."""
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 - an extra
    from opentelemetry.sdk.trace import Event, ReadableSpan  # noqa: PLC0415 - as above
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope  # noqa: PLC0415 - as above
    from opentelemetry.trace import SpanContext, Status, StatusCode, TraceFlags  # noqa: PLC0415 - as above

    def context(span_id: int) -> SpanContext:
        return SpanContext(span.trace_id, span_id, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))

    return ReadableSpan(
        name=span.name,
        context=context(span.span_id),
        parent=context(span.parent_id) if span.parent_id else None,
        resource=resource if isinstance(resource, Resource) else None,
        attributes=span.attributes,
        events=[Event(one.name, one.attributes, int(one.at * NANO)) for one in span.moments],
        status=Status(StatusCode.ERROR, span.failed) if span.failed else Status(StatusCode.OK),
        start_time=int(span.start * NANO),
        end_time=int(span.end * NANO),
        instrumentation_scope=InstrumentationScope("holdfast", __version__),
    )


def make_exporter(config: TracesConfig, headers_file: Path | None = None) -> SpanExporter | None:
    """Where spans go; None: nobody asked for traces. `headers_file` is the configuration's, as an absolute path.

    Raises:
        UsageError: traces are asked for in holdfast.toml, and OpenTelemetry is not installed.
        ConfigError: the file of headers cannot be read, or a line of it is none.
    """
    by_environment = any(os.environ.get(name) for name in FROM_ENVIRONMENT)
    if not config.endpoint and not by_environment:
        return None
    if config.endpoint and not config.endpoint.startswith(("http://", "https://")):
        raise ConfigError(f"[traces] endpoint {config.endpoint!r}: write http://HOST:4318/v1/traces")
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415 - an extra
    except ImportError as error:
        if not config.endpoint:
            _log.warning("no traces are sent: pip install 'holdfast[otel]'", asked_by="OTEL_EXPORTER_OTLP_ENDPOINT")
            return None
        raise UsageError("[traces] needs libraries more: pip install 'holdfast[otel]'") from error
    return OTLPSpanExporter(endpoint=config.endpoint or None, headers=read_headers(headers_file))


def read_headers(path: Path | None) -> dict[str, str] | None:
    """Headers of a file, one `name: value` a line; None: there is no file.

    Raises:
        ConfigError: it cannot be read, others may write it, or a line is not understood; names file and line.
    """
    if path is None:
        return None
    file = str(path)
    try:
        lines = path.read_text(encoding="ascii").splitlines()
        mode = path.stat().st_mode
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "is not ASCII text"
        raise ConfigError(f"cannot be read as [traces] headers_file: {why}", file=file) from error
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigError("others may write this file of [traces] headers: chmod 600 it", file=file)
    if mode & stat.S_IROTH:
        _log.warning("everyone on this machine may read this file of [traces] headers: chmod 600 it", file=file)
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        name, mark, value = line.partition(":")
        if line.strip() and not (mark and name.strip()):
            raise ConfigError("write one header a line, as `name: value`", file=file, line=number)
        if mark:
            found[name.strip()] = value.strip()
    return found


@contextlib.asynccontextmanager
async def traced(the_controller: Controller, exporter: SpanExporter | None, cluster: str = "") -> AsyncIterator[None]:
    """Send incidents that close meanwhile; without an exporter nothing happens."""
    if exporter is None:
        yield
        return
    traces = IncidentTraces(exporter, cluster)
    the_controller.listeners.append(traces.take)
    try:
        yield
    finally:
        the_controller.listeners.remove(traces.take)
        await traces.close()

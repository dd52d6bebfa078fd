"""Traces of incidents: through OpenTelemetry's own exporters, and over HTTP to a collector that stands here."""

from __future__ import annotations

import asyncio
import gzip
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.api.engine_house import engine_served, run, until
from tests.report.test_spans import incident

from holdfast.errors import ConfigError
from holdfast.lab.waiting import wait_until
from holdfast.model import events as e
from holdfast.ports import Entry, Touched
from holdfast.report.spans import spans
from holdfast.wiring import traces as traces_module
from holdfast.wiring.settings import TracesConfig
from holdfast.wiring.traces import IncidentTraces, make_exporter, traced

pytest.importorskip("opentelemetry.sdk", reason="left out: pip install 'holdfast[otel]'")
pytestmark = pytest.mark.timeout(600)


def closing(record) -> Entry:
    return Entry(e.NodeHeard(id="x", at=1.0, node="n1"), [], Touched(incidents=[record]))


def test_an_incident_is_sent_once_when_it_closes():
    """An open one is not sent; a closed one that is touched again is not sent again."""
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter = InMemorySpanExporter()

    async def work() -> None:
        traces = IncidentTraces(exporter, "c")
        for record in (incident(closed_at=0.0), incident(), incident()):
            traces.take([closing(record)])
        await traces.close()
        count = len(spans(incident(), "c"))
        wait_until(lambda: len(exporter.get_finished_spans()) >= count, "all spans", limit_s=90)

    asyncio.run(work())
    sent = exporter.get_finished_spans()
    assert [one.name for one in sent] == [one.name for one in spans(incident(), "c")]
    assert sent[0].parent is None
    assert all(one.parent.span_id == sent[0].context.span_id for one in sent[1:])
    assert sent[1].start_time == 100 * 10**9
    assert sent[0].resource.attributes["service.name"] == "holdfast-controller"


def test_the_end_does_not_wait_for_a_collector_that_is_away(monkeypatch: pytest.MonkeyPatch):
    """The loop is over while the last batch still hangs in the exporter."""
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

    asked, answers = threading.Event(), threading.Event()

    class Away(SpanExporter):
        def export(self, _spans) -> SpanExportResult:
            asked.set()
            answers.wait(90)
            return SpanExportResult.FAILURE

        def shutdown(self) -> None:
            pass

    monkeypatch.setattr(traces_module, "END_S", 0.01)

    async def work() -> None:
        traces = IncidentTraces(Away(), "c")
        traces.take([closing(incident())])
        await traces.close()

    asyncio.run(work())
    (thread,) = [one for one in threading.enumerate() if one.name == traces_module.END_THREAD]
    assert not answers.is_set()
    wait_until(asked.is_set, "the last batch is tried", limit_s=90)
    answers.set()
    thread.join(90)
    assert not thread.is_alive()


@pytest.fixture
def collector():
    """An address that takes OTLP, and what it took: headers and spans of each request."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    taken: list[tuple] = []

    class Take(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            body = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
            said = ExportTraceServiceRequest.FromString(body)
            found = [one for part in said.resource_spans for scope in part.scope_spans for one in scope.spans]
            taken.append((self.headers, found))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Take)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1/traces", taken
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_recovery_of_the_real_engine_arrives_at_a_collector(tmp_path: Path, collector):
    """A node's fault, judged and settled by the controller, comes over HTTP as one trace, with the site's header."""
    url, taken = collector
    headers = tmp_path / "headers"
    headers.write_text("X-Scope: training\n")

    async def work() -> None:
        exporter = make_exporter(TracesConfig(endpoint=url), headers)
        async with engine_served(tmp_path) as house, traced(house.controller, exporter, "site"):
            await house.five_faults()
            found = await house.controller.journal.incidents(open_only=True)
            words = {"at": found[0].opened_at + 9.0, "who": "mei", "why": "seen to"}
            for node in found[0].nodes:
                word = e.OperatorCommand(id=node, command=e.Command.CONFIRM_HEALTHY, node=node, **words)
                await house.controller.submit(word)
            await until(lambda: taken)
        names = {one.name for _, spans_ in taken for one in spans_}
        assert any(name.startswith("incident nvidia.xid.79") for name in names), names
        assert "detect" in names
        assert taken[0][0]["X-Scope"] == "training"

    run(work)


def test_bad_settings_are_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """No endpoint: no traces. A wrong address, a missing file, a line that is no header: each is named."""
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    assert make_exporter(TracesConfig()) is None
    with pytest.raises(ConfigError, match="write http://HOST:4318"):
        make_exporter(TracesConfig(endpoint="collector:4318"))
    config = TracesConfig(endpoint="http://collector:4318/v1/traces")
    with pytest.raises(ConfigError, match="No such file"):
        make_exporter(config, tmp_path / "none")
    (tmp_path / "bad").write_text("ok: 1\nnonsense\n")
    with pytest.raises(ConfigError, match=r"bad:2: write one header"):
        make_exporter(config, tmp_path / "bad")
    (tmp_path / "open").write_text("Authorization: Bearer s3cr3t\n")
    (tmp_path / "open").chmod(0o622)
    with pytest.raises(ConfigError, match=r"open: others may write .*chmod 600") as refused:
        make_exporter(config, tmp_path / "open")
    assert "s3cr3t" not in str(refused.value)
    for mode, is_told in ((0o600, False), (0o644, True)):
        (tmp_path / "open").chmod(mode)
        capsys.readouterr()
        assert make_exporter(config, tmp_path / "open") is not None
        said = capsys.readouterr()
        assert ("everyone on this machine may read" in said.out + said.err) is is_told

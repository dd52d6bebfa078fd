"""`/metrics` and `/healthz` of an agent: Prometheus text and one word, over a small HTTP server in the agent's loop.

Started by the node loop when agent.toml names an address. It answers GET of two paths and nothing else. Time passes
only while a client reads or writes, at most `CLIENT_S`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import psutil
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from holdfast.adapters.probes.check import Status
from holdfast.adapters.probes.facts import GpuFacts
from holdfast.agent.health import HealthWatch
from holdfast.agent.parser import ParserProcess
from holdfast.client import Reporter
from holdfast.errors import UsageError
from holdfast.os.doorway import Doorway
from holdfast.os.listeners import host_and_port

CLIENT_S = 5.0
REQUEST_MAX = 8192
DEVICES_MAX = 64
"""Network devices that are shown."""


class Watched(Protocol):
    """What is read of an agent: `node_loop.NodeAgent`."""

    reporter: Reporter
    parser: ParserProcess
    health: HealthWatch | None
    heard: bool
    blind: str

    @property
    def kernel_findings(self) -> int:
        """Findings from the kernel's lines so far."""

    def unwell(self) -> str:
        """Why it does not do its work; empty: it does."""


class AgentCollector(Collector):
    """What an agent says of itself and of its node, read when it is asked for."""

    def __init__(self, agent: Watched) -> None:
        self._agent = agent

    def collect(self) -> Iterator[Metric]:
        """All families."""
        agent = self._agent
        spool = agent.reporter.spool
        yield GaugeMetricFamily("holdfast_agent_spool_events", "Events that wait for the controller.", len(spool))
        yield CounterMetricFamily(
            "holdfast_agent_spool_dropped", "Events dropped because the spool was full.", spool.dropped
        )
        yield CounterMetricFamily(
            "holdfast_agent_refused", "Events that the controller will never take.", agent.reporter.refused
        )
        yield CounterMetricFamily(
            "holdfast_agent_kernel_findings", "Findings from the kernel log.", agent.kernel_findings
        )
        yield GaugeMetricFamily(
            "holdfast_agent_controller_heard", "1 while the controller takes this agent's beats.", float(agent.heard)
        )
        yield GaugeMetricFamily(
            "holdfast_agent_kernel_log_readable", "1 while the kernel log is read.", float(not agent.blind)
        )
        yield GaugeMetricFamily(
            "holdfast_agent_parser_up", "1 while the process that judges lines lives.", float(not agent.parser.why)
        )
        yield CounterMetricFamily(
            "holdfast_agent_parser_deaths", "How often that process died and was started again.", agent.parser.deaths
        )
        yield CounterMetricFamily(
            "holdfast_agent_parser_skipped_bytes", "Bytes of logs that were not judged.", agent.parser.skipped
        )
        yield from self._checks()
        yield from network_families(psutil.net_io_counters(pernic=True))

    def _checks(self) -> Iterator[Metric]:
        health = self._agent.health
        if health is None:
            return
        status = GaugeMetricFamily(
            "holdfast_check_status",
            "What a check says: 0 ok, 1 warning, 2 critical, 3 unknown; not there when it does not apply.",
            labels=["check"],
        )
        seconds = GaugeMetricFamily("holdfast_check_seconds", "How long its last look took.", labels=["check"])
        codes = {Status.OK: 0, Status.WARMING: 0, Status.WARNING: 1, Status.CRITICAL: 2, Status.UNKNOWN: 3}
        for name, verdict in health.verdicts.items():
            if verdict.status in codes:
                status.add_metric([name], codes[verdict.status])
                seconds.add_metric([name], verdict.seconds)
        yield status
        yield seconds
        yield CounterMetricFamily("holdfast_agent_looks", "Looks at sources.", health.looks)
        yield GaugeMetricFamily("holdfast_agent_open_problems", "Problems told and not cleared.", len(health.open))
        yield from gpu_families(health.looker.gpus)


def gpu_families(gpus: Sequence[GpuFacts]) -> Iterator[Metric]:
    """What NVML says of each GPU, as it was last looked at; a GPU that does not say has no line."""
    for family, rows in ((GaugeMetricFamily, _GPU_GAUGES), (CounterMetricFamily, _GPU_COUNTERS)):
        for name, text, value in rows:
            metric = family(name, text, labels=["gpu", "uuid"])
            for gpu in gpus:
                if (found := value(gpu)) is not None:
                    metric.add_metric([str(gpu.index), gpu.uuid], found)
            yield metric


_Value = Callable[[GpuFacts], float | None]
_GPU_GAUGES: tuple[tuple[str, str, _Value], ...] = (
    ("holdfast_gpu_temperature_celsius", "As NVML reports it.", lambda gpu: gpu.temperature),
    ("holdfast_gpu_memory_temperature_celsius", "As NVML reports it.", lambda gpu: gpu.memory_temperature),
    ("holdfast_gpu_power_watts", "As NVML reports it.", lambda gpu: gpu.power),
    (
        "holdfast_gpu_utilization_ratio",
        "Part of the last sample in which a kernel ran.",
        lambda gpu: gpu.utilization / 100 if gpu.utilization is not None else None,
    ),
    ("holdfast_gpu_lost", "1 while the driver cannot reach it.", lambda gpu: float(gpu.lost)),
    (
        "holdfast_gpu_links_up",
        "NVLinks that are up.",
        lambda gpu: float(sum(bool(link.active) for link in gpu.links)) if gpu.links else None,
    ),
)
_GPU_COUNTERS: tuple[tuple[str, str, _Value], ...] = (
    (
        "holdfast_gpu_ecc_uncorrected",
        "Uncorrected ECC errors since the driver was loaded.",
        lambda g: g.ecc_uncorrected,
    ),
    ("holdfast_gpu_ecc_corrected", "Corrected ECC errors since driver start.", lambda g: g.ecc_corrected),
    ("holdfast_gpu_pcie_replays", "PCIe packets sent again.", lambda gpu: gpu.pcie_replays),
)


def network_families(devices: Mapping[str, Any]) -> Iterator[Metric]:
    """Bytes, errors and drops of each network device (as psutil counts them), without loopback and containers' own."""
    shown = sorted(name for name in devices if name != "lo" and not name.startswith(("veth", "cali", "docker")))
    for name, text, sent, received in (
        ("holdfast_network_bytes", "Bytes that passed.", "bytes_sent", "bytes_recv"),
        ("holdfast_network_errors", "Packets that were in error.", "errout", "errin"),
        ("holdfast_network_drops", "Packets that were dropped.", "dropout", "dropin"),
    ):
        family = CounterMetricFamily(name, text, labels=["device", "direction"])
        for device in shown[:DEVICES_MAX]:
            family.add_metric([device, "transmit"], getattr(devices[device], sent))
            family.add_metric([device, "receive"], getattr(devices[device], received))
        yield family


class MetricsServer:
    """Serves one agent's figures.

    Args:
        agent: whose.
        address: `HOST:PORT`.
    """

    def __init__(self, agent: Watched, address: str) -> None:
        found = host_and_port(address)
        if found is None:
            raise UsageError(f'metrics = "{address}" is not HOST:PORT, such as 127.0.0.1:9471')
        self._host, self._port = found
        self._registry = CollectorRegistry()
        self._registry.register(AgentCollector(agent))
        self._healthy: Callable[[], str] = agent.unwell
        self._server: asyncio.Server | None = None
        self._doorway = Doorway()

    async def start(self) -> str:
        """Listen; returns the address. Raises OSError when it is taken."""
        self._server = await asyncio.start_server(self._serve, self._host, self._port)
        found = self._server.sockets[0].getsockname()
        return f"{found[0]}:{found[1]}"

    async def close(self) -> None:
        """Stop listening."""
        if self._server is not None:
            self._server.close()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._server.wait_closed(), 1.0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        broken = (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError)
        with self._doorway.enter(writer), contextlib.suppress(*broken):
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), CLIENT_S)
            words = head[:REQUEST_MAX].decode("latin-1").split("\r\n", 1)[0].split(" ")
            method, path, *_ = (*words, "", "")
            code, kind, body = self._answer(method, path.partition("?")[0])
            length = f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            writer.write(f"HTTP/1.1 {code}\r\nContent-Type: {kind}\r\n{length}".encode("latin-1") + body)
            await asyncio.wait_for(writer.drain(), CLIENT_S)
        writer.close()

    def _answer(self, method: str, path: str) -> tuple[str, str, bytes]:
        plain = "text/plain; charset=utf-8"
        if method != "GET":
            return "405 Method Not Allowed", plain, b"GET only\n"
        if path == "/metrics":
            return "200 OK", "text/plain; version=0.0.4; charset=utf-8", generate_latest(self._registry)
        if path == "/healthz":
            why = self._healthy()
            return ("503 Service Unavailable", plain, f"{why}\n".encode()) if why else ("200 OK", plain, b"ok\n")
        return "404 Not Found", plain, b"/metrics or /healthz\n"

"""The node loop: what an agent does all day.

`python -m holdfast.agent` and `holdfast agent` run one `NodeAgent` per node. In one asyncio loop, the kernel log hands
findings to the reporter, which keeps them on disk and brings them to the controller at once, and the beat says every
`beat_s` that the node is alive and carries home what the controller asks. Without a controller the agent goes on
watching and keeps what it saw. Time comes from the clock port.
"""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import structlog
from msgspec import Struct

from holdfast.adapters.kernel_journal import JOURNAL
from holdfast.adapters.probes.check import LogFile, NodeConfig, Problem
from holdfast.adapters.probes.rounds import Looker
from holdfast.agent.controller_link import ControllerLink
from holdfast.agent.disk_space import DiskSpace
from holdfast.agent.health import HealthWatch
from holdfast.agent.job_logs import LogWatch
from holdfast.agent.kernel_log import KernelLog, as_context
from holdfast.agent.metrics import MetricsServer
from holdfast.agent.node_facts import GpuTable, NodeIdentity
from holdfast.agent.parser import ParserProcess
from holdfast.agent.slurm_output import SlurmOutput
from holdfast.agent.told import seen
from holdfast.agent.validation import FRESH_S, quick_checks
from holdfast.client import Reporter, Spool
from holdfast.errors import LinkError, UserError, WireError
from holdfast.model.events import (
    AgentAttached,
    AnyEvent,
    FindingCleared,
    FindingSeen,
    NodeValidated,
    OrderDone,
    OrderFailed,
)
from holdfast.model.evidence import Finding, Role
from holdfast.model.orders import AnyOrder, ValidateNode
from holdfast.model.wire import Beat, SamplePoint, kind_of
from holdfast.ports import Clock

RETRY_MAX_S = 1.0
FIRST_FLUSH_S = 1.0
REQUESTS_REMEMBERED = 1000
ROOTS_MAX = 100
KERNEL_LOG_AGAIN_S = 60.0
"""Between two tries to open a kernel log that cannot be read."""
SAMPLE_EVERY_S = 60.0
FORGEABLE = "only syslog's files can be, where any user writes: give CAP_SYSLOG, or the group systemd-journal"
"""Why lines of syslog's files are context."""

_log = structlog.get_logger("holdfast.agent")


class AgentSettings(Struct, frozen=True, kw_only=True):
    """Where an agent's files are and how often it beats."""

    kernel_log: Path
    state_dir: Path
    """Spool and bookmark; private to this agent."""
    node_dir: Path | None = None
    """The embedded node's folder; None on a real node."""
    beat_s: float = 10.0
    metrics: str = ""
    """`HOST:PORT` of `/metrics` and `/healthz`; empty: nowhere."""
    logs: tuple[LogFile, ...] = ()
    is_syslog: bool = False
    """The kernel log is a file that syslog writes."""
    is_believed: bool = True
    """What the kernel log says may move this node; False: it is context, since any user can write there."""
    messages: Path | None = None
    """Syslog's file of all messages, read beside the kernel log; None: it is not, since any user can write to it."""
    slurm: bool = False
    """Follow the output of Slurm's jobs on this node that have no launcher."""


class NodeAgent:
    """One node's agent.

    Args:
        settings: see AgentSettings.
        identity: which node this is.
        gpus: which GPU sits at which PCI address.
        parser: judges lines.
        clock: the time.
        controller: the way to the controller, as far as it is known.
        looker: the health checks; None: none are run.
        on_reset: called when the kernel log tells of a GPU reset (emulated devices settle then).
    """

    def __init__(
        self,
        settings: AgentSettings,
        *,
        identity: NodeIdentity,
        gpus: GpuTable,
        parser: ParserProcess,
        clock: Clock,
        controller: ControllerLink,
        looker: Looker | None = None,
        on_reset: Callable[[], None] | None = None,
    ) -> None:
        self.settings = settings
        self.identity = identity
        self.source = f"agent:{identity.name}"
        self._clock = clock
        self.parser = parser
        self._controller = controller
        self._requests: deque[str] = deque(maxlen=REQUESTS_REMEMBERED)
        self._roots: deque[Finding] = deque(maxlen=ROOTS_MAX)
        settings.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.reporter = Reporter(
            controller, self.source, Spool(settings.state_dir / "spool.jsonl"), retry_max_s=RETRY_MAX_S
        )
        self._make_log = functools.partial(
            KernelLog, identity=identity, gpus=gpus, parser=parser, clock=clock, on_finding=self._seen
        )
        bookmark = settings.state_dir / "bookmark.json"
        self.log = self._make_log(
            settings.kernel_log,
            bookmark=bookmark,
            on_reset=on_reset,
            is_syslog=settings.is_syslog,
            on_finding=self._seen if settings.is_believed else lambda finding: self._seen(as_context(finding)),
        )
        self.messages: KernelLog | None = None
        """Reads `settings.messages`, while the configuration asks for it."""
        self.heard = False
        """Did the controller take the last beat?"""
        self.blind = ""
        """Why the kernel log cannot be read; empty: it is."""
        self.metrics = MetricsServer(self, settings.metrics) if settings.metrics else None
        self.metrics_at = ""
        """Where they are served."""
        self.health: HealthWatch | None = None
        if looker is not None:
            self.health = HealthWatch(
                looker,
                identity=identity,
                source=self.source,
                catalogue=parser.catalogue,
                clock=clock,
                report=self._report,
                state_dir=settings.state_dir,
            )
        self.job_logs = LogWatch(settings.logs, identity=identity, parser=parser, clock=clock, on_finding=self._seen)
        self.slurm_output = (
            SlurmOutput(node=identity.name, source=self.source, parser=parser, clock=clock, report=self.reporter.report)
            if settings.slurm
            else None
        )
        self._dropped_told = 0
        self._sampled_at = float("-inf")
        self._validating: set[asyncio.Task[None]] = set()
        self._scratch = (settings.node_dir or settings.state_dir) / "tmp"

    async def run(self) -> None:
        """Watch, send and beat until cancelled."""
        attached = f"{self.source}:{self.identity.boot_id}:{self.identity.instance_id}:attached"
        self.reporter.report(AgentAttached(id=attached, **self._who()))
        disk = DiskSpace(
            self._scratch,
            node=self.identity.name,
            source=self.source,
            catalogue=self.parser.catalogue,
            clock=self._clock,
            report=self.reporter.report,
        )
        try:
            self.read_messages(self.settings.messages)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.parser.run())
                tasks.create_task(self._follow_kernel_log())
                tasks.create_task(self.reporter.run())
                tasks.create_task(self._beat())
                await self._serve_metrics()
                if self.slurm_output is not None:
                    tasks.create_task(self.slurm_output.run())
                if self.settings.logs:
                    tasks.create_task(self.job_logs.run())
                if self.health is not None:
                    tasks.create_task(self.health.run())
                tasks.create_task(disk.run())
        finally:
            self.log.close()
            self.read_messages(None)
            if self.metrics is not None:
                await self.metrics.close()
            if self.health is not None:
                await self.health.looker.reach.close()
            await self._controller.close()

    async def _serve_metrics(self) -> None:
        """An address that is taken costs the figures, not the agent."""
        if self.metrics is None:
            return
        try:
            self.metrics_at = await self.metrics.start()
        except OSError as error:
            _log.error("the figures cannot be served", address=self.settings.metrics, why=str(error))

    def reload(self, config: NodeConfig, messages: Path | None = None) -> None:
        """Take another configuration: checks, limits, profile, logs. Where metrics are served needs a restart."""
        self.job_logs.logs = config.logs
        self.read_messages(messages)
        if self.health is not None:
            self.health.reload(config)

    def read_messages(self, path: Path | None) -> None:
        """Read syslog's file of all messages from now on, or, with None, no longer."""
        if self.messages is not None and self.messages.path != path:
            self.messages.close()
            self.messages = None
        if path is not None and self.messages is None and path != self.settings.kernel_log:
            bookmark = self.settings.state_dir / "messages.json"
            self.messages = self._make_log(path, bookmark=bookmark, is_syslog=True)
            self.messages.start()

    @property
    def kernel_findings(self) -> int:
        """Findings from the kernel's lines so far."""
        return self.log.findings + (self.messages.findings if self.messages is not None else 0)

    def unwell(self) -> str:
        """Why this agent does not do its work; empty: it does. A controller that is away is not its fault."""
        if self.blind not in {"", FORGEABLE}:
            return f"the kernel log cannot be read: {self.blind}"
        return self.parser.why

    async def _follow_kernel_log(self) -> None:
        """Open it, and again when that fails: an agent without the right to read it does what else it can."""
        while True:
            try:
                self.log.start()
            except LinkError as error:
                if not self.blind:
                    _log.warning("the kernel log cannot be read", why=str(error))
                self.blind = str(error)
            else:
                self.blind = "" if self.settings.is_believed else FORGEABLE
            if self.health is not None:
                self.health.looker.kernel_log = not self.blind
                self.health.report_blind("kernel log", self.blind)
            if self.blind in {"", FORGEABLE}:
                return
            await self._clock.sleep(KERNEL_LOG_AGAIN_S)

    # --- what is seen ---

    def _seen(self, finding: Finding) -> None:
        self._report(seen(finding, self.source))

    def _report(self, event: AnyEvent) -> None:
        """Keep an event for delivery; root findings count against a validation until a boot or reset."""
        if isinstance(event, FindingSeen) and event.finding.role is Role.ROOT:
            found = event.finding
            _log.warning("found", rule=found.rule, where=str(found.place), what=found.summary)
            if not found.predicts:
                self._roots.append(found)
        if isinstance(event, FindingCleared):
            _log.info("no longer found", rule=event.rule)
            self._roots = deque((known for known in self._roots if known.rule != event.rule), maxlen=ROOTS_MAX)
        self.reporter.report(event)

    def fresh_root(self) -> str:
        """Rule of the newest root finding that no reset has followed and that is not old; empty: none."""
        now = self._clock.now()
        fresh = (f for f in self._roots if f.at > self.log.reset_at and now - f.at < FRESH_S)
        return next((finding.rule for finding in reversed(list(fresh))), "")

    # --- the controller ---

    async def _beat(self) -> None:
        # What was seen before goes first: a beat of an agent that the controller does not know yet attaches it anew.
        await self.reporter.flush(FIRST_FLUSH_S)
        told = True
        while True:
            try:
                client = await self._controller()
                answer = await client.beat(Beat(samples=self._samples(), **self._who()))
            except (LinkError, WireError, UserError) as error:  # UserError: the token is refused, until it is mended
                if told:
                    _log.warning("the controller does not take this agent's beats", why=str(error))
                self.heard = told = False
            else:
                if not told:
                    _log.info("the controller answers again")
                self.heard = told = True
                self._tell_dropped()
                for order in answer.requests:
                    self._carry_out(order)
            await self._clock.sleep(self.settings.beat_s)

    def _tell_dropped(self) -> None:
        """What the full spool lost while the controller was away is told once the rest is delivered."""
        lost = self.reporter.spool.dropped - self._dropped_told
        if lost <= 0 or self.health is None or not self.reporter.spool.has_room:
            return
        self._dropped_told += lost
        summary = f"{lost} events were dropped: the spool was full while the controller was away"
        now = self._clock.now()
        self._seen(self.health.finding(Problem(rule="check.spool_dropped", summary=summary, text=summary), now))

    def _samples(self) -> list[SamplePoint]:
        """What pages plot, not what is judged: what ranks tell, and once a minute the hottest GPU."""
        points = self.slurm_output.points() if self.slurm_output is not None else []
        gpus = self.health.looker.gpus if self.health is not None else ()
        degrees = [gpu.temperature for gpu in gpus if gpu.temperature is not None]
        if degrees and self._clock.monotonic() - self._sampled_at >= SAMPLE_EVERY_S:
            self._sampled_at = self._clock.monotonic()
            now = self._clock.now()
            points.append(SamplePoint("gpu_temp", f"node:{self.identity.name}", now, float(max(degrees))))
        return points

    def _who(self) -> dict[str, Any]:
        """What an agent says of itself."""
        known = self.identity
        return {
            "at": self._clock.now(),
            "source": self.source,
            "node": known.name,
            "boot_id": known.boot_id,
            "instance_id": known.instance_id,
            "drill_ok": known.drill_ok,
        }

    # --- what the controller asks ---

    def _carry_out(self, order: AnyOrder) -> None:
        """Do each order id once: it is handed out again until its outcome has arrived."""
        if order.id in self._requests:
            return
        self._requests.append(order.id)
        if isinstance(order, ValidateNode) and order.node == self.identity.name:
            task = asyncio.create_task(self._validate(order))
            self._validating.add(task)
            task.add_done_callback(self._validating.discard)
            return
        why = f"the agent of {self.identity.name} does not carry out {kind_of(order)}"
        self.reporter.report(
            OrderFailed(
                id=f"failed:{order.id}:{self.source}", at=self._clock.now(), source=self.source, order=order.id, why=why
            )
        )

    async def _validate(self, order: ValidateNode) -> None:
        """The quick checks first; the health checks, which may take an hour, only when those pass."""
        log = self.settings.kernel_log
        passed, detail = quick_checks(
            order,
            self.identity,
            node_dir=self.settings.node_dir,
            scratch=self._scratch,
            kernel_log=None if log == JOURNAL else log,
            root=self.fresh_root(),
        )
        if passed and self.health is not None:
            passed, more = await self.health.validate()
            detail = f"{detail}; {more}" if passed else more
        now = self._clock.now()
        _log.info("validated", passed=passed, what=detail)
        self.reporter.report(
            NodeValidated(
                id=f"validated:{order.id}",
                at=now,
                source=self.source,
                node=self.identity.name,
                passed=passed,
                instance_id=self.identity.instance_id,
                boot_id=self.identity.boot_id,
                detail=detail,
            )
        )
        done = OrderDone(id=f"done:{order.id}", at=now, source=self.source, order=order.id, detail=detail)
        self.reporter.report(done)

"""The node loop: what an agent does all day.

`python -m holdfast.agent` and `holdfast agent` run one `NodeAgent` per node. In one asyncio loop, the kernel log hands
findings to the reporter, which keeps them on disk and brings them to the controller at once, and the beat says every
`beat_s` that the node is alive and carries home what the controller asks. Without a controller the agent goes on
watching and keeps what it saw. Time comes from the clock port.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from pathlib import Path

import structlog
from msgspec import Struct

from holdfast.agent.controller_link import ControllerLink
from holdfast.agent.disk_space import LOOK_S, DiskSpace
from holdfast.agent.kernel_log import KernelLog
from holdfast.agent.node_facts import GpuTable, NodeIdentity
from holdfast.agent.validation import (
    FRESH_S,
    Check,
    kernel_log_readable,
    no_fresh_root,
    run_checks,
    same_machine,
    scratch_writable,
)
from holdfast.client import Reporter, Spool
from holdfast.detect.matcher import Matcher
from holdfast.errors import LinkError, UserError, WireError
from holdfast.model.events import AgentAttached, FindingSeen, NodeValidated, OrderDone, OrderFailed
from holdfast.model.evidence import Finding, Role
from holdfast.model.orders import AnyOrder, ValidateNode
from holdfast.model.wire import Beat, kind_of
from holdfast.ports import Clock, Probe

RETRY_MAX_S = 1.0
FIRST_FLUSH_S = 1.0
REQUESTS_REMEMBERED = 1000

_log = structlog.get_logger("holdfast.agent")


class AgentSettings(Struct, frozen=True, kw_only=True):
    """Where an agent's files are and how often it beats."""

    kernel_log: Path
    state_dir: Path
    """Spool and bookmark; private to this agent."""
    node_dir: Path | None = None
    """The embedded node's folder; None on a real node."""
    beat_s: float = 10.0


class NodeAgent:
    """One node's agent.

    Args:
        settings: see AgentSettings.
        identity: which node this is.
        gpus: which GPU sits at which PCI address.
        matcher: the compiled catalogue.
        clock: the time.
        controller: the way to the controller, as far as it is known.
        checks: further checks of a validation, after the built-in ones.
        probes: further probes, beside the one for disk space.
    """

    def __init__(
        self,
        settings: AgentSettings,
        *,
        identity: NodeIdentity,
        gpus: GpuTable,
        matcher: Matcher,
        clock: Clock,
        controller: ControllerLink,
        checks: Sequence[Check] = (),
        probes: Sequence[Probe] = (),
    ) -> None:
        self.settings = settings
        self.identity = identity
        self.source = f"agent:{identity.name}"
        self._clock = clock
        self._controller = controller
        self._requests: deque[str] = deque(maxlen=REQUESTS_REMEMBERED)
        self._roots: deque[Finding] = deque(maxlen=100)
        settings.state_dir.mkdir(parents=True, exist_ok=True)
        self.reporter = Reporter(
            controller, self.source, Spool(settings.state_dir / "spool.jsonl"), retry_max_s=RETRY_MAX_S
        )
        self.log = KernelLog(
            settings.kernel_log,
            identity=identity,
            gpus=gpus,
            matcher=matcher,
            clock=clock,
            on_finding=self._seen,
            bookmark=settings.state_dir / "bookmark.json",
        )
        scratch = (settings.node_dir or settings.state_dir) / "tmp"
        self._probes: list[Probe] = [
            DiskSpace(scratch, node=identity.name, source=self.source, catalogue=matcher.catalogue, clock=clock),
            *probes,
        ]
        self._checks: list[Check] = [
            same_machine(identity, settings.node_dir),
            scratch_writable(scratch),
            kernel_log_readable(settings.kernel_log),
            no_fresh_root(self.fresh_root),
            *checks,
        ]

    async def run(self) -> None:
        """Watch, send and beat until cancelled."""
        self._controller.source.start()
        self.reporter.report(
            AgentAttached(
                id=f"{self.source}:{self.identity.boot_id}:{self.identity.instance_id}:attached",
                at=self._clock.now(),
                source=self.source,
                node=self.identity.name,
                boot_id=self.identity.boot_id,
                instance_id=self.identity.instance_id,
                drill_ok=self.identity.drill_ok,
            )
        )
        self.log.start()
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.reporter.run())
                tasks.create_task(self._beat())
                for probe in self._probes:
                    tasks.create_task(self._look(probe))
        finally:
            self.log.close()
            await self._controller.close()

    # --- what is seen ---

    def _seen(self, finding: Finding) -> None:
        if finding.role is Role.ROOT:
            self._roots.append(finding)
        self.reporter.report(FindingSeen(id=f"seen:{finding.id}", at=finding.at, source=self.source, finding=finding))

    async def _look(self, probe: Probe) -> None:
        while True:
            for event in await probe.look():
                self.reporter.report(event)
            await self._clock.sleep(LOOK_S)

    def fresh_root(self) -> str:
        """Rule of the newest root finding that no reset has followed and that is not old; empty: none."""
        now = self._clock.now()
        fresh = (f for f in self._roots if f.at > self.log.reset_at and now - f.at < FRESH_S)
        return next((finding.rule for finding in reversed(list(fresh))), "")

    # --- the controller ---

    async def _beat(self) -> None:
        # What was seen before goes first: a beat of an agent that the controller does not know yet attaches it anew.
        await self.reporter.flush(FIRST_FLUSH_S)
        heard = True
        while True:
            try:
                client = await self._controller()
                answer = await client.beat(self._make_beat())
            except (LinkError, WireError, UserError) as error:  # UserError: the token is refused, until it is mended
                if heard:
                    _log.warning("the controller does not take this agent's beats", why=str(error))
                heard = False
            else:
                if not heard:
                    _log.info("the controller answers again")
                heard = True
                for order in answer.requests:
                    self._carry_out(order)
            await self._clock.sleep(self.settings.beat_s)

    def _make_beat(self) -> Beat:
        return Beat(
            source=self.source,
            node=self.identity.name,
            boot_id=self.identity.boot_id,
            instance_id=self.identity.instance_id,
            drill_ok=self.identity.drill_ok,
            at=self._clock.now(),
        )

    # --- what the controller asks ---

    def _carry_out(self, order: AnyOrder) -> None:
        """Do each order id once: it is handed out again until its outcome has arrived."""
        if order.id in self._requests:
            return
        self._requests.append(order.id)
        if isinstance(order, ValidateNode) and order.node == self.identity.name:
            self._validate(order)
            return
        why = f"the agent of {self.identity.name} does not carry out {kind_of(order)}"
        self.reporter.report(
            OrderFailed(
                id=f"failed:{order.id}:{self.source}", at=self._clock.now(), source=self.source, order=order.id, why=why
            )
        )

    def _validate(self, order: ValidateNode) -> None:
        passed, detail = run_checks(self._checks, order)
        now = self._clock.now()
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

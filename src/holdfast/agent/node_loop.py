"""The node loop: what an agent does all day.

`python -m holdfast.agent` and `holdfast agent` run one `NodeAgent` per node. Three tasks share one asyncio loop: the
kernel log puts findings into the outbox, the sender brings the outbox to the controller at once, and the beat says
every `beat_s` that the node is alive and carries home what the controller asks. Without a controller the agent goes
on watching and keeps what it saw. Time comes from the clock port.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog
from msgspec import Struct

from holdfast.adapters.local.link import NodeLink
from holdfast.agent.controller_link import Address, AddressSource, ControllerLink, CutLink
from holdfast.agent.kernel_log import KernelLog
from holdfast.agent.node_facts import GpuTable, NodeIdentity
from holdfast.agent.outbox import Outbox
from holdfast.agent.validation import (
    FRESH_S,
    Check,
    kernel_log_readable,
    no_fresh_root,
    run_checks,
    same_machine,
    scratch_writable,
)
from holdfast.detect.matcher import Matcher
from holdfast.errors import LinkError, WireError
from holdfast.model.events import AgentAttached, AnyEvent, FindingSeen, NodeValidated, OrderDone, OrderFailed
from holdfast.model.evidence import Finding, Role
from holdfast.model.orders import AnyOrder, ValidateNode
from holdfast.model.wire import Beat, kind_of
from holdfast.ports import Clock

BATCH_MAX = 256
RETRY_FIRST_S = 0.05
RETRY_MAX_S = 1.0
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
        address: where the controller is, as far as known.
        connect: makes a link to a controller.
        checks: further checks of a validation, after the built-in ones.
    """

    def __init__(
        self,
        settings: AgentSettings,
        *,
        identity: NodeIdentity,
        gpus: GpuTable,
        matcher: Matcher,
        clock: Clock,
        address: AddressSource,
        connect: Callable[[Address], ControllerLink],
        checks: Sequence[Check] = (),
    ) -> None:
        self.settings = settings
        self.identity = identity
        self.source = f"agent:{identity.name}"
        self._clock = clock
        self._address = address
        self._connect = connect
        self._link: ControllerLink | None = None
        self._node = NodeLink(settings.node_dir)
        self._reached = asyncio.Event()
        """Set, and replaced by a new one, when a controller has come or come back."""
        self._requests: deque[str] = deque(maxlen=REQUESTS_REMEMBERED)
        self._roots: deque[Finding] = deque(maxlen=100)
        settings.state_dir.mkdir(parents=True, exist_ok=True)
        self.outbox = Outbox(settings.state_dir / "spool.jsonl")
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
        self._checks: list[Check] = [
            same_machine(identity, settings.node_dir),
            scratch_writable(scratch),
            kernel_log_readable(settings.kernel_log),
            no_fresh_root(self.fresh_root),
            *checks,
        ]

    async def run(self) -> None:
        """Watch, send and beat until cancelled."""
        self._address.start()
        self.outbox.put(
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
                tasks.create_task(self._follow_controller())
                tasks.create_task(self._send())
                tasks.create_task(self._beat())
        finally:
            self.log.close()
            self._address.close()
            if self._link is not None:
                await self._link.close()

    # --- what is seen ---

    def _seen(self, finding: Finding) -> None:
        if finding.role is Role.ROOT:
            self._roots.append(finding)
        self.outbox.put(FindingSeen(id=f"seen:{finding.id}", at=finding.at, source=self.source, finding=finding))

    def fresh_root(self) -> str:
        """Rule of the newest root finding that no reset has followed and that is not old; empty: none."""
        now = self._clock.now()
        fresh = (f for f in self._roots if f.at > self.log.reset_at and now - f.at < FRESH_S)
        return next((finding.rule for finding in reversed(list(fresh))), "")

    # --- the controller ---

    async def _follow_controller(self) -> None:
        while True:
            address = self._address.address
            if address is not None:
                before, self._link = self._link, CutLink(self._connect(address), self._node)
                self._note_reached()
                if before is not None:
                    await before.close()
                _log.info("controller", url=address.url, pid=address.pid)
            await self._address.changed.wait()
            self._address.changed.clear()

    async def _send(self) -> None:
        pause_s = RETRY_FIRST_S
        while True:
            await self.outbox.wait()
            batch = self.outbox.batch(BATCH_MAX)
            try:
                await self._deliver(batch)
            except LinkError:
                await self._pause(pause_s)
                pause_s = min(pause_s * 2, RETRY_MAX_S)
            else:
                pause_s = RETRY_FIRST_S

    async def _deliver(self, batch: list[AnyEvent]) -> None:
        link = self._link
        if link is None:
            raise LinkError("no controller is known yet")
        try:
            await link.ingest(self.source, batch)
        except WireError as error:
            if len(batch) > 1:
                # One event that the controller cannot read must not keep the others: halve until it stands alone.
                half = len(batch) // 2
                await self._deliver(batch[:half])
                await self._deliver(batch[half:])
                return
            _log.error("the controller refuses an event; it is dropped", id=batch[0].id, why=str(error))
        self.outbox.confirm(batch)

    def _note_reached(self) -> None:
        self._reached.set()
        self._reached = asyncio.Event()

    async def _pause(self, seconds: float) -> None:
        """Wait before another try; a controller that has come or come back ends the wait."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._reached.wait(), seconds)

    async def _beat(self) -> None:
        heard = True
        while True:
            link = self._link
            if link is not None:
                try:
                    answer = await link.beat(self._make_beat())
                except (LinkError, WireError) as error:
                    if heard:
                        _log.warning("the controller does not answer", why=str(error))
                    heard = False
                else:
                    if not heard:
                        self._note_reached()
                    heard = True
                    for order in answer.requests:
                        self._carry_out(order)
            if self._link is link:
                await self._pause(self.settings.beat_s)

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
        self.outbox.put(
            OrderFailed(
                id=f"failed:{order.id}:{self.source}", at=self._clock.now(), source=self.source, order=order.id, why=why
            )
        )

    def _validate(self, order: ValidateNode) -> None:
        passed, detail = run_checks(self._checks, order)
        now = self._clock.now()
        self.outbox.put(
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
        self.outbox.put(done)

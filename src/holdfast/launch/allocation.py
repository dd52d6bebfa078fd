"""The allocation as an orchestrator: carries out what the launcher's engine orders about its own job.

Called by the controller that the leader runs in scope `allocation`, and by the leader for orders that came from the
cluster's controller. "Ensure" semantics: an order whose effect is there already succeeds and changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol

from holdfast.errors import HoldfastError, LinkError, PermanentOrderError
from holdfast.launch.core.shutdown import Stored
from holdfast.model.cluster import JobKey, JobView, NodeView, WorldView
from holdfast.model.events import AnyEvent
from holdfast.model.orders import (
    AnyOrder,
    CaptureStacks,
    Escalate,
    GiveUp,
    OrderStatus,
    RestartInPlace,
    SaveAndStop,
    StopAttempt,
)
from holdfast.model.policy import Policy
from holdfast.model.records import JOB_ENDED, JobRecord, JobState
from holdfast.model.wire import Beat, BeatAnswer
from holdfast.ports import Journal, Notifier, Orchestrator

MISSING_NODES_S = 30.0
"""How long a restart waits for nodes that have not joined (again) before another remedy is better."""

_LATE_S = 2.0

_ENDED = JOB_ENDED | {JobState.WATCHING}


class AllocationController(Protocol):
    """What the leader needs of `holdfast.controller.Controller`, run in scope `allocation`."""

    ready: asyncio.Event

    @property
    def journal(self) -> Journal:
        """Where it stores."""

    @property
    def seq(self) -> int:
        """Number of the newest event on disk."""

    @property
    def failing(self) -> str:
        """Why the journal cannot be written now; empty: it can."""

    def submit(self, event: AnyEvent) -> asyncio.Future[int]:
        """Take an event in; the future gives its number once it is on disk."""

    async def beat(self, beat: Beat, *, wait_s: float = 0.0) -> BeatAnswer:
        """Take in that a launcher is alive."""

    async def events_after(self, after: int, *, limit: int = 1000, wait_s: float = 0.0) -> list[AnyEvent]:
        """Events on disk."""

    def stop(self) -> None:
        """Ask for an orderly end."""


class RunnableController(AllocationController, Protocol):
    """The real one, which somebody must run."""

    async def run(self) -> None:
        """Do everything until `stop`."""


class Judge(Protocol):
    """The judgement, handed in from above: the controller is built beside this package and not below it."""

    def policy_for(self, partition: str, asked: str) -> Policy:
        """The policy of a job of this partition whose owner asked for one by name, or for none ("")."""

    def controller(
        self, journal: Journal, orchestrator: Orchestrator, notifiers: list[Notifier], holder: str
    ) -> RunnableController:
        """A controller in scope `allocation`, not yet running. Loads what it is made of."""


class Lead(Protocol):
    """What the orders need of the leader."""

    @property
    def attempt(self) -> int:
        """Number of the newest attempt, -1 before the first."""

    async def start_attempt(
        self, *, attempt: int, epoch: int, nodes: tuple[str, ...], restore_step: int | None, in_place: bool
    ) -> None:
        """Fence the attempts before it, start it on these nodes, and say so."""

    async def stop_attempt(self, attempt: int, grace_s: float) -> None:
        """End it; returns when it is provably over and that is told."""

    async def capture_stacks(self, attempt: int, limit_s: float) -> None:
        """Dump, group, and say so."""

    def save_and_stop(self, attempt: int, why: str) -> None:
        """Ask all ranks to save and stop."""

    async def escalate(self, order: Escalate) -> None:
        """Hand the job over, or leave."""

    async def give_up(self, why: str) -> None:
        """Stop for good and leave."""

    async def until_may_start(self) -> None:
        """Wait until the leader's own lease is beyond doubt; raises TemporaryOrderError when that takes too long."""

    async def until_begun(self) -> None:
        """Wait until this launcher has started its first attempt.

        Orders that a launcher before it left pending are for attempts that are over by then.
        """

    def job_view(self) -> JobView:
        """The job as it is now."""


class Joiners(Protocol):
    """The nodes that may take part in an attempt."""

    @property
    def joined(self) -> tuple[str, ...]:
        """Nodes whose launcher can be told something."""

    async def until_joined(self, count: int, limit_s: float, *, excluded: tuple[str, ...] = ()) -> tuple[str, ...]:
        """The first `count` nodes that are here and not excluded; fewer when the limit passes."""


class AllocationOrchestrator:
    """See the module. `want_nodes` is how many nodes an attempt takes; the allocation may hold spares."""

    name = "allocation"

    def __init__(self, lead: Lead, crew: Joiners, *, want_nodes: int, now: Callable[[], float]) -> None:
        self._lead = lead
        self._crew = crew
        self._want_nodes = want_nodes
        self._now = now

    async def observe(self) -> WorldView:
        """The job and the nodes that have joined."""
        job = self._lead.job_view()
        joined = set(self._crew.joined)
        nodes = tuple(
            NodeView(name=node, alive=True if node in joined else None, jobs=(job.key.id,)) for node in job.nodes
        )
        return WorldView(cluster=job.key.cluster, at=self._now(), jobs=(job,), nodes=nodes)

    async def wait_change(self, timeout_s: float) -> bool:
        """Everything that changes is told by events; there is nothing to look for."""
        await asyncio.sleep(timeout_s)
        return False

    def can(self, order: AnyOrder) -> bool:
        """Orders about the attempt inside its allocation."""
        return isinstance(order, CaptureStacks | StopAttempt | RestartInPlace | SaveAndStop | Escalate | GiveUp)

    async def execute(self, order: AnyOrder) -> str:
        """Carry out. Raises TemporaryOrderError, PermanentOrderError."""
        if isinstance(order, CaptureStacks | StopAttempt | RestartInPlace | Escalate):
            await self._lead.until_begun()
        match order:
            case CaptureStacks():
                await self._lead.capture_stacks(order.attempt, order.limit_s)
                return "stacks captured"
            case StopAttempt():
                await self._lead.stop_attempt(order.attempt, order.grace_s)
                return "stopped"
            case SaveAndStop():
                self._lead.save_and_stop(order.attempt, order.why)
                return "asked all ranks"
            case RestartInPlace():
                return await self._restart(order)
            case Escalate():
                if order.attempt < self._lead.attempt:
                    return "a newer attempt runs"
                await self._lead.escalate(order)
                return "handed over"
            case GiveUp():
                await self._lead.give_up(order.why)
                return "stopped for good"
            case _:
                raise PermanentOrderError(f"a launcher cannot do this: {type(order).__name__}")

    async def _restart(self, order: RestartInPlace) -> str:
        if self._lead.attempt >= order.attempt:
            return "already started"
        await self._lead.until_may_start()
        nodes = await self._crew.until_joined(self._want_nodes, MISSING_NODES_S, excluded=order.exclude_nodes)
        if len(nodes) < self._want_nodes:
            missing = sorted(set(self._lead.job_view().nodes) - set(nodes))
            raise PermanentOrderError(
                f"{self._want_nodes} nodes are needed and {len(nodes)} are here (without {', '.join(missing)})"
            )
        await self._lead.start_attempt(
            attempt=order.attempt,
            epoch=order.epoch,
            nodes=nodes,
            restore_step=order.restore_step_max,
            in_place=True,
        )
        return f"started on {', '.join(nodes)}"


async def outcome(stored: asyncio.Future[int] | None, say: Callable[[str], object] = lambda _: None) -> Stored:
    """Wait for what becomes of the event that tells an attempt's end; `say` takes why the engine refused it."""
    try:
        if stored is not None:
            await stored
    except LinkError:
        return Stored.LOST
    except HoldfastError as error:
        say(f"the engine refused to judge the end of the attempt: {str(error).splitlines()[0]}")
        return Stored.REFUSED
    return Stored.TAKEN


async def until_settled(controller: AllocationController, job: JobKey, is_awaited: Callable[[], bool]) -> bool:
    """Wait until nothing more will be done about an attempt that ended by itself; False when nobody awaits that."""
    while is_awaited():
        found = await controller.journal.jobs(job=str(job))
        waiting = await controller.journal.orders(pending_only=True)
        pending = [known.order for known in waiting if known.status is OrderStatus.PENDING]
        if is_settled(found[0] if found else None, pending):
            return True
        await controller.events_after(controller.seq, wait_s=_LATE_S)
    return False


def is_settled(job: JobRecord | None, pending: Iterable[AnyOrder]) -> bool:
    """Whether nothing more will be done about an attempt that ended by itself, so that its launcher may leave.

    An order to leave says with which code: while it waits to be carried out, the job's state alone is not the answer.
    """
    leaves = any(isinstance(order, Escalate | GiveUp) for order in pending)
    return job is not None and job.state in _ENDED and not leaves

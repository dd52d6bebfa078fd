"""What a launcher may say whose token names its job: of that job and the nodes that its pods are on, and nothing else.

`routes_ingest` makes one `OwnJob` for each request of a reporter whose identity is bound to one launcher (`only`). The
job, its nodes and the orders for its launcher are taken from what the controller itself has seen and journalled, never
from the report. A report may be ahead of the watch by a moment: a request waits for that, once, and a job that is not
known yet is told to come back.
"""

from __future__ import annotations

import asyncio

from holdfast.controller import Controller
from holdfast.controller.mailbox import address_of, launcher_address
from holdfast.errors import LinkError, RefusedError
from holdfast.model import events as e
from holdfast.model.cluster import JobKey, JobView
from holdfast.model.wire import Beat, kind_of

LAUNCHER = "launcher:"
CATCH_UP_S = 3.0
"""A request waits so long for the controller's own watch to see what it speaks of."""
LOOK_S = 0.05
NEVER = (e.AgentAttached, e.NodeValidated)
"""An agent's words."""


class OwnJob:
    """See the module. `only`: the one source that the reporter's token stands for, `launcher:JOB`."""

    def __init__(self, controller: Controller, only: str) -> None:
        self._controller = controller
        self._only = only
        self._id = only.removeprefix(LAUNCHER)
        self._deadline = controller.clock.monotonic() + CATCH_UP_S

    async def check_event(self, event: e.AnyEvent) -> None:
        """Return when the event is the launcher's to say.

        Raises:
            RefusedError: it speaks of another job, of a node without a pod of this job, or is not a launcher's to say.
            LinkError: the controller has not seen this job or its nodes yet.
        """
        if isinstance(event, NEVER):
            raise RefusedError(f"a launcher may not send {kind_of(event)}")
        if isinstance(event, (e.OrderDone, e.OrderFailed)):
            await self._check_order(event.order)
            return
        job = event.finding.job if isinstance(event, e.FindingSeen) else getattr(event, "job", None)
        if isinstance(job, JobKey):
            self._check_job(job)
        elif not isinstance(event, (e.NodeGone, e.FindingCleared)):
            raise RefusedError(f"{self._only} may send {kind_of(event)} of its own job only, and this one names none")
        await self._check_nodes(nodes_named(event))

    async def check_beat(self, beat: Beat) -> None:
        """Return when the beat is of the launcher's own job and node. Raises as `check_event` does."""
        self._check_job(JobKey(beat.cluster, beat.job, beat.generation))
        await self._check_nodes({beat.node} - {""})

    def _check_job(self, job: JobKey) -> None:
        if job.id != self._id:
            raise RefusedError(f"{self._only} may not speak of job {job}")
        cluster = self._view().key.cluster
        if job.cluster != cluster:
            raise RefusedError(
                f"this controller's cluster is {cluster!r}, and {self._only} says {job.cluster!r}: "
                f"set HOLDFAST_CLUSTER={cluster} in its pods"
            )

    def _view(self) -> JobView:
        """The job as the watch sees it."""
        same = [view for view in self._controller.shell().jobs.values() if view.key.id == self._id]
        if not same:
            raise LinkError(f"no job {self._id!r} has been seen here yet")
        return max(same, key=lambda view: view.key.generation)

    async def _check_nodes(self, named: set[str]) -> None:
        while named:
            known = self._view().nodes
            foreign = sorted(named - set(known))
            if not foreign:
                return
            if self._controller.clock.monotonic() < self._deadline:
                await asyncio.sleep(LOOK_S)
            elif not known:
                raise LinkError(f"the nodes of {self._id} are not known yet")
            else:
                raise RefusedError(
                    f"{self._only} speaks of {', '.join(foreign[:3])}, where no pod of it is: "
                    "set HOLDFAST_NODE from spec.nodeName in its pods"
                )

    async def _check_order(self, order: str) -> None:
        found = await self._controller.journal.orders(order=order, limit=1)
        if not found or address_of(found[0].order) != launcher_address(self._view().key):
            raise RefusedError(f"order {order!r} is not one for {self._only}")


def nodes_named(event: e.AnyEvent) -> set[str]:
    """Every node that the event speaks of."""
    match event:
        case e.FindingSeen():
            found = {event.finding.place.node}
        case e.Escalated():
            blamed = event.diagnosis.nodes if event.diagnosis is not None else ()
            found = {*event.exclude_nodes, *blamed}
        case e.LauncherAttached() | e.AttemptStarted():
            found = set(event.nodes)
        case e.NodeGone() | e.FindingCleared() | e.DrillFired():
            found = {event.node}
        case _:
            found = set()
    return found - {""}

"""The nodes of a supervised step, judged by their watchers and by the scheduler.

A watcher's closed connection only says that a small process has ended. The node counts as lost when its slurmd does
not answer either, or by the scheduler's word; a silent one besides when its watcher's lease is over, which ends what
runs there. Made by `step`. Time passes in the asyncio loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from msgspec import Struct

from holdfast.adapters.slurm.daemons import CONNECT_S, NodeAddress, answers_not, daemon_answers
from holdfast.adapters.slurm.own_job import OwnJob
from holdfast.errors import LinkError, OrderError, PermanentOrderError
from holdfast.launch.core.fence import Fence
from holdfast.launch.core.lease import LEASE_MARGIN_S
from holdfast.launch.core.presence import Presence
from holdfast.launch.frames import AnyReport, Bye, SlotsSeen
from holdfast.launch.ground import Background
from holdfast.launch.launcher_events import LauncherEvents
from holdfast.launch.observer import Observer
from holdfast.launch.output import Voice
from holdfast.launch.place import JobPlace
from holdfast.launch.step_crew import StepCrew
from holdfast.launch.step_place import excluded_before, note_excluded
from holdfast.launch.step_watchers import Watchers
from holdfast.model.records import JobRecord

_SILENT_S = 1.4
_PROBES_S = (0.0, 0.1, 0.3)
"""A machine that is going down may still take a connection for a moment."""
_AGAIN_S = 1.0
_AGAIN_MAX_S = 60.0


class StepJob(Struct, frozen=True):
    """The job that the step belongs to."""

    own_job: OwnJob
    addresses: Mapping[str, NodeAddress]
    """Where each node's slurmd listens."""
    floor: int
    """The largest number of an attempt that other steps of the job have used."""


class StepNodes:
    """Follows the nodes of a step (`launcher_nodes.Nodes`).

    Args:
        place: the supervisor's.
        job: that the step belongs to.
        crew: of the supervisor.
        watchers: not yet started.
        events: takes what is seen.
        observer: knows the newest attempt.
        voice: for people.
        background: runs what asks daemons and the scheduler.
    """

    def __init__(
        self,
        place: JobPlace,
        job: StepJob,
        *,
        crew: StepCrew,
        watchers: Watchers,
        events: LauncherEvents,
        observer: Observer,
        voice: Voice,
        background: Background,
    ) -> None:
        self.watchers = watchers
        self._place = place
        self._job = job
        self._crew = crew
        self._events = events
        self._observer = observer
        self._voice = voice
        self._background = background
        self._checking: set[str] = set()
        self._unreachable: set[str] = set()
        self._let_go: set[str] = set()
        self._told_slots = -1

    @property
    def gone(self) -> AbstractSet[str]:
        """See `Nodes`."""
        return self._crew.gone

    @property
    def has_let_go(self) -> bool:
        """See `Nodes`."""
        return bool(self._let_go)

    def resumed(self, record: JobRecord | None, fence: Fence) -> None:
        """See `Nodes`. Nodes that an earlier run, or another step of the job, was kept off come last."""
        known = frozenset(record.excluded) if record is not None else frozenset()
        self._crew.avoid = known | excluded_before(self._place.job_dir.parent)
        fence.reserve(self._job.floor)

    async def begun(self) -> None:
        """See `Nodes`. The watchers come after the tasks, which wait for nobody."""
        if self._crew.port is not None:
            self.watchers.start(self._others())
            self._background.run(self._keep_watching())

    def _others(self) -> list[str]:
        return [node for node in self._place.nodes if node != self._place.node]

    async def _keep_watching(self) -> None:
        pause_s = _AGAIN_S
        while True:
            await asyncio.sleep(pause_s)
            missing = [node for node in self._others() if node not in self._crew.gone | self._crew.watched]
            if missing and not self.watchers.is_running and not self.watchers.is_closed:
                self._voice.note(f"starting watchers again on {', '.join(missing)}")
                self.watchers.start(missing)
                pause_s = min(_AGAIN_MAX_S, pause_s * 2)

    def heard(self, node: str, report: AnyReport) -> None:
        """A watcher, or srun's side, reports."""
        if isinstance(report, Bye):
            self._crew.unwatch(node)
        elif isinstance(report, SlotsSeen):
            self._told_slots = report.attempt

    def check_save(self, attempt: int) -> None:
        """See `Nodes`. Tasks are asked by their telemetry."""
        if self._told_slots != attempt:
            raise PermanentOrderError("the tasks have no telemetry, by which they could be asked to save and stop")
        if unseen := sorted(set(self._crew.used) - self._crew.watched - {self._place.node}):
            raise PermanentOrderError(f"{', '.join(unseen)} has no watcher, by which its tasks could be asked")

    # --- lost nodes ---

    def on_lost(self, node: str, evidence: str) -> None:
        """See `Nodes`. A watcher's connection was closed by its end."""
        if node not in self._crew.gone and node not in self._checking:
            self._checking.add(node)
            self._background.run(self._check(node, evidence))

    async def _check(self, node: str, evidence: str) -> None:
        try:
            for pause_s in _PROBES_S:
                await asyncio.sleep(pause_s)
                if await answers_not(self._job.addresses.get(node)):
                    self._lost(node, f"{evidence}, and its slurmd does not answer")
                    return
        finally:
            self._checking.discard(node)
        self._crew.unwatch(node)
        self._voice.note(f"the watcher of {node} has ended ({evidence}); its slurmd answers")

    def given_up(self, node: str, line: str) -> None:
        """The scheduler's own word."""
        if node in self._place.nodes and node not in self._crew.gone:
            self._lost(node, line)

    def _lost(self, node: str, evidence: str) -> None:
        if node in self._crew.used and not self._crew.is_empty:
            self._events.node_gone(node, evidence)
            self._crew.lost(node)
            return
        self._voice.say(f"{node}, which the step does not use now, is lost: {evidence}")
        self._crew.lost(node)
        if not self._crew.is_empty:
            self._let_gone_go()

    def look(self, at: float, mono: float) -> None:
        """See `Nodes`."""
        port = self._crew.port
        if port is None or self._crew.spec is None:
            return
        for node in self._crew.watched:
            self._look_at(node, port.presence, mono)
        for node in self._crew.look_at_leases(mono):
            quiet_s = port.presence.quiet_s(node, mono)
            if node in self._unreachable:
                self._lost(node, _silence(quiet_s))
            else:
                why = f"the watcher of {node} has not answered for {quiet_s:.1f} s, so its lease is over"
                self._observer.lease_over(node, why, at)

    def _look_at(self, node: str, presence: Presence, mono: float) -> None:
        quiet_s = presence.quiet_s(node, mono)
        if quiet_s <= _SILENT_S:
            self._unreachable.discard(node)
        elif node not in self._checking and node not in self._unreachable:
            self._checking.add(node)
            self._background.run(self._ask_daemon(node))
        elif (
            node in self._unreachable
            and node not in self._crew.used
            and node not in self._crew.gone
            and quiet_s > presence.lease_s + LEASE_MARGIN_S
        ):
            self._lost(node, _silence(quiet_s))

    async def _ask_daemon(self, node: str) -> None:
        try:
            if not await daemon_answers(self._job.addresses.get(node)):
                self._unreachable.add(node)
            else:
                await asyncio.sleep(CONNECT_S)
        finally:
            self._checking.discard(node)

    # --- lost nodes leave the job ---

    def attempt_started(self, *, in_place: bool) -> None:
        """See `Nodes`. Lost nodes are let go, so that the scheduler's later word ends nothing."""
        if in_place:
            self._background.run(self._note_excluded())
        self._let_gone_go()

    def _let_gone_go(self) -> None:
        lost = self._crew.gone - self._let_go
        if lost:
            self._let_go |= lost
            self._background.run(self._let_nodes_go())

    async def _note_excluded(self) -> None:
        record = await self._events.job_record()
        note_excluded(self._place.job_dir, {*(record.excluded if record is not None else ()), *self._crew.gone})

    async def _let_nodes_go(self) -> None:
        keep = [node for node in self._place.nodes if node not in self._crew.gone]
        if self._place.node not in keep:
            keep.insert(0, self._place.node)
        try:
            await self._job.own_job.let_go(keep)
        except (OrderError, LinkError) as error:
            self._voice.note(f"the lost nodes stay part of the job: {error}")
        else:
            self._voice.note(f"the job goes on with {', '.join(keep)}")


def _silence(quiet_s: float) -> str:
    return f"nothing was heard of it for {quiet_s:.1f} s, and its slurmd does not answer"

"""The nodes of a supervised step, judged by their watchers and by the scheduler.

A watcher's closed connection only says that a small process has ended. The node counts as lost when its slurmd does
not answer either, or by the scheduler's word; a silent one besides when its watcher's lease is over, which ends what
runs there. Made by `step`. Time passes in the asyncio loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Set as AbstractSet

from holdfast.adapters.slurm.daemons import CONNECT_S, answers_not, daemon_answers
from holdfast.errors import PermanentOrderError
from holdfast.launch.core.fence import Fence
from holdfast.launch.core.lease import LEASE_MARGIN_S
from holdfast.launch.core.presence import Presence
from holdfast.launch.frames import AnyReport, Bye, SlotsSeen
from holdfast.launch.ground import Background
from holdfast.launch.launcher_events import LauncherEvents
from holdfast.launch.observer import Observer
from holdfast.launch.output import Voice
from holdfast.launch.place import JobPlace
from holdfast.launch.slurm_nodes import SlurmNodes
from holdfast.launch.step_crew import StepCrew
from holdfast.launch.step_place import excluded_before, note_excluded
from holdfast.launch.step_watchers import Watchers
from holdfast.model.evidence import Domain
from holdfast.model.records import JobRecord

_SILENT_S = 1.4
_PROBES_S = (0.0, 0.1, 0.3)
"""A machine that is going down may still take a connection for a moment."""
_AGAIN_S = 1.0
_AGAIN_MAX_S = 60.0


class StepNodes:
    """Follows the nodes of a step (`launcher_nodes.Nodes`).

    Args:
        place: the supervisor's.
        slurm: the scheduler's side of the job's nodes.
        floor: the largest number of an attempt that other steps of the job have used.
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
        *,
        slurm: SlurmNodes,
        floor: int,
        crew: StepCrew,
        watchers: Watchers,
        events: LauncherEvents,
        observer: Observer,
        voice: Voice,
        background: Background,
    ) -> None:
        self.watchers = watchers
        self._place = place
        self._slurm = slurm
        self._floor = floor
        self._crew = crew
        self._events = events
        self._observer = observer
        self._voice = voice
        self._background = background
        self._checking: set[str] = set()
        self._unreachable: set[str] = set()
        self._told_slots = -1

    @property
    def gone(self) -> AbstractSet[str]:
        """See `Nodes`."""
        return self._crew.gone

    @property
    def has_let_go(self) -> bool:
        """See `Nodes`."""
        return self._slurm.has_let_go

    def resumed(self, record: JobRecord | None, fence: Fence) -> None:
        """See `Nodes`. Nodes that an earlier run, or another step of the job, was kept off come last."""
        known = frozenset(record.excluded) if record is not None else frozenset()
        self._crew.avoid = known | excluded_before(self._place.job_dir.parent)
        fence.reserve(self._floor)

    async def begun(self) -> None:
        """See `Nodes`. The watchers come after the tasks, which wait for nobody."""
        if warning := self._slurm.warning:
            self._voice.say(warning)
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

    def on_lost(self, node: str, evidence: str, domain: Domain) -> None:
        """See `Nodes`. A watcher's connection was closed by its end; its slurmd says whether the machine is lost."""
        del domain
        if node not in self._crew.gone and node not in self._checking:
            self._checking.add(node)
            self._background.run(self._check(node, evidence))

    async def _check(self, node: str, evidence: str) -> None:
        try:
            for pause_s in _PROBES_S:
                await asyncio.sleep(pause_s)
                if await answers_not(self._slurm.address(node)):
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
            self._background.run(self._let_gone_go())

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
            if not await daemon_answers(self._slurm.address(node)):
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
        self._background.run(self._let_gone_go())

    async def _let_gone_go(self) -> None:
        if said := await self._slurm.let_go(self._crew.gone - {self._place.node}):
            self._voice.say(said)

    async def _note_excluded(self) -> None:
        record = await self._events.job_record()
        note_excluded(self._place.job_dir, {*(record.excluded if record is not None else ()), *self._crew.gone})


def _silence(quiet_s: float) -> str:
    return f"nothing was heard of it for {quiet_s:.1f} s, and its slurmd does not answer"

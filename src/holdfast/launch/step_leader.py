"""The leader of a supervised step: `Leader`, but its ranks are srun's, and nodes are judged by their watchers.

A watcher's closed connection only says that a small process has ended. The node counts as lost when its slurmd does
not answer either, or by the scheduler's word; a silent one besides when its watcher's lease is over, which ends what
runs there. Made by `step`. Time passes in the asyncio loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.adapters.slurm.daemons import CONNECT_S, NodeAddress, answers_not, daemon_answers
from holdfast.adapters.slurm.own_job import OwnJob
from holdfast.errors import HoldfastError, LinkError, OrderError, PermanentOrderError, TemporaryOrderError
from holdfast.launch import process
from holdfast.launch.core.lease import LEASE_MARGIN_S
from holdfast.launch.core.shutdown import Interrupted
from holdfast.launch.frames import AnyReport, Bye, RankEnded, SlotsSeen
from holdfast.launch.leader import Leader
from holdfast.launch.output import Voice
from holdfast.launch.place import JobPlace
from holdfast.launch.process import Child
from holdfast.launch.step_crew import StepCrew
from holdfast.launch.step_place import StepFloor, excluded_before, note_excluded
from holdfast.launch.step_runner import StepRunner
from holdfast.launch.step_slots import ENV_PREFIX
from holdfast.model.records import JobRecord

_SILENT_S = 1.4
_PROBES_S = (0.0, 0.1, 0.3)
"""A machine that is going down may still take a connection for a moment."""
_AGAIN_S = 1.0
_AGAIN_MAX_S = 60.0
_INTERRUPT_S = 5.0
_LEAVE_S = 1.0
_LEAVE_LOST_S = 0.1


class Watchers:
    """The step of watchers, started beside the user's and again when it ends.

    Args:
        place: the supervisor's.
        base: environment of the job.
        telemetry: what the names of the tasks' folders of slots begin with; told in the environment, which is private.
        voice: for people.
    """

    def __init__(self, place: JobPlace, base: Mapping[str, str], telemetry: str, voice: Voice) -> None:
        self._place = place
        # srun takes defaults for its options from these; the batch job's are not the watchers'.
        self._base = {
            key: value
            for key, value in base.items()
            if not key.startswith("SLURM_")
            or key in {"SLURM_CONF", "SLURM_JOB_ID", "SLURM_JOBID", "SLURM_CLUSTER_NAME"}
        } | {ENV_PREFIX: telemetry}
        self._voice = voice
        self._children: list[Child] = []
        self.is_closed = False

    def start(self, nodes: Sequence[str]) -> None:
        """Start one watcher on each of these nodes."""
        count = len(nodes)
        argv = [
            "srun", f"--jobid={self._place.job.id}", "--overlap", f"--nodes={count}", f"--ntasks={count}",
            "--ntasks-per-node=1", f"--nodelist={','.join(nodes)}", "--cpus-per-task=1", "--mem=0", "--gres=none",
            "--cpu-bind=none", "--mpi=none", "--input=none", "--kill-on-bad-exit=0", "--wait=0", "--quiet",
            "--job-name=holdfast-watch", "--export=ALL", sys.executable, "-m", "holdfast.launch.step_watch",
            str(self._place.job_dir), self._place.job.id,
        ]  # fmt: skip
        with contextlib.suppress(OSError), (self._place.job_dir / "logs" / "watchers.log").open("ab") as log:
            try:
                child = process.spawn("watchers", argv, env=self._base, stdout=log.fileno(), stderr=log.fileno())
            except PermanentOrderError as error:
                self._voice.say(f"nodes cannot be watched: {error}")
                return
            self._children.append(child)

    @property
    def is_running(self) -> bool:
        """A step of watchers has been started and not ended."""
        return any(child.exit is None for child in self._children)

    async def close(self, *, is_whole: bool) -> None:
        """They were told to leave; what has not is ended with its step.

        Args:
            is_whole: no node is lost; the srun of a watcher on a lost node would not end by itself.
        """
        self.is_closed = True
        for child in self._children:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LEAVE_S if is_whole else _LEAVE_LOST_S):
                    await child.exited.wait()
            if child.exit is None:
                child.send(signal.SIGKILL)


class StepLeader(Leader):
    """See the module. `prepare` must be called before anything else."""

    crew: StepCrew
    runner: StepRunner
    _own_job: OwnJob
    _floor: StepFloor
    _addresses: Mapping[str, NodeAddress]
    _base: Mapping[str, str]

    def prepare(
        self,
        own_job: OwnJob,
        floor: StepFloor,
        addresses: Mapping[str, NodeAddress],
        base: Mapping[str, str],
        telemetry: str,
    ) -> None:
        """What a step's leader has beyond a leader's."""
        self._own_job = own_job
        self._floor = floor
        self._addresses = addresses
        self._base = base
        self.watchers = Watchers(self.place, base, telemetry, self.voice)
        self._checking: set[str] = set()
        self._unreachable: set[str] = set()
        self._interrupted_at = -_INTERRUPT_S
        self._told_slots = -1

    async def attach(self, record: JobRecord | None) -> None:
        """As `Leader.attach`; nodes that an earlier run, or another step of the job, was kept off come last."""
        known = frozenset(record.excluded) if record is not None else frozenset()
        self.crew.avoid = known | excluded_before(self.place.job_dir.parent)
        await super().attach(record)
        self.fence.reserve(self._floor.attempt)

    async def start_first(self) -> None:
        """As `Leader.start_first`; the watchers come after the tasks, which wait for nobody."""
        await super().start_first()
        if self.crew.port is not None:
            self.watchers.start([node for node in self.place.nodes if node != self.place.node])
            self.run_soon(self._keep_watching())

    async def _keep_watching(self) -> None:
        pause_s = _AGAIN_S
        while True:
            await asyncio.sleep(pause_s)
            wanted = [node for node in self.place.nodes if node != self.place.node and node not in self.crew.gone]
            missing = [node for node in wanted if node not in self.crew.watched]
            if missing and not self.watchers.is_running and not self.watchers.is_closed:
                self.voice.note(f"starting watchers again on {', '.join(missing)}")
                self.watchers.start(missing)
                pause_s = min(_AGAIN_MAX_S, pause_s * 2)

    def _started_line(self, ranks: int, nodes: tuple[str, ...]) -> str:
        del ranks
        return f"attempt {self.attempt} (epoch {self.epoch}): the step on {', '.join(nodes)}"

    # --- what is reported ---

    def hear(self, node: str, report: AnyReport) -> None:
        """Srun's side of the step reports, about any node."""
        self.crew.hear(node, report)

    def on_report(self, node: str, report: AnyReport) -> None:
        """As `Leader.on_report`; a step that somebody interrupted is no fault."""
        by_hand = time.monotonic() - self._interrupted_at < _INTERRUPT_S
        if by_hand and isinstance(report, RankEnded) and report.rank is None and not report.exit.is_success:
            self._end_for_good(signal.SIGINT)
        if isinstance(report, Bye):
            self.crew.unwatch(node)
        elif isinstance(report, SlotsSeen):
            self._told_slots = report.attempt
        super().on_report(node, report)

    def cancelled(self, attempt: int, why: str) -> None:
        """Somebody has ended the step: that is no fault, and nothing is started again.

        Srun's word about a task may have come first, so that a restart is under way. It has not begun: a step counts as
        over only when all that its srun printed has been read.
        """
        if attempt == self.attempt and not self.ending:
            self.voice.say(f"{why}: it is not run again")
            self._end_for_good(signal.SIGTERM)

    def _end_for_good(self, signum: int) -> None:
        self.carry_out(self.shutdown.handle(Interrupted(signum)))

    def srun_ended(self, attempt: int) -> None:
        """Srun has ended by itself: whatever it left on the nodes ends too."""
        self.run_soon(self.crew.end(attempt, 0.0))

    # --- nodes ---

    def on_lost(self, node: str, evidence: str) -> None:
        """A watcher's connection was closed by its end, or the scheduler gave the node up."""
        if node not in self.crew.gone and node not in self._checking:
            self._checking.add(node)
            self.run_soon(self._check(node, evidence))

    async def _check(self, node: str, evidence: str) -> None:
        try:
            for pause_s in _PROBES_S:
                await asyncio.sleep(pause_s)
                if await answers_not(self._addresses.get(node)):
                    self._is_lost(node, f"{evidence}, and its slurmd does not answer")
                    return
        finally:
            self._checking.discard(node)
        self.crew.unwatch(node)
        self.voice.note(f"the watcher of {node} has ended ({evidence}); its slurmd answers")

    def given_up(self, node: str, line: str) -> None:
        """The scheduler's own word."""
        if node in self.place.nodes and node not in self.crew.gone:
            self._is_lost(node, line)

    def _is_lost(self, node: str, evidence: str) -> None:
        spec = self.crew.spec
        if spec is not None and node in spec.nodes and not self.crew.is_empty:
            super().on_lost(node, evidence)
        else:
            self.voice.say(f"{node}, which the step does not use now, is lost: {evidence}")
            self.crew.lost(node)
            if not self.crew.is_empty:
                self._let_gone_go()

    def _look_at_followers(self, at: float, mono: float) -> None:
        port, spec = self.crew.port, self.crew.spec
        if port is None or spec is None:
            return
        for node in self.crew.watched:
            quiet_s = port.presence.quiet_s(node, mono)
            is_quiet = quiet_s > _SILENT_S
            if not is_quiet:
                self._unreachable.discard(node)
            elif node not in self._checking and node not in self._unreachable:
                self._checking.add(node)
                self.run_soon(self._look_for(node))
            elif (
                node in self._unreachable
                and node not in spec.nodes
                and node not in self.crew.gone
                and quiet_s > port.presence.lease_s + LEASE_MARGIN_S
            ):
                self._is_lost(node, f"nothing was heard of it for {quiet_s:.1f} s, and its slurmd does not answer")
        for node in self.crew.look_at_leases(mono):
            quiet_s = port.presence.quiet_s(node, mono)
            if node in self._unreachable:
                self._is_lost(node, f"nothing was heard of it for {quiet_s:.1f} s, and its slurmd does not answer")
            elif self.watch is not None:
                why = f"the watcher of {node} has not answered for {quiet_s:.1f} s, so its lease is over"
                self.voice.say(why)
                self.submit(*self.watch.lease_over(node, at, why))

    async def _look_for(self, node: str) -> None:
        try:
            if not await daemon_answers(self._addresses.get(node)):
                self._unreachable.add(node)
            else:
                await asyncio.sleep(CONNECT_S)
        finally:
            self._checking.discard(node)

    # --- what the engine orders ---

    async def start_attempt(self, **asked: Any) -> None:
        """As `Leader.start_attempt`; then lost nodes are let go, so that the scheduler's later word ends nothing.

        Raises TemporaryOrderError when the step is being ended from outside: this launcher is about to leave.
        """
        if self.ending:
            raise TemporaryOrderError("the step is being ended from outside", retry_after_s=_AGAIN_MAX_S)
        await super().start_attempt(**asked)
        if asked["in_place"]:
            self.run_soon(self._note_excluded())
        self._let_gone_go()

    def _let_gone_go(self) -> None:
        lost = self.crew.gone - self._let_go
        if lost:
            self._let_go |= lost
            self.run_soon(self._let_nodes_go())

    async def _note_excluded(self) -> None:
        record = await self.record()
        note_excluded(self.place.job_dir, {*(record.excluded if record is not None else ()), *self.crew.gone})

    async def _let_nodes_go(self) -> None:
        keep = [node for node in self.place.nodes if node not in self.crew.gone]
        if self.place.node not in keep:
            keep.insert(0, self.place.node)
        try:
            await self._own_job.let_go(keep)
        except (OrderError, LinkError) as error:
            self.voice.note(f"the lost nodes stay part of the job: {error}")
        else:
            self.voice.note(f"the job goes on with {', '.join(keep)}")

    def save_and_stop(self, attempt: int, why: str) -> None:
        """As `Leader.save_and_stop`, by the tasks' telemetry. Raises PermanentOrderError when not all can be asked."""
        watch, spec = self.watch, self.crew.spec
        if watch is None or spec is None or spec.attempt != attempt or watch.is_over:
            return
        if self._told_slots != attempt:
            raise PermanentOrderError("the tasks have no telemetry, by which they could be asked to save and stop")
        if unseen := sorted(set(spec.nodes) - self.crew.watched - {self.place.node}):
            raise PermanentOrderError(f"{', '.join(unseen)} has no watcher, by which its tasks could be asked")
        super().save_and_stop(attempt, why)

    # --- signals ---

    def end_job(self, signum: int, told_by: str = "") -> None:
        """As `Leader.end_job`; an interrupt from the terminal has reached srun already, which knows what it means."""
        if signum == signal.SIGINT and self.runner.is_interactive and not told_by:
            self._interrupted_at = time.monotonic()
            return
        super().end_job(signum, told_by)

    async def leave_watchers(self) -> None:
        """After the followers were told to leave."""
        with contextlib.suppress(HoldfastError):
            await self.watchers.close(is_whole=not self.crew.gone)

"""Supervises a step: a leader whose ranks are srun's. What srun and the terminal say is told to the leader here.

Made by `step`. Time passes in the asyncio loop.
"""

from __future__ import annotations

import contextlib
import signal
import time

from holdfast.errors import HoldfastError
from holdfast.launch.core.shutdown import Interrupted
from holdfast.launch.frames import AnyReport, RankEnded
from holdfast.launch.leader import Leader
from holdfast.launch.output import Voice
from holdfast.launch.step_crew import StepCrew
from holdfast.launch.step_nodes import StepNodes
from holdfast.launch.step_runner import StepRunner

_INTERRUPT_S = 5.0


class StepSupervisor:
    """One step.

    Args:
        leader: leads it.
        crew: the leader's.
        nodes: the leader's.
        runner: runs srun.
        voice: for people.
    """

    def __init__(self, leader: Leader, crew: StepCrew, nodes: StepNodes, runner: StepRunner, voice: Voice) -> None:
        self.leader = leader
        self.nodes = nodes
        self.runner = runner
        self._crew = crew
        self._voice = voice
        self._interrupted_at = -_INTERRUPT_S

    def hear(self, node: str, report: AnyReport) -> None:
        """All that the crew hears; a step that somebody interrupted is no fault."""
        by_hand = time.monotonic() - self._interrupted_at < _INTERRUPT_S
        if by_hand and isinstance(report, RankEnded) and report.rank is None and not report.exit.is_success:
            self._end_for_good(signal.SIGINT)
        self.nodes.heard(node, report)
        self.leader.on_report(node, report)

    def cancelled(self, attempt: int, why: str) -> None:
        """Somebody has ended the step: that is no fault, and nothing is started again.

        Srun's word about a task may have come first, so that a restart is under way. It has not begun: a step counts as
        over only when all that its srun printed has been read.
        """
        if attempt == self.leader.attempt and not self.leader.leaving.shutdown.ending:
            self._voice.say(f"{why}: it is not run again")
            self._end_for_good(signal.SIGTERM)

    def _end_for_good(self, signum: int) -> None:
        self.leader.leaving.take(Interrupted(signum))

    def srun_ended(self, attempt: int) -> None:
        """Srun has ended by itself: whatever it left on the nodes ends too."""
        self.leader.background.run(self._crew.end(attempt, 0.0))

    def end_job(self, signum: int) -> None:
        """The job is being ended; an interrupt from the terminal has reached srun already, which knows its meaning."""
        if signum == signal.SIGINT and self.runner.is_interactive and not self.runner.is_waiting:
            self._interrupted_at = time.monotonic()
        else:
            self.leader.end_job(signum)

    async def leave_watchers(self) -> None:
        """After the followers were told to leave."""
        with contextlib.suppress(HoldfastError):
            await self.nodes.watchers.close(is_whole=not self._crew.gone)

"""What a simulated launcher says, of itself and of its attempts: events for its own engine and the controller.

`launcher.py` makes a voice, and for each attempt its watcher. How long a launcher needs to see something is counted
here; what follows from it is not decided here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from holdfast.controller import Controller
from holdfast.decide.waits import STUCK
from holdfast.launch.launcher_events import EventMaker, Told
from holdfast.launch.process import Exit
from holdfast.model import events as e
from holdfast.model.evidence import EvidenceKind, Place
from holdfast.sim.agents import Agents, finding
from holdfast.sim.scheduler import Job, exit_of
from holdfast.sim.training import Attempt, Watcher
from holdfast.sim.world import Node, World


class LauncherVoice(EventMaker):
    """What a launcher says: to its own engine, and once that has it, to the cluster's controller.

    Args:
        world: gives the time.
        job: that it leads.
        leader: the node that it runs on.
        agents: carry its events to the controller.
    """

    def __init__(self, world: World, job: Job, leader: Node, agents: Agents) -> None:
        source = f"launcher:{job.key}"
        super().__init__(source, f"{source}/{job.restart_count}", lambda: world.clock_of(leader))
        self.world = world
        self.key = job.key
        self.controller: Controller | None = None
        self.is_over = False
        """Nothing is said any more."""
        self._leader = leader
        self._agents = agents

    def found(self, rule: str, place: Place, about: tuple[int, EvidenceKind], **fields: Any) -> e.FindingSeen:
        """A finding of this launcher, now, about an attempt and from such evidence."""
        name, at = self.new_id(), self._clock()
        attempt, kind = about
        made = finding(
            rule, id=f"{name}:{rule}", at=at, place=place, job=self.key, attempt=attempt, kind=kind, **fields
        )
        return e.FindingSeen(id=name, at=at, source=self.source, finding=made)

    def tell(self, kind: type[Told], *, forward: bool = True, **fields: Any) -> None:
        """Make an event of the launcher, now, and say it."""
        self.say(self.event(kind, **fields), forward=forward)

    def say(self, event: e.AnyEvent, *, forward: bool = True) -> asyncio.Future[int] | None:
        """Hand an event to our own engine, and then, with `forward`, to the cluster's controller."""
        if self.controller is None or self.is_over:
            return None
        stored = self.controller.submit(event)
        if forward:
            stored.add_done_callback(lambda done: self._forward(event, done))
        return stored

    def _forward(self, event: e.AnyEvent, done: asyncio.Future[int]) -> None:
        if not done.cancelled() and done.exception() is None:
            self._agents.send(event, self._leader)


class AttemptReports(Watcher):
    """Watches one attempt.

    Args:
        voice: the launcher's.
        number: of the attempt.
        nodes: that it runs on.
        on_started: all processes run.
        on_fall: a rank has ended by itself, and that has been told.
        on_finished: all work is done.
    """

    attempt: Attempt

    def __init__(
        self,
        voice: LauncherVoice,
        number: int,
        nodes: tuple[str, ...],
        *,
        on_started: Callable[[], None],
        on_fall: Callable[[], None],
        on_finished: Callable[[], None],
    ) -> None:
        self.exit = Exit()
        """How the first rank to fall has ended."""
        self.stop_asked = False
        self.told_over = asyncio.Event()
        """The launcher's engine knows that no process of it is left."""
        self._voice = voice
        self._number = number
        self._nodes = nodes
        self._on_started = on_started
        self._on_fall = on_fall
        self._on_finished = on_finished
        self._slow: set[str] = set()

    # --- telling ---

    def tell(self, kind: type[Told], **fields: Any) -> None:
        """Say something of this attempt."""
        self._voice.tell(kind, job=self._voice.key, attempt=self._number, **fields)

    def found(self, rule: str, node: str, kind: EvidenceKind, *, summary: str = "", stuck_s: float = 0.0) -> None:
        """A finding about this attempt while it runs, behind the step that it had reached."""
        if self.attempt.is_over:
            return
        if self.attempt.has_trained:
            self.tell(e.StepReached, step=self.attempt.step)
        place = Place(node=node, rank=self._rank(node))
        captures = {STUCK: f"{stuck_s:.1f}"} if stuck_s else None
        self._voice.say(self._voice.found(rule, place, (self._number, kind), summary=summary, captures=captures))

    def _rank(self, node: str) -> int | None:
        return self._nodes.index(node) * self._voice.world.options.gpus_per_node if node in self._nodes else None

    def ended(self, how: Exit, *, stopped: bool) -> e.AttemptEnded:
        """No process of it is left."""
        last_step = self.attempt.step if self.attempt.has_trained else None
        return self._voice.event(
            e.AttemptEnded,
            job=self._voice.key,
            attempt=self._number,
            exit_code=how.code,
            signal=how.signal,
            stopped=stopped,
            last_step=last_step,
        )

    # --- as the attempt's watcher ---

    def started(self) -> None:
        """See `training.Watcher`."""
        self._on_started()

    def training(self) -> None:
        """See `training.Watcher`."""
        resumed = self.attempt.resumed_step
        self.tell(e.FirstStepDone, step=resumed + 1, resumed_from=resumed)

    def saved(self, step: int, *, durable: bool) -> None:
        """See `training.Watcher`."""
        self.tell(e.CheckpointSaved, step=step, durable=durable)

    def rank_ended(self, node: str, rule: str, fault: str) -> None:
        """See `training.Watcher`. An empty rule: its node went with it, and is told of as such."""
        del fault
        self._echo(node)
        if rule:
            code, signal = exit_of(rule)
            self.exit = Exit(code=code, signal=signal)
            self._voice.world.later(self._voice.world.options.detect_s, lambda: self._rank_fell(node, rule))

    def _rank_fell(self, node: str, rule: str) -> None:
        self.found(rule, node, EvidenceKind.EXIT, summary=rule)
        self._on_fall()

    def _echo(self, node: str) -> None:
        """A rank elsewhere waits in a collective for the one that ended: its library says that a peer is lost."""
        world = self._voice.world
        peers = [one for one in self._nodes if one != node]
        if not peers or not world.chance("echo", world.options.echoes):
            return
        dice = world.dice("echo")
        peer = peers[int(dice.random() * len(peers))]
        wait_s = world.options.detect_s * dice.uniform(0.1, 1.5)
        self._voice.world.later(wait_s, lambda: self.found("nccl.remote", peer, EvidenceKind.LOG))

    def stalled(self, fault: str) -> None:
        """See `training.Watcher`."""
        del fault
        limit_s = self._voice.world.options.hang_s
        says = f"no progress for {limit_s:.1f} s in step {self.attempt.step}"

        def look() -> None:
            if self.attempt.stands_still:
                self.found("hang.step", "", EvidenceKind.TELEMETRY, summary=says, stuck_s=limit_s)

        self._voice.world.later(limit_s, look)

    def moves_again(self) -> None:
        """See `training.Watcher`: its next step is told."""
        self.tell(e.StepReached, step=self.attempt.step + 1)

    def bad_numbers(self, node: str, fault: str) -> None:
        """See `training.Watcher`."""
        del fault
        self.found("loss.nan", node, EvidenceKind.TELEMETRY, summary="The loss became nan")

    def slowed(self, node: str, fault: str) -> None:
        """See `training.Watcher`: seen over a few steps."""
        if fault not in self._slow:
            self._slow.add(fault)
            wait_s = self.attempt.plan.step_s * 5
            self._voice.world.later(wait_s, lambda: self.found("straggler.rank", node, EvidenceKind.STACK))

    def finished(self) -> None:
        """See `training.Watcher`."""
        self._on_finished()

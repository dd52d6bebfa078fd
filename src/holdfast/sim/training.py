"""One attempt of a simulated job: start, load, train, save, and how it breaks. Steps are folded: time is the step.

The allocation (`scheduler.py`) makes attempts and is told by `Watcher`. Between two checkpoints nothing is scheduled at
all, so that a month of training costs as many events as it has checkpoints and faults.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from holdfast.sim.ledger import TRAIN, Account
from holdfast.sim.options import JobPlan
from holdfast.sim.world import Node, World

SICK_S = 120.0
"""A job that trains on a broken machine breaks again within about this time."""
LINK_RULE = "nccl.ib.port"
"""What a rank says whose link is down."""


class Watcher:
    """Told what happens to an attempt: its launcher, or the scheduler alone. What is not answered changes nothing."""

    def started(self) -> None:
        """All processes run."""

    def training(self) -> None:
        """The first step is done."""

    def saved(self, step: int, *, durable: bool) -> None:
        """A checkpoint exists."""

    def rank_ended(self, node: str, rule: str, fault: str) -> None:
        """A rank ended by itself; the others do nothing useful any more."""

    def stalled(self, fault: str) -> None:
        """Nothing moves, nobody ended."""

    def moves_again(self) -> None:
        """What stood still goes on."""

    def bad_numbers(self, node: str, fault: str) -> None:
        """The loss is no number any more."""

    def slowed(self, node: str, fault: str) -> None:
        """One node makes every step slow."""

    def finished(self) -> None:
        """It has done all of its work."""


class Saved:
    """What is kept of a job between attempts: its checkpoints."""

    __slots__ = ("bad_from_s", "points")

    def __init__(self) -> None:
        self.points: list[float] = [0.0]
        """Training done at each durable checkpoint, ascending, in seconds; the beginning counts as one."""
        self.bad_from_s: float | None = None
        """Checkpoints beyond this hold bad numbers."""

    def newest(self, step_s: float, step_max: int | None) -> float:
        """What is loaded: the newest, or the newest not beyond a step."""
        if step_max is None:
            return self.points[-1]
        return next((point for point in reversed(self.points) if int(point / step_s) <= step_max), 0.0)

    def is_poisoned(self, done_s: float) -> bool:
        """Were the numbers bad at this checkpoint? Loading one from before gives the bad history up."""
        if self.bad_from_s is None:
            return False
        if done_s > self.bad_from_s:
            return True
        self.bad_from_s = None
        while self.points[-1] > done_s:
            self.points.pop()
        return False

    def add(self, done_s: float) -> None:
        """One more; those beyond it were of a history that was given up."""
        while self.points and self.points[-1] > done_s:
            self.points.pop()
        self.points.append(done_s)
        if len(self.points) > 8:
            del self.points[0]


class Attempt:
    """See the module."""

    def __init__(
        self,
        world: World,
        plan: JobPlan,
        name: str,
        number: int,
        nodes: tuple[Node, ...],
        saved: Saved,
        account: Account,
        watcher: Watcher,
        *,
        step_max: int | None = None,
    ) -> None:
        self.world = world
        self.plan = plan
        self.name = name
        self.number = number
        self.nodes = nodes
        self.saved = saved
        self.account = account
        self.watcher = watcher
        self.done_s = saved.newest(plan.step_s, step_max)
        self.resumed_s = self.done_s
        self.phase = ""
        self.slow: dict[str, tuple[str, float]] = {}
        """Straggling fault -> its node and factor."""
        self.has_trained = False
        self._paused = False
        self._since = 0.0
        self._mark_s = self.done_s
        self._poisoned = saved.is_poisoned(self.done_s)
        self._cancel: Callable[[], None] | None = None

    @property
    def step(self) -> int:
        """Last completed step."""
        return int(self.position() / self.plan.step_s)

    @property
    def resumed_step(self) -> int:
        """Step of the checkpoint that it loaded."""
        return int(self.resumed_s / self.plan.step_s)

    @property
    def is_over(self) -> bool:
        """No process is left."""
        return self.phase == "over"

    @property
    def is_well(self) -> bool:
        """Starting, loading, training or saving: not broken, not over."""
        return self.phase not in {"over", "broken"}

    # --- its way ---

    def begin(self, start_s: float) -> None:
        """Start the processes."""
        self._enter("start")
        self._after(start_s, self._started)

    def _started(self) -> None:
        # Also of one that is broken already: its other ranks come up, and its launcher says so.
        self.world.say(
            "attempt_started", job=self.name, detail=str(self.number), nodes=tuple(n.name for n in self.nodes)
        )
        self.account.ledger.attempts += 1
        self.watcher.started()
        if not self.is_well:
            return
        self._enter("load")
        self._after(self.plan.load_s, self._loaded)
        lost = next((node for node in self.nodes if not node.reachable), None)
        if lost is not None:
            self.breaks(lost.name, "exit.code.1", "")

    def _loaded(self) -> None:
        if self.world.storage_down:
            self._enter("stall")
            return
        self.world.say("attempt_training", job=self.name, detail=str(self.resumed_step))
        self.has_trained = True
        self._train()
        self.watcher.training()
        self._look_at_machines()
        if self._poisoned:
            self._after_own(SICK_S / 2, lambda: self.watcher.bad_numbers("", "") if self.is_well else None)

    def _look_at_machines(self) -> None:
        """What is broken breaks a job again, sooner or later."""
        for node in self.nodes:
            for fault in (*node.broken, *node.links):
                wait_s = SICK_S * (0.2 + self.world.dice("sick").random())
                self._after_own(wait_s, functools.partial(self._strike, node, fault))
                return

    def _strike(self, node: Node, fault: str) -> None:
        if self.is_well and fault in node.broken:
            self.breaks(node.name, "exit.signal.6", fault)
        elif self.is_well and fault in node.links:
            self.breaks(node.name, LINK_RULE, fault)

    def _after_own(self, seconds: float, do: Callable[[], None]) -> None:
        """Later, unless this attempt is over by then."""
        self.world.later(seconds, lambda: None if self.is_over else do())

    def _train(self) -> None:
        self._since = self.world.now()
        self.phase = TRAIN
        speed = self._speed()
        self.account.enter(TRAIN, self._since, speed=speed)
        until_save = self.plan.checkpoint_s - (self.done_s - self._mark_s)
        left = self.plan.work_s - self.done_s if self.plan.work_s > 0.0 else until_save
        if self.plan.work_s > 0.0 and left <= until_save:
            self._after(max(0.0, left) / speed, self._finish)
        else:
            self._after(max(0.0, until_save) / speed, self._save)

    def _speed(self) -> float:
        return 1.0 / max((factor for _, factor in self.slow.values()), default=1.0)

    def position(self) -> float:
        """Training done, in seconds."""
        if self.phase != TRAIN:
            return self.done_s
        return self.done_s + (self.world.now() - self._since) * self.account.speed

    def _settle(self) -> None:
        """Take what was trained since the last look into account."""
        self.done_s = self.position()
        self._since = self.world.now()

    def _save(self) -> None:
        self._settle()
        if self.plan.save_s <= 0.0:
            self._written()
            return
        self._enter("save")
        self._after(self.plan.save_s, self._written)

    def _written(self) -> None:
        if self.world.storage_down:
            self._enter("stall")
            return
        done_s = self._mark_s = self.done_s
        if self.plan.durable_s > 0.0:
            if self.world.options.early_words:
                self.watcher.saved(int(done_s / self.plan.step_s), durable=False)
            self._after_own(self.plan.durable_s, lambda: self._durable(done_s))
        else:
            self._durable(done_s)
        if self.is_well:
            self._train()

    def _durable(self, done_s: float) -> None:
        if self.world.storage_down or not self.is_well:
            return
        self.saved.add(done_s)
        self.account.ledger.checkpoints += 1
        step = int(done_s / self.plan.step_s)
        self.world.say("checkpoint", job=self.name, detail=str(step))
        self.watcher.saved(step, durable=True)

    def _finish(self) -> None:
        self._settle()
        self.saved.add(self.done_s)
        self.end("completed")
        self.watcher.finished()

    def saves_now(self) -> None:
        """A last checkpoint before it stops, on request."""
        self._settle()
        if self.has_trained and self.phase == TRAIN:
            self._durable(self.done_s)

    def storage_is_back(self) -> None:
        """What stood still goes on."""
        if self.phase == "stall" and not self._paused:
            if self.has_trained:
                self._written()
            else:
                self._loaded()

    # --- how it breaks ---

    def breaks(self, node: str, rule: str, fault: str) -> None:
        """A rank there ends by itself; nothing useful happens any more until the attempt is ended."""
        if not self.is_well:
            return
        self._break()
        self.watcher.rank_ended(node, rule, fault)

    def stalls(self, fault: str) -> None:
        """Nobody ends, nothing moves."""
        if not self.is_well:
            return
        self._break()
        self.watcher.stalled(fault)

    def pauses(self, fault: str) -> None:
        """Nothing moves until it `goes_on`. To be asked while it trains."""
        self._stop_waiting()
        self._settle()
        self._enter("stall")
        self._paused = True
        self.watcher.stalled(fault)

    def goes_on(self) -> None:
        """The pause is over, unless the attempt is."""
        if self._paused and self.phase == "stall":
            self._paused = False
            self._train()
            self.watcher.moves_again()

    @property
    def stands_still(self) -> bool:
        """Nothing moves, or nothing useful does."""
        return self.phase in {"broken", "stall"}

    def _break(self) -> None:
        if self.phase != "start":
            self._stop_waiting()
        self._settle()
        self.account.ledger.failures += 1
        self.phase = "broken"
        self.account.enter("stop", self.world.now())

    def goes_bad(self, node: str, fault: str) -> None:
        """From here on its numbers, and its checkpoints, are wrong; somebody sees it later."""
        if not self.is_well or not self.has_trained:
            return
        bad_from = self.position()
        known = self.saved.bad_from_s
        self.saved.bad_from_s = bad_from if known is None else min(known, bad_from)
        self._after_own(self.plan.step_s * 20, lambda: self.watcher.bad_numbers(node, fault) if self.is_well else None)

    def slows(self, node: str, fault: str, factor: float, *, slow: bool) -> None:
        """A node of it is slow, or is not any more."""
        if slow:
            self.slow[fault] = (node, factor)
            if self.has_trained and self.is_well:
                self.watcher.slowed(node, fault)
        else:
            self.slow.pop(fault, None)
        if self.phase == TRAIN:
            self._settle()
            self._stop_waiting()
            self._train()

    def end(self, why: str) -> None:
        """No process is left."""
        if self.is_over:
            return
        self._stop_waiting()
        self._settle()
        self.phase = "over"
        self.account.enter("queue", self.world.now())
        self.world.say("attempt_ended", job=self.name, detail=str(self.number), who=why)

    # --- waiting ---

    def _enter(self, phase: str) -> None:
        self.phase = phase
        self.account.enter(phase, self.world.now())

    def _after(self, seconds: float, do: Callable[[], None]) -> None:
        self._stop_waiting()
        self._cancel = self.world.later(seconds, do)

    def _stop_waiting(self) -> None:
        if self._cancel is not None:
            self._cancel()
            self._cancel = None

"""The nodes of an allocation as the supervisor of a step sees them: tasks are started by srun, and seen by watchers.

A watcher is a small process of ours on every node but the supervisor's (`step_watch`). It ends the node's tasks when
asked or when it is cut off. A node without one (yet) is as good as srun's word about it. It judges nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from holdfast.errors import TemporaryOrderError
from holdfast.launch.crew import Crew
from holdfast.launch.environment import AttemptSpec
from holdfast.launch.frames import AnyReport, EndRanks, RanksGone, StartRanks
from holdfast.launch.link import Follower
from holdfast.launch.place import JobPlace
from holdfast.launch.step_runner import StepRunner


class StepCrew(Crew):
    """The nodes that a step may use, in order of preference.

    Attributes:
        gone: nodes that are proven not to run.
        avoid: nodes that an earlier run of the job was kept off; taken only when there are no others.
    """

    def __init__(
        self,
        place: JobPlace,
        runner: StepRunner,
        *,
        candidates: tuple[str, ...],
        on_report: Callable[[str, AnyReport], None],
        on_all_gone: Callable[[int], None],
    ) -> None:
        super().__init__(place, runner, on_report=on_report, on_all_gone=on_all_gone)
        self.gone: set[str] = set()
        self.avoid: frozenset[str] = frozenset()
        self._step = runner
        self._candidates = candidates
        self._is_over = True
        self._ending: asyncio.Task[None] | None = None
        self._watched: set[str] = set()

    @property
    def joined(self) -> tuple[str, ...]:
        """Nodes that a new attempt may use."""
        return tuple(node for node in self._candidates if node not in self.gone)

    @property
    def here(self) -> tuple[str, ...]:
        """The same, those to be avoided last."""
        return tuple(sorted(self.joined, key=lambda node: node in self.avoid))

    def describe(self, spec: AttemptSpec, *, is_command: bool) -> str:
        """Srun knows how many tasks."""
        del spec, is_command
        return "the step"

    def local_ranks(self, node: str) -> int:  # noqa: ARG002 - srun lays tasks out
        """One command over all nodes, as far as the engine is concerned."""
        return 1

    def address_of(self, node: str) -> str:  # noqa: ARG002 - as above
        """Nobody is sent there by us."""
        return self.place.address

    @property
    def is_empty(self) -> bool:
        """No task of the newest attempt runs anywhere, and srun has ended."""
        return self._is_over

    @property
    def watched(self) -> set[str]:
        """Nodes of the allocation whose watcher is connected."""
        return set(self.port.followers) if self.port is not None else set()

    # --- watchers ---

    def joined_again(self, follower: Follower) -> None:
        """A watcher has come (back): it must know what may run on its node."""
        spec, node = self.spec, follower.hello.node
        if spec is not None and node in spec.nodes and not self._is_over:
            self._watched.add(node)
            self.tell(node, StartRanks(spec=spec))
        self._pulse()

    def unwatch(self, node: str) -> None:
        """Its watcher has ended: nothing is known of the node's tasks but through srun."""
        self._watched.discard(node)
        self._pulse()

    async def until_joined(
        self,
        count: int,
        limit_s: float,  # noqa: ARG002 - an allocation gains no nodes
        *,
        excluded: tuple[str, ...] = (),
    ) -> tuple[str, ...]:
        """The first `count` nodes that may be used; fewer when there are not as many."""
        return tuple(node for node in self.here if node not in excluded)[:count]

    def lost(self, node: str) -> None:
        """The node is proven not to run."""
        self.gone.add(node)
        self._empty.add(node)
        self._pulse()

    def look_at_leases(self, now: float) -> list[str]:
        """Nodes whose watcher has ended its tasks, because it could not renew the lease."""
        spec, port = self.spec, self.port
        if spec is None or port is None or self._is_over:
            return []
        over = []
        for node in self._watched - self._empty - self.gone:
            if node in spec.nodes and port.presence.has_grant(node) and port.presence.is_lapsed(node, now):
                over.append(node)
                self._empty.add(node)
        if over:
            self._pulse()
        return over

    def hear(self, node: str, report: AnyReport) -> None:
        """A watcher, or our own runner, reports."""
        if isinstance(report, RanksGone):
            if self.spec is not None and report.attempt == self.spec.attempt:
                self._empty.add(node)
            self._pulse()
            return
        super().hear(node, report)

    # --- an attempt's life ---

    async def start(self, spec: AttemptSpec, limit_s: float) -> None:  # noqa: ARG002 - srun starts at once or waits
        """Start srun on these nodes.

        Raises:
            TemporaryOrderError: the attempt before is not provably over.
            PermanentOrderError: srun cannot be started.
        """
        if not self._is_over:
            raise TemporaryOrderError("the step before is not provably over yet", retry_after_s=0.2)
        self.spec, self._is_over, self._ending = spec, False, None
        self._empty = set()
        self._watched = self.watched & set(spec.nodes)
        for node in self._watched:
            self.tell(node, StartRanks(spec=spec))
        self._step.start(spec, overlap=bool(self.gone) or self._step.left_hanging)

    async def end(self, attempt: int, grace_s: float) -> None:
        """End the step everywhere; returns when it is provably over."""
        if self.spec is None or self.spec.attempt != attempt or self._is_over:
            return
        if self._ending is None:
            self._ending = asyncio.create_task(self._end(self.spec, grace_s))
        elif grace_s <= 0:
            self._step.hurry()
        await asyncio.shield(self._ending)

    async def _end(self, spec: AttemptSpec, grace_s: float) -> None:
        if grace_s > 0:
            await self._step.ask_to_end(grace_s)
        watched = (self._watched & self.watched) - self.gone
        for node in watched:
            self._empty.discard(node)
            self.tell(node, EndRanks(attempt=spec.attempt))
        unseen = set(spec.nodes) - watched - self.gone - {self.place.node}
        await self._step.end_srun(is_seen=not unseen, is_whole=not self.gone & set(spec.nodes))
        while watched - self._empty - self.gone:
            for node in watched & self.watched - self._empty:
                self.tell(node, EndRanks(attempt=spec.attempt))
            self._give_up_on_silent(watched)
            await self._until(lambda: not watched - self._empty - self.gone, 0.5)
        await self._step.end_own_tasks(spec.epoch)
        self._step.finish()
        self._empty |= set(spec.nodes)
        self._is_over = True
        self._on_all_gone(spec.attempt)

    def _give_up_on_silent(self, watched: set[str]) -> None:
        """A watcher that is gone or cut off: by the end of its lease its tasks are."""
        port, now = self.port, asyncio.get_running_loop().time()
        if port is None:
            return
        for node in watched - self._empty:
            if port.presence.is_lapsed(node, now):
                self._empty.add(node)

    async def dismiss(self, exit_code: int, why: str, grace_s: float) -> None:
        """The step is over: srun ends, then the watchers leave."""
        if self.spec is not None and not self._is_over:
            await self.end(self.spec.attempt, grace_s)
        await super().dismiss(exit_code, why, grace_s)

    def _asked_for_stacks(self, spec: AttemptSpec) -> set[str]:
        """Nodes with a watcher, and our own: of tasks there that have a slot, stacks are taken."""
        return set() if self._is_over else super()._asked_for_stacks(spec) & (self.watched | {self.place.node})

    def pass_signal(self, signum: int, *, is_end: bool) -> None:
        """Srun passes it on to every task."""
        del is_end
        self._step.pass_signal(signum)

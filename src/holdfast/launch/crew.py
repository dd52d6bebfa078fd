"""All nodes of the allocation as the leader sees them: its own, and the followers behind their links.

Carries an attempt through its life (started everywhere, ended everywhere, provably gone) and passes on what nodes
report. It judges nothing. A node counts as empty when it says so, when its launcher's end is proven, or when its lease
has run out with a margin: then its launcher has killed its ranks, whether it can be heard or not.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from holdfast.errors import PermanentOrderError, TemporaryOrderError
from holdfast.launch.environment import AttemptSpec
from holdfast.launch.frames import (
    AnyAsk,
    AnyReport,
    AskEvacuate,
    DumpStacks,
    EndRanks,
    Leave,
    PassSignal,
    RanksGone,
    RanksStarted,
    RankStack,
    StacksDumped,
    StartFailed,
    StartRanks,
)
from holdfast.launch.link import Follower, LeaderPort
from holdfast.launch.place import JobPlace
from holdfast.launch.runner import Runner

_HEARD_S = 2.0
"""Two beats of a launcher: who starts an attempt now must have spoken since then."""


class Crew:
    """The nodes.

    Args:
        place: the leader's.
        runner: of the leader's own node; its reports must come to `hear`.
        port: where followers join; None when this node is alone.
        on_report: (node, report) for everything that the crew does not answer itself.
        on_all_gone: (attempt) no process of it is left on any node.
    """

    def __init__(
        self,
        place: JobPlace,
        runner: Runner,
        *,
        on_report: Callable[[str, AnyReport], None],
        on_all_gone: Callable[[int], None],
    ) -> None:
        self.place = place
        self.runner = runner
        self.port: LeaderPort | None = None
        self.spec: AttemptSpec | None = None
        self._on_report = on_report
        self._on_all_gone = on_all_gone
        self._started: set[str] = set()
        self._failed: dict[str, str] = {}
        self._empty: set[str] = set()
        self._stacks: dict[str, tuple[RankStack, ...]] = {}
        self._changed = asyncio.Event()
        self._dumping = asyncio.Lock()
        self._is_dismissed = False
        self.standbys_used = 0

    # --- who is there ---

    @property
    def joined(self) -> tuple[str, ...]:
        """Nodes whose launcher can be told something, in the allocation's order."""
        followers = self.port.followers if self.port is not None else {}
        return tuple(node for node in self.place.nodes if node == self.place.node or node in followers)

    @property
    def here(self) -> tuple[str, ...]:
        """Of these, the ones that were heard lately: one that was cut off keeps its connection for a while."""
        heard = self.port.heard_within(_HEARD_S) if self.port is not None else set()
        return tuple(node for node in self.joined if node == self.place.node or node in heard)

    @property
    def used(self) -> tuple[str, ...]:
        """Nodes of the newest attempt."""
        return self.spec.nodes if self.spec is not None else ()

    def describe(self, spec: AttemptSpec, *, is_command: bool) -> str:
        """What has been started, for people."""
        if is_command:
            return "the command"
        warm = f", {self.standbys_used} of them warm standbys" if self.standbys_used else ""
        return f"{spec.world_size} rank{'s' if spec.world_size > 1 else ''}{warm}"

    def local_ranks(self, node: str) -> int:
        """Ranks that this node starts."""
        if node == self.place.node or self.port is None:
            return self.runner.local_ranks
        return self.port.followers[node].hello.local_ranks

    def address_of(self, node: str) -> str:
        """Where other nodes reach it."""
        if node == self.place.node or self.port is None:
            return self.place.address
        return self.port.followers[node].hello.address

    def joined_again(self, follower: Follower) -> None:
        """A follower has come (back). Ranks of ours that it no longer holds are gone; older ones must go."""
        spec, node = self.spec, follower.hello.node
        held = follower.hello.attempt
        if spec is not None and spec.ranks_of(node) and node in self._started and held != spec.attempt:
            self._note_empty(node, spec.attempt)
        if held is not None and (spec is None or held != spec.attempt):
            self.tell(node, EndRanks(attempt=held))
        self._pulse()

    def lost(self, node: str) -> None:
        """Its launcher's end is proven, and with it that of its ranks (they die with it)."""
        if self.spec is not None:
            self._note_empty(node, self.spec.attempt)

    def look_at_leases(self, now: float) -> list[str]:
        """Nodes whose lease has run out since the last look while an attempt was on them; their ranks are dead."""
        spec, port = self.spec, self.port
        if spec is None or port is None:
            return []
        over = []
        for node in spec.nodes:
            if node == self.place.node or node in self._empty or node not in self._started:
                continue
            if port.presence.has_connected(node) and port.presence.is_lapsed(node, now):
                over.append(node)
                self._note_empty(node, spec.attempt)
        return over

    def leases_run_out(self, now: float) -> list[str]:
        """Nodes of the attempt whose launcher must be killing its ranks by its own clock, which runs ahead of ours.

        What ends elsewhere now may end of that; `look_at_leases` counts them as dead only a margin later.
        """
        spec, port = self.spec, self.port
        if spec is None or port is None:
            return []
        alive = [node for node in spec.nodes if node in self._started and node not in self._empty]
        return [node for node in alive if port.presence.is_lapsing(node, now)]

    # --- telling and hearing ---

    def tell(self, node: str, ask: AnyAsk) -> None:
        """Pass an ask to a node; one that cannot be reached misses it."""
        if node == self.place.node:
            self.runner.ask_soon(ask)
        elif self.port is not None:
            self.port.send(node, ask)

    def tell_all(self, ask: AnyAsk) -> None:
        """To every node of the running attempt, or of the allocation when there is none."""
        for node in self.spec.nodes if self.spec is not None else self.place.nodes:
            self.tell(node, ask)

    def hear(self, node: str, report: AnyReport) -> None:
        """A node reports."""
        attempt = self.spec.attempt if self.spec is not None else None
        self._on_report(node, report)
        match report:
            case RanksStarted() if report.attempt == attempt:
                self._started.add(node)
                self.standbys_used += report.standbys_used
            case StartFailed() if report.attempt == attempt:
                self._failed[node] = report.why
            case RanksGone():
                if report.attempt == attempt:
                    self._note_empty(node, report.attempt)
            case StacksDumped():
                self._stacks[node] = report.stacks
            case _:
                pass
        self._pulse()

    def _note_empty(self, node: str, attempt: int) -> None:
        spec = self.spec
        if spec is None or node in self._empty or node not in spec.nodes:
            return
        self._empty.add(node)
        self._pulse()
        if self.is_empty:
            self._on_all_gone(attempt)

    @property
    def is_empty(self) -> bool:
        """No process of the newest attempt runs anywhere."""
        return self.spec is None or self._empty >= set(self.spec.nodes)

    def _pulse(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _until(self, condition: Callable[[], bool], limit_s: float) -> bool:
        try:
            async with asyncio.timeout(limit_s):
                while not condition():
                    await self._changed.wait()
        except TimeoutError:
            return condition()
        return True

    async def until_joined(self, count: int, limit_s: float, *, excluded: tuple[str, ...] = ()) -> tuple[str, ...]:
        """The first `count` nodes that are here and not excluded; fewer when the limit passes."""
        await self._until(lambda: len(set(self.here) - set(excluded)) >= count, limit_s)
        return tuple(node for node in self.here if node not in excluded)[:count]

    # --- an attempt's life ---

    async def start(self, spec: AttemptSpec, limit_s: float) -> None:
        """Start the attempt on all its nodes; returns when all ranks run.

        Raises:
            TemporaryOrderError: the attempt before is not provably over.
            PermanentOrderError: a node cannot start its ranks, or does not answer in time.
        """
        if not self.is_empty:
            raise TemporaryOrderError("the attempt before is not provably over yet", retry_after_s=0.2)
        self.spec = spec
        self._started, self._failed, self._empty = set(), {}, set()
        self.standbys_used = 0
        for node in spec.nodes:
            self.tell(node, StartRanks(spec=spec))
        await self._until(lambda: bool(self._failed) or self._started | self._empty >= set(spec.nodes), limit_s)
        if self._failed:
            raise PermanentOrderError("; ".join(sorted(self._failed.values())))
        missing = sorted(set(spec.nodes) - self._started - self._empty)
        if missing:
            raise PermanentOrderError(f"{', '.join(missing)} did not start its ranks within {limit_s:g} s")

    async def end(self, attempt: int, grace_s: float) -> None:
        """End the attempt everywhere; returns when it is provably over. An older attempt is over already."""
        if self.spec is None or self.spec.attempt != attempt or self.is_empty:
            return
        while not self.is_empty:
            for node in set(self.spec.nodes) - self._empty:
                if node not in self._started and node != self.place.node and node not in self.joined:
                    self._note_empty(node, attempt)  # it never got the attempt
                else:
                    self.tell(node, EndRanks(attempt=attempt, grace_s=grace_s))
            # Asked again when a node has come back, or after a while: an ask may be lost with its connection.
            await self._until(lambda: self.is_empty, grace_s + 5.0)

    def _asked_for_stacks(self, spec: AttemptSpec) -> set[str]:
        return set(spec.nodes) - self._empty

    async def dump(self, attempt: int, limit_s: float) -> list[RankStack]:
        """Stacks of all ranks that gave one within the limit."""
        async with self._dumping:
            if self.spec is None or self.spec.attempt != attempt:
                return []
            asked = self._asked_for_stacks(self.spec)
            self._stacks = {}
            for node in asked:
                self.tell(node, DumpStacks(attempt=attempt, limit_s=limit_s))
            await self._until(lambda: set(self._stacks) >= asked, limit_s + 0.5)
            return [stack for stacks in self._stacks.values() for stack in stacks]

    def evacuate(self, attempt: int) -> None:
        """Ask all ranks to save and stop."""
        self.tell_all(AskEvacuate(attempt=attempt))

    def pass_signal(self, signum: int, *, is_end: bool) -> None:
        """Send a signal to all ranks."""
        self.tell_all(PassSignal(signum=signum, is_end=is_end))

    async def dismiss(self, exit_code: int, why: str, grace_s: float) -> None:
        """The job is over: followers leave with the code of the first call, everything here is ended."""
        if self.port is not None and not self._is_dismissed:
            self._is_dismissed = True
            for node in self.place.nodes:
                if node != self.place.node:
                    self.port.send(node, Leave(exit_code=exit_code, why=why))
            await self.port.flush(1.0)
        await self.runner.close(grace_s)
        if self.port is not None:
            await self.port.close()


def free_port(address: str) -> int:
    """A port that nobody listens on at this address now.

    Raises:
        TemporaryOrderError: the system has none.
    """
    try:
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
            try:
                probe.bind((address, 0))
            except OSError:
                probe.bind(("", 0))
            return int(probe.getsockname()[1])
    except OSError as error:
        raise TemporaryOrderError(f"no free port for MASTER_PORT: {error}") from error

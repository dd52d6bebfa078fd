"""The leader over a crew of one node that answers at once, without processes, sockets or a journal."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.errors import TemporaryOrderError
from holdfast.launch import leading
from holdfast.launch.core.asks import Finish
from holdfast.launch.crew import Crew
from holdfast.launch.epoch import read_epoch
from holdfast.launch.frames import AnyAsk, EndRanks, RankEnded, RanksGone, RanksStarted, StartRanks
from holdfast.launch.ground import Ground
from holdfast.launch.late_controller import LateController
from holdfast.launch.late_matcher import LateMatcher
from holdfast.launch.launcher_nodes import LauncherNodes
from holdfast.launch.leader import Leader
from holdfast.launch.link import OpenNetwork
from holdfast.launch.options import RunOptions
from holdfast.launch.output import Voice
from holdfast.launch.place import JobPlace
from holdfast.launch.process import Exit
from holdfast.model import events as e
from holdfast.model.cluster import JobKey, JobView, RecoverySpec
from holdfast.model.policy import Policy
from whole_logs import MATCHER

JOB = JobKey("c", "7")


class Node:
    """A runner whose ranks start and end as soon as they are asked to."""

    local_ranks = 2
    attempt = None

    def __init__(self) -> None:
        self.asked: list[AnyAsk] = []
        self.report: Callable[[Any], None] = lambda _: None

    def ask_soon(self, ask: AnyAsk) -> None:
        self.asked.append(ask)
        loop = asyncio.get_running_loop()
        if isinstance(ask, StartRanks):
            loop.call_soon(self.report, RanksStarted(attempt=ask.spec.attempt))
        elif isinstance(ask, EndRanks):
            loop.call_soon(self.report, RanksGone(attempt=ask.attempt))

    async def end(self, number: int, grace_s: float, why: str = "") -> None:
        self.report(RanksGone(attempt=number, why=why))

    def pass_signal(self, signum: int) -> None: ...
    async def watch(self) -> None: ...
    async def close(self, grace_s: float) -> None: ...


class Engine:
    """Takes every event, and decides nothing."""

    failing = ""
    seq = 0

    def __init__(self) -> None:
        self.events: list[e.AnyEvent] = []

    def submit(self, event: e.AnyEvent) -> asyncio.Future[int]:
        self.events.append(event)
        stored: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        stored.set_result(len(self.events))
        return stored


def ground_of(tmp_path: Path) -> Ground:
    return Ground(
        place=JobPlace(job=JOB, job_dir=tmp_path, node="n1", nodes=("n1",)),
        network=OpenNetwork(),
        options=RunOptions(argv=("train.py",)),
        environ={},
        voice=Voice(),
        matcher=LateMatcher(lambda: MATCHER),
        tag="tag",
        telemetry=tmp_path,
        local_ranks=2,
        lease_s=3.0,
    )


def led(tmp_path: Path, work: Callable[[Leader, Node, Engine], Awaitable[None]], *, enabled: bool = True) -> None:
    """Run `work` with a leader that has attached."""

    async def run() -> None:
        node, engine = Node(), Engine()
        ground = ground_of(tmp_path)
        crew = Crew(
            ground.place,
            node,
            on_report=lambda name, report: leader.on_report(name, report),
            on_all_gone=lambda attempt: leader.on_all_gone(attempt),
        )
        node.report = lambda report: crew.hear("n1", report)
        view = JobView(key=JOB, name="train", recovery=RecoverySpec(enabled=enabled))
        controller: Any = engine
        leader = Leader(ground, policy=Policy(), view=view, want_nodes=1, crew=crew, controller=controller)
        leader.nodes = LauncherNodes(
            crew, leader.events, leader.observer, voice=ground.voice, background=leader.background, scheduler=None
        )
        leader.attach(None)
        async with asyncio.timeout(20):
            await work(leader, node, engine)

    asyncio.run(run())


def kinds(engine: Engine) -> list[str]:
    return [type(event).__name__ for event in engine.events]


def end(node: Node, attempt: int, *codes: int) -> None:
    """All ranks of the attempt end with these codes."""
    for rank, code in enumerate(codes):
        node.report(RankEnded(attempt=attempt, rank=rank, exit=Exit(code=code), at=time.time()))
    node.report(RanksGone(attempt=attempt))


def test_a_job_that_ends_well_ends_its_leader(tmp_path: Path):
    """Attached, started behind its epoch, ended, and out with 0."""

    async def work(leader: Leader, node: Node, engine: Engine) -> None:
        await leader.start_first()
        assert kinds(engine) == ["JobObserved", "LauncherAttached", "AttemptStarted"]
        assert read_epoch(tmp_path) == leader.attempts.fence.epoch == 1
        end(node, 0, 0, 0)
        assert await leader.leaving.is_over == 0
        ended = engine.events[-1]
        assert isinstance(ended, e.AttemptEnded)
        assert (ended.exit_code, ended.stopped) == (0, False)

    led(tmp_path, work)


def test_without_recovery_the_leader_leaves_with_the_ranks_own_code(tmp_path: Path):
    """The other rank is ended, and no decision is waited for."""

    async def work(leader: Leader, node: Node, engine: Engine) -> None:
        await leader.start_first()
        node.report(RankEnded(attempt=0, rank=1, exit=Exit(code=3), at=time.time()))
        assert await leader.leaving.is_over == 3
        assert any(isinstance(ask, EndRanks) for ask in node.asked)
        assert "FindingSeen" in kinds(engine)

    led(tmp_path, work, enabled=False)


def test_a_stopped_attempt_is_followed_by_the_next_in_place(tmp_path: Path):
    """A stop returns once the end is stored; the next attempt has a new number and a newer epoch."""

    async def work(leader: Leader, node: Node, engine: Engine) -> None:
        await leader.start_first()
        await leader.stop_attempt(0, 0.0)
        stopped = engine.events[-1]
        assert isinstance(stopped, e.AttemptEnded)
        assert stopped.stopped
        await leader.start_attempt(attempt=1, epoch=2, nodes=("n1",), restore_step=None, in_place=True)
        started = engine.events[-1]
        assert isinstance(started, e.AttemptStarted)
        assert (started.attempt, started.epoch, started.in_place) == (1, 2, 1)
        assert not leader.leaving.is_over.done()

    led(tmp_path, work)


def test_a_job_that_is_being_ended_is_not_restarted(tmp_path: Path):
    """The order fails for now: whoever leads the job next takes it up, and the folder's epoch stays."""

    async def work(leader: Leader, node: Node, engine: Engine) -> None:
        await leader.start_first()
        leader.end_job(15)
        with pytest.raises(TemporaryOrderError, match="being ended from outside"):
            await leader.start_attempt(attempt=1, epoch=2, nodes=("n1",), restore_step=None, in_place=True)
        assert read_epoch(tmp_path) == 1
        assert [ask.spec.attempt for ask in node.asked if isinstance(ask, StartRanks)] == [0]

    led(tmp_path, work)


def test_a_newer_epoch_ends_ranks_and_leader(tmp_path: Path):
    """Another launcher has taken the job over: nothing is requeued, and the ranks here die first."""

    async def work(leader: Leader, node: Node, engine: Engine) -> None:
        await leader.start_first()
        await leader.leaving.superseded(9)
        assert await leader.leaving.is_over == Finish(69).code
        assert leader.leaving.last_words.is_superseded
        assert leader.crew.is_empty

    led(tmp_path, work)


def test_a_job_that_is_taken_while_the_engine_is_loaded_is_not_judged(tmp_path: Path):
    """Loading takes most of a second. A judgement that begins then would end that of the launcher that has the job."""

    class Real:
        has_run = False

        async def run(self) -> None:
            self.has_run = True

    async def work(leader: Leader, node: Node, engine: Engine) -> None:
        await leader.start_first()
        real = Real()

        def controller(*_: object) -> Real:
            (tmp_path / "epoch").write_text("5\n")
            return real

        late, judge = LateController(), SimpleNamespace(controller=controller)
        await leading._judge_it(leader, late, ground_of(tmp_path), judge)
        assert not real.has_run
        assert await leader.leaving.is_over == Finish(69).code
        assert leader.leaving.last_words.is_superseded

    led(tmp_path, work)


@pytest.mark.parametrize(("found", "ours"), [("1\n", True), ("2\n", False), ("what\n", True)])
def test_one_look_at_the_epoch_says_whose_the_job_is(tmp_path: Path, found: str, ours: bool):
    """A newer epoch is acted on at once. A folder that cannot be read proves nothing, and is told."""

    async def work(leader: Leader, node: Node, engine: Engine) -> None:
        await leader.start_first()
        (tmp_path / "epoch").write_text(found)
        assert await leader.own_lease.is_ours_now() is ours
        assert leader.leaving.is_over.done() is not ours
        assert bool(leader.own_lease.unread) is (found == "what\n")

    led(tmp_path, work)

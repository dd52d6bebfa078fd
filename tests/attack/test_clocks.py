"""Clocks that are set while Holdfast runs: of the controller, of an agent, of a launcher, of another node.

Forwards and backwards by an hour, by a year, to 1970. Nobody attacks here: a machine that has booted without the time, or
a person with `date`. Durations are the monotonic clock's, so that only what is compared with a wall clock can break.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest
from msgspec import structs
from tests.api.engine_house import EngineHouse, bad_gpu, engine_served, until
from tests.api.engine_house import run as run_real
from tests.api.test_authority import ANY
from tests.controller.cases import KEY, House, finding, running
from tests.launch.conftest import launched, wait_for  # noqa: F401 - a fixture

from attack_fixture import Attempt, Removing
from holdfast.adapters.clock import VirtualClock, run_virtual
from holdfast.api import authority
from holdfast.api.auth import Role, TokenBook, book_line, new_token
from holdfast.client import AsyncClient
from holdfast.controller.housekeeping import Housekeeping
from holdfast.controller.state import Waiting
from holdfast.decide import engine as engine_module
from holdfast.decide.engine import Engine
from holdfast.launch.core.clocks import FollowerClocks
from holdfast.launch.frames import Beat as LauncherBeat
from holdfast.launch.frames import SlotsSeen
from holdfast.model import events as e
from holdfast.model.clocks import CLOCK_OFF_S
from holdfast.model.cluster import NodeView
from holdfast.model.evidence import Finding
from holdfast.model.policy import PolicySet
from holdfast.model.records import NodeState
from holdfast.model.wire import Beat, SamplePoint

HOUR, YEAR = 3600.0, 365 * 86400.0
NOW = 1_790_000_000.0
BACK = {"an hour": HOUR, "a year": YEAR, "to 1970": NOW - 1000.0}
ANY_WAY = {"an hour back": -HOUR, "a year back": -YEAR, "to 1970": 1000.0 - NOW, "an hour on": HOUR, "a year on": YEAR}


class SetClock(VirtualClock):
    """A machine whose wall clock can be set."""

    ahead_s = 0.0

    def now(self) -> float:
        return super().now() + self.ahead_s


# --- the controller's ---


@pytest.mark.attempt(actor="A clock", asset="faults", removed="decide.engine.set_back")
@pytest.mark.parametrize("by", BACK)
def test_a_fault_after_the_clock_was_set_back_is_acted_upon(attempt: Attempt, by: str) -> None:
    """Have the controller take a new fault for one from before the node's last repair, because its clock was set back."""
    attempt.without(engine_module, "set_back", lambda _state, _now: None)
    engine, count = Engine(PolicySet()), 0

    def tell(kind: type, at: float, **fields: object) -> None:
        nonlocal count
        count += 1
        engine.handle(kind(id=f"e{count}", seq=count, at=at, received_at=at, **fields))

    tell(e.ControllerStarted, NOW, epoch=1)
    for number in range(1, 9):
        tell(e.NodeObserved, NOW, node=NodeView(name=f"n{number}", group="gpu", alive=True, gpus=8))
    tell(e.FindingSeen, NOW + 1, finding=_found("n1", NOW + 1, "first"))
    tell(e.OperatorCommand, NOW + 2, command=e.Command.RETURN, who="mei", node="n1")
    assert engine.state.nodes["n1"].state is NodeState.HEALTHY
    later = NOW + 3 - BACK[by]
    tell(e.FindingSeen, later, finding=_found("n1", later, "second"))
    attempt.judge(succeeded=engine.state.nodes["n1"].state is NodeState.HEALTHY)


def _found(node: str, at: float, name: str) -> Finding:
    return structs.replace(bad_gpu(node).finding, id=name, at=at)


@pytest.mark.attempt(actor="A clock", asset="waits", removed="controller.state.Waiting.left_s")
@pytest.mark.parametrize("by", BACK)
def test_no_timer_waits_for_ever_after_a_restart(attempt: Attempt, by: str) -> None:
    """Have a timer of a minute wait for a year: started with a clock that is ahead, gone on with once it is right."""
    attempt.without(Waiting, "left_s", lambda self, now: max(0.0, self.due - now))

    async def work() -> bool:
        house = House(watch=False)
        house.clock = SetClock()
        house.clock.ahead_s = BACK[by]
        async with running(house.controller(), kill=True) as first:
            await first.submit(finding("timer:t:60"))
        house.clock.ahead_s = 0.0
        async with running(house.controller()) as second:
            await asyncio.sleep(61.0)
            return not any(isinstance(one, e.TimerFired) for one in await second.events_after(0))

    attempt.judge(succeeded=run_virtual(work()))


@pytest.mark.parametrize("by", ANY_WAY)
def test_a_set_clock_ends_no_wait_and_no_lease(by: str) -> None:
    """Timers, leases, silence and orders count by the monotonic clock: nothing happens at the jump, all at its time."""

    async def work() -> None:
        house = House(watch=False)
        house.clock = SetClock()
        gate = house.world.gate("quarantine_node")
        async with running(house.controller()) as controller:
            await controller.beat(Beat(source="agent:n1", node="n1", boot_id="b1", at=house.clock.now()))
            attached = e.LauncherAttached(
                id="la", at=house.clock.now(), source="launcher:7", job=KEY,
                restart_count=0, nodes=("n2",), lease_s=10.0,
            )  # fmt: skip
            await controller.submit(attached)
            await controller.submit(finding("timer:t:60"))
            await controller.submit(finding("order:quarantine_node", "q"))
            epoch = controller.epoch
            house.clock.ahead_s = ANY_WAY[by]
            await asyncio.sleep(5.0)
            kinds = [type(one) for one in await controller.events_after(0)]
            unwanted = {e.TimerFired, e.NodeSilent, e.LauncherLapsed, e.OrderFailed}
            assert not unwanted & set(kinds)
            assert controller.may_act()
            assert controller.epoch == epoch
            gate.set()
            await asyncio.sleep(60.0)
            told = [type(one) for one in await controller.events_after(0)]
            for kind in (e.TimerFired, e.NodeSilent, e.LauncherLapsed, e.OrderDone):
                assert kind in told, kind

    run_virtual(work())


@pytest.mark.attempt(actor="A clock", asset="the journal", removed="controller.housekeeping.Housekeeping._watch_clock")
def test_a_clock_that_is_set_a_year_on_drops_no_history(attempt: Attempt) -> None:
    """Have the whole history dropped as a year old, by setting the controller's clock on for two hours."""
    attempt.without(Housekeeping, "_watch_clock", lambda _self: None)

    async def work() -> int:
        house = House(watch=False)
        house.clock = SetClock()
        async with running(house.controller()) as controller:
            for number in range(5):
                await controller.submit(finding("told", f"f{number}"))
            await controller._intake.leave_snapshot()
            house.clock.ahead_s = YEAR
            await asyncio.sleep(2 * HOUR)
            house.clock.ahead_s = 0.0
            await asyncio.sleep(HOUR)
            return len(await controller.journal.events(kind="finding_seen"))

    attempt.judge(succeeded=run_virtual(work()) < 5)


def test_a_clock_that_is_set_back_revives_no_token(tmp_path: Path) -> None:
    """A token that has ended stays ended while the controller runs, and one that is valid is not ended by it."""
    clock, mono = [NOW], [100.0]
    book = tmp_path / "tokens"
    short, long = new_token(), new_token()
    book.write_text(
        book_line(short, Role.VIEWER, "short", until=NOW + 60, at=NOW) + book_line(long, Role.VIEWER, "long", at=NOW)
    )
    book.chmod(0o600)
    tokens = TokenBook.load(book, now=lambda: clock[0], monotonic=lambda: mono[0])
    assert tokens.holder(short) is not None
    for by in (-HOUR, -YEAR, 1000.0 - NOW):
        clock[0], mono[0] = NOW + 61 + by, 161.0
        assert tokens.holder(short) is None
        assert tokens.holder(long) is not None


# --- an agent's ---


@pytest.mark.attempt(actor="A clock", asset="faults", removed="api.authority.on_our_clock")
@pytest.mark.parametrize("by", ANY_WAY)
def test_a_fault_of_a_node_whose_clock_is_wrong_counts(tmp_path: Path, removing: Removing, by: str) -> None:
    """Have a fault ignored, or refused, because the clock of its node is hours or years off."""

    async def work() -> None:
        async with engine_served(tmp_path) as house, AsyncClient(house.server.url, ANY, timeout_s=120) as agent:
            await _repaired(house, "n5")
            off = time.time() + ANY_WAY[by]
            beat = Beat(source="agent:n5", node="n5", boot_id="b-n5", instance_id="m-n5", at=off)
            await agent.beat(beat)
            lie = _moved(bad_gpu("n5", 7), off)
            assert (await agent.ingest("agent:n5", [lie])).stored == 1
            (seen,) = await _findings(house, "xid-n5-7")
            assert abs(seen.finding.at - time.time()) < 60
            assert abs(seen.at - time.time()) < 60
            await until(lambda: _state(house, "n5") is not NodeState.HEALTHY)
            await _repaired(house, "n5")
            removing(authority, "on_our_clock", lambda event, _ahead_s: event)
            await agent.ingest("agent:n5", [_moved(bad_gpu("n5", 8), off)])
            again = await _findings(house, "xid-n5-8")
            assert not again or abs(again[0].finding.at - time.time()) > 60

    run_real(work)


async def _findings(house: EngineHouse, name: str) -> list[e.FindingSeen]:
    seen = await house.controller.journal.events(kind="finding_seen")
    return [one for one in seen if one.finding.id.endswith(name)]


def _moved(event: e.FindingSeen, at: float) -> e.FindingSeen:
    return structs.replace(event, at=at, finding=structs.replace(event.finding, at=at))


def _state(house: EngineHouse, node: str) -> NodeState:
    return house.controller._intake.engine.state.nodes[node].state


async def _repaired(house: EngineHouse, node: str) -> None:
    """A person returns it: what is older than this is old news."""
    await house.controller.submit(
        e.OperatorCommand(
            id=f"return-{time.monotonic_ns()}", at=time.time(), command=e.Command.RETURN, who="mei", why="x", node=node
        )
    )
    await until(lambda: _state(house, node) is NodeState.HEALTHY)


def test_points_of_a_node_whose_clock_is_wrong_stand_where_they_were() -> None:
    """Figures of a launcher or agent whose clock is hours off are drawn at the time at which they were."""

    async def work() -> None:
        house = House(watch=False)
        async with running(house.controller()) as controller:
            now = house.clock.now()
            for number, ahead_s in enumerate((-2 * HOUR, YEAR, 4.0)):
                points = [SamplePoint("loss", "job:test/7", now + ahead_s - 1.0, 2.5)]
                await controller.beat(Beat(source=f"agent:n{number}", node="n1", at=now + ahead_s, samples=points))
            assert [one.at - now for one in controller.presence.samples] == [-1.0, -1.0, 3.0]

    assert CLOCK_OFF_S > 4.0
    run_virtual(work())


# --- launchers' ---


@pytest.mark.attempt(actor="A clock", asset="a job's figures", removed="launch.core.clocks.FollowerClocks.on_ours")
def test_a_follower_two_hours_behind_falsifies_no_figures(attempt: Attempt) -> None:
    """Have an attempt's steps and its fault stand two hours before its start, by the clock of one of its nodes."""
    attempt.without(FollowerClocks, "on_ours", lambda _self, _node, report: report)
    clocks, behind_s = FollowerClocks(), 2 * HOUR
    clocks.connected("n2")
    for way_s in (0.3, 0.01, 40.0):  # the last is held up by a cut
        clocks.heard("n2", LauncherBeat(beat=1, at=NOW - behind_s), NOW + way_s)
    told = clocks.on_ours("n2", SlotsSeen(attempt=0, at=NOW - behind_s, slots=()))
    attempt.judge(succeeded=abs(told.at - NOW) > 1.0)


def test_a_follower_whose_clock_is_right_is_taken_at_its_word() -> None:
    """Small differences, and beats that are late, move nothing; another process on the node is learnt anew."""
    clocks = FollowerClocks()
    report = SlotsSeen(attempt=0, at=NOW, slots=())
    clocks.heard("n2", LauncherBeat(beat=1, at=NOW), NOW + 1.5)
    assert clocks.on_ours("n2", report) is report
    clocks.heard("n2", LauncherBeat(beat=2, at=NOW + HOUR), NOW)
    assert clocks.on_ours("n2", report).at == NOW - HOUR
    clocks.connected("n2")
    assert clocks.on_ours("n2", report) is report


SET = """
import os, time
_true = time.time

def _set():
    with open(os.environ["SET_CLOCK"]) as file:
        return _true() + float(file.read() or 0)

time.time = _set
"""
"""A clock that a file sets. libfaketime is no help: with it Python's own sleeps fail, or jump with the wall clock."""
STEPS = """
import os, pathlib, time
at = pathlib.Path(os.environ["AT"])
for step in range(1, 80):
    print(f"iteration {step:8d}/     100 | consumed samples: {step} | elapsed time per iteration (ms): 50.0 | "
          f"lm loss: 2.5E+00 |", flush=True)
    time.sleep(0.05)
    at.write_text(str(step))
raise SystemExit(3)
"""


@pytest.mark.cluster
def test_a_launcher_whose_clock_is_set_restarts_nothing_and_sees_the_fault(launched, tmp_path: Path) -> None:  # noqa: F811
    """A year on, to 1970, a year back, an hour on, while a job with log rules trains: one attempt, and its end is told."""
    clock, at, site = tmp_path / "clock", tmp_path / "at", tmp_path / "site"
    clock.write_text("0")
    site.mkdir()
    (site / "sitecustomize.py").write_text(SET)
    script = tmp_path / "train.py"
    script.write_text(STEPS)
    rules = tmp_path / "rules.yaml"
    rules.write_text("- {name: Steps, logPattern: '.*iteration +(\\d+).*', expectedRecurringFrequencyInSeconds: 60}\n")
    paths = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])
    env = {
        "PYTHONPATH": paths,
        "SET_CLOCK": str(clock),
        "AT": str(at),
        "HOLDFAST_JOB_ID": "9",
        "HOLDFAST_CLUSTER": "here",
    }
    run = launched("--max-restarts", "0", "--standbys", "0", "--log-rules", str(rules), str(script), env=env)
    began = time.time()
    for step, offset in ((5, YEAR), (20, 1000.0 - NOW), (35, -YEAR), (50, HOUR)):
        wait_for(f"step {step}", lambda step=step: at.exists() and int(at.read_text() or 0) >= step)
        fresh = clock.with_name("fresh")
        fresh.write_text(str(offset))
        fresh.replace(clock)
    assert run.wait() == 3
    found = [one.finding for one in run.events("finding_seen")]
    assert [one.rule for one in found] == ["exit.code.3"], found
    assert len(run.events("attempt_started")) == 1
    times = [one.at for one in run.events()]
    assert all(began - 5 <= one <= time.time() + 5 for one in times), times
    received = [one.received_at for one in run.events()]
    assert received == sorted(received)


DIES = """
import os, time
from holdfast import telemetry
for step in range(1, 30):
    with telemetry.step(step):
        time.sleep(0.05)
    if os.environ["RANK"] == "1" and step == 20:
        raise SystemExit(3)
time.sleep(600)
"""


@pytest.mark.cluster
def test_a_node_two_hours_behind_tells_its_leader_true_times(launched, tmp_path: Path) -> None:  # noqa: F811
    """Two launchers, one with a clock that is 2 h behind: its rank's end, and all steps, are of now in the journal."""
    clock, site, script = tmp_path / "clock", tmp_path / "site", tmp_path / "train.py"
    clock.write_text(str(-2 * HOUR))
    site.mkdir()
    (site / "sitecustomize.py").write_text(SET)
    script.write_text(DIES)
    (tmp_path / "job").mkdir()
    both = {
        "HOLDFAST_JOB_ID": "12", "HOLDFAST_NODELIST": "node01,node02", "HOLDFAST_CLUSTER": "here", "HOLDFAST_LEASE_S": "30",
    }  # fmt: skip
    behind = {
        "PYTHONPATH": os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]), "SET_CLOCK": str(clock),
        "HOLDFAST_NODE_RANK": "1",
    }  # fmt: skip
    words = ("--max-restarts", "0", "--standbys", "0", str(script))
    began = time.time()
    follower = launched(*words, node="node02", env={**both, **behind})
    leader = launched(*words, node="node01", env={**both, "HOLDFAST_NODE_RANK": "0"})
    assert leader.wait() == 3
    follower.wait()
    found = [one.finding for one in leader.events("finding_seen")]
    assert [(one.rule, one.place.node) for one in found] == [("exit.code.3", "node02")], found
    times = [one.at for one in leader.events()] + [one.at for one in found]
    assert all(began - 5 <= one <= time.time() + 5 for one in times), sorted(times)

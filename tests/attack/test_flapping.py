"""A node that comes and goes, two hundred times: incidents, notices and orders are bounded, and no job is restarted for it.

Nobody attacks here: a loose cable, a daemon that is killed and started again, a GPU that falls off the bus after each
reset. The world carries out every order at once, so that nothing but judgement holds the storm back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from tests.decide.play import KEY, Play
from tests.decide.world import World

from attack_fixture import Attempt
from holdfast.decide import findings, repair
from holdfast.model import events as e
from holdfast.model import orders as o
from holdfast.model.evidence import Domain, Finding, Place, Role, Severity
from holdfast.model.policy import Brake

TIMES = 200
MOST = 12
"""Incidents, notices and orders of one kind that two hundred changes may lead to: three repairs, then a person."""


class Flapping:
    """A job on four of eight nodes, whose n2 flaps."""

    def __init__(self) -> None:
        play = Play(brake=Brake())
        play.nodes(*[f"n{number}" for number in range(1, 9)])
        play.job()
        play.attach()
        play.start()
        play.first_step(0, 1)
        play.checkpoint(0, 100)
        self.world = World(play.engine, play.now, play.count)
        self.given: Counter[str] = Counter()
        self.incidents: set[str] = set()
        handle = play.engine.handle

        def counted(event: e.AnyEvent) -> list[o.AnyOrder]:
            orders = handle(event)
            self.given.update(type(one).__name__ for one in orders if not isinstance(one, o.StartTimer | o.CancelTimer))
            self.incidents |= {record.id for record in play.engine.touched().incidents}
            return orders

        play.engine.handle = counted  # type: ignore[method-assign]

    def run(self, change: Callable[[World, int], None], minutes: float) -> None:
        for number in range(TIMES):
            change(self.world, number)
            self.world.calm()
            self.world.now += 60.0 * minutes


def unknown(world: World, _number: int) -> None:
    """NOT_RESPONDING, and idle again."""
    world.node_view("n2", alive=None)
    world.node_view("n2", alive=True)


def down(world: World, _number: int) -> None:
    """Down by the scheduler's word, and idle again once it was seen to."""
    world.node_view("n2", alive=False)
    world.calm()
    world.node_view("n2", alive=True)


def silent(world: World, _number: int) -> None:
    """Its agent is killed, and started again."""
    world.tell(e.NodeSilent, node="n2", for_s=30.0)
    world.tell(e.NodeHeard, node="n2")
    world.tell(e.AgentAttached, node="n2", boot_id="boot-n2", instance_id="machine-n2")


def sick(world: World, number: int) -> None:
    """An Xid 79 after each repair, and when it is out of service too."""
    found = Finding(
        id=f"x{number}", rule="nvidia.xid.79", at=world.now, role=Role.ROOT, domain=Domain.HARDWARE,
        severity=Severity.FATAL, place=Place(node="n2", gpu=1), fingerprint="xid79",
    )  # fmt: skip
    world.tell(e.FindingSeen, source="agent:n2", finding=found)


@pytest.mark.parametrize("minutes", [1.0, *(pytest.param(each, marks=pytest.mark.soak) for each in (0.02, 30.0))])
@pytest.mark.parametrize("change", [unknown, down, silent, sick])
def test_a_flapping_node_leads_to_few_of_everything(change: Callable[[World, int], None], minutes: float) -> None:
    """However it flaps, and however fast: a few incidents, notices and orders, at most two restarts of its job."""
    house = Flapping()
    house.run(change, minutes)
    assert max(house.given.values(), default=0) <= MOST, house.given
    assert len(house.incidents) <= MOST
    assert house.given["RequeueHeld"] + house.given["RestartInPlace"] <= 2
    job = next(one for one in house.world.engine.state.jobs.values() if one.key == KEY)
    assert len(job.attempts) <= 3
    if change in {unknown, silent}:
        assert not house.given
    else:
        assert house.world.engine.state.nodes["n2"].phase.value == "retired"


@pytest.mark.attempt(actor="A flapping node", asset="people", removed="decide.findings.leads_to_nothing")
def test_a_node_that_is_out_of_service_tells_nobody_any_more(attempt: Attempt, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have people told of every fault of a node that was retired, and that they are to look at anyway."""
    attempt.without(findings, "leads_to_nothing", lambda *_: False)
    house = Flapping()
    house.run(sick, 1.0)
    attempt.judge(succeeded=house.given["Notify"] > MOST)


@pytest.mark.attempt(actor="A flapping node", asset="nodes", removed="decide.repair.is_lemon")
def test_a_node_that_breaks_after_each_repair_is_retired(attempt: Attempt) -> None:
    """Have a node repaired and returned two hundred times."""
    attempt.without(repair, "is_lemon", lambda *_: False)
    house = Flapping()
    house.run(sick, 600.0)
    attempt.judge(succeeded=house.given["ReturnNode"] > MOST)

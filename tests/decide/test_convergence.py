"""After any storm, when faults stop and orders are carried out, everything comes to rest."""

from __future__ import annotations

import pytest
from tests.decide.test_state_machine import Chaos
from tests.decide.world import World, empty_nodes

from holdfast.model.records import JobState, NodeState


def calm_after(seed: int, scope: str, steps: int) -> World:
    chaos = Chaos(seed, scope)
    chaos.run(steps)
    world = World(chaos.engine, chaos.now, chaos.count)
    empty_nodes(world)
    rounds = world.calm()
    assert world.at_rest(), f"seed {seed} {scope}: not at rest after {rounds} rounds\n" + "\n".join(world.left())
    return world


@pytest.mark.parametrize("scope", ["cluster", "allocation"])
@pytest.mark.parametrize("seed", range(40))
def test_everything_comes_to_rest(seed, scope):
    """No job stays in recovery, no incident open, no node between two states; every order had its effect once."""
    world = calm_after(seed, scope, 60)
    for node in world.engine.state.nodes.values():
        assert node.state not in {NodeState.REPAIRING, NodeState.VALIDATING}, node.story[-5:]
    for job in world.engine.state.jobs.values():
        assert job.state in {JobState.WATCHING, JobState.COMPLETED, JobState.GIVEN_UP, JobState.CANCELLED}


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(3000, 3400))
def test_everything_comes_to_rest_for_long(seed):
    """As above, longer storms and more of them."""
    for scope in ("cluster", "allocation"):
        calm_after(seed, scope, 400)

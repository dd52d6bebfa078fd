"""kill -9 of the controller at random moments of a recovery: nothing is lost, nothing is done twice, the job goes on.

Everything is drawn from the seed in the test's name; the same test draws the same faults and kills again. What the
machine does between them is not drawn, so a failure names both.
"""

from __future__ import annotations

import asyncio
import os

import pytest

from chaos import kills

KILLS = 10
"""Per cluster. Two seeds make the 20 of `make test`, twenty more the 200 of `make soak`."""

pytestmark = pytest.mark.cluster


def play(tmp_path, seed: int, request) -> kills.Outcome:
    rounds = kills.plan(seed, KILLS)
    outcome = asyncio.run(kills.run(tmp_path / "cluster", rounds))
    again = f'.venv/bin/python -m pytest "{os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0]}"'
    if outcome.complaints:
        drawn = "\n  ".join(map(str, rounds))
        said = "\n  ".join(outcome.complaints)
        pytest.fail(
            f"seed {seed}, killed {outcome.kills} times\n  {said}\ndrawn:\n  {drawn}\nreplay: {again}", pytrace=False
        )
    print(f"seed {seed}: {outcome.kills} kills at {dict(outcome.moments)}, pending then: {dict(outcome.pending)}")
    assert outcome.kills == KILLS
    return outcome


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", [1, 2])
def test_a_killed_controller_loses_nothing_and_does_nothing_twice(tmp_path, seed, request):
    """Rank deaths and Xid 74 in turn; the controller dies in each recovery. Every finding that was acknowledged is in
    the journal, each incident closes, each order has one effect by the scheduler's own count, the losses are those of
    an undisturbed run, and the journal replays to the same records and to the same snapshot, byte by byte."""
    outcome = play(tmp_path, seed, request)
    assert outcome.pending, "no kill fell between the store of an order and its outcome: choose another seed"


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(101, 121))
def test_200_kills_lose_nothing_and_do_nothing_twice(tmp_path, seed, request):
    """The same with twenty more seeds."""
    play(tmp_path, seed, request)


def test_a_plan_is_drawn_from_its_seed():
    """The same seed gives the same faults and kills, of both kinds and in the number asked for."""
    for seed in range(300):
        rounds = kills.plan(seed, KILLS)
        assert rounds == kills.plan(seed, KILLS)
        assert sum(kill.count for one in rounds for kill in one.kills) == KILLS
        assert {one.fault for one in rounds} == {"rank", "xid"}

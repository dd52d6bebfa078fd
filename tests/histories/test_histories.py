"""What the controller acknowledges, it keeps: histories of several clients over HTTP, while a nemesis breaks things.

Real `holdfast controller` processes over a real journal are killed, stopped, cut off and deprived of their disk, their
clock jumps, a standby takes over. `checker.py` judges each history against the journal read raw. A failure names the
file of the history and the seed: `python -m tests.histories --seed N --store S --first K --count 1` plays it again.
"""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path

import pytest

from .nemesis import KINDS
from .play import Outcome, planned, play

SEED = 14
COUNT = 15
"""Of each store; a controller that is started again costs a second of processor time."""
SOAK_COUNT = 500

pytestmark = pytest.mark.cluster


def played(folder: Path, seed: int, count: int, store: str) -> Outcome:
    outcome = asyncio.run(play(folder, seed=seed, count=count, store=store))
    assert outcome.verdict.complaints == [], f"seed {seed}: {outcome}"
    assert (outcome.verdict.lost, outcome.verdict.doubled) == (0, 0)
    assert outcome.histories == count
    return outcome


@pytest.mark.timeout(600)
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_short_histories_keep_every_promise(tmp_path: Path, store: str):
    """Fifteen histories on each store: nothing that was acknowledged is lost or doubled, and no read goes back."""
    outcome = played(tmp_path, SEED, COUNT, store)
    assert outcome.verdict.acknowledged > 3 * COUNT
    assert outcome.outcomes["unknown"] > COUNT, "the faults did not reach the clients"


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_a_thousand_histories_keep_every_promise(tmp_path: Path, store: str):
    """Five hundred on each store, with a seed that is drawn and printed."""
    seed = secrets.randbelow(10**9)
    print(f"seed {seed}")
    for first in range(0, SOAK_COUNT, 100):
        folder = tmp_path / str(first)
        folder.mkdir()
        print(played(folder, seed + first, 100, store))


def test_a_seed_draws_the_same_faults_again_and_in_time_every_kind():
    for store, kinds in KINDS.items():
        assert planned(SEED, 3, store)[1] == planned(SEED, 3, store)[1]
        assert {fault.kind for number in range(100) for fault in planned(SEED, number, store)[1]} == set(kinds)

"""What Holdfast promises on Slurm while Slurm itself breaks: random schedules of faults on real labs.

slurmctld, slurmdbd, munge, slurmd and nodes are killed, stopped and started while jobs run, fail and end, and an
administrator drains nodes. `checker.py` judges each schedule by what the jobs' processes wrote and by Slurm's own words.
A failure names seed and schedule: `python -m tests.slurm_schedules --seed N --first K --count 1` plays it again.
"""

from __future__ import annotations

import secrets

import pytest

from slurm_fixture import need_slurm

from .play import Outcome, play
from .schedule import KINDS, draw

SEED = 334
"""Its first schedules leave out the kind that Slurm itself needs a minute for, to find a run of which it forgot the end."""
COUNT, LABS = 20, 4
SOAK_COUNT = 300


def played(seed: int, count: int) -> Outcome:
    need_slurm(dbd=True)
    outcome = play(seed=seed, count=count, labs=LABS)
    print(outcome)
    assert outcome.complaints == [], f"seed {seed}: {outcome}"
    assert outcome.schedules >= count
    return outcome


@pytest.mark.cluster
@pytest.mark.timeout(900)
def test_twenty_schedules_keep_every_promise():
    """No job lost, none twice at once, none past its limit, no healthy node fenced, no administrator's drain touched."""
    assert played(SEED, COUNT).affected > COUNT


@pytest.mark.soak
@pytest.mark.cluster
@pytest.mark.timeout(7200)
def test_three_hundred_schedules_keep_every_promise():
    """With a seed that is drawn and printed."""
    seed = secrets.randbelow(10**9)
    print(f"seed {seed}")
    assert played(seed, SOAK_COUNT).faults.keys() == set(KINDS)


def test_a_seed_draws_the_same_schedule_again_and_in_time_every_kind():
    assert draw(SEED, 3) == draw(SEED, 3)
    assert {fault.kind for number in range(200) for fault in draw(SEED, number).faults} == set(KINDS)

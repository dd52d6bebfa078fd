"""The launcher's core keeps its promises under virtual time, and what breaks one of them is seen within 200 seeds."""

from __future__ import annotations

import pytest

from sim.launch_core import BUGS, complaints, planted

SEEDS = range(200)


def test_nothing_is_wrong_with_a_fixed_swarm():
    """Messages lost, late and doubled, cut links, paused processes, a second leader."""
    assert {seed: said for seed in SEEDS if (said := complaints(seed))} == {}


@pytest.mark.parametrize("name", sorted(BUGS))
def test_a_planted_bug_is_found(name):
    """By one of the same seeds."""
    cores = planted(name)
    assert any(complaints(seed, cores) for seed in SEEDS)

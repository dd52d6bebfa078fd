"""A world of events for the engine: short ways to say what happens, invariants checked after every event."""

from __future__ import annotations

import pytest
from tests.decide.play import Play


@pytest.fixture
def play():
    """A cluster's engine with four nodes and a job with a launcher running on all of them."""
    return Play().running()


@pytest.fixture
def bare():
    """A cluster's engine that has seen nothing."""
    return Play()


@pytest.fixture
def inside():
    """The launcher's own engine, job running."""
    return Play(scope="allocation").running()

"""Shrinking finds the few parts that matter, in few questions, and stops when it may not ask any more."""

from __future__ import annotations

import pytest

from holdfast.sim.shrink import smallest

PARTS = [f"f{number}" for number in range(40)]


@pytest.mark.parametrize("needed", [("f7",), ("f0", "f39"), ("f3", "f4", "f20"), ("f1", "f11", "f21", "f31")])
def test_only_what_is_needed_is_left(needed):
    """In the order in which it was given; far fewer questions than leaving out one after the other in all ways."""
    asked: list[tuple[str, ...]] = []

    def fails(kept: tuple[str, ...]) -> bool:
        asked.append(kept)
        return set(needed) <= set(kept)

    assert smallest(PARTS, fails) == list(needed)
    assert len(asked) < 120


def test_what_fails_by_itself_needs_nothing():
    """One question is enough."""
    asked = []
    assert smallest(PARTS, lambda kept: not asked.append(kept)) == []
    assert asked == [()]


def test_what_needs_everything_stays_whole():
    """Nothing can be left out."""
    assert smallest(PARTS[:5], lambda kept: len(kept) == 5) == PARTS[:5]


def test_it_stops_asking():
    """The smallest so far still fails."""
    left = smallest(PARTS, lambda kept: "f7" in kept, tries=4)
    assert "f7" in left
    assert len(left) < 40


def test_nothing_to_leave_out():
    """No faults, no questions."""
    assert smallest([], lambda _: pytest.fail("asked")) == []

"""A course that heads for its limit is told ahead; one that warms up and levels off is not."""

import math

from holdfast.detect.trends import Course


def course(value_at, seconds=600, every=15):
    found = Course()
    for at in range(0, seconds + 1, every):
        found.add(float(at), value_at(at))
    return found


def test_a_steady_rise_near_the_limit_is_told():
    """One degree a minute from 72: 83 in about a minute, at 82."""
    ahead = course(lambda at: 72 + at / 60).reaches_in_s(83, near=10)
    assert 50 <= ahead <= 70


def test_what_is_no_trend():
    """Far away, falling, level, warming up and levelling off, noise, too short, already there."""
    assert course(lambda at: 50 + at / 60).reaches_in_s(83, near=10) is None
    assert course(lambda at: 82 - at / 60).reaches_in_s(83, near=10) is None
    assert course(lambda at: 80).reaches_in_s(83, near=10) is None
    assert course(lambda at: 79 - 40 * math.exp(-at / 60)).reaches_in_s(83, near=10) is None
    assert course(lambda at: 78 + (at // 15 % 2) * 3).reaches_in_s(83, near=10) is None
    assert course(lambda at: 38 if at < 400 else 38 + (at - 400) / 5).reaches_in_s(87, near=10) is None
    assert course(lambda at: 80 + at / 60, seconds=90).reaches_in_s(83, near=10) is None
    assert course(lambda at: 80 + at / 60).reaches_in_s(83, near=10) is None

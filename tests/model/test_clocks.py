"""`model/clocks.py`: the fastest beat tells how far a clock is off; late ones do not, unless all are."""

from __future__ import annotations

from holdfast.model.clocks import CLOCK_OFF_S, SET_S, Offsets


def test_the_fastest_beat_tells() -> None:
    """One that a cut or a stopped controller made late moves nothing; a burst of them does not, either."""
    clocks = Offsets()
    assert (clocks.ahead_s("a"), clocks.shift_s("a")) == (None, 0.0)
    for number, ahead_s in enumerate((-0.4, -0.1, -600.0, -599.0, -598.0, -0.3)):
        clocks.note("a", ahead_s, 100.0 + number / 10)
    assert (clocks.ahead_s("a"), clocks.shift_s("a")) == (-0.1, 0.0)


def test_a_clock_that_is_set_is_seen() -> None:
    """Forward at once; back when all beats of a while are late."""
    clocks = Offsets()
    clocks.note("a", 0.0, 0.0)
    clocks.note("a", 3600.0, 10.0)
    assert clocks.shift_s("a") == 3600.0
    for now in (20.0, 30.0, 20.0 + SET_S):
        assert clocks.shift_s("a") == 3600.0
        clocks.note("a", -0.2, now)
    assert (clocks.ahead_s("a"), clocks.shift_s("a")) == (-0.2, 0.0)


def test_another_process_begins_anew() -> None:
    """What the one before told is forgotten; and a little off is right."""
    clocks = Offsets()
    clocks.note("a", 900.0, 0.0)
    clocks.forget("a")
    clocks.note("a", CLOCK_OFF_S - 0.1, 1.0)
    assert clocks.shift_s("a") == 0.0

"""Counters count by their rises: bases, resets, windows, growing rates."""

from holdfast.detect.counters import KEEP_S, CounterFold


def test_first_look_and_reset_are_no_rise():
    """4 at the first look is history; a fall to 0 is a reset; what comes after counts again."""
    fold = CounterFold()
    assert [fold.rise("ue", value, at) for at, value in enumerate((4, 4, 6, 0, 1))] == [0, 0, 2, 0, 1]


def test_a_fold_goes_on_where_another_stopped():
    """An agent that starts again sees what rose while it was away."""
    first = CounterFold()
    first.rise("ue", 4, 0.0)
    assert CounterFold(first.last).rise("ue", 7, 100.0) == 3


def test_windows_hold_what_is_in_them():
    """From so many seconds ago to so many; older than an hour is forgotten."""
    fold = CounterFold()
    for at in range(0, 4000, 100):
        fold.rise("crc", at, float(at))
    assert fold.within("crc", 600.0, 3900.0) == 600
    assert fold.within("crc", 1200.0, 3900.0, until_s=600.0) == 600
    assert fold.within("crc", 2 * KEEP_S, 3900.0) <= KEEP_S + 100
    assert fold.within("never", 600.0, 3900.0) == 0


def test_a_steady_rate_does_not_grow_and_a_rising_one_does():
    """Three windows, each twice the one before, the newest with enough in it; noise and a first burst are no trend."""
    for rises, least, grows in (
        ((10, 10, 10), 1, False),
        ((1, 5, 20), 10, True),
        ((1, 5, 20), 50, False),
        ((0, 0, 30), 10, False),
        ((10, 12, 15), 10, False),
    ):
        fold = CounterFold()
        total = 0
        fold.rise("ce", 0, 0.0)
        for window, rise in enumerate(rises):
            total += rise
            fold.rise("ce", total, window * 60.0 + 30.0)
        assert fold.grows("ce", 60.0, 180.0, least=least) is grows, rises

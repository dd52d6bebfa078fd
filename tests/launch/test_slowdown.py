"""Who keeps the others waiting."""

from __future__ import annotations

from holdfast.launch.slowdown import LOOKS, Slowdown


def learned(steps: int = 20, step_s: float = 0.1) -> Slowdown:
    one = Slowdown(1.5, 3)
    for step in range(1, steps + 1):
        assert not one.observe(step, step_s, is_ordinary=True)
    return one


def looks(**share: float) -> list[dict[int, bool]]:
    """`r1=0.25`: rank 1 is found waiting in a quarter of the looks."""
    return [{int(rank[1:]): number < part * LOOKS for rank, part in share.items()} for number in range(LOOKS)]


def test_a_look_is_wanted_after_three_slow_steps():
    """Not after a hiccup, not for steps that are known to be long, not twice for one step."""
    one = learned()
    assert not one.observe(21, 0.4, is_ordinary=True)
    assert not one.observe(22, 0.1, is_ordinary=True)
    assert not one.observe(23, 9.0, is_ordinary=False)
    assert [one.observe(step, 0.4, is_ordinary=True) for step in (24, 24, 25, 26)] == [False, False, False, True]


def test_a_job_that_was_never_quicker_is_not_slow():
    """Growing into its own rhythm: the first steps teach what is usual."""
    assert not learned(step_s=0.5).observe(21, 0.6, is_ordinary=True)


def test_the_rank_that_works_while_the_others_wait_is_named():
    """With how slow the steps have become."""
    one = learned()
    for step in (21, 22, 23):
        one.observe(step, 0.4, is_ordinary=True)
    (slow,) = one.judge(looks(r0=0.9, r1=0.1, r2=1.0))
    assert slow.rank == 1
    assert str(slow).startswith("Steps take 0.40 s instead of 0.10 s")


def test_it_is_told_when_it_is_over():
    """Three usual steps after the slow ones, once."""
    one = learned()
    for step in (21, 22, 23):
        one.observe(step, 0.4, is_ordinary=True)
    one.judge(looks(r0=0.9, r1=0.1))
    for step, step_s in ((24, 0.1), (25, 0.1), (26, 0.4), (27, 0.1), (28, 0.1)):
        one.observe(step, step_s, is_ordinary=True)
        assert one.cleared() == []
    one.observe(29, 0.1, is_ordinary=True)
    assert one.cleared() == [1]
    assert one.cleared() == []


def test_nobody_is_named_when_all_do_alike():
    """Everyone busy, everyone waiting (a slow network or file system), or too many at once."""
    one = learned()
    assert one.judge(looks(r0=0.1, r1=0.2, r2=0.1)) == []
    assert one.judge(looks(r0=0.9, r1=0.8, r2=1.0)) == []
    assert one.judge(looks(r0=0.1, r1=0.1, r2=1.0)) == []
    assert one.judge([]) == []


def test_it_does_not_look_again_at_once():
    """A slow spell without a culprit is not looked at in every step; after it is over, the next one is."""
    one = learned()
    assert [one.observe(step, 0.4, is_ordinary=True) for step in (21, 22, 23)][-1]
    one.judge(looks(r0=0.9, r1=0.9))
    assert not any(one.observe(step, 0.4, is_ordinary=True) for step in range(24, 60))
    assert not one.observe(60, 0.1, is_ordinary=True)
    assert [one.observe(step, 0.4, is_ordinary=True) for step in (61, 62, 63)][-1]

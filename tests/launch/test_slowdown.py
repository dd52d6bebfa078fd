"""Who keeps the others waiting."""

from __future__ import annotations

import random

import pytest
from msgspec import structs

from holdfast.launch.slowdown import LOOKS_MAX, Slowdown
from holdfast.model.cluster import JobKey
from holdfast.model.evidence import Diagnosis, Finding
from holdfast.model.records import IncidentRecord, Mark
from holdfast.report.objectives import down_s


def learned(steps: int = 20, step_s: float = 0.1) -> Slowdown:
    one = Slowdown(1.5, 3)
    for step in range(1, steps + 1):
        assert not one.observe(step, step_s, is_ordinary=True)
    return one


def looks(count: int = 16, **share: float) -> list[dict[int, bool]]:
    """`r1=0.25`: rank 1 is found waiting in a quarter of the looks."""
    return [{int(rank[1:]): number < part * count for rank, part in share.items()} for number in range(count)]


def slowed(step_s: float = 0.4, more: int = 12) -> Slowdown:
    """Steps have grown slow, a look was asked for, and so many slow steps have come since."""
    one = learned()
    asked = [one.observe(step, step_s, is_ordinary=True) for step in range(21, 24 + more)]
    assert asked[2:] == [True] * (more + 1)
    return one


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
    """With how slow the steps have become, and as sure as the measurement is."""
    (slow,) = slowed().judge(looks(r0=0.9, r1=0.1, r2=1.0))
    assert slow.rank == 1
    assert str(slow).startswith("Steps take 0.40 s instead of 0.10 s")
    assert slow.confidence == round(slow.others_wait - slow.waits, 2) < 0.9
    (slow,) = slowed().judge(looks(r0=1.0, r1=0.0))
    assert slow.confidence == 0.95


def test_a_verdict_belongs_to_the_slow_steps_that_asked_for_it():
    """One usual step between the request and the verdict: the job is well, whatever the stacks showed."""
    one = slowed()
    assert not one.observe(40, 0.1, is_ordinary=True)
    assert not one.wants_look
    assert not one.looks_on(looks(3, r0=1.0, r1=0.0))
    assert one.judge(looks(r0=1.0, r1=0.0, r2=1.0)) == []
    assert [one.observe(step, 0.4, is_ordinary=True) for step in (41, 42, 43)] == [False, False, True]
    assert one.judge(looks(r0=1.0, r1=0.0, r2=1.0)) == []  # nor do two slow steps after it carry the old looks


def test_looks_go_on_until_they_tell():
    """Over twelve slow steps at least; never for ever."""
    few = slowed(more=3)
    assert few.looks_on(looks(8, r0=1.0, r1=0.0))
    assert few.judge(looks(8, r0=1.0, r1=0.0)) == []
    assert not slowed().looks_on(looks(12, r0=1.0, r1=0.0))
    assert slowed().looks_on(looks(12, r0=0.7, r1=0.3))
    assert not slowed().looks_on(looks(LOOKS_MAX, r0=0.5, r1=0.5))
    assert not slowed(step_s=6.0, more=2).looks_on(looks(12, r0=1.0, r1=0.0))  # long steps tell sooner


def test_a_healthy_job_on_a_loaded_machine_is_named_nobody():
    """Another rank is the last in each step, by chance: of 300 spells of slow steps none ends with a name."""
    dice = random.Random(7)
    for _ in range(300):
        one, seen, last = slowed(0.2, 0), [], 0
        while one.looks_on(seen):
            if len(seen) % 2 == 0:
                last = dice.randrange(4)
                one.observe(24 + len(seen), 0.2, is_ordinary=True)
            seen.append({rank: dice.random() < (0.1 if rank == last else 0.85) for rank in range(4)})
        assert one.judge(seen) == []


def test_it_is_told_when_it_is_over():
    """Three usual steps after the slow ones, once."""
    one = slowed()
    assert one.judge(looks(r0=0.9, r1=0.1))
    for step, step_s in ((44, 0.1), (45, 0.1), (46, 0.4), (47, 0.1), (48, 0.1)):
        one.observe(step, step_s, is_ordinary=True)
        assert one.cleared() == []
    one.observe(49, 0.1, is_ordinary=True)
    assert one.cleared() == [1]
    assert one.cleared() == []


@pytest.mark.parametrize(
    "seen",
    [
        looks(r0=0.1, r1=0.2, r2=0.1),
        looks(r0=0.9, r1=0.8, r2=1.0),
        looks(r0=0.1, r1=0.1, r2=1.0),
        looks(r0=0.65, r1=0.4, r2=0.65),
        looks(8, r0=0.7, r1=0.3, r2=0.7),
        [],
    ],
    ids=["all busy", "all wait", "too many", "hardly apart", "by chance", "no stacks"],
)
def test_nobody_is_named_when_all_do_alike(seen):
    """Everyone busy, everyone waiting (a slow network or file system), too many at once, no more than chance."""
    assert slowed().judge(seen) == []


def test_it_does_not_look_again_at_once():
    """A slow spell without a culprit is not looked at in every step; after it is over, the next one is."""
    one = slowed()
    one.judge(looks(r0=0.9, r1=0.9))
    assert not any(one.observe(step, 0.4, is_ordinary=True) for step in range(36, 90))
    assert not one.observe(90, 0.1, is_ordinary=True)
    assert [one.observe(step, 0.4, is_ordinary=True) for step in (91, 92, 93)][-1]


def test_a_stragglers_time_is_what_the_others_waited():
    """Steps of 0.4 s instead of 0.1 s: three quarters of its time; a job that was never stopped stood not still."""
    captures = {"slow_step_s": "0.400", "usual_step_s": "0.100"}
    told = Finding(id="f", rule="straggler.rank", at=100.0, captures=captures)
    marks = {Mark.FAULT: 100.0, Mark.CLOSED: 400.0}
    incident = IncidentRecord(
        id="i", opened_at=100.0, closed_at=400.0, attempt_before=0, findings=[told], marks=marks,
        diagnosis=Diagnosis(cause="straggler.rank"), jobs=[JobKey(cluster="here", id="1")],
    )  # fmt: skip
    assert down_s(incident, 0.0, 1000.0) == pytest.approx(225.0)
    incident.findings = [structs.replace(told, captures={})]
    assert down_s(incident, 0.0, 1000.0) == 0.0

"""The judges of `[trust]` see a rule that is taken away, and say nothing while it holds.

The brakes of reporters are met too seldom for that: their judge is tried on histories made by hand alone.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable
from unittest.mock import patch

import pytest
from msgspec.structs import replace

from holdfast.decide import operators, trust
from holdfast.model import events as e
from holdfast.model import orders as o
from holdfast.model.cluster import SchedulerState
from holdfast.model.evidence import Finding, Place, Role
from holdfast.model.policy import Policy, PolicySet, Trust
from holdfast.model.policy_toml import parse_policy
from holdfast.sim.checkers.trust import approvals_are_counted, reporters_are_braked, two_witnesses_are_heard
from holdfast.sim.options import EDITION_6, draw
from sim.histories import JOB, Tale, order
from sim.mutants import complaints

Broken = Callable[[], contextlib.AbstractContextManager[object]]
BROKEN: dict[str, tuple[str, Broken]] = {
    "a job's word suffices": (
        two_witnesses_are_heard.__name__,
        lambda: patch.object(trust, "_is_one_kind", lambda _node: False),
    ),
    "one person decides": (approvals_are_counted.__name__, lambda: patch.object(operators, "_agrees", lambda *_: True)),
}
FOUND_BY = {"a job's word suffices": 49, "one person decides": 1}
"""A seed from `EDITION_6` on that saw it, tried first."""


def caught_by(name: str, seeds: Iterable[int]) -> int:
    """The first of these seeds by which the judge that the rule belongs to sees that it is gone; -1: none."""
    judge, broken = BROKEN[name]
    with broken():
        return next((seed for seed in seeds if any(one.judge == judge for one in complaints(seed))), -1)


@functools.cache
def clean(seed: int) -> bool:
    """With all rules nobody complains."""
    return complaints(seed) == []


@pytest.mark.parametrize("name", sorted(BROKEN))
def test_a_rule_that_is_taken_away_is_seen(name):
    """By a seed that is clean with it."""
    found = caught_by(name, [EDITION_6 + FOUND_BY[name], *range(EDITION_6, EDITION_6 + 60)])
    assert found >= 0
    assert clean(found)


def test_seeds_before_the_sixth_edition_draw_no_rules():
    """They draw what they always drew; of the later ones each rule is on in some, and off in some."""
    assert not any("[trust]" in draw(seed).policy for seed in (0, 30_000, 1_000_000_000, EDITION_6 - 1))
    drawn = [parse_policy(draw(seed).policy).site.trust for seed in range(EDITION_6, EDITION_6 + 40)]
    for name in ("two_witnesses", "reporter_nodes", "reporter_requeues", "approvals"):
        assert len({getattr(one, name) for one in drawn}) > 1


# --- the judges themselves --------------------------------------------------------------------------------------------


def tale(**rules: object) -> Tale:
    """Nodes n1 to n3, and job 7 on them."""
    told = Tale()
    told.history.policies = PolicySet(site=Policy(trust=Trust(**rules)))  # type: ignore[arg-type]
    for name in ("n1", "n2", "n3"):
        told.node(name)
    told.job(SchedulerState.RUNNING, nodes=("n1", "n2", "n3"))
    return told


def said(told: Tale, source: str, node: str, *orders: o.AnyOrder, job: object = None) -> None:
    """This reporter blames a node, and this is what comes of it."""
    number = len(told.history.steps)
    blame = Finding(id=f"f{number}", rule="x", at=told.now, role=Role.ROOT, place=Place(node=node), job=job)  # type: ignore[arg-type]
    told.event(e.FindingSeen, *orders, finding=blame, source=source)


def fence(node: str) -> o.QuarantineNode:
    """Its quarantine."""
    return order(o.QuarantineNode, f"q-{node}", node=node)


def test_the_judge_of_witnesses_hears_agents_checks_and_the_scheduler():
    """A job's word alone is a complaint, one of two launchers too; any other kind beside it is none."""
    alone = tale(two_witnesses=True)
    said(alone, "launcher:8", "n1")
    said(alone, "launcher:7", "n1", fence("n1"), job=JOB)
    assert len(list(two_witnesses_are_heard(alone.history))) == 1
    for second in (
        lambda told: said(told, "agent:n1", "n1"),
        lambda told: told.event(e.NodeValidated, node="n1", passed=False),
        lambda told: told.node("n1", alive=False),
    ):
        told = tale(two_witnesses=True)
        second(told)
        said(told, "launcher:7", "n1", fence("n1"), job=JOB)
        assert list(two_witnesses_are_heard(told.history)) == []


def test_the_judge_of_brakes_counts_different_nodes_and_others_jobs():
    """A second node is a complaint, the same one again is none; nor is a job that its own launcher ends."""
    told = tale(reporter_nodes=1, reporter_requeues=1)
    said(told, "agent:n1", "n1", fence("n1"))
    said(told, "agent:n1", "n1", fence("n1"))
    said(told, "launcher:8", "n1")
    said(told, "launcher:7", "n2", order(o.RequeueHeld, "r1", restart_count=0), job=JOB)
    said(told, "agent:n3", "n3", order(o.RequeueHeld, "r2", restart_count=0))
    assert list(reporters_are_braked(told.history)) == []
    said(told, "agent:n3", "n3", order(o.RequeueHeld, "r3", restart_count=0))
    said(told, "launcher:9", "n4", fence("n4"))
    said(told, "launcher:9", "n5", fence("n5"))
    assert len(list(reporters_are_braked(told.history))) == 2


MEI, KEN = "mei a", "ken b"


@pytest.mark.parametrize(
    ("people", "complaints_"),
    [
        ((MEI, KEN), 0),
        ((MEI,), 1),
        ((MEI, "mei c"), 1),
        ((MEI, "Mei c"), 1),
        ((MEI, "mei-renamed a"), 1),
        ((MEI, KEN, "-mei a", "ann d"), 0),
        ((MEI, "-mei a", KEN), 1),
        ((MEI, "ken b void:mei a"), 1),
        ((MEI, "ken b void:mei a", "ann d"), 0),
        ((MEI, "ken b refused"), 1),
    ],
)
def test_the_judge_of_approvals_counts_people(people, complaints_):
    """By the token and not by the typed name; withdrawn, refused and void approvals count for nothing."""
    told = tale(approvals=2)
    asked = told.event(e.TimerFired, timer="x").seq
    for number, said_by in enumerate(people):
        by, _, void = said_by.removesuffix(" refused").removeprefix("-").partition(" void:")
        command = e.Command.WITHDRAW if said_by.startswith("-") else e.Command.APPROVE
        fields = {"command": command, "who": f"w{number}", "by": by, "order": "q-n1", "void": (void,) if void else ()}
        event = told.event(e.OperatorCommand, **fields)
        last = told.history.steps[-1]
        no = o.Notify(id="no", cause=event.seq, topic=f"command:{event.id}", title="no", text="")
        given = (no,) if said_by.endswith("refused") else ()
        if number == len(people) - 1:
            given = (*given, replace(fence("n1"), cause=asked))
        told.history.steps[-1] = replace(last, orders=given)
    assert len(list(approvals_are_counted(told.history))) == complaints_


def test_an_order_that_nobody_was_asked_for_needs_no_approval():
    """The event that made it gives it, and it may be given again later."""
    told = tale(approvals=2)
    made = replace(fence("n1"), cause=told.event(e.TimerFired, fence("n1"), timer="x").seq)
    told.event(e.TimerFired, timer="order:q-n1")
    told.history.steps[-1] = replace(told.history.steps[-1], orders=(made,))
    assert list(approvals_are_counted(told.history)) == []

"""What a job's own log rules find acts by itself, also when only the node tells which job it is."""

from __future__ import annotations

import pytest
from tests.decide.play import KEY, Play, kinds

from holdfast.decide import ladder
from holdfast.model import orders as o
from holdfast.model.evidence import Domain, EvidenceKind, Remedy
from holdfast.model.policy import Trouble


def test_a_rule_that_hangs_is_looked_at_like_any_hang():
    """By the launcher: stacks are asked for before anything is stopped."""
    play = Play(scope="allocation").running()
    made = {"domain": Domain.UNKNOWN, "remedy": Remedy.RESTART_IN_PLACE, "kind": EvidenceKind.LOG}
    orders = play.finding("hyperpod.hang", job=KEY, attempt=0, source="launcher:7", **made)
    assert [order for order in orders if isinstance(order, o.CaptureStacks)]
    assert ladder.trouble("hyperpod.hang", Domain.UNKNOWN) is Trouble.HANG


@pytest.mark.parametrize("rule", ["hyperpod.hang", "hyperpod.slow", "hyperpod.fault"])
def test_an_agents_rule_speaks_of_the_only_job_on_its_node(rule: str):
    """A job without a launcher is requeued: the finding is a detector's, not a mere line. A hang is looked at first."""
    play = Play().plain()
    orders = play.finding(rule, node="n2", source="agent:n2", kind=EvidenceKind.LOG, remedy=Remedy.RESTART_IN_PLACE)
    if rule == "hyperpod.hang":
        assert kinds(orders) == ["CaptureStacks"]
        orders = play.fire("job:")
    assert "RequeueHeld" in kinds(orders)


def test_a_line_of_the_catalogue_alone_moves_nothing():
    """The same place and kind of evidence, but a rule that only reads lines."""
    play = Play().plain()
    play.finding("torch.cuda.oom", node="n2", source="agent:n2", kind=EvidenceKind.LOG)
    assert not play.engine.state.incidents

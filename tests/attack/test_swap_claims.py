"""What an agent says of its machine and its boot: neither ends a repair that people approved, nor clears what it repairs.

The agent of n2 was taken over, and its token lets it say both as often as it likes. The scheduler shows the same machine.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.decide.play import Play

from attack_fixture import Attempt
from holdfast.decide import nodes, repair
from holdfast.model import events as e
from holdfast.model import orders as o
from holdfast.model.orders import OrderStatus
from holdfast.model.policy import Mode
from holdfast.model.records import NodeState

IDS = [
    {},
    {"boot_id": "k8s:b0", "instance_id": "k8s:i-0"},
    {"boot_id": "", "instance_id": ""},
]
"""What the scheduler shows: ids like an agent's, ids of its own, none."""


def drained(ids: dict[str, str]) -> Play:
    """n2 drained by us for an Xid 74, its replacement proposed and not approved yet."""
    play = Play().nodes(**ids)
    play.do(e.AgentAttached, node="n2", boot_id="boot-n2", instance_id="machine-n2", source="agent:n2")
    play.say(e.Command.SET_MODE, value="advise", group="gpu")
    play.xid("n2", 74)
    for order in play.engine.proposed_orders():
        if isinstance(order.order, o.QuarantineNode):
            play.say(e.Command.APPROVE, order=order.order.id)
    play.done(o.QuarantineNode)
    return play


def claim(play: Play, times: int = 20, **fields: str) -> None:
    """New ids with every beat, and what an agent does that has no scruples: its checks pass."""
    for number in range(times):
        said: dict[str, Any] = {"boot_id": f"b{number}", "instance_id": f"m{number}"} | fields
        play.do(e.AgentAttached, node="n2", source="agent:n2", **said)
        play.do(e.NodeValidated, node="n2", source="agent:n2", passed=True, instance_id=said["instance_id"])


def is_left(play: Play) -> bool:
    """Does n2 still wait for its replacement, with what is held against it?"""
    open_ones = [one for one in play.engine.state.orders.values() if isinstance(one.order, o.ReplaceNode)]
    waits = any(one.status in {OrderStatus.PROPOSED, OrderStatus.PENDING} for one in open_ones)
    return waits and play.ns() in {NodeState.DRAINING, NodeState.REPAIRING} and bool(play.n().findings)


@pytest.mark.parametrize("ids", IDS, ids=["bare", "prefixed", "none"])
@pytest.mark.attempt(actor="An agent that was taken over", asset="approvals", removed="decide.nodes.is_confirmed")
def test_a_claimed_swap_ends_no_repair(attempt: Attempt, ids: dict[str, str]) -> None:
    """Claim to be another machine with every beat, to have a proposed replacement withdrawn."""
    attempt.without(nodes, "is_confirmed", lambda *, by_agent: by_agent is not None)
    play = drained(ids)
    told = len(play.notices())
    claim(play)
    if not attempt.is_open:
        assert play.notices()[told:] == []
    attempt.judge(succeeded=not is_left(play))


@pytest.mark.attempt(actor="An agent that was taken over", asset="approvals", removed="decide.repair.is_rebooted_away")
def test_a_claimed_reboot_clears_no_observed_fault(attempt: Attempt) -> None:
    """Claim to have booted, where policy says observe, to be rid of a fault that needs a replacement."""
    attempt.without(repair, "is_rebooted_away", lambda *_: True)
    play = Play(mode=Mode.OBSERVE).nodes()
    play.xid("n2", 74)
    claim(play, instance_id="machine-n2")
    attempt.judge(succeeded=play.ns() is NodeState.HEALTHY)

"""A launcher's word that a node is gone: asked about until it is confirmed, and dropped when the node is heard."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.adapters.clock import VirtualClock, run_virtual
from holdfast.controller.claims import Claims
from holdfast.controller.state import ShellState
from holdfast.model import events as e
from holdfast.model.cluster import NodeView


class House:
    """The scheduler's view of one node, when its agent was heard, and what was handed to the engine."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.state = ShellState(nodes={"n1": NodeView(name="n1", alive=True)})
        self.heard = 0.0
        self.stored: list[e.AnyEvent] = []
        self.claims = Claims(
            self.clock,
            watch=self,  # type: ignore[arg-type]
            witness=None,
            presence=self,  # type: ignore[arg-type]
            state=lambda: self.state,
            submit=self.submit,
        )

    async def look_again(self) -> None:
        """A look that shows what is in `state`."""

    def heard_at(self, _name: str) -> float:
        return self.heard

    def submit(self, event: Any) -> asyncio.Future[int]:
        self.stored.append(event)
        done = asyncio.get_running_loop().create_future()
        done.set_result(1)
        return done


@pytest.mark.parametrize("is_heard", [False, True])
def test_a_node_that_was_heard_after_the_claim_is_not_said_to_be_gone(is_heard: bool):
    """The scheduler may lose it later, for another reason: the claim is of before."""

    async def work() -> None:
        house = House()
        claim = e.NodeGone(id="gone", at=0.0, node="n1", evidence="connection reset")
        assert await house.claims.confirmed(claim) is None
        assert list(house.claims.open) == ["n1"]
        if is_heard:
            house.heard = house.clock.monotonic() + 0.5
        await house.clock.sleep(0.6)
        house.state.nodes["n1"] = NodeView(name="n1", alive=False)
        await asyncio.wait(house.claims.open.values())
        assert [one.evidence for one in house.stored] == (
            [] if is_heard else ["connection reset; the scheduler says so too (down)"]
        )

    run_virtual(work())

"""Claims: a launcher's report that a node is gone reaches the engine once the scheduler's side confirms it.

The API brings each `NodeGone` here. A claim is asked about at once, by a fresh look at the scheduler and by its witness
together; where neither confirms it, again for a while. A node that is heard after the claim refutes it. Nothing of a
claim is kept: a controller that starts again learns of a dead node by its silence. Time is the clock port's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog
from msgspec import structs

from holdfast.controller.acts import within
from holdfast.controller.presence import Presence
from holdfast.controller.state import ShellState
from holdfast.controller.watch import Watch
from holdfast.errors import LinkError, OrderError
from holdfast.model import events as e
from holdfast.model.evidence import Domain
from holdfast.ports import Clock, Witness

_log = structlog.get_logger("holdfast.controller")

ANSWER_S = 1.5
"""A quick look has answered by then; who claims does not wait longer."""
AGAIN_FIRST_S, AGAIN_MAX_S = 1.0, 15.0
CLAIM_S = 120.0
"""A claim that nothing has confirmed for so long is dropped: the node's silence is asked about elsewhere."""


class Claims:
    """Claims that wait for their confirmation. `submit` hands a confirmed one to the engine."""

    def __init__(
        self,
        clock: Clock,
        *,
        watch: Watch,
        witness: Witness | None,
        presence: Presence,
        state: Callable[[], ShellState],
        submit: Callable[[e.AnyEvent], asyncio.Future[int]],
    ) -> None:
        self._clock = clock
        self._watch = watch
        self.witness = witness
        self._presence = presence
        self._state = state
        self._submit = submit
        self.open: dict[str, asyncio.Task[None]] = {}
        """Nodes whose claim is not confirmed yet."""

    async def confirmed(self, claim: e.NodeGone) -> e.NodeGone | None:
        """The claim with what confirms it; None: nothing does now, and it is asked about again."""
        made_at = self._clock.monotonic()
        if claim.node in self.open:
            return None
        try:
            why = await within(self._clock, ANSWER_S, self._why(claim.node))
        except TimeoutError:
            why = ""
        if why:
            return _with(claim, why)
        if claim.node not in self.open:
            _log.warning("a node is said to be gone, and the scheduler does not confirm it", node=claim.node)
            task = asyncio.create_task(self._ask_again(claim, made_at), name=f"claim {claim.node}")
            self.open[claim.node] = task
            task.add_done_callback(lambda _: self.open.pop(claim.node, None))
        return None

    async def _ask_again(self, claim: e.NodeGone, made_at: float) -> None:
        pause_s = AGAIN_FIRST_S
        while self._clock.monotonic() - made_at < CLAIM_S:
            await self._clock.sleep(pause_s)
            pause_s = min(AGAIN_MAX_S, pause_s * 2)
            if self._presence.heard_at(f"node:{claim.node}") > made_at:
                return
            if why := await self._why(claim.node):
                await asyncio.wait([self._submit(_with(claim, why))])
                return

    async def _why(self, node: str) -> str:
        """Return what confirms that the node does not run; empty: nothing does."""
        asked = [asyncio.create_task(self._by_look(node))]
        if self.witness is not None:
            asked.append(asyncio.create_task(self._by_witness(self.witness, node)))
        try:
            for answer in asyncio.as_completed(asked):
                if why := await answer:
                    return why
        finally:
            for task in asked:
                task.cancel()
        return ""

    async def _by_look(self, node: str) -> str:
        try:
            await self._watch.look_again()
        except LinkError:
            return ""
        view = self._state().nodes.get(node)
        return f"the scheduler says so too ({view.state_text or 'down'})" if view and view.alive is False else ""

    async def _by_witness(self, witness: Witness, node: str) -> str:
        try:
            return await witness.why_gone(node, claimed=True)
        except (LinkError, OrderError):
            return ""

    def close(self) -> None:
        """Ask no more."""
        for task in self.open.values():
            task.cancel()


def _with(claim: e.NodeGone, why: str) -> e.NodeGone:
    return structs.replace(claim, evidence=f"{claim.evidence}; {why}", domain=Domain.HARDWARE)

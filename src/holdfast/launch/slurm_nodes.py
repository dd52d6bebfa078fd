"""A silent node from Slurm's side: evidence (its slurmd takes no connection either), and its leave. Asked by leaders.

A node that is cut off or switched off cannot say so, and the scheduler itself notices after SlurmdTimeout (300 s by
default). Two daemons of one machine that fall silent together are the machine. Time passes in the asyncio loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

from holdfast.adapters.slurm.daemons import NodeAddress, daemon_answers
from holdfast.adapters.slurm.output import NO_SHRINK
from holdfast.adapters.slurm.own_job import OwnJob
from holdfast.errors import LinkError, OrderError

FRESH_S = 2.0
"""A look that found nobody counts so long: a node may have answered again since."""


class SlurmNodes:
    """The nodes of our own job.

    Args:
        own_job: asks the scheduler, once, when first needed.
        nodes: of the allocation.
        known: where their daemons listen, if that is known already.
    """

    def __init__(self, own_job: OwnJob, nodes: Sequence[str], known: Mapping[str, NodeAddress] | None = None) -> None:
        self._own_job = own_job
        self._nodes = tuple(nodes)
        self._known: Mapping[str, NodeAddress] = known or {}
        self._let_go: set[str] = set()
        self._asking = asyncio.Lock()
        self._ahead: dict[str, asyncio.Task[tuple[bool, float]]] = {}

    def look_ahead(self, node: str) -> None:
        """It is silent: `is_dead` will be asked of it soon, and shall not have to wait for a connection then."""
        if (before := self._ahead.pop(node, None)) is not None:
            before.cancel()
        self._ahead[node] = asyncio.create_task(self._look(node))

    async def is_dead(self, node: str) -> bool:
        """There is evidence that it does not run: no slurmd answers where the scheduler has it."""
        ahead = self._ahead.pop(node, None)
        if ahead is not None:
            dead, at = await ahead
            if dead and asyncio.get_running_loop().time() - at <= FRESH_S:
                return True
        return await self._probe(node)

    def address(self, node: str) -> NodeAddress | None:
        """Where its daemon listens, as far as is known."""
        return self._known.get(node)

    @property
    def warning(self) -> str:
        """What the site's settings will cost this job when a node is lost; empty: nothing, as far as is known."""
        cluster = self._own_job.cluster
        return NO_SHRINK if cluster is not None and not cluster.may_shrink and len(self._nodes) > 1 else ""

    @property
    def has_let_go(self) -> bool:
        """A lost node has left the job, or was to."""
        return bool(self._let_go)

    async def let_go(self, lost: AbstractSet[str]) -> str:
        """Shrink the job by its lost nodes, before the scheduler gives them up and ends the job with them.

        Returns what became of it, as a sentence; nothing when that was done before.
        """
        if lost <= self._let_go:
            return ""
        self._let_go |= lost
        keep = [node for node in self._nodes if node not in self._let_go]
        try:
            await self._own_job.let_go(keep)
        except (OrderError, LinkError) as error:
            names = ", ".join(sorted(self._let_go))
            return f"{names} cannot leave the job, so Slurm ends the job at SlurmdTimeout: {error}"
        return f"the job goes on with {', '.join(keep)}"

    async def _look(self, node: str) -> tuple[bool, float]:
        dead = await self._probe(node)
        return dead, asyncio.get_running_loop().time()

    async def learn(self) -> bool:
        """Ask the scheduler where the daemons listen, once; False when it does not answer now.

        Called ahead of the first silence, too: a busy scheduler must not cost time then.
        """
        async with self._asking:  # nodes that fall silent together are one question to the scheduler
            if not self._known:
                try:
                    self._known = await self._own_job.addresses(self._nodes)
                except (OrderError, LinkError):
                    return False
        return True

    async def _probe(self, node: str) -> bool:
        return await self.learn() and not await daemon_answers(self._known.get(node))
